"""What publishers expect of a stream's end, by JetStream's headers."""

import pytest

from penstock.logd.format.acks import Nack
from penstock.logd.format.headers import format_headers
from penstock.logd.intake.intake import Arrived, Intake
from penstock.logd.intake.turn import Effect, Message, Refuse
from penstock.logd.metadata.streams import StreamConfig

SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"


def make_intake(subject: str) -> Intake:
    config = StreamConfig(name="logs", subject=subject)
    return Intake(config, next_offset=0, epoch=1, streams_for=lambda _: ("logs", "other"))


def message(**headers: str) -> Message:
    pairs = tuple((name.replace("_", "-"), value.encode()) for name, value in headers.items())
    return Message(b"t.a", b"r", format_headers(pairs) if pairs else b"", b"x")


def asking(headers: dict[str, str]) -> Message:
    return message(**{name.replace("-", "_"): value for name, value in headers.items()})


def take(intake: Intake, *messages: Message) -> list[Effect]:
    return intake.handle(Arrived(messages, 1 << 20), 1)


def refusals(effects: list[Effect]) -> list[tuple[Nack | None, str]]:
    return [(e.ack.nack, e.ack.description) for e in effects if isinstance(e, Refuse)]


def test_a_stream_of_one_subject_knows_the_last_sequence_of_it() -> None:
    intake = make_intake("t.a")
    assert refusals(take(intake, asking({SEQUENCE: "0"}))) == []
    wrong = (Nack.WRONG_LAST_SEQUENCE, "wrong last sequence: 1")
    assert refusals(take(intake, asking({SEQUENCE: "0"}))) == [wrong]
    assert refusals(take(intake, asking({SEQUENCE: "1", OF_SUBJECT: "t.a"}))) == []
    both = {SEQUENCE: "2", "Nats-Expected-Last-Sequence": "1"}
    assert refusals(take(intake, asking(both))) == [(wrong[0], "wrong last sequence: 2")]
    assert intake.next_offset == 2


@pytest.mark.parametrize(
    ("subject", "headers", "nack"),
    [
        ("t.*", {SEQUENCE: "0"}, Nack.BAD_HEADER),
        ("t.a", {SEQUENCE: "0", OF_SUBJECT: "t.b"}, Nack.BAD_HEADER),
        ("t.a", {SEQUENCE: "x"}, Nack.BAD_HEADER),
        ("t.a", {OF_SUBJECT: "t.a"}, Nack.NO_SUBJECT_SEQUENCE),
    ],
    ids=["wildcards", "another subject", "no number", "no sequence"],
)
def test_what_is_not_known_of_a_subject_is_refused(
    subject: str, headers: dict[str, str], nack: Nack
) -> None:
    intake = make_intake(subject)
    ((told, why),) = refusals(take(intake, asking(headers)))
    assert (told, intake.next_offset) == (nack, 0)
    assert "sequence" in why.lower()


def test_a_stream_that_was_not_named_stores_whatever_is_expected_of_the_other() -> None:
    intake = make_intake("t.>")
    elsewhere = asking({SEQUENCE: "7", OF_SUBJECT: "t.b", "Nats-Expected-Stream": "other"})
    assert refusals(take(intake, elsewhere)) == []
    assert intake.next_offset == 1


@pytest.mark.parametrize(
    ("header", "code", "number"),
    [
        ("Nats-Rollup", 500, 10111),
        ("Nats-TTL", 400, 10166),
        ("Nats-Incr", 400, 10168),
        ("Nats-Batch-Id", 400, 10174),
        ("Nats-Schedule", 400, 10188),
    ],
)
def test_what_jetstream_would_do_otherwise_is_refused_by_its_code(
    header: str, code: int, number: int
) -> None:
    intake = make_intake("t.a")
    ((nack, why),) = refusals(take(intake, asking({header: "1"})))
    assert nack is not None
    assert (nack.code, nack.err_code, intake.next_offset) == (code, number, 0)
    assert header in why

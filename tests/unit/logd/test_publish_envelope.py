"""Liftbridge's envelopes: their bytes, and what an intake makes of what is in them."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.errors import CorruptError
from penstock.logd.format.acks import Nack, PubAck
from penstock.logd.format.envelope import encode_envelope
from penstock.logd.format.headers import format_headers
from penstock.logd.format.publish_envelope import (
    decode_ack_envelope,
    decode_publish,
    is_literal,
    published_in,
    refused_ack,
    stored_ack,
)
from penstock.logd.intake.intake import Arrived, Intake, LogFailed
from penstock.logd.intake.options import stored_message_id
from penstock.logd.intake.turn import (
    AckLater,
    Append,
    Effect,
    Message,
    MessageRun,
    PendingAck,
    Refuse,
)
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.acks import AckSender, LoopDispatcher
from tests.support.protobuf_bytes import decode, encode, entry, one

SECOND = 1_000_000_000
ROOM = 1 << 20


def make_intake(**options: object) -> Intake:
    config = StreamConfig(name="logs", subject="t.>", **options)  # type: ignore[arg-type]
    return Intake(config, next_offset=0, epoch=3, streams_for=lambda _: ("logs", "all"))


def envelope(fields: Mapping[int, object], **headers: str) -> Message:
    pairs = tuple((name.replace("_", "-"), value.encode()) for name, value in headers.items())
    block = format_headers(pairs) if pairs else b""
    return Message(b"t.a", b"nats-reply", block, encode_envelope(0, encode(fields)))


def take(intake: Intake, *messages: Message, room: int = ROOM) -> list[Effect]:
    return intake.handle(Arrived(messages, room), SECOND)


def acks(effects: list[Effect]) -> list[PendingAck]:
    found = [ack for effect in effects if isinstance(effect, AckLater) for ack in effect.acks]
    return [ack for ack in found if isinstance(ack, PendingAck)]


def refusals(effects: list[Effect]) -> list[tuple[bytes, Nack | None]]:
    return [(effect.reply, effect.ack.nack) for effect in effects if isinstance(effect, Refuse)]


def run(effects: list[Effect]) -> MessageRun:
    (found,) = [item for effect in effects if isinstance(effect, Append) for item in effect.items]
    assert isinstance(found, MessageRun)
    return found


FULL = {2: b"key", 3: b"value", 9: [entry("a", b"1")], 10: "in.box", 11: "c", 12: 1, 1: -1}


def test_a_record_is_what_its_envelope_says() -> None:
    effects = take(make_intake(), envelope(FULL, Nats_Expected_Stream="logs"))
    stored = run(effects)
    (message,) = stored.messages
    assert message == Message(b"t.a", b"", b"", b"value")
    assert stored.extras[0].key == b"key"
    assert stored.extras[0].headers == (("a", b"1"),)
    (ack,) = acks(effects)
    assert (ack.reply, ack.offset, ack.release, ack.here) == (b"in.box", 0, 0, False)


@pytest.mark.parametrize(
    ("stream_policy", "policy", "answered"),
    [
        ("all", 0, "all"),
        ("leader", 0, "leader"),
        ("none", 0, "leader"),
        ("leader", 1, "all"),
        ("none", 1, "all"),
        ("all", 2, None),
    ],
)
def test_a_publisher_that_says_nothing_has_the_policy_of_the_stream(
    stream_policy: str, policy: int, answered: str | None
) -> None:
    intake = make_intake(ack_policy=stream_policy, ack_on_reply=False)
    found = acks(take(intake, envelope({3: b"x", 10: "in.box", 12: policy})))
    assert [("leader" if ack.here else "all") for ack in found] == ([answered] if answered else [])


def test_acks_of_envelopes_and_plain_messages_are_released_in_order() -> None:
    plain = Message(b"t.a", b"r", b"", b"x")
    effects = take(make_intake(), plain, envelope(FULL), plain)
    released = [
        ack.release for effect in effects if isinstance(effect, AckLater) for ack in effect.acks
    ]
    assert released == sorted(released)
    assert len(run(effects).messages) == 3


def test_an_id_in_either_place_is_remembered_as_the_log_will_tell_it() -> None:
    intake = make_intake()
    inner = {3: b"x", 9: [entry("Nats-Msg-Id", b"inner")], 10: "in.box"}
    for message in (envelope(inner, Nats_Msg_Id="outer"), envelope(inner), envelope(FULL)):
        stored = run(take(intake, message)).extras[0].headers or ()
        again = acks(take(intake, message))
        known = stored_message_id(stored)
        assert [ack.duplicate for ack in again] == [known is not None]
    assert intake.counts.stored == 4


def test_an_expected_offset_counts_where_the_stream_says_so() -> None:
    wrong = envelope(FULL | {1: 7})
    assert refusals(take(make_intake(), wrong)) == []
    strict = make_intake(expected_offset=True)
    assert refusals(take(strict, wrong)) == [(b"in.box", Nack.WRONG_LAST_SEQUENCE)]
    assert refusals(take(strict, envelope(FULL | {1: 0}), envelope(FULL))) == []
    elsewhere = envelope(FULL | {1: 7}, Nats_Expected_Stream="all")
    effects = take(strict, elsewhere)  # another stream is meant: a copy, and no word
    assert (refusals(effects), acks(effects), len(run(effects).messages)) == ([], [], 1)


@pytest.mark.parametrize(
    ("fields", "options", "nack"),
    [
        ({2: bytes(9)}, {"max_key_bytes": 8}, Nack.BAD_HEADER),
        ({9: [entry("a", b"1"), entry("b", b"2")]}, {"max_header_pairs": 1}, Nack.BAD_HEADER),
        ({9: [entry("a", bytes(300))]}, {"max_header_bytes": 256}, Nack.BAD_HEADER),
        ({9: [entry("Nats-Msg-Id", bytes(257))]}, {}, Nack.BAD_HEADER),
        ({3: bytes(2000)}, {"max_message_bytes": 1024}, Nack.MESSAGE_TOO_LARGE),
    ],
)
def test_what_a_stream_does_not_take_is_refused_in_the_inbox(
    fields: dict[int, object], options: dict[str, object], nack: Nack
) -> None:
    intake = make_intake(**options)
    assert refusals(take(intake, envelope(FULL | fields))) == [(b"in.box", nack)]
    assert intake.counts.stored == 0


def test_a_stream_that_takes_nothing_says_so_in_the_inbox() -> None:
    intake = make_intake()
    assert refusals(take(intake, envelope(FULL), room=1024)) == [(b"in.box", Nack.BUSY)]
    intake.handle(LogFailed("gone"), SECOND)
    assert refusals(take(intake, envelope(FULL))) == [(b"in.box", Nack.STORAGE_FAILED)]


def test_many_small_headers_are_counted_with_what_they_take_in_a_frame() -> None:
    headers = [entry(f"{number}", b"") for number in range(200)]
    small = envelope({9: headers, 10: "in.box"})
    assert small.size_bytes() < 2400 < 200 * 32
    effects = take(make_intake(), small, room=4000)
    assert refusals(effects) == [(b"in.box", Nack.BUSY)]


@pytest.mark.parametrize(
    "fields", [{10: "a b"}, {10: "a\r\nPUB b 0"}, {10: "a.*"}, {10: "a..b"}, {12: 9}, {11: b"\xff"}]
)
def test_an_envelope_that_is_not_sound_is_stored_as_it_is(fields: dict[int, object]) -> None:
    intake = make_intake()
    message = envelope(FULL | fields)
    (stored,) = run(take(intake, message)).messages
    assert (stored.payload, intake.counts.malformed_envelopes) == (message.payload, 1)


def test_an_ack_has_the_fields_of_its_publisher_and_of_the_log() -> None:
    published = published_in(envelope(FULL).payload, b"t.a", 5)
    assert published is not None
    data = stored_ack(published.form, stream="logs", offset=7, epoch=3, duplicate=True, now_ns=9)
    assert data[:8] == b"\xb9\x0e\x43\xb4\x00\x08\x00\x01"
    fields = decode(data[8:])
    assert [one(fields, number, 0) for number in range(1, 11)] == [
        b"logs", 0, b"t.a", 7, b"in.box", b"c", 1, 5, 9, 0,
    ]  # fmt: skip
    assert (one(fields, 1000), one(fields, 1001)) == (3, 1)


@pytest.mark.parametrize(
    ("nack", "code"),
    [(Nack.WRONG_LAST_SEQUENCE, 2), (Nack.MESSAGE_TOO_LARGE, 3), (Nack.BUSY, 1)],
)
def test_a_refusal_has_the_code_that_clients_know_and_ours(nack: Nack, code: int) -> None:
    data = refused_ack(b"", stream="logs", nack=nack, description="why")
    fields = decode(data[8:])
    assert (one(fields, 10), one(fields, 1002), one(fields, 1003)) == (code, nack.err_code, b"why")
    assert decode_ack_envelope(data).errorMessage == "why"


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(payload: bytes) -> None:
    data = encode_envelope(0, payload)
    effects = take(make_intake(), Message(b"t.a", b"r", b"", data))
    assert len(run(effects).messages) == 1
    for what in (payload, data, b"\xb9\x0e\x43\xb4" + payload):
        published_in(what, b"t.a", 0)
        try:
            decode_ack_envelope(what)
        except CorruptError:
            continue
        assert what.startswith(b"\xb9\x0e\x43\xb4")


@given(st.text(max_size=20))
def test_a_literal_subject_is_one_word_of_the_protocol(subject: str) -> None:
    if is_literal(subject):
        assert len(subject.encode().split()) == 1
        assert not set(subject) & set("*> \r\n\t")


def test_what_wants_no_answer_gets_none() -> None:
    found = decode_publish(memoryview(encode({3: b"x"})), b"t.a", 0)
    assert (found.key, found.ack_inbox, found.ack_policy) == (None, b"", None)
    effects = take(make_intake(), envelope({3: b"x"}))
    assert (acks(effects), refusals(effects)) == ([], [])


class _Link:
    def __init__(self) -> None:
        self.written = b""
        self.max_payload = 1024

    def write(self, data: bytes) -> bool:
        self.written += data
        return True


async def test_answers_go_out_in_the_form_they_were_asked_in() -> None:
    link = _Link()
    sender = AckSender(link, LoopDispatcher())  # type: ignore[arg-type]
    form = encode({6: "c"})
    sender.send_acks("logs", 3, [PendingAck(0, b"in.box", 0, form=form)])
    refusal = PubAck(stream="logs", nack=Nack.READ_ONLY, description="why")
    sender.send_refusal(Refuse(b"in.box", refusal, enveloped=False, form=form))
    sender.flush()
    bodies = [part.split(b"\r\n", 1)[1] for part in link.written.split(b"PUB ")[1:]]
    stored, refused = (decode(body[8:-2]) for body in bodies)
    assert (one(stored, 6), one(stored, 10, 0)) == (b"c", 0)
    assert (one(refused, 6), one(refused, 1002)) == (b"c", Nack.READ_ONLY.err_code)

"""A message has one identity: as it arrives, and as the record that a leader made of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.format.batch import Record, build_batch, decode_body, encode_body
from penstock.logd.format.envelope import BatchPayload, encode_batch
from penstock.logd.format.headers import format_headers
from penstock.logd.intake.intake import Arrived, Intake
from penstock.logd.intake.standby_buffer import identify, identities, is_exact, stored_offset
from penstock.logd.intake.turn import Append, Message
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.log_writer import build_frames

LOGS = StreamConfig(name="logs", subject="t.>")
NEVER_ACKED = StreamConfig(name="logs", subject="t.>", ack_policy="none")
LISTENS = StreamConfig(name="logs", subject="t.>", ack_on_reply=False)
NO_IDS = StreamConfig(name="logs", subject="t.>", dedup_window_s=0)
BATCH = encode_batch(
    BatchPayload(
        schema_version=1,
        record_count=2,
        producer_id=b"p" * 16,
        previous_sequence=0,
        sequence=7,
        body=encode_body(build_batch([Record("t.a", b"1", 1), Record("t.a", b"2", 1)])),
    )
)


def intake_for(config: StreamConfig) -> Intake:
    return Intake(config, next_offset=5, epoch=1, streams_for=lambda _: ("logs", "other"))


def stored(intake: Intake, *messages: Message) -> list[bytes]:
    """The identities of the records that an intake makes of messages."""
    found = []
    for effect in intake.handle(Arrived(messages, 1 << 30), 1):
        if isinstance(effect, Append):
            for header, body in build_frames(effect.items, epoch=1):
                found += [one for _, one in identities(header, decode_body(body), intake.config)]
    return found


def with_headers(*pairs: tuple[str, bytes], reply: bytes = b"", payload: bytes = b"x") -> Message:
    return Message(b"t.a", reply, format_headers(pairs), payload)


names = st.sampled_from(["A", "B", "Nats-Msg-Id", "Penstock-Key", "Penstock-Tombstone",
                         "Penstock-Ack-Policy", "Nats-Expected-Stream", "Nats-TTL"])  # fmt: skip
values = st.sampled_from([b"", b"a", b"b", b"true", b"none", b"all", b"logs", b"other"])
messages = st.builds(
    Message,
    st.sampled_from([b"t.a", b"t.b", b"t.\xff"]),
    st.sampled_from([b"", b"r"]),
    st.one_of(
        st.just(b""),
        st.just(b"nonsense"),
        st.lists(st.tuples(names, values), max_size=3).map(lambda p: format_headers(tuple(p))),
    ),
    st.sampled_from([b"", b"x", b"y", BATCH, BATCH[:-1], BATCH[:9]]),
)


@given(st.sampled_from([LOGS, NEVER_ACKED, NO_IDS, LISTENS]), messages)
def test_what_a_leader_stores_has_the_identity_that_its_message_had(
    config: StreamConfig, message: Message
) -> None:
    intake = intake_for(config)
    found = stored(intake, message)
    identity = identify(message, config)
    if intake.counts.stored:
        counted = [one for one in found if one == identity or not is_exact(one)]
        assert counted == ([] if identity is None else [identity])
    if identity is not None and is_exact(identity) and intake.counts.stored:
        assert stored_offset(identity, intake.dedup, 1) == intake.next_offset - 1


@given(st.sampled_from([LOGS, NO_IDS]), messages, messages)
def test_different_messages_have_different_identities(
    config: StreamConfig, one: Message, other: Message
) -> None:
    first, second = identify(one, config), identify(other, config)
    if first is not None and first == second and not is_exact(first):
        parts = [(m.subject, m.payload) for m in (one, other)]
        assert parts[0] == parts[1]
        kept = [row for m in (one, other) for row in rows(config, m)]
        assert len(set(kept)) <= 1


def rows(config: StreamConfig, message: Message) -> list[str]:
    intake = intake_for(config)
    for effect in intake.handle(Arrived([message._replace(reply=b"")], 1 << 30), 1):
        if isinstance(effect, Append):
            (frame,) = build_frames(effect.items, epoch=1)
            return [str(decode_body(frame[1]).drop_columns(["reply", "timestamp"]).to_pylist())]
    return []


@pytest.mark.parametrize(
    "message",
    [
        Message(b"t.a", b"reply", b"", b"x"),
        with_headers(("Nats-Msg-Id", b"1"), reply=b"reply"),
        with_headers(("Nats-Rollup", b"all")),
        with_headers(("Penstock-Key", b"k"), ("Penstock-Tombstone", b"true")),
        Message(b"t.a", b"", b"NATS/1.0 nonsense", b"x"),
        Message(b"t.a", b"", b"", bytes(9 << 20)),
        Message(b"t.a", b"reply", b"", BATCH),
    ],
)
def test_what_is_answered_or_always_refused_is_not_kept(message: Message) -> None:
    assert identify(message, LOGS) is None


def test_a_reply_subject_counts_only_where_it_is_answered() -> None:
    asking = Message(b"t.a", b"reply", b"", b"x")
    assert identify(asking, NEVER_ACKED) == identify(asking._replace(reply=b""), NEVER_ACKED)
    elsewhere = with_headers(("Nats-Expected-Stream", b"other"), reply=b"reply")
    assert stored(intake_for(LOGS), elsewhere) == [identify(elsewhere, LOGS)]


def test_a_batch_is_its_producers_sequence() -> None:
    intake = intake_for(LOGS)
    message = Message(b"t.a", b"", b"", BATCH)
    identity = identify(message, LOGS)
    assert identity is not None
    assert stored_offset(identity, intake.dedup, 1) is None
    assert stored(intake, message) == [identity]
    assert stored_offset(identity, intake.dedup, 1) == 6
    intake.dedup.producers.record(b"p" * 16, 8, 9, 1)
    assert stored_offset(identity, intake.dedup, 1) == -1


def test_frames_of_compaction_say_nothing() -> None:
    intake = intake_for(LOGS)
    (effect,) = intake.handle(Arrived([Message(b"t.a", b"", b"", b"x")], 1 << 20), 1)
    assert isinstance(effect, Append)
    ((header, body),) = build_frames(effect.items, epoch=1)
    flagged = replace(header, compacted=True)
    assert list(identities(flagged, decode_body(body), LOGS)) == []

from typing import Any

import pytest

from penstock.logd.format.acks import Nack
from penstock.logd.format.batch import Record, build_batch, decode_body, encode_body
from penstock.logd.format.envelope import COOKIE, BatchPayload, encode_batch
from penstock.logd.format.headers import Pairs, format_headers, parse_headers
from penstock.logd.format.rows import batch_records
from penstock.logd.intake.intake import Arrived, Intake, LogFailed
from penstock.logd.intake.turn import (
    AckLater,
    Append,
    Effect,
    Message,
    MessageRun,
    PendingAck,
    PrebuiltBatch,
    Refuse,
)
from penstock.logd.limits import FRAME_BYTES_MAX, FRAME_ROWS_MAX
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.log_writer import build_frames

ROOM = 1 << 20
SECOND = 1_000_000_000


def make_intake(**options: object) -> Intake:
    config = StreamConfig(name="logs", subject="t.>", **options)  # type: ignore[arg-type]
    return Intake(
        config,
        next_offset=0,
        epoch=3,
        streams_for=lambda s: ("logs", "all") if s == "t.a" else (),
        knows_stream=lambda name: name in ("logs", "all", "elsewhere"),
    )


def message(payload: bytes = b"x", *, reply: bytes = b"r", **headers: str) -> Message:
    pairs = tuple((name.replace("_", "-"), value.encode()) for name, value in headers.items())
    return Message(b"t.a", reply, format_headers(pairs) if pairs else b"", payload)


def batch(previous: int, sequence: int, *, count: int = 2, reply: bytes = b"r") -> Message:
    records = [Record("t.a", b"%d" % number, number) for number in range(count)]
    payload = BatchPayload(
        schema_version=1,
        record_count=count,
        producer_id=b"p" * 16,
        previous_sequence=previous,
        sequence=sequence,
        body=encode_body(build_batch(records)),
    )
    return Message(b"t.a", reply, b"", encode_batch(payload))


def take(
    intake: Intake, *messages: Message, room: int = ROOM, now_ns: int = SECOND
) -> list[Effect]:
    effects = intake.handle(Arrived(messages, room), now_ns)
    counts = intake.counts
    assert counts.refused_total == counts.refused.total()
    assert counts.received == counts.stored + counts.duplicates + counts.refused_total
    return effects


def acks(effects: list[Effect]) -> list[PendingAck]:
    """Each publisher's, in the order in which they are released."""
    found: list[PendingAck] = []
    for effect in effects:
        for ack in effect.acks if isinstance(effect, AckLater) else ():
            if isinstance(ack, PendingAck):
                found.append(ack)
            else:
                offsets = range(ack.base_offset, ack.release + 1)
                pairs = zip(offsets, ack.replies, strict=True)
                found += [PendingAck(n, reply, n) for n, reply in pairs if reply]
    return sorted(found, key=lambda ack: ack.release)


def nacks(effects: list[Effect]) -> list[Nack | None]:
    return [effect.ack.nack for effect in effects if isinstance(effect, Refuse)]


def items(effects: list[Effect]) -> list[MessageRun | PrebuiltBatch]:
    return [item for effect in effects if isinstance(effect, Append) for item in effect.items]


def test_plain_messages_of_a_turn_are_one_run_acked_when_committed() -> None:
    intake = make_intake()
    effects = take(intake, message(b"a"), message(b"b", reply=b""), message(b"c"))
    (run,) = items(effects)
    assert isinstance(run, MessageRun)
    assert (run.base_offset, run.next_offset, run.timestamp_ns) == (0, 3, SECOND)
    assert [(ack.release, ack.offset) for ack in acks(effects)] == [(0, 0), (2, 2)]
    assert intake.next_offset == 3


def test_batches_and_plain_messages_share_the_offsets_in_order() -> None:
    effects = take(make_intake(), message(), batch(0, 4), message())
    assert [(type(item), item.next_offset) for item in items(effects)] == [
        (MessageRun, 1),
        (PrebuiltBatch, 3),
        (MessageRun, 4),
    ]
    assert [(ack.offset, ack.records, ack.enveloped) for ack in acks(effects)] == [
        (0, 1, False),
        (2, 2, True),
        (3, 1, False),
    ]


def test_a_message_id_is_a_duplicate_within_the_window_only() -> None:
    intake = make_intake(dedup_window_s=10)
    take(intake, message(Nats_Msg_Id="a"), now_ns=SECOND)
    effects = take(intake, message(Nats_Msg_Id="a"), message(Nats_Msg_Id="b"), now_ns=5 * SECOND)
    assert [(ack.offset, ack.duplicate) for ack in acks(effects)] == [(0, True), (1, False)]
    effects = take(intake, message(Nats_Msg_Id="a"), now_ns=12 * SECOND)
    assert [(ack.offset, ack.duplicate) for ack in acks(effects)] == [(2, False)]


def test_a_duplicate_is_acked_only_when_the_original_is_committed() -> None:
    effects = take(make_intake(), message(Nats_Msg_Id="a"), message(), message(Nats_Msg_Id="a"))
    (duplicate,) = [ack for ack in acks(effects) if ack.duplicate]
    assert (duplicate.offset, duplicate.release) == (0, 1)


def test_expectations_are_checked_before_anything_is_remembered() -> None:
    intake = make_intake()
    take(intake, message(Nats_Msg_Id="a"))
    wrong = message(Nats_Msg_Id="b", Nats_Expected_Last_Sequence="9")
    assert nacks(take(intake, wrong)) == [Nack.WRONG_LAST_SEQUENCE]
    right = message(Nats_Msg_Id="b", Nats_Expected_Last_Sequence="1", Nats_Expected_Last_Msg_Id="a")
    assert [(ack.offset, ack.duplicate) for ack in acks(take(intake, right))] == [(1, False)]
    assert nacks(take(intake, message(Nats_Expected_Last_Msg_Id="a"))) == [
        Nack.WRONG_LAST_MESSAGE_ID
    ]


def test_another_stream_that_stores_it_answers_instead() -> None:
    intake = make_intake()
    effects = take(intake, message(Nats_Expected_Stream="all"))
    assert (acks(effects), nacks(effects), intake.next_offset) == ([], [], 1)
    (run,) = items(effects)
    assert isinstance(run, MessageRun)
    assert run.messages[0].reply == b""
    assert nacks(take(intake, message(Nats_Expected_Stream="elsewhere"))) == [Nack.WRONG_STREAM]
    assert intake.next_offset == 1


FOR_ANOTHER = {
    "sequence": {"Nats_Expected_Last_Sequence": "9"},
    "no number": {"Nats_Expected_Last_Sequence": "x"},
    "last id": {"Nats_Expected_Last_Msg_Id": "x"},
    "subject sequence": {"Nats_Expected_Last_Subject_Sequence": "9"},
    "ttl": {"Nats_TTL": "1m"},
    "rollup": {"Nats_Rollup": "all"},
    "schedule": {"Nats_Schedule": "@every 1m"},
    "counter": {"Nats_Incr": "1"},
    "long id": {"Nats_Msg_Id": "i" * 300},
    "key": {"Penstock_Key": "k" * 5000},
    "tombstone": {"Penstock_Key": "k", "Penstock_Tombstone": "true"},
    "policy": {"Penstock_Ack_Policy": "some"},
    "unknown stream": {"Nats_Expected_Stream": "ORDERS"},
}


@pytest.mark.parametrize("headers", FOR_ANOTHER.values(), ids=FOR_ANOTHER)
@pytest.mark.parametrize("named", [False, True])
def test_what_is_not_answered_is_stored_whatever_its_headers_ask(
    headers: dict[str, str], named: bool
) -> None:
    """A stream that only listens, or the publisher names another: nothing of it is missed."""
    intake = make_intake(ack_on_reply=named)
    pairs = {"Nats_Expected_Stream": "ORDERS"} | headers if named else headers
    given = message(**pairs)  # type: ignore[arg-type]
    effects = take(intake, given, given)
    assert (nacks(effects), acks(effects)) == ([], [])
    assert (intake.counts.stored, intake.counts.refused.total()) == (2, 0)
    ((frame, body),) = build_frames(items(effects), epoch=3)
    records = [record for _, record in batch_records(frame, decode_body(body))]
    kept = parse_headers(given.headers, 10)
    assert [(r.headers, r.value, r.key) for r in records] == [(kept, b"x", None)] * 2
    again = make_intake()
    again.dedup.recall_ids(frame, body, SECOND)
    assert (len(again.dedup.message_ids), len(intake.dedup.message_ids)) == (0, 0)
    assert again.dedup.last_message_id == intake.dedup.last_message_id == b""


def test_a_batch_for_another_stream_is_stored_after_any_other() -> None:
    """That stream judges the sequence; this one may have begun to listen later."""
    elsewhere = message(Nats_Expected_Stream="ORDERS").headers
    intake = make_intake()
    given = [batch(4, 5)._replace(headers=elsewhere), batch(7, 8)._replace(headers=elsewhere)]
    effects = take(intake, *given, given[1])
    assert (nacks(effects), acks(effects)) == ([], [])
    assert (intake.counts.stored, intake.counts.duplicates) == (4, 2)


@pytest.mark.parametrize(
    "given",
    [
        message(b"x" * 2000, Nats_Expected_Stream="ORDERS"),
        message(Nats_Expected_Stream="ORDERS", Other="x" * 600),
        batch(0, 1)._replace(
            headers=message(Nats_Expected_Stream="ORDERS").headers,
            payload=batch(0, 1).payload + b"x" * 2000,
        ),
    ],
    ids=["large", "headers", "batch"],
)
def test_the_publisher_of_another_stream_is_never_told_of_a_refusal(given: Message) -> None:
    """Its own stream may have stored the message, and answers."""
    intake = make_intake(max_message_bytes=1900, max_header_bytes=500)
    assert nacks(take(intake, given)) == []
    assert intake.counts.untold.total() == intake.counts.refused.total() == 1


@pytest.mark.parametrize("place", ["subject", "reply"])
def test_subjects_that_are_not_utf8_are_refused_and_no_two_become_one(place: str) -> None:
    intake = make_intake()
    odd = [
        message(b"a")._replace(**{place: b"t.\xff"}),
        message(b"b")._replace(**{place: b"t.\xfe"}),
    ]
    good = message(b"c")._replace(**{place: "t.größe".encode()})
    effects = take(intake, odd[0], good, odd[1], message(b"d"))
    assert nacks(effects) == [Nack.BAD_SUBJECT] * 2
    (run,) = items(effects)
    assert isinstance(run, MessageRun)
    assert [each.payload for each in run.messages] == [b"c", b"d"]


def test_key_and_tombstone_headers_become_the_record_s_and_are_not_stored() -> None:
    intake = make_intake()
    effects = take(
        intake,
        message(b"v", Penstock_Key="k", Other="o"),
        message(b"", Penstock_Key="k", Penstock_Tombstone="true"),
        message(b"", Penstock_Key="k"),
        message(b"v", Nats_Msg_Id="i"),
    )
    ((header, body),) = build_frames(items(effects), epoch=3)
    records = [record for _, record in batch_records(header, decode_body(body))]
    assert [(record.key, record.value, record.headers) for record in records] == [
        (b"k", b"v", (("Other", b"o"),)),
        (b"k", None, ()),
        (b"k", b"", ()),
        (None, b"v", (("Nats-Msg-Id", b"i"),)),
    ]


def test_a_key_reaches_a_stream_that_the_publisher_did_not_name() -> None:
    intake = make_intake()
    take(
        intake, message(Penstock_Key="k", Nats_Expected_Stream="all", Nats_Expected_Last_Msg_Id="x")
    )
    assert intake.next_offset == 1


@pytest.mark.parametrize(
    "pairs",
    [
        (("Penstock-Tombstone", b"true"),),
        (("Penstock-Key", b""),),
        (("Penstock-Key", b"k" * 4097),),
        (("Penstock-Key", b"k"), ("Penstock-Key", b"k")),
        (("Penstock-Key", b"k"), ("Penstock-Tombstone", b"yes")),
        (("Penstock-Key", b"k"), ("Penstock-Tombstone", b"true")),
    ],
    ids=["no key", "empty", "long", "twice", "not true", "payload"],
)
def test_malformed_keys_and_tombstones_are_refused(pairs: Pairs) -> None:
    intake = make_intake()
    effects = take(intake, message()._replace(headers=format_headers(pairs)))
    assert (nacks(effects), items(effects)) == ([Nack.BAD_HEADER], [])


@pytest.mark.parametrize("name", ["Penstock-Key", "Nats-Msg-Id", "Nats-Expected-Last-Sequence"])
def test_a_batch_with_a_header_for_one_record_is_refused(name: str) -> None:
    intake = make_intake()
    headers = format_headers(((name, b"1"),))
    assert nacks(take(intake, batch(0, 1)._replace(headers=headers))) == [Nack.BAD_HEADER]
    headers = message(Traceparent="00", Nats_Expected_Stream="logs").headers
    assert nacks(take(intake, batch(0, 1)._replace(headers=headers))) == []


@pytest.mark.parametrize(
    ("given", "nack"),
    [
        (message(b"x" * 2000), Nack.MESSAGE_TOO_LARGE),
        (message(Nats_Rollup="all"), Nack.NO_ROLLUP),
        (message(Nats_Msg_Id="i" * 300), Nack.BAD_HEADER),
        (message(Nats_Expected_Last_Sequence="-1"), Nack.BAD_HEADER),
        (message()._replace(headers=b"nonsense"), Nack.BAD_HEADER),
        (batch(3, 4), Nack.UNKNOWN_PRODUCER),
    ],
)
def test_refusals_are_told_and_counted(given: Message, nack: Nack) -> None:
    intake = make_intake(max_message_bytes=1900)
    effects = take(intake, given, given._replace(reply=b""))
    assert nacks(effects) == [nack]
    assert items(effects) == []
    expected = 4 if nack is Nack.UNKNOWN_PRODUCER else 2
    assert dict(intake.counts.refused) == {nack: expected}


def test_above_the_budget_what_follows_is_busy() -> None:
    intake = make_intake()
    effects = take(intake, message(b"x" * 500), message(b"y" * 500), batch(0, 1), room=1900)
    assert nacks(effects) == [Nack.BUSY, Nack.BUSY]
    assert [e.enveloped for e in effects if isinstance(e, Refuse)] == [False, True]
    assert intake.next_offset == 1


def test_without_ack_on_reply_plain_publishers_hear_nothing_and_producers_do() -> None:
    intake = make_intake(ack_on_reply=False, max_message_bytes=5000)
    effects = take(intake, message(), message(b"x" * 6000), batch(0, 1), batch(5, 6))
    assert [ack.enveloped for ack in acks(effects)] == [True]
    assert nacks(effects) == [Nack.SEQUENCE_GAP]


@pytest.mark.parametrize("stream_policy", ["all", "leader", "none"])
@pytest.mark.parametrize("own", [None, "all", "leader", "none"])
def test_a_message_s_ack_policy_stands_above_its_stream_s(
    stream_policy: str, own: str | None
) -> None:
    intake = make_intake(ack_policy=stream_policy, max_message_bytes=5000)
    given = message() if own is None else message(Penstock_Ack_Policy=own)
    effects = take(intake, given, message(Nats_Msg_Id="1", Penstock_Ack_Policy="all"), given)
    expected = [] if (own or stream_policy) == "none" else [0, 2]
    assert [ack.offset for ack in acks(effects)] == sorted([1, *expected])
    effects = take(intake, given._replace(payload=b"x" * 6000))
    assert nacks(effects) == [Nack.MESSAGE_TOO_LARGE], "refusals are told whatever the policy"


def test_an_ack_policy_is_not_stored_and_an_unknown_one_is_refused() -> None:
    intake = make_intake()
    effects = take(intake, message(Penstock_Ack_Policy="all"), message(Penstock_Ack_Policy="some"))
    assert nacks(effects) == [Nack.BAD_HEADER]
    (run,) = items(effects)
    assert isinstance(run, MessageRun)
    assert run.extras[0].headers is None


def test_a_repeat_is_not_acked_either_under_the_policy_none() -> None:
    given = message(Nats_Msg_Id="1", Penstock_Ack_Policy="none")
    intake = make_intake()
    assert acks(take(intake, given, given)) == []
    assert intake.counts.duplicates == 1


def test_only_its_own_header_silences_a_batch() -> None:
    silent = message(Penstock_Ack_Policy="none").headers
    intake = make_intake(ack_policy="none")
    assert [ack.enveloped for ack in acks(take(intake, batch(0, 1)))] == [True]
    assert acks(take(intake, batch(1, 2)._replace(headers=silent))) == []
    assert nacks(take(intake, batch(7, 8)._replace(headers=silent))) == [Nack.SEQUENCE_GAP]


def test_ack_on_reply_stands_above_the_policy() -> None:
    intake = make_intake(ack_on_reply=False)
    effects = take(intake, message(Penstock_Ack_Policy="all"), message(b"x" * (9 << 20)))
    assert (acks(effects), nacks(effects), intake.counts.untold.total()) == ([], [], 1)


@pytest.mark.parametrize(
    ("limit", "given", "nack"),
    [
        ({"max_header_bytes": 30}, message(Other="x" * 30), Nack.HEADERS_TOO_LARGE),
        ({"max_header_pairs": 2}, message(A="1", B="2", C="3"), Nack.BAD_HEADER),
        ({"max_key_bytes": 3}, message(Penstock_Key="1234"), Nack.BAD_HEADER),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_beyond_a_limit_is_refused(
    limit: dict[str, int], given: Message, nack: Nack
) -> None:
    assert nacks(take(make_intake(**limit), given)) == [nack]
    assert nacks(take(make_intake(), given)) == []


@pytest.mark.parametrize("limit", [{"max_batch_rows": 1}, {"max_batch_decoded_bytes": 64}], ids=str)
def test_a_batch_beyond_a_limit_is_refused(limit: dict[str, int]) -> None:
    intake = make_intake(**limit)
    effects = take(intake, batch(0, 1))
    assert nacks(effects) == [Nack.BAD_BATCH]
    assert intake.dedup.producers.last(b"p" * 16) is None, "it may come again in smaller ones"


def test_many_messages_are_split_into_runs_that_fit_a_frame() -> None:
    intake = make_intake()
    given = [message(b"x" * 1000)] * 9000 + [message(b"")] * 20_000
    effects = take(intake, *given, room=1 << 30)
    runs = [item for item in items(effects) if isinstance(item, MessageRun)]
    assert [run.next_offset for run in runs][-1] == len(given) == intake.next_offset
    assert all(run.size <= FRAME_BYTES_MAX + 2000 for run in runs)
    assert all(len(run.messages) <= FRAME_ROWS_MAX for run in runs)
    assert len(acks(effects)) == len(given)
    frames = list(build_frames(runs, epoch=1))
    assert sum(header.record_count for header, _ in frames) == len(given)


def test_a_failed_store_refuses_everything() -> None:
    intake = make_intake()
    intake.handle(LogFailed("EIO"), 0)
    effects = take(intake, message(), batch(0, 1))
    assert nacks(effects) == [Nack.STORAGE_FAILED, Nack.STORAGE_FAILED]
    assert intake.next_offset == 0


def test_a_cookie_without_an_envelope_is_stored_plain() -> None:
    intake = make_intake()
    effects = take(intake, message(COOKIE), message(COOKIE + b"\x00\x08\x00\x00publish"))
    assert [ack.enveloped for ack in acks(effects)] == [False, False]
    assert (intake.counts.malformed_envelopes, intake.next_offset) == (2, 2)
    broken = bytearray(batch(0, 1).payload)
    broken[9] ^= 1
    take(intake, message(bytes(broken)), message(COOKIE + b"\x00\xff\x01\x40" + bytes(60)))
    assert (intake.counts.malformed_envelopes, intake.next_offset) == (4, 4), "CRC; length 255"


def test_what_was_stored_rebuilds_ids_and_producers() -> None:
    intake = make_intake()
    effects = take(intake, message(Nats_Msg_Id="a"), batch(0, 7), message(Nats_Msg_Id="b"))
    rebuilt = make_intake()
    for header, body in build_frames(items(effects), epoch=3):
        rebuilt.dedup.recall_producer(header, SECOND)
        rebuilt.dedup.recall_ids(header, body, SECOND)
        rebuilt.next_offset = header.next_offset
    assert rebuilt.dedup.last_message_id == b"b"
    effects = take(rebuilt, message(Nats_Msg_Id="a"), batch(0, 7), message(Nats_Msg_Id="b"))
    assert [(ack.offset, ack.duplicate) for ack in acks(effects)] == [
        (0, True),
        (2, True),
        (3, True),
    ]


@pytest.mark.parametrize(
    "expected", [{"Nats_Expected_Last_Sequence": "0"}, {"Nats_Expected_Last_Msg_Id": ""}]
)
def test_a_repeat_is_a_duplicate_though_what_it_expected_has_passed(
    expected: dict[str, Any],
) -> None:
    """As in JetStream: its ack may have been lost, and the first time it was right."""
    intake = make_intake()
    first = message(b"a", Nats_Msg_Id="1", **expected)
    take(intake, first)
    repeated = take(intake, first)
    assert acks(repeated) == [PendingAck(0, b"r", 0, duplicate=True)]
    assert nacks(repeated) == []


def test_a_full_stream_refuses_what_is_new_and_acks_what_it_has() -> None:
    intake = make_intake()
    known = message(b"a", Nats_Msg_Id="one")
    take(intake, known, batch(0, 1))
    new = [message(), message(b"y", Nats_Msg_Id="two"), batch(1, 2)]
    for arrived, text in (
        (Arrived([known, *new], ROOM, 10), "bytes"),
        (Arrived([batch(0, 1), message(), batch(1, 2)], ROOM, None, 3), "messages"),
    ):
        effects = intake.handle(arrived, SECOND)
        assert [ack.duplicate for ack in acks(effects)] == [True]
        refused = [effect.ack for effect in effects if isinstance(effect, Refuse)]
        assert {ack.nack for ack in refused} == {Nack.STREAM_FULL}
        assert {ack.description for ack in refused} == {f"maximum {text} exceeded"}
        assert items(effects) == []
    again = take(intake, message(b"y", Nats_Msg_Id="two"), batch(1, 2))
    assert nacks(again) == [], "what was refused is stored when there is room"
    assert len(items(again)) == 2


def test_room_is_used_up_to_the_last_record() -> None:
    intake = make_intake()
    effects = intake.handle(Arrived([message()] * 5, ROOM, None, 3), SECOND)
    assert (intake.next_offset, len(nacks(effects))) == (3, 2)
    effects = intake.handle(Arrived([batch(0, 1)], ROOM, None, 4), SECOND)
    assert nacks(effects) == [Nack.STREAM_FULL], "two records do not fit in one's place"
    busy = intake.handle(Arrived([message()], 10, 1 << 20), SECOND)
    assert nacks(busy) == [Nack.BUSY], "the daemon's bound is told apart from the stream's"

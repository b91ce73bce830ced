import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.format.batch import decode_body
from penstock.logd.format.frame import check_body
from penstock.logd.format.headers import parse_headers
from penstock.logd.format.rows import batch_records
from penstock.logd.intake.turn import FRAME_OVERHEAD, Message, MessageRun, RowExtras
from penstock.logd.limits import FRAME_BYTES_MAX, FRAME_ROWS_MAX
from penstock.logd.partition.log_writer import build_frames


def run(base_offset: int, *messages: Message, timestamp_ns: int = 5, size: int = 10) -> MessageRun:
    return MessageRun(base_offset, timestamp_ns, list(messages), {}, size)


def plain(payload: bytes, reply: bytes = b"") -> Message:
    return Message(b"t.a", reply, b"", payload)


def test_runs_of_several_turns_share_a_frame() -> None:
    second = run(2, plain(b"c", b"inbox"), timestamp_ns=9)
    second.extras[0] = RowExtras((("A", b"1"), ("A", b"2")))
    ((header, body),) = build_frames([run(0, plain(b"a"), plain(b"b")), second], epoch=4)
    check_body(header, body)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (0, 3, 4)
    assert (header.first_timestamp_ns, header.max_timestamp_ns) == (5, 9)
    records = [record for _, record in batch_records(header, decode_body(body))]
    assert [record.value for record in records] == [b"a", b"b", b"c"]
    assert [record.timestamp_ns for record in records] == [5, 5, 9]
    assert [record.reply for record in records] == [None, None, "inbox"]
    assert [record.headers for record in records] == [(), (), (("A", b"1"), ("A", b"2"))]


def test_a_frame_ends_where_its_limit_does() -> None:
    runs = [run(n, plain(b"x"), size=FRAME_BYTES_MAX // 2) for n in range(5)]
    frames = list(build_frames(runs, epoch=1))
    assert [header.record_count for header, _ in frames] == [2, 2, 1]


@pytest.mark.parametrize("rows", [1, 7, FRAME_ROWS_MAX, FRAME_ROWS_MAX + 1])
def test_offset_deltas_count_up_in_a_frame_of_any_length(rows: int) -> None:
    ((header, body),) = build_frames([run(3, *[plain(b"")] * rows)], epoch=1)
    assert (header.base_offset, header.last_offset_delta) == (3, rows - 1)
    batch = decode_body(body)
    assert batch.column("offset_delta").to_pylist() == list(range(rows))
    assert len(body) < 100 * rows + 2_000, "the slice was written whole"


def test_keys_and_tombstones_of_several_runs_reach_their_rows() -> None:
    first, second = run(0, plain(b"a"), plain(b"")), run(2, plain(b"c"), plain(b""))
    first.extras[1] = RowExtras(None, b"k", tombstone=True)
    second.extras[0] = RowExtras((("A", b"1"),), b"l")
    ((header, body),) = build_frames([first, second], epoch=1)
    records = [record for _, record in batch_records(header, decode_body(body))]
    assert [(record.key, record.value, record.headers) for record in records] == [
        (None, b"a", ()),
        (b"k", None, ()),
        (b"l", b"c", (("A", b"1"),)),
        (None, b"", ()),
    ]


def test_subjects_beyond_ascii_are_stored_as_they_are() -> None:
    messages = [Message(f"t.{word}".encode(), b"", b"", b"\xff") for word in ("größe", "\ufffd")]
    ((header, body),) = build_frames([run(0, *messages, plain(b"b"))], epoch=1)
    records = [record for _, record in batch_records(header, decode_body(body))]
    assert [record.subject for record in records] == ["t.größe", "t.\ufffd", "t.a"]
    assert records[0].value == b"\xff"


header_blocks = st.lists(st.sampled_from([b"a:", b"key: value"]), min_size=1, max_size=20).map(
    lambda lines: b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
)
some_messages = st.builds(
    Message,
    st.sampled_from([b"t", b"t.a.long.subject"]),
    st.sampled_from([b"", b"_INBOX.1"]),
    st.just(b"") | header_blocks,
    st.binary(max_size=40),
)


@given(st.lists(some_messages, min_size=1, max_size=30))
def test_messages_are_charged_at_least_what_they_take_on_disk(messages: list[Message]) -> None:
    extras = {}
    for number, message in enumerate(messages):
        if message.headers:
            pairs = parse_headers(message.headers, 99)
            keys = [value for name, value in pairs if name == "key"]
            kept = tuple(pair for pair in pairs if pair[0] != "key")
            extras[number] = RowExtras(kept or None, keys[0] if keys else None)
    ((header, _),) = build_frames([MessageRun(0, 1, messages, extras)], epoch=1)
    assert header.frame_length <= FRAME_OVERHEAD + sum(m.size_bytes() for m in messages)

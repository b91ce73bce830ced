from penstock.logd.batch import decode_body
from penstock.logd.core.turn import Message, Run
from penstock.logd.frame import check_body
from penstock.logd.frame_builder import build_frames
from penstock.logd.limits import FRAME_BYTES_MAX
from penstock.logd.rows import batch_records


def run(base_offset: int, *messages: Message, timestamp_ns: int = 5, size: int = 10) -> Run:
    return Run(base_offset, timestamp_ns, list(messages), {}, size)


def plain(payload: bytes, reply: bytes = b"") -> Message:
    return Message(b"t.a", reply, b"", payload)


def test_runs_of_several_turns_share_a_frame() -> None:
    second = run(2, plain(b"c", b"inbox"), timestamp_ns=9)
    second.headers[0] = (("A", b"1"), ("A", b"2"))
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


def test_a_subject_that_is_not_utf8_is_stored_with_replacement() -> None:
    odd = Message(b"t.\xff", b"", b"", b"\xff")
    ((header, body),) = build_frames([run(0, odd, plain(b"b"))], epoch=1)
    records = [record for _, record in batch_records(header, decode_body(body))]
    assert [record.subject for record in records] == ["t.\ufffd", "t.a"]
    assert records[0].value == b"\xff"

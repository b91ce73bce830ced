"""What nodes that replicate say to each other, as bytes: round trips, and bytes that are wrong."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.cluster.replication.sender import read_frames
from penstock.logd.cluster.replication.wire import (
    REQUEST_HEAD,
    RESPONSE_HEAD,
    RangeRequest,
    Response,
    ResponsePart,
    check_request_head,
    check_response_head,
    decode_range_request,
    decode_request,
    decode_response,
    encode_range_request,
    encode_request,
    encode_response,
)
from penstock.logd.errors import CorruptError
from penstock.logd.format.frame import parse_frames
from penstock.logd.intake.dedup import DedupMark
from penstock.logd.limits import (
    REPLICATION_FRAMES_SIZE_MAX,
    REPLICATION_HEAD_SIZE_MAX,
    REPLICATION_PARTS_MAX,
    REPLICATION_REQUEST_SIZE_MAX,
)
from penstock.logd.replication.events import (
    Diverged,
    Fetch,
    Frames,
    NodeId,
    OutOfRange,
    Refusal,
    Refused,
)
from penstock.logd.replication.session import FETCHES_PER_REQUEST_MAX, PartitionId, Request
from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.wire import logd_replication_pb2 as wire
from tests.support.frames import make_frames

NODE = NodeId("f")
numbers = st.integers(0, 2**64 - 1)
offsets = st.integers(0, 2**63 - 1)
names = st.text(max_size=64)
keys = st.builds(PartitionId, names, st.integers(0, 2**32 - 1))


@st.composite
def fetches(draw: st.DrawFn) -> tuple[PartitionId, Fetch]:
    key = draw(keys)
    fetch = Fetch(
        node=NODE,
        boot=draw(names),
        number=draw(numbers),
        incarnation=key.incarnation,
        leader_epoch=draw(offsets),
        offset=draw(offsets),
        last_epoch=draw(offsets),
        synced=draw(offsets),
        whole=draw(st.booleans()),
        wants=draw(st.booleans()),
        known=draw(st.none() | st.integers(-1, 2**63 - 1)),
        version=draw(offsets),
        dedup=draw(st.none() | st.builds(DedupMark, offsets, numbers, saved=st.booleans())),
    )
    return key, fetch


@st.composite
def parts(draw: st.DrawFn) -> ResponsePart:
    key = draw(keys)
    common: dict[str, Any] = {"boot": draw(names), "number": draw(numbers)}
    common |= {"leader_epoch": draw(offsets), "incarnation": key.incarnation}
    kind = draw(st.sampled_from([Frames, Diverged, OutOfRange, Refused]))
    if kind is Frames:
        frames = Frames(
            offset=draw(offsets),
            upto=draw(offsets),
            high_watermark=draw(offsets) - 1,
            log_start=draw(offsets),
            catching_up=draw(st.booleans()),
            **common,
        )
        return ResponsePart(key, frames, draw(st.integers(0, 1024)))
    if kind is Diverged:
        epoch, end_offset, start = draw(offsets), draw(offsets), draw(offsets)
        answer = Diverged(epoch=epoch, end_offset=end_offset, log_start=start, **common)
        return ResponsePart(key, answer, 0)
    if kind is OutOfRange:
        return ResponsePart(key, OutOfRange(log_start=draw(offsets), **common), 0)
    return ResponsePart(key, Refused(reason=draw(st.sampled_from(Refusal)), **common), 0)


requests = st.builds(
    Request,
    numbers,
    numbers,
    numbers,
    st.lists(fetches(), max_size=5).map(tuple),
    st.lists(keys, max_size=5).map(tuple),
)
responses = st.builds(Response, numbers, numbers, st.lists(parts(), max_size=5).map(tuple))


@given(requests)
def test_a_request_comes_back_as_it_was(request: Request) -> None:
    data = encode_request(request)
    head, body = data[: REQUEST_HEAD.size], data[REQUEST_HEAD.size :]
    assert check_request_head(head) == len(body)
    assert decode_request(NODE, body) == request


@given(responses)
def test_a_response_comes_back_as_it_was(response: Response) -> None:
    data = encode_response(response)
    head, body = data[: RESPONSE_HEAD.size], data[RESPONSE_HEAD.size :]
    assert check_response_head(head) == (len(body), response.frames_length)
    assert decode_response(body, response.frames_length) == response


@given(keys, offsets, offsets, offsets)
def test_a_request_for_a_range_comes_back_as_it_was(
    key: PartitionId, a: int, b: int, position: int
) -> None:
    request = RangeRequest(key, a, b, position)
    data = encode_range_request(request)
    if a < b:
        assert decode_range_request(data) == request
    else:
        with pytest.raises(CorruptError, match="asks for the range"):
            decode_range_request(data)


@given(st.one_of(st.binary(max_size=200), requests.map(encode_request)), st.data())
def test_bytes_that_are_wrong_are_refused_and_nothing_else_happens(
    body: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(body)
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    decoders: list[Any] = [
        lambda body: decode_request(NODE, body),
        lambda body: decode_response(body, 0),
        decode_range_request,
    ]
    for decode in decoders:
        with contextlib.suppress(CorruptError):
            decode(bytes(damaged))


def test_the_greatest_messages_are_within_their_bounds() -> None:
    key = PartitionId("i" * 64, 2**32 - 1)
    most = 2**63 - 1
    fetch = Fetch(
        node=NODE, boot="b" * 64, number=2**64 - 1, incarnation=key.incarnation, leader_epoch=most,
        offset=most, last_epoch=most, synced=most, known=most,
    )  # fmt: skip
    count = FETCHES_PER_REQUEST_MAX
    request = Request(most, most, most, ((key, fetch),) * count, (key,) * count)
    assert len(encode_request(request)) < REPLICATION_REQUEST_SIZE_MAX
    frames = Frames(
        boot="b" * 64, number=2**64 - 1, incarnation=key.incarnation, leader_epoch=most,
        offset=most, upto=most, high_watermark=most, log_start=most, catching_up=True,
    )  # fmt: skip
    part = ResponsePart(key, frames, 1)
    response = Response(most, most, (part,) * REPLICATION_PARTS_MAX)
    assert len(encode_response(response)) < REPLICATION_HEAD_SIZE_MAX


def test_lengths_beyond_the_bounds_are_refused_before_anything_is_read() -> None:
    with pytest.raises(CorruptError, match="at most"):
        check_request_head(REQUEST_HEAD.pack(REPLICATION_REQUEST_SIZE_MAX + 1))
    for lengths in ((REPLICATION_HEAD_SIZE_MAX + 1, 0), (0, REPLICATION_FRAMES_SIZE_MAX + 1)):
        with pytest.raises(CorruptError, match="too much"):
            check_response_head(RESPONSE_HEAD.pack(*lengths))


def answered(**fields: Any) -> wire.Part:
    return wire.Part(partition=wire.Partition(incarnation="i"), boot="b", **fields)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (answered(), "unknown here"),
        (answered(refused=wire.Refused()), "reason unknown"),
        (answered(refused=wire.Refused.FromString(b"\x08\x63")), "reason unknown"),
        (answered(frames=wire.Frames(high_watermark=-2)), "high watermark"),
        (answered(frames=wire.Frames(offset=2**63)), "offset or epoch"),
        (answered(out_of_range=wire.OutOfRange(), frames_length=8), "sends frames with"),
        (answered(frames=wire.Frames(), frames_length=9), "8 bytes of frames, not 9"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(part: wire.Part, problem: str) -> None:
    body = wire.Response(session=1, number=1, parts=[part]).SerializeToString()
    with pytest.raises(CorruptError, match=problem):
        decode_response(body, 8)


@pytest.mark.parametrize(
    ("fetch", "problem"),
    [
        (wire.Fetch(offset=2**63), "offset or epoch"),
        (wire.Fetch(known=-2), "high watermark"),
    ],
)
def test_a_fetch_that_cannot_be_is_refused(fetch: wire.Fetch, problem: str) -> None:
    body = wire.Request(fetches=[fetch]).SerializeToString()
    with pytest.raises(CorruptError, match=problem):
        decode_request(NODE, body)


# Frames on their way.

BODIES = [b"%d" % n * 40 for n in range(1, 8)]


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """Frames of one record each, two in a segment."""
    log = CommitLog.open(tmp_path, LogConfig(max_segment_bytes=300))
    for frame in make_frames(0, BODIES):
        log.append([frame])
    log.sync()
    return log


def test_frames_are_read_over_segments_within_their_bounds(log: CommitLog) -> None:
    frames = list(log.frames())
    found = read_frames(log, 1, bytes_max=10_000, upto=6)
    assert parse_frames(found.data) == frames[1:6]
    assert (found.count, found.damage, found.start) == (5, None, None)
    assert parse_frames(read_frames(log, 3, bytes_max=1, upto=7).data) == frames[3:4]
    assert read_frames(log, 7, bytes_max=10_000, upto=7).data == b""
    log.delete_before(4)
    assert read_frames(log, 1, bytes_max=10_000, upto=7).start == log.start_offset


@pytest.mark.parametrize("at", [0, 100], ids=["header", "body"])
@pytest.mark.parametrize("damaged", [2, 3])
def test_frames_are_read_up_to_damage(log: CommitLog, damaged: int, at: int) -> None:
    frames = list(log.frames())
    found = log.read(damaged, bytes_max=1, upto=7)[0]
    path = sorted(log.directory.glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[found.position + at] ^= 1
    path.write_bytes(data)
    before = read_frames(log, 0, bytes_max=10_000, upto=7)
    assert parse_frames(before.data) == frames[:damaged]
    assert read_frames(log, damaged, bytes_max=10_000, upto=7).damage == (damaged, damaged + 1)
    assert parse_frames(read_frames(log, damaged + 1, bytes_max=10_000, upto=7).data)

"""The client's parts that do no I/O: what it asks next, how long it waits, what bytes mean."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typing_extensions import override

from penstock.logd.api.operations import Fetch
from penstock.logd.api.protocol import ResponseDecoder, encode_response
from penstock.logd.client import (
    CommitPolicy,
    Cursor,
    Fetched,
    FollowOptions,
    LogClient,
    OffsetRange,
    OutOfRange,
    calls,
)
from penstock.logd.client.following import PAUSE_MAX_S, Committing, Following, RetryBackoff
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.format.frame import encode_header
from penstock.logd.format.rows import Frame

LIFE = {"incarnation": "i", "log_epoch": 1}
OUT_OF_RANGE = RefusedError("OUT_OF_RANGE", "gone", earliest=40, latest=90)


def frame(base_offset: int, count: int) -> Frame:
    batch = build_batch([Record("t.a", b"%d" % (base_offset + n), n) for n in range(count)])
    body = encode_body(batch)
    header = describe_body(body, batch).at(base_offset=base_offset, leader_epoch=1)
    return header, memoryview(body)


def fetched(*frames: Frame, next_offset: int) -> Fetched:
    return Fetched(
        frames=list(frames),
        range=OffsetRange(0, next_offset),
        high_watermark=next_offset - 1,
        next_offset=next_offset,
        epoch=1,
        incarnation="i",
    )


def test_a_read_gives_each_row_once_and_asks_for_the_next() -> None:
    reading = Following("x:1", "logs", 3, FollowOptions())
    assert reading.next_call().request["offset"] == 3
    given_rows = list(reading.take(fetched(frame(0, 5), frame(5, 2), next_offset=7)))
    assert [(header.base_offset, rows.num_rows) for header, rows in given_rows] == [(0, 2), (5, 2)]
    request = reading.next_call().request
    assert (request["offset"], request["incarnation"]) == (7, "i")
    assert list(reading.take(fetched(frame(5, 2), next_offset=7))) == []


def test_a_hole_between_frames_is_an_error_unless_a_filter_made_it() -> None:
    answer = fetched(frame(0, 2), frame(4, 2), next_offset=6)
    with pytest.raises(CorruptError, match="offsets 2 to 3 are missing"):
        list(Following("x:1", "logs", 0, FollowOptions()).take(answer))
    filtered = Following("x:1", "logs", 0, FollowOptions(subject="t.*"))
    assert len(list(filtered.take(answer))) == 2


@pytest.mark.parametrize(
    ("policy", "offset", "skipped"), [("earliest", 40, 30), ("latest", 90, 80)]
)
def test_out_of_range_goes_on_only_where_it_was_allowed(
    policy: OutOfRange, offset: int, skipped: int
) -> None:
    with pytest.raises(RefusedError, match="gone"):
        Following("x:1", "logs", 10, FollowOptions()).refused(OUT_OF_RANGE)
    reading = Following("x:1", "logs", 10, FollowOptions(out_of_range=policy))
    reading.refused(OUT_OF_RANGE)
    assert (reading.offset, reading.skipped) == (offset, skipped)
    with pytest.raises(RefusedError, match="other"):
        reading.refused(RefusedError("STREAM_RECREATED", "other"))
    with pytest.raises(UnavailableError):
        reading.refused(RefusedError("TOO_MANY_REQUESTS", "later"))


def test_an_answer_ends_before_a_frame_that_rotted_and_says_so_where_it_is_the_first() -> None:
    frames = [frame(0, 2), frame(2, 4)]
    payload = bytearray(b"".join(encode_header(it) + bytes(body) for it, body in frames))
    payload[-1] ^= 1
    call = calls.fetch(Fetch(stream="logs", offset=0, partition=0, bytes_max=1), where="x:1")
    header = LIFE | {"stream": "logs", "partition": 0, "start_offset": 0, "high_watermark": 5}
    header |= {"end_offset": 6, "next_offset": 6, "epoch": 1, "log_epoch": 1}
    answer = call.read(header, memoryview(payload))
    assert [it.base_offset for it, _ in answer.frames] == [0]
    assert answer.next_offset == 2, "asked for from there, the damage is told"
    rotted = memoryview(payload)[answer.frames[0][0].frame_length :]
    with pytest.raises(CorruptError, match="x:1 logs/0 offset 2"):
        call.read(header, rotted)


class Answers(LogClient):
    """A client that gets these answers, whatever it asks."""

    def __init__(self, *answers: Fetched) -> None:
        super().__init__("x:1")
        self.left = list(answers)
        self.asked: list[tuple[int, Any]] = []

    @override
    def fetch(self, stream: str, offset: int, **rest: Any) -> Fetched:
        self.asked.append((offset, rest["incarnation"]))
        return self.left.pop(0)


def test_a_range_is_read_from_one_incarnation_and_without_holes() -> None:
    client = Answers(fetched(frame(0, 2), next_offset=2), fetched(frame(2, 4), next_offset=6))
    assert [offset for offset, _ in client.records("logs", 1, 4)] == [1, 2, 3]
    assert client.asked == [(1, None), (2, "i")]
    holed = Answers(fetched(frame(0, 2), frame(4, 2), next_offset=6))
    with pytest.raises(CorruptError, match="offsets 2 to 3 are missing"):
        list(holed.records("logs", 0, 3))
    holed = Answers(fetched(frame(0, 2), frame(4, 2), next_offset=6))
    assert [offset for offset, _ in holed.records("logs", 0, 2)] == [0, 1]


def test_a_start_in_time_is_asked_for_in_nanoseconds() -> None:
    start = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    reading = Following("x:1", "logs", start, FollowOptions())
    assert reading.next_call().request["at"] == 1767323045678901000
    list(reading.take(12))
    assert reading.next_call().request["offset"] == 12
    with pytest.raises(ValueError, match="time zone"):
        Following("x:1", "logs", datetime(2026, 1, 2), FollowOptions())  # noqa: DTZ001


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_pauses_grow_to_a_bound_and_end_at_the_deadline(seed: int, tries: int) -> None:
    error, now_ns = UnavailableError("away"), 0
    for retry_s in (None, 20.0):
        patience, now_ns = RetryBackoff(retry_s, random.Random(seed)), 0
        for _ in range(tries):
            try:
                pause_s = patience.pause(error, now_ns)
            except UnavailableError:
                assert retry_s is not None
                assert now_ns >= retry_s * 1e9
                break
            assert 0 < pause_s <= PAUSE_MAX_S
            now_ns += max(int(pause_s * 1e9), 1)
            assert retry_s is None or now_ns <= retry_s * 1e9 + 1
        patience.succeeded()
        assert patience.pause(error, now_ns + 10**12) <= 0.05


def chunks(data: bytes, rng: random.Random) -> Iterator[bytes]:
    while data:
        size = rng.randint(1, 40)
        yield data[:size]
        data = data[size:]


@given(st.lists(st.binary(max_size=100), max_size=5), st.randoms(use_true_random=False))
def test_responses_come_out_whole_however_their_bytes_arrive(
    payloads: list[bytes], rng: random.Random
) -> None:
    sent = b"".join(
        encode_response({"id": number}, len(payload)) + payload
        for number, payload in enumerate(payloads)
    )
    decoder = ResponseDecoder("x:1")
    received = []
    for chunk in chunks(sent, rng):
        left = memoryview(chunk)
        while left:
            room = decoder.room()
            count = min(len(room), len(left))
            room[:count] = left[:count]
            left = left[count:]
            response = decoder.filled(count)
            if response is not None:
                received.append((response[0]["id"], bytes(response[1])))
    assert received == list(enumerate(payloads))


def test_what_is_no_response_is_refused_before_it_is_made_room_for() -> None:
    decoder = ResponseDecoder("x:1")
    room = decoder.room()
    room[:] = b"\xff" * len(room)
    with pytest.raises(CorruptError, match="not a logd server"):
        decoder.filled(len(room))


@pytest.mark.parametrize(
    ("answer", "what"),
    [(b'INFO {"server_id"', "a NATS server"), (b"HTTP/1.1 400 Bad", "an HTTP server")],
)
def test_another_server_that_answers_is_named(answer: bytes, what: str) -> None:
    decoder = ResponseDecoder("x:1")
    room = decoder.room()
    room[:] = answer[: len(room)]
    with pytest.raises(CorruptError, match=f"{what} answers there: not a logd server"):
        decoder.filled(len(room))


def test_a_cursor_is_due_by_count_or_by_time_and_never_before_the_record_is_done_with() -> None:
    at = Cursor(consumer="c", stream="s", partition=0, offset=0, incarnation="i")
    committing = Committing(at, CommitPolicy(records=3, seconds=10))
    assert committing.due(10**15) is None
    committing.done(2, 2, 0)
    assert committing.due(5 * 10**9) is None
    assert committing.due(10 * 10**9) == replace(at, offset=2)
    committing.done(3, 1, 0)
    due = committing.due(0)
    assert due is not None
    assert due.offset == 3
    committing.postponed(0)
    assert committing.due(10**8) is None
    assert committing.pending() == due
    committing.committed()
    assert committing.due(10**18) is None
    assert committing.pending() is None
    committing.passed(3, 0)
    assert committing.pending() is None
    committing.passed(9, 0)
    assert committing.due(10**9) is None
    assert committing.due(10**10) == replace(at, offset=9)

"""Reading a span: losses are told by frames' ranges, never by gaps between rows."""

from typing import Any

import pytest

from penstock.logd.batch import Record, build_batch, encode_body
from penstock.logd.client import Fetched, OffsetRange
from penstock.logd.errors import RefusedError
from penstock.logd.frame import FrameHeader, crc32c
from penstock.router.clock import SystemClock
from penstock.router.core.offsets import Span
from penstock.router.errors import DataLossError
from penstock.router.reading import LogReading

Frame = tuple[FrameHeader, memoryview]


def compacted(base: int, span: int, kept: list[int]) -> Frame:
    """A frame of `span` offsets of which some have a record left."""
    whole = build_batch([Record("t", b"%d" % (base + n), 1) for n in range(span)])
    body = encode_body(whole.take(kept) if kept else whole.slice(0, 0))
    header = FrameHeader(
        base_offset=base,
        leader_epoch=1,
        record_count=len(kept),
        last_offset_delta=span - 1,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=1,
        max_timestamp_ns=1,
        schema_version=1,
        compacted=len(kept) < span,
    )
    return header, memoryview(body)


class ScriptedClient:
    """Answers each fetch with the frames that hold the offset asked for and those after it."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.refusals: list[RefusedError] = []

    def fetch(self, stream: str, offset: int, **_: Any) -> Fetched:
        if self.refusals:
            raise self.refusals.pop()
        found = [frame for frame in self.frames if frame[0].next_offset > offset]
        end = self.frames[-1][0].next_offset
        return Fetched(
            frames=found,
            range=OffsetRange(0, end),
            high_watermark=end - 1,
            next_offset=end,
            epoch=1,
            incarnation="",
        )


def read(frames: list[Frame], start: int, end: int, *refusals: str) -> list[int]:
    log = LogReading("h:1,i:1", retry_timeout_s=5.0 if refusals else 0.0, clock=SystemClock())
    client = ScriptedClient(frames)
    client.refusals = [RefusedError(code, "no") for code in refusals]
    log._client = client  # type: ignore[assignment]
    found: list[int] = []
    for batch in log.rows(Span("s", 0, start, end), include_headers=False, fail_on_data_loss=True):
        assert batch.num_rows
        assert batch.column("value").to_pylist() == [
            b"%d" % offset for offset in batch.column("offset").to_pylist()
        ]
        found += batch.column("offset").to_pylist()
    return found


def test_offsets_missing_within_frames_are_no_loss() -> None:
    frames = [compacted(0, 4, [1, 3]), compacted(4, 5, []), compacted(9, 3, [0, 1, 2])]
    assert read(frames, 0, 12) == [1, 3, 9, 10, 11]
    assert read(frames, 2, 10) == [3, 9]
    assert read(frames, 4, 9) == []
    assert read(frames, 5, 11) == [9, 10]


def test_offsets_between_frames_are_a_loss() -> None:
    with pytest.raises(DataLossError, match="offsets 4 to 8 are missing"):
        read([compacted(0, 4, [1, 3]), compacted(9, 1, [0])], 0, 10)


def test_what_is_refused_for_now_is_asked_again_and_no_loss() -> None:
    frames = [compacted(0, 4, [1, 3])]
    assert read(frames, 0, 4, "UNAVAILABLE", "TOO_MANY_REQUESTS") == [1, 3]
    with pytest.raises(DataLossError, match="OUT_OF_RANGE"):
        read(frames, 0, 4, "OUT_OF_RANGE")


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED", "QUOTA_EXCEEDED"])
def test_a_reader_that_is_not_let_in_waits_and_loses_nothing(code: str) -> None:
    assert read([compacted(0, 4, [1, 3])], 0, 4, code, code) == [1, 3]

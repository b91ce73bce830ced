"""Decoder of a fetched payload to frames, and of frames to rows of a range."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.base.lazy_module import LazyModule
from penstock.logd.errors import CorruptError
from penstock.logd.format.batch import Record
from penstock.logd.format.body_claims import read_claims
from penstock.logd.format.frame import HEADER_SIZE, FrameHeader, check_body, decode_header

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

Frame = tuple[FrameHeader, memoryview]


def split_frames(payload: memoryview, *, where: str = "") -> Iterator[Frame]:
    """Split a payload into its frames and check their CRCs.

    Raises:
        CorruptError: A header, a length or a CRC is wrong.
    """
    position = 0
    while position < len(payload):
        header = decode_header(payload[position : position + HEADER_SIZE], where=where)
        body = payload[position + HEADER_SIZE : position + header.frame_length]
        check_body(header, body, where=f"{where} offset {header.base_offset}")
        yield header, body
        position += header.frame_length


def sound_frames(payload: memoryview, *, where: str = "") -> tuple[list[Frame], bool]:
    """The frames of a payload up to its damage, and whether there is none.

    Raises:
        CorruptError: The first frame is damaged.
    """
    frames: list[Frame] = []
    try:
        frames.extend(split_frames(payload, where=where))
    except CorruptError:
        if not frames:
            raise
        return frames, False
    return frames, True


def decoded_size(body: bytes | memoryview) -> int:
    """The bytes of memory that a frame's body decodes to, as it says itself; it is not decoded.

    Raises:
        CorruptError: It is no batch.
    """
    return read_claims(body).decoded_bytes


def slice_rows(
    header: FrameHeader, batch: pa.RecordBatch, start: int, end: int | None = None
) -> pa.RecordBatch:
    """The rows of a frame's batch whose offsets lie in `start` (inclusive) to `end` (exclusive).

    The batch may have been sliced before.
    """
    first = start - header.base_offset
    stop = header.last_offset_delta + 1 if end is None else end - header.base_offset
    if first <= 0 and stop > header.last_offset_delta:
        return batch
    if batch.num_rows == header.last_offset_delta + 1:
        first, stop = max(first, 0), max(stop, 0)
        return batch.slice(first, max(stop - first, 0))
    delta = batch.column("offset_delta")
    return batch.filter(pc.and_(pc.greater_equal(delta, first), pc.less(delta, stop)))


def batch_records(header: FrameHeader, batch: pa.RecordBatch) -> Iterator[tuple[int, Record]]:
    """The rows of a batch as (offset, record)."""
    timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [
        batch.column(name).to_pylist()
        for name in ("offset_delta", "subject", "key", "headers", "reply", "value")
    ]
    for timestamp_ns, (delta, subject, key, headers, reply, value) in zip(
        timestamps, zip(*columns, strict=True), strict=True
    ):
        yield (
            header.base_offset + delta,
            Record(subject, value, timestamp_ns, key, tuple(headers or ()), reply),
        )

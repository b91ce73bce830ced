"""From the frames of a run of segments to fewer and fuller ones with the same records.

Small neighbouring frames of one leader epoch become one, without the records that are to go. What
stays of a record stays bit for bit: offset, timestamp, subject, key, headers, reply and value. A
frame that is large already and loses nothing is copied as it is, and so is one whose rows cannot be
understood. A frame made of several names no producer: who rewrites has seen to it that producers'
sequences are written down elsewhere (`penstock.logd.rebuild`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.logd.batch import SCHEMA, SCHEMA_VERSION, decode_body, encode_body
from penstock.logd.core.compaction import FrameGroup, is_large
from penstock.logd.errors import CorruptError
from penstock.logd.frame import NO_PRODUCER, NO_TIMESTAMP, FrameHeader, crc32c
from penstock.logd.limits import FRAME_BYTES_MAX

Frame = tuple[FrameHeader, bytes]

Choose = Callable[[FrameHeader, pa.RecordBatch], Sequence[bool] | None]
"""Which rows of a frame are kept; None: all."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A frame that goes into a larger one.

    Attributes:
        batch: The rows that are left of it.
        whole: Whether that is all of them.
    """

    header: FrameHeader
    body: bytes
    batch: pa.RecordBatch
    whole: bool


class Repacker:
    """Rewrites the frames of one run, in order. Call `take` for each, then `finish`.

    Args:
        choose: Which records stay.

    Attributes:
        records_removed: So far.
    """

    def __init__(self, choose: Choose | None = None) -> None:
        self.records_removed = 0
        self._choose = choose
        self._parts: list[_Part] = []
        self._group = FrameGroup()
        self._decoded_bytes = 0

    def take(self, header: FrameHeader, body: bytes) -> Iterator[Frame]:
        """Take the next frame; the frames that are ready."""
        part = self._part(header, body)
        if part is None:
            yield from self.finish()
            yield header, body
            return
        size = part.batch.nbytes
        if not self._group.admits(header) or self._decoded_bytes + size > FRAME_BYTES_MAX:
            yield from self.finish()
        self._parts.append(part)
        self._group.add(header)
        self._decoded_bytes += size

    def finish(self) -> Iterator[Frame]:
        """The frame of what has gathered, if anything has."""
        parts, self._parts = self._parts, []
        self._group, self._decoded_bytes = FrameGroup(), 0
        if len(parts) == 1 and parts[0].whole:
            yield parts[0].header, parts[0].body
        elif parts:
            yield _join(parts)

    def _part(self, header: FrameHeader, body: bytes) -> _Part | None:
        """The rows of a frame that stay; None if it is to be copied as it is."""
        if header.schema_version != SCHEMA_VERSION or (self._choose is None and is_large(header)):
            return None
        try:
            batch = decode_body(body)
        except CorruptError:
            return None
        if batch.num_rows != header.record_count:
            return None
        kept = None if self._choose is None else self._choose(header, batch)
        if kept is None or all(kept):
            return None if is_large(header) else _Part(header, body, batch, whole=True)
        self.records_removed += len(kept) - sum(kept)
        left = batch.filter(pa.array(kept, pa.bool_()))
        return _Part(header, body, left, whole=False)


def _join(parts: Sequence[_Part]) -> Frame:
    first, last = parts[0].header, parts[-1].header
    batch = pa.concat_batches([_moved(part, first.base_offset) for part in parts])
    body = encode_body(batch)
    if len(body) > sum(part.header.body_length for part in parts):
        body = min(body, encode_body(batch, compression="zstd"), key=len)
    times = batch.column("timestamp").cast(pa.int64())
    alone = len(parts) == 1
    header = replace(
        first,
        record_count=batch.num_rows,
        last_offset_delta=last.last_offset - first.base_offset,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=times[0].as_py() if len(times) else NO_TIMESTAMP,
        max_timestamp_ns=pc.max(times).as_py() if len(times) else NO_TIMESTAMP,
        producer_id=first.producer_id if alone else NO_PRODUCER,
        producer_sequence=first.producer_sequence if alone else 0,
        compacted=True,
    )
    return header, body


def _moved(part: _Part, base_offset: int) -> pa.RecordBatch:
    """The rows of a frame with offset deltas to another base."""
    distance = pa.scalar(part.header.base_offset - base_offset, pa.int32())
    deltas = pc.add(part.batch.column("offset_delta"), distance)
    return pa.RecordBatch.from_arrays([deltas, *part.batch.columns[1:]], schema=SCHEMA)

"""Frames of a partition, of which only the offsets that are read are decoded."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.base.lazy_module import LazyModule
from penstock.logd.client import decoded_size, slice_rows
from penstock.logd.errors import CorruptError
from penstock.logd.format.batch import SCHEMA, decode_body
from penstock.logd.format.frame import FrameHeader
from penstock.router.errors import LargerThanPlannedError
from penstock.router.read.offsets import Span

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")  # who plans batches has no rows to compute with

LOG_SCHEMA: Final = SCHEMA.remove(0).insert(0, pa.field("offset", pa.int64()))
"""Schema of records as they are read: the log's columns, the first one with absolute offsets."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A frame, and which of its offsets are read: `start` inclusive, `end` exclusive."""

    header: FrameHeader
    body: memoryview
    start: int
    end: int
    where: str

    @property
    def size(self) -> int:
        """Bytes of memory of what is read, by what the frame says of all of it."""
        whole = self.header.last_offset_delta + 1
        return _size_of(self.body) * (self.end - self.start) // whole

    def rows(self) -> pa.RecordBatch:
        """Return the chunk's records, maybe none: compaction may have removed all.

        Raises:
            CorruptError: The body is no batch.
        """
        batch = decode_body(self.body, where=f"{self.where} offset {self.header.base_offset}")
        rows = slice_rows(self.header, batch, self.start, self.end)
        offsets = pc.add(rows.column(0).cast(pa.int64()), self.header.base_offset)
        return pa.RecordBatch.from_arrays([offsets, *rows.columns[1:]], schema=LOG_SCHEMA)


def within(cuts: Iterable[Cut], max_bytes: int | None, span: Span) -> Iterator[Cut]:
    """Frames of a span, as long as they have no more bytes in memory than that.

    Raises:
        LargerThanPlannedError: They have more.
    """
    size = 0
    for cut in cuts:
        size += cut.size if max_bytes is not None else 0
        if max_bytes is not None and size > max_bytes:
            raise LargerThanPlannedError(
                f"{cut.where}: offsets {span.start} to {cut.end - 1} take {size} bytes, above"
                f" {max_bytes}, which the task was given for {span.start} to {span.end - 1}"
            )
        yield cut


def together(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema as one."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _size_of(body: memoryview) -> int:
    try:
        return decoded_size(body)
    except CorruptError:  # decoding it says what is wrong, and where
        return 0

"""A dump: frames or records of a log, read from its directory without changing it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa

from penstock.base.lazy_module import LazyModule
from penstock.logd.encryption.key_file import Masters, read_keys
from penstock.logd.encryption.master_keys import MasterKeys
from penstock.logd.errors import CorruptError, CorruptFrameError
from penstock.logd.format.batch import SCHEMA_OF_DUMP, SCHEMA_VERSION, decode_body
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.rows import slice_rows
from penstock.logd.offline.overlay_disk import OverlayDisk
from penstock.logd.storage import CommitLog, LogConfig

if TYPE_CHECKING:
    import pyarrow.parquet as pq
else:
    pq = LazyModule("pyarrow.parquet")

_GROUP_ROWS: Final = 64 * 1024
"""Rows of a Parquet row group at least, the last one excepted."""

OnDamage = Callable[[str], None]


class Dump:
    """A range of a log.

    Args:
        directory: Directory of the log.
        on_damage: Called with each damaged frame, which is skipped.
        masters: Master keys, for a log that is encrypted.

    Raises:
        CorruptError: The log's segments contradict each other, or its key files are damaged.
        RefusedError: `UNKNOWN_FORMAT`: written by a later version; `KEY_UNAVAILABLE`, `WRONG_KEY`.
    """

    def __init__(
        self, directory: Path, *, on_damage: OnDamage, masters: Masters | None = None
    ) -> None:
        disk = OverlayDisk()
        keys = read_keys(directory, masters or MasterKeys({}), disk=disk)
        cipher = None if keys is None else keys.cipher()
        self._log = CommitLog.open(directory, LogConfig(), disk=disk, cipher=cipher)
        self._on_damage = on_damage

    @property
    def start_offset(self) -> int:
        """First offset that is kept."""
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        """After the last record."""
        return self._log.end_offset

    def frames(self, start: int, end: int) -> Iterator[tuple[FrameHeader, bytes]]:
        """Sound frames that hold records in [start, end).

        Raises:
            RefusedError: `OUT_OF_RANGE`.
        """
        while True:
            try:
                for header, body in self._log.frames(start, upto=end):
                    yield header, body
                    start = header.next_offset
            except CorruptFrameError as error:
                self._on_damage(str(error))
                start = error.next_offset
                if start < end:
                    continue
            return

    def batches(self, start: int, end: int) -> Iterator[tuple[FrameHeader, pa.RecordBatch]]:
        """The rows in [start, end), frame by frame, with their frames' headers."""
        for header, body in self.frames(start, end):
            try:
                batch = _decoded(header, body)
            except CorruptError as error:
                self._on_damage(f"offsets {header.base_offset} to {header.last_offset}: {error}")
                continue
            yield header, slice_rows(header, batch, start, end)

    def write_arrow(self, sink: IO[bytes], start: int, end: int) -> None:
        """Write [start, end) as an Arrow IPC stream of `SCHEMA_OF_DUMP`, a batch per frame."""
        with pa.ipc.new_stream(sink, SCHEMA_OF_DUMP) as writer:
            for header, batch in self.batches(start, end):
                writer.write_batch(_with_offsets(header, batch))

    def write_parquet(self, sink: IO[bytes], start: int, end: int) -> None:
        """Write [start, end) as Parquet of `SCHEMA_OF_DUMP`."""
        with pq.ParquetWriter(sink, SCHEMA_OF_DUMP, compression="zstd") as writer:
            group: list[pa.RecordBatch] = []
            for header, batch in self.batches(start, end):
                group.append(_with_offsets(header, batch))
                if sum(part.num_rows for part in group) >= _GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(group))
                    group = []
            if group:
                writer.write_table(pa.Table.from_batches(group))


def _decoded(header: FrameHeader, body: bytes) -> pa.RecordBatch:
    if header.schema_version != SCHEMA_VERSION:
        raise CorruptError(f"schema version {header.schema_version} is not known")
    return decode_body(body)


def _with_offsets(header: FrameHeader, batch: pa.RecordBatch) -> pa.RecordBatch:
    offsets = pa.compute.add(batch.column("offset_delta").cast(pa.int64()), header.base_offset)
    return pa.RecordBatch.from_arrays([offsets, *batch.columns[1:]], schema=SCHEMA_OF_DUMP)

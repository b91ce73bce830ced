"""The Parquet files of one task, written aside for the driver to name and publish.

One for each directory, partition of the log and generation of its records; a name says which
records a file holds, by their first and last offset.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import accumulate, takewhile
from typing import BinaryIO, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.router.columns.run_length import ascends, runs
from penstock.router.delivery.batch_names import BatchNames, RowPosition, positions_of
from penstock.router.lake.layout import NULL_PARTITION, Partitioning, Span
from penstock.router.lake.merge import columns_with_dictionary
from penstock.router.sinks.parquet.client import LocalTree, Staging
from penstock.router.sinks.sink import GatheringWriter, WriteResult

_LOG_POSITION: Final = ("stream", "partition")
_HOURS_MAX: Final = 100
"""Hours, or days, for which a task makes separate files. Hostile clocks may name any."""

_HOUR: Final = "penstock_hour"
PATH_SAFE: Final = LocalTree.safe
_DIRECTORY_NAME_BYTES_MAX: Final = 200
"""Maximum bytes of a hive directory's value; NAME_MAX is 255 on Linux."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is written aside.

    Attributes:
        fresh: Its name there.
        position: `BatchNames.position_tag` of its records.
        first: Offset of its first record.
        last: Offset of its last record.
    """

    fresh: str
    directory: str
    position: str
    first: int
    last: int
    records: int
    size: int


@dataclass(frozen=True, slots=True)
class WrittenFiles(WriteResult):
    """Files that a `ParquetWriter` has made."""

    files: tuple[WrittenFile, ...]


@dataclass(slots=True)
class ParquetWriter(GatheringWriter):
    """The writer of one task.

    Attributes:
        safe: Characters of directory names that are not escaped.
    """

    staging: Staging
    compression: str
    names: BatchNames
    safe: str
    partitioning: Partitioning

    def close(self) -> WrittenFiles:
        """Write the files."""
        if not self._batches:
            return WrittenFiles(())
        rows = pa.Table.from_batches(self._batches)
        return WrittenFiles(
            tuple(
                self.written(directory, part)
                for directory, whole in split_by_partition(rows, self.partitioning, self.safe)
                for part in self.names.by_generation(whole)
            )
        )

    def written(self, directory: str, part: pa.Table) -> WrittenFile:
        """The rows of one file, in their order, written aside."""
        stream, partition = (part.column(name)[0].as_py() for name in _LOG_POSITION)
        first, last = (part.column("offset")[at].as_py() for at in (0, part.num_rows - 1))
        fresh, size = self.staging.write(lambda file: write_parquet(part, file, self.compression))
        position = self.names.position_tag(stream, partition, first)
        return WrittenFile(fresh, directory, position, first, last, part.num_rows, size)


def write_parquet(part: pa.Table, file: BinaryIO, compression: str) -> None:
    """Write the rows of one file."""
    dictionary = columns_with_dictionary(part.schema)
    pq.write_table(part, file, compression=compression, use_dictionary=dictionary)


def split_by_partition(
    rows: pa.Table, partitioning: Partitioning, safe: str = PATH_SAFE
) -> Iterator[tuple[str, pa.Table]]:
    """Cut a batch into (directory, rows of one file), rows in offset order.

    The columns that the directory tells are left out of the rows. Of more than `_HOURS_MAX` hours
    those with the fewest rows share a directory, whose `date` and `hour` are null.

    Args:
        rows: The batch.
        partitioning: Directories that rows go to.
        safe: Characters that names of directories have as they are, as `FileTree.safe`.
    """
    keys = [_HOUR if name in ("date", "hour") else name for name in partitioning.by]
    keys = list(dict.fromkeys(keys))
    if _HOUR in keys:
        rows = rows.append_column(_HOUR, _hours(rows, partitioning))
    places = (*keys, *_LOG_POSITION)
    found = runs(rows, places)
    if len(found) > 1 or not ascends(rows.column("offset")):  # else it is sorted, as most are
        order = [(name, "ascending") for name in (*places, "offset")]
        rows = _taken(rows, pc.sort_indices(rows, sort_keys=order))
        found = runs(rows, places)
    dropped = [*partitioning.left_out, *(it for it in keys if it == _HOUR)]
    kept = rows.drop_columns(dropped) if dropped else rows
    partitions = rows.select(keys).take(pa.array([begin for begin, _ in found], pa.int64()))
    for (begin, end), values in zip(found, partitions.to_pylist(), strict=True):
        told = values | _date_and_hour(values.get(_HOUR))
        directory = "/".join(f"{it}={_path_value(told[it], safe)}" for it in partitioning.by)
        yield directory, kept.slice(begin, end - begin)


def records_by_directory(
    rows: pa.Table, partitioning: Partitioning, names: BatchNames, safe: str
) -> dict[str, dict[RowPosition, Span]]:
    """Return the directory of each record, by itself, and the span of its only offset."""
    found = defaultdict[str, dict[RowPosition, Span]](dict)
    for begin in range(0, rows.num_rows, _HOURS_MAX):  # so many rows have no more hours
        part = rows.slice(begin, _HOURS_MAX)
        for directory, records in split_by_partition(part, partitioning, safe):
            for stream, partition, offset in positions_of(records):
                tag = names.stream_tag(stream, partition, offset).removeprefix(f"{stream}.")
                span = Span(stream, tag, partition, offset, offset)
                found[directory][stream, partition, offset] = span
    return dict(found)


def shared_directory(directory: str) -> str:
    """The directory of the same rows where their batch was of more than `_HOURS_MAX` hours."""
    parts = (part.partition("=") for part in directory.split("/"))
    return "/".join(
        f"{name}={NULL_PARTITION if name in ('date', 'hour') else value}"
        for name, _, value in parts
    )


def _hours(rows: pa.Table, partitioning: Partitioning) -> pa.ChunkedArray:
    """Return each row's hour, or its day's first one, since 1970 in UTC; null: a shared directory.

    Hours are numbers: formatting each row's takes as long as sorting them.
    """
    times = rows.column(partitioning.time_column)
    days = pc.multiply(times.cast(pa.date32()).cast(pa.int32()), 24)
    hours = pc.add(days, pc.hour(times).cast(pa.int32())) if "hour" in partitioning.by else days
    counts = pc.value_counts(hours.combine_chunks())
    if len(counts) <= _HOURS_MAX:
        return hours
    by_rows = sorted(counts.to_pylist(), key=lambda it: (-it["counts"], it["values"] or 0))
    own = pa.array([it["values"] for it in by_rows[:_HOURS_MAX]], pa.int32())
    return pc.if_else(pc.is_in(hours, value_set=own), hours, pa.scalar(None, pa.int32()))


def _date_and_hour(hour: int | None) -> dict[str, str | None]:
    if hour is None:
        return {"date": None, "hour": None}
    day = date(1970, 1, 1) + timedelta(days=hour // 24)
    return {"date": day.isoformat(), "hour": f"{hour % 24:02d}"}


def _taken(rows: pa.Table, order: pa.Array) -> pa.Table:
    """Rows in another order; most columns of most batches are nothing but null, and stay."""
    columns = [it if it.null_count == len(it) else it.take(order) for it in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _path_value(value: str | None, safe: str) -> str:
    """A value as part of a path, percent-encoded where a path or hive needs it."""
    if not value:
        return NULL_PARTITION
    if len(encoded := quote(value, safe=safe)) <= _DIRECTORY_NAME_BYTES_MAX:
        return encoded
    # Whole characters only: half of one is no UTF-8, and readers then refuse the whole lake.
    sizes = accumulate(len(quote(character, safe=safe)) for character in value)
    kept = sum(1 for _ in takewhile(_DIRECTORY_NAME_BYTES_MAX.__ge__, sizes))
    return quote(value[:kept], safe=safe)

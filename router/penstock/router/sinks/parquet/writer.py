"""The rows of one task as Parquet files, written aside for the driver to publish.

One for each directory, partition of the log and generation of its records; a name says which
records a file holds, by their first and last offset.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import BinaryIO, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.router.columns.run_length import runs
from penstock.router.sinks.parquet.client import LocalTree, Staging
from penstock.router.sinks.sink import BatchNames, WriteResult

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"

_PARTITIONED_BY: Final = ("kind", "service", "date")
_LOG_POSITION: Final = ("stream", "partition")
_ORDER: Final = (*_PARTITIONED_BY, *_LOG_POSITION, "offset")
_DICTIONARY_COLUMNS_EXCLUDED: Final = frozenset({"value", "offset", "timestamp_ns", "record_id"})
_PATH_SAFE: Final = LocalTree.safe
_DIRECTORY_NAME_BYTES_MAX: Final = 200
"""Of a hive directory's value; NAME_MAX is 255 on Linux."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is written aside.

    Attributes:
        fresh: Its name there.
        directory: Where it belongs.
        position: What `BatchNames.position_tag` says of its records.
        first: Offset of its first record.
        last: That of its last one.
        records: How many it has.
        size: Bytes.
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
    """What a `ParquetWriter` has made."""

    files: tuple[WrittenFile, ...]


@dataclass(slots=True)
class ParquetWriter:
    """That of one task.

    Attributes:
        staging: Where files are written aside.
        compression: Of them.
        names: Of the batch's records.
        safe: Characters that names of directories have as they are.
    """

    staging: Staging
    compression: str
    names: BatchNames
    safe: str
    _batches: list[pa.RecordBatch] = field(default_factory=list)

    def write(self, rows: pa.RecordBatch) -> None:
        """Keep them until all are there: they are sorted into files."""
        self._batches.append(rows)

    def close(self) -> WrittenFiles:
        """Write the files."""
        if not self._batches:
            return WrittenFiles(())
        rows = pa.Table.from_batches(self._batches)
        return WrittenFiles(
            tuple(
                self.written(directory, part)
                for directory, whole in split_by_partition(rows, self.safe)
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
    """Write the rows of one file; columns of which values repeat have a dictionary."""
    pq.write_table(
        part,
        file,
        compression=compression,
        use_dictionary=[
            field.name
            for field in part.schema
            if field.name not in _DICTIONARY_COLUMNS_EXCLUDED and not pa.types.is_nested(field.type)
        ],
    )


def split_by_partition(rows: pa.Table, safe: str = _PATH_SAFE) -> Iterator[tuple[str, pa.Table]]:
    """Cut a batch into (directory, rows of one file), rows in offset order.

    The columns that the directory tells are left out of the rows.

    Args:
        rows: The batch.
        safe: Characters that names of directories have as they are, as `FileTree.safe`.
    """
    # In UTC, as a number of days: formatting each row's takes as long as sorting them.
    rows = rows.append_column("date", rows.column("time").cast(pa.date32()))
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _ORDER])
    rows = _taken(rows, order)
    kept = rows.drop_columns(list(_PARTITIONED_BY))
    found = runs(rows, (*_PARTITIONED_BY, *_LOG_POSITION))
    partitions = rows.select(_PARTITIONED_BY).take(
        pa.array([begin for begin, _ in found], pa.int64())
    )
    dates = pc.strftime(partitions.column("date"), "%Y-%m-%d")
    partitions = partitions.set_column(partitions.column_names.index("date"), "date", dates)
    for (begin, end), position in zip(found, partitions.to_pylist(), strict=True):
        directory = "/".join(
            f"{name}={_path_value(position[name], safe)}" for name in _PARTITIONED_BY
        )
        yield directory, kept.slice(begin, end - begin)


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

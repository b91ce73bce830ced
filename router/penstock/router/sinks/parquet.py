"""The Parquet sink: hive-partitioned files that any tool reads, each record exactly once.

    PATH/kind=log/service=checkout/date=2026-11-21/logs.5f2c19aa-0-00000000000000000000-00000000000000000339.parquet

A file's name says which records it holds: stream, first characters of the stream's incarnation,
partition, first and last offset. A batch that comes again, because the job was killed before Spark
had noted its end, has the same records and so makes the same names: each file replaces its earlier
self. Dead letters are some of a batch's records, whose file may begin and end with the same ones:
the name of theirs has a digest of all their offsets before `.parquet`, unless the file of the name
without it holds just these records. Files are written below `PATH/_writing`, synced, and then
renamed to their place, so a reader never sees half a file; what a killed job left there is removed
when the job starts again.

The names do change when a route's `where` was changed in between. So the sink notes in its state
directory, before the first rename, which files the batch makes; when the batch comes again, those
that it does not make any more are removed, all of them if no row is led here any more.

A row whose service is not known is in `service=__HIVE_DEFAULT_PARTITION__`, hive's name for null.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import field_validator
from typing_extensions import override

from penstock.router.core.offsets import digest_of
from penstock.router.durable import make_directories, sync_directories, write_whole
from penstock.router.runs import runs
from penstock.router.sinks.guarantee import Guarantee, Replay
from penstock.router.sinks.settings import SinkConfig
from penstock.router.sinks.sink import Sink, SinkContext
from penstock.router.wrong_key import WrongKeyError

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"

_PARTITIONED_BY: Final = ("kind", "service", "date")
_LOG_POSITION: Final = ("stream", "partition")
_ORDER: Final = (*_PARTITIONED_BY, *_LOG_POSITION, "offset")
_DICTIONARY_COLUMNS_EXCLUDED: Final = frozenset({"value", "offset", "timestamp_ns", "record_id"})
_NAME: Final = re.compile(r"(?P<partition>.+)-(?P<first>\d+)-(?P<last>\d+)(\.[0-9a-f]+)?\.parquet")
_PATH_SAFE: Final = " @+,:~"
_DIRECTORY_NAME_BYTES_MAX: Final = 200
"""Of a hive directory's value; NAME_MAX is 255 on Linux."""


class ParquetSink(SinkConfig):
    """Hive-partitioned Parquet files in a local directory."""

    type: Literal["parquet"]
    path: Path
    compression: Literal["zstd", "snappy", "none"] = "zstd"

    @field_validator("path", mode="before")
    @classmethod
    def _is_no_uri(cls, path: Any) -> Any:
        """Else a path `s3:/…` would be made below the directory that the job was started in."""
        if isinstance(path, str) and "://" in path:
            raise ValueError(
                "must be a directory of this machine, perhaps a network volume, for files are"
                " renamed to their place; the sink `s3` writes to a bucket, `delta` and `iceberg`"
                " to tables in one"
            )
        return path

    @override
    def about(self) -> str:
        return f"Parquet files in {self.path}; each record exactly once"


class ParquetLake(Sink):
    """Writes each batch as one file per kind, service, date and partition of the log."""

    config_class = ParquetSink
    guarantee = Guarantee(
        Replay.EXACTLY_ONCE,
        "the same batch makes the same files, which replace their earlier selves",
    )
    columns = ("*",)
    knows_batches_only = True

    def __init__(self, config: ParquetSink, context: SinkContext) -> None:
        self._path = config.path.absolute()
        self._compression = config.compression
        self._context = context
        self._writing = self._path / "_writing" / f"{context.job}.{context.sink}"
        self._batch = context.state_dir / "batch.json"

    @override
    def open(self) -> None:
        """Make the directories, and remove what a killed job was writing.

        Raises:
            ConfigError: The directory cannot be written to, or is another sink's: both would use
                the same names.
        """
        try:
            shutil.rmtree(self._writing, ignore_errors=True)
            self._writing.mkdir(parents=True)
            others = {path.name for path in self._writing.parent.iterdir()} - {self._writing.name}
        except OSError as error:
            raise WrongKeyError(
                f"sinks.{self._context.sink}.path: cannot write to {self._path}: {error.strerror}",
                fix="name a directory that this user may write to",
            ) from None
        for name in sorted(others):
            raise WrongKeyError(
                f"sinks.{self._context.sink}.path: {self._path} belongs to the sink {name!r}"
                " (JOB.SINK), whose files this one could replace",
                fix="name another directory; if that sink is no more, remove"
                f" {self._writing.parent / name}",
            )

    @override
    def write(self, rows: pa.Table) -> None:
        """Publish a batch; see the module's docstring."""
        written: list[tuple[Path, Path]] = []
        changed: list[Path] = []
        for directory, part in split_by_place(rows):
            place = self._place_of(directory, part)
            fresh = self._writing / f"{len(written):06d}.unfinished"
            self._write_file(fresh, part)
            written.append((fresh, place))
        changed += self._remove_earlier([place for _, place in written])
        for fresh, place in written:
            changed += make_directories(place.parent, below=self._path)
            fresh.replace(place)
            changed.append(place.parent)
        sync_directories(changed)
        self._context.meter.count("files", len(written))
        self._context.meter.sent(rows.num_rows)

    @override
    def write_nothing(self) -> None:
        sync_directories(self._remove_earlier([]))

    @override
    def begin_anew(self) -> None:
        """Nothing of what was written is to be removed any more."""
        self._batch.unlink(missing_ok=True)

    def _remove_earlier(self, places: list[Path]) -> list[Path]:
        """Remove what an earlier attempt at this batch made and this one does not.

        Notes the batch's files first. Returns the directories that changed.
        """
        earlier: list[str] = json.loads(self._batch.read_text()) if self._batch.exists() else []
        names = [str(place.relative_to(self._path)) for place in places]
        repeated = is_repeated(names, earlier, self._context.starts)
        stale = sorted(set(earlier) - set(names)) if repeated else []
        if not names and not stale:
            return []
        write_whole(self._batch, json.dumps(names + stale).encode())
        removed = [self._path / name for name in stale if (self._path / name).exists()]
        for path in removed:
            path.unlink()
        return [path.parent for path in removed]

    def _place_of(self, directory: str, part: pa.Table) -> Path:
        place = (part.column(name)[0].as_py() for name in _LOG_POSITION)
        offsets = part.column("offset").to_pylist()
        stem = f"{self._context.place_tag(*place)}-{offsets[0]:020d}-{offsets[-1]:020d}"
        usual = self._path / directory / f"{stem}.parquet"
        if not self._context.of_letters or _holds(usual, offsets):
            return usual
        return usual.with_name(f"{stem}.{digest_of(offsets)}.parquet")

    def _write_file(self, path: Path, part: pa.Table) -> None:
        with path.open("wb") as file:
            write_parquet(part, file, self._compression)
            file.flush()
            os.fsync(file.fileno())
            self._context.meter.count("bytes", file.tell())


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


def _holds(path: Path, offsets: list[int]) -> bool:
    """Whether the file is there, and has the rows of these offsets and no others."""
    if not path.exists():
        return False
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows != len(offsets):
                return False
            found: list[int] = file.read(["offset"])["offset"].to_pylist()
            return found == offsets
    except (pa.ArrowException, OSError, KeyError):  # damaged, or another tool's
        return False


def split_by_place(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Cut a batch into (directory, rows of one file), rows in offset order.

    The columns that the directory tells are left out of the rows.
    """
    # In UTC, as a number of days: formatting each row's takes as long as sorting them.
    rows = rows.append_column("date", rows.column("time").cast(pa.date32()))
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _ORDER])
    rows = _taken(rows, order)
    kept = rows.drop_columns(list(_PARTITIONED_BY))
    found = runs(rows, (*_PARTITIONED_BY, *_LOG_POSITION))
    places = rows.select(_PARTITIONED_BY).take(pa.array([begin for begin, _ in found], pa.int64()))
    dates = pc.strftime(places.column("date"), "%Y-%m-%d")
    places = places.set_column(places.column_names.index("date"), "date", dates)
    for (begin, end), place in zip(found, places.to_pylist(), strict=True):
        directory = "/".join(f"{name}={_path_value(place[name])}" for name in _PARTITIONED_BY)
        yield directory, kept.slice(begin, end - begin)


def _taken(rows: pa.Table, order: pa.Array) -> pa.Table:
    """Rows in another order; most columns of most batches are nothing but null, and stay."""
    columns = [it if it.null_count == len(it) else it.take(order) for it in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def is_repeated(
    names: Iterable[str], earlier: Iterable[str], starts: Mapping[str, int], prefix: str = ""
) -> bool:
    """Whether what was noted is a batch's earlier self, and not the batch before it.

    Args:
        names: Of the batch's files; each ends in `-PARTITION-FIRST-LAST.parquet`, or has a
            hexadecimal digest before `.parquet`.
        earlier: Of that other batch.
        starts: Where the batch begins, if that is known; else its files tell.
        prefix: Of the names, before what `SinkContext.place_tag` says.
    """
    ends: dict[str, int] = {}
    for partition, _, last in map(_span, earlier):
        ends[partition] = max(ends.get(partition, -1), last)
    begins = [(prefix + place, start) for place, start in starts.items()]
    begins += [(place, first) for place, first, _ in map(_span, names)]
    return any(begin <= ends.get(place, -1) for place, begin in begins)


def _span(name: str) -> tuple[str, int, int]:
    found = _NAME.fullmatch(name.rpartition("/")[2])
    assert found is not None, name
    return found["partition"], int(found["first"]), int(found["last"])


def _path_value(value: str | None) -> str:
    """A value as part of a path, percent-encoded where a path or hive needs it."""
    if not value:
        return NULL_PARTITION
    if len(encoded := quote(value, safe=_PATH_SAFE)) <= _DIRECTORY_NAME_BYTES_MAX:
        return encoded
    # Whole characters only: half of one is no UTF-8, and readers then refuse the whole lake.
    sizes = accumulate(len(quote(character, safe=_PATH_SAFE)) for character in value)
    kept = sum(1 for _ in takewhile(_DIRECTORY_NAME_BYTES_MAX.__ge__, sizes))
    return quote(value[:kept], safe=_PATH_SAFE)

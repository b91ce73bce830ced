"""The Parquet sink: hive-partitioned files that any tool reads, each record exactly once.

    PATH/kind=log/service=checkout/date=2026-11-21/logs.5f2c19aa-0-00000000000000000000-00000000000000000339.parquet

A file's name says which records it holds: stream, first characters of the stream's incarnation,
partition, first and last offset. A batch that comes again, because the job was killed before Spark
had noted its end, has the same records and so makes the same names: each file replaces its earlier
self. Dead letters are some of a batch's records, whose file may begin and end with the same ones:
the name of theirs has a digest of all their offsets before `.parquet`, unless the file of the name
without it holds just these records. Files are written below `PATH/_writing`, synced, and then
renamed to their place, so a reader never sees half a file; what a killed job left there is removed
when the job starts again. PATH is a directory of this machine, or of HDFS: see `FileTree`.

The names do change when a route's `where` was changed in between. So the sink notes in its state
directory, before the first rename, which files the batch makes; when the batch comes again, those
that it does not make any more are removed, all of them if no row is led here any more.

A row whose service is not known is in `service=__HIVE_DEFAULT_PARTITION__`, hive's name for null.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import field_validator, model_validator
from typing_extensions import override

from penstock.base.files import atomic_write
from penstock.router.columns.run_length import runs
from penstock.router.hdfs import SCHEME, Hdfs, HdfsSettings, wrong_url
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.job.settings import SinkConfig
from penstock.router.read.offsets import digest_of
from penstock.router.sinks.parquet.client import FileTree, HdfsTree, LocalTree
from penstock.router.sinks.sink import Guarantee, Replay, Sink, SinkContext
from penstock.service import UnavailableError

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"

_PARTITIONED_BY: Final = ("kind", "service", "date")
_LOG_POSITION: Final = ("stream", "partition")
_ORDER: Final = (*_PARTITIONED_BY, *_LOG_POSITION, "offset")
_DICTIONARY_COLUMNS_EXCLUDED: Final = frozenset({"value", "offset", "timestamp_ns", "record_id"})
_NAME: Final = re.compile(r"(?P<partition>.+)-(?P<first>\d+)-(?P<last>\d+)(\.[0-9a-f]+)?\.parquet")
_PATH_SAFE: Final = LocalTree.safe
_DIRECTORY_NAME_BYTES_MAX: Final = 200
"""Of a hive directory's value; NAME_MAX is 255 on Linux."""


class ParquetSink(SinkConfig):
    """Hive-partitioned Parquet files in a directory of this machine, or of HDFS."""

    type: Literal["parquet"]
    path: str
    hdfs: HdfsSettings | None = None
    compression: Literal["zstd", "snappy", "none"] = "zstd"

    @field_validator("path", mode="before")
    @classmethod
    def _is_a_directory(cls, path: Any) -> Any:
        """Else a path `s3:/…` would be made below the directory that the job was started in."""
        if isinstance(path, os.PathLike):
            return os.fspath(path)
        if not isinstance(path, str) or "://" not in path:
            return path
        if not path.startswith(SCHEME):
            raise ValueError(
                "must be a directory of this machine, perhaps a network volume, or one of HDFS"
                " (hdfs://namenode:8020/lake), for files are renamed to their place; the sink `s3`"
                " writes to a bucket, `delta` and `iceberg` to tables in one"
            )
        if wrong := wrong_url(path):
            raise ValueError(wrong)
        return path

    @model_validator(mode="after")
    def _hdfs_is_for_hdfs(self) -> Self:
        if self.hdfs is not None and not self.path.startswith(SCHEME):
            raise ValueError("hdfs: it is for a path that begins with hdfs://")
        return self

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
        self._compression = config.compression
        self._context = context
        self._key = f"sinks.{context.sink}.path"
        owner = f"{context.job}.{context.sink}"
        self._tree: FileTree
        if config.path.startswith(SCHEME):
            files = Hdfs(config.path, location=self._key, settings=config.hdfs)
            self._path, self._tree = files.url, HdfsTree(files, owner)
        else:
            path = Path(config.path).absolute()
            self._path, self._tree = str(path), LocalTree(path, owner, key=self._key)
        self._is_open = False
        self._batch = context.state_dir / "batch.json"

    @override
    def open(self) -> None:
        """Make the directories, and remove what a killed job was writing; HDFS may come later.

        Raises:
            ConfigError: The directory cannot be written to, or is another sink's: both would use
                the same names.
        """
        with suppress(UnavailableError):  # the first batch finds out how long that lasts
            self._open()

    def _open(self) -> None:
        if self._is_open:
            return
        for other in self._tree.open():
            raise WrongKeyError(
                f"{self._key}: {self._path} belongs to the sink"
                f" {other.rpartition('/')[2]!r} (JOB.SINK), whose files this one could replace",
                fix=f"name another directory; if that sink is no more, remove {other}",
            )
        self._is_open = True

    @override
    def write(self, rows: pa.Table) -> None:
        """Publish a batch; see the module's docstring."""
        self._open()
        self._tree.begin()
        written: list[tuple[str, str]] = []
        earlier = self._noted()
        for directory, whole in split_by_partition(rows, self._tree.safe):
            for generation in self._context.by_generation(whole):
                part = self._not_there(directory, generation, earlier)
                if part.num_rows:
                    written.append((self._written(part), self._position_of(directory, part)))
        self._remove_earlier([position for _, position in written])
        for fresh, position in written:
            self._tree.publish(fresh, position)
        self._tree.sync()
        self._context.meter.count("files", len(written))
        self._context.meter.sent(rows.num_rows)

    @override
    def write_nothing(self) -> None:
        self._tree.begin()
        self._remove_earlier([])
        self._tree.sync()

    @override
    def start_over(self) -> None:
        """Nothing of what was written is to be removed any more."""
        self._batch.unlink(missing_ok=True)

    def _remove_earlier(self, names: list[str]) -> None:
        """Remove what an earlier attempt at this batch made and this one does not.

        Notes the batch's files first.
        """
        again = of_same_batch(names, self._noted(), self._context.starts)
        kept = [name for name in again if position_tag_of(name) in self._context.shortened]
        stale = [name for name in again if name not in kept]
        if not names and not stale:
            return
        atomic_write(self._batch, json.dumps(names + stale + kept).encode(), parents=True)
        self._context.persist()
        for name in stale:
            self._tree.remove(name)

    def _noted(self) -> list[str]:
        """The files of the last batch, or of an earlier attempt at this one."""
        found: list[str] = json.loads(self._batch.read_text()) if self._batch.exists() else []
        return found

    def _not_there(self, directory: str, part: pa.Table, earlier: Sequence[str]) -> pa.Table:
        """The rows without those that an earlier attempt published, where its files stay."""
        if not self._context.shortened:
            return part
        first = part.select(["stream", "partition", "offset"]).slice(0, 1).to_pylist()[0]
        position = self._context.position_tag(**first)
        if position not in self._context.shortened:
            return part
        names = (name for name in earlier if name.rpartition("/")[0] == directory)
        return without_spans(
            part, (n for n in names if position_tag_of(n) == position), self._is_there
        )

    def _is_there(self, name: str) -> bool:
        file = self._tree.reader(name)
        if file is None:
            return False
        file.close()
        return True

    def _position_of(self, directory: str, part: pa.Table) -> str:
        stream, partition = (part.column(name)[0].as_py() for name in _LOG_POSITION)
        offsets = part.column("offset").to_pylist()
        tag = self._context.position_tag(stream, partition, offsets[0])
        stem = f"{tag}-{offsets[0]:020d}-{offsets[-1]:020d}"
        usual = f"{directory}/{stem}.parquet"
        if not self._context.of_dead_letters or _holds(self._tree.reader(usual), offsets):
            return usual
        return f"{directory}/{stem}.{digest_of(offsets)}.parquet"

    def _written(self, part: pa.Table) -> str:
        fresh, size = self._tree.write(lambda file: write_parquet(part, file, self._compression))
        self._context.meter.count("bytes", size)
        return fresh


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


def _holds(file: BinaryIO | None, offsets: list[int]) -> bool:
    """Whether the file is there, and has the rows of these offsets and no others."""
    if file is None:
        return False
    try:
        with file, pq.ParquetFile(file) as parquet:
            if parquet.metadata.num_rows != len(offsets):
                return False
            found: list[int] = parquet.read(["offset"])["offset"].to_pylist()
            return found == offsets
    except (pa.ArrowException, OSError, KeyError):  # damaged, or another tool's
        return False


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


def of_same_batch(
    names: Iterable[str], earlier: Iterable[str], starts: Mapping[str, int], prefix: str = ""
) -> list[str]:
    """Of the files that were noted, those of an earlier attempt at this batch that it has not.

    Each partition, and each generation of its records, is judged by itself: that one was read again
    says nothing of the files of another.

    Args:
        names: Of the batch's files; each ends in `-PARTITION-FIRST-LAST.parquet`, or has a
            hexadecimal digest before `.parquet`.
        earlier: Of this batch or the one before it.
        starts: Where the batch begins, if that is known; else its files tell, of all partitions.
        prefix: Of the names, before what `SinkContext.position_tag` says.
    """
    names, earlier = set(names), sorted(set(earlier))
    ends: dict[str, int] = {}
    for position, _, last in map(_span, earlier):
        ends[position] = max(ends.get(position, -1), last)
    begins = {prefix + position: start for position, start in starts.items()}
    for position, first, _ in map(_span, names):
        begins[position] = min(begins.get(position, first), first)
    again = {position for position, begin in begins.items() if begin <= ends.get(position, -1)}
    if again and not starts:
        again = set(ends)
    return [name for name in earlier if name not in names and _span(name)[0] in again]


def without_spans(
    part: pa.Table, names: Iterable[str], is_there: Callable[[str], bool]
) -> pa.Table:
    """The rows of one partition that none of the files has; asks for those alone that might."""
    for _, first, last, name in sorted((*_span(name), name) for name in names):
        offsets = part.column("offset")
        within = pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last))
        if pc.any(within, min_count=0).as_py() and is_there(name):
            part = part.filter(pc.invert(within))
    return part


def position_tag_of(name: str, prefix: str = "") -> str:
    """What `SinkContext.position_tag` says of a file's records."""
    return _span(name)[0].removeprefix(prefix)


def _span(name: str) -> tuple[str, int, int]:
    found = _NAME.fullmatch(name.rpartition("/")[2])
    assert found is not None, name
    return found["partition"], int(found["first"]), int(found["last"])


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

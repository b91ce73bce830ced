"""The Parquet sink: files, named by their offsets, that any tool reads, each record exactly once.

    PATH/kind=log/date=2026-11-21/hour=08/logs.5f2c19aa-0-00000000000000000000-00000000000000000339.parquet

A file's name says which records it holds: stream, first characters of the stream's id,
partition, first and last offset. A batch that comes again, because the job was killed before Spark
had noted its end, has the same records in the same tasks and so makes the same names: each file
replaces its earlier self. Dead letters are some of a batch's records, whose file may begin and end
with the same ones: the name of theirs has a digest of all their offsets before `.parquet`, unless
the file of the name without it holds just these records.

Tasks write files below `PATH/_writing` and sync them; when all files of a batch are there, the
driver renames them to their place. So a reader never sees half a file, nor what a task wrote that
failed or ran twice. What a killed job or a task left there is removed before the next batch. PATH
is a directory of this machine, or of HDFS: see `FileTree`.

The names do change when a route's `where` was changed in between. So the sink notes in its state
directory, before the first rename, which files the batch makes; when the batch comes again, those
that it does not make any more are removed, all of them if no row is led here any more.

Directories are those of `partition_by`; in a lake that is there, those that it has. A row of which
a column is not known is in `…=__HIVE_DEFAULT_PARTITION__`, hive's name for null.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import field_validator, model_validator
from typing_extensions import override

from penstock.base.files import atomic_write
from penstock.router.delivery.batch_names import BatchNames, RowPosition, positions_of
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.job.settings import SinkConfig
from penstock.router.lake.compactor import maintain
from penstock.router.lake.inspect import files_with
from penstock.router.lake.layout import Partitioning
from penstock.router.lake.merged_rows import MergedRows
from penstock.router.lake.plan import is_expired
from penstock.router.lake.settings import LakeFileSettings
from penstock.router.lake.store import HdfsLake, LakeStore, LocalLake
from penstock.router.read.offsets import digest_of
from penstock.router.sinks.parquet.client import FileTree, HdfsTree, LocalTree
from penstock.router.sinks.parquet.writer import (
    ParquetWriter,
    WrittenFile,
    WrittenFiles,
    records_by_directory,
    shared_directory,
)
from penstock.router.sinks.sink import (
    Gone,
    Guarantee,
    Maintenance,
    Place,
    Replay,
    SinkContext,
    TaskSink,
)
from penstock.router.storage.hdfs import SCHEME, Hdfs, HdfsSettings, wrong_url
from penstock.service import UnavailableError

_NAME: Final = re.compile(r"(?P<partition>.+)-(?P<first>\d+)-(?P<last>\d+)(\.[0-9a-f]+)?\.parquet")


class ParquetSink(LakeFileSettings, SinkConfig):
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


class ParquetLake(TaskSink):
    """Writes a file for each directory and partition of the log that a task's rows are of."""

    config_class = ParquetSink
    guarantee = Guarantee(
        Replay.EXACTLY_ONCE,
        "the same batch makes the same files, which replace their earlier selves",
    )
    columns = ("*",)
    knows_batches_only = True

    def __init__(self, config: ParquetSink, context: SinkContext) -> None:
        self._compression = config.compression
        self.context = context
        self._key = f"sinks.{context.sink}.path"
        owner = f"{context.job}.{context.sink}"
        self._tree: FileTree
        self._store: LakeStore
        if config.path.startswith(SCHEME):
            files = Hdfs(config.path, location=self._key, settings=config.hdfs)
            self._tree = HdfsTree(files, owner)
            self._store = HdfsLake(config.path, location=self._key, settings=config.hdfs)
        else:
            path = Path(config.path).absolute()
            self._tree, self._store = LocalTree(path, owner, key=self._key), LocalLake(path)
        self._settings = config
        self._is_open = False
        self._partitioning = Partitioning()
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
                f"{self._key}: {self._store.url} belongs to the sink"
                f" {other.rpartition('/')[2]!r} (JOB.SINK), whose files this one could replace",
                fix=f"name another directory; if that sink is no more, remove {other}",
            )
        self._partitioning = self._found_partitioning()
        self._is_open = True

    def _found_partitioning(self) -> Partitioning:
        key = self._key.removesuffix(".path")
        return self._settings.partitioning(self._found(), key, self._store.url)

    def _found(self) -> tuple[str, ...] | None:
        """The columns by which the lake is partitioned that is there."""
        names, directory = list[str](), ""
        while True:
            named = (it for it in self._tree.directories(directory) if "=" in it)
            first = next(named, None)
            if first is None:
                return tuple(names) or None
            names.append(first.partition("=")[0])
            directory = f"{directory}/{first}" if directory else first

    @override
    def begin(self) -> None:
        self._open()
        self._tree.begin()

    @override
    def writer(self) -> ParquetWriter:
        return ParquetWriter(
            self._tree.staging,
            self._compression,
            self.context.names(),
            self._tree.safe,
            self._partitioning,
        )

    @override
    def commit(self, results: Sequence[WrittenFiles]) -> None:
        """Publish a batch; see the module's docstring."""
        wanted = list(self._not_expired(file for result in results for file in result.files))
        with self._store.lock():
            earlier = self._noted()
            if not wanted and not earlier:
                return
            written = [
                kept
                for file in wanted
                if (kept := self._without_earlier(file, earlier)) is not None
            ]
            written = self._without_merged(written, earlier)
            names = [self._name_of(file) for file in written]
            self._remove_earlier(names)
            for name, file in zip(names, written, strict=True):
                self._tree.publish(file.fresh, name)
            self._tree.sync()
        self.context.meter.count("files", len(written))
        self.context.meter.count("bytes", sum(file.size for file in written))
        self.context.meter.sent(sum(file.records for file in wanted))

    @override
    def locate(self, rows: pa.Table) -> Sequence[Place]:
        partitioning = self._found_partitioning()
        return located_in(self._store, rows, partitioning, self.context, self._tree.safe)

    @override
    def maintenance(self) -> Maintenance | None:
        settings = self._settings.compaction
        merges = settings.enabled
        if merges is None:
            merges = not self._settings.path.startswith(SCHEME)
        if not merges and self._settings.retention is None:
            return None
        return Maintenance(
            settings.interval_s,
            partial(
                maintain,
                self._store,
                self._settings.policy(merges=merges),
                self.context.clock,
                self._compression,
                self.context.meter,
            ),
        )

    @override
    def start_over(self) -> None:
        """Nothing of what was written is to be removed any more."""
        self._batch.unlink(missing_ok=True)

    def _remove_earlier(self, names: list[str]) -> None:
        """Remove what an earlier attempt at this batch made and this one does not.

        Notes the batch's files first.
        """
        stale, kept = stale_of_batch(names, self._noted(), self.context)
        if not names and not stale:
            return
        atomic_write(self._batch, json.dumps(names + stale + kept).encode(), parents=True)
        self.context.persist()
        for name in stale:
            self._tree.remove(name)

    def _noted(self) -> list[str]:
        """The files of the last batch, or of an earlier attempt at this one."""
        found: list[str] = json.loads(self._batch.read_text()) if self._batch.exists() else []
        return found

    def _without_earlier(self, file: WrittenFile, earlier: Sequence[str]) -> WrittenFile | None:
        """The file without the rows that an earlier attempt published, where its files stay."""
        if file.position not in self.context.shortened:
            return file
        published = [
            name
            for name in earlier
            if name.rpartition("/")[0] == file.directory and position_tag_of(name) == file.position
        ]
        part = self._unfinished(file)
        left = without_spans(part, published, self._is_there)
        if left.num_rows == part.num_rows:
            return file
        return self.writer().written(file.directory, left) if left.num_rows else None

    def _not_expired(self, files: Iterable[WrittenFile]) -> Iterator[WrittenFile]:
        """Yield the files of partitions that are not past their retention."""
        now_ns = self.context.clock.unix_ns()
        for file in files:
            if is_expired(file.directory, now_ns, self._settings.max_age_s):
                self.context.meter.count("left_out_expired", file.records)
            else:
                yield file

    def _without_merged(
        self, files: Sequence[WrittenFile], earlier: Sequence[str]
    ) -> list[WrittenFile]:
        """The files without the rows that merged files have."""
        merged = MergedRows(self._store, self.context.clock.unix_ns())
        paths = [f"{it.directory}/{self._stem(it)}.parquet" for it in files]
        merged.cancel_plans([*paths, *earlier])
        found = []
        for file, path in zip(files, paths, strict=True):
            if not merged.may_have(path):
                found.append(file)
                continue
            part = self._unfinished(file)
            left = merged.without(path, part)
            self.context.meter.count("already_there", part.num_rows - left.num_rows)
            if left.num_rows == part.num_rows:
                found.append(file)
            elif left.num_rows:
                found.append(self.writer().written(file.directory, left))
        return found

    def _unfinished(self, file: WrittenFile, columns: list[str] | None = None) -> pa.Table:
        """The rows of a file that is written aside."""
        with self._store.open(f"{self._tree.writing}/{file.fresh}") as found:
            return pq.read_table(found, columns=columns)

    def _is_there(self, name: str) -> bool:
        try:
            self._store.open(name).close()
        except FileNotFoundError:
            return False
        return True

    def _name_of(self, file: WrittenFile) -> str:
        """Return the path at which a file is published."""
        stem = self._stem(file)
        usual = f"{file.directory}/{stem}.parquet"
        if not self.context.of_dead_letters:
            return usual
        offsets = self._unfinished(file, ["offset"])["offset"].to_pylist()
        if self._is_there(usual) and _holds(self._store.open(usual), offsets):
            return usual
        return f"{file.directory}/{stem}.{digest_of(offsets)}.parquet"

    @staticmethod
    def _stem(file: WrittenFile) -> str:
        return f"{file.position}-{file.first:020d}-{file.last:020d}"


def _holds(file: BinaryIO, offsets: list[int]) -> bool:
    """Return whether the file has exactly the rows of these offsets."""
    try:
        with file, pq.ParquetFile(file) as parquet:
            if parquet.metadata.num_rows != len(offsets):
                return False
            found: list[int] = parquet.read(["offset"])["offset"].to_pylist()
            return found == offsets
    except (pa.ArrowException, OSError, KeyError):  # damaged, or another tool's
        return False


def stale_of_batch(
    names: Iterable[str], earlier: Iterable[str], context: SinkContext, prefix: str = ""
) -> tuple[list[str], list[str]]:
    """Return the files of `of_same_batch`: to be removed, and of partitions that lost records."""
    again = of_same_batch(names, earlier, context.starts, prefix)
    kept = [name for name in again if position_tag_of(name, prefix) in context.shortened]
    return [name for name in again if name not in kept], kept


def of_same_batch(
    names: Iterable[str], earlier: Iterable[str], starts: Mapping[str, int], prefix: str = ""
) -> list[str]:
    """Return the noted files that an earlier attempt at this batch made and this one does not.

    Each partition, and each generation of its records, is decided separately: a batch may read one
    again and another for the first time.

    Args:
        names: The batch's files; each ends in `-PARTITION-FIRST-LAST.parquet`, or has a
            hexadecimal digest before `.parquet`.
        earlier: Files of this batch or the one before it.
        starts: First offsets of the batch; empty if unknown: then all noted files count as of an
            earlier attempt if one of them is.
        prefix: Prefix of the names, before `SinkContext.position_tag`.
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


def is_of_batch(name: str, starts: Mapping[str, int], prefix: str = "") -> bool:
    """Return whether a file of this sink has records of a batch that begins at `starts`.

    Offsets are by `SinkContext.position_tag`, before which the names have the prefix.
    """
    last_part = name.rpartition("/")[2]
    if not last_part.startswith(prefix) or _NAME.fullmatch(last_part) is None:
        return False
    position, first, _ = _span(name)
    begin = starts.get(position.removeprefix(prefix))
    return begin is not None and first >= begin


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


def located_in(
    store: LakeStore, rows: pa.Table, partitioning: Partitioning, names: BatchNames, safe: str
) -> Sequence[Place]:
    """Return the file of a lake that has each row."""
    found = dict[RowPosition, Place]()
    for directory, records in records_by_directory(rows, partitioning, names, safe).items():
        spans = list(records.values())
        files = files_with(store, directory, spans)
        missing = [it for it in spans if it not in files]
        if missing:  # a batch of very many hours has them in the directory of none
            files |= files_with(store, shared_directory(directory), missing)
        gone = Gone(store.locate(directory))
        found |= {at: files.get(span, gone) for at, span in records.items()}
    return [found[at] for at in positions_of(rows)]


def position_tag_of(name: str, prefix: str = "") -> str:
    """Return `SinkContext.position_tag` of a file's records, by its name."""
    return _span(name)[0].removeprefix(prefix)


def _span(name: str) -> tuple[str, int, int]:
    found = _NAME.fullmatch(name.rpartition("/")[2])
    assert found is not None, name
    return found["partition"], int(found["first"]), int(found["last"])

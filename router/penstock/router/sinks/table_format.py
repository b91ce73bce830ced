"""Base of the sinks that append to a table of a lake: Delta's, Iceberg's.

A request is one commit of rows of any partitions of the log. With its rows the commit notes, for
each partition, the offset behind the last one that this sink has ever written (its *mark*). The
table's format makes both visible at once or neither, so of a row whose offset is at or behind the
mark it is certain that it is not in the table, and it is appended without a look. Of a row before
the mark that is not certain: it came again after a crash, is replayed, was a dead letter, or is
late because its request had failed and others went first. The table is asked which of those offsets
it has, and the others are appended.

So each record is there once, in whatever pieces and however late it comes again. What a changed
`where` of a route does to a batch that was committed: rows that it adds are appended, and those
that it does not want any more stay.

Spark's tasks write a batch's data files, and the driver makes all of them one commit, with the
marks. If their rows are not all behind the marks, or the commit fails, those files are part of no
version of the table: the tasks run once more and leave their rows to the driver, which delivers
them as requests. So it is with rows of a task that could not write them, or that have columns which
the table has not, or has of another type. While there is no table yet, the circuit is not closed,
or the table asks more of a writer than files (constraints, say), tasks write nothing.

The columns are those of the view `records`, and beside them `incarnation` (of the stream), `sink`
(JOB.SINK) and `date`. Several sinks may share a table; each sees its own rows only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pydantic import Field
from typing_extensions import override

from penstock.router.columns.run_length import runs
from penstock.router.delivery.batch_names import POSITION, BatchNames, in_log_order, positions_of
from penstock.router.delivery.result import DeliveryResult, Fault, Paused, Success, TooLarge
from penstock.router.job.settings import Seconds, Settings
from penstock.router.read.fetch import warn
from penstock.router.sinks.http.encode import row_key
from penstock.router.sinks.http.request_sink import (
    Faulty,
    Item,
    Request,
    RequestSink,
    Row,
    cut,
)
from penstock.router.sinks.http.settings import RequestBatch, RequestSettings
from penstock.router.sinks.sink import (
    GatheringWriter,
    Maintenance,
    Preview,
    SinkContext,
    TaskSink,
    WriteResult,
    as_json_lines,
)

POSITION_COLUMNS: Final = ("stream", "incarnation", "partition", "offset", "sink")
"""They come first in a new table: formats keep statistics of the first columns only."""

_SPAN_MAX: Final = 1_000_000
"""Offsets that are looked up at once: dead letters may lie far from each other."""


class TableMaintenance(Settings):
    """Settings of the maintenance that the format's own library does.

    Attributes:
        keep_hours: Hours after which snapshots, and files that only they have, are removed.
    """

    interval_s: Seconds = 3600.0
    keep_hours: Annotated[float, Field(ge=0, le=876_000, allow_inf_nan=False)] = 168.0


class LakeSettings(RequestSettings):
    """Settings of a sink that appends to a table of a lake."""

    create: bool = True
    partition_by: Annotated[
        tuple[Literal["date", "kind", "service", "stream"], ...], Field(max_length=4)
    ] = ("date",)
    new_columns: Literal["add", "leave_out"] = "add"
    timeout_s: Seconds = 60.0
    maintenance: TableMaintenance | None = None
    batch: RequestBatch = RequestBatch(max_records=100_000, max_bytes=64 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class SinkPartition:
    """A partition of the log, as one sink writes it."""

    sink: str
    stream: str
    stream_id: str
    partition: int

    @property
    def key(self) -> str:
        """Key of the mark in the table's metadata."""
        return f"penstock/{self.sink}/{self.stream}/{self.stream_id}/{self.partition}"


class LakeTable(Protocol):
    """A table as of its newest commit."""

    def committed_offset(self, sink_partition: SinkPartition, first: int) -> int | None:
        """The offset behind the last row of the place; may be None if no row is from `first` on."""
        ...

    def offsets(self, sink_partition: SinkPartition, first: int, last: int) -> pa.Array:
        """Return those offsets of the range, both ends included, that the table has."""
        ...

    def append(self, rows: pa.Table, committed_offsets: Mapping[SinkPartition, int]) -> None:
        """Commit rows and marks, together or not at all."""
        ...

    def files(self) -> "LakeFiles | None":
        """Writes data files that this version of the table can have; None: the library has to."""
        ...

    def append_files(
        self, files: Sequence[Any], committed_offsets: Mapping[SinkPartition, int]
    ) -> None:
        """Commit files that `LakeFiles.write` has written, and marks, together or not at all."""
        ...


class LakeFiles(Protocol):
    """Writes data files of a table, which no version of it has yet; it can be pickled.

    Two are equal if files of the one can be committed to the version of the table that the other is
    of.
    """

    schema: pa.Schema
    """The columns of the table."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """The errors that `write` raises where the store cannot be used."""
        ...

    def write(self, rows: pa.Table) -> Sequence[Any]:
        """Write rows with columns of `schema`; returns what `LakeTable.append_files` gets."""
        ...


@dataclass(frozen=True, slots=True)
class StagedRows(WriteResult):
    """The files that a task has written.

    Attributes:
        files: Their descriptions for `LakeTable.append_files`.
        spans: The first and the last offset of their rows, by partition.
    """

    files: tuple[Any, ...] = ()
    spans: Mapping[SinkPartition, tuple[int, int]] = field(default_factory=dict)
    records: int = 0


@dataclass(slots=True)
class LakeWriter(GatheringWriter):
    """The writer of one task.

    Attributes:
        files: Writes data files; None: all rows are left to `commit`.
        owner: JOB.SINK.
        leaves_out: Whether columns that the table does not have are left out.
    """

    files: LakeFiles | None
    names: BatchNames
    owner: str
    leaves_out: bool

    def close(self) -> StagedRows:
        """Write the rows, or leave them."""
        if not self._batches:
            return StagedRows()
        given = in_log_order(pa.Table.from_batches(self._batches))
        if self.files is None:
            return StagedRows(left=given)
        rows = lake_rows(given, self.names, self.owner)
        spans = {
            sink_partition: (mine["offset"][0].as_py(), mine["offset"][-1].as_py())
            for sink_partition, mine in rows_by_partition(rows)
        }
        schema = self.files.schema
        if self.leaves_out:
            rows = rows.select([name for name in rows.column_names if name in schema.names])
        rows = with_microseconds(rows)
        if any(
            it.name not in schema.names or it.type != schema.field(it.name).type
            for it in rows.schema
        ):
            return StagedRows(left=given)
        try:
            files = tuple(self.files.write(rows))
        except self.files.failures as error:
            warn(f"{self.owner}: rows are left to the driver: {type(error).__name__}: {error}")
            return StagedRows(left=given)
        return StagedRows(files, spans, rows.num_rows)


class LakeSink(RequestSink, TaskSink):
    """Appends rows to a table; a subclass knows its format."""

    columns = ("*",)
    paces_requests: ClassVar[bool] = False
    failures: tuple[type[Exception], ...]
    """Errors that the format's library raises."""
    _config: LakeSettings

    def __init__(self, config: LakeSettings, context: SinkContext) -> None:
        super().__init__(config, context)
        self._rows = pa.table({})
        self._files: LakeFiles | None = None
        self._wants_rows = False

    # What a sink of this kind says.

    def table_name(self) -> str:
        """Name of the table, for people."""
        raise NotImplementedError

    @override
    def place_of(self, row: Row) -> str | None:
        sink = f"{self.context.job}.{self.context.sink}"
        return row_key(self.table_name(), row, self.context, sink=sink)

    def newest(self, rows: pa.Table | None = None) -> LakeTable | None:
        """The table as of its newest commit.

        Args:
            rows: If there is no table, one is made for rows of this schema; None: then there is
                none.
        """
        raise NotImplementedError

    def known(self) -> LakeTable | None:
        """The table as it was seen last; None: it was not, or what was seen is in doubt."""
        raise NotImplementedError

    def classify_error(self, error: Exception) -> DeliveryResult:
        """Return the result of one of `failures`; rows of the request may or may not be stored."""
        raise NotImplementedError

    def tidy(self, settings: TableMaintenance) -> None:
        """Merge small files and expire snapshots, beside `write`, with its own connection.

        Raises:
            Exception: One of `failures`; it is tried again the next time.
        """
        raise NotImplementedError

    # What is the same for all.

    @override
    def maintenance(self) -> Maintenance | None:
        settings = self._config.maintenance
        if settings is None:
            return None
        return Maintenance(settings.interval_s, lambda _: self.tidy(settings))

    @override
    def write(self, rows: pa.Table) -> None:
        super().write(rows)
        self._rows = pa.table({})

    @override
    def begin(self) -> None:
        """Find out whether tasks can write files of the table."""
        self._files = None
        circuit = self._breaker.circuit
        if self._wants_rows or circuit.state != "closed" or circuit.reason is not None:
            return
        try:
            table = self.known() or self.newest()
        except self.failures:
            return  # the first request says so
        self._files = None if table is None else table.files()

    @override
    def writer(self) -> LakeWriter:
        context = self.context
        owner = f"{context.job}.{context.sink}"
        leaves_out = self._config.new_columns == "leave_out"
        return LakeWriter(self._files, context.names(), owner, leaves_out=leaves_out)

    @override
    def publish(self, results: Sequence[StagedRows]) -> bool:
        files = [file for it in results for file in it.files]
        if not files:
            return True
        try:
            table = self.newest()
            is_done = table is not None and self._append_files(table, files, results)
        except self.failures as error:
            self._log_failure(error)
            is_done = False
        self._wants_rows = not is_done
        return is_done

    def _append_files(
        self, table: LakeTable, files: Sequence[Any], results: Sequence[StagedRows]
    ) -> bool:
        """Commit the files, unless the table may have a row of them; return whether it was done."""
        marks = dict[SinkPartition, int]()
        for sink_partition, (first, last) in sorted(
            (span for it in results for span in it.spans.items()), key=lambda it: it[1]
        ):
            if sink_partition not in marks:
                mark = table.committed_offset(sink_partition, first)
                if mark is not None and first < mark:
                    return False
            marks[sink_partition] = last + 1
        if table.files() != self._files:
            return False
        table.append_files(files, marks)
        self.context.meter.count("commits")
        self.context.meter.count("files", len(files))
        return True

    def _log_failure(self, error: Exception) -> None:
        said = self.classify_error(error)
        structlog.get_logger().warning(
            "commit_failed", sink=self.context.sink, reason=str(getattr(said, "reason", said))
        )

    @override
    def commit(self, results: Sequence[StagedRows]) -> None:
        """Deliver the rows that tasks have left; what they have written is in the table."""
        self._wants_rows = False
        rows = [it.left for it in results if it.left is not None]
        left = in_log_order(pa.concat_tables(rows)) if rows else pa.table({})
        requests, faulty = self.to_requests(left) if rows else ([], [])
        self.deliver(left, requests, faulty, delivered=sum(it.records for it in results))
        self._rows = pa.table({})

    @override
    def to_requests(self, rows: pa.Table) -> tuple[list[Request], list[Faulty]]:
        """Cut the rows into as few requests as `batch` allows, across partitions of the log."""
        context = self.context
        self._rows = lake_rows(rows, context, f"{context.job}.{context.sink}")
        whole = rows.select(POSITION).to_pylist()
        sizes = pc.fill_null(pc.binary_length(rows.column("value")), 0).to_pylist()
        items = list(enumerate(Item(None, size) for size in sizes))
        chunks = cut(items, self._config.batch, self.empty_size)
        return [self._request("", chunk, whole) for chunk in chunks], []

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        rows = self._rows.take(list(request.rows))
        try:
            table = self.newest(rows)
            assert table is not None, "it is made"
            missing, committed_offsets = missing_rows(table, rows)
            if missing.num_rows:
                table.append(missing, committed_offsets)
                self.context.meter.count("commits")
        except self.failures as error:
            return self.classify_error(error)
        self.context.meter.count("already_there", rows.num_rows - missing.num_rows)
        return Success()

    @override
    def show(self, request: Request) -> Preview:
        rows = self._rows.take(list(request.rows))
        return Preview(f"append to {self.address}", rows.num_rows, as_json_lines(rows))


def lake_rows(rows: pa.Table, names: BatchNames, owner: str) -> pa.Table:
    """Rows of the view `records` as a table has them; the owner is JOB.SINK."""
    ids = [names.stream_id(*position) for position in positions_of(rows)]
    made = {
        "incarnation": pa.array(ids, pa.string()),
        "sink": pa.array([owner] * rows.num_rows, pa.string()),
        "date": pc.cast(rows.column("time"), pa.date32()),
    }
    for name, values in made.items():
        rows = rows.append_column(name, values)
    others = [name for name in rows.column_names if name not in POSITION_COLUMNS]
    return rows.select([*POSITION_COLUMNS, *others])


def with_microseconds(rows: pa.Table) -> pa.Table:
    """Rows with times in microseconds, the finest that Delta has, and Iceberg before version 3."""
    for number, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            kind = pa.timestamp("us", tz=column.type.tz)
            times = pc.cast(rows.column(number), kind, safe=False)
            rows = rows.set_column(number, column.name, times)
    return rows


def by_values(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Rows by their values of some columns, each group in its order."""
    if not columns:
        yield {}, rows
        return
    numbers = pa.array(range(rows.num_rows), pa.int64())
    groups = rows.select(columns).append_column("_row", numbers).group_by(list(columns))
    for found in groups.aggregate([("_row", "list")]).to_pylist():
        yield {name: found[name] for name in columns}, rows.take(sorted(found["_row_list"]))


def missing_rows(table: LakeTable, rows: pa.Table) -> tuple[pa.Table, dict[SinkPartition, int]]:
    """The rows that the table does not have, and the marks to be noted with them."""
    wanted = []
    committed_offsets: dict[SinkPartition, int] = {}
    for sink_partition, mine in rows_by_partition(rows):
        offsets = mine.column("offset")
        first, last = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
        committed_offset = table.committed_offset(sink_partition, first)
        if committed_offset is not None and first < committed_offset:
            there = _there(
                table, sink_partition, [it for it in offsets.to_pylist() if it < committed_offset]
            )
            new = mine.filter(pc.invert(pc.is_in(offsets, value_set=there)))
        else:
            new = mine
        if new.num_rows:
            wanted.append(new)
            committed_offsets[sink_partition] = max(last + 1, committed_offset or 0)
    return pa.concat_tables(wanted) if wanted else rows.slice(0, 0), committed_offsets


def _there(table: LakeTable, sink_partition: SinkPartition, offsets: Sequence[int]) -> pa.Array:
    """Return which of the offsets, in order, the table has; others in between may be included."""
    found, begin = [], 0
    for end in range(1, len(offsets) + 1):
        if end == len(offsets) or offsets[end] - offsets[begin] >= _SPAN_MAX:
            found.append(table.offsets(sink_partition, offsets[begin], offsets[end - 1]))
            begin = end
    return pa.concat_arrays(found)


def end_of(batches: Iterable[pa.RecordBatch]) -> int | None:
    """Return the offset behind the last of some rows, in any order; None: there is none."""
    lasts = (pc.max(it.column("offset")).as_py() for it in batches if it.num_rows)
    last = max(lasts, default=None)
    return None if last is None else int(last) + 1


def classify_status(status: int, said: str, fault: Fault) -> DeliveryResult | None:
    """Return the result for the rows of a commit by the store's answer; None: it does not tell.

    The status is that of HTTP, or 0.
    """
    if status == 413 or "EntityTooLarge" in said:
        return TooLarge(fault)
    if 300 <= status < 500 and status not in (408, 409, 425, 429):
        return Paused(fault.reason)
    return None


def rows_by_partition(rows: pa.Table) -> Sequence[tuple[SinkPartition, pa.Table]]:
    """Rows in the order of the log, by partition."""
    names = ["sink", "stream", "incarnation", "partition"]
    found = runs(rows, names)
    begins = pa.array([begin for begin, _ in found], pa.int64())
    sink_partitions = rows.select(names).take(begins).to_pylist()
    return [
        (SinkPartition(*(sink_partition[name] for name in names)), rows.slice(begin, end - begin))
        for (begin, end), sink_partition in zip(found, sink_partitions, strict=True)
    ]

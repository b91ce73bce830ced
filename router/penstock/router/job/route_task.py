"""The steps from a batch's rows to a sink, in the driver or in a task of Spark.

`RouteSteps` separates records from malformed rows, and applies the transforms of routes.
`RouteTask` is what a task of Spark runs for one sink: it unpacks the source's rows, applies these
steps, and gives the rows to the sink's writer. `SharedTask` does so for several sinks that read
together.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns, thread_time_ns
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.columns.json_objects import read_object
from penstock.router.columns.passthrough import Unpacking, lost_of, unpack_for_each, whole_values
from penstock.router.columns.schema import MARKS, RAW_KIND
from penstock.router.deadletters.writer import MALFORMED_COLUMNS
from penstock.router.delivery.batch_names import in_log_order, positions_of
from penstock.router.read.offsets import StreamPartition
from penstock.router.sinks.http.encode import time_problem
from penstock.router.sinks.sink import Originals, Writer, WriteResult
from penstock.router.transforms import Chain
from penstock.router.transforms.chain import Followed, Transformed
from penstock.router.transforms.sql import SQL_COLUMN

ROUTE_COLUMN = "_route"
"""The number of the route that leads a row to its sink; `unmatched` comes after the last."""

SUBJECT: Final = "subject"

_TIMES: Final = frozenset({"time", "timestamp_ns", "kind", "value"})


@dataclass(frozen=True, slots=True)
class Prepared:
    """The rows of a batch, or of some of them, after transforms.

    Attributes:
        rows: Rows for the sink.
        malformed: Rows that are no records, if these are dead letters.
        refused: Rows that a transform could not process, unchanged.
        originals: The rows before transforms; None: there were none.
        counts: Increments of the sink's counters.
    """

    rows: pa.Table
    malformed: pa.Table
    refused: pa.Table
    originals: pa.Table | None
    counts: Mapping[str, int]


class RouteSteps:
    """The steps on the way to one sink; they can be pickled, unless `keeps_state`.

    Args:
        columns: Columns for the sink.
        gets_every: Whether it gets every column, those that transforms add, too.
        chains: Transforms, by the number of their route.
        sends_malformed_to_dlq: Whether rows that are no records are dead letters.
    """

    def __init__(
        self,
        columns: Sequence[str],
        chains: Mapping[int, Chain],
        *,
        gets_every: bool,
        sends_malformed_to_dlq: bool,
    ) -> None:
        self._columns = list(columns)
        self._chains = chains
        self._gets_every = gets_every
        self._sends_malformed_to_dlq = sends_malformed_to_dlq

    @property
    def columns(self) -> list[str]:
        """The columns that a batch must have."""
        more = set().union(*(chain.columns for chain in self._chains.values()))
        if self._sends_malformed_to_dlq:
            more |= MALFORMED_COLUMNS
        route = [ROUTE_COLUMN] if self._chains else []
        return [*self._columns, *sorted(more - set(self._columns)), *route]

    @property
    def keeps_state(self) -> bool:
        """True if a transform needs all batches, one after the other, in one process."""
        return any(chain.keeps_state for chain in self._chains.values())

    def prepare(self, rows: pa.Table, batch: int) -> Prepared:
        """Do the steps to the rows of a batch.

        Raises:
            ConfigError: What became of rows that come again must be known, and is not.
        """
        rows, malformed = self.divide(rows)
        counts = Counter({"malformed": malformed.num_rows})
        counts.update(_times_replaced(rows))
        if not self._chains or not rows.num_rows:
            kept = rows.drop_columns([it for it in rows.column_names if it not in self._columns])
            return Prepared(kept, malformed, rows.slice(0, 0), None, +counts)
        done = self.transform(rows, batch)
        counts.update({f"left_out_{verb}": count for verb, count in done.left_out.items()})
        return Prepared(done.rows, malformed, done.refused, rows, +counts)

    def divide(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the rows for transforms, and malformed ones if these become dead letters."""
        if not self._sends_malformed_to_dlq:
            return rows, rows.slice(0, 0)
        is_record = pc.is_null(rows.column("malformed_reason"))
        malformed = rows.filter(pc.invert(is_record)).select(sorted(MALFORMED_COLUMNS))
        if malformed.num_rows:
            rows = rows.filter(is_record)
        if not self._chains:
            return rows.select(self._columns), malformed
        return rows.drop_columns(list(MARKS)), malformed

    def transform(
        self,
        rows: pa.Table,
        batch: int,
        *,
        changed: dict[int, list[tuple[str, int]]] | None = None,
    ) -> Transformed:
        """Apply the transforms of routes to rows that are numbered by route.

        `changed` receives, by route, the counts of `Chain.apply` for each step.
        """
        rows = in_log_order(rows)
        numbers = rows.column(ROUTE_COLUMN)
        rows = rows.drop_columns([ROUTE_COLUMN])
        parts, refused, left_out = [], [rows.slice(0, 0)], Counter[str]()
        for number in pc.unique(numbers).to_pylist():
            part = rows.filter(pc.equal(numbers, number))
            if (chain := self._chains.get(number)) is None:
                parts.append(part)
                continue
            counts = None if changed is None else changed.setdefault(number, [])
            done = chain.apply(part, batch, counts)
            parts.append(done.rows)
            refused.append(done.refused)
            left_out.update(done.left_out)
        kept = self._for_sink(in_log_order(pa.concat_tables(parts)))
        return Transformed(kept, pa.concat_tables(refused), dict(left_out))

    def follow(self, rows: pa.Table) -> dict[int, Followed]:
        """Do the transforms of routes to rows that are numbered by route; see `Chain.follow`.

        Args:
            rows: Rows with at least `columns`; none of them becomes a dead letter as malformed.

        Returns:
            The result by the route's number; of a route without transforms all rows are kept.
        """
        rows = in_log_order(rows)
        numbers = rows.column(ROUTE_COLUMN)
        found = {}
        for number in pc.unique(numbers).to_pylist():
            part = rows.filter(pc.equal(numbers, number))
            chain = self._chains.get(number)
            needed = [it for it in self.columns if it != ROUTE_COLUMN]
            kept, _ = self.divide(part.select(needed))
            if chain is None:
                done = Followed(kept, positions_of(part), set(), {}, set())
            else:
                done = chain.follow(kept)
            found[number] = replace(done, rows=self._for_sink(done.rows))
        return found

    def _for_sink(self, rows: pa.Table) -> pa.Table:
        if SQL_COLUMN in rows.column_names:
            rows = rows.drop_columns([SQL_COLUMN])
        return rows if self._gets_every else rows.select(self._columns)


def _times_replaced(rows: pa.Table) -> Counter[str]:
    """Counts the records whose column `time` is the log's, for want of one that can be.

    Sinks without that column take the time out of the record, and count for themselves.
    """
    found = Counter[str]()
    if not _TIMES.issubset(rows.column_names) or not rows.num_rows:
        return found
    log_us = pc.divide(rows.column("timestamp_ns"), 1000)
    is_log = pc.equal(rows.column("time").cast(pa.int64()), log_us)
    maybe = rows.filter(pc.and_(is_log, pc.not_equal(rows.column("kind"), RAW_KIND)))
    for value in maybe.column("value").to_pylist():
        record = None if value is None else read_object(value)
        if record is None or "kind" not in record:
            continue
        if (reason := time_problem(record.get("time_unix_nano"))) is not None:
            found[f"time_replaced_{reason}"] += 1
    return found


def holds_others(rows: pa.Table, own: frozenset[str]) -> bool:
    """Return whether any row has a subject other than these."""
    subjects = pc.unique(rows.column(SUBJECT)).to_pylist()
    return not own.issuperset(it.decode() if isinstance(it, bytes) else it for it in subjects)


def bytes_of(rows: pa.Table) -> int:
    """The records' own bytes, as far as the sink gets them."""
    at = rows.schema.get_field_index("value")
    if at < 0:
        return int(rows.nbytes)
    return int(pc.sum(pc.binary_length(rows.column(at))).as_py() or 0)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task.

    Attributes:
        routed: Rows that routes lead to the sink.
        lost: Offsets that were skipped because their records are gone or damaged.
        holds_others: Whether there were rows of other subjects than `RouteTask.own_subjects`.
        records: Rows that the writer received.
        size: The records' own bytes.
        counts: Increments of the sink's counters.
        malformed: Rows that are no records, if these are dead letters; None: there are none.
        refused: Rows that a transform could not process, unchanged; None: there are none.
        originals: The rows that the writer left to `commit`, before transforms; None: there are
            none, or they are the same.
        written: The writer's own result.
        waited_ns: Nanoseconds for which the task waited for the writer's end, and did not work.
        took_ns: Nanoseconds of the whole task, if several sinks shared it.
    """

    routed: int
    lost: int
    holds_others: bool
    records: int
    size: int
    counts: Mapping[str, int]
    malformed: pa.Table | None
    refused: pa.Table | None
    originals: pa.Table | None
    written: WriteResult
    waited_ns: int = 0
    took_ns: int = 0


@dataclass(frozen=True, slots=True)
class RoutePart:
    """One sink's part of a task; it can be pickled.

    Attributes:
        steps: On the way to the sink.
        writer: The sink's.
        batch: The batch's number.
        own_subjects: Subjects of Penstock's own spans; None: nothing is compared.
        begins: Where the sink's part of a partition begins, if the task reads earlier offsets, too.
    """

    steps: RouteSteps
    writer: Writer
    batch: int
    own_subjects: frozenset[str] | None
    begins: Mapping[StreamPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouteTask:
    """One task of a batch for one sink; it can be pickled.

    Attributes:
        unpacking: Description of how to unpack the rows.
        part: What is done with them.
    """

    unpacking: Unpacking
    part: RoutePart

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """Bring what Spark has in a task to the writer."""
        lost, work = 0, _PartInWork(self.part)
        for packed in self.unpacking.tables(batches):
            lost += lost_of(packed)
            work.take(self.unpacking.rows(packed))
        return work.result(lost)


class LogRows(Protocol):
    """The rows of a task that reads the log itself."""

    @property
    def lost(self) -> int:
        """Offsets that are lost; known when all rows have come."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read them."""
        ...


@dataclass(frozen=True, slots=True)
class TaskDelivery:
    """What a task that reads the log itself does for one sink; it can be pickled.

    Attributes:
        route: Number of the route that takes every record.
        columns: The columns that the sink's part gets, `ROUTE_COLUMN` among them where it does.
        part: What is done with the rows.
    """

    route: int
    columns: tuple[str, ...]
    part: RoutePart

    def rows(self, batch: pa.RecordBatch) -> pa.Table:
        """The sink's columns of rows that were read."""
        rows = pa.Table.from_batches([batch])
        if ROUTE_COLUMN in self.columns:
            number = pa.repeat(pa.scalar(self.route, pa.int32()), rows.num_rows)
            rows = rows.append_column(ROUTE_COLUMN, number)
        return rows.select(list(self.columns))


@dataclass(frozen=True, slots=True)
class DeliverTask:
    """One task of a batch for one sink, which reads the log itself; it can be pickled."""

    delivery: TaskDelivery

    def __call__(self, read: LogRows) -> TaskResult:
        """Bring what the task reads to the writer."""
        work = _PartInWork(self.delivery.part)
        for batch in read:
            work.take(self.delivery.rows(batch))
        return work.result(read.lost)


@dataclass(frozen=True, slots=True)
class PartFailure:
    """A sink's part of a task has failed; the others' have not for that.

    Attributes:
        reason: The error, for people.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class SharedTask:
    """One task of a batch for several sinks, which reads and unpacks it once; it can be pickled.

    Attributes:
        schema: Schema of the columns that go past Spark.
        columns: For each sink, the columns that it gets.
        parts: For each sink by the column of its verdict, what is done with its rows.
    """

    schema: pa.Schema
    columns: tuple[tuple[str, ...], ...]
    parts: Mapping[str, RoutePart]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> list[TaskResult | PartFailure]:
        """Return the result of each part, in their order."""
        lost, begun_ns = 0, perf_counter_ns()
        works: list[_PartInWork | PartFailure] = [*map(_PartInWork, self.parts.values())]
        for packed in whole_values(batches):
            lost += lost_of(packed)
            tables = unpack_for_each(packed, list(self.parts), self.schema, ROUTE_COLUMN)
            for at, (rows, columns) in enumerate(zip(tables, self.columns, strict=True)):
                works[at] = _advanced(works[at], rows.select(list(columns)))
        return _results(works, lost, begun_ns)


@dataclass(frozen=True, slots=True)
class SharedDeliverTask:
    """One task of a batch for several sinks, which reads the log itself; it can be pickled."""

    deliveries: tuple[TaskDelivery, ...]

    def __call__(self, read: LogRows) -> list[TaskResult | PartFailure]:
        """Return the result of each part, in their order."""
        begun_ns = perf_counter_ns()
        works: list[_PartInWork | PartFailure] = [_PartInWork(it.part) for it in self.deliveries]
        for batch in read:
            for at, delivery in enumerate(self.deliveries):
                works[at] = _advanced(works[at], delivery.rows(batch))
        return _results(works, read.lost, begun_ns)


class _PartInWork:
    """One sink's part while its task runs."""

    def __init__(self, part: RoutePart) -> None:
        self._part = part
        self._others = False
        self._routed = self._records = self._size = self._waited_ns = 0
        self._counts = Counter[str]()
        self._malformed = list[pa.Table]()
        self._refused = list[pa.Table]()
        self._originals = list[pa.Table]()

    def take(self, rows: pa.Table) -> None:
        """Bring rows that routes lead to the sink to its writer."""
        part = self._part
        rows = _behind(rows, part.begins)
        self._routed += rows.num_rows
        if part.own_subjects is not None and not self._others:
            self._others = holds_others(rows, part.own_subjects)
        prepared = part.steps.prepare(rows, part.batch)
        self._counts.update(prepared.counts)
        self._malformed += [prepared.malformed] if prepared.malformed.num_rows else []
        self._refused += [prepared.refused] if prepared.refused.num_rows else []
        self._originals += [] if prepared.originals is None else [prepared.originals]
        self._records += prepared.rows.num_rows
        self._size += bytes_of(prepared.rows)
        for batch in prepared.rows.to_batches():
            part.writer.write(batch)

    def result(self, lost: int) -> TaskResult:
        """Return the result; no more rows come."""
        begun = perf_counter_ns(), thread_time_ns()
        written = self._part.writer.close()
        waited_ns = (perf_counter_ns() - begun[0]) - (thread_time_ns() - begun[1])
        return TaskResult(
            self._routed, lost, self._others, self._records, self._size, self._counts,
            pa.concat_tables(self._malformed) if self._malformed else None,
            pa.concat_tables(self._refused) if self._refused else None,
            _originals_of(written.left, self._originals),
            written,
            waited_ns,
        )  # fmt: skip


def _advanced(work: _PartInWork | PartFailure, rows: pa.Table) -> _PartInWork | PartFailure:
    if isinstance(work, PartFailure):
        return work
    try:
        work.take(rows)
    except Exception as error:  # noqa: BLE001 - whatever a sink raises is that sink's, and told
        return PartFailure(_told(error))
    return work


def _results(
    works: Sequence[_PartInWork | PartFailure], lost: int, begun_ns: int
) -> list[TaskResult | PartFailure]:
    done = [_finished(work, lost) for work in works]
    took_ns = perf_counter_ns() - begun_ns
    return [it if isinstance(it, PartFailure) else replace(it, took_ns=took_ns) for it in done]


def _finished(work: _PartInWork | PartFailure, lost: int) -> TaskResult | PartFailure:
    if isinstance(work, PartFailure):
        return work
    try:
        return work.result(lost)
    except Exception as error:  # noqa: BLE001 - as above
        return PartFailure(_told(error))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _behind(rows: pa.Table, begins: Mapping[StreamPartition, int]) -> pa.Table:
    """The rows of these partitions from the offsets on, and all rows of others."""
    for (stream, partition), begin in begins.items():
        is_before = pc.and_(
            pc.and_(
                pc.equal(rows.column("stream"), stream),
                pc.equal(rows.column("partition"), partition),
            ),
            pc.less(rows.column("offset"), begin),
        )
        rows = rows.filter(pc.invert(is_before))
    return rows


def _originals_of(left: pa.Table | None, originals: Sequence[pa.Table]) -> pa.Table | None:
    if left is None or not originals:
        return None
    known = Originals()
    known.table = pa.concat_tables(originals)
    return known.of(left)

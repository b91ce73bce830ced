"""From a batch to a sink: the routes' transforms, the sink's pace, and what must be laid aside."""

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.columns.json_objects import NESTED_MAX, read_object
from penstock.router.columns.schema import MARKS, RAW_KIND, view
from penstock.router.deadletters.writer import (
    MALFORMED_COLUMNS,
    Reason,
    send_malformed_to_dlq,
    send_to_dlq,
)
from penstock.router.delivery.rate_limiter import RateLimiter
from penstock.router.job.config import JobConfig
from penstock.router.sinks import Sink, SinkContext
from penstock.router.sinks.http.encode import time_problem
from penstock.router.transforms import Again, Chain
from penstock.router.transforms.chain import in_log_order

_EVERY = tuple(it.name for it in view("records").columns if it.name not in MARKS)
"""What a sink gets that names no columns."""

_TIMES = frozenset({"time", "timestamp_ns", "kind", "value"})

ROUTE_COLUMN = "_route"
"""The number of the route that leads a row to its sink; `unmatched` comes after the last."""

_NOT_A_RECORD = Reason(
    code="not_a_record",
    text="the route's transforms need a JSON object with a record's fields, in which no more than"
    f" {NESTED_MAX} objects and lists are inside each other",
)


class BatchWriter:
    """Feeds one sink.

    Args:
        job: The job.
        sink: The sink, open.
        context: What the sink got.
        again: Rows were delivered before.

    Raises:
        ConfigError: A file that a transform needs cannot be used.
    """

    def __init__(
        self, job: JobConfig, sink: Sink, context: SinkContext, *, again: Again | None = None
    ) -> None:
        self._sink = sink
        self._context = context
        self._sends_malformed_to_dlq = job.sends_malformed_to_dlq
        self._columns = list(_EVERY if sink.columns == ("*",) else sink.columns)
        self._chains = {
            index: Chain(
                steps,
                context.state_dir / f"dedupe.{job.route_name(index)}",
                key_path=f"{job.route_key(index)}.transforms",
                stream_id=context.stream_id,
                again=again,
            )
            for index, steps in job.transforms_to(context.sink).items()
        }
        limit = job.sinks[context.sink].rate_limit
        self._rate_limiter = RateLimiter(
            records_per_s=limit.records_per_s,
            bytes_per_s=limit.bytes_per_s,
            now_ns=context.clock.monotonic_ns(),
        )

    @property
    def columns(self) -> list[str]:
        """The columns that a batch must have."""
        more = set().union(*(chain.columns for chain in self._chains.values()))
        if self._sends_malformed_to_dlq:
            more |= MALFORMED_COLUMNS
        route = [ROUTE_COLUMN] if self._chains else []
        return [*self._columns, *sorted(more - set(self._columns)), *route]

    def needs(self, column: str) -> bool:
        """Whether the sink cannot do without it."""
        return column in self._sink.columns

    def give(self, rows: pa.Table, batch: int) -> None:
        """Bring the rows of one batch, perhaps none, where they belong.

        Raises:
            ConfigError: What became of rows that come again must be known, and is not.
            StoppedError: The job ends and the batch is not finished.
        """
        self._context.originals.table = None  # else that of the batch before
        rows, malformed = self.divide(rows)
        if malformed.num_rows:
            self._context.meter.count("malformed", malformed.num_rows)
            send_malformed_to_dlq(malformed, self._context)
        self._count_times(rows)
        if self._chains and rows.num_rows:
            self._context.originals.table = rows
            rows = self.transform(rows, batch)
        if not rows.num_rows:
            self._tell("write_nothing")
            return
        clock = self._context.clock
        while (pause_ns := self._rate_limiter.wait_ns(clock.monotonic_ns())) > 0:
            self._context.meter.count("paced_ms", pause_ns // 1_000_000)
            self._context.wait(pause_ns / 1e9)
        self._rate_limiter.book(
            records=rows.num_rows, size=_bytes_of(rows), now_ns=clock.monotonic_ns()
        )
        self._sink.write(rows)

    def _count_times(self, rows: pa.Table) -> None:
        """Count the records whose column `time` is the log's, for want of one that can be.

        Sinks without that column take the time out of the record, and count for themselves.
        """
        if not _TIMES.issubset(rows.column_names) or not rows.num_rows:
            return
        log_us = pc.divide(rows.column("timestamp_ns"), 1000)
        is_log = pc.equal(rows.column("time").cast(pa.int64()), log_us)
        maybe = rows.filter(pc.and_(is_log, pc.not_equal(rows.column("kind"), RAW_KIND)))
        for value in maybe.column("value").to_pylist():
            record = None if value is None else read_object(value)
            if record is None or "kind" not in record:
                continue
            if (reason := time_problem(record.get("time_unix_nano"))) is not None:
                self._context.meter.count(f"time_replaced_{reason}")

    def start_over(self) -> None:
        """What comes next repeats nothing of the batch before."""
        self._tell("start_over")

    def go_on(self) -> None:
        """What comes next may repeat what an earlier process had of the same replay in work."""
        self._tell("go_on" if hasattr(self._sink, "go_on") else "start_over")

    def _tell(self, what: str) -> None:
        """Call a method that a sink which does not derive from `Sink` may lack."""
        method = getattr(self._sink, what, None)
        if method is not None:
            method()

    def divide(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The rows to go on with, and those that are no records, if these are to be laid aside."""
        if not self._sends_malformed_to_dlq:
            return rows, rows.slice(0, 0)
        is_record = pc.is_null(rows.column("malformed_reason"))
        malformed = rows.filter(pc.invert(is_record)).select(sorted(MALFORMED_COLUMNS))
        if malformed.num_rows:
            rows = rows.filter(is_record)
        if not self._chains:
            return rows.select(self._columns), malformed
        return rows.drop_columns(list(MARKS)), malformed

    def close(self) -> None:
        """Close the sink; no batch is in work."""
        self._sink.close()

    def transform(
        self,
        rows: pa.Table,
        batch: int,
        *,
        send_refused_to_dlq: bool = True,
        changed: dict[int, list[tuple[str, int]]] | None = None,
    ) -> pa.Table:
        """What the sink gets of a batch whose rows are numbered by route.

        `changed` gets, by route, what `Chain.apply` says of its steps.
        """
        rows = in_log_order(rows)
        numbers = rows.column(ROUTE_COLUMN)
        rows = rows.drop_columns([ROUTE_COLUMN])
        parts = []
        for number in pc.unique(numbers).to_pylist():
            part = rows.filter(pc.equal(numbers, number))
            if (chain := self._chains.get(number)) is None:
                parts.append(part)
                continue
            counts = None if changed is None else changed.setdefault(number, [])
            done = chain.apply(part, batch, counts)
            parts.append(done.rows)
            for verb, count in done.left_out.items():
                self._context.meter.count(f"left_out_{verb}", count)
            if done.refused.num_rows and send_refused_to_dlq:
                send_to_dlq(done.refused, _NOT_A_RECORD, self._context)
        rows = in_log_order(pa.concat_tables(parts))
        return rows if self._sink.columns == ("*",) else rows.select(self._columns)


def _bytes_of(rows: pa.Table) -> int:
    """The records' own bytes, as far as the sink gets them."""
    at = rows.schema.get_field_index("value")
    if at < 0:
        return int(rows.nbytes)
    return int(pc.sum(pc.binary_length(rows.column(at))).as_py() or 0)

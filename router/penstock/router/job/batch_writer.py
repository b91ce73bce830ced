"""The way of a batch to a sink: transforms of routes, rate limit, dead letters."""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from penstock.router.columns.json_objects import NESTED_MAX
from penstock.router.columns.schema import MARKS, view
from penstock.router.deadletters.writer import Reason, send_malformed_to_dlq, send_to_dlq
from penstock.router.delivery.rate_limiter import ONE_TASK, Parallelism, RateLimiter
from penstock.router.job.config import JobConfig
from penstock.router.job.route_task import RoutePart, RouteSteps, TaskResult, bytes_of
from penstock.router.read.offsets import StreamPartition
from penstock.router.sinks import Sink, SinkContext, TaskSink, Writer
from penstock.router.sinks.sink import LeftRows, RowsWriter
from penstock.router.transforms import Again, Chain

_EVERY = tuple(it.name for it in view("records").columns if it.name not in MARKS)
"""Columns that a sink receives if it names none."""

_NOT_A_RECORD = Reason(
    code="not_a_record",
    text="the route's transforms need a JSON object with a record's fields, in which no more than"
    f" {NESTED_MAX} objects and lists are inside each other",
)


def route_steps(
    job: JobConfig, sink: Sink, context: SinkContext, *, again: Again | None = None
) -> RouteSteps:
    """Return the steps on the way to a sink.

    Args:
        job: The job.
        sink: The sink.
        context: Context of the sink; transforms keep their state in its directory.
        again: Rows were delivered before.

    Raises:
        ConfigError: A file that a transform needs cannot be used.
    """
    chains = {
        index: Chain(
            steps,
            context.state_dir / f"dedupe.{job.route_name(index)}",
            key_path=f"{job.route_key(index)}.transforms",
            stream_id=context.stream_id,
            again=again,
        )
        for index, steps in job.transforms_to(context.sink).items()
    }
    gets_every = sink.columns == ("*",)
    return RouteSteps(
        _EVERY if gets_every else sink.columns,
        chains,
        gets_every=gets_every,
        sends_malformed_to_dlq=job.sends_malformed_to_dlq,
    )


class BatchWriter:
    """Feeds one sink.

    Args:
        job: The job.
        sink: The sink, open.
        context: Context of the sink.
        again: Rows were delivered before.

    Attributes:
        is_limited: Whether the sink has a rate limit.

    Raises:
        ConfigError: A file that a transform needs cannot be used.
    """

    def __init__(
        self, job: JobConfig, sink: Sink, context: SinkContext, *, again: Again | None = None
    ) -> None:
        self._sink = sink
        self._context = context
        self.steps = route_steps(job, sink, context, again=again)
        limit = job.sinks[context.sink].rate_limit
        self.is_limited = limit.is_set
        of_sink: RateLimiter | None = getattr(sink, "rate_limiter", None)
        self._paces_batches = of_sink is None
        self._rate_limiter = of_sink or limit.limiter(context.clock.monotonic_ns())

    def needs(self, column: str) -> bool:
        return column in self._sink.columns

    def give(self, rows: pa.Table, batch: int) -> None:
        """Bring the rows of one batch, perhaps none, where they belong.

        Raises:
            ConfigError: What became of rows that come again must be known, and is not.
            StoppedError: The job ends and the batch is not finished.
        """
        prepared = self.steps.prepare(rows, batch)
        self._context.originals.table = None  # else that of the batch before
        if prepared.malformed.num_rows:
            send_malformed_to_dlq(prepared.malformed, self._context)
        self._context.originals.table = prepared.originals
        if prepared.refused.num_rows:
            send_to_dlq(prepared.refused, _NOT_A_RECORD, self._context)
        self._count([prepared.counts])
        if prepared.rows.num_rows:
            self._wait_for_turn()
            self._book(prepared.rows.num_rows, bytes_of(prepared.rows))
        self._sink.write(prepared.rows)

    @property
    def writes_in_tasks(self) -> bool:
        """True if tasks write; else the driver must, for the sink or a transform keeps state."""
        return isinstance(self._sink, TaskSink) and not self.steps.keeps_state

    @property
    def may_share(self) -> bool:
        """True if the sink can get its rows by tasks that other sinks share."""
        shares = isinstance(self._sink, TaskSink) and self._sink.shares_tasks
        return shares and self.writes_in_tasks and not self.keeps_order and not self.is_limited

    def part(
        self,
        batch: int,
        own_subjects: frozenset[str] | None,
        begins: Mapping[StreamPartition, int] | None = None,
        *,
        is_recut: bool = False,
        parallelism: Parallelism = ONE_TASK,
    ) -> RoutePart | None:
        """Return the sink's part of the tasks of a batch, to be committed afterwards.

        Args:
            batch: The batch's number.
            own_subjects: The same as in `RoutePart`.
            begins: Likewise, of tasks that other sinks share; None: no other shares them.
            is_recut: Whether tasks cut the batch elsewhere than its first ones did. The destination
                may know those by what they sent, so the rows are cut as then, in the driver.
            parallelism: How the tasks run, between which a rate limit is divided.

        Returns:
            None: it does not write in tasks.

        Raises:
            StoppedError: The job ends before it is the sink's turn.
        """
        if not self.writes_in_tasks:
            return None
        assert isinstance(self._sink, TaskSink)
        self._wait_for_turn()
        self._sink.begin()
        if not self._paces_batches:
            now_ns = self._context.clock.monotonic_ns()
            self._sink.share = self._rate_limiter.lend(parallelism, now_ns)
        if is_recut:
            writer: Writer = RowsWriter()
        else:
            writer = self._sink.writer() if begins is None else self._sink.shared_writer()
        return RoutePart(self.steps, writer, batch, own_subjects, begins or {})

    @property
    def publishes_in_tasks(self) -> bool:
        """True if the destination may have records of a batch before its `commit`."""
        return isinstance(self._sink, TaskSink) and self._sink.publishes_in_tasks

    @property
    def keeps_order(self) -> bool:
        """True if one task must process all rows that a batch has of a partition."""
        return isinstance(self._sink, TaskSink) and self._sink.keeps_order

    def publish(self, results: Sequence[TaskResult]) -> bool:
        """Make seen what tasks have put aside; False: another `task` has to be run, as a whole."""
        assert isinstance(self._sink, TaskSink), "who gives a task publishes"
        written = [it.written for it in results if not isinstance(it.written, LeftRows)]
        return self._sink.publish(written)

    def commit(self, results: Sequence[TaskResult]) -> None:
        """Finish a batch that tasks have written.

        Raises:
            StoppedError: The job ends and the batch is not finished.
        """
        assert isinstance(self._sink, TaskSink), "who gives a task commits"
        self._context.originals.table = None  # else that of the batch before
        malformed = [it.malformed for it in results if it.malformed is not None]
        refused = [it.refused for it in results if it.refused is not None]
        if malformed:
            send_malformed_to_dlq(pa.concat_tables(malformed), self._context)
        if refused:
            send_to_dlq(pa.concat_tables(refused), _NOT_A_RECORD, self._context)
        self._count(it.counts for it in results)
        self._book(sum(it.records for it in results), sum(it.size for it in results))
        originals = [it.originals for it in results if it.originals is not None]
        if originals:
            self._context.originals.table = pa.concat_tables(originals)
        written = [it.written for it in results]
        left = [it.left for it in written if isinstance(it, LeftRows) and it.left is not None]
        if left:
            self._sink.write(pa.concat_tables(left))
        else:
            self._sink.commit([it for it in written if not isinstance(it, LeftRows)])

    def _count(self, counts: Iterable[Mapping[str, int]]) -> None:
        for each in counts:
            for what, number in each.items():
                self._context.meter.count(what, number)

    def _wait_for_turn(self) -> None:
        """Wait until the sink's rate limit admits a batch."""
        clock = self._context.clock
        while (pause_ns := self._rate_limiter.wait_ns(clock.monotonic_ns())) > 0:
            self._context.wait_for_rate(pause_ns)

    def _book(self, records: int, size: int) -> None:
        """Take down what the batches after this one wait for, unless the sink does."""
        if not self._paces_batches:
            return
        now_ns = self._context.clock.monotonic_ns()
        self._rate_limiter.book(records=records, size=size, now_ns=now_ns)

    def start_over(self) -> None:
        """Tell the sink that the next rows repeat nothing of the batch before."""
        self._tell("start_over")

    def go_on(self) -> None:
        """Tell the sink that the next rows may repeat those of an interrupted replay."""
        self._tell("go_on" if hasattr(self._sink, "go_on") else "start_over")

    def _tell(self, what: str) -> None:
        """Call a method that a sink which does not derive from `Sink` may lack."""
        method = getattr(self._sink, what, None)
        if method is not None:
            method()

    def close(self) -> None:
        """Close the sink; no batch is in work."""
        self._sink.close()

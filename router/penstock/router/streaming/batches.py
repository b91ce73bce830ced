"""The batches of one sink: where it is, and what is done before Spark runs a batch and after it.

    begin     the batch's offsets and plan; the sink is told, and what must be noted before is noted
    run       Spark reads, and the sink's writer in its tasks writes; or the driver gets the rows
    finish    what tasks have written is committed, and noted as delivered

The first and the last step are the sink's alone. The second one may be that of several sinks, which
one query reads for (`streaming.group`).
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.router.checkpoint.deliveries import DeliveryJournal
from penstock.router.checkpoint.journal import BatchJournal, Cuts
from penstock.router.checkpoint.local import (
    committed_offsets,
    copy_planned,
    discard_planned,
    is_done,
    next_batch,
    note_done,
    offsets_in_work,
    planned_offsets,
)
from penstock.router.columns.passthrough import lost_of
from penstock.router.delivery.rate_limiter import ONE_TASK, Parallelism
from penstock.router.errors import LargerThanPlannedError, RecordTooLargeError, StoppedError
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.job.config import JobConfig
from penstock.router.job.route_task import (
    SUBJECT,
    DeliverTask,
    RoutePart,
    RouteTask,
    TaskDelivery,
    TaskResult,
    holds_others,
)
from penstock.router.job.routes import Routed
from penstock.router.read.batch_sizes import PlannedBytes
from penstock.router.read.offsets import Offsets, StreamPartition, count_between, reading_begins
from penstock.router.read.source import LogStreamReader
from penstock.router.sinks import Sink, SinkContext
from penstock.router.spark.heap_budget import HeapBudget
from penstock.router.spark.task_runs import run_in_tasks, tasks_at_once
from penstock.router.streaming.group_rules import ApartError, is_part_of
from penstock.router.streaming.log_tasks import LogTasks

_T = TypeVar("_T")

RESULT_LIMIT: Final = "spark.driver.maxResultSize"


class BatchSpans:
    """Spans of the batches of one sink.

    A batch that has only Penstock's own spans makes none.

    Args:
        context: The sink's context, with the tracer.
        columns: Columns that the sink needs.

    Attributes:
        columns: Columns to be read, which include the subject where spans are made.
    """

    def __init__(self, context: SinkContext, columns: Sequence[str]) -> None:
        self._tracer = context.tracer
        self._names = {"penstock.job": context.job, "penstock.sink": context.sink}
        self._adds_subject = self._tracer is not None and SUBJECT not in columns
        self.columns = [*columns, SUBJECT] if self._adds_subject else list(columns)

    @property
    def own_subjects(self) -> frozenset[str] | None:
        """Subjects of Penstock's own spans; None: no spans are made, and nothing is compared."""
        return None if self._tracer is None else self._tracer.own_subjects

    @contextmanager
    def delivering(self, records: int, reading_ns: int) -> Iterator[None]:
        """Around the delivery of a batch.

        Args:
            records: Number of records read, or 0 where there are only Penstock's own spans.
            reading_ns: Nanoseconds of the read.
        """
        tracer = self._tracer
        whole = None
        if tracer is not None and records:
            whole = tracer.start("micro-batch", kind="CONSUMER", ago_ns=reading_ns)
        if tracer is None or whole is None:
            yield
            return
        tracer.end(tracer.part(whole, "read", ago_ns=reading_ns))
        work = tracer.part(whole, "deliver", kind="CLIENT")
        count = {"messaging.batch.message_count": records}
        attributes: Mapping[str, str | int] = {**self._names, **count}
        error = ""
        try:
            yield
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            tracer.end(work, error=error)
            tracer.end(whole, error=error, attributes=attributes)


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """One batch of a sink that has begun.

    Attributes:
        number: Its number in the sink's checkpoint.
        before: Position before it.
        planned: Position behind it.
        size: Bytes that it was planned with; None: unknown.
        cuts: Offsets at which its first tasks began, for the journal.
        part: What tasks do for the sink; None: the driver writes.
        publishes: Whether the destination may have records before the batch is finished.
    """

    number: int
    before: Offsets
    planned: Offsets
    size: int | None
    cuts: Cuts
    part: RoutePart | None
    publishes: bool


@dataclass(frozen=True, slots=True)
class Received:
    """A batch as it was read; of a sink that writes in tasks, it is written already.

    Attributes:
        records: Records that routes lead to the sink.
        lost: Offsets that were skipped.
        holds_others: Whether there are others than Penstock's own spans.
        deliver: Brings them where they belong, or commits what is written.
    """

    records: int
    lost: int
    holds_others: bool
    deliver: Callable[[], None]


class RunAgainError(Exception):
    """Tasks must run once more for a sink, and others have shared them: the batch comes again."""


class SinkBatches:
    """The batches of one sink, one after the other.

    Args:
        job: The job.
        sink: The sink, open.
        context: Context of the sink.
        starting: Offsets at which it begins partitions that it has not read yet.
        budget: Heap budget, which the sinks of a job share.
        routed: Makes of the log what a sink gets, of the columns named.

    Attributes:
        name: The sink's name.
        context: As given.
        checkpoint: Spark's checkpoint of the sink.
        plan_path: File with the plan of the batch that was planned last.
        tasks_dir: Directory for what goes to tasks and back.
        routed: The rows for this sink alone.
        received: Records read so far.
        records_per_s: Rate of the last batch.
        failure: Why its query, or its last batch, failed; None: it works.
        delivered_at_ns: Monotonic time at which the last batch was delivered.
        begun_ns: Monotonic time since which a batch is in work; None: none is.
        writes: Whether the sink has rows of a batch; before that the batch may be given up.
        measures: Whether every frame is measured to plan a batch.
        replanned: Number of a batch that is to be planned again; None: none is.
        refusal: Why a batch that was begun cannot be delivered; None: it can.
        is_to_rest: Whether no batch may begin.
        log_tasks: Runs the tasks of the query that was started last; None: Spark's rows do.
    """

    def __init__(
        self,
        job: JobConfig,
        sink: Sink,
        context: SinkContext,
        starting: Offsets,
        budget: HeapBudget,
        *,
        routed: Callable[[JobConfig, str, Sequence[str]], Routed] = Routed,
    ) -> None:
        self.name = context.sink
        self.context = context
        self.checkpoint = context.state_dir / "spark"
        self.plan_path = context.state_dir / "plan.json"
        self.received = 0
        self.records_per_s = 0.0
        self.failure: str | None = None
        self.delivered_at_ns = 0
        self.begun_ns: int | None = None
        self.writes = False
        self.is_to_rest = False
        self.log_tasks: LogTasks | None = None
        self.measures = budget.has_run_out
        self.replanned: int | None = None
        self.refusal: str | None = None
        self._job = job
        self._batch_writer = BatchWriter(job, sink, context)
        self._spans = BatchSpans(context, self._batch_writer.steps.columns)
        self.routed = routed(job, context.sink, self._spans.columns)
        self._starting = starting
        self._budget = budget
        self.tasks_dir = job.working_dir / "tasks" / context.sink
        self._journal = BatchJournal(context.state_dir)
        self._deliveries = DeliveryJournal(context.state_dir, job.routing_digest)
        self._spark: SparkSession | None = None
        self._work = threading.Lock()  # held by a batch that is being delivered
        self._delivered_batch: int | None = None
        self._log = structlog.get_logger().bind(sink=self.name)

    @property
    def columns(self) -> list[str]:
        """The columns that the sink's part of a task needs."""
        return self._spans.columns

    @property
    def publishes(self) -> bool:
        """True if the destination may have records of a batch before it is finished."""
        return self._batch_writer.publishes_in_tasks

    @property
    def keeps_order(self) -> bool:
        return self._batch_writer.keeps_order

    @property
    def may_share(self) -> bool:
        """True if the sink may read together with others."""
        steps = [it for found in self._job.transforms_to(self.name).values() for it in found]
        return self._batch_writer.may_share and all(it.sql is None for it in steps)

    def position(self) -> Offsets:
        """The next offset of each partition, as far as batches are done, and the streams' ids."""
        done = committed_offsets(self.checkpoint) or Offsets({})
        return Offsets(
            {**self._starting.next, **done.next},
            {**self._starting.stream_ids, **done.stream_ids},
            {},
            done.generations,
        )

    def in_work(self) -> Offsets | None:
        """The end of a batch that was planned and is not done; None: there is none."""
        found = offsets_in_work(self.checkpoint)
        return None if found is None else found[1]

    @property
    def is_busy(self) -> bool:
        """True if a batch is in work, be it that of a query that was stopped."""
        return self._work.locked()

    @property
    def awaits_commit(self) -> bool:
        """True until the checkpoint says that the batch delivered last is done.

        Spark writes that after the batch, or `note_done`. A query that is stopped before delivers
        the batch again.
        """
        number = self._delivered_batch
        return number is not None and not is_done(self.checkpoint, number)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait for the end of a batch in work; return whether it has come."""
        if not self._work.acquire(timeout=timeout_s):
            return False
        self._work.release()
        return True

    @property
    def is_ending(self) -> bool:
        return self.context.stop.is_set() or self.is_to_rest

    @contextmanager
    def working(self) -> Iterator[None]:
        """Within it a batch of the sink is in work.

        Raises:
            StoppedError: The job stops, or the sink rests.
        """
        with self._work:
            if self.is_ending:
                raise StoppedError("the job stops, or the sink rests; this batch comes again")
            self.begun_ns = self.context.clock.monotonic_ns()
            try:
                yield
            finally:
                self.begun_ns = None
                self.writes = False

    def persist_between_batches(self) -> None:
        """Have what Spark has noted kept in the store, unless a batch is in work, which does that.

        Raises:
            penstock.router.errors.UnavailableError: That cannot be now.
        """
        if self._work.acquire(blocking=False):
            try:
                self.context.persist()
            finally:
                self._work.release()

    def reopen(self, sink: Sink) -> None:
        """Go on with another object for the sink, open."""
        try:
            self._batch_writer = BatchWriter(self._job, sink, self.context)
        except Exception:
            sink.close()
            raise

    def read_by(self, reader: LogStreamReader | None, spark: SparkSession) -> None:
        """A query has been started; with a reader, tasks read batches, and Spark makes no rows."""
        if self.log_tasks is not None:
            self.log_tasks.close()
        self.log_tasks = None if reader is None else LogTasks(reader, spark.sparkContext)
        self._spark = spark

    def close(self) -> None:
        """Close the sink; no batch is in work."""
        self._batch_writer.close()

    def deliver(self, frame: DataFrame, number: int) -> None:
        """Read and deliver a batch that the sink has for itself, within `working`."""
        batch = self.begin(number)
        with self._budget.holding(batch.size, lambda: self.is_ending):
            begun_ns = self.context.clock.monotonic_ns()
            received = self._received(frame, batch)
        self.finish(batch, received, begun_ns)

    def take_over(self, read_by: "SinkBatches", number: int) -> tuple[int, Offsets] | None:
        """Note a batch that another sink's query has planned, as one of this sink's.

        Args:
            read_by: The sink whose query it is.
            number: The batch's number there.

        Returns:
            The batch's number here, and the position before it; None: the sink has all of it.

        Raises:
            ApartError: It is no batch that the sink can have.
        """
        planned, theirs = read_by.planned(number), read_by.planned(number - 1)
        known = self.position()
        if not is_part_of(known, theirs, planned):
            return None
        plan = read_by.plan_of(planned)
        if plan is None:
            raise ApartError("the batch has no plan")
        plan = plan.behind(known.next)
        mine, at = offsets_in_work(self.checkpoint), next_batch(self.checkpoint)
        if mine is not None:
            if self.planned(mine[0]) != planned or self.plan_of(planned) != plan:
                raise ApartError("it has another batch to finish")
            return mine[0], known
        plan.write(self.plan_path)
        copy_planned(read_by.checkpoint, number, self.checkpoint, at)
        return at, known

    def note_done(self, number: int) -> None:
        """A batch of `take_over` is finished."""
        note_done(self.checkpoint, number)

    def begin(self, number: int, begins: Mapping[StreamPartition, int] | None = None) -> SinkBatch:
        """Begin a batch, within `working`.

        Args:
            number: Its number in the sink's checkpoint, where it is planned.
            begins: The same as in `RoutePart`, where other sinks share the tasks.

        Raises:
            LargerThanPlannedError: It is too large, and planned again.
            RecordTooLargeError: It is too large however it is planned.
            StoppedError: The job ends.
        """
        planned, before = self.planned(number), self.planned(number - 1)
        plan = self.plan_of(planned)
        size = None if plan is None else self._size_of(number, planned, plan)
        cuts, is_recut = self._cuts_of(planned, plan)
        self.context.begin_batch(before, planned, cuts)
        own = self._spans.own_subjects
        running = self._parallelism(plan)
        part = self._batch_writer.part(number, own, begins, is_recut=is_recut, parallelism=running)
        publishes = part is not None and self._batch_writer.publishes_in_tasks
        stream_ids = {**planned.stream_ids, **before.stream_ids}
        self._journal.begin(Offsets(before.next, stream_ids, {}, before.generations))
        if publishes:
            self._journal.note(planned, cuts)
            self._begin_writing()
        return SinkBatch(number, before, planned, size, cuts, part, publishes)

    def finish(self, batch: SinkBatch, received: Received, begun_ns: int) -> None:
        """Deliver a batch that was read, or commit what tasks have written of it.

        Args:
            batch: The batch.
            received: What was read.
            begun_ns: Monotonic time at which the read began.
        """
        if lost := received.lost:
            self.context.shorten()
        self._report_truncation(batch)
        reading_ns = self.context.clock.monotonic_ns() - begun_ns
        if batch.publishes and not received.records:
            self._journal.take_back(batch.planned)
        if not batch.publishes:
            if received.records:
                self._journal.note(batch.planned, batch.cuts)
            self._begin_writing()
        told = received.records if received.holds_others else 0
        with self._spans.delivering(told, reading_ns):
            received.deliver()
        self._delivered_batch = batch.number
        self.writes = False
        clock = self.context.clock
        self._deliveries.note(batch.number, clock.unix_ns(), batch.before, batch.planned)
        # By offsets: of most rows that no route leads here, Spark hears nothing.
        count = count_between(batch.before, batch.planned)
        self.context.meter.count("left_out_routing", count - received.records - lost)
        if lost:
            self.context.meter.count("left_out_lost", lost)
            self._log.warning("records_lost", batch=batch.number, offsets=lost)
        self._delivered(count, begun_ns)

    def received_in_shared_tasks(self, results: Sequence[TaskResult]) -> Received:
        """Return what tasks have written that other sinks shared."""

        def deliver() -> None:
            if not self._batch_writer.publish(results):
                raise RunAgainError("its tasks run once more, and not those of others")
            self._batch_writer.commit(results)

        return _written(results, deliver)

    def replan(self, number: int) -> None:
        """Have a batch planned again, with every frame measured, when a query begins."""
        self.measures, self.replanned = True, number

    def discard_unbegun(self) -> None:
        """Have a batch planned again that Spark has planned, and the sink has nothing of."""
        found = offsets_in_work(self.checkpoint)
        if found is not None and not self._journal.has(self.planned(found[0])):
            discard_planned(self.checkpoint, found[0])

    def discard_replanned(self) -> None:
        """Forget a batch that is to be planned again, unless the sink may have a part of it."""
        number, self.replanned = self.replanned, None
        if number is not None and not self._journal.has(self.planned(number)):
            discard_planned(self.checkpoint, number)

    def planned(self, number: int) -> Offsets:
        """The position behind a batch, with partitions that were not read yet where they begin."""
        at = planned_offsets(self.checkpoint, number) if number >= 0 else Offsets({})
        next_ = {**self._starting.next, **at.next}
        stream_ids = {**self._starting.stream_ids, **at.stream_ids}
        return Offsets(next_, stream_ids, {}, at.generations)

    def span(self, number: int) -> tuple[Offsets, Offsets]:
        """The positions before a batch and behind it, as Spark has noted them."""
        before = planned_offsets(self.checkpoint, number - 1) if number else self._starting
        return before, planned_offsets(self.checkpoint, number)

    def _delivered(self, count: int, begun_ns: int) -> None:
        self.received += count
        self.delivered_at_ns = self.context.clock.monotonic_ns()
        took_ns = self.delivered_at_ns - begun_ns
        self.records_per_s = round(count * 1e9 / max(took_ns, 1), 1)
        self.failure = None

    def _begin_writing(self) -> None:
        """The destination gets records from now on; all that names them is as lasting as can be.

        Raises:
            StoppedError: The job ends, and nothing is written.
        """
        self.context.persist()
        self.writes = True  # before the look at `stop`, which the job's end sets before this
        if self.context.stop.is_set():
            raise StoppedError("the job stops before this batch is written; it comes again")

    def plan_of(self, planned: Offsets) -> PlannedBytes | None:
        """Return the plan of a batch; None: Spark has not planned it as before."""
        found = PlannedBytes.read(self.plan_path)
        if found is None or not found.next.items() <= planned.next.items():
            return None
        return found

    def _cuts_of(self, planned: Offsets, plan: PlannedBytes | None) -> tuple[Cuts, bool]:
        """Return where a batch was cut when it was first delivered, and whether tasks now differ.

        What is sent twice must be cut as the first time, for a destination that knows it by that.
        """
        writes = plan is not None and self._batch_writer.writes_in_tasks
        cuts: Cuts = plan.cuts() if plan is not None and writes else {}
        first = self._journal.cuts_of(planned) if self.publishes else None
        return (cuts, False) if first is None else (first, first != cuts)

    def _parallelism(self, plan: PlannedBytes | None) -> Parallelism:
        """How the tasks of a batch run, where a rate limit is divided between them."""
        if self._spark is None or not self._batch_writer.is_limited:
            return ONE_TASK
        at_once = tasks_at_once(self._spark.sparkContext)
        tasks = len(plan.tasks) if plan is not None and plan.tasks else at_once
        return Parallelism(tasks, min(tasks, at_once))

    def _size_of(self, number: int, planned: Offsets, found: PlannedBytes) -> int:
        """The bytes that a batch was planned with.

        Raises:
            LargerThanPlannedError: They are too many, and it is planned again.
            RecordTooLargeError: They are too many however it is planned.
        """
        refusal = self._budget.refusal(found)
        if refusal is None:
            return found.size
        it = found.largest
        may_be_smaller = it is None or it.size < found.size or it.end > it.start + 1
        if may_be_smaller and not (self.measures and self._journal.has(planned)):
            self.replan(number)
            raise LargerThanPlannedError(refusal)
        self.refusal = refusal
        raise RecordTooLargeError(refusal)

    def _received(self, frame: DataFrame, batch: SinkBatch) -> Received:
        unpacking, own = self.routed.unpacking, self._spans.own_subjects
        if batch.part is None:
            made = self._made(frame.toArrow, batch.number)
            rows = unpacking.collected(made)
            others = own is None or holds_others(rows, own)
            give = partial(self._batch_writer.give, rows, batch.number)
            return Received(rows.num_rows, lost_of(made), others, give)
        results = self._run(frame, batch.number, batch.part)

        def deliver() -> None:
            if self._batch_writer.publish(results):
                self._batch_writer.commit(results)
                return
            with self._budget.holding(batch.size, lambda: self.is_ending):
                another = self._batch_writer.part(batch.number, own)
                assert another is not None, "the first one was"
                again = self._run(frame, batch.number, another)
            self._batch_writer.commit(again)

        return _written(results, deliver)

    def _run(self, frame: DataFrame, number: int, part: RoutePart) -> Sequence[TaskResult]:
        if (tasks := self.log_tasks) is not None:
            assert self.routed.route is not None, "else Spark decides"
            delivery = TaskDelivery(self.routed.route, tuple(self.columns), part)
            start, end = self.span(number)
            return self._made(lambda: tasks.run(DeliverTask(delivery), start, end), number)
        task = RouteTask(self.routed.unpacking, part)
        return self._made(lambda: run_in_tasks(frame, task, self.tasks_dir), number)

    def _made(self, make: Callable[[], _T], number: int) -> _T:
        """Run `make`; raise, and have the batch planned again, if it is larger than planned."""
        try:
            return make()
        except (PySparkException, Py4JError) as error:
            if is_larger_than_planned(error) and not self.measures:
                self.replan(number)
            raise

    def _report_truncation(self, batch: SinkBatch) -> None:
        """Say which offsets the log gives again, that the sink had got already."""
        before, planned = batch.before, batch.planned
        for at, generations in planned.generations.items():
            begin, known = reading_begins(at, before, planned), before.next.get(at, 0)
            if begin < known:
                self.context.meter.count("log_truncated", known - begin)
                self._log.warning(
                    "log_truncated",
                    stream=at.stream,
                    partition=at.partition,
                    offset=begin,
                    read_up_to=known,
                    generation=generations[-1][1],
                    batch=batch.number,
                    delivered="kept",
                )


def is_larger_than_planned(error: Exception) -> bool:
    """Return whether Spark says that a batch has more bytes than it was planned with."""
    said = str(error)
    return LargerThanPlannedError.__name__ in said or RESULT_LIMIT in said


def _written(results: Sequence[TaskResult], deliver: Callable[[], None]) -> Received:
    return Received(
        sum(it.routed for it in results),
        sum(it.lost for it in results),
        any(it.holds_others for it in results),
        deliver,
    )


def logd_options(job: JobConfig, first: Offsets, last: Offsets | None = None) -> dict[str, str]:
    """The options with which a job reads the log, to the end of it or to `last`."""
    options = {
        "logd": job.logd,
        **_subscribed(job),
        "startingOffsets": json.dumps(first.to_json()),
        **job.source.options(),
    }
    return options if last is None else options | {"endingOffsets": json.dumps(last.to_json())}


def _subscribed(job: JobConfig) -> dict[str, str]:
    if job.source.assign is not None:
        return {"assign": json.dumps(job.source.assign)}
    return {"subscribe": ",".join(job.streams)}

"""One sink's streaming query: from the log through the routes into the sink, at its own pace."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.base.backoff import Backoff, Restarts
from penstock.router.checkpoint.deliveries import DeliveryJournal
from penstock.router.checkpoint.journal import BatchJournal, Cuts
from penstock.router.checkpoint.local import (
    clear_unfinished,
    committed_offsets,
    discard_planned,
    planned_offsets,
)
from penstock.router.columns.passthrough import lost_of
from penstock.router.delivery.breaker import Circuit
from penstock.router.errors import LargerThanPlannedError, RecordTooLargeError, StoppedError
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.job.config import JobConfig
from penstock.router.job.route_task import SUBJECT, RouteTask, TaskResult, holds_others
from penstock.router.job.routes import Routed
from penstock.router.read.batch_sizes import PlannedBytes
from penstock.router.read.offsets import Offsets, StreamPartition, count_between, reading_begins
from penstock.router.sinks import Sink, SinkContext
from penstock.router.spark.heap_budget import HeapBudget
from penstock.router.spark.task_runs import run_in_tasks

_T = TypeVar("_T")


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
class _Received:
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


_ERROR_LINE: Final = re.compile(
    r"^(?:: |Caused by: )?(?:[\w.$]+\.)?(\w*(?:Error|Exception))(?:: (.*))?$", re.MULTILINE
)
"""The last line of a Python traceback, or the first one of a Java stack trace or of its cause."""

_WRAPPING: Final = re.compile(r"An error occurred while calling |Traceback \(most recent call last")
"""Begins what py4j and Spark say of an error that somebody else has raised."""
_REASON_LENGTH_MAX: Final = 500
_RESULT_LIMIT: Final = "spark.driver.maxResultSize"
_NO_PACKAGE: Final = "No module named 'penstock"
RESTART_MIN_S: Final = 1.0
RESTART_MAX_S: Final = 60.0
"""Seconds before a query that failed is started again; they double from the first to the last."""

RESTART_CALM_S: Final = 120.0
"""Seconds of a run after which a restart counts as the first again."""

_QUIET_S: Final = 1.0
"""Beyond two intervals: a query that has delivered nothing for so long delivers 0 records/s."""


class _State(Enum):
    WAITING = auto()
    RUNNING = auto()
    RESTING = auto()
    STOPPED = auto()


class SinkQuery:
    """The query of one sink. It is started again when it failed, and nothing else notices.

    Args:
        job: The job.
        sink: The sink, open.
        context: Context of the sink.
        starting: Offsets at which it begins partitions that it has not read yet.
        sharing: Options of the source, by which it reads together with the other sinks.
        budget: Heap budget, which the sinks of a job share; None: a separate one.
        routed: Makes of the log what a sink gets, of the columns named.
    """

    def __init__(  # noqa: PLR0913 - each is its own input
        self,
        job: JobConfig,
        sink: Sink,
        context: SinkContext,
        starting: Offsets,
        sharing: Mapping[str, str],
        budget: HeapBudget | None = None,
        *,
        routed: Callable[[JobConfig, str, Sequence[str]], Routed] = Routed,
    ) -> None:
        self.name = context.sink
        self.failure: str | None = None
        self.received = 0
        self.records_per_s = 0.0
        self._job = job
        self._batch_writer = BatchWriter(job, sink, context)
        self._spans = BatchSpans(context, self._batch_writer.steps.columns)
        self._routed = routed(job, context.sink, self._spans.columns)
        self._context = context
        self._starting = starting
        self._sharing = sharing
        self._budget = budget or HeapBudget(job.spark)
        self._plan_path = context.state_dir / "plan.json"
        self._tasks_dir = job.working_dir / "tasks" / context.sink
        self._measures = self._budget.has_run_out
        self._replanned: int | None = None
        self._refusal: str | None = None
        self._journal = BatchJournal(context.state_dir)
        self._deliveries = DeliveryJournal(context.state_dir, job.routing_digest)
        self._restarts = Restarts(Backoff(RESTART_MIN_S, RESTART_MAX_S), calm=RESTART_CALM_S)
        self._state = _State.WAITING
        self._start_at_ns = 0
        self._restarted_at_ns = 0
        self._failed_at_ns = 0
        self._delivered_at_ns = 0
        self._query: Any = None
        self._closed = False
        self._is_to_rest = False
        self._writes = False
        self._batch_begun_ns: int | None = None
        self._work = threading.Lock()  # held by a batch that is being delivered
        self._log = structlog.get_logger().bind(sink=self.name)

    @property
    def problem(self) -> str | None:
        """Description of what keeps the query or its sink from delivering; None while they work."""
        return self.failure or self._context.meter.problem

    @property
    def circuit(self) -> Circuit:
        """The sink's circuit breaker; it counts as open while the query itself is down."""
        circuit = self._context.meter.circuit
        if self.failure is None:
            return circuit
        waits = self._state is _State.WAITING
        return Circuit(
            state="open" if waits else "half_open",
            since_ns=self._failed_at_ns,
            retry_at_ns=self._start_at_ns if waits else None,
            opened=circuit.opened,
            reason=self.failure,
        )

    def batch_s(self, now_ns: int) -> float | None:
        """Seconds since the batch in work began, at a monotonic time; None: no batch is in work.

        It grows before a destination that does not answer has become a `problem`: tasks say what
        they met when they end, and that is when their requests' time limits are over.
        """
        begun_ns = self._batch_begun_ns
        return None if begun_ns is None else round((now_ns - begun_ns) / 1e9, 1)

    @property
    def restarts(self) -> int:
        return self._restarts.count

    def committed(self) -> dict[StreamPartition, int]:
        """The next offset of each partition, as far as batches are done."""
        return dict(self.position().next)

    def position(self) -> Offsets:
        """`committed`, with the ids of the streams that these offsets are of."""
        done = committed_offsets(self._spark_checkpoint) or Offsets({})
        return Offsets(
            {**self._starting.next, **done.next},
            {**self._starting.stream_ids, **done.stream_ids},
            {},
            done.generations,
        )

    def poll(self, spark: SparkSession) -> None:
        """Start the query when that is due, and notice what has become of it."""
        if self._is_to_rest:
            return
        now_ns = self._context.clock.monotonic_ns()
        if self._state is _State.WAITING and now_ns >= self._start_at_ns:
            self._begin(spark, now_ns)
        elif self._state is _State.RUNNING and not self._query.isActive:
            self._failed(now_ns)
        elif self._state is _State.RUNNING and (self.failure or self.records_per_s):
            self._see_progress(now_ns)

    def _begin(self, spark: SparkSession, now_ns: int) -> None:
        try:
            self._start(spark)
        except (PySparkException, Py4JJavaError) as error:  # others: the JVM is gone
            self._wait_after(first_lines(str(error)), now_ns)
        else:
            self._state = _State.RUNNING

    def _see_progress(self, now_ns: int) -> None:
        """Since it was started again it has ended a trigger; or it delivers nothing any more."""
        if self.failure and self._query.lastProgress is not None:
            self.failure = None
        quiet_s = (now_ns - self._delivered_at_ns) / 1e9
        if self._batch_begun_ns is None and quiet_s > 2 * self._job.trigger.interval_s + _QUIET_S:
            self.records_per_s = 0.0

    def persist_between_batches(self) -> None:
        """Have what Spark has noted kept in the store, unless a batch is in work, which does that.

        Raises:
            penstock.router.errors.UnavailableError: That cannot be now.
        """
        if self._work.acquire(blocking=False):
            try:
                self._context.persist()
            finally:
                self._work.release()

    @property
    def writes(self) -> bool:
        """True if the sink has rows of a batch; before that the batch may be given up."""
        return self._writes

    @property
    def delivers(self) -> bool:
        """True if a batch is in work, be it that of a query that was stopped."""
        return self._work.locked()

    def stop(self) -> None:
        """End the query; a batch in work is given up and comes again at the next start."""
        running, self._state = self._state is _State.RUNNING, _State.STOPPED
        if running:
            try:
                self._query.stop()
            except (Py4JError, PySparkException) as error:
                # A sink that hangs cannot be interrupted. Its thread ends with the JVM.
                self._log.warning("query_stop_failed", reason=type(error).__name__)
                return
        if not self._closed:
            self._closed = True
            self._batch_writer.close()

    def rest(self) -> bool:
        """End the query between two batches and close the sink, until `resume`; whether it rests.

        From the first call on no batch is begun: one that Spark begins is given up, to come again.
        To be called until it is so, or until `go_on`.
        """
        if self._state is _State.RESTING:
            return True
        self._is_to_rest = True
        if self._state is _State.STOPPED or self._work.locked():
            return False
        if self._state is _State.RUNNING:
            try:
                self._query.stop()
            except (Py4JError, PySparkException) as error:
                self._log.warning("query_stop_failed", reason=type(error).__name__)
                return False
        self._state = _State.RESTING
        self.records_per_s = 0.0
        self._closed = True
        self._batch_writer.close()
        return True

    def resume(self, sink: Sink) -> None:
        """Go on with the sink, opened again, after `rest`."""
        if self._state is not _State.RESTING:
            sink.close()
            return
        try:
            self._batch_writer = BatchWriter(self._job, sink, self._context)
        except Exception:
            sink.close()
            raise
        self._closed = self._is_to_rest = False
        self._state, self._start_at_ns = _State.WAITING, 0

    def go_on(self) -> None:
        """It need not rest after all."""
        self._is_to_rest = False
        if self._state is _State.RUNNING and not self._query.isActive:
            self._state, self._start_at_ns = _State.WAITING, 0

    @property
    def _spark_checkpoint(self) -> Path:
        return self._context.state_dir / "spark"

    def _start(self, spark: SparkSession) -> None:
        job = self._job
        clear_unfinished(self._spark_checkpoint)
        self._discard_replanned()
        options = logd_options(job, self._starting)
        options |= {
            **job.trigger.options(),
            **self._sharing,
            "maxBytesPerTrigger": str(min(job.trigger.max_bytes, self._budget.largest)),
            "planIn": str(self._plan_path),
            "measureSizes": str(self._measures).lower(),
        }
        if self._batch_writer.keeps_order:
            options |= {"minPartitions": "1", "maxBytesPerTask": str(job.trigger.max_bytes)}
        rows = self._routed.frame(spark, options, streaming=True)
        # A separate pool, so that one sink's backlog does not make the others queue.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        self._query = (
            rows.writeStream.queryName(f"{job.job}.{self.name}")
            .option("checkpointLocation", str(self._spark_checkpoint))
            .trigger(processingTime="0 seconds")  # the source waits, as `batchInterval` says
            .foreachBatch(self._write)
            .start()
        )
        self._log.info("query_started", restarts=self._restarts.count)

    def _write(self, frame: DataFrame, batch: int) -> None:
        with self._work:
            if self._is_ending():
                raise StoppedError("the job stops, or the sink rests; this batch comes again")
            self._batch_begun_ns = self._context.clock.monotonic_ns()
            try:
                self._deliver(frame, batch)
            finally:
                self._batch_begun_ns = None

    def _is_ending(self) -> bool:
        return self._context.stop.is_set() or self._is_to_rest

    def _deliver(self, frame: DataFrame, batch: int) -> None:
        planned, before = self._planned(batch), self._planned(batch - 1)
        plan = self._plan_of(planned)
        size = None if plan is None else self._size_of(batch, planned, plan)
        self._context.begin_batch(before, planned)
        task = self._batch_writer.task(self._routed.unpacking, batch, self._spans.own_subjects)
        cuts: Cuts = {} if plan is None or task is None else plan.cuts()
        publishes = task is not None and self._batch_writer.publishes_in_tasks
        self._journal.begin(Offsets(before.next, planned.stream_ids, {}, before.generations))
        try:
            if publishes:
                self._journal.note(planned, cuts)
                self._begin_writing()
            with self._budget.holding(size, self._is_ending):
                begun_ns = self._context.clock.monotonic_ns()
                received = self._received(frame, batch, task, size)
            if lost := received.lost:
                self._context.shorten()
            self._report_truncation(before, planned, batch)
            reading_ns = self._context.clock.monotonic_ns() - begun_ns
            if publishes and not received.records:
                self._journal.take_back(planned)
            if not publishes:
                if received.records:
                    self._journal.note(planned, cuts)
                self._begin_writing()
            told = received.records if received.holds_others else 0
            with self._spans.delivering(told, reading_ns):
                received.deliver()
        finally:
            self._writes = False
        self._deliveries.note(batch, self._context.clock.unix_ns(), before, planned)
        # By offsets: of most rows that no route leads here, Spark hears nothing.
        count = count_between(before, planned)
        self._context.meter.count("left_out_routing", count - received.records - lost)
        if lost:
            self._context.meter.count("left_out_lost", lost)
            self._log.warning("records_lost", batch=batch, offsets=lost)
        self._delivered(count, begun_ns)

    def _delivered(self, count: int, begun_ns: int) -> None:
        self.received += count
        self._delivered_at_ns = self._context.clock.monotonic_ns()
        took_ns = self._delivered_at_ns - begun_ns
        self.records_per_s = round(count * 1e9 / max(took_ns, 1), 1)
        self.failure = None

    def _begin_writing(self) -> None:
        """The destination gets records from now on; all that names them is as lasting as can be.

        Raises:
            StoppedError: The job ends, and nothing is written.
        """
        self._context.persist()
        self._writes = True  # before the look at `stop`, which the job's end sets before this
        if self._context.stop.is_set():
            raise StoppedError("the job stops before this batch is written; it comes again")

    def _plan_of(self, planned: Offsets) -> PlannedBytes | None:
        """Return the plan of a batch; None: Spark has not planned it as before."""
        found = PlannedBytes.read(self._plan_path)
        if found is None or not found.next.items() <= planned.next.items():
            return None
        return found

    def _size_of(self, batch: int, planned: Offsets, found: PlannedBytes) -> int:
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
        if may_be_smaller and not (self._measures and self._journal.has(planned)):
            self._replan(batch)
            raise LargerThanPlannedError(refusal)
        self._refusal = refusal
        raise RecordTooLargeError(refusal)

    def _received(
        self, frame: DataFrame, batch: int, task: RouteTask | None, size: int | None
    ) -> _Received:
        unpacking, own = self._routed.unpacking, self._spans.own_subjects
        if task is None:
            made = self._made(frame.toArrow, batch)
            rows = unpacking.rows(made)
            others = own is None or holds_others(rows, own)
            give = partial(self._batch_writer.give, rows, batch)
            return _Received(rows.num_rows, lost_of(made), others, give)
        results = self._written(frame, batch, task)

        def deliver() -> None:
            if self._batch_writer.publish(results):
                self._batch_writer.commit(results)
                return
            with self._budget.holding(size, self._is_ending):
                another = self._batch_writer.task(unpacking, batch, own)
                assert another is not None, "the first one was"
                written = self._written(frame, batch, another)
            self._batch_writer.commit(written)

        return _Received(
            sum(it.routed for it in results),
            sum(it.lost for it in results),
            any(it.holds_others for it in results),
            deliver,
        )

    def _written(self, frame: DataFrame, batch: int, task: RouteTask) -> Sequence[TaskResult]:
        return self._made(lambda: run_in_tasks(frame, task, self._tasks_dir), batch)

    def _made(self, make: Callable[[], _T], batch: int) -> _T:
        """Run `make`; raise, and have the batch planned again, if it is larger than planned."""
        try:
            return make()
        except (PySparkException, Py4JError) as error:
            said = str(error)
            is_larger = LargerThanPlannedError.__name__ in said or _RESULT_LIMIT in said
            if is_larger and not self._measures:
                self._replan(batch)
            raise

    def _replan(self, batch: int) -> None:
        """Have the query begin again, with every frame measured, and the batch planned again."""
        self._measures, self._replanned = True, batch

    def _discard_replanned(self) -> None:
        """Forget a batch that is to be planned again, unless the sink may have a part of it."""
        batch, self._replanned = self._replanned, None
        if batch is not None and not self._journal.has(self._planned(batch)):
            discard_planned(self._spark_checkpoint, batch)

    def _planned(self, batch: int) -> Offsets:
        """The position behind a batch, with partitions that were not read yet where they begin."""
        at = planned_offsets(self._spark_checkpoint, batch) if batch >= 0 else Offsets({})
        next_ = {**self._starting.next, **at.next}
        return Offsets(next_, at.stream_ids, {}, at.generations)

    def _report_truncation(self, before: Offsets, planned: Offsets, batch: int) -> None:
        """Say which offsets the log gives again, that the sink had got already."""
        for at, generations in planned.generations.items():
            begin, known = reading_begins(at, before, planned), before.next.get(at, 0)
            if begin < known:
                self._context.meter.count("log_truncated", known - begin)
                self._log.warning(
                    "log_truncated",
                    stream=at.stream,
                    partition=at.partition,
                    offset=begin,
                    read_up_to=known,
                    generation=generations[-1][1],
                    batch=batch,
                    delivered="kept",
                )

    def _failed(self, now_ns: int) -> None:
        error = self._query.exception()
        if self._context.stop.is_set():
            self._state = _State.STOPPED
            return
        self._state, self.records_per_s = _State.WAITING, 0.0
        if self._replanned is not None:
            self._start_at_ns = now_ns
            self._log.warning(
                "batch_replanned",
                batch=self._replanned,
                reason="it is larger than the records at its ends said; all are measured now",
            )
            return
        refusal, self._refusal = self._refusal, None
        self._wait_after(
            refusal or reason_of(error),
            now_ns,
            is_told=refusal is not None and refusal == self.failure,
        )

    def _wait_after(self, reason: str, now_ns: int, *, is_told: bool = False) -> None:
        """Start the query again after a pause.

        Args:
            reason: Why it failed.
            now_ns: Monotonic.
            is_told: Whether that was said before, and stays so: the status has it still.
        """
        self._failed_at_ns = now_ns
        wait_s = self._restarts.failed((now_ns - self._restarted_at_ns) / 1e9)
        self._start_at_ns = self._restarted_at_ns = now_ns + int(wait_s * 1e9)
        self.failure = reason
        self._context.meter.failed("query_failures")
        if is_told:
            return
        self._log.error(
            "query_failed",
            reason=self.failure,
            restart_in_s=round(wait_s, 1),
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


def reason_of(error: StreamingQueryException | None) -> str:
    """Return the message of a query's failure without Spark's stack traces."""
    if error is None:
        return "the query ended by itself"
    return first_lines(str(error))


def first_lines(text: str) -> str:
    """The error at the bottom of Spark's stack traces."""
    if _RESULT_LIMIT in text:
        return (
            f"a batch is larger than {_RESULT_LIMIT}, half of spark.driver_memory:"
            " docs/howto/size-it.md says under Router how to get past one that was begun"
        )
    if _NO_PACKAGE in text:
        return (
            "an executor's Python has no package penstock: install it on each worker for the Python"
            " that spark.conf's spark.pyspark.python names"
        )
    named = [
        ": ".join(part for part in found.groups() if part)
        for found in _ERROR_LINE.finditer(text)
        if not _WRAPPING.match(found[2] or "")
    ]
    lines = [it.strip(" :\t") for it in text.splitlines()]
    plain = [it for it in lines if it and not _WRAPPING.match(it)]
    reason = named[-1] if named else next(iter(plain or lines), "no reason was given")
    return reason[:_REASON_LENGTH_MAX]

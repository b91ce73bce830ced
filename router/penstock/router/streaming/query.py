"""The streaming query of one sink, or of a group of sinks that it leads.

A sink is in one of these states:

    waiting    its query is to be started, perhaps after a pause
    running    its query runs; it may read for others, too (`streaming.group`)
    carried    another sink's query reads for it
    resting    somebody else writes to its destination
    stopped    the job ends
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.base.backoff import Backoff, Restarts
from penstock.router.checkpoint.local import clear_unfinished
from penstock.router.delivery.breaker import Circuit
from penstock.router.job.config import JobConfig
from penstock.router.job.routes import Routed, SharedRoutes
from penstock.router.read.batch_sizes import TASK_BYTES
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks import Sink, SinkContext
from penstock.router.spark.heap_budget import HeapBudget
from penstock.router.streaming.batches import RESULT_LIMIT, SinkBatches, logd_options
from penstock.router.streaming.group import Group, Left
from penstock.router.streaming.group_rules import Candidate, Return

_ERROR_LINE: Final = re.compile(
    r"^(?:: |Caused by: )?(?:[\w.$]+\.)?(\w*(?:Error|Exception))(?:: (.*))?$", re.MULTILINE
)
"""The last line of a Python traceback, or the first one of a Java stack trace or of its cause."""

_WRAPPING: Final = re.compile(r"An error occurred while calling |Traceback \(most recent call last")
"""Begins what py4j and Spark say of an error that somebody else has raised."""
_REASON_LENGTH_MAX: Final = 500
_NO_PACKAGE: Final = "No module named 'penstock"
RESTART_MIN_S: Final = 1.0
RESTART_MAX_S: Final = 60.0
"""Seconds before a query that failed is started again; they double from the first to the last."""

RESTART_CALM_S: Final = 120.0
"""Seconds of a run after which a restart counts as the first again."""

_QUIET_S: Final = 1.0
"""Beyond two intervals: a query that has delivered nothing for so long delivers 0 records/s."""

FIRST_BYTES: Final = 2 * TASK_BYTES
"""Approximate maximum bytes of a query's first batch, in which everything runs for the first time:
a small one is in the sink soon, and shows early whether the sink takes records."""

_STOP_S: Final = 3.0
"""Seconds in which a batch that is given up ends, as Spark's own limit for its queries."""


class _State(Enum):
    WAITING = auto()
    RUNNING = auto()
    CARRIED = auto()
    RESTING = auto()
    STOPPED = auto()


class SinkQuery:
    """The query of one sink. It is started again when it failed, and nothing else notices.

    Args:
        job: The job.
        sink: The sink, open.
        context: Context of the sink.
        starting: Offsets at which it begins partitions that it has not read yet.
        budget: Heap budget, which the sinks of a job share; None: a separate one.
        routed: Makes of the log what a sink gets, of the columns named.
    """

    def __init__(
        self,
        job: JobConfig,
        sink: Sink,
        context: SinkContext,
        starting: Offsets,
        budget: HeapBudget | None = None,
        *,
        routed: Callable[[JobConfig, str, Sequence[str]], Routed] = Routed,
    ) -> None:
        self.name = context.sink
        self._job = job
        self._context = context
        self._starting = starting
        self._budget = budget or HeapBudget(job.spark)
        self._batches = SinkBatches(job, sink, context, starting, self._budget, routed=routed)
        self._restarts = Restarts(Backoff(RESTART_MIN_S, RESTART_MAX_S), calm=RESTART_CALM_S)
        self._state = _State.WAITING
        self._start_at_ns = 0
        self._restarted_at_ns = 0
        self._failed_at_ns = 0
        self._query: Any = None
        self._group: Group | None = None
        self._carried: dict[str, SinkQuery] = {}
        self._leader: SinkQuery | None = None
        self._return = Return()
        self._closed = False
        self._writing = threading.Lock()  # held while Spark gives the query a batch
        self._log = structlog.get_logger().bind(sink=self.name)

    @property
    def failure(self) -> str | None:
        """Why the query does not run, or did not when it was seen last; None while it works."""
        return self._batches.failure

    @failure.setter
    def failure(self, reason: str | None) -> None:
        self._batches.failure = reason

    @property
    def received(self) -> int:
        """Records read."""
        return self._batches.received

    @property
    def records_per_s(self) -> float:
        """Rate of the last batch; 0 if there is none."""
        return self._batches.records_per_s

    @records_per_s.setter
    def records_per_s(self, rate: float) -> None:
        self._batches.records_per_s = rate

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
        begun_ns = self._batches.begun_ns
        return None if begun_ns is None else round((now_ns - begun_ns) / 1e9, 1)

    @property
    def restarts(self) -> int:
        return self._restarts.count

    @property
    def reads_with(self) -> str | None:
        """The sink whose query reads for this one; None: it has a query of its own."""
        leader = self._leader
        return None if leader is None else leader.name

    def committed(self) -> dict[StreamPartition, int]:
        """The next offset of each partition, as far as batches are done."""
        return dict(self.position().next)

    def position(self) -> Offsets:
        """`committed`, with the ids of the streams that these offsets are of."""
        return self._batches.position()

    def is_due(self, now_ns: int) -> bool:
        """Return whether its query is to be started now."""
        waits = self._state is _State.WAITING and not self._batches.is_to_rest
        return waits and now_ns >= self._start_at_ns and not self._batches.is_busy

    def may_share(self, now_ns: int) -> bool:
        """Return whether it may read together with other sinks."""
        circuit = self._context.meter.circuit
        is_well = circuit.state == "closed" and circuit.reason is None
        return self._batches.may_share and is_well and self._return.is_due(now_ns)

    def may_gather(self, now_ns: int) -> bool:
        """Return whether its query runs, and all sinks that it reads for may share another one."""
        sinks = [self, *self._carried.values()]
        return self._state is _State.RUNNING and all(
            it.may_share(now_ns) and it.problem is None for it in sinks
        )

    def candidate(self) -> Candidate:
        """What decides on the sinks that it may read together with."""
        batches = self._batches
        is_between = self._state is not _State.RUNNING  # else the batch in work will be done
        return Candidate(
            self.name,
            batches.position(),
            batches.in_work() if is_between else None,
            measures=batches.measures,
            publishes=batches.publishes,
        )

    def poll(self, spark: SparkSession) -> None:
        """Start the query when that is due, and notice what has become of it."""
        if self._batches.is_to_rest:
            return
        now_ns = self._context.clock.monotonic_ns()
        if self.is_due(now_ns):
            self._begin(spark, now_ns, [])
        elif self._state is _State.RUNNING and not self._query.isActive:
            self._failed(now_ns)
        elif self._state in (_State.RUNNING, _State.CARRIED) and (
            self.failure or self.records_per_s
        ):
            self._see_progress(now_ns)

    def lead(self, spark: SparkSession, others: "Sequence[SinkQuery]") -> None:
        """Start a query that reads for others as well; all of them are due."""
        self._begin(spark, self._context.clock.monotonic_ns(), others)

    def _begin(self, spark: SparkSession, now_ns: int, others: "Sequence[SinkQuery]") -> None:
        try:
            self._start(spark, others)
        except (PySparkException, Py4JJavaError) as error:  # others: the JVM is gone
            self._release_all()
            for query in (self, *others):
                query._wait_after(first_lines(str(error)), now_ns)  # noqa: SLF001 - of this class
        else:
            self._state = _State.RUNNING

    def _see_progress(self, now_ns: int) -> None:
        """Since it was started again it has ended a trigger; or it delivers nothing any more."""
        running = self._leader or self
        query = running._query  # noqa: SLF001 - of this class
        if self.failure and query is not None and query.lastProgress is not None:
            self.failure = None
        quiet_s = (now_ns - self._batches.delivered_at_ns) / 1e9
        is_idle = self._batches.begun_ns is None
        if is_idle and quiet_s > 2 * self._job.trigger.interval_s + _QUIET_S:
            self.records_per_s = 0.0

    def persist_between_batches(self) -> None:
        """Have what Spark has noted kept in the store, unless a batch is in work, which does that.

        Raises:
            penstock.router.errors.UnavailableError: That cannot be now.
        """
        self._batches.persist_between_batches()

    @property
    def writes(self) -> bool:
        """True if a sink that it reads with has rows of a batch that is not noted as done.

        Before that the batch may be given up, and from then on it would come again.
        """
        leader = self._leader or self
        sinks = (leader, *list(leader._carried.values()))  # noqa: SLF001 - of this class
        return any(it._batches.writes for it in sinks) or leader._awaits_commit()  # noqa: SLF001 - as above

    def _awaits_commit(self) -> bool:
        """Return whether a batch was delivered, and a query that runs is about to note it."""
        if not self._batches.awaits_commit:
            return False
        query = (self._leader or self)._query  # noqa: SLF001 - of this class
        try:
            return query is not None and bool(query.isActive)
        except (Py4JError, OSError):  # the JVM is gone
            return False

    @property
    def delivers(self) -> bool:
        """True if a batch is in work, be it that of a query that was stopped."""
        return self._batches.is_busy

    def stop(self) -> None:
        """End the query; a batch in work is given up and comes again at the next start."""
        state, self._state = self._state, _State.STOPPED
        if (state is _State.RUNNING and not self._stop_query()) or not self._has_ended(state):
            # A sink that hangs cannot be interrupted. Its thread ends with the JVM.
            return
        if not self._closed:
            self._closed = True
            self._batches.close()

    def _has_ended(self, state: _State) -> bool:
        """Return whether no batch is in work, after a moment for one that is given up."""
        if self._batches.wait_until_idle(_STOP_S if state is not _State.RESTING else 0):
            return True
        self._log.warning("query_stop_failed", reason="a batch in work has not ended")
        return False

    def _stop_query(self) -> bool:
        try:
            self._query.stop()
        except (Py4JError, PySparkException) as error:
            self._log.warning("query_stop_failed", reason=type(error).__name__)
            return False
        return True

    def rest(self) -> bool:
        """End the query between two batches and close the sink, until `resume`; whether it rests.

        From the first call on no batch is begun: one that Spark begins is given up, to come again.
        To be called until it is so, or until `go_on`.
        """
        if self._state is _State.RESTING:
            return True
        self._batches.is_to_rest = True
        if self._state is _State.STOPPED or not self._halted():
            return False
        self._state = _State.RESTING
        self.records_per_s = 0.0
        self._closed = True
        self._batches.close()
        return True

    def halt(self) -> bool:
        """End the query between two batches; return whether it has ended.

        To be called until it is so, or until `go_on`. The query is due then, and others that it has
        read for are.
        """
        self._batches.is_to_rest = True
        if self._state is not _State.RUNNING or not self._halted():
            return False
        self._batches.discard_unbegun()
        self._state, self._start_at_ns = _State.WAITING, 0
        self._batches.is_to_rest = False
        return True

    def _halted(self) -> bool:
        if self._batches.is_busy or self._writing.locked() or self._awaits_commit():
            return False
        if self._state is _State.RUNNING and not self._stop_query():
            return False
        if self._leader is not None:
            self._leader._give_back(self.name)  # noqa: SLF001 - of this class
        self._release_all()
        return True

    def resume(self, sink: Sink) -> None:
        """Go on with the sink, opened again, after `rest`."""
        if self._state is not _State.RESTING:
            sink.close()
            return
        self._batches.reopen(sink)
        self._closed = self._batches.is_to_rest = False
        self._state, self._start_at_ns = _State.WAITING, 0

    def go_on(self) -> None:
        """It need not rest after all."""
        self._batches.is_to_rest = False
        if self._state is _State.RUNNING and not self._query.isActive:
            self._release_all()
            self._state, self._start_at_ns = _State.WAITING, 0

    def _start(self, spark: SparkSession, others: "Sequence[SinkQuery]") -> None:
        job, batches = self._job, self._batches
        for query in (self, *others):
            query._make_ready()  # noqa: SLF001 - of this class
        options = logd_options(job, self._starting)
        options |= {
            **job.trigger.options(),
            "maxBytesPerTrigger": str(self._budget.batch_bytes(job.trigger)),
            "maxBytesOfFirstTrigger": str(FIRST_BYTES),
            "planIn": str(batches.plan_path),
            "measureSizes": str(batches.measures).lower(),
        }
        if batches.keeps_order:
            options |= {"wholePartitions": "true"}
        if others:
            routes = self._form_group(others)
            reader, rows = routes.reader(options), routes.frame(spark, options)
        else:
            reader = batches.routed.reader(options)
            rows = batches.routed.frame(spark, options, streaming=True)
        batches.read_by(reader, spark)
        # A separate pool, so that one sink's backlog does not make the others queue.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        self._query = (
            rows.writeStream.queryName(f"{job.job}.{self.name}")
            .option("checkpointLocation", str(batches.checkpoint))
            .trigger(processingTime="0 seconds")  # the source waits, as `batchInterval` says
            .foreachBatch(self._write)
            .start()
        )
        names = [query.name for query in others]
        self._log.info("query_started", restarts=self._restarts.count, reads_for=names)

    def _make_ready(self) -> None:
        clear_unfinished(self._batches.checkpoint)
        self._batches.discard_replanned()

    def _form_group(self, others: "Sequence[SinkQuery]") -> SharedRoutes:
        sinks = [self._batches, *(query._batches for query in others)]  # noqa: SLF001 - as above
        routes = SharedRoutes(self._job, {it.name: it.columns for it in sinks})
        directory = self._batches.tasks_dir
        self._carried = {query.name: query for query in others}
        named = {query.name: query for query in others}
        on_left = partial(self._on_left, named)
        self._group = Group(sinks, routes, self._budget, directory, on_left)
        now_ns = self._context.clock.monotonic_ns()
        for query in (self, *others):
            query._return.joined(now_ns)  # noqa: SLF001 - as above
        for query in others:
            query._leader, query._state = self, _State.CARRIED  # noqa: SLF001 - as above
        return routes

    def _write(self, frame: DataFrame, number: int) -> None:
        with self._writing:
            if self._group is not None:
                self._group.deliver(frame, number)
                return
            with self._batches.working():
                self._batches.deliver(frame, number)

    def _on_left(self, others: "Mapping[str, SinkQuery]", left: Left) -> None:
        """A sink has left the group that this query reads for; from the thread of a batch."""
        self._log.info("sink_left_group", left=left.sink, reason=left.reason)
        now_ns = self._context.clock.monotonic_ns()
        if left.sink == self.name:
            self._return.left(now_ns)
            return
        query = self._carried.pop(left.sink, None)
        if query is not None:
            query._has_left(left)  # noqa: SLF001 - of this class
        elif left.error is not None:  # it had left because it was late, or the query has ended
            others[left.sink]._failed_with(first_lines(left.reason), now_ns)  # noqa: SLF001 - as above

    def _has_left(self, left: Left) -> None:
        now_ns = self._context.clock.monotonic_ns()
        if left.is_own:
            self._return.left(now_ns)
        if left.error is not None:
            self._failed_with(first_lines(left.reason), now_ns)
        self._alone_from(now_ns if left.error is None else self._start_at_ns)

    def _alone_from(self, start_at_ns: int) -> None:
        self._start_at_ns, self._leader = start_at_ns, None
        if self._state is _State.CARRIED:
            self._state = _State.WAITING

    def _give_back(self, name: str) -> None:
        """Another sink of the group, that has no batch in work, goes on alone."""
        if self._group is not None and self._group.remove(name):
            self._carried.pop(name)._alone_from(0)  # noqa: SLF001 - as above

    def _release_all(self) -> None:
        """The query has ended: sinks that it has read for go on without it."""
        self._group = None
        for name in [*self._carried]:
            query = self._carried.pop(name, None)
            if query is not None:  # else it has just left
                query._alone_from(0)  # noqa: SLF001 - of this class

    def _failed(self, now_ns: int) -> None:
        error = self._query.exception()
        if self._context.stop.is_set():
            self._state = _State.STOPPED
            return
        is_own = self._group is None or self._group.leader_failed
        others = [] if is_own else [*self._carried.values()]
        if is_own and self._group is not None:
            self._return.left(now_ns)
        self._release_all()
        self._state, self.records_per_s = _State.WAITING, 0.0
        for query in (self, *others):
            query._failed_with(reason_of(error), now_ns)  # noqa: SLF001 - of this class

    def _failed_with(self, reason: str, now_ns: int) -> None:
        """Start the query again: at once, if a batch is planned again, else after a pause."""
        batches = self._batches
        if batches.replanned is not None:
            self._start_at_ns = now_ns
            self._log.warning(
                "batch_replanned",
                batch=batches.replanned,
                reason="it has more bytes than the records at its ends suggested; all are measured",
            )
            return
        refusal, batches.refusal = batches.refusal, None
        is_told = refusal is not None and refusal == self.failure
        self._wait_after(refusal or reason, now_ns, is_told=is_told)

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


def reason_of(error: StreamingQueryException | None) -> str:
    """Return the message of a query's failure without Spark's stack traces."""
    if error is None:
        return "the query ended by itself"
    return first_lines(str(error))


def first_lines(text: str) -> str:
    """The error at the bottom of Spark's stack traces."""
    if RESULT_LIMIT in text:
        return (
            f"a batch is larger than {RESULT_LIMIT}, half of spark.driver_memory:"
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

"""A job: its sinks' queries, their progress, its cursors in logd, and an orderly end.

How far each sink has come, told to logd as cursors: the consumer is `JOB/SINK`.

`penstock logd cursors` and whatever watches consumers' lag then show a router's sinks beside every
other reader. The cursors are for people: a job goes on from its checkpoint, never from them.
"""

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from penstock.base.clock import BlockingClock, SystemClock
from penstock.base.errors import DrainCutShortError
from penstock.base.files import atomic_write
from penstock.logd.client import Cursor, LogClient
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.limits import CURSORS_PER_REQUEST_MAX
from penstock.router.checkpoint.local import check_spark_files
from penstock.router.checkpoint.manager import CheckpointManager
from penstock.router.deadletters.replayable import find_dead_letters
from penstock.router.deadletters.stream import NatsDeadLetterPublisher
from penstock.router.errors import LogUnavailableError
from penstock.router.job.config import JobConfig
from penstock.router.job.maintenance import MaintenanceThreads
from penstock.router.job.permissions import require_room_for_dead_letters
from penstock.router.job.routes import check_routes
from penstock.router.job.starting_offsets import first_state, starting_offsets
from penstock.router.meter import Meter
from penstock.router.read.logd_reader import LogdReader, LogState
from penstock.router.read.offset_spec import Goal
from penstock.router.read.offsets import Offsets, Readable, StreamPartition
from penstock.router.replay.bounded_run import BoundedRun
from penstock.router.replay.dead_letters import replay_dead_letters
from penstock.router.replay.service import PATH, ReplayRequest, ReplayService
from penstock.router.sinks import Sink, SinkContext, open_sink
from penstock.router.sinks.sink import PACED_MS
from penstock.router.spark.heap_budget import HeapBudget
from penstock.router.spark.session import HeapExhaustedError, Session
from penstock.router.streaming.query import SinkQuery
from penstock.router.streaming.query_groups import QueryGroups
from penstock.router.telemetry import StatusCollector
from penstock.router.trace.service import TRACE_PATH, TraceService
from penstock.service import (
    Health,
    Stage,
    Status,
    Tracing,
    UnavailableError,
    admin_server,
    release,
)

INTERVAL_S: Final = 5.0
"""Between two commits of cursors; each is a durable write of logd's."""


_SinkPartition = tuple[str, StreamPartition]
"""A sink, and a partition that it reads."""


class CursorPublisher:
    """The cursors of one job.

    Args:
        job: Its name.
        streams: Streams that it reads; it may have cursors in others, which may be gone.
        client: Client of logd.
        clock: Time.
    """

    def __init__(
        self, job: str, streams: Collection[str], client: LogClient, clock: BlockingClock
    ) -> None:
        self._job = job
        self._streams = frozenset(streams)
        self._client = client
        self._clock = clock
        self._known: dict[_SinkPartition, int] = {}
        self._next_ns = clock.monotonic_ns()
        self._log = structlog.get_logger()
        self.problem: str | None = None

    def is_due(self, now_ns: int) -> bool:
        """Return whether what has changed is to be committed again."""
        return now_ns >= self._next_ns

    def publish(self, positions: Mapping[str, Offsets], *, now: bool = False) -> None:
        """Commit what has changed, by sink, when that is due again or wanted `now`.

        A failure is logged once and tried again later; it holds up nothing, no other stream either.
        """
        now_ns = self._clock.monotonic_ns()
        if not self.is_due(now_ns) and not now:
            return
        self._next_ns = now_ns + round(INTERVAL_S * 1e9)
        changed = {
            (sink, at): offset
            for sink, position in positions.items()
            for at, offset in position.next.items()
            if at.stream in self._streams and self._known.get((sink, at)) != offset
        }
        problem = self._commit(changed, positions)
        if problem is not None and self.problem is None:
            self._log.warning("cursor_publish_failed", reason=problem)
        self.problem = problem

    def _commit(
        self, changed: Mapping[_SinkPartition, int], positions: Mapping[str, Offsets]
    ) -> str | None:
        """Commit cursors in pieces that logd takes; returns why some are not committed.

        A piece counts whole or not at all, so of one that is refused each stream is tried alone.
        """
        problem = None
        sink_partitions, size = sorted(changed), CURSORS_PER_REQUEST_MAX
        waiting = [
            sink_partitions[first : first + size] for first in range(0, len(sink_partitions), size)
        ]
        while waiting:
            chunk = waiting.pop()
            try:
                self._client.set_cursors(
                    [
                        self._cursor(sink_partition, changed[sink_partition], positions)
                        for sink_partition in chunk
                    ],
                    rewind=True,
                )
            except RefusedError as error:
                by_stream = [list(it) for _, it in groupby(chunk, _stream_of)]
                if len(by_stream) > 1:
                    waiting += by_stream
                else:
                    problem = str(error)
                continue
            except LogdError as error:
                return str(error)
            self._known |= {sink_partition: changed[sink_partition] for sink_partition in chunk}
        return problem

    def _cursor(
        self, sink_partition: _SinkPartition, offset: int, positions: Mapping[str, Offsets]
    ) -> Cursor:
        sink, at = sink_partition
        return Cursor(
            consumer=f"{self._job}/{sink}",
            stream=at.stream,
            partition=at.partition,
            offset=offset,
            incarnation=positions[sink].stream_ids.get(at.stream, ""),
        )


def _stream_of(sink_partition: _SinkPartition) -> tuple[str, str]:
    """Return the sink and the stream: another sink may have reached the next stream id already."""
    sink, at = sink_partition
    return sink, at.stream


_DRAIN_POLL_S = 0.05
_LOG_EVERY_NS: Final = 2_000_000_000
"""Between two looks at how far the log goes, which logd describes with all streams of the job."""

_CURSOR_TIMEOUT_S = 2.0
"""Maximum seconds in which logd stores cursors at the end of a job."""


_REPLAY_END_S = 2.0
"""Maximum seconds in which a replay notices that the job has ended."""


class Job:
    """Runs a job; every method but `status` is for one thread at a time."""

    def __init__(self, config: JobConfig, *, clock: BlockingClock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._home = CheckpointManager(config, self._clock)
        self._log = LogdReader(
            config.logd,
            retry_timeout_s=config.connect_timeout_s,
            clock=self._clock,
            access=config.source.access(),
        )
        self._session: Session | None = None
        self._queries: list[SinkQuery] = []
        self._maintenance: MaintenanceThreads | None = None
        self._meters: dict[str, Meter] = {}
        self._ends: Mapping[StreamPartition, Readable] = {}
        self._look_at_ns = 0
        self._goal = Goal({}, {}, {})
        self._cursors = LogClient(
            config.logd, timeout_s=_CURSOR_TIMEOUT_S, access=config.source.access()
        )
        self._positions = (
            CursorPublisher(config.job, config.streams, self._cursors, self._clock)
            if config.source.cursors
            else None
        )
        dead_letters = config.dead_letter_stream
        self._dead_letters = (
            NatsDeadLetterPublisher(dead_letters, self._clock) if dead_letters else None
        )
        self._moved: dict[str, tuple[Any, int]] = {}
        self._log_problem: str | None = None
        self._cluster_problem: str | None = None
        self._tracing = Tracing(config.tracing, "router", config.job)
        self._health = Health.STARTING
        registry = CollectorRegistry()
        registry.register(StatusCollector(self.status))
        self._contexts: dict[str, SinkContext] = {}
        self._groups: QueryGroups | None = None
        self._budget = HeapBudget(config.spark, config.working_dir / "out_of_memory.json")
        self._replays = ReplayService(
            config, self._clock, deliver=self._deliver_dead_letters, reopen=self._open_sink
        )
        self._trace = TraceService(config, self._spark_or_none, self._clock)
        self._admin = admin_server(
            self.status,
            registry,
            config.admin_access,
            {PATH: self._replays.answer},
            hosts=config.admin_hosts,
            queries={TRACE_PATH: self._trace.answer},
        )
        self._admin_address = ""
        self._status = self._describe()

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Check everything, start Spark and the queries.

        Args:
            is_stopping: Asked in between; once it says so, no query is started.

        Raises:
            ConfigError: A stream, a route or a sink cannot be used.
            CheckpointVersionError: Another version of Spark wrote a sink's checkpoint.
            CheckpointDamagedError: A file of it is not what it should be.
            UnavailableError: logd or a Java is missing, or an address is taken.
        """
        config = self._config
        require_room_for_dead_letters(config.dead_letters, list(config.sinks))
        self._admin_address = self._admin.start(config.admin)

        def is_stopping_meanwhile() -> bool:
            self._status = self._describe()
            return is_stopping()

        if not self._home.open(is_stopping_meanwhile):
            return
        self._ending.unlink(missing_ok=True)
        log = structlog.get_logger()
        log.info("stream_lookup_started", streams=config.streams, logd=config.logd)
        state = first_state(config, self._log)
        starting = starting_offsets(config, state, self._log, self._clock)
        ends = {at: span.end for at, span in state.readable.items()}
        self._goal = Goal(ends, state.stream_ids, state.written)
        self._contexts = {name: self._context(name, starting) for name in config.sinks}
        for context in self._contexts.values():
            check_spark_files(context.state_dir / "spark")
        sinks = [self._open_sink(name) for name in self._contexts]
        log.info("spark_starting", master=config.spark.master, work_dir=str(config.working_dir))
        self._session = Session.start(
            config.job, config.session, config.working_dir, lock=self._home.descriptor
        )
        self._session.start_workers()
        if is_stopping():
            return
        with self._session.alive():
            check_routes(config, self._session.spark)
        is_asked_for = "max_bytes" in config.trigger.model_fields_set
        if is_asked_for and config.trigger.max_bytes > self._budget.largest:
            log.warning(
                "batch_size_reduced",
                max_bytes=self._budget.largest,
                reason="spark.driver_memory has no room for more: raise it, or lower max_bytes",
            )
        for sink, context in zip(sinks, self._contexts.values(), strict=True):
            self._queries.append(SinkQuery(config, sink, context, starting, self._budget))
        self._groups = QueryGroups(self._queries, config.trigger.max_records, self._clock)
        self._maintenance = MaintenanceThreads(dict(zip(self._contexts, sinks, strict=True)))
        self._write_endpoints()
        self._home.persist_between_batches(self._persist_idle_queries)
        if not is_stopping():
            self.poll()

    def _persist_idle_queries(self) -> None:
        for query in self._queries:
            query.persist_between_batches()

    def poll(self) -> None:
        """Look after the queries and renew the status.

        Raises:
            ServiceError: Spark's JVM has ended, or another process has the job's checkpoints.
        """
        assert self._session is not None
        self._home.require_not_lost()
        try:
            with self._session.alive():
                self._look_after(self._session.spark)
        except HeapExhaustedError:
            self._budget.ran_out()
            raise

    def _look_after(self, spark: SparkSession) -> None:
        self._replays.poll({query.name: query for query in self._queries})
        assert self._session is not None
        assert self._groups is not None
        self._groups.poll(spark)
        now_ns = self._clock.monotonic_ns()
        self._cluster_problem = self._session.executors_missing(now_ns)
        self._session.end_unused_processes(now_ns)
        commits = self._positions is not None and self._positions.is_due(now_ns)
        if commits or now_ns >= self._look_at_ns:
            answers = self._look_at_log()
            self._look_at_ns = now_ns + _LOG_EVERY_NS if answers else now_ns
            if answers and self._positions is not None:
                self._positions.publish({query.name: query.position() for query in self._queries})
        self._health = Health.DEGRADED if self._problems() else Health.READY
        self._status = self._describe()

    def _look_at_log(self) -> bool:
        """See how far the log goes; returns whether logd answers."""
        streams = tuple(self._config.streams)
        try:
            state = self._log.state_now(self._config.subscription, may_be_gone=True)
        except LogUnavailableError as error:
            self._log_problem = f"logd: {error}"
            return False
        self._ends = state.readable
        gone = [repr(name) for name in streams if name not in state.stream_ids]
        self._log_problem = f"logd: it has no stream {', '.join(gone)}" if gone else None
        accepted = not self._config.source.fail_on_data_loss
        self._goal.log_is(state.stream_ids, state.written, losses_are_accepted=accepted)
        return True

    def has_caught_up(self) -> bool:
        """Return whether every sink has all records that were in the log when the job started."""
        return bool(self._queries) and not any(map(self._is_behind, self._queries))

    def stuck(self) -> UnavailableError | None:
        """Return the error that stops the job from catching up, after `retry_timeout_s`.

        A sink is stuck if it is behind, has a problem, and has delivered nothing in that time, in
        which it did not wait for its rate limit either.
        """
        now_ns = self._clock.monotonic_ns()
        limit_s = self._config.source.retry_timeout_s
        for query in filter(self._is_behind, self._queries):
            meter = self._meters[query.name].stage("", received=0, lag=0)
            at = (query.committed(), meter.sent, meter.detail.get(PACED_MS))
            seen, since_ns = self._moved.get(query.name, (None, now_ns))
            problem = query.problem or self._cluster_problem
            if seen != at or problem is None:
                self._moved[query.name] = (at, now_ns)
            elif now_ns - since_ns > limit_s * 1e9:
                return UnavailableError(
                    f"sink/{query.name} has got nothing for {limit_s:g} s: {problem}",
                    fix="correct what keeps it and start the job again; it goes on from there",
                )
        return None

    def _is_behind(self, query: SinkQuery) -> bool:
        """Return whether a sink lacks records that were in the log when the job started."""
        return not self._goal.is_reached(query.position())

    def drain(self) -> None:
        """Let each query finish the batch it works on, and stop it.

        Raises:
            DrainCutShortError: One took longer than `drain_timeout_s`.
        """
        self._health = Health.DRAINING
        self._status = self._describe()
        self._stop.set()
        with suppress(OSError):  # then tasks wait to the end
            atomic_write(self._ending, b"", durable=False)
        if self._maintenance is not None:
            self._maintenance.stop()
        self._budget.forget()
        self._replays.end()
        deadline_ns = self._clock.monotonic_ns() + int(self._config.drain_timeout_s * 1e9)
        busy = list(self._queries)
        while busy and self._clock.monotonic_ns() < deadline_ns:
            stopping = [query for query in busy if not query.writes]
            _stop(stopping)
            busy = [query for query in busy if query not in stopping]
            if busy:
                self._clock.sleep(_DRAIN_POLL_S)
        _stop(busy)
        left_s = max(0, deadline_ns - self._clock.monotonic_ns()) / 1e9
        replaying = self._replays.join(left_s)
        if self._positions is not None:
            self._positions.publish(
                {query.name: query.position() for query in self._queries}, now=True
            )
        self._status = self._describe()
        if busy or replaying:
            named = [query.name for query in busy]
            names = ", ".join([*named, f"a replay to {replaying}"] if replaying else named)
            raise DrainCutShortError(
                f"gave up batches of {names} after {self._config.drain_timeout_s:g} s",
                fix="start the job again; or raise drain_timeout_s",
            )

    def close(self) -> None:
        """Free everything; the job has been drained or failed."""
        self._stop.set()
        if self._maintenance is not None:
            self._maintenance.close()
        self._replays.end()
        if self._session is not None:
            self._session.close()
        replaying = self._replays.join(_REPLAY_END_S)  # it records how it ended
        if self._dead_letters is not None:
            self._dead_letters.close()
        self._cursors.close()
        self._log.close()
        self._endpoints.unlink(missing_ok=True)
        self._tracing.close()
        self._admin.close()
        self._trace.close()
        publishes = replaying is not None or any(query.delivers for query in self._queries)
        self._home.close(publishes=publishes)

    def _spark_or_none(self) -> SparkSession | None:
        return None if self._session is None else self._session.spark

    def status(self) -> Status:
        """The job's account of itself, as of the last `poll`."""
        return self._status

    @property
    def _endpoints(self) -> Path:
        return self._config.checkpoint_dir / "endpoints.json"

    @property
    def _ending(self) -> Path:
        return self._config.working_dir.resolve() / "ending"

    def _context(self, sink: str, starting: Offsets) -> SinkContext:
        self._meters[sink] = Meter()
        state_dir = self._config.checkpoint_dir.resolve() / sink
        state_dir.mkdir(parents=True, exist_ok=True)
        return SinkContext(
            job=self._config.job,
            sink=sink,
            stream_ids=dict(starting.stream_ids),
            state_dir=state_dir,
            dead_letters=self._config.dead_letters.resolve(),
            meter=self._meters[sink],
            stop=self._stop,
            clock=self._clock,
            dead_letter_stream=self._dead_letters,
            tracer=self._tracing.tracer,
            rules=self._config.rules_to(sink),
            ending=self._ending,
            persist=partial(self._home.persist, sink),
        )

    def _open_sink(self, name: str) -> Sink:
        return open_sink(self._config.sinks[name], self._contexts[name])

    def _deliver_dead_letters(self, replay: ReplayRequest) -> int:
        assert self._session is not None
        run = BoundedRun(
            self._config,
            self._session,
            LogState({}, {}),
            self._dead_letters,
            self._clock,
            self._home,
        )
        run.stop, run.progress, run.budget = replay.stop, replay.progress, self._budget
        files = find_dead_letters(self._config.dead_letters, sink=replay.sink)
        log = structlog.get_logger().bind(by=replay.by)
        return replay_dead_letters(
            run, files, replay.target, lambda line: log.info("replay_progress", line=line)
        )

    def _write_endpoints(self) -> None:
        assert self._session is not None
        addresses = {"admin": self._admin_address, "spark_ui": self._session.ui}
        atomic_write(self._endpoints, json.dumps(addresses).encode(), parents=True)
        structlog.get_logger().info("ready", job=self._config.job, **addresses)

    def _problems(self) -> tuple[str, ...]:
        found = [f"sink/{query.name}: {query.problem}" for query in self._queries if query.problem]
        return tuple(found + [it for it in self._other_problems() if it])

    def _other_problems(self) -> Iterator[str | None]:
        yield self._replays.problem
        yield None if self._maintenance is None else self._maintenance.problem
        yield self._log_problem
        yield self._cluster_problem
        yield self._home.problem

    def _describe(self) -> Status:
        committed = {query.name: query.committed() for query in self._queries}
        return Status(
            component="router",
            name=self._config.job,
            version=release(),
            health=self._health,
            reasons=self._problems(),
            stages=tuple(self._stage(query, committed[query.name]) for query in self._queries),
            info=self._info(committed),
        )

    def _stage(self, query: SinkQuery, committed: Mapping[StreamPartition, int]) -> Stage:
        lag = sum(max(span.end - committed.get(at, 0), 0) for at, span in self._ends.items())
        return self._meters[query.name].stage(query.name, received=query.received, lag=lag)

    def _info(self, committed: Mapping[str, Mapping[StreamPartition, int]]) -> dict[str, Any]:
        """Offsets by stream; of several partitions their sum, of several sinks the slowest."""
        now_ns = self._clock.monotonic_ns()
        by_sink = {sink: _by_stream(at) for sink, at in committed.items()}
        slowest = {
            stream: min((at.get(stream, 0) for at in by_sink.values()), default=0)
            for stream in self._config.streams
        }
        return {
            "committed": slowest,
            "log": _by_stream({at: span.end for at, span in self._ends.items()}),
            "sinks": {
                query.name: {
                    "committed": by_sink[query.name],
                    "truncated": [
                        {"stream": at.stream, "partition": at.partition, "offset": offset}
                        | {"generation": number}
                        for at, generations in sorted(query.position().generations.items())
                        for offset, number in generations
                    ],
                    "reads_with": query.reads_with,
                    "restarts": query.restarts,
                    "records_per_s": query.records_per_s,
                    "batch_s": query.batch_s(now_ns),
                    "problem": query.problem,
                    "circuit": query.circuit.as_json(now_ns),
                }
                for query in self._queries
            },
            "cursors": self._positions.problem if self._positions else "off",
            "dead_letter_stream": self._dead_letters.problem if self._dead_letters else "off",
            "tracing": self._tracing.counts(),
            "replays": self._replays.info(),
            "checkpoint_store": self._home.info() or "off",
            "spark_ui": self._session.ui if self._session else None,
        }


def _stop(queries: Sequence[SinkQuery]) -> None:
    """End queries; first those that read for others, because only they can end the tasks of all."""
    for query in sorted(queries, key=lambda it: it.reads_with is not None):
        query.stop()


def _by_stream(offsets: Mapping[StreamPartition, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for at, offset in offsets.items():
        found[at.stream] = found.get(at.stream, 0) + offset
    return found

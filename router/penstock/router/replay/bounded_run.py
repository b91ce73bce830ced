"""A bounded run: a Spark session that reads what a preview or a replay asks for, and ends."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.base.clock import BlockingClock, SystemClock
from penstock.router.checkpoint.local import committed_offsets
from penstock.router.checkpoint.manager import CheckpointManager
from penstock.router.columns.passthrough import repeated_row
from penstock.router.columns.schema import view
from penstock.router.deadletters.replayable import DeadLetter, as_rows
from penstock.router.deadletters.stream import NatsDeadLetterPublisher
from penstock.router.delivery.batch_names import POSITION, positions_of
from penstock.router.errors import RepeatedRowError, StoppedError
from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.job.config import JobConfig
from penstock.router.job.permissions import require_its_user, require_room_for_dead_letters
from penstock.router.job.routes import Routed, check_routes, steps_to
from penstock.router.job.starting_offsets import first_state
from penstock.router.meter import Meter
from penstock.router.read.batch_sizes import TASK_BYTES, LargestFrame, PlannedBytes
from penstock.router.read.logd_reader import LogdReader, LogState
from penstock.router.read.offsets import Offsets, generations_of
from penstock.router.replay.backfill_plan import Chunk
from penstock.router.replay.progress import Progress, Report, silent
from penstock.router.sinks import Sink, SinkContext, open_sink
from penstock.router.sinks.sink import persist_nothing
from penstock.router.spark.readers import Steps, read
from penstock.router.spark.session import Session, SparkEndedError
from penstock.router.streaming.batches import logd_options
from penstock.router.streaming.query import first_lines
from penstock.service import ConfigError, ExitCode, ServiceError, UnavailableError

if TYPE_CHECKING:
    from penstock.router.spark.heap_budget import HeapBudget

RowsTo = Callable[[str, Sequence[str]], pa.Table]
"""The rows that routes lead to a sink, of the columns named; raises `RunFailedError`."""


class RunFailedError(ServiceError):
    """Spark could not read or route; what came before is delivered."""

    exit_code = ExitCode.TEMPORARY


class ReplayStoppedError(ServiceError):
    """A user ended a replay; what it reported is delivered."""

    exit_code = ExitCode.TEMPORARY


class BoundedRun:
    """A Spark session and a job's parts, for one run.

    Args:
        state: The log at the beginning.
        home: The job's checkpoints, where the run may write to its sinks.

    Attributes:
        stop: Ends it, set by its owner; sinks that wait give up.
        budget: Heap budget, where a job's queries share the session; None: the run has the heap
            alone.
    """

    def __init__(
        self,
        config: JobConfig,
        spark: Session,
        state: LogState,
        dead_letters: NatsDeadLetterPublisher | None,
        clock: BlockingClock,
        home: CheckpointManager | None = None,
    ) -> None:
        self.config = config
        self.session = spark
        self.state = state
        self.stop = threading.Event()
        self.progress = Progress("batches")
        self._dead_letters = dead_letters
        self._clock = clock
        self._home = home
        self.budget: HeapBudget | None = None

    def read(self, chunk: Chunk, steps: Steps) -> pa.Table:
        """Return the result of steps on the typed rows of a chunk of the log.

        Raises:
            RunFailedError: Spark fails.
        """
        options = self.options(chunk)
        return collect(read(self.session.spark, options, steps, view="records", streaming=False))

    def rows(self, chunk: Chunk) -> RowsTo:
        """Return the rows of a chunk of the log."""

        def rows_to(sink: str, columns: Sequence[str]) -> pa.Table:
            routed = Routed(self.config, sink, columns)
            frame = routed.frame(self.session.spark, self.options(chunk), streaming=False)
            with self._in_heap(None):
                return routed.unpacking.collected(collect(frame))

        return rows_to

    def dead_letter_rows(self, dead_letters: Sequence[DeadLetter]) -> RowsTo:
        """Return the rows of dead letters, typed as if they were read now.

        The function that is returned raises `RepeatedRowError` if a step makes several rows of one.

        Raises:
            RunFailedError: One is larger than the heap has room for beside the job's queries.
        """
        table, struct = as_rows(dead_letters), view("records").struct()
        self._require_room(table)

        def rows_to(sink: str, columns: Sequence[str]) -> pa.Table:
            wanted = [*columns, *(name for name in POSITION if name not in columns)]
            with self._in_heap(table.nbytes):
                frame = self.session.spark.createDataFrame(table, struct)
                rows = collect(steps_to(sink, self.config, wanted)(frame))
            if Counter(positions_of(rows)) - Counter(positions_of(table)):
                raise repeated_row()
            return rows.select(list(columns))

        return rows_to

    def _in_heap(self, size: int | None) -> AbstractContextManager[None]:
        """Within it, records of so many bytes may be in the heap; None: nobody knows how many."""
        if self.budget is None:
            return nullcontext()
        return self.budget.holding(size, self.stop.is_set)

    def _require_room(self, table: pa.Table) -> None:
        """Refuse a record that the heap has no room for: the JVM would end, with every query."""
        sizes = pc.fill_null(pc.binary_length(table.column("value")), 0)
        size = pc.max(sizes).as_py() or 0
        if self.budget is None or size <= self.budget.largest:
            return
        row = table.slice(pc.index(sizes, size).as_py(), 1).to_pylist()[0]
        at = row["offset"]
        frame = LargestFrame(row["stream"], row["partition"], at, at + 1, size)
        refusal = self.budget.refusal(PlannedBytes({}, size, True, frame))
        raise RunFailedError(
            f"a dead letter is too large: {refusal}",
            fix="raise the memory that it names and start the job again, or replay the others by"
            " name",
        )

    def options(self, chunk: Chunk) -> dict[str, str]:
        """Return Spark's options for a chunk of the log."""
        at = (Offsets(it, self.state.stream_ids) for it in (chunk.start, chunk.end))
        return logd_options(self.config, *at) | {"maxBytesPerTask": str(TASK_BYTES)}

    def open_sink(self, name: str, context: SinkContext) -> Sink:
        """A sink of the job's, open.

        Raises:
            ConfigError: The destination cannot be used.
        """
        return open_sink(self.config.sinks[name], context)

    def reading(self) -> LogdReader:
        """A reader of the log beside Spark."""
        return _reading(self.config, self._clock)

    def context(
        self, sink: str, state_dir: Path, *, fresh: bool = True, of_dead_letters: bool = False
    ) -> SinkContext:
        """Return a sink's context; `state_dir` is the run's own, so that the job's is not changed.

        `fresh` removes what an earlier run left there. `of_dead_letters`: as in `SinkContext`.

        Raises:
            ConfigError: The directory cannot be made.
        """
        try:
            if fresh:
                with suppress(FileNotFoundError):
                    shutil.rmtree(state_dir)
            state_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{error.filename or state_dir}: {error.strerror}",
                fix=f"let this user write to {state_dir}, or remove it",
            ) from None
        home = self.config.checkpoint_dir.resolve() / sink
        done = committed_offsets(home / "spark") or Offsets({})
        return SinkContext(
            job=self.config.job,
            sink=sink,
            stream_ids=dict(self.state.stream_ids),
            generations=generations_of(self.state.stream_ids, done),
            state_dir=state_dir,
            dead_letters=self.config.dead_letters.resolve(),
            meter=Meter(),
            stop=self.stop,
            clock=self._clock,
            dead_letter_stream=self._dead_letters,
            of_dead_letters=of_dead_letters,
            persist=partial(self._home.persist, sink) if self._home else persist_nothing,
        )

    def deliver(self, batch_writer: BatchWriter, sink: str, rows: RowsTo, batch: int) -> int:
        """Route rows to a sink and feed it; returns how many routes lead there.

        Raises:
            RunFailedError: Spark failed, or the sink did.
            SparkEndedError: Its JVM ended.
            StoppedError: It is to end; the rows come again.
            UnavailableError: The job's checkpoints are another process's, or their store is away.
        """
        if self.stop.is_set():
            raise StoppedError("it was to end before this batch")
        try:
            with self.session.alive():
                table = rows(sink, batch_writer.steps.columns)
        except (RunFailedError, SparkEndedError, Py4JError, OSError, EOFError):
            if self.stop.is_set():  # the user's stop has cancelled Spark's part, or ended it, too
                raise StoppedError("it was to end while Spark read") from None
            raise
        except RepeatedRowError as error:
            raise RunFailedError(
                str(error), fix="correct the table and start it again; what was delivered stays"
            ) from None
        before = self.progress.meter.counted()
        if table.num_rows:
            self._give(batch_writer, sink, table, batch)
        self.progress.took(table.num_rows, before)
        return int(table.num_rows)

    def _give(self, batch_writer: BatchWriter, sink: str, table: pa.Table, batch: int) -> None:
        try:
            if self._home is not None:
                self._home.persist(sink)  # not every sink does
            batch_writer.give(table, batch)
        except NotNowError as error:
            raise UnavailableError(
                str(error), fix="the same replay, asked for again, goes on from there"
            ) from None


@contextmanager
def bounded_run(
    config: JobConfig, *, needs_lock: bool, needs_log: bool = True, tell: Report = silent
) -> Iterator[BoundedRun]:
    """Start what a run needs, and free it.

    Args:
        config: The job.
        needs_lock: Whether the job must not run meanwhile, for the run writes to its sinks.
        needs_log: Whether the log is read.
        tell: Takes a line of what is being done until the block begins.

    Raises:
        ConfigError: A stream or a route cannot be used; or root asks for what is another user's.
        UnavailableError: The job runs, or logd or a Java is missing.
    """
    clock = SystemClock()
    home: CheckpointManager | None = None
    with ExitStack() as stack:
        if needs_lock:
            require_its_user(config.checkpoint_dir)
            home = CheckpointManager(config, clock)
            stack.callback(home.close)
            _take(home, config, clock)
            require_room_for_dead_letters(config.dead_letters, list(config.sinks))
        state = LogState({}, {})
        if needs_log:
            tell(f"looks for {', '.join(config.streams)} in logd at {config.logd} …")
            with _reading(config, clock) as reading:
                state = first_state(config, reading)
        tell("starts Spark, which takes some seconds …")
        work = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-router-")))
        session = Session.start(config.job, config.session, work)
        stack.callback(session.close)
        check_routes(config, session.spark)
        tell("Spark runs")
        dead_letters = None
        if config.dead_letter_stream is not None:
            dead_letters = NatsDeadLetterPublisher(config.dead_letter_stream, clock)
            stack.callback(dead_letters.close)
        yield BoundedRun(config, session, state, dead_letters, clock, home)


def _take(home: CheckpointManager, config: JobConfig, clock: BlockingClock) -> None:
    """Get the store of the job's checkpoints, unless the job runs somewhere."""
    lease_s = config.checkpoint_store.lease_s if config.checkpoint_store else 0
    deadline_ns = clock.monotonic_ns() + round((2 * lease_s + config.connect_timeout_s) * 1e9)
    if not home.open(lambda: clock.monotonic_ns() > deadline_ns):
        raise UnavailableError(home.problem or "checkpoint_store is in use", fix="stop that job")


def collect(frame: DataFrame) -> pa.Table:
    """The rows of a frame.

    Raises:
        RunFailedError: Spark cannot make them.
    """
    try:
        return frame.toArrow()
    except (PySparkException, Py4JJavaError) as error:
        raise RunFailedError(
            first_lines(str(error)), fix="see the reason; what was delivered is delivered"
        ) from None


def _reading(config: JobConfig, clock: BlockingClock) -> LogdReader:
    return LogdReader(
        config.logd,
        retry_timeout_s=config.connect_timeout_s,
        clock=clock,
        access=config.source.access(),
    )

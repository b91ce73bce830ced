"""Runs with an end: backfills, replays of dead letters, previews; the job itself must not run."""

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.router.batches import BatchJournal
from penstock.router.checkpoint import JobLock, StartingOffsets, committed_offsets
from penstock.router.clock import Clock, SystemClock
from penstock.router.config import JobConfig
from penstock.router.core.backfill import Chunk, Position, chunks, of_this_life
from penstock.router.core.offsets import Offsets, StreamPartition
from penstock.router.errors import DataLossError, LogUnavailableError
from penstock.router.feed import Feed
from penstock.router.frames import Steps, read
from penstock.router.letter_stream import NatsLetterStream
from penstock.router.letters import Letter, LetterFile, as_rows
from penstock.router.query import first_lines, logd_options
from penstock.router.reading import LogReading, LogState
from penstock.router.routes import check_routes, steps_to
from penstock.router.session import Session
from penstock.router.sinks import SinkContext, open_sink
from penstock.router.telemetry import Meter
from penstock.router.views import view
from penstock.service import ConfigError, ExitCode, ServiceError, UnavailableError

Report = Callable[[str], None]
Rows = Callable[[Steps], DataFrame]
"""Rows of the view `records`, from which only what the steps need is read."""


class RunFailedError(ServiceError):
    """Spark could not read or route; what came before is delivered."""

    exit_code = ExitCode.TEMPORARY


class BoundedRun:
    """A Spark session and a job's parts, for one run.

    Args:
        config: The job.
        spark: The session.
        state: The log at the beginning.
        letters: Where dead letters go beside their files.
        clock: Time.

    Attributes:
        stop: Ends it, set by whoever has it; sinks that wait give up.
    """

    def __init__(
        self,
        config: JobConfig,
        spark: Session,
        state: LogState,
        letters: NatsLetterStream | None,
        clock: Clock,
    ) -> None:
        self.config = config
        self.session = spark
        self.state = state
        self.stop = threading.Event()
        self._letters = letters
        self._clock = clock

    def rows(self, chunk: Chunk) -> Rows:
        """The typed rows of a chunk of the log."""
        at = (Offsets(it, self.state.incarnations) for it in (chunk.start, chunk.end))
        options = logd_options(self.config, *at)
        spark = self.session.spark
        return lambda steps: read(spark, options, steps, view="records", streaming=False)

    def letter_rows(self, letters: Sequence[Letter]) -> Rows:
        """The typed rows of dead letters, as if they were read now."""
        rows = self.session.spark.createDataFrame(as_rows(letters), view("records").struct())
        return lambda steps: steps(rows)

    def context(self, sink: str, state_dir: Path) -> SinkContext:
        """What a sink gets; `state_dir` is the run's own, so that the job's is as it was."""
        shutil.rmtree(state_dir, ignore_errors=True)
        state_dir.mkdir(parents=True)
        return SinkContext(
            job=self.config.job,
            sink=sink,
            incarnations=dict(self.state.incarnations),
            state_dir=state_dir,
            dead_letters=self.config.dead_letters.resolve(),
            meter=Meter(),
            stop=self.stop,
            clock=self._clock,
            letter_stream=self._letters,
        )

    def deliver(self, feed: Feed, sink: str, rows: Rows, batch: int) -> int:
        """Route rows to a sink and feed it; returns how many it got.

        Raises:
            RunFailedError: Spark failed, or the sink did.
        """
        table = collect(rows(steps_to(sink, self.config, feed.columns)))
        if table.num_rows:
            feed.give(table, batch)
        return int(table.num_rows)


@contextmanager
def bounded_run(
    config: JobConfig, *, needs_lock: bool, needs_log: bool = True
) -> Iterator[BoundedRun]:
    """Start what a run needs, and free it.

    Args:
        config: The job.
        needs_lock: Whether the job must not run meanwhile, for the run writes to its sinks.
        needs_log: Whether the log is read.

    Raises:
        ConfigError: A stream or a route cannot be used.
        UnavailableError: The job runs, or logd or a Java is missing.
    """
    clock = SystemClock()
    with ExitStack() as stack:
        if needs_lock:
            lock = JobLock(config.checkpoint_dir, wait_s=config.connect_timeout_s, clock=clock)
            stack.callback(lock.release)
        state = _state(config, clock) if needs_log else LogState({}, {})
        work = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-router-")))
        session = Session.start(config.job, config.session, work)
        stack.callback(session.close)
        check_routes(config, session.spark)
        letters = None
        if config.dead_letter_stream is not None:
            letters = NatsLetterStream(config.dead_letter_stream)
            stack.callback(letters.close)
        yield BoundedRun(config, session, state, letters, clock)


def backfill(
    run: BoundedRun,
    sink: str,
    first: Position,
    upto: Mapping[StreamPartition, int | None],
    tell: Report,
) -> int:
    """Deliver a range of the log to one sink again, in the batches it got then.

    Args:
        run: The run.
        sink: Its name.
        first: Where to begin, of every partition.
        upto: Where to end; None is as far as the sink has come.
        tell: Takes a line for each batch.

    Returns:
        How many rows the sink got.

    Raises:
        ConfigError: The log does not hold the range, or there is nothing in it.
        RunFailedError: Spark or the sink failed; the batches told of are delivered.
    """
    config = run.config
    home = config.checkpoint_dir.resolve() / sink
    done = committed_offsets(home / "spark") or StartingOffsets(config.checkpoint_dir).load()
    last = {
        at: max(begin, done.next.get(at, 0) if upto[at] is None else upto[at] or 0)
        for at, begin in first.items()
    }
    ends = of_this_life(BatchJournal(home).ends(), run.state.incarnations)
    parts = list(chunks(first, last, ends, config.trigger.records_max))
    if not parts:
        raise ConfigError("there is nothing between --from and --to", fix="widen the range")
    _check_readable(run.state, parts)
    context = run.context(sink, home / "replay")
    feed = Feed(config, open_sink(config.sinks[sink], context), context)
    feed.begin_anew()
    rows = 0
    with closing(feed):
        for batch, part in enumerate(parts):
            count = run.deliver(feed, sink, run.rows(part), batch)
            rows += count
            tell(f"batch {batch + 1} of {len(parts)}: {count} records, {_range(part)}")
    return rows


def replay_letters(
    run: BoundedRun, files: Sequence[LetterFile], sink: str | None, tell: Report
) -> int:
    """Deliver dead letters again, a file at a time, and mark each once it is delivered.

    The target's routes apply, conditions and transforms alike: what they do not want is told of.

    Args:
        run: The run.
        files: Which.
        sink: The target; without it, the sink that refused them.
        tell: Takes a line for each file.

    Returns:
        How many rows sinks got.

    Raises:
        ConfigError: A target is no sink of the job's.
        RunFailedError: Spark or the sink failed; the files told of are delivered.
    """
    targets: dict[str, _Target] = {}
    rows = 0
    with ExitStack() as stack:
        for number, file in enumerate(files):
            name = sink or file.sink
            if name not in targets:
                targets[name] = _Target.open(run, name)
                stack.callback(targets[name].feed.close)
            rows += _replay_file(run, targets[name], file, number, tell)
    return rows


@dataclass(frozen=True, slots=True)
class _Target:
    """A sink that gets dead letters."""

    name: str
    feed: Feed
    context: SinkContext

    @classmethod
    def open(cls, run: BoundedRun, name: str) -> "_Target":
        config = run.config
        if name not in config.sinks:
            raise ConfigError(
                f"the job has no sink {name!r} any more", fix="name another one with --to"
            )
        context = run.context(name, config.checkpoint_dir.resolve() / name / "replay")
        return cls(name, Feed(config, open_sink(config.sinks[name], context), context), context)

    def refused(self) -> int:
        return self.context.meter.stage("", received=0, lag=0).detail.get("dead_letters", 0)


def _replay_file(
    run: BoundedRun, target: _Target, file: LetterFile, number: int, tell: Report
) -> int:
    begun = file.begin()
    letters = begun.letters()
    lives = {letter["stream"]: letter.get("incarnation", "") for letter in letters}
    target.context.incarnations.update(lives)
    refused_before = target.refused()
    target.feed.begin_anew()  # offsets of one file may lie between those of another
    count = run.deliver(target.feed, target.name, run.letter_rows(letters), number)
    begun.end()
    refused = target.refused() - refused_before
    notes = f", {refused} refused again" if refused else ""
    if count < len(letters):
        notes += f", {len(letters) - count} that no route leads to {target.name}"
    tell(f"{file.name}: {count} of {len(letters)} to {target.name}{notes}")
    return count


def collect(frame: DataFrame) -> pa.Table:
    """The rows of a frame.

    Raises:
        RunFailedError: Spark cannot make them.
    """
    try:
        return frame.toArrow()
    except PySparkException as error:
        raise RunFailedError(
            first_lines(str(error)), fix="see the reason; what was delivered is delivered"
        ) from None


def _state(config: JobConfig, clock: Clock) -> LogState:
    reading = LogReading(
        config.logd,
        retry_timeout_s=config.connect_timeout_s,
        clock=clock,
        access=config.source.access(),
    )
    with reading:
        try:
            return reading.state(tuple(config.streams))
        except LogUnavailableError as error:
            raise UnavailableError(f"logd: {error}", fix="start logd, or correct `logd`") from None
        except DataLossError as error:
            raise ConfigError(f"streams: {error}", fix="correct the key `streams`") from None


def _check_readable(state: LogState, parts: Sequence[Chunk]) -> None:
    for where, span in state.readable.items():
        begin = min(part.start[where] for part in parts)
        end = max(part.end[where] for part in parts)
        if begin < end and (begin < span.start or end > span.end):
            raise ConfigError(
                f"{where.stream}/{where.partition}: offsets {begin} to {end - 1} are wanted, with"
                f" the batches they came in, but the log holds {span.start} to {span.end - 1}",
                fix="begin later with --from, or end earlier with --to",
            )


def _range(part: Chunk) -> str:
    spans = [
        f"{where.stream}/{where.partition} {begin} to {part.end[where] - 1}"
        for where, begin in sorted(part.start.items())
        if part.end[where] > begin
    ]
    return ", ".join(spans)

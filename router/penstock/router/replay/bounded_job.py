"""Runs with an end: previews, replays of ranges (`backfill`) and, here, of dead letters."""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.base.clock import BlockingClock, SystemClock
from penstock.router.checkpoint.local import committed_offsets
from penstock.router.checkpoint.manager import CheckpointManager
from penstock.router.columns.schema import view
from penstock.router.deadletters.files import (
    DeadLetter,
    DeadLetterFile,
    DeadLetterLimits,
    FileBatch,
    MalformedDeadLetterError,
    as_rows,
)
from penstock.router.deadletters.stream import NatsDeadLetterPublisher
from penstock.router.errors import StoppedError
from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.job.config import JobConfig
from penstock.router.job.permissions import require_its_user, require_room_for_letters
from penstock.router.job.query import first_lines, logd_options
from penstock.router.job.routes import Routed, check_routes, steps_to
from penstock.router.job.starting_offsets import first_state
from penstock.router.read.batch_sizes import TASK_BYTES
from penstock.router.read.logd_reader import LogdReader, LogState
from penstock.router.read.offsets import Offsets, StreamPartition, generations_of
from penstock.router.replay.backfill_plan import Chunk
from penstock.router.replay.progress import Progress, Report, silent
from penstock.router.sinks import Sink, SinkContext, open_sink
from penstock.router.sinks.sink import keep_nothing
from penstock.router.spark.readers import Steps, read
from penstock.router.spark.session import Session, SparkEndedError
from penstock.router.telemetry import Meter
from penstock.service import ConfigError, ExitCode, ServiceError, UnavailableError

RowsTo = Callable[[str, Sequence[str]], pa.Table]
"""The rows that routes lead to a sink, of the columns named; raises `RunFailedError`."""


class RunFailedError(ServiceError):
    """Spark could not read or route; what came before is delivered."""

    exit_code = ExitCode.TEMPORARY


class ReplayStoppedError(ServiceError):
    """Somebody ended a replay; what it told of is delivered."""

    exit_code = ExitCode.TEMPORARY


class BoundedRun:
    """A Spark session and a job's parts, for one run.

    Args:
        config: The job.
        spark: The session.
        state: The log at the beginning.
        letters: Where dead letters go beside their files.
        clock: Time.
        home: The job's checkpoints, where the run may write to its sinks.

    Attributes:
        stop: Ends it, set by whoever has it; sinks that wait give up.
        progress: Of a replay.
    """

    def __init__(
        self,
        config: JobConfig,
        spark: Session,
        state: LogState,
        letters: NatsDeadLetterPublisher | None,
        clock: BlockingClock,
        home: CheckpointManager | None = None,
    ) -> None:
        self.config = config
        self.session = spark
        self.state = state
        self.stop = threading.Event()
        self.progress = Progress("batches")
        self._letters = letters
        self._clock = clock
        self._home = home

    def read(self, chunk: Chunk, steps: Steps) -> pa.Table:
        """What steps make of the typed rows of a chunk of the log.

        Raises:
            RunFailedError: Spark fails.
        """
        options = self.options(chunk)
        return collect(read(self.session.spark, options, steps, view="records", streaming=False))

    def rows(self, chunk: Chunk) -> RowsTo:
        """Those of a chunk of the log."""

        def rows_to(sink: str, columns: Sequence[str]) -> pa.Table:
            routed = Routed(self.config, sink, columns)
            frame = routed.frame(self.session.spark, self.options(chunk), streaming=False)
            return routed.rows(collect(frame))

        return rows_to

    def letter_rows(self, letters: Sequence[DeadLetter]) -> RowsTo:
        """Those of dead letters, typed as if they were read now."""
        table, struct = as_rows(letters), view("records").struct()

        def rows_to(sink: str, columns: Sequence[str]) -> pa.Table:
            frame = self.session.spark.createDataFrame(table, struct)
            return collect(steps_to(sink, self.config, list(columns))(frame))

        return rows_to

    def options(self, chunk: Chunk) -> dict[str, str]:
        """With which Spark reads a chunk of the log."""
        at = (Offsets(it, self.state.incarnations) for it in (chunk.start, chunk.end))
        return logd_options(self.config, *at) | {"maxBytesPerTask": str(TASK_BYTES)}

    def open_sink(self, name: str, context: SinkContext) -> Sink:
        """A sink of the job's, open.

        Raises:
            ConfigError: The destination cannot be used.
        """
        return open_sink(self.config.sinks[name], context)

    def reading(self) -> LogdReader:
        """Of the log, for whoever looks at it beside Spark."""
        return _reading(self.config, self._clock)

    def context(
        self, sink: str, state_dir: Path, *, anew: bool = True, of_letters: bool = False
    ) -> SinkContext:
        """What a sink gets; `state_dir` is the run's own, so that the job's is as it was.

        `anew`: nothing of an earlier run is left there. `of_letters`: as in `SinkContext`.

        Raises:
            ConfigError: That cannot be.
        """
        try:
            if anew:
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
            incarnations=dict(self.state.incarnations),
            generations=generations_of(self.state.incarnations, done),
            state_dir=state_dir,
            dead_letters=self.config.dead_letters.resolve(),
            meter=Meter(),
            stop=self.stop,
            clock=self._clock,
            letter_stream=self._letters,
            of_letters=of_letters,
            keep=partial(self._home.keep, sink) if self._home else keep_nothing,
        )

    def deliver(self, feed: BatchWriter, sink: str, rows: RowsTo, batch: int) -> int:
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
                table = rows(sink, feed.columns)
        except (RunFailedError, SparkEndedError, Py4JError, OSError, EOFError):
            if self.stop.is_set():  # whoever ended it cancelled Spark's part, or ended it, too
                raise StoppedError("it was to end while Spark read") from None
            raise
        before = self.progress.meter.counted()
        if table.num_rows:
            self._give(feed, sink, table, batch)
        self.progress.took(table.num_rows, before)
        return int(table.num_rows)

    def _give(self, feed: BatchWriter, sink: str, table: pa.Table, batch: int) -> None:
        try:
            if self._home is not None:
                self._home.keep(sink)  # not every sink does
            feed.give(table, batch)
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
            require_room_for_letters(config.dead_letters, list(config.sinks))
        state = LogState({}, {})
        if needs_log:
            tell(f"looks for {', '.join(config.streams)} in logd at {config.logd} …")
            state = _state(config, clock)
        tell("starts Spark, which takes some seconds …")
        work = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-router-")))
        session = Session.start(config.job, config.session, work)
        stack.callback(session.close)
        check_routes(config, session.spark)
        tell("Spark runs")
        letters = None
        if config.dead_letter_stream is not None:
            letters = NatsDeadLetterPublisher(config.dead_letter_stream, clock)
            stack.callback(letters.close)
        yield BoundedRun(config, session, state, letters, clock, home)


def _take(home: CheckpointManager, config: JobConfig, clock: BlockingClock) -> None:
    """Get the store of the job's checkpoints, unless the job runs somewhere."""
    lease_s = config.checkpoint_store.lease_s if config.checkpoint_store else 0
    deadline_ns = clock.monotonic_ns() + round((2 * lease_s + config.connect_timeout_s) * 1e9)
    if not home.open(lambda: clock.monotonic_ns() > deadline_ns):
        raise UnavailableError(home.problem or "checkpoint_store is in use", fix="stop that job")


def replay_letters(
    run: BoundedRun, files: Sequence[DeadLetterFile], sink: str | None, tell: Report
) -> int:
    """Deliver dead letters again, and mark each file once its letters are delivered.

    Small files of a sink are delivered together, up to a piece of letters; a large one is delivered
    piece by piece. The target's routes apply, conditions and transforms alike: what they do not
    want is told of.

    Args:
        run: The run.
        files: Which.
        sink: The target; without it, the sink that refused them.
        tell: Takes a line for each batch of files.

    Returns:
        How many rows sinks got.

    Raises:
        ConfigError: A target is no sink of the job's.
        OddLetterError: Of a file not every letter can be delivered; all other files are.
        RunFailedError: Spark or the sink failed; the files told of are delivered.
        ReplayStoppedError: `run.stop` was set; likewise.
    """
    progress = run.progress
    progress.unit, progress.of = "files", len(files)
    progress.begin_anew()
    with ExitStack() as stack:
        replay = _LetterReplay(run, sink, tell, stack)
        try:
            for file in replay.finish_left(files):
                replay.take(file)
            replay.deliver_batch()
        except StoppedError:
            raise ReplayStoppedError(
                f"the replay of dead letters was stopped after {progress}",
                fix="the same replay, asked for again, goes on from there",
            ) from None
    for one in replay.odd.values():
        raise MalformedDeadLetterError(
            f"passed over with others like it: {one}" if len(replay.odd) > 1 else str(one),
            fix=f"{one.fix}; the other files were delivered, and a replay anew takes the rest",
        )
    return progress.records


@dataclass(frozen=True, slots=True)
class _Target:
    """A sink that gets dead letters."""

    name: str
    feed: BatchWriter
    context: SinkContext

    @classmethod
    def open(cls, run: BoundedRun, name: str) -> "_Target":
        config = run.config
        if name not in config.sinks:
            raise ConfigError(
                f"the job has no sink {name!r} any more", fix="name another one with --to"
            )
        state_dir = config.checkpoint_dir.resolve() / name / "replay-letters"
        context = run.context(name, state_dir, of_letters=True)
        return cls(name, BatchWriter(config, run.open_sink(name, context), context), context)


class _LetterReplay:
    """Brings files of dead letters to their targets.

    Args:
        run: The run.
        sink: The target of all; None: each file's own sink.
        tell: Takes a line for each batch of files.
        stack: Closes the targets.

    Attributes:
        odd: Files of which not every letter can be delivered, by name.
    """

    def __init__(self, run: BoundedRun, sink: str | None, tell: Report, stack: ExitStack) -> None:
        self.odd: dict[str, MalformedDeadLetterError] = {}
        self._run = run
        self._sink = sink
        self._tell = tell
        self._stack = stack
        self._targets: dict[str, _Target] = {}
        self._numbers = count()
        self._files: list[DeadLetterFile] = []
        self._names: set[str] = set()
        self._letters: dict[tuple[str, int, int], DeadLetter] = {}
        self._ids: dict[tuple[str, int], str] = {}
        self._bytes = 0

    def finish_left(self, files: Sequence[DeadLetterFile]) -> list[DeadLetterFile]:
        """End or deliver the batches that a replay had in work when it was ended.

        Returns:
            The files that are still to be delivered.
        """
        for home in sorted({file.home for file in files}):
            left = FileBatch.left_in(home)
            if left is None:
                continue
            limits = next(file.limits for file in files if file.home == home)
            held, chosen = left.files(limits), {file.path for file in files}
            if left.delivered:
                for file in held:
                    file.end(sync=False)
                    self._tell(f"{file.name}: was delivered before")
                    self._run.progress.done += file.path in chosen
                left.sync_moves()
                left.remove()
            elif (
                left.target == (self._sink or home.name)
                and len(held) == len(left.names)
                and all(file.path in chosen for file in held)
            ):
                for file in held:
                    self.take(file)
                self.deliver_batch()
            else:
                continue  # its files are delivered as others are
            done = {file.path for file in held}
            files = [file for file in files if file.path not in done]
        return list(files)

    def take(self, file: DeadLetterFile) -> None:
        """Deliver a file, or keep it for the batch that is being filled."""
        if file.name in self.odd:
            return  # it would take the place of the one that stays
        if self._files and (self._files[0].home != file.home or file.name in self._names):
            self.deliver_batch()
        target = self._target(file)
        begun = file.begin(sync=False)
        try:
            letters = begun.whole()
            if letters is None or len({_position(it) for it in letters}) < len(letters):
                self.deliver_batch()
                self._deliver_pieces(target, begun)
                return
            if target.feed.needs("subject"):
                begun.require_subjects(letters)
        except MalformedDeadLetterError as error:
            self.odd[file.name] = error
            self._tell(f"{file.name}: passed over: {error}")
            return
        size = begun.path.stat().st_size
        if not self._has_room_for(letters, size, begun.limits):
            self.deliver_batch()
        self._files.append(begun)
        self._names.add(begun.name)
        self._letters |= {_position(letter): letter for letter in letters}
        self._ids |= _ids(letters)
        self._bytes += size

    def deliver_batch(self) -> None:
        """Deliver the files that are kept, and mark them as done."""
        if not self._files:
            return
        files, letters = self._files, [self._letters[at] for at in sorted(self._letters)]
        self._files, self._letters, self._bytes = [], {}, 0
        self._names, self._ids = set(), {}
        target = self._target(files[0])
        batch = FileBatch(files[0].home, target.name, tuple(it.path.stem for it in files))
        batch.sync_moves()
        if len(files) > 1:
            batch.keep()
        records, refused = self._counts()
        routed = self._deliver(target, letters)
        if len(files) > 1:
            replace(batch, delivered=True).keep()
        for file in files:
            file.end(sync=False)
        batch.sync_moves()
        batch.remove()
        name = files[0].name
        if len(files) > 1:
            name += f" to {files[-1].path.stem} ({len(files)} files)"
        self._told(name, target, len(letters), routed, records, refused)
        self._run.progress.done += len(files)

    def _deliver_pieces(self, target: _Target, begun: DeadLetterFile) -> None:
        records, refused = self._counts()
        letters = routed = 0
        for piece in begun.pieces(target.name):
            if target.feed.needs("subject"):
                begun.require_subjects(piece)
            routed += self._deliver(target, piece)
            letters += len(piece)
        begun.end()
        self._told(begun.name, target, letters, routed, records, refused)
        self._run.progress.done += 1

    def _deliver(self, target: _Target, letters: Sequence[DeadLetter]) -> int:
        progress = self._run.progress
        progress.sink, progress.meter = target.name, target.context.meter
        _take_ids(letters, target.context)
        target.feed.begin_anew()  # offsets of one batch may lie between those of another
        rows = self._run.letter_rows(letters)
        return self._run.deliver(target.feed, target.name, rows, next(self._numbers))

    def _target(self, file: DeadLetterFile) -> _Target:
        name = self._sink or file.sink
        if name not in self._targets:
            self._targets[name] = _Target.open(self._run, name)
            self._stack.callback(self._targets[name].feed.close)
        return self._targets[name]

    def _has_room_for(
        self, letters: Sequence[DeadLetter], size: int, limits: DeadLetterLimits
    ) -> bool:
        """Whether a file fits into the batch: no record twice, no stream with two ids."""
        return (
            len(self._letters) + len(letters) <= limits.piece_letters
            and self._bytes + size <= limits.piece_bytes
            and self._letters.keys().isdisjoint(map(_position, letters))
            and all(self._ids.get(at, its) == its for at, its in _ids(letters).items())
        )

    def _counts(self) -> tuple[int, int]:
        return self._run.progress.records, self._run.progress.refused

    def _told(
        self, name: str, target: _Target, letters: int, routed: int, records: int, refused: int
    ) -> None:
        records, refused = (
            now - before for now, before in zip(self._counts(), (records, refused), strict=True)
        )
        notes = f", {refused} refused again" if refused else ""
        if routed < letters:
            notes += f", {letters - routed} that no route leads to {target.name}"
        self._tell(f"{name}: {records} of {letters} to {target.name}{notes}")


def _position(letter: DeadLetter) -> tuple[str, int, int]:
    return letter["stream"], letter["partition"], letter["offset"]


def _ids(letters: Sequence[DeadLetter]) -> dict[tuple[str, int], str]:
    """The ids of streams (at -1) and of their partitions, as letters have them."""
    ids: dict[tuple[str, int], str] = {}
    for letter in letters:
        full = letter.get("incarnation") or ""
        ids[letter["stream"], letter["partition"]] = full
        ids[letter["stream"], -1] = full.partition(".")[0]
    return ids


def _take_ids(letters: Sequence[DeadLetter], context: SinkContext) -> None:
    """Know the streams and partitions of letters by the ids that they have there."""
    context.generations.clear()
    for letter in letters:
        of_stream, _, number = (letter.get("incarnation") or "").partition(".")
        context.incarnations[letter["stream"]] = of_stream
        if number.isdecimal():
            at = StreamPartition(letter["stream"], letter["partition"])
            context.generations[at] = ((0, int(number)),)


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


def _state(config: JobConfig, clock: BlockingClock) -> LogState:
    with _reading(config, clock) as reading:
        return first_state(config, reading)

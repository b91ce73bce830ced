"""Writes one partition's log: appends, syncs, says what is durable.

Commands are carried out in the order in which they were given, appends included, and results are
reported in that order. Everything handed over while one sync runs is written and synced together
next (group commit). With the fsync policy `commit`, only what is synced counts as durable; with
`interval` and `never`, what the operating system has taken does. Retention runs here, too, one
step between two turns: it never meets an append.

Where a turn runs. A writer has no dedicated thread: while there is something to do, a thread of
`WriterPool` runs it, one at a time. A message that comes alone is written and synced on the event
loop itself (`write_here`), because a hop to a thread and back costs more than a sync does. A slow
disk ends that for a while: see `WriterPool.allows_here`.

From accepted messages to frames: rows of several turns become one Arrow batch. Frames are built
when they are about to be written, so everything that arrived during the last sync shares a frame.
"""

import heapq
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Final

import pyarrow as pa
import structlog
from msgspec import Struct

from penstock.base.clock import Clock, SystemClock
from penstock.logd.compaction.cleaner import check_room
from penstock.logd.errors import NO_SPACE, LogdError, LogFailedError
from penstock.logd.format.batch import SCHEMA, SCHEMA_VERSION, dense_deltas, encode_body
from penstock.logd.format.frame import NO_TIMESTAMP, FrameHeader, crc32c
from penstock.logd.format.plain_body import PLAIN_ROWS_MAX, encode_plain_body
from penstock.logd.intake.turn import Append, Message, MessageRun, PrebuiltBatch
from penstock.logd.limits import (
    APPEND_BYTES_MAX,
    DISK_STALL_NS_MIN,
    FRAME_BYTES_MAX,
    FRAME_ROWS_MAX,
    FRAMES_UNREMEMBERED_MAX,
    WRITE_HERE_BYTES_MAX,
    WRITE_HERE_NS_COUNTED_MAX,
    WRITE_HERE_NS_MAX,
    WRITER_THREADS_MAX,
)
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.retention import RetentionTask
from penstock.logd.replication.events import BeginEpoch, DeleteBefore, Reset, Truncate
from penstock.logd.storage import CommitLog, EpochFile, ReplicaFile

_TIMESTAMP = SCHEMA.field("timestamp").type
_HEADERS = SCHEMA.field("headers").type


def build_frames(
    items: Iterable[MessageRun | PrebuiltBatch], *, epoch: int
) -> Iterator[tuple[FrameHeader, bytes]]:
    """Build the frames of items at consecutive offsets.

    Args:
        items: In order of offsets. Runs are merged while the limits of a frame allow.
        epoch: The leader epoch.
    """
    runs: list[MessageRun] = []
    rows = size = 0
    for item in items:
        if isinstance(item, MessageRun) and (
            not runs
            or (rows + len(item.messages) <= FRAME_ROWS_MAX and size + item.size <= FRAME_BYTES_MAX)
        ):
            runs.append(item)
            rows += len(item.messages)
            size += item.size
            continue
        if runs:
            yield _build(runs, epoch)
        runs, rows, size = [], 0, 0
        if isinstance(item, PrebuiltBatch):
            yield item.header, item.body
        else:
            runs, rows, size = [item], len(item.messages), item.size
    if runs:
        yield _build(runs, epoch)


def _build(runs: Sequence[MessageRun], epoch: int) -> tuple[FrameHeader, bytes]:
    count, extras, newest_ns = 0, False, NO_TIMESTAMP
    for run in runs:
        count += len(run.messages)
        extras = extras or bool(run.extras)
        newest_ns = max(newest_ns, run.timestamp_ns)
    simple = count <= PLAIN_ROWS_MAX and not extras
    body = (_plain_body(runs) if simple else None) or arrow_body(runs)
    header = FrameHeader(
        base_offset=runs[0].base_offset,
        leader_epoch=epoch,
        record_count=count,
        last_offset_delta=count - 1,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=runs[0].timestamp_ns,
        max_timestamp_ns=newest_ns,
        schema_version=SCHEMA_VERSION,
    )
    return header, body


def _messages(runs: Sequence[MessageRun]) -> list[Message]:
    return runs[0].messages if len(runs) == 1 else [*chain(*(run.messages for run in runs))]


def _plain_body(runs: Sequence[MessageRun]) -> bytes | None:
    """The body of messages without headers, if it can be made by hand."""
    subjects, replies, _, values = zip(*_messages(runs), strict=True)
    timestamps = b"".join([struct.pack("<q", run.timestamp_ns) * len(run.messages) for run in runs])
    return encode_plain_body(timestamps, subjects, replies, values)


def arrow_body(runs: Sequence[MessageRun]) -> bytes:
    """The body of any messages, by pyarrow: what makes others by hand must say the same."""
    messages = _messages(runs)
    values: list[bytes | None] = [message[3] for message in messages]
    keys, headers = _keys_and_headers(runs, values)
    batch = pa.RecordBatch.from_arrays(
        [
            dense_deltas(len(messages)),
            _timestamps(runs),
            _subjects([message[0] for message in messages]),
            keys,
            headers,
            _replies([message[1] for message in messages]),
            pa.array(values, pa.binary()),
        ],
        schema=SCHEMA,
    )
    return encode_body(batch)


def _timestamps(runs: Sequence[MessageRun]) -> pa.Array:
    parts = [pa.repeat(pa.scalar(run.timestamp_ns, _TIMESTAMP), len(run.messages)) for run in runs]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _subjects(subjects: Sequence[bytes | None]) -> pa.Array:
    """NATS does not check that subjects are UTF-8; the intake does."""
    return pa.array(subjects, pa.binary()).cast(pa.string())


def _replies(replies: Sequence[bytes]) -> pa.Array:
    if not any(replies):
        return pa.nulls(len(replies), pa.string())
    return _subjects([reply or None for reply in replies])


def _keys_and_headers(
    runs: Sequence[MessageRun], values: list[bytes | None]
) -> tuple[pa.Array, pa.Array]:
    """The two columns that most messages leave empty; makes a tombstone's value null."""
    count = len(values)
    if not any(run.extras for run in runs):
        return pa.nulls(count, pa.binary()), pa.nulls(count, _HEADERS)
    keys: list[bytes | None] = [None] * count
    headers: list[object] = [None] * count
    begin = 0
    for run in runs:
        for position, extras in run.extras.items():
            row = begin + position
            headers[row], keys[row] = extras.headers, extras.key
            if extras.tombstone:
                values[row] = None
        begin += len(run.messages)
    return pa.array(keys, pa.binary()), pa.array(headers, _HEADERS)


Frame = tuple[FrameHeader, bytes]

# Commands. What a replica's core asks for in the same words are its effects
# (`penstock.logd.replication.events`).


class LogCommand(Enum):
    """Commands without arguments."""

    SEAL = "seal"
    RETAIN = "retain"
    CLOSE = "close"


class SnapshotSaved(Struct, frozen=True):
    """The producer state of everything below `offset` is on disk."""

    offset: int


class Note(Struct, frozen=True):
    """Request to persist a replica's state; durably, if what follows needs it."""

    high_watermark: int
    agreed_epoch: int
    durable: bool = False


class Patch(Struct, frozen=True):
    """Put these frames in the place of the damaged range [first, upto).

    Void if the log was cut since: `cuts` is that of the last truncation or reset then.
    """

    first: int
    upto: int
    frames: tuple[Frame, ...]
    cuts: int


class PurgeBefore(Struct, frozen=True):
    """Delete whole segments below `offset`, and the active one if all of it is below."""

    offset: int


LogChange = BeginEpoch | Truncate | Reset | DeleteBefore | PurgeBefore | Patch | Note
"""A change of the log, or of a file beside it, other than an append."""

Command = Append | ProducerSnapshot | SnapshotSaved | LogCommand | LogChange

# Results. `cuts` is that of the last truncation or reset done by then: what was reported before
# one speaks of records that may be gone.


class Written(Struct, frozen=True):
    """Everything below `upto` can be read from the log; `Durable` follows.

    Attributes:
        frames: The last of it, which followers fetch next; empty if it is large.
    """

    upto: int
    cuts: int = 0
    frames: tuple[Frame, ...] = ()


class Durable(Struct, frozen=True):
    """Everything below `upto` is as durable as the stream's policy asks."""

    upto: int
    cuts: int = 0


class CommitFailed(Struct, frozen=True):
    """The log refuses writes; what was handed over and not reported durable is not stored."""

    reason: str


class ProducerSnapshotWanted(Struct, frozen=True):
    """Request for a producer-state snapshot.

    Attributes:
        ids: Whether message ids are included, for records are about to be removed or rewritten.
            Otherwise the next start would have many frames to read.
    """

    ids: bool = False


class ProducerSnapshotSynced(Struct, frozen=True):
    """Everything below the memory's offset is durable, so it may be written down."""

    memory: ProducerSnapshot


class EpochBegun(Struct, frozen=True):
    """The epoch's beginning is durable; what is submitted from now on is of it."""

    epoch: int


class Cut(Struct, frozen=True):
    """The log has been truncated and ends at `end_offset`, at most where it was asked to."""

    end_offset: int
    cuts: int


class WasReset(Struct, frozen=True):
    """The log is empty and begins at `start`."""

    start: int
    cuts: int


class Patched(Struct, frozen=True):
    """No damage is known in [first, upto) any more; what was filled is durable."""

    first: int
    upto: int
    cuts: int


class StartMoved(Struct, frozen=True):
    """Retention has deleted what lies below `start`."""

    start: int


LogResult = (
    Written | Durable | CommitFailed | ProducerSnapshotWanted | ProducerSnapshotSynced
    | EpochBegun | Cut | WasReset | Patched | StartMoved
)  # fmt: skip


_log = structlog.get_logger()


class LogChanges:
    """Changes one log and the small files that must fit it.

    The log is changed before its epochs: a crash between leaves epochs of records that are gone,
    which opening the log puts right, and never records without their epoch.

    Args:
        log: Log whose writer calls `carry_out`.
        epochs: Epochs of the log.
        retention_task: Retention task of the log.

    Attributes:
        epoch: Epoch that began last.
        cuts: Number of the last truncation or reset; 0 before the first.
    """

    def __init__(self, log: CommitLog, epochs: EpochFile, retention_task: RetentionTask) -> None:
        self.epoch = epochs.latest
        self.cuts = 0
        self._log = log
        self._epochs = epochs
        self._retention_task = retention_task

    @property
    def epoch_unsaved(self) -> bool:
        """True if the last epoch is in memory only; `save_epoch` comes before its records."""
        return self._epochs.unsaved

    def save_epoch(self) -> None:
        """Make the last epoch durable."""
        self._epochs.save()

    def begin_epoch(self, begin: BeginEpoch, *, save: bool) -> EpochBegun:
        """Begin an epoch; without `save`, in memory."""
        self._epochs.begin(begin.epoch, begin.start_offset, save=save)
        self.epoch = begin.epoch
        return EpochBegun(begin.epoch)

    def carry_out(self, change: LogChange) -> LogResult | None:
        """Do it; what to report when it is durable.

        Raises:
            LogdError: It cannot be done: the log must take no more.
            OSError: The disk failed.
        """
        match change:
            case BeginEpoch():
                return self.begin_epoch(change, save=True)
            case Truncate(upto, cuts):
                self._log.truncate_to(upto)
                self._epochs.truncate_to(self._log.end_offset)
                self._was_cut(cuts)
                return Cut(self._log.end_offset, cuts)
            case Reset(start, cuts):
                self._log.reset(start)
                self._epochs.clear()
                self._was_cut(cuts)
                return WasReset(start, cuts)
            case DeleteBefore(offset):
                self._retention_task.delete_before(offset)
            case PurgeBefore(offset):
                self._retention_task.purge_before(offset)
            case Patch():
                return self._patch(change)
            case Note():
                self._note(change)
        return None

    def _was_cut(self, cuts: int) -> None:
        self.cuts = cuts
        self._retention_task.was_cut()

    def _patch(self, patch: Patch) -> Patched | None:
        """Fill damage; if that cannot be done, the log goes on as it is."""
        if patch.cuts != self.cuts:
            return None
        first, upto = patch.first, patch.upto
        where = {"directory": str(self._log.directory), "first": first, "upto": upto}
        try:
            check_room(self._log, first, upto)
            filled = self._log.patch(first, upto, patch.frames)
        except LogFailedError:
            raise
        except (LogdError, OSError) as error:
            _log.error("corrupt_range_repair_failed", **where, error=str(error))
            return None
        if not filled:
            reason = "there is no room to seal the active segment"
            _log.error("corrupt_range_repair_failed", **where, error=reason)
            return None
        _log.info("corrupt_range_repaired", **where)
        return Patched(first, upto, patch.cuts)

    def _note(self, note: Note) -> None:
        """Without it the next start knows less of what is committed, and asks."""
        try:
            file = ReplicaFile(self._log.directory, disk=self._log.disk)
            file.save(note.high_watermark, note.agreed_epoch, durable=note.durable)
        except OSError as error:
            if note.durable:
                raise
            _log.warning(
                "replica_state_write_failed", directory=str(self._log.directory), error=str(error)
            )


Work = Callable[[], None]

_DISK_TIMES: Final = 8
"""Times that make up the mean of how long the disk takes; older ones count less and less."""


class WriterPool:
    """Threads that write the logs of a process: a bounded number, begun as they are needed.

    A log that nothing is written to costs no thread. One thread more waits for what is due later.

    Args:
        threads_max: Maximum number of threads.
    """

    def __init__(self, threads_max: int = WRITER_THREADS_MAX) -> None:
        self._threads_max = threads_max
        self._threads = 0
        self._ready: SimpleQueue[Work] = SimpleQueue()
        self._working: list[None] = []  # one for each thread at work: its ends are changed in C
        self._lock = threading.Lock()
        self._later: list[tuple[int, int, Work]] = []
        self._later_changed = threading.Condition()
        self._clock = SystemClock()
        self._numbers = 0
        self._disk_ns = {True: 0, False: 0}

    @property
    def busy(self) -> bool:
        """True if work waits for a thread."""
        return not self._ready.empty()

    def run(self, work: Work) -> None:
        """Have it run soon; never waits."""
        self._ready.put(work)
        if self._threads == self._threads_max:
            return
        with self._lock:
            idle = self._threads - len(self._working)
            if self._threads == self._threads_max or self._ready.qsize() <= idle:
                return
            self._threads += 1
            name = f"log-writer/{self._threads}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run_at(self, due_ns: int, work: Work) -> None:
        """Have it called at a time of the monotonic clock, on the thread for that: it is quick."""
        with self._later_changed:
            if not self._numbers:
                thread = threading.Thread(target=self._wait, name="log-timer", daemon=True)
                thread.start()
            self._numbers += 1
            heapq.heappush(self._later, (due_ns, self._numbers, work))
            if self._later[0][1] == self._numbers:
                self._later_changed.notify()

    def allows_here(self, *, syncs: bool) -> bool:
        """Return whether the event loop may write a little, and sync it: the disk is quick now."""
        return self._disk_ns[syncs] <= WRITE_HERE_NS_MAX

    def note_disk(self, took_ns: int, *, syncs: bool) -> None:
        """Note how long a sync took, or a write on the event loop.

        On a busy machine a quick one often takes some milliseconds, until a core is free. So one
        below `DISK_STALL_NS_MIN` counts as `WRITE_HERE_NS_COUNTED_MAX` at most: five in a row make
        a slow disk of a quick one, or every second one. When several threads note at once, one of
        the times may be lost.
        """
        if took_ns < DISK_STALL_NS_MIN:
            took_ns = min(took_ns, WRITE_HERE_NS_COUNTED_MAX)
        self._disk_ns[syncs] += (took_ns - self._disk_ns[syncs]) // _DISK_TIMES

    def _work(self) -> None:
        while True:
            self._do(self._ready.get())  # a name for it would keep its log until the next comes

    def _do(self, work: Work) -> None:
        self._working.append(None)
        try:
            work()
        except Exception:  # noqa: BLE001 - a bug of one log must not cost the others a thread
            _log.exception("log_writer_thread_failed")
        self._working.pop()

    def _wait(self) -> None:
        while True:
            self._next_later()()

    def _next_later(self) -> Work:
        """The next that was put off, once it is due."""
        with self._later_changed:
            while True:
                if not self._later:
                    self._later_changed.wait()
                    continue
                wait_ns = self._later[0][0] - self._clock.monotonic_ns()
                if wait_ns <= 0:
                    return heapq.heappop(self._later)[2]
                self._later_changed.wait(wait_ns / 1e9)


class LogWriter:
    """Carries out commands, in order, until one fails or it is closed.

    Args:
        log: The partition's log; nothing else writes to it.
        config: Configuration of the stream.
        epochs: Epochs of the log; new frames are of the last.
        post: Called with each result, on the thread that has it.
        clock: Clock of the interval policy, and of syncs' durations.
        retention_task: Takes its steps between two turns.
        pool: Its threads.
        append_bytes_max: Bytes of frames made at a time; one frame may exceed it.
        frames_unremembered_max: After so many frames, `ProducerSnapshotWanted` is posted.

    Attributes:
        failed: Whether something handed over was not stored, or may not be durable.
        reports_written: Whether `Written` is posted, too, before what was written is synced.
    """

    def __init__(  # noqa: PLR0913 - what it writes to, who hears of it, how much at a time
        self,
        log: CommitLog,
        config: StreamConfig,
        *,
        epochs: EpochFile,
        post: Callable[[LogResult], None],
        clock: Clock,
        retention_task: RetentionTask,
        pool: WriterPool,
        append_bytes_max: int = APPEND_BYTES_MAX,
        frames_unremembered_max: int = FRAMES_UNREMEMBERED_MAX,
    ) -> None:
        self._log = log
        self._config = config
        self._changes = LogChanges(log, epochs, retention_task)
        self._post = post
        self._clock = clock
        self._retention_task = retention_task
        self._pool = pool
        self.reports_written = False
        self._start = log.start_offset
        self._lock = threading.Lock()  # guards `_running`; held for memory operations only
        # What it holds is bounded by the bytes that a partition takes.
        self._commands: deque[Command] = deque()
        self._running = self._here = False
        self._ended = False
        self._awaited: threading.Event | None = None  # by `close`
        self._undurable = False
        self._calls_ns: list[int] = []
        self._frames = 0
        self._append_bytes_max = append_bytes_max
        self._frames_unremembered_max = frames_unremembered_max
        self.failed = False
        self._synced_ns = clock.monotonic_ns()

    def submit(self, command: Command) -> None:
        """Hand over a command and have it carried out; never waits. After a failure it is dropped.

        `Patch` is void if `cuts` is not that of the last truncation or reset.
        """
        self.enqueue(command)
        self.start()

    def enqueue(self, command: Command) -> None:
        """Hand over a command; `start`, or `write_here` and `pass_on`, must follow."""
        if not self.failed:
            self._commands.append(command)

    def start(self) -> None:
        """Have a thread carry out what waits, or what is due, unless one is at it."""
        if self._take_turn():
            self._pool.run(self.run)

    def look(self) -> None:
        """Have what is due, now or later, be done; where nothing is, that costs no thread a turn.

        Once before anything is handed over, and when retention is to decide from now on.
        """
        if not self._take_turn():
            self.submit(LogCommand.RETAIN)  # who has the turn may have seen already what is due
        elif not self._rest():
            self._pool.run(self.run)

    def begin_epoch_here(self, begin: BeginEpoch) -> bool:
        """Begin an epoch on this thread, in memory; its first record makes it durable before.

        A start with thousands of streams would else write a file for each, and most of them store
        nothing. Only where no node follows: followers compare their logs with its epochs. And only
        of a log that was closed cleanly: that a disk takes no files should be seen when a log is
        made, or opened again after it failed, and not by its first publisher.

        Returns:
            Whether it was seen to; False: it is to be submitted.
        """
        if not self._log.was_closed or not self._take_turn():
            return False
        alone = not self._commands
        may_go_on = not alone or self._guarded(partial(self._begin_epoch, begin))
        if may_go_on and not self._rest():
            self._pool.run(self.run)
        return alone

    def write_here(self) -> bool:
        """Write what waits on this thread, if nothing else is under way and it is quick.

        Where others are to copy it, it is synced on a thread, while they do. A follower, whose
        leader has nothing to send to it meanwhile, syncs it here.

        Returns:
            Whether it was seen to; False: `start` must follow. In both cases `pass_on` comes first,
            once what was posted has been dealt with.
        """
        syncs = self._config.fsync == "commit" and not self.reports_written
        if not self._pool.allows_here(syncs=syncs) or not self._take_turn():
            return False
        self._here = True
        if self._is_quick():
            begun_ns = self._clock.monotonic_ns()
            self._guarded(self._write_turn)
            self._pool.note_disk(self._clock.monotonic_ns() - begun_ns, syncs=syncs)
        return True

    def pass_on(self) -> None:
        """Have a thread go on where `write_here` has left something; publishers have their acks."""
        here, self._here = self._here, False
        if not here or self.failed:
            return
        self._log.mark_synced()
        if self._undurable or not self._rest():
            self._pool.run(self.run)

    def end(self) -> None:
        """Have everything end after what was submitted; never waits, and `close` must follow."""
        self._commands.append(LogCommand.CLOSE)
        self.start()

    def close(self) -> None:
        """Write what was submitted, sync, and close the log; waits for all that."""
        with self._lock:
            ended = self._awaited = self._awaited or threading.Event()
            if self._ended:
                ended.set()
        self.end()
        ended.wait()
        self._log.close()

    def run(self) -> None:
        """Carry out what waits, on this thread; the caller has the turn: see `start`."""
        while self._guarded(self._turn):
            if self._rest():
                return
            if self._pool.busy:  # others have a turn first
                self._pool.run(self.run)
                return

    def _take_turn(self) -> bool:
        """Claim the writer for the calling thread, until `_rest`; return whether that succeeded."""
        with self._lock:
            if self._running or self._ended:
                return False
            self._running = True
            return True

    def _rest(self) -> bool:
        """Give the turn back, unless something waits."""
        due_ns = self._due_ns()
        if due_ns is not None and due_ns <= self._clock.monotonic_ns():
            return False
        with self._lock:
            if self._commands:
                return False
            # A call that comes before something is due looks again, and asks for the next.
            if due_ns is not None and (not self._calls_ns or due_ns < self._calls_ns[-1]):
                self._calls_ns.append(due_ns)
                self._pool.run_at(due_ns, self._wake)
            self._running = False
            return True

    def _wake(self) -> None:
        with self._lock:
            self._calls_ns.pop()  # the earliest: later ones were asked for before it
        self.start()

    def _guarded(self, turn: Callable[[], bool]) -> bool:
        """Take a turn; whether another one may follow."""
        try:
            return turn()
        except (LogdError, OSError) as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                # Of a file beside the segments, which is as it was: the log may be opened again.
                self._log.out_of_space = True
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - a bug must not leave publishers waiting
            _log.exception("log_writer_failed", stream=self._config.name)
            self._fail(f"{type(error).__name__}: {error}")
        return False

    def _fail(self, reason: str) -> None:
        self.failed = True
        self._commands.clear()
        self._note_end()
        self._post(CommitFailed(reason))

    def _note_end(self) -> None:
        with self._lock:
            self._ended = True
            if self._awaited is not None:
                self._awaited.set()

    def _turn(self) -> bool:
        """Write what was handed over, and carry out the command that comes next; False: the end."""
        self._append(self._appends())
        command: Command | None = None
        if self._commands and not isinstance(self._commands[0], Append):
            command = self._commands.popleft()
        if self._sync_is_due():
            begun_ns = self._clock.monotonic_ns()
            self._sync()
            self._pool.note_disk(self._synced_ns - begun_ns, syncs=True)
        self._report_durable()
        self._log.mark_synced()
        if command is LogCommand.CLOSE:
            self._note_end()
            return False
        if command is not None:
            self._carry_out(command)
        self._retain()
        return True

    def _write_turn(self) -> bool:
        """Write the appends that wait, and leave what may take long to a turn on a thread."""
        self._append(self._appends())
        if not self.reports_written:
            if self._config.fsync == "commit":
                self._sync()
            self._report_durable()
        return True

    def _begin_epoch(self, begin: BeginEpoch) -> bool:
        self._post(self._changes.begin_epoch(begin, save=False))
        return True

    def _is_quick(self) -> bool:
        size = 0
        if self._changes.epoch_unsaved:
            return False
        for command in tuple(self._commands):  # other threads hand over commands meanwhile
            if not isinstance(command, Append):
                return False
            size += command.size_bytes
        return (
            size <= WRITE_HERE_BYTES_MAX
            and self._frames < self._frames_unremembered_max
            and not self._log.roll_is_due(size)
        )

    def _appends(self) -> list[MessageRun | PrebuiltBatch]:
        """Take all frames up to the first command of another kind."""
        items: list[MessageRun | PrebuiltBatch] = []
        while self._commands and isinstance(append := self._commands[0], Append):
            items += append.items
            self._commands.popleft()
        return items

    def _report_durable(self) -> None:
        if self._undurable:
            self._undurable = False
            self._post(Durable(self._log.end_offset, self._changes.cuts))

    def _carry_out(self, command: Command) -> None:
        match command:
            case ProducerSnapshot():
                self._sync()
                self._post(ProducerSnapshotSynced(command))
                self._log.mark_synced()
            case SnapshotSaved(offset):
                self._retention_task.snapshot_saved(offset)
            case LogCommand.SEAL:
                self._log.roll()
            case LogCommand.RETAIN:
                pass  # that follows each command
            case (
                BeginEpoch()
                | Truncate()
                | Reset()
                | DeleteBefore()
                | PurgeBefore()
                | Patch()
                | Note()
            ):
                result = self._changes.carry_out(command)
                self._start = self._log.start_offset
                if result is not None:
                    self._post(result)
            case _:
                raise AssertionError(command)

    def _retain(self) -> None:
        deleting = self._retention_task.step()
        if deleting or self._frames >= self._frames_unremembered_max:
            self._frames = 0
            self._post(ProducerSnapshotWanted(ids=deleting))
        start = self._log.start_offset
        if start != self._start:
            self._start = start
            self._post(StartMoved(start))

    def _sync(self) -> None:
        """Sync, and leave the mark of that to when publishers have their acks."""
        self._log.sync(mark=False)
        self._synced_ns = self._clock.monotonic_ns()

    def _append(self, items: list[MessageRun | PrebuiltBatch]) -> None:
        """Write items, some frames at a time; they are let go as their frames are made."""
        if not items:
            return
        self._changes.save_epoch()
        parts: Iterable[list[Frame]]
        if len(items) == 1 and isinstance(run := items[0], MessageRun):  # what comes alone
            parts = ([_build([run], self._changes.epoch)],)
        else:
            made = build_frames(_taken_from(items), epoch=self._changes.epoch)
            parts = _in_parts(made, self._append_bytes_max)
        last: tuple[Frame, ...] = ()
        for frames in parts:
            self._log.append(frames)
            self._frames += len(frames)
            self._undurable = True
            last = tuple(frames)
        if self.reports_written:
            small = sum([header.frame_length for header, _ in last]) <= WRITE_HERE_BYTES_MAX
            reported = last if small else ()
            self._post(Written(self._log.end_offset, self._changes.cuts, reported))

    def _sync_is_due(self) -> bool:
        if self._log.synced_offset == self._log.end_offset:
            return False
        match self._config.fsync:
            case "commit":
                return True
            case "interval":
                waited_ns = self._clock.monotonic_ns() - self._synced_ns
                return waited_ns >= self._config.fsync_interval_ms * 1_000_000
            case "never":
                return False

    def _due_ns(self) -> int | None:
        """Return when work is due without a command, monotonic; None: never."""
        due_ns = self._retention_task.due_ns()
        if self._config.fsync != "interval" or self._log.synced_offset == self._log.end_offset:
            return due_ns
        sync_ns = self._synced_ns + self._config.fsync_interval_ms * 1_000_000
        return sync_ns if due_ns is None else min(sync_ns, due_ns)


def _taken_from(items: list[MessageRun | PrebuiltBatch]) -> Iterator[MessageRun | PrebuiltBatch]:
    """The items in order; none is held by the list any more."""
    items.reverse()
    while items:
        yield items.pop()


def _in_parts(frames: Iterator[Frame], bytes_max: int) -> Iterator[list[Frame]]:
    """The frames in order, up to so many bytes of them at a time; one frame may exceed it."""
    part: list[Frame] = []
    length = 0
    for frame in frames:
        header, _ = frame
        if part and length + header.frame_length > bytes_max:
            yield part
            part, length = [], 0
        part.append(frame)
        length += header.frame_length
    if part:
        yield part

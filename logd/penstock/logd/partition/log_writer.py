"""The thread that writes one partition: append, fdatasync, say what is durable.

Everything handed over while one sync runs is written and synced together next (group commit). With
the fsync policy `commit`, only what is synced counts as durable; with `interval` and `never`, what
the operating system has taken does. What changes the log otherwise comes through the same queue
and waits for what was handed over before it. Retention runs on this thread, too, one step between
two turns: it never meets an append.

From accepted messages to frames: rows of several turns become one Arrow batch.

The log writer builds frames when it is about to write, so everything that arrived during the last
sync shares a frame.

What a log's writer is asked to do besides appending, and what it reports.

Orders are done in the order in which they were given, appends included, and reported in that order.
Those that a replica's core asks for in the same words are its own
(`penstock.logd.replication.events`).
"""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from queue import Empty, SimpleQueue

import pyarrow as pa
import structlog
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.logd.compaction.cleaner import check_room
from penstock.logd.errors import LogdError, LogFailedError
from penstock.logd.format.batch import SCHEMA, SCHEMA_VERSION, dense_deltas, encode_body
from penstock.logd.format.frame import FrameHeader, crc32c
from penstock.logd.format.plain_body import PLAIN_ROWS_MAX, encode_plain_body
from penstock.logd.intake.turn import Append, Message, MessageRun, PrebuiltBatch
from penstock.logd.limits import (
    APPEND_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_ROWS_MAX,
    FRAMES_UNREMEMBERED_MAX,
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
    count = sum(len(run.messages) for run in runs)
    simple = count <= PLAIN_ROWS_MAX and not any(run.extras for run in runs)
    body = (_plain_body(runs) if simple else None) or arrow_body(runs)
    header = FrameHeader(
        base_offset=runs[0].base_offset,
        leader_epoch=epoch,
        record_count=count,
        last_offset_delta=count - 1,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=runs[0].timestamp_ns,
        max_timestamp_ns=max(run.timestamp_ns for run in runs),
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

# Orders.


class LogCommand(Enum):
    """What needs no more to be said."""

    SEAL = "seal"
    RETAIN = "retain"
    CLOSE = "close"


class Remembered(Struct, frozen=True):
    """What the intake remembers of everything below `offset` is written down."""

    offset: int


class Note(Struct, frozen=True):
    """What a replica knows is to be written down; durably, if what is ordered next needs it."""

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


Change = BeginEpoch | Truncate | Reset | DeleteBefore | PurgeBefore | Patch | Note
"""What changes the log, or what is beside it, otherwise than by appending."""

Order = Append | ProducerSnapshot | Remembered | LogCommand | Change

# Outcomes. `cuts` is that of the last truncation or reset done by then: what was reported before
# one speaks of records that may be gone.


class Written(Struct, frozen=True):
    """Everything below `upto` can be read from the log; `Durable` follows."""

    upto: int
    cuts: int = 0


class Durable(Struct, frozen=True):
    """Everything below `upto` is as durable as the stream's policy asks."""

    upto: int
    cuts: int = 0


class CommitFailed(Struct, frozen=True):
    """The log refuses writes; what was handed over and not reported durable is not stored."""

    reason: str


class ProducerSnapshotWanted(Struct, frozen=True):
    """What the intake remembers is to be written down.

    Attributes:
        ids: Message ids, too, for records are about to be removed or rewritten. Else the next start
            would have many frames to read.
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


Outcome = (
    Written | Durable | CommitFailed | ProducerSnapshotWanted | ProducerSnapshotSynced
    | EpochBegun | Cut | WasReset | Patched | StartMoved
)  # fmt: skip


_log = structlog.get_logger()


class LogChanges:
    """Changes one log and the small files that must fit it.

    The log is changed before its epochs: a crash between leaves epochs of records that are gone,
    which opening the log puts right, and never records without their epoch.

    Args:
        log: Whose writer calls `carry_out`.
        epochs: Of the log.
        retention_task: Of the log.

    Attributes:
        epoch: That began last.
        cuts: Of the last truncation or reset; 0 before the first.
    """

    def __init__(self, log: CommitLog, epochs: EpochFile, retention_task: RetentionTask) -> None:
        self.epoch = epochs.latest
        self.cuts = 0
        self._log = log
        self._epochs = epochs
        self._retention_task = retention_task
        self._file = ReplicaFile(log.directory, disk=log.disk)

    def carry_out(self, change: Change) -> Outcome | None:
        """Do it; what to report when it is durable.

        Raises:
            LogdError: It cannot be done: the log must take no more.
            OSError: The disk failed.
        """
        match change:
            case BeginEpoch(epoch, start_offset):
                self._epochs.begin(epoch, start_offset)
                self.epoch = epoch
                return EpochBegun(epoch)
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
        name, first, upto = str(self._log.directory), patch.first, patch.upto
        try:
            check_room(self._log, first, upto)
            filled = self._log.patch(first, upto, patch.frames)
        except LogFailedError:
            raise
        except (LogdError, OSError) as error:
            _log.error("damage not filled", log=name, first=first, upto=upto, error=str(error))
            return None
        if not filled:
            reason = "there is no room to seal the active segment"
            _log.error("damage not filled", log=name, first=first, upto=upto, error=reason)
            return None
        _log.info("damage filled", log=name, first=first, upto=upto)
        return Patched(first, upto, patch.cuts)

    def _note(self, note: Note) -> None:
        """Without it the next start knows less of what is committed, and asks."""
        try:
            self._file.save(note.high_watermark, note.agreed_epoch, durable=note.durable)
        except OSError as error:
            if note.durable:
                raise
            _log.warning("replica not noted", log=str(self._log.directory), error=str(error))


class LogWriter:
    """Writes what is submitted, in order, until it fails or is closed.

    Args:
        log: The partition's log; nobody else writes to it.
        config: Of the stream.
        epochs: Of the log; new frames are of the last.
        post: Called on the thread with each outcome.
        clock: For the interval policy.
        retention_task: Takes its steps on the thread, between two turns.
        append_bytes_max: Of frames made at a time; one may exceed it.
        frames_unremembered_max: After so many frames, `ProducerSnapshotWanted` is posted.

    Attributes:
        failed: Whether something handed over was not stored, or may not be durable.
        tell_written: Whether `Written` is posted, too, before what was written is synced.
    """

    def __init__(  # noqa: PLR0913 - what it writes to, whom it tells, how much at a time
        self,
        log: CommitLog,
        config: StreamConfig,
        *,
        epochs: EpochFile,
        post: Callable[[Outcome], None],
        clock: Clock,
        retention_task: RetentionTask,
        append_bytes_max: int = APPEND_BYTES_MAX,
        frames_unremembered_max: int = FRAMES_UNREMEMBERED_MAX,
    ) -> None:
        self._log = log
        self._config = config
        self._changes = LogChanges(log, epochs, retention_task)
        self._post = post
        self._clock = clock
        self._retention_task = retention_task
        self.tell_written = False
        self._start = log.start_offset
        # Made in C: a condition's notify and wait cost more than the rest of a small turn's
        # hand-over. What it holds is bounded by the bytes that a partition takes.
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._frames = 0
        self._append_bytes_max = append_bytes_max
        self._frames_unremembered_max = frames_unremembered_max
        self.failed = False
        self._synced_ns = clock.monotonic_ns()
        self._thread = threading.Thread(
            target=self.run, name=f"log-writer/{config.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, append: Append) -> None:
        """Hand over what to write; never waits. After a failure it is dropped."""
        self._give(append)

    def append_fetched(self, frames: Iterable[Frame]) -> None:
        """Hand over frames of another replica, checked, to be written as they are; never waits."""
        self.submit(Append([PrebuiltBatch(header, body) for header, body in frames], 0))

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        """Have an epoch noted durably, and what is submitted after this be of it: `EpochBegun`."""
        self._give(BeginEpoch(epoch, start_offset))

    def truncate(self, upto: int, cuts: int) -> None:
        """Have every frame with records at or above `upto` removed: `Cut`."""
        self._give(Truncate(upto, cuts))

    def reset(self, start: int, cuts: int) -> None:
        """Have everything removed, and the log begin at `start`: `WasReset`."""
        self._give(Reset(start, cuts))

    def delete_before(self, offset: int) -> None:
        """Have whole segments below `offset` deleted, when retention finds that they may be."""
        self._give(DeleteBefore(offset))

    def purge_before(self, offset: int) -> None:
        """Have whole segments below `offset` deleted, the active one too if all of it is below."""
        self._give(PurgeBefore(offset))

    def patch(self, first: int, upto: int, frames: Iterable[Frame], cuts: int) -> None:
        """Have damage in [first, upto) filled with checked frames: `Patched`, if it could be.

        Nothing is done and reported if `cuts` is not that of the last cut any more.
        """
        self._give(Patch(first, upto, tuple(frames), cuts))

    def note(self, high_watermark: int, agreed_epoch: int, *, durable: bool = False) -> None:
        """Have what a replica knows written down; durably for `SaveHighWatermark`."""
        self._give(Note(high_watermark, agreed_epoch, durable))

    def sync_below(self, memory: ProducerSnapshot) -> None:
        """Have what was submitted made durable; `ProducerSnapshotSynced` follows. Never waits."""
        self._give(memory)

    def remembered(self, offset: int) -> None:
        """What the intake remembers of everything below `offset` is written down."""
        self._give(Remembered(offset))

    def seal(self) -> None:
        """Have the active segment sealed; never waits."""
        self._give(LogCommand.SEAL)

    def retain(self) -> None:
        """Have looked at what may be deleted, for that may be more than before; never waits."""
        self._give(LogCommand.RETAIN)

    def end(self) -> None:
        """Have the thread end after what was submitted; never waits, and `close` must follow."""
        self._orders.put(LogCommand.CLOSE)

    def close(self) -> None:
        """Write what was submitted, sync, end the thread and close the log; waits for all that."""
        self.end()
        if self._thread.ident is not None:
            self._thread.join()
        self._log.close()

    def _give(self, order: Order) -> None:
        if not self.failed:
            self._orders.put(order)

    def run(self) -> None:
        """Write what is submitted until `end`, on this thread; `start` makes one for it."""
        try:
            while self._turn():
                pass
        except (LogdError, OSError) as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - a bug must not leave publishers waiting
            _log.exception("log_writer_failed", stream=self._config.name)
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        self.failed = True
        while not self._orders.empty():
            self._orders.get()
        self._post(CommitFailed(reason))

    def _turn(self) -> bool:
        """Write what was handed over, and carry out the order that comes next; False at the end."""
        items, order = self._await_orders()
        wrote = bool(items)
        self._append(items)
        if wrote and self.tell_written:
            self._post(Written(self._log.end_offset, self._changes.cuts))
        if self._sync_is_due():
            self._sync()
        if wrote:
            self._post(Durable(self._log.end_offset, self._changes.cuts))
        if order is LogCommand.CLOSE:
            return False
        if order is not None:
            self._carry_out(order)
        self._retain()
        return True

    def _await_orders(self) -> tuple[list[MessageRun | PrebuiltBatch], Order | None]:
        """Wait until there is something to do, or the time has come.

        Returns:
            All there is to write, up to the first order of another kind, and that one.
        """
        items: list[MessageRun | PrebuiltBatch] = []
        try:
            order = self._orders.get(timeout=self._wait_s())
            while isinstance(order, Append):
                items += order.items
                order = self._orders.get_nowait()
        except Empty:
            return items, None
        return items, order

    def _carry_out(self, order: Order) -> None:
        match order:
            case ProducerSnapshot():
                self._sync()
                self._post(ProducerSnapshotSynced(order))
            case Remembered(offset):
                self._retention_task.remembered(offset)
            case LogCommand.SEAL:
                self._log.roll()
            case LogCommand.RETAIN:
                pass  # that follows each order
            case (
                BeginEpoch()
                | Truncate()
                | Reset()
                | DeleteBefore()
                | PurgeBefore()
                | Patch()
                | Note()
            ):
                outcome = self._changes.carry_out(order)
                self._start = self._log.start_offset
                if outcome is not None:
                    self._post(outcome)
            case _:
                raise AssertionError(order)

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
        self._log.sync()
        self._synced_ns = self._clock.monotonic_ns()

    def _append(self, items: list[MessageRun | PrebuiltBatch]) -> None:
        """Write items, some frames at a time; they are let go as their frames are made."""
        made = build_frames(_taken_from(items), epoch=self._changes.epoch)
        for frames in _in_parts(made, self._append_bytes_max):
            self._log.append(frames)
            self._frames += len(frames)

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

    def _wait_s(self) -> float | None:
        wait_s = self._retention_task.wait_s()
        if self._config.fsync != "interval" or self._log.synced_offset == self._log.end_offset:
            return wait_s
        sync_s = self._config.fsync_interval_ms / 1000
        return sync_s if wait_s is None else min(sync_s, wait_s)


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

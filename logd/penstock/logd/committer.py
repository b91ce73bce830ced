"""The thread that writes one partition: append, fdatasync, say what is durable.

Everything handed over while one sync runs is written and synced together next (group commit). With
the fsync policy `commit`, only what is synced counts as durable; with `interval` and `never`, what
the operating system has taken does. What changes the log otherwise comes through the same queue
and waits for what was handed over before it. Retention runs on this thread, too, one step between
two turns: it never meets an append.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue

import structlog

from penstock.base.clock import Clock
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.replication.effects import BeginEpoch, DeleteBefore, Reset, Truncate
from penstock.logd.core.turn import Append, Run, Whole
from penstock.logd.errors import LogdError
from penstock.logd.frame_builder import build_frames
from penstock.logd.limits import APPEND_BYTES_MAX, FRAMES_UNREMEMBERED_MAX
from penstock.logd.log_changes import LogChanges
from penstock.logd.log_orders import (
    CommitFailed,
    Durable,
    Frame,
    MemorySynced,
    MemoryWanted,
    Note,
    Order,
    Outcome,
    Patch,
    PurgeBefore,
    Remembered,
    StartMoved,
    Wish,
    Written,
)
from penstock.logd.memory import Memory
from penstock.logd.retainer import Retainer
from penstock.logd.store import CommitLog, EpochFile

_log = structlog.get_logger()


class Committer:
    """Writes what is submitted, in order, until it fails or is closed.

    Args:
        log: The partition's log; nobody else writes to it.
        config: Of the stream.
        epochs: Of the log; new frames are of the last.
        post: Called on the thread with each outcome.
        clock: For the interval policy.
        retainer: Takes its steps on the thread, between two turns.
        append_bytes_max: Of frames made at a time; one may exceed it.
        frames_unremembered_max: After so many frames, `MemoryWanted` is posted.

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
        retainer: Retainer,
        append_bytes_max: int = APPEND_BYTES_MAX,
        frames_unremembered_max: int = FRAMES_UNREMEMBERED_MAX,
    ) -> None:
        self._log = log
        self._config = config
        self._changes = LogChanges(log, epochs, retainer)
        self._post = post
        self._clock = clock
        self._retainer = retainer
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
            target=self.run, name=f"committer/{config.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, append: Append) -> None:
        """Hand over what to write; never waits. After a failure it is dropped."""
        self._give(append)

    def append_fetched(self, frames: Iterable[Frame]) -> None:
        """Hand over frames of another replica, checked, to be written as they are; never waits."""
        self.submit(Append([Whole(header, body) for header, body in frames], 0))

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
        """Have whole segments below `offset` deleted, when the retainer finds that they may be."""
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

    def sync_below(self, memory: Memory) -> None:
        """Have all that was submitted made durable, and `MemorySynced` posted; never waits."""
        self._give(memory)

    def remembered(self, offset: int) -> None:
        """What the intake remembers of everything below `offset` is written down."""
        self._give(Remembered(offset))

    def seal(self) -> None:
        """Have the active segment sealed; never waits."""
        self._give(Wish.SEAL)

    def end(self) -> None:
        """Have the thread end after what was submitted; never waits, and `close` must follow."""
        self._orders.put(Wish.CLOSE)

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
            _log.exception("committer failed", stream=self._config.name)
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
        if order is Wish.CLOSE:
            return False
        if order is not None:
            self._carry_out(order)
        self._retain()
        return True

    def _await_orders(self) -> tuple[list[Run | Whole], Order | None]:
        """Wait until there is something to do, or the time has come.

        Returns:
            All there is to write, up to the first order of another kind, and that one.
        """
        items: list[Run | Whole] = []
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
            case Memory():
                self._sync()
                self._post(MemorySynced(order))
            case Remembered(offset):
                self._retainer.remembered(offset)
            case Wish.SEAL:
                self._log.roll()
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
        deleting = self._retainer.step()
        if deleting or self._frames >= self._frames_unremembered_max:
            self._frames = 0
            self._post(MemoryWanted(ids=deleting))
        start = self._log.start_offset
        if start != self._start:
            self._start = start
            self._post(StartMoved(start))

    def _sync(self) -> None:
        self._log.sync()
        self._synced_ns = self._clock.monotonic_ns()

    def _append(self, items: list[Run | Whole]) -> None:
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
        wait_s = self._retainer.wait_s()
        if self._config.fsync != "interval" or self._log.synced_offset == self._log.end_offset:
            return wait_s
        sync_s = self._config.fsync_interval_ms / 1000
        return sync_s if wait_s is None else min(sync_s, wait_s)


def _taken_from(items: list[Run | Whole]) -> Iterator[Run | Whole]:
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

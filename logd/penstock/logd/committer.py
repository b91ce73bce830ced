"""The thread that writes one partition: append, fdatasync, say what is durable.

Everything handed over while one sync runs is written and synced together next (group commit). With
the fsync policy `commit`, only what is synced counts as durable; with `interval` and `never`, what
the operating system has taken does. Retention runs on this thread, too, one step between two
writes: it never meets an append.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from typing import assert_never

import structlog

from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.turn import Append, Run, Whole
from penstock.logd.errors import LogdError
from penstock.logd.frame import FrameHeader
from penstock.logd.frame_builder import build_frames
from penstock.logd.limits import APPEND_BYTES_MAX, FRAMES_UNREMEMBERED_MAX
from penstock.logd.memory import Memory
from penstock.logd.retainer import Retainer
from penstock.logd.store import CommitLog
from penstock.service.clock import Clock

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Durable:
    """Everything below `upto` is as durable as the stream's policy asks."""

    upto: int


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The log refuses writes; what was handed over and not reported durable is not stored."""

    reason: str


@dataclass(frozen=True, slots=True)
class MemoryWanted:
    """What the intake remembers is to be written down.

    Retention or compaction waits for it, or the next start would have many frames to read.
    """


@dataclass(frozen=True, slots=True)
class MemorySynced:
    """Everything below the memory's offset is durable, so it may be written down."""

    memory: Memory


class _Wish(Enum):
    SEAL = "seal"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class _Remembered:
    offset: int


@dataclass(slots=True)
class _Work:
    """What a turn finds handed over."""

    items: list[Run | Whole] = field(default_factory=list)
    memory: Memory | None = None
    remembered: int | None = None
    sealing: bool = False


Frame = tuple[FrameHeader, bytes]
Order = Append | Memory | _Remembered | _Wish
Outcome = Durable | CommitFailed | MemoryWanted | MemorySynced


class Committer:
    """Writes what is submitted, in order, until it fails or is closed.

    Args:
        log: The partition's log; nobody else writes to it.
        config: Of the stream.
        epoch: The leader epoch of new frames.
        post: Called on the thread with each outcome.
        clock: For the interval policy.
        retainer: Takes its steps on the thread, between two writes.

    Attributes:
        failed: Whether something handed over was not stored, or may not be durable.
    """

    def __init__(
        self,
        log: CommitLog,
        config: StreamConfig,
        *,
        epoch: int,
        post: Callable[[Outcome], None],
        clock: Clock,
        retainer: Retainer,
    ) -> None:
        self._log = log
        self._config = config
        self._epoch = epoch
        self._post = post
        self._clock = clock
        self._retainer = retainer
        # Made in C: a condition's notify and wait cost more than the rest of a small turn's
        # hand-over. What it holds is bounded by the bytes that a partition takes.
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._frames = 0
        self._closing = False
        self.failed = False
        self._synced_ns = clock.monotonic_ns()
        self._thread = threading.Thread(
            target=self._run, name=f"committer/{config.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, append: Append) -> None:
        """Hand over what to write; never waits. After a failure it is dropped."""
        if not self.failed:
            self._orders.put(append)

    def sync_below(self, memory: Memory) -> None:
        """Have all that was submitted made durable, and `MemorySynced` posted; never waits."""
        self._orders.put(memory)

    def remembered(self, offset: int) -> None:
        """What the intake remembers of everything below `offset` is written down."""
        self._orders.put(_Remembered(offset))

    def seal(self) -> None:
        """Have the active segment sealed between two writes; never waits."""
        self._orders.put(_Wish.SEAL)

    def close(self) -> None:
        """Write what was submitted, sync, end the thread and close the log; waits for all that."""
        self._orders.put(_Wish.CLOSE)
        if self._thread.ident is not None:
            self._thread.join()
        self._log.close()

    def _run(self) -> None:
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
        """Write everything handed over; False when there is nothing and never will be."""
        work = self._await_work()
        wrote = bool(work.items)
        self._append(work.items)
        if work.memory is not None or self._sync_is_due():
            self._log.sync()
            self._synced_ns = self._clock.monotonic_ns()
        if wrote:
            self._post(Durable(self._log.end_offset))
        if work.memory is not None:
            self._post(MemorySynced(work.memory))
        if work.remembered is not None:
            self._retainer.remembered(work.remembered)
        if work.sealing:
            self._log.roll()
        if self._closing:
            return wrote
        if self._retainer.step() or self._frames >= FRAMES_UNREMEMBERED_MAX:
            self._frames = 0
            self._post(MemoryWanted())
        return True

    def _await_work(self) -> _Work:
        """Wait until there is something to do, or the time has come; take all there is."""
        work = _Work()
        try:
            order = self._orders.get(not self._closing, self._wait_s())
            while True:
                self._take(order, work)
                order = self._orders.get_nowait()
        except Empty:
            return work

    def _take(self, order: Order, work: _Work) -> None:
        match order:
            case Append():
                work.items += order.items
            case Memory():
                work.memory = order
            case _Remembered(offset):
                work.remembered = offset
            case _Wish.SEAL:
                work.sealing = True
            case _Wish.CLOSE:
                self._closing = True
            case _:
                assert_never(order)

    def _append(self, items: list[Run | Whole]) -> None:
        """Write items, some frames at a time; they are let go as their frames are made."""
        for frames in _in_parts(build_frames(_taken_from(items), epoch=self._epoch)):
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


def _in_parts(frames: Iterator[Frame]) -> Iterator[list[Frame]]:
    """The frames in order, about `APPEND_BYTES_MAX` of them at a time."""
    part: list[Frame] = []
    length = 0
    for frame in frames:
        header, _ = frame
        if part and length + header.frame_length > APPEND_BYTES_MAX:
            yield part
            part, length = [], 0
        part.append(frame)
        length += header.frame_length
    if part:
        yield part

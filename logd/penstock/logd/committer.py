"""The thread that writes one partition: append, fdatasync, say what is durable.

Everything handed over while one sync runs is written and synced together next (group commit). With
the fsync policy `commit`, only what is synced counts as durable; with `interval` and `never`, what
the operating system has taken does. Retention runs on this thread, too, one step between two
writes: it never meets an append.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


Frame = tuple[FrameHeader, bytes]
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
        self._condition = threading.Condition()
        self._items: list[Run | Whole] = []
        self._memory: Memory | None = None
        self._remembered: int | None = None
        self._frames = 0
        self._sealing = False
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
        with self._condition:
            if not self.failed:
                self._items.extend(append.items)
                self._condition.notify()

    def sync_below(self, memory: Memory) -> None:
        """Have all that was submitted made durable, and `MemorySynced` posted; never waits."""
        with self._condition:
            self._memory = memory
            self._condition.notify()

    def remembered(self, offset: int) -> None:
        """What the intake remembers of everything below `offset` is written down."""
        with self._condition:
            self._remembered = offset
            self._condition.notify()

    def seal(self) -> None:
        """Have the active segment sealed between two writes; never waits."""
        with self._condition:
            self._sealing = True
            self._condition.notify()

    def close(self) -> None:
        """Write what was submitted, sync, end the thread and close the log; waits for all that."""
        with self._condition:
            self._closing = True
            self._condition.notify()
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
        with self._condition:
            self.failed = True
            self._items = []
        self._post(CommitFailed(reason))

    def _turn(self) -> bool:
        """Write everything handed over; False when there is nothing and never will be."""
        with self._condition:
            if not self._has_work():
                self._condition.wait(self._wait_s())
            items, self._items = self._items, []
            memory, self._memory = self._memory, None
            remembered, self._remembered = self._remembered, None
            sealing, self._sealing = self._sealing, False
            ending = self._closing
        wrote = bool(items)
        self._append(items)
        if memory is not None or self._sync_is_due():
            self._log.sync()
            self._synced_ns = self._clock.monotonic_ns()
        if wrote:
            self._post(Durable(self._log.end_offset))
        if memory is not None:
            self._post(MemorySynced(memory))
        if remembered is not None:
            self._retainer.remembered(remembered)
        if sealing:
            self._log.roll()
        if not ending and (self._retainer.step() or self._frames >= FRAMES_UNREMEMBERED_MAX):
            self._frames = 0
            self._post(MemoryWanted())
        return wrote or not ending

    def _append(self, items: list[Run | Whole]) -> None:
        """Write items, some frames at a time; they are let go as their frames are made."""
        for frames in _in_parts(build_frames(_taken_from(items), epoch=self._epoch)):
            self._log.append(frames)
            self._frames += len(frames)

    def _has_work(self) -> bool:
        asked = self._memory is not None or self._remembered is not None or self._sealing
        return bool(self._items) or self._closing or asked

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

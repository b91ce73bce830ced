"""Reads of frames that may have to wait for the disk: on threads, a few at a time.

What a follower in sync wants was written a moment ago and lies in the page cache. What one that
catches up wants may not, and a read of megabytes from a disk would hold up the event loop. So it is
begun, and the partition is told to come again when it is done. While a follower writes what it was
sent, what it will want next is read.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from penstock.logd.cluster.replication.frames import Found
from penstock.logd.core.replication.session import PartitionKey

_SLOTS: Final = 2
"""Reads under way, or read and not yet sent, for one follower's node: one is sent while the next
one is read. Each holds the bytes of one response."""

_KEPT_S: Final = 1.0
"""Seconds that what was read is kept though it is not sent, when another wants its place: the
catch-up pace may hold it back, or its wish may be gone."""

Place = tuple[int, int]
"""Leader epoch and offset: in one epoch what lies at an offset of its leader's log stays."""

Read = Callable[[int], Found]
"""Reads from an offset on."""


@dataclass(slots=True)
class _Read:
    place: Place
    found: Found | None = None
    done_at: float = 0.0


class ColdReads:
    """Of one follower's node. Used on the event loop.

    Args:
        executor: Reads on its threads.
        on_ready: Called when there is a point in asking for a partition's frames again.
        on_failed: Called with what went wrong when they could not be read.
        kept_s: Seconds that what was read is kept unsent when another wants its place.
    """

    def __init__(
        self,
        executor: Executor,
        on_ready: Callable[[PartitionKey], None],
        on_failed: Callable[[PartitionKey, Exception], None],
        *,
        kept_s: float = _KEPT_S,
    ) -> None:
        self._executor = executor
        self._kept_s = kept_s
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._reads: dict[PartitionKey, _Read] = {}
        self._waiting: dict[PartitionKey, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, key: PartitionKey, place: Place, upto: int, read: Read) -> Found | None:
        """What was read at a place; None: it is being read now, or will be: `on_ready` tells.

        Args:
            key: The partition.
            place: Where to read.
            upto: Where there is nothing more to be read.
            read: Reads it.
        """
        present = self._reads.get(key)
        if present is not None:
            if present.found is None:
                return None
            alone = not self._waiting
            self._drop(key)
            if present.place == place:
                if alone and place[1] < present.found.next_offset < upto:
                    self._begin(key, (place[0], present.found.next_offset), read)
                return present.found
        if len(self._reads) < _SLOTS or self._evict():
            self._waiting.pop(key, None)
            self._begin(key, place, read)
        elif key not in self._waiting:
            self._waiting[key] = None
            asyncio.get_running_loop().call_later(self._kept_s, self._remind, key)
        return None

    def forget(self, key: PartitionKey) -> None:
        """The partition is not fetched from there any more."""
        self._waiting.pop(key, None)
        self._drop(key)

    def close(self) -> None:
        """Nobody waits for anything any more."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, key: PartitionKey, place: Place, read: Read) -> None:
        self._reads[key] = _Read(place)
        task = asyncio.create_task(self._run(key, self._reads[key], read))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: PartitionKey, mine: _Read, read: Read) -> None:
        loop = asyncio.get_running_loop()
        try:
            mine.found = await loop.run_in_executor(self._executor, read, mine.place[1])
            mine.done_at = loop.time()
        except Exception as error:  # noqa: BLE001 - one log must not hold up the others
            if self._reads.get(key) is mine:
                self._drop(key)
            self._on_failed(key, error)
            return
        if self._reads.get(key) is mine:
            self._on_ready(key)

    def _evict(self) -> bool:
        """Make room by giving up what was read and is not sent."""
        now = asyncio.get_running_loop().time()
        for key, read in self._reads.items():
            if read.found is not None and now - read.done_at >= self._kept_s:
                del self._reads[key]
                return True
        return False

    def _remind(self, key: PartitionKey) -> None:
        """What is in the way may have been read for nothing."""
        if key in self._waiting:
            del self._waiting[key]
            self._on_ready(key)

    def _drop(self, key: PartitionKey) -> None:
        if self._reads.pop(key, None) is not None and self._waiting:
            waiting = next(iter(self._waiting))
            del self._waiting[waiting]
            self._on_ready(waiting)

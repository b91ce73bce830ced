"""Reading that the sinks of a job share: each reads for itself, and one makes the rows for all.

Every task fetches its frames from logd, and so sees what logd says of them now: what is lost,
refused, deleted or compacted. Shared is only what follows from the frames' bytes: their rows, in
the columns and by the conditions of a sink, which is nearly all of the work. Tasks that come to the
same pieces at the same time make some of them each. One waits for what another makes, `WAIT_S` at
most; for a task that has died it does not wait.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import pyarrow as pa

from penstock.base.clock import BlockingClock
from penstock.router.read.chunks import FrameChunk
from penstock.router.read.fetch import warn
from penstock.router.read.shared.cache import SharedChunks

WAIT_S: Final = 1.0
"""Maximum seconds to wait for a chunk that another task makes; it takes some hundredths."""

_POLL_S: Final = 0.005
_AHEAD: Final = 4
"""Pieces looked at together: where another makes the first one, the next may be free."""

_AHEAD_BYTES: Final = 4 * 1024 * 1024
"""Bytes of frames at which fewer chunks are read ahead."""


@dataclass(slots=True)
class SharedReading:
    """The shared reading of one task.

    Attributes:
        opened: Opens the cache.
        purpose: Everything beside the records that decides what `make` returns.
        make: Makes the rows of records.
        clock: Clock for the waits.
        wait_s: Maximum seconds to wait for a chunk that another task makes.
    """

    opened: Callable[[], SharedChunks]
    purpose: str
    make: Callable[[pa.RecordBatch], pa.RecordBatch]
    clock: BlockingClock
    wait_s: float = WAIT_S
    _shared: SharedChunks | None = None
    _is_alone: bool = False

    def batches(self, chunks: Iterable[FrameChunk]) -> Iterator[pa.RecordBatch]:
        """The rows of each piece, maybe none of some, in their order."""
        ahead, size = list[FrameChunk](), 0
        for chunk in chunks:
            ahead.append(chunk)
            size += chunk.size
            if len(ahead) == _AHEAD or size >= _AHEAD_BYTES:
                yield from self._of(ahead)
                ahead, size = [], 0
        yield from self._of(ahead)

    def _of(self, chunks: list[FrameChunk]) -> list[pa.RecordBatch]:
        names = [chunk.name(self.purpose) for chunk in chunks]
        made: dict[int, pa.RecordBatch] = {}
        waited_s = 0.0
        while len(made) < len(chunks):
            before = len(made)
            for at, (chunk, name) in enumerate(zip(chunks, names, strict=True)):
                if at in made:
                    continue
                rows = (
                    self._found_or_made(chunk, name) if waited_s < self.wait_s else self._own(chunk)
                )
                if rows is not None:
                    made[at] = rows
            if len(made) == before:
                self.clock.sleep(_POLL_S)
                waited_s += _POLL_S
        return [rows for _, rows in sorted(made.items())]

    def _own(self, chunk: FrameChunk) -> pa.RecordBatch:
        return self.make(chunk.rows())

    def _found_or_made(self, chunk: FrameChunk, name: str) -> pa.RecordBatch | None:
        """Return the rows from the cache or make them; None: another task is about to make them."""
        if self._is_alone:
            return self._own(chunk)
        try:
            return self._found_or_kept(chunk, name)
        except OSError as error:
            _warn_once(f"going on without what other sinks have read: {error}")
            self._is_alone = True
            return self._own(chunk)

    def _found_or_kept(self, chunk: FrameChunk, name: str) -> pa.RecordBatch | None:
        shared = self._shared = self._shared or self.opened()
        if (found := shared.find(name)) is not None:
            return found
        with shared.making(name) as is_mine:
            if not is_mine:
                return None
            if (found := shared.find(name)) is None:  # nor has it been made just now
                found = self._own(chunk)
                shared.keep(name, found)
            return found


_warn_once: Final = cache(warn)
"""Warns once of a condition that may last for a job's life and that each task meets."""

"""Where ranges that readers were given ended, for the next one often begins there.

The sparse index leads only near to a frame; in a log of small ones a reader at its end would walk
over dozens of headers for each new frame.
"""

import threading
from typing import Final

_KEPT: Final = 8
"""Readers that are at different places."""


class RangeEnds:
    """Of one segment, until it is cut. Any thread."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._lock = threading.Lock()

    def at(self, offset: int) -> tuple[int, int] | None:
        """Position and offset of the frame that begins at an offset, if it is known."""
        position = self._positions.get(offset)
        return None if position is None else (position, offset)

    def note(self, offset: int, position: int) -> None:
        """The frame that begins at an offset lies there, or will."""
        with self._lock:
            self._positions.pop(offset, None)
            self._positions[offset] = position
            if len(self._positions) > _KEPT:
                del self._positions[next(iter(self._positions))]

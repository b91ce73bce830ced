"""The damaged ranges of one log that are known: found when it was opened, or by reads since."""

import threading
from collections.abc import Iterable

Range = tuple[int, int]
"""[first, upto) of offsets."""


class DamagedRanges:
    """Ranges of offsets that cannot be read, in order, none overlapping another. Any thread.

    Args:
        ranges: To begin with.
    """

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._lock = threading.Lock()
        self._ranges: list[Range] = []
        for first, upto in ranges:
            self.add(first, upto)

    def add(self, first: int, upto: int) -> None:
        """Note that [first, upto) cannot be read; it is united with what it overlaps."""
        if first >= upto:
            return
        with self._lock:
            apart = [(a, b) for a, b in self._ranges if b <= first or upto <= a]
            for a, b in self._ranges:
                if a < upto and first < b:
                    first, upto = min(a, first), max(b, upto)
            self._ranges = sorted([*apart, (first, upto)])

    def cut(self, end: int) -> None:
        """Forget what lies at or above `end`: it is gone."""
        with self._lock:
            self._ranges = [(a, min(b, end)) for a, b in self._ranges if a < end]

    def remove(self, first: int, upto: int) -> None:
        """Forget what lies in [first, upto): it can be read again."""
        with self._lock:
            left = [(a, min(b, first)) for a, b in self._ranges]
            right = [(max(a, upto), b) for a, b in self._ranges]
            self._ranges = sorted({(a, b) for a, b in (*left, *right) if a < b})

    def within(self, start: int, end: int) -> list[Range]:
        """What lies in [start, end)."""
        if not self._ranges:  # nearly always, and looked at every second for every log
            return []
        clipped = [(max(a, start), min(b, end)) for a, b in self._ranges]
        return [(a, b) for a, b in clipped if a < b]

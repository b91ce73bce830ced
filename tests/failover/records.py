"""What the publisher and the reader write, as they write it; and how long nothing came."""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path


class Tail:
    """A file of 64-bit integers that grows; so many of them are a row."""

    def __init__(self, path: Path, fields: int) -> None:
        self._path = path
        self._bytes = fields * 8
        self._fields = fields
        self._read = 0

    def rows(self) -> list[tuple[int, ...]]:
        """The rows that were not read before."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = len(data) - len(data) % self._bytes
        self._read += whole
        numbers = array("q", data[:whole])
        return list(zip(*[iter(numbers)] * self._fields, strict=True))


def longest_gap_s(times_ns: Sequence[int], since_ns: int) -> float:
    """The longest time between two of these in order, of those that end after a moment."""
    gaps = [after - before for before, after in pairwise(times_ns) if after > since_ns]
    return max(gaps, default=0) / 1e9

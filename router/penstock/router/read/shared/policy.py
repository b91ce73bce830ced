"""Borders of the chunks that a log is cut into, and the order in which cached ones are evicted.

Readers that begin and end at different offsets are to come to the same pieces in between. So pieces
end at frames that begin beyond a multiple of `CHUNK_OFFSETS`, for each reader. Only where a piece
has few records then, it goes on to the next such place: a small one costs nearly what a large one
does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

CHUNK_OFFSETS: Final = 8_192
"""Offsets of a piece, about."""

CHUNK_RECORDS_MIN: Final = 2_048
"""Records since the last such place, with fewer of which it is none."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bytes in memory at which a piece ends anywhere, with the frame that brings them."""


@dataclass(slots=True)
class Cutter:
    """Cuts frames that follow one another into pieces.

    Attributes:
        offsets: Approximate offsets of a chunk.
        min_records: Since the last place where one may begin.
    """

    offsets: int = CHUNK_OFFSETS
    min_records: int = CHUNK_RECORDS_MIN
    _cell: int = -1
    _records: int = 0
    _size: int = 0

    def begins(self, base_offset: int, *, records: int, size: int) -> bool:
        """Take the next frame; whether another piece begins with it than that before.

        Args:
            base_offset: First offset of the frame.
            records: In it.
            size: Its bytes in memory.
        """
        cell = base_offset // self.offsets
        # Not those of the piece: it may have begun because of its bytes, elsewhere for each reader.
        is_common = cell != self._cell and self._records >= self.min_records
        begins = is_common or self._size >= CHUNK_BYTES
        if is_common:
            self._records = 0
        if begins:
            self._size = 0
        self._cell = cell
        self._records += records
        self._size += size
        return begins


class Kept(NamedTuple):
    """A piece that is kept; the oldest comes first in their order.

    Attributes:
        since_ns: Time when it was made.
        name: Its own.
        size: Bytes.
    """

    since_ns: int
    name: str
    size: int


def too_many(kept: Iterable[Kept], max_bytes: int) -> Iterator[str]:
    """The names of those that go, the oldest first, so that the others have `max_bytes` at most."""
    ordered = sorted(kept)
    total = sum(one.size for one in ordered)
    for one in ordered:
        if total <= max_bytes:
            return
        total -= one.size
        yield one.name

"""Remote files as Python's binary files, read in ranges."""

import io
from collections.abc import Callable
from typing import Any

from typing_extensions import override

ReadRange = Callable[[int, int], bytes]
"""Returns up to so many bytes from a position: ``read(position, count)``."""


class RangeInput(io.RawIOBase):
    """A file of a known size whose bytes are read in ranges; errors of `read` are its own."""

    def __init__(self, size: int, read: ReadRange) -> None:
        self._size, self._read = size, read
        self._position = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(begin + offset, 0)
        return self._position

    @override
    def readinto(self, buffer: Any, /) -> int:
        wanted = max(min(len(buffer), self._size - self._position), 0)
        if not wanted:
            return 0
        found = self._read(self._position, wanted)
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)

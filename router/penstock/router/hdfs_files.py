"""Files of HDFS as Python's: what pyarrow writes to, and reads from."""

import io
from collections.abc import Callable
from typing import Any, Final

from typing_extensions import Buffer, override

PIECE_BYTES: Final = 1024 * 1024
"""What goes to the library, or comes from it, with one call."""


class HdfsOutput(io.RawIOBase):
    """A file of the library's that is written to."""

    def __init__(self, file: Any, bounded: Callable[..., Any], path: str) -> None:
        self._file, self._bounded, self._path = file, bounded, path
        self._position = 0
        self._failure: Exception | None = None

    @override
    def writable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def write(self, data: Buffer, /) -> int:
        taken = bytes(data)
        self._do(lambda: self._file.write(taken))
        self._position += len(taken)
        return len(taken)

    def sync(self) -> None:
        """Bring what it got to the disks of the datanodes."""
        self._do(self._file.hsync)

    @override
    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._failure is None:
                self._do(self._file.close)
        finally:
            super().close()

    def _do(self, function: Callable[[], Any]) -> None:
        """After a failure nothing is done any more, and the same is said."""
        if self._failure is not None:
            raise self._failure
        try:
            self._bounded(function, self._path)
        except Exception as error:
            self._failure = error
            raise


class HdfsInput(io.RawIOBase):
    """A file of the library's that is read from."""

    def __init__(self, file: Any, bounded: Callable[..., Any], path: str) -> None:
        self._file, self._bounded, self._path = file, bounded, path
        self._size: int = len(file)
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
        found: bytes = self._bounded(
            lambda: self._file.read_range(self._position, wanted), self._path
        )
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)


class HdfsWriter(io.BufferedWriter):
    """A file that is being written: `sync` makes what it has durable, `close` ends it.

    After a call has failed, `close` asks nothing any more: the file stays unfinished.
    """

    def __init__(self, raw: HdfsOutput) -> None:
        super().__init__(raw, PIECE_BYTES)
        self._output = raw

    def sync(self) -> None:
        """Bring everything written so far to the disks of the datanodes."""
        self.flush()
        self._output.sync()

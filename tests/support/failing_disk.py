"""A real disk of which some bytes cannot be read, that is away for a while, or fails on demand."""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import override

from penstock.logd.storage.disk import File, RealDisk, RealFile, read_opened

WRITES = frozenset({"create", "write", "sync", "truncate", "rename"})
"""What a disk that is full or read-only does not do."""

Before = Callable[[str, Path], None]
"""Given an operation's name, as in `Disk` and `File`, and its path; may wait, or raise OSError."""


class FailingDisk(RealDisk):
    """Fails as told.

    Attributes:
        bad: Positions of log files; a read that touches them fails.
        away: Nothing can be read or written.
        open_errno: Files cannot be opened for this reason; 0: they can.
        full: Says that nothing is free, whatever is.
        befores: Called before each operation.
    """

    def __init__(self) -> None:
        self.bad: dict[str, range] = {}
        self.away = self.full = False
        self.open_errno = 0
        self.befores: list[Before] = []

    @contextmanager
    def before(self, call: Before) -> Iterator[None]:
        """Have something done before each operation while the block lasts."""
        self.befores.append(call)
        try:
            yield
        finally:
            self.befores.remove(call)

    @contextmanager
    def fails(
        self, operation: str, number: int = errno.EIO, *, name: str = "*", once: bool = False
    ) -> Iterator[None]:
        """Have an operation fail on files of a name, or only once, while the block lasts.

        Names are patterns as `Path.match` takes them.
        """
        left = [True]

        def fail(done: str, path: Path) -> None:
            if left and done == operation and path.match(name):
                if once:
                    left.clear()
                raise OSError(number, os.strerror(number), str(path))

        with self.before(fail):
            yield

    @contextmanager
    def failing(
        self,
        number: int = errno.EIO,
        *,
        under: Path | None = None,
        when: Callable[[], bool] = lambda: True,
    ) -> Iterator[None]:
        """Have nothing written, in a directory or a file or at all, while the block lasts.

        Args:
            number: The errno.
            under: The directory or the file.
            when: Asked at each operation, in whichever thread; it fails where this is true.
        """

        def fail(done: str, path: Path) -> None:
            inside = under is None or under in (path, *path.parents)
            if done in WRITES and inside and when():
                raise OSError(number, os.strerror(number), str(path))

        with self.before(fail):
            yield

    @contextmanager
    def holds(self, operation: str, *, name: str = "*", once: bool = False) -> Iterator["Held"]:
        """Have the operation wait on files of a name, until it is let go or the block ends.

        With `once` only the first one waits.
        """
        held = Held()

        def wait(done: str, path: Path) -> None:
            if done == operation and path.match(name):
                if once and held.reached.is_set():
                    return
                held.wait()

        with self.before(wait):
            try:
                yield held
            finally:
                held.go_on.set()

    def begin(self, operation: str, path: Path) -> None:
        """An operation begins.

        Raises:
            OSError: It is to fail.
        """
        for call in tuple(self.befores):
            call(operation, path)

    @override
    def open(self, path: Path) -> File:
        self.begin("open", path)
        if self.open_errno:
            raise OSError(self.open_errno, os.strerror(self.open_errno), str(path))
        return _FailingFile(path, self)

    @override
    def read(self, path: Path | str) -> bytes | None:
        return read_opened(self, Path(path))

    @override
    def create(self, path: Path) -> File:
        self.begin("create", path)
        return _FailingFile(path, self, os.O_CREAT | os.O_TRUNC)

    @override
    def list_directory(self, path: Path) -> list[str]:
        self.begin("list_directory", path)
        return super().list_directory(path)

    @override
    def rename(self, source: Path, target: Path) -> None:
        self.begin("rename", target)
        super().rename(source, target)

    @override
    def unlink(self, path: Path) -> None:
        self.begin("unlink", path)
        super().unlink(path)

    @override
    def sync_directory(self, path: Path) -> None:
        self.begin("sync_directory", path)
        super().sync_directory(path)

    @override
    def available_bytes(self, directory: Path) -> int:
        self.begin("available_bytes", directory)
        return 0 if self.full else super().available_bytes(directory)


class Held:
    """An operation that waits before it is done.

    Attributes:
        reached: It waits, or has waited.
        go_on: Lets it, and all that come after it, be done.
    """

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.go_on.wait(60), "nobody let it go"


class _FailingFile(RealFile):
    def __init__(self, path: Path, disk: FailingDisk, flags: int = 0) -> None:
        super().__init__(path, os.O_RDWR | flags)
        self._disk, self._path = disk, path

    @override
    def read(self, position: int, length: int) -> bytes:
        self._disk.begin("read", self._path)
        bad = self._disk.bad.get(self._path.name, range(0))
        touched = position < bad.stop and bad.start < position + length
        self._check(failed=touched)
        return super().read(position, length)

    @override
    def write(self, position: int, buffers: Sequence[bytes]) -> None:
        self._disk.begin("write", self._path)
        super().write(position, buffers)

    @override
    def truncate(self, size: int) -> None:
        self._disk.begin("truncate", self._path)
        super().truncate(size)

    @override
    def sync(self) -> None:
        self._disk.begin("sync", self._path)
        self._check()
        super().sync()

    def _check(self, *, failed: bool = False) -> None:
        if failed or self._disk.away:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._path))

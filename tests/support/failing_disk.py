"""A real disk of which some bytes cannot be read, or that is away for a while."""

import errno
import os
from pathlib import Path

from typing_extensions import override

from penstock.logd.store.disk import File, RealDisk, RealFile


class FailingDisk(RealDisk):
    """Fails as told.

    Attributes:
        bad: Positions of log files; a read that touches them fails.
        away: Nothing can be read or written.
        open_errno: Files cannot be opened for this reason; 0: they can.
    """

    def __init__(self) -> None:
        self.bad: dict[str, range] = {}
        self.away = False
        self.open_errno = 0

    @override
    def open(self, path: Path) -> File:
        if self.open_errno:
            raise OSError(self.open_errno, os.strerror(self.open_errno), str(path))
        return _FailingFile(path, self)

    @override
    def create(self, path: Path) -> File:
        return _FailingFile(path, self, os.O_CREAT | os.O_TRUNC)


class _FailingFile(RealFile):
    def __init__(self, path: Path, disk: FailingDisk, flags: int = 0) -> None:
        super().__init__(path, os.O_RDWR | flags)
        self._disk, self._path = disk, path

    @override
    def read(self, position: int, length: int) -> bytes:
        bad = self._disk.bad.get(self._path.name, range(0))
        touched = position < bad.stop and bad.start < position + length
        self._check(failed=touched)
        return super().read(position, length)

    @override
    def sync(self) -> None:
        self._check()
        super().sync()

    def _check(self, *, failed: bool = False) -> None:
        if failed or self._disk.away:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._path))

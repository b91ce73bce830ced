"""The lock that keeps a second process out of a data directory."""

import fcntl
import os
from pathlib import Path
from typing import Final, Self

from penstock.logd.errors import RefusedError

FILE_NAME: Final = "lock"


class DirectoryLock:
    """An exclusive flock on `<directory>/lock`, held until `release` or the process ends.

    The file holds the owner's process id, for people; the lock itself is the kernel's, so a file
    left behind by a killed process locks nobody out.

    Args:
        directory: It exists.

        unchanged: Write nothing, neither the file nor the process id.

    Raises:
        RefusedError: `LOCKED`: another process, or another lock of this one, holds it.
        FileNotFoundError: There is no file, and none is to be made.
    """

    def __init__(self, directory: Path, *, unchanged: bool = False) -> None:
        flags = os.O_RDONLY if unchanged else os.O_RDWR | os.O_CREAT
        self._descriptor = _locked(directory, flags)
        if unchanged:
            return
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others in; releasing twice is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        """The lock, held already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let others in."""
        self.release()


def _locked(directory: Path, flags: int) -> int:
    """A descriptor of the directory's lock file that holds the lock."""
    descriptor = os.open(directory / FILE_NAME, flags | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        message = f"{directory} is in use by process {owner or 'unknown'}"
        raise RefusedError("LOCKED", message, pid=owner, directory=str(directory)) from None
    return descriptor

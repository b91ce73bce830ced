"""A journal of audit records on disk: locked while its process lives, then adopted."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from penstock.specs.core.spill import Spill

SUFFIX: Final = ".spill"
_MODE: Final = 0o600


class SpillFile:
    """Appends to one journal. What the disk refuses stays in memory, and is counted.

    Written to the page cache, not synced: records survive the death of the process, not that of the
    machine.

    Attributes:
        failures: Entries that could not be written.
    """

    def __init__(self, path: Path, spill: Spill) -> None:
        self.path = path
        self.spill = spill
        self.failures = 0
        self._size = 0
        self._descriptor = -1

    @classmethod
    def adopt(cls, path: Path, bytes_max: int) -> Self | None:
        """Open a journal whose process has died; None when it lives, or there is nothing left."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        found = cls(path, Spill(bytes_max))
        found._descriptor = descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino != path.stat().st_ino:
                found.forget()  # its owner has just put another in its place
                return None
            good = found.spill.replay(path.read_bytes())
            os.ftruncate(descriptor, good)
            os.lseek(descriptor, 0, os.SEEK_END)
        except OSError:
            found.forget()
            return None
        found._size = good
        if not found.spill.held:
            found.remove()
            return None
        return found

    def append(self, data: bytes) -> None:
        """Write an entry that the journal's state has already; the first one makes the file.

        After a failure the file says less than the state, so it is given up and made anew, for
        which there may be room: nothing settled is in it. If not, the next entry tries again.
        """
        was_open = self._descriptor >= 0
        try:
            if not was_open:
                self._create()
                return
            _write_whole(self._descriptor, data)
            self._size += len(data)
        except OSError:
            self.failures += 1
            self.remove()
            if was_open:
                with contextlib.suppress(OSError):
                    self._create()

    def shrink(self) -> None:
        """Rewrite a journal that is mostly settled, once it has grown."""
        settled = self._size - self.spill.held_bytes
        if self._descriptor < 0 or self._size < self.spill.bytes_max or settled < self._size // 2:
            return
        old = self._descriptor
        with contextlib.suppress(OSError):
            self._create()
            os.close(old)

    def remove(self) -> None:
        """Delete it; nothing in it is unsettled."""
        with contextlib.suppress(OSError):
            if self._descriptor >= 0:
                self.path.unlink()
        self.forget()

    def forget(self) -> None:
        """Close it and leave it as it is: to another process, or, in a forked child, to ours."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _create(self) -> None:
        """Write everything under another name, locked, before it gets its own: nobody adopts it."""
        beside = self.path.with_suffix(".new")
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(beside, flags, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = self.spill.content()
            _write_whole(descriptor, content)
            beside.replace(self.path)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._size = descriptor, len(content)


def _write_whole(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) < len(data):
        raise OSError(errno.ENOSPC, "written in part")


def usable_directory(path: Path) -> bool:
    """Whether journals may lie there: made if need be, ours alone."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def orphans(directory: Path, bytes_max: int) -> Iterator[SpillFile]:
    """Journals in a directory whose processes have died, opened."""
    try:
        paths = sorted(directory.glob(f"*{SUFFIX}"))
    except OSError:
        return
    for path in paths:
        found = SpillFile.adopt(path, bytes_max)
        if found is not None:
            yield found

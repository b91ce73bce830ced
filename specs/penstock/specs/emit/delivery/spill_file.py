"""A journal of audit records on disk: locked while its process lives, then adopted.

A file's name is its sender's: ``<the process's id>-<the boot's>-audit.spill``. The entry that says
what was sent may not be on the disk when power fails, and what is sent again under a sequence that
the collector knows is lost unless it is the same. So a journal of an earlier boot is adopted under
another name: what it holds arrives at least once. Within a boot it arrives once.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from penstock.base.files import sync_directories
from penstock.specs.emit.delivery.spill import Spill

SUFFIX: Final = ".spill"
_NAME: Final = "-audit" + SUFFIX
_MODE: Final = 0o600
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_BOOT_CHARACTERS: Final = 8


class SpillFile:
    """Appends to one journal. What the disk refuses stays in memory, and is counted.

    `append` writes to the page cache, which survives the death of the process; `sync` brings all
    that was written to the disk. All methods but `sync` need the caller's lock.

    Attributes:
        failures: Entries that could not be written, and syncs that failed.
        written: Entries that were appended so far.
        synced: How many of them are on the disk.
    """

    def __init__(self, path: Path, spill: Spill) -> None:
        self.path = path
        self.spill = spill
        self.failures = 0
        self.written = 0
        self.synced = 0
        self._size = 0
        self._descriptor = -1
        self._syncing = -1
        self._files = 0
        self._named = -1

    @classmethod
    def adopt(cls, path: Path, bytes_max: int, boot: str) -> Self | None:
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
            found.path = path.rename(path.with_name(_renamed(path.name, boot)))
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

        After a failure the file says less than the state, so it is given up and made again, for
        which there may be room: nothing settled is in it. If not, the next entry tries again.
        """
        self.written += 1
        was_open = self._descriptor >= 0
        try:
            if not was_open:
                self._create()
                return
            _write_whole(self._descriptor, data)
            self._size += len(data)
        except OSError:
            self._begin_anew(was_open=was_open)

    def shrink(self) -> None:
        """Rewrite a journal that is mostly settled, once it has grown.

        It is on the disk before it takes the other's place, which may be there already.
        """
        settled = self._size - self.spill.held_bytes
        if self._descriptor < 0 or self._size < self.spill.bytes_max or settled < self._size // 2:
            return
        old = self._descriptor
        with contextlib.suppress(OSError):
            self._create(sync=True)
            os.close(old)

    def opened(self) -> tuple[int, int, int] | None:
        """What `sync` needs: a descriptor of its own, which file it is, what is written to it."""
        if self._descriptor < 0:
            return None
        try:
            self._syncing = os.dup(self._descriptor)
        except OSError:
            return None  # no descriptors: later
        return self._syncing, self._files, self.written

    def sync(self, descriptor: int) -> bool:
        """Bring the file and its name to the disk, which may take long; False when that failed.

        Without the caller's lock, so that others append meanwhile: they share the next one.
        """
        number = self._files
        try:
            os.fdatasync(descriptor)
            if self._named != number:
                sync_directories([self.path.parent])
                self._named = number
        except OSError:
            return False
        finally:
            self._syncing = -1
            os.close(descriptor)
        return True

    def was_synced(self, number: int, written: int, *, done: bool) -> None:
        """Take note of what `sync` said of what `opened` returned.

        Nothing is believed of a file that could not be synced, not even when it is tried again: the
        kernel may have thrown away what it could not write. It is made again.
        """
        if number != self._files:
            return  # another file has taken its place
        if done:
            self.synced = max(self.synced, written)
        else:
            self._begin_anew(was_open=True)

    def remove(self) -> None:
        """Delete it; nothing in it is unsettled."""
        with contextlib.suppress(OSError):
            if self._descriptor >= 0:
                self.path.unlink()
        self.forget()

    def forget(self) -> None:
        """Close it and leave it as it is, to another process."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._files += 1

    def after_fork(self) -> None:
        """In a forked child: close all copies, which would keep the parent's lock when it dies."""
        self.forget()
        if self._syncing >= 0:
            os.close(self._syncing)
        self._syncing = -1

    def _begin_anew(self, *, was_open: bool) -> None:
        self.failures += 1
        self.remove()
        if was_open:
            with contextlib.suppress(OSError):
                self._create()

    def _create(self, *, sync: bool = False) -> None:
        """Write everything under another name, locked, before it gets its own: nobody adopts it.

        The descriptor stays open, with its lock, so this is no `penstock.base.files.atomic_write`.
        """
        beside = self.path.with_suffix(".new")
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(beside, flags, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = self.spill.content()
            _write_whole(descriptor, content)
            if sync:
                os.fdatasync(descriptor)
            beside.replace(self.path)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._size = descriptor, len(content)
        self._files += 1


def _write_whole(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) < len(data):
        raise OSError(errno.ENOSPC, "written in part")


def boot_id() -> str:
    """Another one after every start of the machine; ``unknown`` where that cannot be told."""
    try:
        return _BOOT_ID.read_text()[:_BOOT_CHARACTERS]
    except OSError:
        return "unknown"


def journal_name(process: str, boot: str) -> str:
    """The file name of a process's journal."""
    return f"{process}-{boot}{_NAME}"


def _renamed(name: str, boot: str) -> str:
    """The name under which a journal is adopted: the same, within the boot it was made in."""
    if not name.endswith(_NAME) or name.endswith(f"-{boot}{_NAME}"):
        return name
    return journal_name(name.removesuffix(_NAME).rpartition("-")[0] or "adopted", boot)


def usable_directory(path: Path) -> bool:
    """Whether journals may lie there: made if need be, ours alone."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def orphans(directory: Path, bytes_max: int, boot: str) -> Iterator[SpillFile]:
    """Journals in a directory whose processes have died, opened."""
    try:
        paths = sorted(directory.glob(f"*{SUFFIX}"))
    except OSError:
        return
    for path in paths:
        found = SpillFile.adopt(path, bytes_max, boot)
        if found is not None:
            yield found

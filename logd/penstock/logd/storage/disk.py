"""The only access to the file system, and the real disk behind it.

Everything the store knows about durability is said here, so that the simulated disk of the tests
can take each promise away on its own:

- `File.write` and `File.truncate` reach the page cache; `File.sync` makes a file's bytes and size
  durable.
- A name made by `create`, `rename` or `make_directory`, or taken by `unlink`, is durable after
  `sync_directory` of the directory that holds it, and not before.
- `rename` replaces its target atomically.

A `File` belongs to all that refer to it: its descriptor is closed when the last reference goes, so
a reader may go on with a file that has been unlinked meanwhile.
"""

import errno
import fcntl
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, Self

from penstock.base.files import sync_directories
from penstock.logd.errors import RefusedError

IOV_MAX: Final = 1024
"""Buffers one writev takes on Linux (`sysconf(_SC_IOV_MAX)`)."""


class Content(Protocol):
    """Content that can be read at any position."""

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        ...


class File(Content, Protocol):
    """An open file. `write` and `truncate` belong to one writer; any thread may read."""

    def fileno(self) -> int:
        """The descriptor, for sendfile."""
        ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def write(self, position: int, buffers: Sequence[bytes]) -> None:
        """Write all buffers one after another, in one call where the system allows.

        Raises:
            OSError: Not everything was written; some of it may have been.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def sync(self) -> None:
        """Make bytes and size durable (fdatasync)."""
        ...

    def close(self) -> None:
        """Close early; closing twice is fine."""
        ...


class Disk(Protocol):
    """A file system."""

    def open(self, path: Path) -> File:
        """Open an existing file to read and write."""
        ...

    def create(self, path: Path) -> File:
        """Make a new file, or empty an old one, and open it."""
        ...

    def read(self, path: Path | str) -> bytes | None:
        """Read a whole file; None when there is none."""
        ...

    def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def exists(self, path: Path) -> bool: ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        ...

    def make_directory(self, path: Path) -> None:
        """Make a directory; its parent exists."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def available_bytes(self, directory: Path) -> int:
        """Bytes that this user may still write to the file system of a directory."""
        ...


class RealFile:
    """A file of the operating system, closed when nobody refers to it any more.

    A weak reference gives the file while its descriptor is open, or nothing. So `__del__` cannot
    close it: that runs, and lets other threads run, while weak references still give the file.
    """

    __slots__ = ("__weakref__", "_closing", "_descriptor")

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o640)
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        self._closing.atexit = False

    def fileno(self) -> int:
        """The descriptor, for sendfile.

        Raises:
            OSError: The file was closed: its log ends while a reader uses it.
        """
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the log was closed while it was read")
        return self._descriptor

    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self.fileno()).st_size

    def write(self, position: int, buffers: Sequence[bytes]) -> None:
        """Write all buffers; goes on after short writes (EINTR is retried by Python, PEP 475)."""
        if len(buffers) <= IOV_MAX:
            _write_all(self.fileno(), position, buffers)
            return
        for first in range(0, len(buffers), IOV_MAX):
            position = _write_all(self.fileno(), position, buffers[first : first + IOV_MAX])

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file.

        Raises:
            OSError: The disk does not give them; it names the file.
        """
        try:
            return _read_all(self.fileno(), position, length)
        except OSError as error:
            with suppress(OSError):
                error.filename = str(Path(f"/proc/self/fd/{self._descriptor}").readlink())
            raise

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(self.fileno(), size)

    def sync(self) -> None:
        """Make bytes and size durable.

        Raises:
            FileNotFoundError: The file was removed: what it holds ends with this process.
        """
        descriptor = self.fileno()
        os.fdatasync(descriptor)
        if os.fstat(descriptor).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written")

    def close(self) -> None:
        """Close early; closing twice is fine."""
        self._descriptor = -1
        self._closing()


class RealDisk:
    """The operating system's file system."""

    def open(self, path: Path) -> File:
        """Open an existing file to read and write; only to read where the file system allows that.

        A file system that met an error often turns read-only, and its readers should go on.
        """
        try:
            return RealFile(path, os.O_RDWR)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            return RealFile(path, os.O_RDONLY)

    def create(self, path: Path) -> File:
        """Make a new file, or empty an old one, and open it."""
        return RealFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def read(self, path: Path | str) -> bytes | None:
        """Read a whole file; None when there is none. A start reads five small ones of each log."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return _read_all(descriptor, 0, os.fstat(descriptor).st_size)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(descriptor)

    def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)  # noqa: PTH110 - half the time, dozens of times for each log

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def make_directory(self, path: Path) -> None:
        """Make a directory; its parent exists."""
        path.mkdir(mode=0o750, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        sync_directories([path])

    def available_bytes(self, directory: Path) -> int:
        """Bytes that this user may still write to the file system of a directory."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize


REAL_DISK: Final = RealDisk()


def read_opened(disk: Disk, path: Path) -> bytes | None:
    """Read a whole file as any disk can; None when there is none.

    Raises:
        OSError: The disk failed.
    """
    if not disk.exists(path):
        return None
    file = disk.open(path)
    data = file.read(0, file.size())
    file.close()
    return data


def make_directories(disk: Disk, path: Path) -> None:
    """Make a directory and its missing parents, each name durable."""
    missing = []
    while not disk.exists(path):
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        disk.make_directory(directory)
        disk.sync_directory(directory.parent)


def write_atomically(
    disk: Disk, path: Path, data: bytes | list[bytes], *, durable: bool = True
) -> None:
    """Put a whole file in place, so that a crash leaves the old one or the new one.

    These are the steps of `penstock.base.files.atomic_writer`, on a `Disk`: the store never passes
    by this module, and simulations crash between any two of them.

    Args:
        disk: Disk to write to.
        path: The file's name; `<name>.tmp` is used on the way.
        data: Its bytes, in one piece or several.
        durable: False saves the syncs for a file that can be made again; after a crash it may
            then also be missing, short or garbage, so it must check itself.
    """
    temporary = path.with_name(path.name + ".tmp")
    file = disk.create(temporary)
    try:
        try:
            file.write(0, [data] if isinstance(data, bytes) else data)
            if durable:
                file.sync()
        finally:
            file.close()
        disk.rename(temporary, path)
    except OSError:  # else a part of a large file would keep a full disk full
        with suppress(OSError):
            disk.unlink(temporary)
        raise
    if durable:
        disk.sync_directory(path.parent)


def _read_all(descriptor: int, position: int, length: int) -> bytes:
    """Up to `length` bytes; fewer only at the end of the file."""
    data = os.pread(descriptor, length, position)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length and (data := os.pread(descriptor, length - got, position + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def _write_all(descriptor: int, position: int, buffers: Sequence[bytes]) -> int:
    """Write buffers; returns the position after them."""
    expected = sum(map(len, buffers))
    written = os.pwritev(descriptor, buffers, position)
    if written < expected:
        rest = memoryview(b"".join(buffers))
        while written < expected:
            written += os.pwrite(descriptor, rest[written:], position + written)
    return position + expected


FILE_NAME: Final = "lock"


class DirectoryLock:
    """An exclusive flock on `<directory>/lock`, held until `release` or the process ends.

    The file holds the owner's process id, for people; the lock itself is the kernel's, so a file
    left behind by a killed process locks no process out.

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

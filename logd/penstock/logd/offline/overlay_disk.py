"""A disk that reads the real one and keeps every change in memory.

With it, what recovery would do to a directory can be seen before, or instead of, its being done.
Nothing on the real disk is opened for writing.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from penstock.logd.storage.disk import REAL_DISK, RealFile, read_opened


class OverlayDisk:
    """The real disk, and changes that stay here. For one thread.

    Attributes:
        made: Whole files that are new or other than on the real disk.
        cuts: Sizes that files of the real disk were cut to.
        renamed: Files of the real disk under other names: by the new path, the real one.
        removed: Names of the real disk that were taken away.
    """

    def __init__(self) -> None:
        self.made: dict[Path, bytearray] = {}
        self.cuts: dict[Path, int] = {}
        self.renamed: dict[Path, Path] = {}
        self.removed: set[Path] = set()

    def open(self, path: Path) -> "OverlayFile":
        """Open an existing file."""
        if path in self.removed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        real = self.renamed.get(path, path)
        return OverlayFile(self, path, None if path in self.made else RealFile(real, os.O_RDONLY))

    def create(self, path: Path) -> "OverlayFile":
        """Make a new file, or empty an old one, and open it."""
        self.made[path] = bytearray()
        self.removed.discard(path)
        return OverlayFile(self, path, None)

    def read(self, path: Path | str) -> bytes | None:
        """Read a whole file; None when there is none."""
        return read_opened(self, Path(path))

    def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        names = set(REAL_DISK.list_directory(path)) if REAL_DISK.exists(path) else set()
        names -= {gone.name for gone in self.removed if gone.parent == path}
        changed = [*self.made, *self.renamed]
        return sorted(names | {made.name for made in changed if made.parent == path})

    def exists(self, path: Path) -> bool:
        if path in self.made or path in self.renamed:
            return True
        return path not in self.removed and REAL_DISK.exists(path)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        made, real = self.made.get(source), self.renamed.get(source, source)
        self.unlink(source)
        self.unlink(target)
        if made is None:
            self.renamed[target] = real
        else:
            self.made[target] = made
        self.removed.discard(target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        self.made.pop(path, None)
        self.cuts.pop(path, None)
        self.renamed.pop(path, None)
        if REAL_DISK.exists(path):
            self.removed.add(path)

    def make_directory(self, path: Path) -> None:
        """Directories are not kept: the files made in them are."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing: an overlay does not outlive the process."""

    def available_bytes(self, directory: Path) -> int:
        """Bytes that this user may still write to the file system of a directory."""
        return REAL_DISK.available_bytes(directory)


class OverlayFile:
    """A file of a `OverlayDisk`; copied into memory when it is written to."""

    def __init__(self, disk: OverlayDisk, path: Path, source: RealFile | None) -> None:
        self._disk = disk
        self._path = path
        self._source = source

    def fileno(self) -> int:
        """The descriptor, while the file is as on the real disk."""
        if self._source is None or self._path in self._disk.made:
            raise OSError(errno.EBADF, "the file is in memory", str(self._path))
        return self._source.fileno()

    def size(self) -> int:
        """Bytes in the file."""
        data = self._disk.made.get(self._path)
        if data is not None or self._source is None:
            return len(data or b"")
        size = self._source.size()
        return min(size, self._disk.cuts.get(self._path, size))

    def write(self, position: int, buffers: Sequence[bytes]) -> None:
        """Write all buffers, in memory."""
        data = self._disk.made.get(self._path)
        if data is None:
            data = self._disk.made[self._path] = bytearray(self.read(0, self.size()))
        for buffer in buffers:
            data.extend(bytes(max(0, position - len(data))))
            data[position : position + len(buffer)] = buffer
            position += len(buffer)

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        data = self._disk.made.get(self._path)
        if data is not None or self._source is None:
            return bytes((data or b"")[position : position + length])
        return self._source.read(position, max(0, min(length, self.size() - position)))

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        data = self._disk.made.get(self._path)
        if data is None:
            self._disk.cuts[self._path] = size
        else:
            del data[size:]

    def sync(self) -> None:
        """Do nothing: an overlay does not outlive the process."""

    def close(self) -> None:
        """Close early; closing twice is fine."""
        if self._source is not None:
            self._source.close()

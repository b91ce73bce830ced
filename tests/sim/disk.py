"""A disk in memory that loses, tears and reorders whatever was not made durable.

`MemoryDisk` keeps the promises of `penstock.logd.storage.disk` and no others:

- A file has what programs see and what is durable. `sync` copies the sectors written since the
  last one. A crash keeps or loses each other written sector by a throw of dice; one that never
  reached the disk reads as what was there before, zeros beyond the old end.
- A sync that fails has written some sectors and forgets the rest, as Linux does: a later sync
  that succeeds does not bring them to the disk.
- Names are changed by operations that a crash keeps or loses each by itself, in any combination,
  unless the directory was synced after them.

Faults: `free_bytes` runs out (short write, then ENOSPC), which `available_bytes` does not foresee,
as when others fill the disk meanwhile; `fail` is asked before each operation.
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from penstock.logd.storage.disk import File, read_opened

SECTOR_BYTES: Final = 512
Fault = Callable[[str, Path], bool]


@dataclass(eq=False)
class Inode:
    """A file's bytes: what programs see, what is durable, which sectors differ."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)

    def mark(self, first: int, last: int) -> None:
        """Note that bytes from `first` to before `last` were written."""
        self.dirty.update(range(first // SECTOR_BYTES, (last + SECTOR_BYTES - 1) // SECTOR_BYTES))

    def write_back(self, sectors: set[int]) -> None:
        """Make sectors durable; the size follows what is seen."""
        size = len(self.seen)
        self.durable[size:] = b""
        self.durable.extend(bytes(size - len(self.durable)))
        for sector in sectors:
            span = slice(sector * SECTOR_BYTES, min(size, (sector + 1) * SECTOR_BYTES))
            self.durable[span] = self.seen[span]

    def crash(self, random: Random) -> None:
        """Lose unsynced sectors by a throw of dice."""
        if self.dirty:
            kept = {sector for sector in sorted(self.dirty) if random.random() < 0.5}
            size_seen, size_durable = len(self.seen), len(self.durable)
            if random.random() < 0.3:
                kept = set(self.dirty)
            low, high = sorted((size_seen, size_durable))
            size = random.choice((low, high, random.randint(low, high)))
            seen = self.seen
            self.seen = seen[:size] + bytes(max(0, size - size_seen))
            self.write_back(kept)
        self.dirty.clear()
        self.seen = bytearray(self.durable)


Change = dict[Path, Inode | None]
"""One operation on names: what each name refers to afterwards."""


class MemoryDisk:
    """A `Disk` whose crash can be called.

    Attributes:
        free_bytes: How much longer files may grow.
        fail: Asked with an operation's name and path; True makes it raise EIO, other errors it
            raises itself.
    """

    def __init__(self) -> None:
        self.names: dict[Path, Inode | None] = {Path("/"): None}
        self.durable_names = dict(self.names)
        self.pending: list[tuple[Path, Change]] = []
        self.free_bytes = 1 << 60
        self.fail: Fault = lambda _operation, _path: False

    def open(self, path: Path) -> File:
        self.check("open", path)
        return MemoryFile(self, path, self.inode(path))

    def create(self, path: Path) -> File:
        self.check("create", path)
        inode = self.names.get(path)
        if inode is None:
            self._parent(path)
            inode = Inode()
            self._change(path.parent, {path: inode})
        file = MemoryFile(self, path, inode)
        if inode.seen:
            file.truncate(0)
        return file

    def read(self, path: Path | str) -> bytes | None:
        return read_opened(self, Path(path))

    def list_directory(self, path: Path) -> list[str]:
        self._directory(path)
        return sorted(name.name for name in self.names if name.parent == path and name != path)

    def exists(self, path: Path) -> bool:
        return path in self.names

    def rename(self, source: Path, target: Path) -> None:
        self.check("rename", source)
        self._change(source.parent, {target: self.inode(source), source: None})

    def unlink(self, path: Path) -> None:
        self.check("unlink", path)
        self.inode(path)
        self._change(path.parent, {path: None})

    def make_directory(self, path: Path) -> None:
        self.check("make_directory", path)
        self._parent(path)
        self.names[path] = None
        self.durable_names[path] = None

    def sync_directory(self, path: Path) -> None:
        self.check("sync_directory", path)
        self._directory(path)
        for directory, change in self.pending:
            if directory == path:
                _apply(self.durable_names, change)
        self.pending = [entry for entry in self.pending if entry[0] != path]

    def available_bytes(self, directory: Path) -> int:
        self._directory(directory)
        return 1 << 60

    def crash(self, random: Random) -> None:
        """Lose power: what was not durable is kept, lost or torn by a throw of dice."""
        in_order = random.random() < 0.5
        survivors = len(self.pending) if not self.pending else random.randint(0, len(self.pending))
        for number, (_, change) in enumerate(self.pending):
            if number < survivors if in_order else random.random() < 0.5:
                _apply(self.durable_names, change)
        self.pending = []
        self.names = dict(self.durable_names)
        for _, inode in sorted((path, inode) for path, inode in self.names.items() if inode):
            inode.crash(random)
        self.fail = lambda _operation, _path: False
        self.free_bytes = 1 << 60

    def check(self, operation: str, path: Path) -> None:
        """Raise EIO if the fault hook says so."""
        if self.fail(operation, path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def inode(self, path: Path) -> Inode:
        """The bytes of a file, to be looked at or harmed."""
        inode = self.names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _directory(self, path: Path) -> None:
        if path not in self.names or self.names[path] is not None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def _parent(self, path: Path) -> None:
        self._directory(path.parent)

    def _change(self, directory: Path, change: Change) -> None:
        _apply(self.names, change)
        self.pending.append((directory, change))


class MemoryFile:
    """A `File` of a `MemoryDisk`; it goes on after its name is gone.

    Attributes:
        disk: That it is on.
        path: The name it was opened by.
        inode: Its bytes.
    """

    def __init__(self, disk: MemoryDisk, path: Path, inode: Inode) -> None:
        self.disk = disk
        self.path = path
        self.inode = inode

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor")

    def size(self) -> int:
        return len(self.inode.seen)

    def write(self, position: int, buffers: Sequence[bytes]) -> None:
        self.disk.check("write", self.path)
        data = b"".join(buffers)
        inode = self.inode
        growth = max(0, position + len(data) - len(inode.seen))
        short = growth > self.disk.free_bytes
        if short:
            data = data[: max(0, len(data) - (growth - self.disk.free_bytes))]
            growth = self.disk.free_bytes
        self.disk.free_bytes -= growth
        if position > len(inode.seen):
            inode.mark(len(inode.seen), position)
            inode.seen.extend(bytes(position - len(inode.seen)))
        inode.seen[position : position + len(data)] = data
        inode.mark(position, position + len(data))
        if short:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def read(self, position: int, length: int) -> bytes:
        self.disk.check("read", self.path)
        return bytes(self.inode.seen[position : position + length])

    def truncate(self, size: int) -> None:
        self.disk.check("truncate", self.path)
        inode = self.inode
        inode.mark(min(size, len(inode.seen)), max(size, len(inode.seen)) + 1)
        self.disk.free_bytes += max(0, len(inode.seen) - size)
        inode.seen[size:] = b""
        inode.seen.extend(bytes(size - len(inode.seen)))

    def sync(self) -> None:
        inode = self.inode
        try:
            self.disk.check("sync", self.path)
        except OSError:
            lost = sorted(inode.dirty)
            inode.write_back(set(lost[: len(lost) // 2]))
            inode.dirty.clear()
            raise
        inode.write_back(inode.dirty)
        inode.dirty.clear()

    def close(self) -> None:
        pass


def _apply(names: dict[Path, Inode | None], change: Change) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode

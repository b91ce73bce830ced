"""Cache of rows made of chunks of the log, for the other sinks of the job.

The directory of `penstock.router.read.shared.directory` has a file for each piece:

    NAME          0600: CRC-32C of NAME and of what follows; 4 bytes of zero; an Arrow IPC stream
    NAME.making   the same while somebody makes it, who holds its lock

A name is a digest of all that decides the content, the records' own bytes among it: a file is never
out of date, from any writer. And nobody depends on one. Who finds none, or one that is damaged,
makes the rows again; where files cannot be kept, nothing is.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock.logd.format.frame import crc32c
from penstock.router.read.shared.policy import Kept, too_many

_MAKING: Final = ".making"
_HEAD: Final = struct.Struct("<I4x")
_OF_MEMORY: Final = 2
"""Divisor of the file system's size: the cache takes no larger part of it."""

_OF_KEPT: Final = 4
"""A piece that takes more of what is kept than one in so many bytes is not kept."""


class SharedChunks:
    """Shared chunks of one job, for one task.

    Args:
        directory: The job's directory.
        max_bytes: Maximum bytes kept; each task may have one chunk more in progress.
        memory_bytes: Bytes of the directory's file system; None: it is asked.

    Raises:
        OSError: The directory cannot be used; each method raises it, too.
    """

    def __init__(self, directory: Path, max_bytes: int, *, memory_bytes: int | None = None) -> None:
        self._directory = directory
        whole = os.statvfs(directory)
        there = whole.f_blocks * whole.f_frsize if memory_bytes is None else memory_bytes
        self._max_bytes = min(max_bytes, there // _OF_MEMORY)

    def find(self, name: str) -> pa.RecordBatch | None:
        """Return the rows made of a chunk; None: they are not cached, or were damaged."""
        path = self._directory / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if data[: _HEAD.size] != _head(name, memoryview(data)[_HEAD.size :]):
            path.unlink(missing_ok=True)
            return None
        with pa.ipc.open_stream(pa.py_buffer(data).slice(_HEAD.size)) as reader:
            return reader.read_next_batch()

    @contextmanager
    def making(self, name: str) -> Iterator[bool]:
        """Be the only one who makes a piece; False: somebody else makes it, or just has.

        Others do without as long as the block takes. It may find that the piece is there by now.
        """
        with _locked(self._directory / f"{name}{_MAKING}") as descriptor:
            yield descriptor is not None

    def keep(self, name: str, batch: pa.RecordBatch) -> None:
        """Keep what was made, within `making`, if there is room."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        body = memoryview(sink.getvalue())
        size = _HEAD.size + len(body)
        if size > self._max_bytes // _OF_KEPT:
            return
        self._make_room(self._max_bytes - size)
        fresh = self._directory / f"{name}{_MAKING}"
        try:
            with fresh.open("wb") as file:
                file.writelines((_head(name, body), body))
        except OSError:  # others have filled the memory: they may need ours
            self._make_room(self._max_bytes // 2)
            return
        fresh.rename(self._directory / name)

    def _make_room(self, max_bytes: int) -> None:
        for name in too_many(self._kept(), max_bytes):
            if not name.endswith(_MAKING):
                (self._directory / name).unlink(missing_ok=True)
                continue
            with _locked(self._directory / name):  # it goes, unless somebody lives who makes it
                pass

    def _kept(self) -> Iterator[Kept]:
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):  # another task has removed it
                about = entry.stat(follow_symlinks=False)
                yield Kept(about.st_mtime_ns, entry.name, about.st_size)


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Hold a file's lock, and remove the file unless it was renamed; None: it is held already.

    Only who holds the lock renames or removes the file, so it is the path's for as long.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not _has_lock(descriptor, path):
            yield None
            return
        try:
            yield descriptor
        finally:
            if _is_at(descriptor, path):
                path.unlink()
    finally:
        os.close(descriptor)


def _has_lock(descriptor: int, path: Path) -> bool:
    """Take it at once or not at all; who had it until now may have renamed the file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return _is_at(descriptor, path)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _head(name: str, body: memoryview) -> bytes:
    return _HEAD.pack(crc32c(body, crc32c(name.encode())))

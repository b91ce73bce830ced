"""A disk that takes no frame which was encrypted as another one was.

Two bodies under one data key and one nonce show each other's difference, and let forge a third: so
every frame that is ever written to a log's file is remembered, whatever becomes of the file.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from penstock.logd.errors import CorruptError
from penstock.logd.format.frame import HEADER_SIZE, decode_header
from penstock.logd.storage.disk import File
from tests.sim.disk import MemoryDisk, MemoryFile

_KEY_AND_NONCE: Final = struct.Struct("<40sQ8x")


class NonceDisk(MemoryDisk):
    """A `MemoryDisk` that looks at what is written.

    Attributes:
        seen: The body that was written under each wrapped data key and nonce.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[bytes, int], bytes] = {}

    @override
    def open(self, path: Path) -> File:
        self.check("open", path)
        return WatchedFile(self, path, self.inode(path))

    @override
    def create(self, path: Path) -> File:
        super().create(path)
        return WatchedFile(self, path, self.inode(path))

    def written(self, data: bytes) -> None:
        """Look at the frames, up to bytes that are none."""
        position = 0
        while position + HEADER_SIZE < len(data):
            try:
                header = decode_header(data[position : position + HEADER_SIZE], stored=True)
            except CorruptError:
                return  # damage that is copied as it is
            assert header.encrypted, header
            body = data[position + HEADER_SIZE : position + header.frame_length]
            key, nonce = _KEY_AND_NONCE.unpack(body[-_KEY_AND_NONCE.size :])
            assert self.seen.setdefault((key, nonce), body) == body, "a nonce came twice"
            position += header.frame_length


class WatchedFile(MemoryFile):
    """A file of a `NonceDisk`."""

    @override
    def write(self, position: int, buffers: Sequence[bytes]) -> None:
        assert isinstance(self.disk, NonceDisk)
        if ".log" in self.path.name or ".swap" in self.path.name:
            self.disk.written(b"".join(buffers))
        super().write(position, buffers)

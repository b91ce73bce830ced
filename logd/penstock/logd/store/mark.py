"""The synced mark: how far the active segment is known to be durable.

One file per log, `synced`, of 32 bytes that are overwritten after each sync, little-endian:

    offset size field
         0    4 magic            b"PNSM"
         4    1 format version   1
         5    3 reserved         zero
         8    8 base offset      of the active segment
        16    8 log size         bytes of its log file that are durable
        24    4 CRC-32C          of bytes 0-24 and 28-32
        28    4 records          after the base offset that those bytes hold

The mark is not synced after writing, except before records are removed: it is a lower bound. After
a killed process it is exact, for the page cache outlives the process; after a power loss it may be
some syncs old or damaged, and then recovery knows less. It is what tells a record that was acked
and has rotted from one that was never durable.
"""

import struct
from pathlib import Path
from typing import Final

from penstock.logd.frame import NO_TIMESTAMP, crc32c
from penstock.logd.store.disk import Disk, File
from penstock.logd.store.index import Claim
from penstock.logd.store.names import MARK_NAME

FILE_NAME: Final = MARK_NAME
MAGIC: Final = b"PNSM"
FORMAT_VERSION: Final = 1
SIZE: Final = 32

_LAYOUT: Final = struct.Struct("<4sB3xqqII")
assert _LAYOUT.size == SIZE


class SyncedMark:
    """The mark of one log; written by the log's writer, read once by recovery."""

    def __init__(self, file: File) -> None:
        self._file = file

    @classmethod
    def open(cls, directory: Path, disk: Disk) -> "SyncedMark":
        """Open the mark's file, making it if it is missing."""
        path = directory / FILE_NAME
        return cls(disk.open(path) if disk.exists(path) else disk.create(path))

    def write(self, base_offset: int, end_offset: int, log_size: int) -> None:
        """Say what has just been synced.

        Raises:
            OSError: The mark was not written; the log itself is as durable as before.
        """
        self._file.write(0, [encode_mark(base_offset, end_offset, log_size)])

    def lower(self) -> None:
        """Claim nothing, durably: what was claimed is about to be removed.

        Raises:
            OSError: The mark may still claim what it did; nothing must be removed.
        """
        self.write(0, 0, 0)
        self._file.sync()

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def encode_mark(base_offset: int, end_offset: int, log_size: int) -> bytes:
    """Encode a mark, its CRC included."""
    records = min(end_offset - base_offset, 0xFFFFFFFF)
    fields = (MAGIC, FORMAT_VERSION, base_offset, log_size)
    bare = _LAYOUT.pack(*fields, 0, records)
    return _LAYOUT.pack(*fields, crc32c(bare[:24] + bare[28:]), records)


def load_mark(directory: Path, disk: Disk) -> Claim | None:
    """What the mark claims; None when it is missing, damaged, or of another version."""
    path = directory / FILE_NAME
    if not disk.exists(path):
        return None
    file = disk.open(path)
    data = file.read(0, SIZE)
    file.close()
    if len(data) < SIZE:
        return None
    magic, version, base_offset, log_size, crc, records = _LAYOUT.unpack(data)
    if (magic, version, crc) != (MAGIC, FORMAT_VERSION, crc32c(data[:24] + data[28:])):
        return None
    return Claim(
        base_offset=base_offset,
        end_offset=base_offset + records,
        log_size=log_size,
        max_timestamp_ns=NO_TIMESTAMP,
    )

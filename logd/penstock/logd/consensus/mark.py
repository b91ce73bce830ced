"""The synced mark: how far the last segment is known to be durable.

One file, `synced`, of 32 bytes that are overwritten after each sync and not synced themselves:

    offset size field
         0    4 magic            b"PRSM"
         4    4 format version   1
         8    4 CRC-32C          of all bytes after this field
        12    8 segment          sequence of its first record
        20    8 size             bytes of it that are durable
        28    4 reserved         zero

It is a lower bound: exact after a killed process, maybe some syncs old (or damaged, and then of no
use) after a power loss. Below it, bad bytes were acknowledged once.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.logd.frame import crc32c
from penstock.logd.store.disk import Disk, File

FILE_NAME: Final = "synced"
MAGIC: Final = b"PRSM"
FORMAT_VERSION: Final = 1

_LAYOUT: Final = struct.Struct("<4sIIQQ4x")
_CRC_AT: Final = 12
SIZE: Final = _LAYOUT.size
assert SIZE == 32


@dataclass(frozen=True, slots=True)
class Mark:
    """What was durable at least: `size` bytes of the segment that begins with record `segment`."""

    segment: int = 0
    size: int = 0


def open_mark(directory: Path, disk: Disk) -> File:
    """The mark's file, made if it is missing."""
    path = directory / FILE_NAME
    return disk.open(path) if disk.exists(path) else disk.create(path)


def encode_mark(mark: Mark) -> bytes:
    """The bytes of the file."""
    bare = _LAYOUT.pack(MAGIC, FORMAT_VERSION, 0, mark.segment, mark.size)[_CRC_AT:]
    return struct.pack("<4sII", MAGIC, FORMAT_VERSION, crc32c(bare)) + bare


def load_mark(directory: Path, disk: Disk) -> Mark:
    """What the mark claims; nothing when it is missing, damaged, or of another version."""
    path = directory / FILE_NAME
    if not disk.exists(path):
        return Mark()
    file = disk.open(path)
    data = file.read(0, SIZE)
    file.close()
    if len(data) < SIZE or crc32c(data[_CRC_AT:]) != struct.unpack_from("<I", data, 8)[0]:
        return Mark()
    magic, version, _, segment, size = _LAYOUT.unpack(data)
    return Mark(segment, size) if (magic, version) == (MAGIC, FORMAT_VERSION) else Mark()

"""Snapshot files: one per snapshot, whole and durable before anything refers to it.

`snapshot-<index>-<term>`, both of 20 digits; little-endian:

    offset size field
         0    4 magic               b"PRSN"
         4    4 format version      1
         8    4 CRC-32C             of all bytes after this field
        12    8 index               of the last entry it stands for
        20    8 term                of that entry
        28    4 membership length   M
        32    8 data length         D
        40    M membership          in force at `index`, as in a membership entry
      40+M    D data                the state machine's
"""

import struct
from pathlib import Path
from typing import Final

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import crc32c
from penstock.logd.raft import Membership, Snapshot
from penstock.logd.storage.disk import Disk, write_atomically

PREFIX: Final = "snapshot-"
MAGIC: Final = b"PRSN"
FORMAT_VERSION: Final = 1

_LAYOUT: Final = struct.Struct("<4sIIQQIQ")
_CRC_AT: Final = 12
assert _LAYOUT.size == 40


def snapshot_path(directory: Path, index: int, term: int) -> Path:
    """Return the path of the snapshot of an entry."""
    return directory / f"{PREFIX}{index:020}-{term:020}"


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a file."""
    membership = snapshot.membership.encode()
    fields = (snapshot.index, snapshot.term, len(membership), len(snapshot.data))
    bare = _LAYOUT.pack(MAGIC, FORMAT_VERSION, 0, *fields)[_CRC_AT:] + membership + snapshot.data
    return struct.pack("<4sII", MAGIC, FORMAT_VERSION, crc32c(bare)) + bare


def decode_snapshot(data: bytes, *, where: str) -> Snapshot:
    """The snapshot of a file.

    Raises:
        CorruptError: The bytes are not those that were written.
        RefusedError: `UNKNOWN_FORMAT`: they are, and of a later version.
    """
    if len(data) < _LAYOUT.size:
        raise CorruptError("the snapshot is cut short", where=where)
    magic, version, crc, index, term, membership_length, length = _LAYOUT.unpack_from(data)
    if magic != MAGIC or crc32c(data[_CRC_AT:]) != crc:
        raise CorruptError("the snapshot is damaged", where=where)
    if version != FORMAT_VERSION:
        message = f"{where} has format {version}; this version reads {FORMAT_VERSION}"
        raise RefusedError("UNKNOWN_FORMAT", message)
    begin = _LAYOUT.size + membership_length
    if len(data) != begin + length:
        raise CorruptError("the snapshot's lengths are wrong", where=where)
    membership = Membership.decode(data[_LAYOUT.size : begin])
    return Snapshot(index, term, membership, data[begin:])


def write_snapshot(directory: Path, snapshot: Snapshot, disk: Disk) -> None:
    """Put a snapshot in place, durably.

    Raises:
        OSError: It may be there or not; nothing must refer to it.
    """
    path = snapshot_path(directory, snapshot.index, snapshot.term)
    write_atomically(disk, path, encode_snapshot(snapshot))


def load_snapshot(directory: Path, index: int, term: int, disk: Disk) -> Snapshot:
    """The snapshot of an entry.

    Raises:
        CorruptError: It is missing or damaged.
        RefusedError: `UNKNOWN_FORMAT`: it is of a later version.
    """
    path = snapshot_path(directory, index, term)
    if not disk.exists(path):
        raise CorruptError("the snapshot that the log begins with is missing", where=str(path))
    file = disk.open(path)
    data = file.read(0, file.size())
    file.close()
    snapshot = decode_snapshot(data, where=str(path))
    if (snapshot.index, snapshot.term) != (index, term):
        raise CorruptError("the snapshot is that of another entry", where=str(path))
    return snapshot


def remove_other_snapshots(directory: Path, keep: Snapshot | None, disk: Disk) -> list[str]:
    """Remove all snapshots but one; their names.

    Raises:
        OSError: Some may be left; they are removed at the next start.
    """
    kept = snapshot_path(directory, keep.index, keep.term).name if keep else ""
    names = [name for name in disk.list_directory(directory) if name.startswith(PREFIX)]
    others = [name for name in names if name != kept]
    for name in others:
        disk.unlink(directory / name)
    return others

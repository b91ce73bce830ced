"""The bytes of the write-ahead log: its records, and how far its last segment is durable.

A segment is a file of records, one after another. Integers are little-endian; everything may only
change together with `FORMAT_VERSION`, which every segment's first record holds.

    offset size field
         0    4 magic          b"PRWR", also to find records behind damage
         4    4 body length    L, at most BODY_BYTES_MAX
         8    4 CRC-32C        of all bytes after this field, the end mark included
        12    8 sequence       of the record in the whole log; from 1, no gaps
        20    8 step           which write-and-sync it belongs to; from 1, no gaps
        28    4 left           records of the same step behind this one; 0 in the last
        32    1 type           see below
        33    3 reserved       zero
        36    L body
      36+L    1 end mark       0xA5, so that no record ends in zeros

    type              body
    1 SEGMENT         format version u32, group: length u16 and UTF-8, node: likewise
    2 HARD_STATE      term u64, vote: length u16 and UTF-8, empty for none
    3 ENTRY           index u64, term u64, kind u8, data: the rest
    4 TRUNCATE        index u64 of the first entry that goes
    5 SNAPSHOT        index u64, term u64, installed u8: 1 when all entries before this go with it

A segment begins with SEGMENT, HARD_STATE and, if there is a snapshot, SNAPSHOT, so that older ones
can be deleted. A step counts only as a whole: what is left of one that was cut short is cut off.

The synced mark: how far the last segment is known to be durable.

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
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import crc32c
from penstock.logd.raft import Entry, EntryKind, HardState
from penstock.logd.replication.events import NodeId
from penstock.logd.storage.disk import Disk, File

MAGIC: Final = b"PRWR"
FORMAT_VERSION: Final = 1
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""A length beyond it is damage; far above `entry_bytes_max`."""

END_MARK: Final = b"\xa5"
_HEADER: Final = struct.Struct("<4sIIQQIB3x")
_CRC_AT: Final = 12
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 36


class RecordType(IntEnum):
    """Type of a record."""

    SEGMENT = 1
    HARD_STATE = 2
    ENTRY = 3
    TRUNCATE = 4
    SNAPSHOT = 5


class SegmentHead(Struct, frozen=True):
    """Group and node of a log."""

    group: str
    node: NodeId


class Truncation(Struct, frozen=True):
    """Entry `index` and all after it are gone."""

    index: int


class SnapshotMark(Struct, frozen=True):
    """A snapshot file is durable and stands for all entries up to `index`."""

    index: int
    term: int
    installed: bool


Item = SegmentHead | HardState | Entry | Truncation | SnapshotMark


class Record(Struct, frozen=True):
    """A record as it was read.

    Attributes:
        position, end: Its bytes in the file, `end` exclusive.
    """

    position: int
    end: int
    sequence: int
    step: int
    left: int
    item: Item


def encode_step(items: list[Item], *, sequence: int, step: int) -> bytes:
    """The records of one step, the first of them with `sequence`."""
    parts = []
    for number, item in enumerate(items):
        kind, body = _encode_item(item)
        left = len(items) - number - 1
        fields = (sequence + number, step, left, kind)
        bare = _HEADER.pack(MAGIC, len(body), 0, *fields)[_CRC_AT:] + body + END_MARK
        parts.append(_HEADER.pack(MAGIC, len(body), crc32c(bare), *fields) + body + END_MARK)
    return b"".join(parts)


def decode_record(data: bytes, position: int) -> Record | None:
    """The record at a position; None when its bytes are not those of a whole, sound one.

    Raises:
        RefusedError: `UNKNOWN_FORMAT`: it is sound, and of a version that this code cannot read.
    """
    if len(data) - position < HEADER_SIZE + 1:
        return None
    magic, length, crc, sequence, step, left, kind = _HEADER.unpack_from(data, position)
    end = position + HEADER_SIZE + length + 1
    if magic != MAGIC or length > BODY_BYTES_MAX or end > len(data):
        return None
    if crc32c(data[position + _CRC_AT : end]) != crc or data[end - 1 : end] != END_MARK:
        return None
    item = _decode_item(kind, data[position + HEADER_SIZE : end - 1])
    return Record(position, end, sequence, step, left, item)


def records_behind(data: bytes, position: int) -> Iterator[Record]:
    """Sound records anywhere behind a position."""
    while (position := data.find(MAGIC, position + 1)) >= 0:
        record = decode_record(data, position)
        if record is not None:
            yield record
            position = record.end - 1


def _encode_item(item: Item) -> tuple[RecordType, bytes]:
    match item:
        case SegmentHead(group, node):
            body = struct.pack("<I", FORMAT_VERSION) + _text(group) + _text(node)
            return RecordType.SEGMENT, body
        case HardState(term, vote):
            return RecordType.HARD_STATE, struct.pack("<Q", term) + _text(vote or "")
        case Entry(index, term, kind, data):
            return RecordType.ENTRY, struct.pack("<QQB", index, term, kind) + data
        case Truncation(index):
            return RecordType.TRUNCATE, struct.pack("<Q", index)
        case SnapshotMark(index, term, installed):
            return RecordType.SNAPSHOT, struct.pack("<QQB", index, term, installed)


def _decode_item(kind: int, body: bytes) -> Item:
    """A record's meaning; its CRC holds, so what does not fit was written by another version."""
    try:
        match kind:
            case RecordType.SEGMENT:
                return _decode_head(body)
            case RecordType.HARD_STATE:
                vote, end = _text_at(body, 8)
                _require(end == len(body))
                return HardState(struct.unpack_from("<Q", body)[0], NodeId(vote) if vote else None)
            case RecordType.ENTRY:
                index, term, entry_kind = struct.unpack_from("<QQB", body)
                return Entry(index, term, EntryKind(entry_kind), body[17:])
            case RecordType.TRUNCATE:
                return Truncation(*struct.unpack("<Q", body))
            case RecordType.SNAPSHOT:
                index, term, installed = struct.unpack("<QQB", body)
                return SnapshotMark(index, term, bool(installed))
            case _:
                pass
    except (struct.error, ValueError, CorruptError) as error:
        message = f"a record of type {kind} has contents of an unknown format: {error}"
        raise RefusedError("UNKNOWN_FORMAT", message) from error
    raise RefusedError("UNKNOWN_FORMAT", f"records of type {kind} are of a later version")


def _decode_head(body: bytes) -> SegmentHead:
    (version,) = struct.unpack_from("<I", body)
    if version != FORMAT_VERSION:
        message = f"the log has format {version}; this version reads {FORMAT_VERSION}"
        raise RefusedError("UNKNOWN_FORMAT", message)
    group, end = _text_at(body, 4)
    node, end = _text_at(body, end)
    _require(end == len(body))
    return SegmentHead(group, NodeId(node))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<H", len(data)) + data


def _text_at(body: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<H", body, position)
    end = position + 2 + length
    _require(end <= len(body))
    return body[position + 2 : end].decode(), end


def _require(condition: object) -> None:
    if not condition:
        raise CorruptError("its length is wrong")


FILE_NAME: Final = "synced"
MARK_MAGIC: Final = b"PRSM"


_LAYOUT: Final = struct.Struct("<4sIIQQ4x")

SIZE: Final = _LAYOUT.size
assert SIZE == 32


class Mark(Struct, frozen=True):
    """Durable prefix of a log: at least `size` bytes of the segment that begins at `segment`."""

    segment: int = 0
    size: int = 0


def open_mark(directory: Path, disk: Disk) -> File:
    """The mark's file, made if it is missing."""
    path = directory / FILE_NAME
    return disk.open(path) if disk.exists(path) else disk.create(path)


def encode_mark(mark: Mark) -> bytes:
    """The bytes of the file."""
    bare = _LAYOUT.pack(MARK_MAGIC, FORMAT_VERSION, 0, mark.segment, mark.size)[_CRC_AT:]
    return struct.pack("<4sII", MARK_MAGIC, FORMAT_VERSION, crc32c(bare)) + bare


def load_mark(directory: Path, disk: Disk) -> Mark:
    """Load the mark; an empty one when it is missing, damaged, or of another version."""
    path = directory / FILE_NAME
    if not disk.exists(path):
        return Mark()
    file = disk.open(path)
    data = file.read(0, SIZE)
    file.close()
    if len(data) < SIZE or crc32c(data[_CRC_AT:]) != struct.unpack_from("<I", data, 8)[0]:
        return Mark()
    magic, version, _, segment, size = _LAYOUT.unpack(data)
    return Mark(segment, size) if (magic, version) == (MARK_MAGIC, FORMAT_VERSION) else Mark()

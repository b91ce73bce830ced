"""The frame: what is stored, replicated and fetched.

A frame is a header of 88 bytes and a body: one Arrow IPC record-batch message (see
`penstock.logd.format.batch`), a multiple of 8 bytes long, its buffers optionally compressed by
Arrow itself. All integers are little-endian.

    offset size field
         0    4 magic              b"PNSF"
         4    1 format version     1
         5    1 schema version     of the batch, `penstock.logd.format.batch.SCHEMA_VERSION`
         6    2 flags              bit 0: producer id and sequence are set
                                   bit 1: compacted, see below
                                   bit 2: encrypted, see below; the rest are zero
         8    4 header CRC         CRC-32C of bytes 0-8 and 12-88
        12    4 body CRC           CRC-32C of the body
        16    8 base offset        first offset of the frame's range, assigned by the leader
        24    8 leader epoch       of the leader that assigned it
        32    4 record count       rows in the body
        36    4 last offset delta  last offset of the frame's range minus the base offset
        40    4 body length        bytes
        44    4 reserved           zero
        48    8 first timestamp    of the first row, nanoseconds since 1970 UTC, signed
        56    8 max timestamp      greatest of the rows, likewise; both least int64 without rows
        64   16 producer id        zero when the flag is clear
        80    8 producer sequence  zero when the flag is clear

A frame stands for every offset of its range, base offset to last offset, both inclusive, and the
frames of a log tile its offsets without a gap. As it is written first, a frame has a record for
each offset: record count = last offset delta + 1. A frame that was rewritten by compaction carries
flag bit 1 and may have fewer, none even (its body is then a batch of no rows): the missing offsets
were removed on purpose. So readers tell a loss by the ranges of frames, never by gaps between rows.

Flag bit 2 is for a disk only: the body is encrypted, as `penstock.logd.encryption.cipher` says, and
its length and CRC are those of what lies there. Such a frame is decrypted before it goes anywhere.

The leader fills in base offset and epoch without touching the body, so the body CRC is made once,
by the builder of the batch, and holds from there to the last reader, or until the frame is
rewritten. Offsets, sizes and meanings of format version 1 never change; a reader refuses a version
or a flag it does not know, and a reserved byte that is not zero.
"""

import struct
from typing import TYPE_CHECKING, Final

import google_crc32c
from msgspec import Struct
from msgspec.structs import replace

from penstock.base.lazy_module import LazyModule
from penstock.logd.errors import CorruptError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")  # who reads no frame does without

MAGIC: Final = b"PNSF"
FORMAT_VERSION: Final = 1
HEADER_SIZE: Final = 88
BODY_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes; a bound on what a damaged length can make a reader allocate."""

NO_PRODUCER: Final = bytes(16)
NO_TIMESTAMP: Final = -(2**63)
"""The timestamps of a frame without rows."""

FLAG_PRODUCER: Final = 1
FLAG_COMPACTED: Final = 2
FLAG_ENCRYPTED: Final = 4
_FLAGS_KNOWN: Final = FLAG_PRODUCER | FLAG_COMPACTED
_FLAGS_STORED: Final = _FLAGS_KNOWN | FLAG_ENCRYPTED

ENCRYPTION_BYTES: Final = 80
"""Bytes that an encrypted body is longer than what is in it."""

_LAYOUT: Final = struct.Struct("<4sBBHIIqQIIIIqq16sQ")
_CRC_SPAN: Final = struct.Struct("<I")
assert _LAYOUT.size == HEADER_SIZE


def crc32c(data: bytes | memoryview, before: int = 0) -> int:
    """CRC-32C (Castagnoli, RFC 3720 appendix B.4), going on from that of the bytes before."""
    if isinstance(data, memoryview):  # google-crc32c takes no memoryview, but Arrow's view of one
        data = pa.py_buffer(data)
    return int(google_crc32c.extend(before, data) if before else google_crc32c.value(data))


class FrameHeader(Struct, frozen=True, kw_only=True):
    """The fields of a frame's header, as documented in the module's docstring.

    Attributes:
        compacted: The range may hold offsets that have no record any more.
        encrypted: The body is encrypted.
    """

    base_offset: int
    leader_epoch: int
    record_count: int
    last_offset_delta: int
    body_length: int
    body_crc: int
    first_timestamp_ns: int
    max_timestamp_ns: int
    schema_version: int
    producer_id: bytes = NO_PRODUCER
    producer_sequence: int = 0
    compacted: bool = False
    encrypted: bool = False

    @property
    def last_offset(self) -> int:
        """Last offset of the frame's range."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Base offset of the frame after this one."""
        return self.last_offset + 1

    @property
    def frame_length(self) -> int:
        """Bytes of header and body."""
        return HEADER_SIZE + self.body_length

    def at(self, *, base_offset: int, leader_epoch: int) -> "FrameHeader":
        """Return the frame at the offset and epoch that the leader gave it."""
        return replace(self, base_offset=base_offset, leader_epoch=leader_epoch)


def encode_header(header: FrameHeader) -> bytes:
    """Encode a header, its CRC included."""
    flags = FLAG_PRODUCER if header.producer_id != NO_PRODUCER else 0
    flags |= FLAG_COMPACTED if header.compacted else 0
    flags |= FLAG_ENCRYPTED if header.encrypted else 0
    data = _LAYOUT.pack(
        MAGIC,
        FORMAT_VERSION,
        header.schema_version,
        flags,
        0,
        header.body_crc,
        header.base_offset,
        header.leader_epoch,
        header.record_count,
        header.last_offset_delta,
        header.body_length,
        0,
        header.first_timestamp_ns,
        header.max_timestamp_ns,
        header.producer_id,
        header.producer_sequence,
    )
    return data[:8] + _CRC_SPAN.pack(_header_crc(data)) + data[12:]


def decode_header(
    data: bytes | memoryview, *, where: str = "", stored: bool = False
) -> FrameHeader:
    """Decode and check a header.

    Args:
        data: At least `HEADER_SIZE` bytes; what follows is ignored.
        where: File and position or peer, for the error.
        stored: It is one of a log's file, so that it may be encrypted.

    Raises:
        CorruptError: Too short, or magic, version, CRC, flags or a field's range is wrong.
    """
    if len(data) < HEADER_SIZE:
        raise CorruptError(
            f"{len(data)} bytes where a frame header needs {HEADER_SIZE}", where=where
        )
    head = bytes(data[:HEADER_SIZE])
    fields = _LAYOUT.unpack(head)
    if fields[0] != MAGIC:
        raise CorruptError(f"frame magic is {fields[0]!r}, not {MAGIC!r}", where=where)
    if fields[1] != FORMAT_VERSION:
        raise CorruptError(f"frame format version {fields[1]} is not known", where=where)
    if fields[4] != _header_crc(head):
        raise CorruptError("frame header CRC does not match", where=where)
    flags_known = _FLAGS_STORED if stored else _FLAGS_KNOWN
    if fields[3] & ~flags_known or fields[11]:
        raise CorruptError(
            f"frame flags {fields[3]:#x}, {fields[11]:#x} are not known", where=where
        )
    header = FrameHeader(
        schema_version=fields[2],
        body_crc=fields[5],
        base_offset=fields[6],
        leader_epoch=fields[7],
        record_count=fields[8],
        last_offset_delta=fields[9],
        body_length=fields[10],
        first_timestamp_ns=fields[12],
        max_timestamp_ns=fields[13],
        producer_id=fields[14],
        producer_sequence=fields[15],
        compacted=bool(fields[3] & FLAG_COMPACTED),
        encrypted=bool(fields[3] & FLAG_ENCRYPTED),
    )
    _check_ranges(header, where)
    return header


def version_not_known(data: bytes) -> str:
    """Return the version of an unknown header, if it is a later one; empty for any other bytes.

    A header whose CRC holds is no damage: its writer meant it.
    """
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        return ""
    fields = _LAYOUT.unpack(data[:HEADER_SIZE])
    if fields[4] != _header_crc(data):
        return ""
    if fields[1] > FORMAT_VERSION:
        return f"frame format version {fields[1]}"
    if fields[3] & ~_FLAGS_STORED or fields[11]:
        return f"frame flags {fields[3]:#x}, {fields[11]:#x}"
    return ""


def check_body(header: FrameHeader, body: bytes | memoryview, *, where: str = "") -> None:
    """Check a body against its header.

    Raises:
        CorruptError: Length or CRC does not match.
    """
    if len(body) != header.body_length:
        raise CorruptError(f"body is {len(body)} bytes, not {header.body_length}", where=where)
    if crc32c(body) != header.body_crc:
        raise CorruptError("frame body CRC does not match", where=where)


def parse_frames(data: bytes | memoryview, *, where: str = "") -> list[tuple[FrameHeader, bytes]]:
    """The frames that bytes are made of, end to end, headers and bodies checked.

    Args:
        data: Whole frames and nothing else.
        where: File and position or peer, for the error.

    Raises:
        CorruptError: A frame is damaged or cut off, or does not follow the one before it.
    """
    view = memoryview(data)
    frames: list[tuple[FrameHeader, bytes]] = []
    position, expected = 0, None
    while position < len(view):
        place = f"{where} at {position}" if where else f"at {position}"
        header = decode_header(view[position : position + HEADER_SIZE], where=place)
        if expected is not None and header.base_offset != expected:
            message = f"a frame begins at offset {header.base_offset}, not at {expected}"
            raise CorruptError(message, where=place)
        body = bytes(view[position + HEADER_SIZE : position + header.frame_length])
        check_body(header, body, where=place)
        frames.append((header, body))
        position, expected = position + header.frame_length, header.next_offset
    return frames


def _header_crc(data: bytes) -> int:
    return crc32c(data[:8] + data[12:HEADER_SIZE])


def _check_ranges(header: FrameHeader, where: str) -> None:
    span = header.last_offset_delta + 1
    count_min = 0 if header.compacted else span
    length_max = BODY_SIZE_MAX + (ENCRYPTION_BYTES if header.encrypted else 0)
    sane = (
        header.base_offset >= 0
        and count_min <= header.record_count <= span
        and 0 < header.body_length <= length_max
        and header.body_length % 8 == 0
    )
    if not sane:
        raise CorruptError(f"frame header fields out of range: {header}", where=where)

"""The sparse index of a segment: which byte to start at for an offset or a time.

Two files lie beside a segment's `%020d.log`, written whole when the segment is sealed or the log is
closed, and now and then while it grows: `%020d.index` (offset to position) and `%020d.timeindex`
(time to offset). Both have one layout, little-endian:

    offset size field
         0    4 magic            b"PNSI" for offsets, b"PNST" for times
         4    1 format version   1
         5    1 flags            bit 0: damage was found in the log; the rest are zero
         6    2 reserved         zero
         8    8 base offset      of the segment
        16    8 end offset       after the last record of the segment
        24    8 log size         bytes of the log file that this index speaks for
        32    8 max timestamp    greatest of the segment's records, nanoseconds; least int64 if none
        40    4 entry count
        44    4 CRC-32C          of bytes 0-44 and of everything after byte 48
        48   16 each entry       offsets: base offset of a frame, its position in the log file
                                 times: greatest timestamp of the records before that frame in this
                                 segment (least int64 for the first), the frame's base offset

There is an entry for position 0, then for the first frame that begins at least
`index_interval_bytes` after the last entry's; entries of the two files pair up. Magic, version and
CRC keep their places in every version.

The files are also a claim: their writer had synced the log file up to `log size` before. They
can always be rebuilt from the log, so they are written without a sync and trusted only when their
CRC, base offset and log size fit (the last log may be longer) and the damage flag is clear:
a damaged log is scanned, and reported, at every opening.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from msgspec import Struct

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import NO_TIMESTAMP, crc32c

OFFSET_MAGIC: Final = b"PNSI"
TIME_MAGIC: Final = b"PNST"
FORMAT_VERSION: Final = 1
FLAG_DAMAGED: Final = 1
HEADER_SIZE: Final = 48
ENTRY_SIZE: Final = 16

_HEADER: Final = struct.Struct("<4sBBHqqqqII")
assert _HEADER.size == HEADER_SIZE


class Claim(Struct, frozen=True, kw_only=True):
    """Description of a segment by its index file.

    Attributes:
        end_offset: Exclusive.
        log_size: Bytes of the log file that were synced when the index was written.
        damaged: Whether some of them are no intact frames.
    """

    base_offset: int
    end_offset: int
    log_size: int
    max_timestamp_ns: int
    damaged: bool = False


def empty_claim(base_offset: int) -> Claim:
    """The claim of a segment that nothing is known of."""
    return Claim(
        base_offset=base_offset,
        end_offset=base_offset,
        log_size=0,
        max_timestamp_ns=NO_TIMESTAMP,
    )


class IndexState(Struct, frozen=True):
    """End of a segment at one moment.

    Attributes:
        files: The bytes of both index files, if they are to be written.
    """

    end_offset: int
    size: int
    files: tuple[bytes, bytes] | None


class SparseIndex:
    """Entries of one segment in memory: offset, position, and greatest time before.

    One thread adds; lookups from other threads see a consistent prefix when the caller holds the
    lock that `add` is called under.
    """

    __slots__ = ("interval_bytes", "offsets", "positions", "times")

    def __init__(self, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")

    def __len__(self) -> int:
        """Entries."""
        return len(self.offsets)

    def offer(self, offset: int, position: int, time_before: int, *, force: bool = False) -> None:
        """Add an entry for a frame if it is far enough from the last one, or if forced."""
        if force or not self.positions or position - self.positions[-1] >= self.interval_bytes:
            self.offsets.append(offset)
            self.positions.append(position)
            self.times.append(time_before)

    def entry_for_offset(self, offset: int) -> int:
        """Number of the last entry at or before an offset; 0 if there is none."""
        return max(0, bisect_right(self.offsets, offset) - 1)

    def entry_for_position(self, position: int) -> int:
        """Number of the last entry at or before a position; 0 if there is none."""
        return max(0, bisect_right(self.positions, position) - 1)

    def entry_for_time(self, timestamp_ns: int) -> int:
        """Number of the last entry with only earlier records before it; 0 if there is none."""
        return max(0, bisect_left(self.times, timestamp_ns) - 1)

    def truncate(self, position: int) -> None:
        """Forget entries at or after a position."""
        keep = bisect_left(self.positions, position)
        for column in (self.offsets, self.positions, self.times):
            del column[keep:]

    def encode(self, claim: Claim) -> tuple[bytes, bytes]:
        """The bytes of the offset index and of the time index."""
        return (
            _encode(OFFSET_MAGIC, claim, self.offsets, self.positions),
            _encode(TIME_MAGIC, claim, self.times, self.offsets),
        )


def decode_index(
    offset_data: bytes, time_data: bytes, *, interval_bytes: int, where: str
) -> tuple[SparseIndex, Claim]:
    """Decode and check both files of one segment.

    The process that wrote them may have been killed between the two: then the older one counts.

    Raises:
        CorruptError: One is short, damaged, or does not pair with the other.
        RefusedError: `UNKNOWN_FORMAT`: written by a later version.
    """
    claim, offsets, positions = _decode(OFFSET_MAGIC, offset_data, f"{where}.index")
    time_claim, times, time_offsets = _decode(TIME_MAGIC, time_data, f"{where}.timeindex")
    older = min(claim, time_claim, key=lambda one: one.log_size)
    count = min(len(offsets), len(time_offsets))
    same = claim.base_offset == time_claim.base_offset and claim.damaged == time_claim.damaged
    if not same or offsets[:count] != time_offsets[:count]:
        raise CorruptError("offset index and time index do not pair", where=where)
    index = SparseIndex(interval_bytes)
    index.offsets, index.positions = offsets[:count], positions[:count]
    index.times = times[:count]
    return index, older


def _encode(magic: bytes, claim: Claim, firsts: "array[int]", seconds: "array[int]") -> bytes:
    pairs = array("q", bytes(ENTRY_SIZE * len(firsts)))
    pairs[::2], pairs[1::2] = firsts, seconds
    head = bytearray(
        _HEADER.pack(
            magic,
            FORMAT_VERSION,
            FLAG_DAMAGED if claim.damaged else 0,
            0,
            claim.base_offset,
            claim.end_offset,
            claim.log_size,
            claim.max_timestamp_ns,
            len(firsts),
            0,
        )
    )
    body = pairs.tobytes()
    struct.pack_into("<I", head, 44, crc32c(bytes(head[:44]) + body))
    return bytes(head) + body


def _decode(magic: bytes, data: bytes, where: str) -> tuple[Claim, "array[int]", "array[int]"]:
    if len(data) < HEADER_SIZE:
        raise CorruptError(f"index of {len(data)} bytes is too short", where=where)
    fields = _HEADER.unpack(data[:HEADER_SIZE])
    if fields[0] != magic or fields[9] != crc32c(data[:44] + data[HEADER_SIZE:]):
        raise CorruptError("index magic or CRC does not match", where=where)
    if fields[1] != FORMAT_VERSION:
        message = f"{where}: index format version {fields[1]} is not known"
        raise RefusedError("UNKNOWN_FORMAT", message, version=fields[1], file=where)
    if len(data) != HEADER_SIZE + fields[8] * ENTRY_SIZE:
        raise CorruptError("index length does not match its entry count", where=where)
    pairs = array("q", data[HEADER_SIZE:])
    claim = Claim(
        base_offset=fields[4],
        end_offset=fields[5],
        log_size=fields[6],
        max_timestamp_ns=fields[7],
        damaged=bool(fields[2] & FLAG_DAMAGED),
    )
    return claim, pairs[::2], pairs[1::2]

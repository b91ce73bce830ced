"""Filters of ids: which ranges of a log cannot hold a record with a trace id or a record id.

A filter is a Bloom filter (CACM 13, 1970) of the values of `trace_id` and `record_id`, at the root
of JSON records, in a range of offsets. It has two bits for an id, and 16 bits or more in all for
each, so that it is wrong about one range in 70 at most: it then lets a range through that has no
such record. It never leaves one out. All integers are little-endian.

    offset size field
         0    4 magic          b"PNSI"
         4    1 version        1
         5    1 size           the bit set has 2^size bits, 6 at least
         6    2 reserved       zero
         8    4 CRC-32C        of bytes 12 to the end
        12    4 ids            number of different ids
        16    8 first offset   of the range
        24    8 next offset    behind the range
        32    8 leader epoch   of the last frame in it
        40      bit set        bit n is bit n modulo 8 of byte n divided by 8

The bits of an id are the low `size` bits of the CRC-32 (ISO 3309) of its UTF-8, and the high `size`
bits of that times 0x9E3779B1 modulo 2^32. Ids are text of at most 128 characters.
"""

import struct
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.logd.errors import CorruptError
from penstock.logd.format.frame import crc32c
from penstock.logd.limits import ID_CHARACTERS_MAX

MAGIC: Final = b"PNSI"
VERSION: Final = 1
ID_FIELDS: Final = ("trace_id", "record_id")
SIZE_MIN: Final = 6
SIZE_MAX: Final = 24
HEADER_SIZE: Final = 40

_BITS_PER_ID: Final = 16
_FACTOR: Final = 0x9E3779B1
_MASK: Final = (1 << 32) - 1
_BIT: Final = tuple(1 << number for number in range(8))
_HEAD: Final = struct.Struct("<4sBBHI")
_BODY: Final = struct.Struct("<IQQQ")
assert _HEAD.size + _BODY.size == HEADER_SIZE


class FilterHeader(Struct, frozen=True):
    """The header of a filter.

    Attributes:
        first: First offset of its range.
        next_offset: The offset behind it.
        epoch: Leader epoch of the last frame.
        size: Binary logarithm of the number of bits.
    """

    first: int
    next_offset: int
    epoch: int
    size: int

    @property
    def length(self) -> int:
        """Bytes of the filter with its header."""
        return HEADER_SIZE + (1 << self.size) // 8


class _Ids(msgspec.Struct, gc=False):
    trace_id: Any = None
    record_id: Any = None


_decoder: Final = msgspec.json.Decoder(_Ids)


def ids_of(values: Iterable[bytes | None]) -> Iterator[str]:
    """Yield the ids of records, of those that are JSON objects; one may come several times."""
    texts = [value for value in values if value is not None]
    records = _decoded_together(texts)
    if len(records) != len(texts):
        records = [record for record in map(_decoded, texts) if record is not None]
    for record in records:
        for found in (record.trace_id, record.record_id):
            if isinstance(found, str) and len(found) <= ID_CHARACTERS_MAX:
                yield found


def _decoded_together(texts: list[bytes]) -> list[_Ids]:
    """Decode records as lines; others than there are where one is no object or has line breaks."""
    try:
        return _decoder.decode_lines(b"\n".join(texts))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _decoded(text: bytes) -> _Ids | None:
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def bits_of(wanted: str, size: int) -> tuple[int, int]:
    """Return the numbers of an id's bits in a bit set of 2^size bits."""
    code = zlib.crc32(wanted.encode())
    return code & ((1 << size) - 1), ((code * _FACTOR) & _MASK) >> (32 - size)


def encode_filter(ids: Collection[str], first: int, next_offset: int, epoch: int) -> bytes:
    """Make the filter of a range of offsets."""
    wanted = max(len(ids) * _BITS_PER_ID - 1, 1).bit_length()
    size = min(max(wanted, SIZE_MIN), SIZE_MAX)
    bits, mask, shift = bytearray((1 << size) // 8), (1 << size) - 1, 32 - size
    for each in ids:  # as `bits_of` says, without a call for each
        code = zlib.crc32(each.encode())
        low, high = code & mask, ((code * _FACTOR) & _MASK) >> shift
        bits[low >> 3] |= _BIT[low & 7]
        bits[high >> 3] |= _BIT[high & 7]
    body = _BODY.pack(len(ids), first, next_offset, epoch) + bits
    return _HEAD.pack(MAGIC, VERSION, size, 0, crc32c(body)) + body


def decode_filter(data: memoryview) -> FilterHeader:
    """Read the header of the filter with which `data` begins; its CRC is checked.

    Raises:
        CorruptError: It is none, or a part of one.
    """
    if len(data) < HEADER_SIZE:
        raise CorruptError(f"a filter of {len(data)} bytes is too short")
    magic, version, size, reserved, crc = _HEAD.unpack(data[: _HEAD.size])
    if (magic, version, reserved) != (MAGIC, VERSION, 0) or not SIZE_MIN <= size <= SIZE_MAX:
        raise CorruptError("that is no filter of ids")
    _, first, next_offset, epoch = _BODY.unpack(data[_HEAD.size : HEADER_SIZE])
    header = FilterHeader(first, next_offset, epoch, size)
    body = data[_HEAD.size : header.length]
    if len(data) < header.length or crc32c(body) != crc or first >= next_offset:
        raise CorruptError("a filter of ids is torn or damaged")
    return header

"""Protocol buffers on the wire, written by hand: enough for messages of a few fields.

A field is its number and wire type, then its value (protobuf.dev, "Encoding"). A repeated field's
elements may stand anywhere, so messages are joined by joining their bytes.
"""

import struct
from typing import Final

_SMALL: Final = tuple(bytes((number,)) for number in range(0x80))
_ONGOING: Final = tuple(bytes((number | 0x80,)) for number in range(0x80))


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; negative numbers as 64 bits."""
    if 0 <= number < 0x80:
        return _SMALL[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    found = b""
    while number > 0x7F:
        found += _ONGOING[number & 0x7F]
        number >>= 7
    return found + _SMALL[number]


def field_bytes(number: int, value: bytes) -> bytes:
    """A message, string or bytes."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def field_size(length: int) -> int:
    """Bytes of a message, string or bytes of this length, in one of the first 15 fields."""
    return 2 + max(length.bit_length() - 1, 0) // 7 + length


def field_varint(number: int, value: int) -> bytes:
    """An integer that is not zigzag."""
    return varint(number << 3) + varint(value)


def field_double(number: int, value: float) -> bytes:
    """A double; NaN with its own bits."""
    return varint(number << 3 | 1) + struct.pack("<d", value)

"""Protobuf by hand: what a test says about the wire does not rest on the code under test.

A message is a mapping of field numbers to values: int and bool become varints, a float a double,
str and bytes are length-delimited, a list is a repeated field, a mapping of numbers an embedded
message.
"""

import struct
from collections.abc import Mapping
from typing import Any


def encode(fields: Mapping[int, Any]) -> bytes:
    """The bytes of a message."""
    return b"".join(_field(number, value) for number, value in fields.items())


def decode(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message: of each number every value, int or bytes, in order."""
    found: dict[int, list[Any]] = {}
    position = 0
    while position < len(data):
        key, position = _varint_at(data, position)
        if key & 7 == 0:
            value, position = _varint_at(data, position)
            found.setdefault(key >> 3, []).append(value)
            continue
        if key & 7 == 1:  # eight bytes as they are, such as a double's
            found.setdefault(key >> 3, []).append(data[position : position + 8])
            position += 8
            continue
        assert key & 7 == 2, (key, position)
        length, position = _varint_at(data, position)
        found.setdefault(key >> 3, []).append(data[position : position + length])
        position += length
    return found


def one(fields: Mapping[int, list[Any]], number: int, default: Any = None) -> Any:
    """The value of a field that is there once, or not."""
    values = fields.get(number, [default])
    assert len(values) == 1, (number, values)
    return values[0]


def entry(name: str | int, value: Any) -> dict[int, Any]:
    """An entry of a map."""
    return {1: name, 2: value}


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, list):
        return b"".join(_field(number, item) for item in value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value & (2**64 - 1))
    if isinstance(value, Mapping):
        value = encode(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint_at(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position

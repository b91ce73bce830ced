"""How much memory decoding a batch's body takes, read from the body before it is decoded.

A compressed Arrow buffer begins with its uncompressed length, which Arrow allocates before it looks
further: a few bytes could claim terabytes. The lengths are found by walking the message's
flatbuffer (Arrow columnar format, "Encapsulated message format" and "Buffer compression"):

    u32 ffffffff, i32 metadata length, Message, body
    Message      field 1 header type (3 = RecordBatch), field 2 header
    RecordBatch  field 2 buffers: structs of i64 offset, i64 length; field 3 compression
"""

import struct
from typing import Final

from penstock.logd.errors import CorruptError

_PREFIX: Final = struct.Struct("<Ii")
_U8: Final = struct.Struct("<B")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")
_BUFFER: Final = struct.Struct("<qq")

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_BUFFERS_MAX: Final = 64
"""The batch schema has 16 buffers."""
_NOT_COMPRESSED: Final = -1


def decoded_size(body: bytes) -> int:
    """Bytes that decoding allocates, by what the body claims.

    Raises:
        CorruptError: It is not one encapsulated record-batch message.
    """
    try:
        return _decoded_size(body)
    except struct.error:
        raise CorruptError("the batch's Arrow message points outside of itself") from None


def _decoded_size(body: bytes) -> int:
    continuation, metadata_length = _PREFIX.unpack_from(body, 0)
    message = _follow(body, _PREFIX.size)
    header_type = _field(body, message, 1)
    if (
        continuation != _CONTINUATION
        or header_type == 0
        or _read(_U8, body, header_type) != _RECORD_BATCH
    ):
        raise CorruptError("the batch's body is not an Arrow record-batch message")
    header = _follow(body, _field(body, message, 2))
    if _field(body, header, 3) == 0:
        return len(body)
    vector = _follow(body, _field(body, header, 2))
    count = _read(_U32, body, vector)
    if count > _BUFFERS_MAX:
        raise CorruptError(f"the batch's Arrow message has {count} buffers")
    total = 0
    for number in range(count):
        offset, length = _BUFFER.unpack_from(body, vector + 4 + number * _BUFFER.size)
        if length:
            start = _PREFIX.size + metadata_length + offset
            claimed = _read(_I64, body, start)
            total += length if claimed == _NOT_COMPRESSED else claimed
            if claimed < _NOT_COMPRESSED:
                raise CorruptError(f"a buffer of the batch claims {claimed} bytes")
    return total


def _field(body: bytes, table: int, number: int) -> int:
    """Where a table's field lies; 0 when the table does not have it."""
    vtable = table - _read(_I32, body, table)
    slot = 4 + 2 * number
    if slot >= _read(_U16, body, vtable):
        return 0
    distance = _read(_U16, body, vtable + slot)
    return table + distance if distance else 0


def _follow(body: bytes, position: int) -> int:
    return position + _read(_U32, body, position)


def _read(layout: struct.Struct, body: bytes, position: int) -> int:
    if position < 0:
        raise CorruptError("the batch's Arrow message points outside of itself")
    value: int = layout.unpack_from(body, position)[0]
    return value

"""Claims of a batch's body about itself, read before it is decoded.

Arrow believes what a message says of sizes. A compressed buffer begins with its uncompressed
length, which Arrow allocates before it looks further: a few bytes could claim terabytes. So the
message's flatbuffer is walked first (Arrow columnar format, "Encapsulated message format" and
"Buffer compression"):

    u32 ffffffff, i32 metadata length, Message, body
    Message      field 0 version (4 = V5), field 1 header type (3 = RecordBatch), field 2 header,
                 field 3 body length
    RecordBatch  field 0 rows; field 2 buffers: structs of i64 offset, i64 length;
                 field 3 compression

Only V5 is taken: in V4, Arrow C++ also finds a compression in the message's custom metadata, whose
lengths would not be counted here. The message must fill the body: bodies end to end are an Arrow
stream, so what follows a message would be the next one to a reader.
"""

import struct
from typing import Final, NamedTuple

from penstock.logd.errors import CorruptError

Body = bytes | memoryview

_PREFIX: Final = struct.Struct("<Ii")
_U8: Final = struct.Struct("<B")
_U16: Final = struct.Struct("<H")
_I16: Final = struct.Struct("<h")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")
_BUFFER: Final = struct.Struct("<qq")

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_V5: Final = 4
_BUFFERS_MAX: Final = 64
"""The batch schema has 16 buffers."""
_NOT_COMPRESSED: Final = -1


class Claims(NamedTuple):
    """Size of a body's content, by its own claim.

    Attributes:
        rows: Rows of the batch.
        decoded_bytes: Memory bytes of its columns.
    """

    rows: int
    decoded_bytes: int


def read_claims(body: Body) -> Claims:
    """Read a body's claims.

    Raises:
        CorruptError: It is not one encapsulated record-batch message, or points out of itself.
    """
    try:
        return _read_claims(body)
    except struct.error:
        raise CorruptError("the batch's Arrow message points outside of itself") from None


def _read_claims(body: Body) -> Claims:
    continuation, metadata_length = _PREFIX.unpack_from(body, 0)
    message = _follow(body, _PREFIX.size)
    if continuation != _CONTINUATION or _value(_U8, body, message, 1) != _RECORD_BATCH:
        raise CorruptError("the batch's body is not an Arrow record-batch message")
    if _value(_I16, body, message, 0) != _V5:
        raise CorruptError("the batch's Arrow message is not of metadata version V5")
    begin = _PREFIX.size + metadata_length
    body_length = _value(_I64, body, message, 3)
    if not _PREFIX.size < begin <= len(body) or begin + body_length != len(body):
        raise CorruptError("the batch's Arrow message is not as long as its body")
    header = _follow(body, _field(body, message, 2))
    rows = _value(_I64, body, header, 0)
    if _field(body, header, 3) == 0:
        return Claims(rows, body_length)
    vector = _follow(body, _field(body, header, 2))
    count = _read(_U32, body, vector)
    if count > _BUFFERS_MAX:
        raise CorruptError(f"the batch's Arrow message has {count} buffers")
    sizes = [
        _buffer_size(body, begin, *_BUFFER.unpack_from(body, vector + 4 + number * _BUFFER.size))
        for number in range(count)
    ]
    return Claims(rows, sum(sizes))


def _buffer_size(body: Body, begin: int, offset: int, length: int) -> int:
    """Bytes that a compressed buffer claims to decode to."""
    if length == 0:
        return 0
    if offset < 0 or length < _I64.size or begin + offset + length > len(body):
        raise CorruptError("a buffer of the batch lies outside of its body")
    claimed = _read(_I64, body, begin + offset)
    if claimed < _NOT_COMPRESSED:
        raise CorruptError(f"a buffer of the batch claims {claimed} bytes")
    return length if claimed == _NOT_COMPRESSED else claimed


def _value(layout: struct.Struct, body: Body, table: int, number: int) -> int:
    """A table's field; 0, as flatbuffers have it, when the table does not have it."""
    position = _field(body, table, number)
    return _read(layout, body, position) if position else 0


def _field(body: Body, table: int, number: int) -> int:
    """Return the position of a table's field; 0 when the table does not have it."""
    vtable = table - _read(_I32, body, table)
    slot = 4 + 2 * number
    if slot >= _read(_U16, body, vtable):
        return 0
    distance = _read(_U16, body, vtable + slot)
    return table + distance if distance else 0


def _follow(body: Body, position: int) -> int:
    return position + _read(_U32, body, position)


def _read(layout: struct.Struct, body: Body, position: int) -> int:
    if position < 0:
        raise CorruptError("the batch's Arrow message points outside of itself")
    value: int = layout.unpack_from(body, position)[0]
    return value

"""The body of a frame of plain messages, made by hand: most frames are, and one may be one message.

Arrow's objects cost some hundred microseconds a frame, however few its rows. What they come to for
messages without headers is always the same few buffers after the same metadata, in which only
numbers differ. So this writes them itself, byte for byte as pyarrow does for arrays made of lists
(`tests/unit/logd/test_plain_body.py` holds the two against each other). All integers are
little-endian:

    offset size content
         0    8 encapsulation     ffffffff, then 648: bytes of metadata
         8  648 metadata          flatbuffer `Message` with a `RecordBatch` (Arrow's Message.fbs):
                                  at  32 the length of what follows the metadata,
                                  at  64 the number of rows,
                                  at  80 the 25 buffers of the columns: begin and length,
                                  at 488 the 10 columns, nested ones included: rows and nulls;
                                  the rest are the tables' layouts, which never change
       656    n buffers           in order, each filled up with zeros to a multiple of 8 bytes

Columns, nested ones included, are depth first: offset_delta, timestamp, subject, key, headers, its
entries, their names and values, reply, value. Keys and headers are null in every row.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

PLAIN_ROWS_MAX: Final = 256
"""Up to here this is quicker than Arrow by far; at twice as many rows it no longer is."""

_METADATA_SIZE: Final = 648
_BUFFERS: Final = 25
_COLUMNS: Final = 10
_LAYOUT: Final = struct.Struct(f"<40sq24sq8s{2 * _BUFFERS}q8s{2 * _COLUMNS}q")
assert _LAYOUT.size == 8 + _METADATA_SIZE

_MESSAGE: Final = (
    struct.pack("<iI", -1, _METADATA_SIZE)
    + struct.pack("<II", 20, 0)  # where the table `Message` is
    + struct.pack("<6H", 12, 22, 6, 5, 8, 12)  # its layout
    + struct.pack("<I2BHI", 12, 0, 3, 4, 24)  # layout, 3: a RecordBatch, 4: version V5, where
)
_RECORD_BATCH: Final = (
    struct.pack("<6H", 0, 10, 24, 12, 4, 8)  # the layout of the table `RecordBatch`
    + struct.pack("<III", 10, 428, 16)  # layout, where the columns are, where the buffers are
)
_BUFFER_COUNT: Final = struct.pack("<II", 0, _BUFFERS)
_COLUMN_COUNT: Final = struct.pack("<II", 0, _COLUMNS)
_PLACES: Final = struct.Struct(f"<{2 * _BUFFERS}q")
_PLACES_AT: Final = 8 + 80
_ROWS: Final = struct.Struct("<q")
_ROWS_AT: Final = 72
_COLUMN_COUNT_AT: Final = 488
_HEADERS_NULL_AT: Final = 496 + 4 * 16 + 8
_PARTS: Final = (3, 6, 21, 24)
"""Numbers of the buffers of timestamp, subject, reply and value."""

_BETWEEN_MAX: Final = 1024
"""Combinations of lengths that are kept, each with about 800 bytes."""

_between: dict[tuple[int, int, int], tuple[bytes, ...]] = {}
"""What is between the parts of a body of one message, by their lengths. A dict's operations are
atomic, so that all threads use it."""

_NONE: Final = b""
_ONE_OFFSET: Final = bytes(4)


def encode_plain_body(
    timestamps: bytes, subjects: Sequence[bytes], replies: Sequence[bytes], values: Sequence[bytes]
) -> bytes | None:
    """Encode messages without headers; None when subjects or replies are more than ASCII.

    Args:
        timestamps: Timestamp of each message, int64.
        subjects: Subject of each message; at least one message.
        replies: Reply subject of each message; empty ones become null.
        values: Payload of each message; at most `PLAIN_ROWS_MAX`.
    """
    count = len(values)
    assert 0 < count <= PLAIN_ROWS_MAX, count
    assert len(timestamps) == 8 * count
    assert len(subjects) == len(replies) == count
    if count == 1:
        return _encode_one(timestamps, subjects[0], replies[0], values[0])
    return _encode(timestamps, subjects, replies, values)


def has_no_headers(body: bytes) -> bool:
    """Return whether no row of a body has headers; False: one may have, decode it to know.

    Only the metadata is looked at, which `encode_plain_body` and pyarrow make alike.
    """
    if not (
        body.startswith(_MESSAGE)
        and body.startswith(_RECORD_BATCH, 48)
        and body.startswith(_BUFFER_COUNT, 80)
        and body.startswith(_COLUMN_COUNT, _COLUMN_COUNT_AT)
        and len(body) >= _LAYOUT.size
    ):
        return False
    return _ROWS.unpack_from(body, _ROWS_AT) == _ROWS.unpack_from(body, _HEADERS_NULL_AT)


def _encode_one(timestamp: bytes, subject: bytes, reply: bytes, value: bytes) -> bytes | None:
    """Encode one message: what is between its parts depends on their lengths only."""
    if not (subject.isascii() and reply.isascii()):
        return None
    lengths = len(subject), len(reply), len(value)
    between = _between.get(lengths)
    if between is None:
        body = _encode(timestamp, (subject,), (reply,), (value,))
        assert body is not None
        if len(_between) >= _BETWEEN_MAX:
            _between.clear()
        between = _between[lengths] = _cut(body)
    first, second, third, fourth, last = between
    return b"".join((first, timestamp, second, subject, third, reply, fourth, value, last))


def _cut(body: bytes) -> tuple[bytes, ...]:
    """Return what is before, between and after the four parts of a body of one message."""
    buffers = _PLACES.unpack_from(body, _PLACES_AT)
    parts, position = [], 0
    for number in _PARTS:
        begin = _LAYOUT.size + buffers[2 * number]
        parts.append(body[position:begin])
        position = begin + buffers[2 * number + 1]
    return (*parts, body[position:])


def _encode(
    timestamps: bytes, subjects: Sequence[bytes], replies: Sequence[bytes], values: Sequence[bytes]
) -> bytes | None:
    count = len(values)
    subject_data, reply_data = b"".join(subjects), b"".join(replies)
    if not (subject_data.isascii() and reply_data.isascii()):
        return None
    unanswered = replies.count(b"")
    nothing = bytes(4 * count + 4)
    all_null = bytes((count + 7) // 8)
    buffers = (
        _NONE, array("i", range(count)).tobytes(),
        _NONE, timestamps,
        _NONE, _offsets(subjects), subject_data,
        all_null, nothing, _NONE,
        all_null, nothing,
        _NONE,
        _NONE, _ONE_OFFSET, _NONE,
        _NONE, _ONE_OFFSET, _NONE,
        _bits(replies) if unanswered else _NONE, _offsets(replies), reply_data,
        _NONE, _offsets(values), *values,
    )  # fmt: skip
    return _assemble(count, unanswered, buffers)


def _assemble(count: int, unanswered: int, buffers: Sequence[bytes]) -> bytes:
    """Metadata, and the buffers; from the last column's data on they are one."""
    places: list[int] = []
    parts: list[bytes] = [_NONE]
    position = 0
    for buffer in buffers[: _BUFFERS - 1]:
        length = len(buffer)
        places += (position, length)
        if length:
            parts.append(buffer)
            position += length
            if length & 7:
                parts.append(bytes(-length & 7))
                position += -length & 7
    length = sum(map(len, buffers[_BUFFERS - 1 :]))
    places += (position, length)
    parts += buffers[_BUFFERS - 1 :]
    parts.append(bytes(-length & 7))
    position += length + (-length & 7)
    parts[0] = _LAYOUT.pack(
        _MESSAGE, position,
        _RECORD_BATCH, count,
        _BUFFER_COUNT, *places,
        _COLUMN_COUNT,
        count, 0, count, 0, count, 0, count, count, count, count,
        0, 0, 0, 0, 0, 0,
        count, unanswered, count, 0,
    )  # fmt: skip
    return b"".join(parts)


def _offsets(values: Iterable[bytes]) -> bytes:
    """Return the offset of each value in their concatenation, and the last one's end: int32."""
    return array("i", accumulate(map(len, values), initial=0)).tobytes()


def _bits(values: Sequence[bytes]) -> bytes:
    """A bit for each, the first one lowest: whether it is not empty."""
    digits = "".join(["1" if value else "0" for value in reversed(values)])
    return int(digits, 2).to_bytes((len(values) + 7) // 8, "little")

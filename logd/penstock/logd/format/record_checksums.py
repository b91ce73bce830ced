"""Checksums of records, by which replicas compare what they hold without sending it.

Replicas have the same records at the same offsets, but their frames need not be the same: each node
puts small frames together, and removes superseded records of a compacted stream, on its own. So a
checksum is of records and offsets alone, never of frames.

    offset size field
         0    8 offset     little-endian
         8    8 key        BLAKE2b of the record's key; zero where it has none
        16    8 content    BLAKE2b of everything in the record
        24    1 flags      bit 0: it has a key; bit 1: it has no value (a tombstone, with a key)
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from penstock.base.lazy_module import LazyModule

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

_LAYOUT: Final = Struct("<Q8s8sB")
_NO_KEY: Final = bytes(8)
_HAS_KEY: Final = 1
_HAS_NO_VALUE: Final = 2
_COLUMNS: Final = ("timestamp", "subject", "key", "headers", "reply", "value")


class RecordChecksum(msgspec.Struct, frozen=True):
    """The checksums of one record.

    Attributes:
        key: Checksum of the key; None: it has none.
        content: Checksum of everything in it.
        tombstone: Whether it only says that its key is no more.
    """

    offset: int
    key: bytes | None
    content: bytes
    tombstone: bool


def located(batch: pa.RecordBatch, base_offset: int) -> pa.RecordBatch:
    """Rows with their offsets in place of the distance from their frame's."""
    offsets = pc.add(batch.column("offset_delta").cast(pa.int64()), base_offset)
    return batch.set_column(0, "offset", offsets)


def checksum_of(batches: Sequence[pa.RecordBatch]) -> str:
    """A checksum of located rows, in hexadecimal, however they lie in batches; empty: of none.

    Two that differ may still be of equal records; two that are equal are not of different ones.
    """
    if not sum(batch.num_rows for batch in batches):
        return ""
    return blake2b(pa.concat_batches(batches).serialize(), digest_size=16).hexdigest()


def encode_checksums(batches: Sequence[pa.RecordBatch]) -> bytes:
    """The checksum of each record of located rows."""
    return b"".join(_LAYOUT.pack(*row) for batch in batches for row in _rows(batch))


def decode_checksums(data: bytes | memoryview) -> list[RecordChecksum]:
    """Decode the result of `encode_checksums`.

    Raises:
        ValueError: The bytes are malformed.
    """
    if len(data) % _LAYOUT.size:
        msg = f"{len(data)} bytes are no checksums of records"
        raise ValueError(msg)
    return [
        RecordChecksum(
            offset,
            key if flags & _HAS_KEY else None,
            content,
            tombstone=flags == _HAS_KEY | _HAS_NO_VALUE,
        )
        for offset, key, content, flags in _LAYOUT.iter_unpack(data)
    ]


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes, bytes, int]]:
    columns = [
        (column.cast(pa.int64()) if name == "timestamp" else column).to_pylist()
        for name in _COLUMNS
        for column in (batch.column(name),)
    ]
    offsets = batch.column("offset").to_pylist()
    for offset, content in zip(offsets, zip(*columns, strict=True), strict=True):
        _, _, key, _, _, value = content
        flags = (_HAS_KEY if key is not None else 0) | (_HAS_NO_VALUE if value is None else 0)
        hashed = blake2b(msgspec.msgpack.encode(content), digest_size=8).digest()
        named = _NO_KEY if key is None else blake2b(key, digest_size=8).digest()
        yield offset, named, hashed, flags

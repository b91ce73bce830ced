"""Decompression that stops at a bound, whatever the data claims to become.

Input is fed in small pieces, for two reasons: one piece can only become so much before the bound is
looked at (gzip at most 1,032 bytes of one, a zstd block of 4 bytes 128 KiB), and what follows a
finished member is copied, which data of many tiny members would make quadratic.
"""

import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import zstandard

from penstock.collector.errors import UndecodableError

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_GZIP_PIECE_BYTES: Final = 4096
_ZSTD_PIECE_BYTES: Final = 256
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
"""The window that RFC 8878 asks decoders to support; most refuse a larger one."""


class ExpandsTooFarError(UndecodableError):
    """The decompressed data is larger than allowed."""


class _Member(Protocol):
    """One gzip member or zstd frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Packing:
    """A format: how a member of it begins, what is fed at once, and what its reader raises."""

    name: str
    begin: Callable[[], _Member]
    piece_bytes: int
    error: type[Exception]


GZIP: Final = Packing(
    "gzip", lambda: zlib.decompressobj(_GZIP_WINDOW), _GZIP_PIECE_BYTES, zlib.error
)
ZLIB: Final = Packing("zlib", zlib.decompressobj, _GZIP_PIECE_BYTES, zlib.error)
DEFLATE: Final = Packing(
    "deflate", lambda: zlib.decompressobj(-zlib.MAX_WBITS), _GZIP_PIECE_BYTES, zlib.error
)
ZSTD: Final = Packing(
    "zstd",
    lambda: zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompressobj(),
    _ZSTD_PIECE_BYTES,
    zstandard.ZstdError,
)


def gunzip(data: bytes, bytes_max: int) -> bytes:
    """Decompress all members of gzip data.

    Raises:
        UndecodableError: Not gzip, cut short, or (`ExpandsTooFarError`) more than `bytes_max`.
    """
    return _inflate(data, bytes_max, GZIP)


def unzstd(data: bytes, bytes_max: int) -> bytes:
    """Decompress all frames of zstd data.

    Raises:
        UndecodableError: Not zstd, cut short, or (`ExpandsTooFarError`) more than `bytes_max`.
    """
    return _inflate(data, bytes_max, ZSTD)


def undeflate(data: bytes, bytes_max: int) -> bytes:
    """Deflated data, in the frame of zlib, as HTTP means it, or without, as some send it.

    Raises:
        UndecodableError: Neither, cut short, or (`ExpandsTooFarError`) more than `bytes_max`.
    """
    framed = data[:1] and data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return _inflate(data, bytes_max, ZLIB if framed else DEFLATE)


def unlz4(data: bytes, bytes_max: int) -> bytes:
    """Decompress an LZ4 frame.

    Raises:
        UndecodableError: Not LZ4, cut short, or (`ExpandsTooFarError`) more than `bytes_max`.
    """
    if not data:
        return b""
    parts: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "lz4") as stream:
            while part := stream.read(_LZ4_PART_BYTES):
                parts.append(part)
                size += len(part)
                if size > bytes_max:
                    break
    except (OSError, ValueError) as error:
        raise UndecodableError(f"not lz4: {error}") from None
    return _within(b"".join(parts), bytes_max)


def unsnappy(data: bytes, bytes_max: int) -> bytes:
    """Snappy data: one block, or the framed stream that says so at its beginning.

    What a block becomes stands at its beginning, and is looked at first. Checksums of the stream
    are not.

    Raises:
        UndecodableError: Not Snappy, cut short, or (`ExpandsTooFarError`) more than `bytes_max`.
    """
    if not data.startswith(_SNAPPY_STREAM):
        return _unsnap_block(data, bytes_max)
    parts: list[bytes] = []
    left, at = bytes_max, 0
    while at < len(data):
        kind, end = data[at], at + 4 + int.from_bytes(data[at + 1 : at + 4], "little")
        if end > len(data):
            raise UndecodableError("compressed data ends early")
        content = data[at + 4 + _SNAPPY_CHECKSUM_BYTES : end]
        at = end
        if kind == _SNAPPY_COMPRESSED:
            content = _unsnap_block(content, left)
        elif kind != _SNAPPY_PLAIN:
            if kind < _SNAPPY_SKIPPABLE:
                raise UndecodableError(f"not snappy: a chunk of type {kind}")
            continue
        parts.append(_within(content, left))
        left -= len(content)
    return b"".join(parts)


_LZ4_PART_BYTES: Final = 64 * 1024
_SNAPPY_STREAM: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_COMPRESSED: Final = 0
_SNAPPY_PLAIN: Final = 1
_SNAPPY_SKIPPABLE: Final = 0x80
_SNAPPY_CHECKSUM_BYTES: Final = 4
_VARINT_BYTES_MAX: Final = 5


def _unsnap_block(data: bytes, bytes_max: int) -> bytes:
    if not data:
        return b""
    size = 0
    for index, byte in enumerate(data[:_VARINT_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise UndecodableError("not snappy: no length at its beginning")
    if size > bytes_max:
        raise ExpandsTooFarError(f"more than {bytes_max} bytes after decompression")
    try:
        found: bytes = pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True)
    except (OSError, ValueError) as error:
        raise UndecodableError(f"not snappy: {error}") from None
    return found


def _within(data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise ExpandsTooFarError(f"more than {bytes_max} bytes after decompression")
    return data


def unpack(read: Callable[[int], bytes], packing: Packing) -> Iterator[bytes]:
    """Decompress what `read` gives until it gives nothing, a piece of at most some MiB at a time.

    Raises:
        UndecodableError: Not of this format, or cut short, which an empty file is.
    """
    member = packing.begin()
    while piece := read(packing.piece_bytes):
        while piece:
            if member.eof:
                member = packing.begin()
            try:
                part = member.decompress(piece)
            except packing.error as error:
                raise UndecodableError(f"not {packing.name}: {error}") from None
            piece = member.unused_data
            yield part
    if not member.eof:
        raise UndecodableError("compressed data ends early")


def _inflate(data: bytes, bytes_max: int, packing: Packing) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in unpack(io.BytesIO(data).read, packing) if data else ():
        parts.append(part)
        size += len(part)
        if size > bytes_max:
            raise ExpandsTooFarError(f"more than {bytes_max} bytes after decompression")
    return b"".join(parts)

"""Decompression that stops at a bound, whatever the data claims to become.

Input is fed in small pieces, for two reasons: one piece can only become so much before the bound is
looked at (gzip at most 1,032 bytes of one, a zstd block of 4 bytes 128 KiB), and what follows a
finished member is copied, which data of many tiny members would make quadratic.
"""

import zlib
from collections.abc import Callable
from typing import Final, Protocol

import zstandard

from penstock.collector.errors import UndecodableError

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_GZIP_PIECE_BYTES: Final = 4096
_ZSTD_PIECE_BYTES: Final = 256
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
"""What RFC 8878 asks decoders to support, and most refuse to exceed."""


class ExpandsTooFarError(UndecodableError):
    """What it becomes is larger than allowed."""


class _Member(Protocol):
    """One gzip member or zstd frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def gunzip(data: bytes, bytes_max: int) -> bytes:
    """All members of gzip data.

    Raises:
        UndecodableError: Not gzip, cut short, or (`ExpandsTooFarError`) more than `bytes_max`.
    """
    try:
        return _inflate(
            data, bytes_max, lambda: zlib.decompressobj(_GZIP_WINDOW), _GZIP_PIECE_BYTES
        )
    except zlib.error as error:
        raise UndecodableError(f"not gzip: {error}") from None


def unzstd(data: bytes, bytes_max: int) -> bytes:
    """All frames of zstd data.

    Raises:
        UndecodableError: Not zstd, cut short, or (`ExpandsTooFarError`) more than `bytes_max`.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    try:
        return _inflate(data, bytes_max, decompressor.decompressobj, _ZSTD_PIECE_BYTES)
    except zstandard.ZstdError as error:
        raise UndecodableError(f"not zstd: {error}") from None


def _inflate(data: bytes, bytes_max: int, begin: Callable[[], _Member], piece_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = at = 0
    member = begin()
    while at < len(data):
        if member.eof:
            member = begin()
        piece = data[at : at + piece_bytes]
        parts.append(member.decompress(piece))
        size += len(parts[-1])
        if size > bytes_max:
            raise ExpandsTooFarError(f"more than {bytes_max} bytes after decompression")
        at += len(piece) - len(member.unused_data)
    if data and not member.eof:
        raise UndecodableError("compressed data ends early")
    return b"".join(parts)

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
ZSTD: Final = Packing(
    "zstd",
    lambda: zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompressobj(),
    _ZSTD_PIECE_BYTES,
    zstandard.ZstdError,
)


def gunzip(data: bytes, bytes_max: int) -> bytes:
    """All members of gzip data.

    Raises:
        UndecodableError: Not gzip, cut short, or (`ExpandsTooFarError`) more than `bytes_max`.
    """
    return _inflate(data, bytes_max, GZIP)


def unzstd(data: bytes, bytes_max: int) -> bytes:
    """All frames of zstd data.

    Raises:
        UndecodableError: Not zstd, cut short, or (`ExpandsTooFarError`) more than `bytes_max`.
    """
    return _inflate(data, bytes_max, ZSTD)


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

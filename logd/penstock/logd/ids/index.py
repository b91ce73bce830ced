"""The index of ids of one partition: a filter for each stretch of its log, in one file.

    PARTITION_DIRECTORY/ids        filters, one after the other: `penstock.logd.ids.filters`

The index is made after it is asked for, up to the high watermark, of whole stretches of about
`STRETCH_BYTES` of frames; what lies behind the last one is left to the client that searches. The
file may be deleted at any time. It is not synced: of one that a crash has torn the sound beginning
counts.

Filters name offsets, not files, so compaction and merges of segments leave it valid: a stretch may
lose records that the filter still lets through. After a truncation the log has other records at
the same offsets. The leader epoch tells: a filter counts only while its epoch reaches over all of
its range.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from typing import Final

from msgspec import Struct

from penstock.base.files import atomic_write
from penstock.logd.errors import CorruptError, CorruptFrameError
from penstock.logd.format.batch import decode_body
from penstock.logd.ids.filters import (
    HEADER_SIZE,
    FilterHeader,
    bits_of,
    decode_filter,
    encode_filter,
    ids_of,
)
from penstock.logd.limits import ID_INDEX_BYTES_MAX
from penstock.logd.storage.reader import LogReader

NAME: Final = "ids"
STRETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of frames for which one filter is made."""

_IDS_MAX: Final = 50_000
"""Different ids after which a stretch ends before it has so many bytes."""

Range = tuple[int, int]
"""[first, upto) of offsets."""


class _Stored(Struct, frozen=True):
    """A filter in the file, and where it begins there."""

    header: FilterHeader
    position: int


class IdIndex:
    """The index of one partition. For one thread at a time.

    Args:
        log: The partition's log.
        max_bytes: Maximum bytes of the file; the oldest half makes room.
        stretch_bytes: Bytes of frames for which one filter is made.
    """

    def __init__(
        self,
        log: LogReader,
        *,
        max_bytes: int = ID_INDEX_BYTES_MAX,
        stretch_bytes: int = STRETCH_BYTES,
    ) -> None:
        self._log = log
        self._path = log.directory / NAME
        self._max_bytes = max_bytes
        self._stretch_bytes = stretch_bytes
        self._stored, self._size = self._load()

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self._size

    def extend(self, upto: int, *, bytes_max: int) -> bool:
        """Make filters of what is not indexed yet, of about so many bytes of frames.

        Args:
            upto: Offset behind the last record that may be indexed.
            bytes_max: Bytes of frames to read.

        Returns:
            Whether nothing whole is left that is not indexed.

        Raises:
            OSError: The disk failed.
        """
        position = self._stored[-1].header.next_offset if self._stored else 0
        position = max(position, self._log.start_offset)
        read = 0
        while position < upto:
            if read >= bytes_max:
                return False
            ids, end, size, epoch, is_whole = self._stretch(position, upto)
            if not is_whole:
                break
            read += size
            if end > position and epoch is not None:
                self._append(encode_filter(ids, position, end, epoch))
            position = end
        return True

    def candidates(self, ids: Collection[str], start: int, end: int) -> list[Range]:
        """Return the ranges in [start, end) that may hold a record with one of the ids.

        What is not indexed is among them.

        Raises:
            OSError: The disk failed.
        """
        excluded = list(self._excluded(ids, start, end))
        found, position = list[Range](), start
        for first, upto in excluded:
            if position < first:
                found.append((position, min(first, end)))
            position = max(position, upto)
        if position < end:
            found.append((position, end))
        return found

    def _excluded(self, ids: Collection[str], start: int, end: int) -> Iterator[Range]:
        """Yield the indexed ranges that have none of the ids, in order."""
        begins = [it.header.first for it in self._stored]
        at = max(bisect_right(begins, start) - 1, 0)
        if not self._stored[at:]:
            return
        with self._path.open("rb") as file:
            for stored in self._stored[at:]:
                header = stored.header
                if header.first >= end:
                    return
                if not any(self._may_have(file.fileno(), stored, it) for it in ids):
                    yield header.first, header.next_offset

    @staticmethod
    def _may_have(descriptor: int, stored: _Stored, wanted: str) -> bool:
        for bit in bits_of(wanted, stored.header.size):
            byte = os.pread(descriptor, 1, stored.position + HEADER_SIZE + (bit >> 3))
            if byte and not byte[0] & (1 << (bit & 7)):
                return False
        return True

    def _stretch(self, position: int, upto: int) -> tuple[set[str], int, int, int | None, bool]:
        """Read a stretch: its ids, its end, its bytes, its last epoch, and whether it is whole."""
        ids, size, epoch, end = set[str](), 0, None, position
        try:
            for header, body in self._log.frames(position, upto=upto):
                if header.next_offset > upto:
                    break
                if header.record_count:
                    batch = decode_body(body, where=f"offset {header.base_offset}")
                    ids.update(ids_of(batch.column("value").to_pylist()))
                size += header.frame_length
                epoch, end = header.leader_epoch, header.next_offset
                if size >= self._stretch_bytes or len(ids) >= _IDS_MAX:
                    return ids, end, size, epoch, True
        except CorruptFrameError as error:
            if epoch is None:  # a search reads the damage, and says so
                return set(), max(error.next_offset, position + 1), self._stretch_bytes, None, True
            return ids, end, size, epoch, True
        except CorruptError:
            return ids, end, size, epoch, epoch is not None
        return ids, end, size, epoch, False

    def _append(self, encoded: bytes) -> None:
        if self._size + len(encoded) > self._max_bytes:
            self._keep(self._stored[len(self._stored) // 2 + 1 :])
        with self._path.open("ab") as file:
            file.truncate(self._size)  # a write that failed may have left a part of a filter
            file.write(encoded)
        header = decode_filter(memoryview(encoded))
        self._stored.append(_Stored(header, self._size))
        self._size += len(encoded)

    def drop(self, is_valid: Callable[[FilterHeader], bool]) -> None:
        """Forget filters of records that the log has no more; the file follows when half is gone.

        Filters behind one that is not valid go, too: a truncation has removed all that follows.

        Args:
            is_valid: Returns whether a filter is of the records that the log has.

        Raises:
            OSError: The disk failed.
        """
        if self._length() < self._size:  # the file was deleted
            self._stored, self._size = self._load()
        start, kept = self._log.start_offset, list[_Stored]()
        for stored in self._stored:
            if not is_valid(stored.header):
                break
            if stored.header.next_offset > start:
                kept.append(stored)
        was_cut = len(kept) < len(self._stored) and kept[-1:] != self._stored[-1:]
        if was_cut or 2 * len(kept) < len(self._stored):
            self._keep(kept)

    def _length(self) -> int:
        """Bytes that the file has on the disk."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _keep(self, stored: list[_Stored]) -> None:
        data = self._path.read_bytes() if self._path.exists() else b""
        parts = [data[it.position : it.position + it.header.length] for it in stored]
        atomic_write(self._path, b"".join(parts), durable=False)
        self._stored, self._size = [], 0
        for it in stored:
            self._stored.append(_Stored(it.header, self._size))
            self._size += it.header.length

    def _load(self) -> tuple[list[_Stored], int]:
        """The filters in the file; what follows a damaged one is cut off."""
        try:
            data = memoryview(self._path.read_bytes())
        except FileNotFoundError:
            return [], 0
        stored, position = list[_Stored](), 0
        while position < len(data):
            try:
                header = decode_filter(data[position:])
            except CorruptError:
                os.truncate(self._path, position)
                break
            stored.append(_Stored(header, position))
            position += header.length
        return stored, position

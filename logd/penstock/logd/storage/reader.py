"""The readers' side of a log. Any thread, at any time."""

import errno
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from penstock.logd.encryption.cipher import SegmentCipher
from penstock.logd.errors import CorruptError, CorruptFrameError
from penstock.logd.format.frame import FrameHeader, parse_frames
from penstock.logd.format.segment_facts import SegmentFacts
from penstock.logd.storage.disk import Content, File
from penstock.logd.storage.segment import FileRange, Segment, SegmentList

Range = tuple[int, int]
"""[first, upto) of offsets."""


class DamagedRanges:
    """Ranges of offsets that cannot be read, in order, none overlapping another. Any thread.

    Args:
        ranges: Known ranges.

    Attributes:
        ranges: The ranges.
    """

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._lock = threading.Lock()
        self.ranges: list[Range] = []
        for first, upto in ranges:
            self.add(first, upto)

    def add(self, first: int, upto: int) -> None:
        """Note that [first, upto) cannot be read; it is united with what it overlaps."""
        if first >= upto:
            return
        with self._lock:
            apart = [(a, b) for a, b in self.ranges if b <= first or upto <= a]
            for a, b in self.ranges:
                if a < upto and first < b:
                    first, upto = min(a, first), max(b, upto)
            self.ranges = sorted([*apart, (first, upto)])

    def cut(self, end: int) -> None:
        """Forget what lies at or above `end`: it is gone."""
        with self._lock:
            self.ranges = [(a, min(b, end)) for a, b in self.ranges if a < end]

    def remove(self, first: int, upto: int) -> None:
        """Forget what lies in [first, upto): it can be read again."""
        with self._lock:
            left = [(a, min(b, first)) for a, b in self.ranges]
            right = [(max(a, upto), b) for a, b in self.ranges]
            self.ranges = sorted({(a, b) for a, b in (*left, *right) if a < b})

    def within(self, start: int, end: int) -> list[Range]:
        """Return the parts of the ranges in [start, end)."""
        clipped = [(max(a, start), min(b, end)) for a, b in self.ranges]
        return [(a, b) for a, b in clipped if a < b]


def gather_ranges(
    pinned: Iterable[tuple[Segment, File]], offset: int, *, bytes_max: int, upto: int
) -> list[FileRange]:
    """Ranges of several segments: frames from `offset` on, at least one, about `bytes_max`.

    Raises:
        CorruptFrameError: The first frame is damaged.
    """
    ranges: list[FileRange] = []
    for segment, file in pinned:
        try:
            part = segment.extent(file, offset, bytes_max=bytes_max, upto=upto)
        except CorruptFrameError:
            if ranges:
                break
            raise
        if part is None or (ranges and part.length > bytes_max):
            break
        ranges.append(part)
        bytes_max -= part.length
        offset = part.next_offset
        if bytes_max <= 0 or offset < segment.end_offset:
            break
    return ranges


UNREADABLE: Final = frozenset({errno.EIO, errno.EREMOTEIO, errno.EBADMSG, errno.EUCLEAN})
"""Errors of a read that say that these bytes cannot be had, and nothing of others."""

_PAGE_BYTES: Final = 4096


class SalvagedFile:
    """A file whose unreadable pages are zeros, which no frame is: a reader finds damage.

    Args:
        file: It is left open.
    """

    def __init__(self, file: Content) -> None:
        self._file = file

    def read(self, position: int, length: int) -> bytes:
        """Read the file, page by page where it cannot be read at once."""
        try:
            return self._file.read(position, length)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        end, parts = position + length, []
        while position < end:
            upto = min(end, (position // _PAGE_BYTES + 1) * _PAGE_BYTES)
            parts.append(self._page(position, upto - position))
            position = upto
        return b"".join(parts)

    def _page(self, position: int, length: int) -> bytes:
        try:
            return self._file.read(position, length)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return bytes(length)


Frame = tuple[FrameHeader, bytes]


class LogReader:
    """Reads of a log; its writer (`penstock.logd.storage.log`) keeps it up to date.

    Args:
        directory: The log's directory.
        segments: All segments, durable.
        cipher: Decrypts its frames; None: they are not encrypted.

    Attributes:
        cipher: The argument.
        damages: Ranges known to be damaged: since the log was opened, or found by a read.
    """

    def __init__(
        self, directory: Path, segments: SegmentList, cipher: SegmentCipher | None = None
    ) -> None:
        self.directory = directory
        self.cipher = cipher
        self._list = segments
        self._lock = segments.lock
        self.damages = DamagedRanges()
        self._changes = 0
        self._failure = ""
        self._synced_offset = self.end_offset

    @property
    def start_offset(self) -> int:
        """First offset that is kept."""
        return self._list.all[0].base_offset

    @property
    def end_offset(self) -> int:
        """Next offset to be written (LEO)."""
        return self._list.all[-1].end_offset

    @property
    def synced_offset(self) -> int:
        """Everything below is durable."""
        return self._synced_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size for segment in self._list.all)

    @property
    def segment_count(self) -> int:
        """Segments, the active one included."""
        return len(self._list.all)

    def segments(self) -> list[SegmentFacts]:
        """Every segment as it stands, in order, the active one last."""
        return [segment.facts() for segment in self._list.all]

    @property
    def failure(self) -> str:
        """Why the log takes no more appends; empty while it does."""
        return self._failure

    def damaged(self) -> list[tuple[int, int]]:
        """Ranges [first, upto) known to be damaged: since the log was opened, or found by a read.

        What no reader has read since the log was written may be damaged without being here.
        """
        if not self.damages.ranges:
            return []
        return self.damages.within(self.start_offset, self.end_offset)

    def read(self, offset: int, *, bytes_max: int, upto: int) -> list[FileRange]:
        """Whole frames that hold records in [offset, upto), as byte ranges of the log's files.

        They are for sendfile, unless the log has a cipher: then `read_frames` decrypts them.

        Args:
            offset: First record wanted; the first frame may begin before it.
            bytes_max: Maximum bytes of all ranges together; one frame is returned whatever its
                size.
            upto: Exclusive; frames that hold it or more are left out.

        Raises:
            RefusedError: `OUT_OF_RANGE`, with `earliest` and `latest` (exclusive).
            CorruptFrameError: The first frame is damaged.
        """
        changes = self._changes
        upto = min(upto, self._readable_end())
        self._check_range(offset)
        pinned = self._list.pinned(offset, upto)
        try:
            return gather_ranges(pinned, offset, bytes_max=bytes_max, upto=upto)
        except CorruptFrameError as error:
            self._note(error, changes)
            raise

    def read_frames(self, offset: int, *, bytes_max: int, upto: int) -> list[Frame]:
        """Read frames like `read`, checked now: they end at the first damage.

        A run of frames in one segment is read at once, but where it has to be decrypted.

        Raises:
            RefusedError: `OUT_OF_RANGE`.
            CorruptFrameError: The first frame is damaged.
        """
        frames: list[Frame] = []
        for part in self.read(offset, bytes_max=bytes_max, upto=upto):
            if self.cipher is not None:
                frames += self._sound_frames(part, offset, alone=not frames)
                if not frames or frames[-1][0].next_offset < part.next_offset:
                    return frames
                continue
            try:
                frames += parse_frames(part.file.read(part.position, part.length))
            except CorruptError:  # rotted since it was checked first
                return frames + self._sound_frames(part, offset, alone=not frames)
        return frames

    def frames(
        self, offset: int = 0, *, upto: int | None = None, salvage: bool = False
    ) -> Iterator[Frame]:
        """Frames that hold records in [offset, upto), CRCs checked.

        Args:
            offset: The first record wanted.
            upto: Exclusive.
            salvage: Whether unreadable bytes count as damage, which is not noted.

        Raises:
            RefusedError: `OUT_OF_RANGE`.
            CorruptFrameError: When the next frame is damaged; go on at its `next_offset`.
            OSError: The disk does not give something.
        """
        changes = self._changes
        self._check_range(offset)
        end = self._readable_end() if upto is None else min(upto, self._readable_end())
        try:
            for segment, file in self._list.pinned(offset, end):
                first = max(offset, segment.base_offset)
                source = SalvagedFile(file) if salvage else file
                yield from segment.frames(source, first, end, self.cipher)
        except CorruptFrameError as error:
            if not salvage:
                self._note(error, changes)
            raise

    def headers(self, offset: int = 0, *, salvage: bool = False) -> Iterator[FrameHeader]:
        """Headers of frames that hold records at or above an offset; bodies are not read.

        Those of encrypted frames are as they lie on disk.

        Args:
            offset: The first record wanted.
            salvage: The same as in `frames`.

        Raises:
            RefusedError: `OUT_OF_RANGE`.
            CorruptFrameError: When the next header is damaged; go on at its `next_offset`.
            OSError: The disk does not give something.
        """
        changes = self._changes
        self._check_range(offset)
        end = self._readable_end()
        try:
            for segment, file in self._list.pinned(offset, end):
                source = SalvagedFile(file) if salvage else file
                yield from segment.headers(source, max(offset, segment.base_offset), end)
        except CorruptFrameError as error:
            if not salvage:
                self._note(error, changes)
            raise

    def offset_for_timestamp(self, timestamp_ns: int) -> int:
        """First offset whose record is not earlier than a time; `end_offset` if there is none."""
        return self._list.offset_for_timestamp(timestamp_ns, self._readable_end(), self.cipher)

    # Parts.

    def _readable_end(self) -> int:
        """Exclusive; a failed log has only what was synced."""
        return min(self._synced_offset, self.end_offset) if self._failure else self.end_offset

    def _check_range(self, offset: int) -> None:
        self._list.check_range(offset)

    def _sound_frames(self, part: FileRange, offset: int, *, alone: bool) -> list[Frame]:
        """The frames of a part up to its damage; that is reported if nothing else is."""
        frames: list[Frame] = []
        try:
            frames.extend(self.frames(max(offset, part.base_offset), upto=part.next_offset))
        except CorruptFrameError:
            if alone and not frames:
                raise
        return frames

    def _note(self, error: CorruptFrameError, changes: int) -> None:
        """Note damage that was found, unless the files were cut below the reader."""
        if changes == self._changes:
            self.damages.add(error.offset, error.next_offset)

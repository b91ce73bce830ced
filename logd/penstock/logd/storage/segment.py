"""A segment (one log file and its sparse index) and the segments of a log, in order.

Thread model: one writer calls `append`, `save_index`, `cut` and `unlink`; any thread calls the
rest. What readers see (`size`, `end_offset`, the index) changes together under `lock`, after the
bytes have been written, so a reader never looks past a whole frame.

Where ranges that readers were given ended, for the next one often begins there.

The sparse index leads only near to a frame; in a log of small ones a reader at its end would walk
over dozens of headers for each new frame.

The segments of one log, in order, and which of their files stay open.

The list itself is never changed in place: its readers go on with what it was. A segment that
leaves it keeps what its readers need: one that was deleted, the files they hold; one that was
replaced by compaction, its file as well, so that a reader sees the old segments or the new one,
never a file of one with the index of the other.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.logd.encryption.cipher import Frame, SegmentCipher, decrypted
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.batch import SCHEMA_VERSION, decode_body
from penstock.logd.format.frame import NO_TIMESTAMP, FrameHeader, encode_header
from penstock.logd.format.segment_facts import SegmentFacts
from penstock.logd.storage.disk import Content, Disk, File, write_atomically
from penstock.logd.storage.index import Claim, IndexState, SparseIndex, empty_claim
from penstock.logd.storage.scan import Damage, Found, FrameReader, damaged_body, scanner, walk

_KEPT: Final = 8
"""Readers that are at different places."""


class RangeEnds:
    """Cache of frame positions of one segment, until it is truncated. Any thread."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._lock = threading.Lock()

    def at(self, offset: int) -> tuple[int, int] | None:
        """Position and offset of the frame that begins at an offset, if it is known."""
        position = self._positions.get(offset)
        return None if position is None else (position, offset)

    def note(self, offset: int, position: int) -> None:
        """The frame that begins at an offset lies there, or will."""
        with self._lock:
            self._positions.pop(offset, None)
            self._positions[offset] = position
            if len(self._positions) > _KEPT:
                del self._positions[next(iter(self._positions))]


class FileRange(Struct, frozen=True):
    """Whole frames of one file, ready for sendfile.

    The range holds its file open: the descriptor stays valid while the range is referred to, also
    when the segment is deleted or the log closed meanwhile.

    Attributes:
        position: First byte.
        length: Bytes.
        base_offset: Offset of the first frame; at most the requested one.
        next_offset: After the last frame.
    """

    file: File
    position: int
    length: int
    base_offset: int
    next_offset: int


def first_row_at(header: FrameHeader, body: bytes, timestamp_ns: int) -> int:
    """Offset of a frame's first record that is not earlier than a time.

    A body of another schema version is opaque here: its frame's base offset is the answer.
    """
    if header.schema_version != SCHEMA_VERSION:
        return header.base_offset
    if header.first_timestamp_ns >= timestamp_ns and not header.compacted:
        return header.base_offset
    batch = decode_body(body)
    times = batch.column("timestamp").cast("int64").to_pylist()
    deltas = batch.column("offset_delta").to_pylist()
    for delta, time in zip(deltas, times, strict=True):
        if time >= timestamp_ns:
            return header.base_offset + int(delta)
    return header.base_offset


LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"


def segment_path(directory: Path, base_offset: int, suffix: str = LOG_SUFFIX) -> Path:
    """The path of one of a segment's files."""
    return directory / f"{base_offset:020d}{suffix}"


class Segment:
    """One log file and its index in memory.

    Args:
        directory: Directory of the file.
        index: Entries for its frames.
        claim: Base offset and what the file holds. Bytes up to `log_size` are frames or damage;
            what lies beyond is never looked at.
        disk: The file system.
        unchecked: Entries of the index, from the first on, whose blocks this process has neither
            checked nor written.
        saved: The index files say the same.

    Attributes:
        size: Bytes.
        end_offset: After its last record.
        max_timestamp_ns: Greatest of its records.
        damaged: Recovery found bytes in it that are not sound frames.
        written_ns: Time of the last write, by the log; at first the time of opening.
        retired: It was removed, and its name may be another's: its file is not opened any more.
    """

    def __init__(
        self,
        directory: Path,
        index: SparseIndex,
        claim: Claim,
        *,
        disk: Disk,
        unchecked: int = 0,
        saved: bool = False,
    ) -> None:
        self._directory = directory
        self.base_offset = claim.base_offset
        self.end_offset = claim.end_offset
        self.size = claim.log_size
        self.max_timestamp_ns = claim.max_timestamp_ns
        self.damaged = claim.damaged
        self.written_ns = 0
        self.retired = False
        self.lock = threading.Lock()
        self._disk = disk
        self._index = index
        self._unchecked = set(range(unchecked))
        self._saving = threading.Lock()
        self._saved_size = claim.log_size if saved else 0
        self._saved = saved
        self._ends = RangeEnds()
        self._file: weakref.ref[File] | None = None
        self._kept: File | None = None

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, *, interval_bytes: int, disk: Disk
    ) -> tuple["Segment", File]:
        """Make an empty segment; its name is durable when this returns."""
        file = disk.create(segment_path(directory, base_offset))
        disk.sync_directory(directory)
        segment = cls(directory, SparseIndex(interval_bytes), empty_claim(base_offset), disk=disk)
        segment._file = weakref.ref(file)
        return segment, file

    @classmethod
    def rewritten(
        cls, directory: Path, index: SparseIndex, claim: Claim, *, file: File, disk: Disk
    ) -> "Segment":
        """A segment whose file has another name still; `release` when it has its own."""
        unchecked = len(index) if claim.damaged else 0
        segment = cls(directory, index, claim, disk=disk, unchecked=unchecked)
        segment._kept = file
        return segment

    @cached_property
    def path(self) -> Path:
        """The log file; a segment that is at rest never needs it."""
        return segment_path(self._directory, self.base_offset)

    def claim(self) -> Claim:
        """Return the segment's current content."""
        return Claim(
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            log_size=self.size,
            max_timestamp_ns=self.max_timestamp_ns,
            damaged=self.damaged,
        )

    def facts(self) -> SegmentFacts:
        """Return the facts by which retention decides."""
        with self.lock:
            known = not self.damaged and self.size > 0
            return SegmentFacts(
                base_offset=self.base_offset,
                next_offset=self.end_offset,
                size_bytes=self.size,
                newest_ns=min(self.max_timestamp_ns, self.written_ns) if known else self.written_ns,
                damaged=self.damaged,
            )

    def pin(self) -> File:
        """The open file; opened now if no reader holds it.

        Raises:
            FileNotFoundError: The segment has been deleted.
        """
        with self.lock:
            return self._pin()

    def keep(self) -> File:
        """The open file, which stays open for as long as the segment is referred to.

        From then on its name may be given to another file.

        Raises:
            OSError: It cannot be opened.
        """
        with self.lock:
            self._kept = self._pin()
            return self._kept

    def release(self) -> None:
        """The file has the segment's own name now: it is kept open only while it is used."""
        with self.lock:
            if self._kept is not None:
                self._file, self._kept = weakref.ref(self._kept), None

    # The writer's side.

    def append(self, file: File, frames: Sequence[Frame]) -> None:
        """Write frames at the end as they are; readers see them when this returns.

        Raises:
            OSError: Not all were written; readers see none of them.
        """
        buffers: list[bytes] = []
        for header, body in frames:
            buffers += (encode_header(header), body)
        file.write(self.size, buffers)
        with self.lock:
            for header, _ in frames:
                self._index.offer(header.base_offset, self.size, self.max_timestamp_ns)
                self.size += header.frame_length
                self.end_offset = header.next_offset
                self.max_timestamp_ns = max(self.max_timestamp_ns, header.max_timestamp_ns)

    @property
    def index_saved(self) -> bool:
        """True if the index files cover the whole segment."""
        with self.lock:
            return self._saved and self._saved_size == self.size

    def reached(self, *, save_bytes: int) -> IndexState:
        """Return the segment's end for a sync; with its index, if it grew by `save_bytes`."""
        with self.lock:
            due = self.size - self._saved_size >= save_bytes
            files = self._index.encode(self.claim()) if due else None
            return IndexState(self.end_offset, self.size, files)

    def save_index(self, state: IndexState | None = None) -> None:
        """Write the index files, as of a state that `reached` gave or as of now; it is synced.

        Raises:
            OSError: They may not pair any more: then the segment is read when the log is opened.
        """
        state = state or self.reached(save_bytes=0)
        assert state.files is not None
        with self._saving:
            if state.size < self._saved_size:
                return  # another thread was faster
            self._saved_size, self._saved = state.size, False
            for suffix, data in zip((INDEX_SUFFIX, TIME_INDEX_SUFFIX), state.files, strict=True):
                write_atomically(self._disk, self.path.with_suffix(suffix), data, durable=False)
            self._saved = True

    def cut(self, file: File, offset: int) -> None:
        """Remove frames and damage that hold records at or above an offset; durable on return.

        Raises:
            OSError: The disk failed; readers no longer see what lay beyond.
        """
        position, end_offset, latest = 0, self.base_offset, NO_TIMESTAMP
        reader = FrameReader(file, end=self.size, name=str(self.path))
        for item in walk(reader, 0, self.base_offset, end_offset=self.end_offset):
            what = item if isinstance(item, Damage) else item.header
            if what.next_offset > offset:
                break
            position, end_offset = item.end, what.next_offset
            if isinstance(what, FrameHeader):
                latest = max(latest, what.max_timestamp_ns)
        self.unlink_index()
        with self.lock:
            self._index.truncate(position)
            self._unchecked = {block for block in self._unchecked if block < len(self._index)}
            self.size, self.end_offset, self.max_timestamp_ns = position, end_offset, latest
            self._saved_size, self._saved = 0, False
            self._ends = RangeEnds()  # readers under way keep the old ones
        file.truncate(position)
        file.sync()

    def unlink(self) -> None:
        """Remove the segment's files, the log first, so that no index outlives it as a claim."""
        self.retired = True
        self._disk.unlink(self.path)
        self.unlink_index()

    def unlink_index(self) -> None:
        """Remove the index files; durable on return."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path = self.path.with_suffix(suffix)
            if self._disk.exists(path):
                self._disk.unlink(path)
        self._disk.sync_directory(self.path.parent)

    # The readers' side.

    def locate(self, file: Content, offset: int) -> Found:
        """The first frame that ends after an offset below `end_offset`.

        Raises:
            CorruptFrameError: The offset lies in damage.
        """
        with self.lock:
            size, end_offset = self.size, self.end_offset
            entry = self._index.entry_for_offset(offset)
            position, first = self._ends.at(offset) or self._entry(entry)
        reader = FrameReader(file, end=size, name=str(self.path))
        for item in walk(reader, position, first, end_offset=end_offset):
            if isinstance(item, Damage):
                if item.next_offset > offset:
                    raise item.error(str(self.path))
            elif item.header.last_offset >= offset:
                return item
        raise Damage(size, size, offset, end_offset, "the file ends early").error(str(self.path))

    def extent(self, file: File, offset: int, *, bytes_max: int, upto: int) -> FileRange | None:
        """Whole checked frames in [offset, upto), the first whatever its size; None if none fit.

        Raises:
            CorruptFrameError: The first frame is damaged.
        """
        ends, first = self._ends, self.locate(file, offset)
        if first.header.next_offset > upto:
            return None
        start = first.position
        with self.lock:
            size, end_offset = self.size, self.end_offset
            entry = self._index.entry_for_position(start + bytes_max)
            if upto < end_offset:
                entry = min(entry, self._index.entry_for_offset(upto))
            near, near_offset = self._entry(entry)
        end, next_offset = size, end_offset
        if size - start > bytes_max or upto < end_offset:
            if near <= start:
                near, near_offset = first.end, first.header.next_offset
            reader = FrameReader(file, end=size, name=str(self.path))
            end, next_offset = near, near_offset
            for item in walk(reader, near, near_offset, end_offset=end_offset):
                if (
                    isinstance(item, Damage)
                    or item.end - start > bytes_max
                    or item.header.next_offset > upto
                ):
                    break
                end, next_offset = item.end, item.header.next_offset
        end, next_offset = self._sound_part(file, first, end, next_offset)
        ends.note(next_offset, end)
        return FileRange(file, start, end - start, first.header.base_offset, next_offset)

    def frames(
        self, file: Content, offset: int, upto: int, cipher: SegmentCipher | None
    ) -> Iterator[Frame]:
        """Checked frames with records in [offset, upto), as they were written.

        Raises:
            CorruptFrameError: When the next frame is damaged.
        """
        reader = scanner(file, end=self.size, name=str(self.path))
        for found in self._walk_from(file, reader, offset, upto):
            try:
                frame = decrypted(cipher, found.header, reader.body_of(found), self.base_offset)
            except CorruptError as error:
                raise damaged_body(found, error).error(str(self.path)) from None
            yield frame

    def headers(self, file: Content, offset: int, upto: int) -> Iterator[FrameHeader]:
        """Headers of frames with records in [offset, upto), as they lie on disk.

        Raises:
            CorruptFrameError: When the next header is damaged.
        """
        reader = FrameReader(file, end=self.size, name=str(self.path))
        for found in self._walk_from(file, reader, offset, upto):
            yield found.header

    def offset_for_timestamp(
        self, file: File, timestamp_ns: int, cipher: SegmentCipher | None
    ) -> int | None:
        """First offset whose record is not earlier than a time; None if there is none.

        A damaged frame counts as a whole: a reader there learns of the damage.
        """
        with self.lock:
            if timestamp_ns > self.max_timestamp_ns:
                return None
            position, offset = self._entry(self._index.entry_for_time(timestamp_ns))
            size, end_offset = self.size, self.end_offset
        reader = scanner(file, end=size, name=str(self.path))
        for item in walk(reader, position, offset, end_offset=end_offset):
            if isinstance(item, Found) and item.header.max_timestamp_ns >= timestamp_ns:
                try:
                    body = reader.body_of(item)
                    frame = decrypted(cipher, item.header, body, self.base_offset)
                    return first_row_at(*frame, timestamp_ns)
                except CorruptError:
                    return item.header.base_offset
        return None

    # Parts.

    def _pin(self) -> File:
        file = self._kept
        if file is None and self._file is not None:
            file = self._file()
        if file is None:
            if self.retired:
                raise FileNotFoundError(f"{self.path}: the segment was removed")
            file = self._disk.open(self.path)
            self._file = weakref.ref(file)
        return file

    def _entry(self, number: int) -> tuple[int, int]:
        """Position and offset of an index entry."""
        if len(self._index) == 0:
            return 0, self.base_offset
        return self._index.positions[number], self._index.offsets[number]

    def _walk_from(
        self, file: Content, reader: FrameReader, offset: int, upto: int
    ) -> Iterator[Found]:
        first = self.locate(file, offset)
        base = first.header.base_offset
        for item in walk(reader, first.position, base, end_offset=self.end_offset):
            if isinstance(item, Damage):
                if item.offset >= upto:
                    return
                if item.offset == item.next_offset:
                    continue  # rubbish between frames: no record is missing
                raise item.error(str(self.path))
            if item.header.base_offset >= upto:
                return
            yield item

    def _sound_part(
        self, file: File, first_frame: Found, end: int, next_offset: int
    ) -> tuple[int, int]:
        """Return the intact part from a frame's position to `end`; check what is unchecked.

        Raises:
            CorruptFrameError: There is damage at the frame, or around it. What it tells ends
                behind the frame, so that readers get on: a block may end within a frame that was
                written over others, and then says of no offset that it is missing.
        """
        start = first_frame.position
        for block, first, last, offset, end_offset in self._unchecked_blocks(start, end):
            reader = scanner(file, end=last, name=str(self.path))
            sound = True
            for item in walk(reader, first, offset, end_offset=end_offset, deep=True):
                if isinstance(item, Found):
                    continue
                sound = False
                if item.position <= start < item.end:
                    past = max(item.next_offset, first_frame.header.next_offset)
                    raise replace(item, next_offset=past).error(str(self.path))
                if start < item.position and (item.position < end or item.offset < next_offset):
                    return item.position, item.offset
            if sound:
                with self.lock:
                    self._unchecked.discard(block)
        return end, next_offset

    def _unchecked_blocks(self, start: int, end: int) -> list[tuple[int, int, int, int, int]]:
        """Unchecked blocks that [start, end) touches: number, positions and offsets from, to."""
        if not self._unchecked:
            return []
        with self.lock:
            first = self._index.entry_for_position(start)
            last = self._index.entry_for_position(end - 1)
            blocks = []
            for block in range(first, last + 1):
                if block in self._unchecked:
                    after = (self.size, self.end_offset)
                    if block + 1 < len(self._index):
                        after = self._entry(block + 1)
                    position, offset = self._entry(block)
                    blocks.append((block, position, after[0], offset, after[1]))
            return blocks


OPEN_FILES_MAX: Final = 8
"""Sealed segments of one log whose files stay open between reads."""


class SegmentList:
    """Segments of a log. The writer and compaction change it, any thread reads.

    Args:
        segments: Segments in order, the last of them for appends.
        active_file: File of the last one; None: it is opened on first use.

    Attributes:
        lock: Guards changes, and pairs that must fit; held for memory operations only.
        all: Every segment, in order.
    """

    def __init__(self, segments: list[Segment], active_file: File | None) -> None:
        self.lock = threading.Lock()
        self.all = segments
        self._active_file = active_file
        self._recent_files: list[File] = []

    @property
    def active_file(self) -> File:
        """File of the active segment; for its writer.

        Raises:
            OSError: It was not open, and cannot be opened.
        """
        if self._active_file is None:
            self._active_file = self.active.pin()
        return self._active_file

    @property
    def active(self) -> Segment:
        """The segment that takes appends."""
        return self.all[-1]

    def begin(self, segment: Segment, file: File) -> None:
        """The active segment is sealed; another takes appends. The caller holds `lock`."""
        self._keep_open(self.active_file)
        self.all = [*self.all, segment]
        self._active_file = file

    def begin_anew(self, segment: Segment, file: File) -> None:
        """All segments are gone; another is the only one. The caller holds `lock`."""
        self._recent_files.clear()
        self.all = [segment]
        self._active_file = file

    def drop_first(self) -> Segment:
        """Take the oldest segment out."""
        with self.lock:
            oldest, self.all = self.all[0], self.all[1:]
        return oldest

    def drop_last(self) -> Segment:
        """Take the active segment out; the one before it takes appends."""
        with self.lock:
            newest, self.all = self.all[-1], self.all[:-1]
            self._active_file = self.active.pin()
        return newest

    def sealed_run(self, base_offset: int, end_offset: int) -> list[Segment]:
        """The sealed segments that make up a range exactly; empty when none do."""
        run = [
            segment
            for segment in self.all[:-1]
            if base_offset <= segment.base_offset and segment.end_offset <= end_offset
        ]
        fits = run and (run[0].base_offset, run[-1].end_offset) == (base_offset, end_offset)
        return run if fits else []

    def replace(self, run: Sequence[Segment], segment: Segment) -> None:
        """Put one segment in the place of a run of sealed ones, whose files are kept for readers.

        Raises:
            OSError: A file cannot be opened; nothing was changed.
        """
        try:
            files = [replaced.keep() for replaced in run]
        except OSError:
            for replaced in run:
                replaced.release()
            raise
        with self.lock:
            first = self.all.index(run[0])
            self.all = [*self.all[:first], segment, *self.all[first + len(run) :]]
            self._recent_files = [file for file in self._recent_files if file not in files]

    def pinned(self, offset: int, end: int) -> Iterator[tuple[Segment, File]]:
        """Segments with records in [offset, end), in order, each with its file held open.

        Raises:
            RefusedError: `OUT_OF_RANGE`: they have been deleted since.
        """
        segments = self.all
        if offset < segments[0].base_offset:  # deleted since the caller looked
            self.check_range(offset)
        for segment in segments:
            if segment.end_offset <= offset or segment.base_offset >= end:
                continue
            try:
                file = segment.pin()
            except FileNotFoundError:
                self.check_range(segment.base_offset)
                if segment.retired:
                    raise self._out_of_range(segment.base_offset) from None
                raise
            with self.lock:
                if segment in self.all[:-1] and file not in self._recent_files:
                    self._keep_open(file)
            yield segment, file

    def offset_for_timestamp(
        self, timestamp_ns: int, end: int, cipher: SegmentCipher | None
    ) -> int:
        """First offset below `end` whose record is not earlier than a time; `end` if none is."""
        while True:
            segments = self.all
            if all(segment.max_timestamp_ns < timestamp_ns for segment in segments):
                return end  # and no file is opened to see that
            with contextlib.suppress(RefusedError):  # deleted meanwhile: a later start now
                for segment, file in self.pinned(segments[0].base_offset, end):
                    found = segment.offset_for_timestamp(file, timestamp_ns, cipher)
                    if found is not None:
                        return min(found, end)
                return end

    def check_range(self, offset: int) -> None:
        """Make sure that an offset is within the log, or at its end.

        Raises:
            RefusedError: `OUT_OF_RANGE`, with `earliest` and `latest` (exclusive).
        """
        segments = self.all
        if not segments[0].base_offset <= offset <= segments[-1].end_offset:
            raise self._out_of_range(offset)

    def _out_of_range(self, offset: int) -> RefusedError:
        segments = self.all
        earliest, latest = segments[0].base_offset, segments[-1].end_offset
        message = f"offset {offset} is not in {earliest} to {latest}"
        return RefusedError("OUT_OF_RANGE", message, earliest=earliest, latest=latest)

    def _keep_open(self, file: File) -> None:
        """Keep a sealed segment's file open in the oldest's place. The caller holds `lock`."""
        self._recent_files = [*self._recent_files, file][-OPEN_FILES_MAX:]

    def forget_files(self) -> None:
        """Keep no file of a sealed segment open that no reader uses."""
        with self.lock:
            self._recent_files.clear()

    def close_files(self) -> None:
        """Keep no file open that no reader uses: nothing is appended any more.

        A log is in reference cycles, and may be freed much later; a file of it that is deleted
        meanwhile would take its space on the disk until then.
        """
        self.forget_files()
        with self.lock:
            self._active_file = None

"""Writing the segment that is to replace a run of sealed ones.

One thread writes it, beside the log's writer. Nothing of the log is touched before it is whole and
durable and `CommitLog.swap_in` puts it in its place (`penstock.logd.storage.swap`).

Frames that take the place of a damaged range.

A segment with damage in that range is rewritten and then replaces the old one as any rewritten
segment does (`penstock.logd.storage.swap`): a crash on the way leaves the damage, or the frames
that came for it. Every sound frame is copied as it is; what came is cut down to the damage it is
for. Damage that nothing came for is copied with all its bytes.

From the frames of a run of segments to fewer and fuller ones with the same records.

Small neighbouring frames of one leader epoch become one, without the records that are to go. What
stays of a record stays bit for bit: offset, timestamp, subject, key, headers, reply and value. A
frame that is large already and loses nothing is copied as it is, and so is one whose rows cannot be
understood. A frame made of several names no producer: who rewrites has seen to it that producers'
sequences are written down elsewhere (`penstock.logd.partition.rebuild`).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from penstock.base.lazy_module import LazyModule
from penstock.logd.compaction.policy import FrameGroup, is_large
from penstock.logd.encryption.cipher import Encryptor, SegmentCipher, decrypted
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.batch import SCHEMA, SCHEMA_VERSION, decode_body, encode_body
from penstock.logd.format.frame import (
    HEADER_SIZE,
    NO_PRODUCER,
    NO_TIMESTAMP,
    FrameHeader,
    crc32c,
    encode_header,
)
from penstock.logd.limits import FRAME_BYTES_MAX
from penstock.logd.storage.disk import Disk, File
from penstock.logd.storage.index import Claim, SparseIndex
from penstock.logd.storage.scan import ALIGNMENT, Damage, damaged_body, scanner, walk
from penstock.logd.storage.segment import Segment, SegmentList
from penstock.logd.storage.swap import Swap

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

_WRITE_BYTES: Final = 1024 * 1024
"""Bytes gathered before they are written."""

_SYNC_BYTES: Final = 8 * 1024 * 1024
"""Bytes written before they are synced: one large sync would hold up the log's own."""


class SwapCutShortError(OSError):
    """The disk failed while a segment took the place of others: opening the log again goes on."""


class Rewriting:
    """A segment being written for the offsets of a run.

    Args:
        swap: The run, and its file's names.
        changes: Number of the log's truncations when this began.
        interval_bytes: Interval of its index.
        disk: The file system.
        cipher: Cipher of the log; None: it is not encrypted.

    Attributes:
        size: Bytes added.
        next_offset: Offset at which the next frame must begin.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(
        self,
        swap: Swap,
        changes: int,
        *,
        interval_bytes: int,
        disk: Disk,
        cipher: SegmentCipher | None = None,
    ) -> None:
        self.swap = swap
        self.size = 0
        self.next_offset = swap.base_offset
        self.changes = changes
        self._disk = disk
        self._encryptor = None if cipher is None else Encryptor(cipher, swap.base_offset)
        self._index = SparseIndex(interval_bytes)
        self._max_timestamp_ns = NO_TIMESTAMP
        self._damaged = self._skipped = False
        self._file = disk.create(self.swap.temporary_path)
        self._buffers: list[bytes] = []
        self._buffered = self._unsynced = 0

    def add(self, header: FrameHeader, body: bytes) -> None:
        """Add the next frame.

        Raises:
            OSError: The disk failed or is full.
        """
        assert header.base_offset == self.next_offset, (header.base_offset, self.next_offset)
        if self._encryptor is not None:
            header, body = self._encryptor.encrypt(header, body)
        self._index.offer(
            header.base_offset, self.size, self._max_timestamp_ns, force=self._skipped
        )
        self._skipped = False
        self._max_timestamp_ns = max(self._max_timestamp_ns, header.max_timestamp_ns)
        self._put(encode_header(header), body)
        self.next_offset = header.next_offset

    def skip_to(self, offset: int) -> None:
        """Leave a gap, if the next frame is to begin later; the segment counts as damaged then."""
        if offset > self.next_offset:
            self._note_damage()
            self.next_offset = offset

    def keep(self, file: File, position: int, end: int) -> None:
        """Add damaged bytes of the run as they are: [position, end) of a file.

        Raises:
            OSError: The disk failed or is full.
        """
        self._damaged = self._skipped = True
        self._note_damage()
        for begin in range(position, end, _WRITE_BYTES):
            self._put(file.read(begin, min(end - begin, _WRITE_BYTES)))
        self._put(bytes(-self.size % ALIGNMENT))

    def finish(self) -> None:
        """Write and sync what is left: the file is whole and durable then.

        Raises:
            OSError: The disk failed or is full.
        """
        assert self.next_offset == self.swap.end_offset, (self.next_offset, self.swap)
        self._write()
        self._file.sync()

    def take_place(self, segments: SegmentList) -> bool:
        """Replace the run, once finished; False if it is not whole any more.

        No other thread may remove sealed segments meanwhile.

        Raises:
            OSError: The disk failed; nothing was changed.
            SwapCutShortError: It failed later, and nothing must be removed or replaced any more.
        """
        run = segments.sealed_run(self.swap.base_offset, self.swap.end_offset)
        if not run:
            return False
        segment = self._segment()
        segment.written_ns = max(replaced.written_ns for replaced in run)
        try:
            self.swap.publish(self._disk)
            segments.replace(run, segment)
        except OSError:
            self._withdraw()
            raise
        try:
            self.swap.complete(self._disk, [replaced.base_offset for replaced in run])
        except OSError as error:
            raise SwapCutShortError(str(error)) from error
        segment.release()
        with contextlib.suppress(OSError):  # it can be made again from the log
            segment.save_index()
        return True

    def discard(self) -> None:
        """Remove the file; if the disk does not let it, the next opening of the log does."""
        with contextlib.suppress(OSError):
            self._disk.unlink(self.swap.temporary_path)

    def _segment(self) -> Segment:
        claim = Claim(
            base_offset=self.swap.base_offset,
            end_offset=self.swap.end_offset,
            log_size=self.size,
            max_timestamp_ns=self._max_timestamp_ns,
            damaged=self._damaged,
        )
        return Segment.rewritten(
            self.swap.directory, self._index, claim, file=self._file, disk=self._disk
        )

    def _withdraw(self) -> None:
        try:
            self.swap.withdraw(self._disk)
        except OSError as error:
            raise SwapCutShortError(str(error)) from error

    def _note_damage(self) -> None:
        """The next frame gets an index entry; so does the beginning, or damage there was hidden."""
        self._damaged = self._skipped = True
        if not len(self._index):
            self._index.offer(self.swap.base_offset, 0, NO_TIMESTAMP)

    def _put(self, *buffers: bytes) -> None:
        length = sum(map(len, buffers))
        self._buffers += buffers
        self._buffered += length
        self.size += length
        if self._buffered >= _WRITE_BYTES:
            self._write()
        if self._unsynced >= _SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0

    def _write(self) -> None:
        self._file.write(self.size - self._buffered, self._buffers)
        self._unsynced += self._buffered
        self._buffers, self._buffered = [], 0


def trim_frame(
    header: FrameHeader, body: bytes, first: int, upto: int
) -> tuple[FrameHeader, bytes]:  # fmt: skip
    """The frame of those of its records that lie in [first, upto), which it has a part of.

    What stays of a record stays bit for bit. The frame counts as compacted and names no producer:
    it is not the batch any more that its producer sent.

    Raises:
        RefusedError: `UNKNOWN_FORMAT`: its rows cannot be distinguished.
        CorruptError: Its body is no record batch.
    """
    if header.schema_version != SCHEMA_VERSION:
        message = f"a frame of schema version {header.schema_version} cannot be cut down"
        raise RefusedError("UNKNOWN_FORMAT", message, version=header.schema_version)
    first, upto = max(first, header.base_offset), min(upto, header.next_offset)
    assert first < upto, (header, first, upto)
    batch = decode_body(body)
    distance = first - header.base_offset
    deltas = batch.column("offset_delta")
    inside = pc.and_(
        pc.greater_equal(deltas, pa.scalar(distance, pa.int32())),
        pc.less(deltas, pa.scalar(upto - header.base_offset, pa.int32())),
    )
    left = batch.filter(inside)
    moved = pc.subtract(left.column("offset_delta"), pa.scalar(distance, pa.int32()))
    left = pa.RecordBatch.from_arrays([moved, *left.columns[1:]], schema=SCHEMA)
    trimmed = encode_body(left)
    if len(trimmed) > len(body):
        trimmed = min(trimmed, encode_body(left, compression="zstd"), key=len)
    times = left.column("timestamp").cast(pa.int64())
    trimmed_header = replace(
        header,
        base_offset=first,
        record_count=left.num_rows,
        last_offset_delta=upto - first - 1,
        body_length=len(trimmed),
        body_crc=crc32c(trimmed),
        first_timestamp_ns=times[0].as_py() if len(times) else NO_TIMESTAMP,
        max_timestamp_ns=pc.max(times).as_py() if len(times) else NO_TIMESTAMP,
        producer_id=NO_PRODUCER,
        producer_sequence=0,
        compacted=True,
    )
    return trimmed_header, trimmed


Frame = tuple[FrameHeader, bytes]
Range = tuple[int, int]


class Patch:
    """Frames for [first, upto) that fill damage.

    Args:
        first: The first damaged offset.
        upto: Exclusive.
        frames: Checked frames; they tile a range that holds [first, upto).

    Attributes:
        filled: Ranges of the last segment that were damaged and are not any more.
        left: Ranges that still are.
    """

    def __init__(self, first: int, upto: int, frames: Sequence[Frame]) -> None:
        assert all(a.next_offset == b.base_offset for (a, _), (b, _) in pairwise(frames))
        assert frames[0][0].base_offset <= first < upto <= frames[-1][0].next_offset, (first, upto)
        self.first = first
        self.upto = upto
        self.filled: list[Range] = []
        self.left: list[Range] = []
        self._frames = frames

    def concerns(self, segment: Segment) -> bool:
        """Return whether a segment has a part of the range."""
        return segment.base_offset < self.upto and self.first < segment.end_offset

    def rewrite(self, segment: Segment, rewriting: Rewriting, cipher: SegmentCipher | None) -> bool:
        """Copy a sealed segment, its damage in the range filled; whether there was any.

        Args:
            segment: No more is appended to it.
            rewriting: Rewriting of its whole range.
            cipher: Cipher of the log. A frame that cannot be decrypted is damage, too.

        Raises:
            RefusedError: A frame that came reaches over the damage and cannot be cut down.
            CorruptError: Likewise.
            OSError: The disk failed or is full.
        """
        self.filled, self.left = [], []
        file = segment.pin()
        reader = scanner(file, end=segment.size, name=str(segment.path))
        end = segment.end_offset
        for item in walk(reader, 0, segment.base_offset, end_offset=end, deep=True):
            if isinstance(item, Damage):
                self._mend(item, file, rewriting)
                continue
            body = reader.bytes_at(item.position + HEADER_SIZE, item.header.body_length)
            try:
                frame = decrypted(cipher, item.header, body, segment.base_offset)
            except CorruptError as error:
                self._mend(damaged_body(item, error), file, rewriting)
            else:
                rewriting.add(*frame)
        if self.filled:
            rewriting.finish()
        return bool(self.filled)

    def _mend(self, damage: Damage, file: File, rewriting: Rewriting) -> None:
        """Put what came in the place of damage.

        If that is not all of it, its bytes come after the frames: before them, what looks like the
        header of a larger frame would hide them.
        """
        if damage.offset == damage.next_offset:
            return  # bytes between frames that stand for no record
        end = damage.next_offset
        first, upto = max(damage.offset, self.first), min(end, self.upto)
        if first >= upto:
            first = upto = end
        gaps = [(a, b) for a, b in ((damage.offset, first), (upto, end)) if a < b]
        self.left += gaps
        if first < upto:
            self.filled.append((first, upto))
            rewriting.skip_to(first)
            for frame in self._fitting(first, upto):
                rewriting.add(*frame)
        if gaps:
            rewriting.keep(file, damage.position, damage.end)
            rewriting.skip_to(end)

    def _fitting(self, first: int, upto: int) -> Iterator[Frame]:
        for header, body in self._frames:
            if header.next_offset <= first or upto <= header.base_offset:
                continue
            if first <= header.base_offset and header.next_offset <= upto:
                yield header, body
            else:
                yield trim_frame(header, body, first, upto)


Choose = Callable[[FrameHeader, pa.RecordBatch], Sequence[bool] | None]
"""Function that returns which rows of a frame are kept; None: all."""


class _Part(Struct, frozen=True):
    """A frame that goes into a larger one.

    Attributes:
        batch: The rows that are left of it.
        whole: Whether that is all of them.
    """

    header: FrameHeader
    body: bytes
    batch: pa.RecordBatch
    whole: bool


class SegmentMerger:
    """Rewrites the frames of one run, in order. Call `take` for each, then `finish`.

    Args:
        choose: Returns the records to keep.

    Attributes:
        records_removed: Number of records removed so far.
    """

    def __init__(self, choose: Choose | None = None) -> None:
        self.records_removed = 0
        self._choose = choose
        self._parts: list[_Part] = []
        self._group = FrameGroup()
        self._decoded_bytes = 0

    def take(self, header: FrameHeader, body: bytes) -> Iterator[Frame]:
        """Take the next frame; the frames that are ready."""
        part = self._part(header, body)
        if part is None:
            yield from self.finish()
            yield header, body
            return
        size = part.batch.nbytes
        if not self._group.admits(header) or self._decoded_bytes + size > FRAME_BYTES_MAX:
            yield from self.finish()
        self._parts.append(part)
        self._group.add(header)
        self._decoded_bytes += size

    def finish(self) -> Iterator[Frame]:
        """The frame of what has gathered, if anything has."""
        parts, self._parts = self._parts, []
        self._group, self._decoded_bytes = FrameGroup(), 0
        if len(parts) == 1 and parts[0].whole:
            yield parts[0].header, parts[0].body
        elif parts:
            yield _join(parts)

    def _part(self, header: FrameHeader, body: bytes) -> _Part | None:
        """The rows of a frame that stay; None if it is to be copied as it is."""
        if header.schema_version != SCHEMA_VERSION or (self._choose is None and is_large(header)):
            return None
        try:
            batch = decode_body(body)
        except CorruptError:
            return None
        if batch.num_rows != header.record_count:
            return None
        kept = None if self._choose is None else self._choose(header, batch)
        if kept is None or all(kept):
            return None if is_large(header) else _Part(header, body, batch, whole=True)
        self.records_removed += len(kept) - sum(kept)
        left = batch.filter(pa.array(kept, pa.bool_()))
        return _Part(header, body, left, whole=False)


def _join(parts: Sequence[_Part]) -> Frame:
    first, last = parts[0].header, parts[-1].header
    batch = pa.concat_batches([_moved(part, first.base_offset) for part in parts])
    body = encode_body(batch)
    if len(body) > sum(part.header.body_length for part in parts):
        body = min(body, encode_body(batch, compression="zstd"), key=len)
    times = batch.column("timestamp").cast(pa.int64())
    alone = len(parts) == 1
    header = replace(
        first,
        record_count=batch.num_rows,
        last_offset_delta=last.last_offset - first.base_offset,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=times[0].as_py() if len(times) else NO_TIMESTAMP,
        max_timestamp_ns=pc.max(times).as_py() if len(times) else NO_TIMESTAMP,
        producer_id=first.producer_id if alone else NO_PRODUCER,
        producer_sequence=first.producer_sequence if alone else 0,
        compacted=True,
    )
    return header, body


def _moved(part: _Part, base_offset: int) -> pa.RecordBatch:
    """The rows of a frame with offset deltas to another base."""
    distance = pa.scalar(part.header.base_offset - base_offset, pa.int32())
    deltas = pc.add(part.batch.column("offset_delta"), distance)
    return pa.RecordBatch.from_arrays([deltas, *part.batch.columns[1:]], schema=SCHEMA)

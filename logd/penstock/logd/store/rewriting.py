"""Writing the segment that is to replace a run of sealed ones.

One thread writes it, beside the log's writer. Nothing of the log is touched before it is whole and
durable and `CommitLog.swap_in` puts it in its place (`penstock.logd.store.swap`).
"""

import contextlib
from typing import Final

from penstock.logd.frame import NO_TIMESTAMP, FrameHeader, encode_header
from penstock.logd.store.disk import Disk, File
from penstock.logd.store.index import Claim, SparseIndex
from penstock.logd.store.scan import ALIGNMENT
from penstock.logd.store.segment import Segment
from penstock.logd.store.segments import SegmentList
from penstock.logd.store.swap import Swap
from penstock.logd.store.vault import Encryptor, Vault

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
        changes: Of the log, how often it had been cut when this began.
        interval_bytes: Of its index.
        disk: The file system.
        vault: Of the log; None: it is not encrypted.

    Attributes:
        size: Bytes added.
        next_offset: Where the next frame must begin.

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
        vault: Vault | None = None,
    ) -> None:
        self.swap = swap
        self.size = 0
        self.next_offset = swap.base_offset
        self.changes = changes
        self._disk = disk
        self._encryptor = None if vault is None else Encryptor(vault, swap.base_offset)
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

        Nobody else may remove sealed segments meanwhile.

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

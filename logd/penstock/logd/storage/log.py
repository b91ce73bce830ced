"""The commit log: the segments of one partition in one directory.

Thread model. One writer thread at a time calls `append`, `roll`, `truncate_to`, `delete_before` and
`close`; `sync` may run in another thread beside `append`, so that frames gather while a sync runs.
One more thread may rewrite sealed segments beside both: `begin_rewriting`, `swap_in`. Any thread
calls the rest, at any time. Two locks are held for memory operations only, never across a write or
a sync: the list's guards the list of segments and the synced offset, each segment's guards its size
and index. A third keeps those apart who remove sealed segments; no append waits for it.

Durability. `append` reaches the page cache; `sync` makes everything appended before durable. A
segment is synced before the next one's file is made, and a new file's name is durable before
anything is appended to it.

Failure. After a failed write or sync, what was not durable is cut off where the disk allows, every
further append and sync raises `LogFailedError`, and readers see what was synced. A failed sync is
never tried again: the kernel may have dropped the pages and would then report success. Opening the
log again recovers it (`penstock.logd.storage.recovery`).
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from msgspec import Struct

from penstock.base.clock import unix_ns as system_now_ns
from penstock.logd.encryption.cipher import Frame, LogKeySet, SegmentCipher
from penstock.logd.errors import NO_ROOM, NO_SPACE, LogFailedError
from penstock.logd.format.frame import HEADER_SIZE
from penstock.logd.storage.checkpoint import SyncedMark
from penstock.logd.storage.disk import REAL_DISK, Disk, File
from penstock.logd.storage.reader import LogReader
from penstock.logd.storage.recovery import Recovery, RecoveryReport
from penstock.logd.storage.rewrite import Patch, Rewriting, SwapCutShortError
from penstock.logd.storage.segment import Segment, SegmentList, segment_path
from penstock.logd.storage.swap import Reset, Swap

SEGMENT_BYTES_MAX: Final = 1 << 40
INDEX_INTERVAL_BYTES_MAX: Final = 1 << 30


class LogConfig(Struct, frozen=True, kw_only=True):
    """Settings of a log's segments.

    Attributes:
        max_segment_bytes: A segment that would grow beyond is sealed first; one append is never
            split, so a larger one makes a larger segment.
        segment_age_s_max: A segment older than this is sealed before the next append; None: never.
        index_interval_bytes: Log bytes per index entry; also the most a lookup walks.
        index_save_bytes: Log bytes after which the active segment's index is written, once they are
            synced; also the most that is read of it when the log is opened after a kill.

    Raises:
        ValueError: One is out of range.
    """

    max_segment_bytes: int = 256 * 1024 * 1024
    segment_age_s_max: float | None = None
    index_interval_bytes: int = 16 * 1024
    index_save_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check("max_segment_bytes", self.max_segment_bytes, HEADER_SIZE, SEGMENT_BYTES_MAX)
        _check("index_interval_bytes", self.index_interval_bytes, 1, INDEX_INTERVAL_BYTES_MAX)
        _check("index_save_bytes", self.index_save_bytes, 1, SEGMENT_BYTES_MAX)
        if self.segment_age_s_max is not None and not self.segment_age_s_max > 0:
            msg = f"segment_age_s_max is {self.segment_age_s_max}; it must be more than 0, or None"
            raise ValueError(msg)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        msg = f"{name} is {value}; it must be from {low} to {high}"
        raise ValueError(msg)


class CommitLog(LogReader):
    """One partition's log, encrypted if there is a cipher. Made by `open`.

    Attributes:
        disk: The file system.
        recovery: Report of the recovery.
        was_closed: Whether it was closed cleanly before, so that nothing had to be synced.
        out_of_space: It failed for want of space, and not in a sync: it may be opened again.
    """

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        recovery: Recovery,
        disk: Disk,
        now_ns: Callable[[], int],
        cipher: SegmentCipher | None,
    ) -> None:
        super().__init__(directory, SegmentList(*recovery.run()), cipher)
        self._encrypting = LogKeySet(cipher)
        self._config, self._interval_bytes = config, config.index_interval_bytes
        self.disk = disk
        self._now_ns = now_ns
        self.recovery: RecoveryReport = recovery.report
        self.was_closed = recovery.closed
        for damage in recovery.report.damages:
            self.damages.add(damage.offset, damage.next_offset)
        self._removing = threading.Lock()
        self._synced_size = self._active.size
        self._mark, self._marked = SyncedMark(directory, disk, closed=recovery.closed), True
        if not recovery.closed:
            self._mark_synced()
        self._begun_ns = now_ns()
        for segment in self._list.all:
            segment.written_ns = self._begun_ns
        self.out_of_space = self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        disk: Disk = REAL_DISK,
        now_ns: Callable[[], int] = system_now_ns,
        cipher: SegmentCipher | None = None,
    ) -> "CommitLog":
        """Open a log, making or recovering it as needed; everything it holds is then durable.

        Raises:
            CorruptError: Its segments contradict each other.
            RefusedError: `UNKNOWN_FORMAT`: written by a later version.
            OSError: The disk failed.
        """
        recovery = Recovery(directory, interval_bytes=config.index_interval_bytes, disk=disk)
        return cls(directory, config, recovery, disk, now_ns, cipher)

    # The writer's side.

    def append(self, frames: Sequence[Frame]) -> None:
        """Write frames at the end, in one call; they are readable, and durable after `sync`.

        Args:
            frames: Already placed: the first at `end_offset`, each next one where the last ends.

        Raises:
            LogFailedError: Nothing was appended, now or until the log is opened again.
        """
        self._check_writable()
        active = self._active
        length, expected = 0, active.end_offset
        for header, body in frames:
            assert header.base_offset == expected, (header.base_offset, expected)
            assert header.body_length == len(body), (header.body_length, len(body))
            length, expected = length + header.frame_length, header.next_offset
        if self.roll_is_due(length):
            self.roll()
            active = self._active
        size = active.size
        try:
            active.append(self._active_file, self._encrypting.frames(active.base_offset, frames))
        except OSError as error:
            self._fail("append", error, cut_to=size)
        active.written_ns = self._now_ns()

    def sync(self, *, mark: bool = True) -> int:
        """Make everything appended so far durable.

        Args:
            mark: Write the synced mark, too; False: `mark_synced` follows.

        Returns:
            The end offset that is now durable.

        Raises:
            LogFailedError: It is not known what is durable beyond `synced_offset`.
        """
        self._check_writable()
        with self._lock:
            active, file = self._active, self._active_file
        if active.end_offset == self._synced_offset:
            return self._synced_offset
        reached = active.reached(save_bytes=self._config.index_save_bytes)
        try:
            file.sync()
        except OSError as error:
            cut_to = self._synced_size if file is self._active_file else None
            self._fail("sync", error, cut_to=cut_to)
        with self._lock:
            if active is self._active:
                self._synced_offset = max(self._synced_offset, reached.end_offset)
                self._synced_size = max(self._synced_size, reached.size)
        self._marked = False
        if mark:
            self._mark_synced()
        if reached.files is not None:
            with contextlib.suppress(OSError):  # without it, recovery reads more
                active.save_index(reached)
        return reached.end_offset

    def mark_synced(self) -> None:
        """Write the synced mark, unless it says already what is durable."""
        if not self._marked:
            self._mark_synced()

    def roll_is_due(self, length: int) -> bool:
        """Return whether the active segment has to be sealed before an append of `length` bytes."""
        size, age_max = self._active.size, self._config.segment_age_s_max
        too_old = age_max is not None and self._now_ns() - self._begun_ns >= age_max * 1e9
        return size > 0 and (too_old or size + length > self._config.max_segment_bytes)

    def roll(self) -> bool:
        """Seal the active segment and begin the next, if it is not empty and there is room for one.

        Without room (`NO_ROOM`) nothing is lost: the segment stays active, and grows.

        Raises:
            LogFailedError: The log failed; everything synced before stays.
        """
        self._check_writable()
        sealed = self._active
        if sealed.size == 0:
            return False
        self.sync()
        base, interval_bytes = sealed.end_offset, self._interval_bytes
        try:
            sealed.save_index()
            segment, file = Segment.create(
                self.directory, base, interval_bytes=interval_bytes, disk=self.disk
            )
        except OSError as error:
            made = self.disk.exists(segment_path(self.directory, base))
            if made or error.errno not in NO_ROOM:
                self._fail("roll", error, cut_to=sealed.size)
            return False
        with self._lock:
            self._list.begin(segment, file)
            self._synced_size = 0
        self._begun_ns = self._now_ns()
        return True

    def truncate_to(self, offset: int) -> None:
        """Remove every frame that holds records at or above an offset; durable on return.

        Raises:
            RefusedError: `OUT_OF_RANGE`: below the first offset that is kept.
            LogFailedError: The disk failed on the way; opening the log again recovers.
        """
        self._check_writable()
        self._check_range(offset)
        if offset == self.end_offset:
            return
        try:
            with self._removing, self._changing():
                self._mark.lower()
                self._remove_above(offset)
        except OSError as error:
            self._fail("truncate", error, cut_to=None)
        self.damages.cut(self.end_offset)

    def reset(self, start: int) -> None:
        """Remove everything, the epochs and the dedup state included.

        The log is empty then and begins at `start`; durable on return.

        Raises:
            LogFailedError: The disk failed on the way; opening the log again shows it as it was, or
                reset.
        """
        self._check_writable()
        reset, interval_bytes = Reset(self.directory, start), self._interval_bytes
        try:
            with self._removing, self._changing():
                reset.publish(self.disk)
                for segment in self._list.all:
                    segment.retired = True
                self._mark.close()
                made = reset.complete(self.disk, interval_bytes=interval_bytes)
                with self._lock:
                    self._list.begin_anew(*made)
                    self._synced_offset, self._synced_size = start, 0
                self._mark = SyncedMark(self.directory, self.disk)
        except OSError as error:
            self._fail("reset", error, cut_to=None)
        self.damages.cut(0)
        self._mark_synced()
        self._begun_ns = self._now_ns()

    def delete_before(self, offset: int) -> int:
        """Remove whole sealed segments that end at or below an offset; durable on return.

        Returns:
            The new start offset.

        Raises:
            LogFailedError: The disk failed on the way; opening the log again recovers.
        """
        with self._removing:
            self._check_writable()  # compaction may have failed half way meanwhile
            while self.segment_count > 1 and self._list.all[0].end_offset <= offset:
                try:
                    self._list.drop_first().unlink()
                except OSError as error:
                    self._fail("delete", error, cut_to=None)
        return self.start_offset

    def begin_rewriting(self, base_offset: int, end_offset: int) -> Rewriting:
        """Begin a segment that is to replace the sealed ones of a range.

        Raises:
            OSError: The disk failed or is full; the log goes on.
        """
        interval_bytes, disk, cipher = self._interval_bytes, self.disk, self.cipher
        swap = Swap(self.directory, base_offset, end_offset)
        return Rewriting(
            swap, self._changes, interval_bytes=interval_bytes, disk=disk, cipher=cipher
        )

    def swap_in(self, rewriting: Rewriting) -> bool:
        """Put a finished rewriting in the place of the segments it was made from; durable then.

        Returns:
            Whether it was; False if they are not all there any more, or if the log was cut
            meanwhile. Then nothing was changed.

        Raises:
            OSError: The disk failed; the log is as it was, and goes on.
            LogFailedError: It failed half way; opening the log again completes it.
        """
        with self._removing:
            return self._swap_in(rewriting)

    def patch(self, first: int, upto: int, frames: Sequence[Frame]) -> bool:
        """Put frames in the place of the damage in [first, upto); durable on return.

        Other frames stay as they are. The active segment is sealed if it is damaged there.

        Args:
            first: The first damaged offset.
            upto: Exclusive.
            frames: Checked; they tile a range that holds [first, upto) and may reach beyond.

        Returns:
            Whether no damage is known in the range any more.

        Raises:
            RefusedError, CorruptError: A frame that reaches over the damage cannot be cut down.
            OSError: The disk failed; some of it may be mended, and the log goes on.
            LogFailedError: It failed half way; opening the log again completes it.
        """
        patch = Patch(first, upto, frames)
        self._check_writable()
        if self.damages.within(max(first, self._active.base_offset), upto):
            self.roll()
        with self._removing:
            self._check_writable()
            for segment in self._list.all[:-1]:
                if patch.concerns(segment):
                    self._mend(segment, patch)
        return not self.damages.within(first, upto)

    def close(self) -> None:
        """Sync, and save the index so that the next opening is quick.

        Reading goes on to work; files close when no reader refers to ranges of the log.

        Raises:
            LogFailedError: The last sync failed; the log is closed all the same.
        """
        if self._closed:
            return
        try:
            if not self._failure:
                self.sync()
                if not self._active.index_saved:
                    self._active.save_index()
                if not self._mark.closed:
                    self._mark_synced(closed=True)
        except OSError as error:
            self._fail("close", error, cut_to=None)
        finally:
            self._closed = True
            self._list.close_files()
            self._mark.close()

    # Parts.

    @property
    def _active(self) -> Segment:
        return self._list.all[-1]

    @property
    def _active_file(self) -> File:
        return self._list.active_file

    def _swap_in(self, rewriting: Rewriting) -> bool:
        self._check_writable()
        if rewriting.changes != self._changes:
            return False  # there may be other records at the same offsets by now
        try:
            return rewriting.take_place(self._list)
        except SwapCutShortError as error:
            self._fail("swap", error, cut_to=None)

    def _mend(self, segment: Segment, patch: Patch) -> None:
        """Rewrite a sealed segment with what came; no other thread removes segments meanwhile."""
        base, end = segment.base_offset, segment.end_offset
        rewriting, mended = self.begin_rewriting(base, end), False
        try:
            mended = patch.rewrite(segment, rewriting, self.cipher) and self._swap_in(rewriting)
        finally:
            if not mended:
                rewriting.discard()
        with self._changing():  # who has seen the damage before this must not tell of it after
            self.damages.remove(max(base, patch.first), min(end, patch.upto))
        for left in patch.left:
            self.damages.add(*left)

    def _check_writable(self) -> None:
        if self._failure or self._closed:
            reason = self._failure or "it is closed"
            raise LogFailedError(f"{self.directory}: the log takes no writes: {reason}")

    def _fail(self, operation: str, error: OSError, *, cut_to: int | None) -> NoReturn:
        """Refuse writes from now on; cut off what must not come back when opened again."""
        self._failure = f"{operation} failed: {error}"
        # Of the others each one's doc says that opening the log again goes on.
        self.out_of_space = operation not in ("sync", "close") and error.errno in NO_SPACE
        if self._mark.closed:
            self._mark_synced()
        if cut_to is not None:
            with contextlib.suppress(OSError):  # opening the log again cuts it too
                self._active_file.truncate(cut_to)
        raise LogFailedError(f"{self.directory}: {self._failure}") from error

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Something is removed that was not deleted from the front: see `_note` and `swap_in`.

        Counted before and after, so that a reader that begins meanwhile has another count, too.
        """
        self._changes += 1
        try:
            yield
        finally:
            self._changes += 1

    def _remove_above(self, offset: int) -> None:
        while self.segment_count > 1 and self._active.base_offset >= offset:
            self._list.drop_last().unlink()
        active = self._active
        if active.end_offset > offset:
            active.cut(self._active_file, offset)
        with self._lock:
            self._synced_offset, self._synced_size = active.end_offset, active.size
        self._mark_synced()

    def _mark_synced(self, *, closed: bool = False) -> None:
        """Write the synced mark; without it recovery only knows less."""
        base, end, size = self._active.base_offset, self._synced_offset, self._synced_size
        self._marked = True
        with contextlib.suppress(OSError):
            self._mark.write(base, end, size, closed=closed)

"""The segments of one log, in order, and which of their files stay open.

The list itself is never changed in place: whoever took it goes on with what it was. A segment that
leaves it keeps what its readers need: one that was deleted, the files they hold; one that was
replaced by compaction, its file as well, so that a reader sees the old segments or the new one,
never a file of one with the index of the other.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.logd.errors import RefusedError
from penstock.logd.store.disk import File
from penstock.logd.store.segment import Segment
from penstock.logd.store.vault import Vault

OPEN_FILES_MAX: Final = 8
"""Sealed segments of one log whose files stay open between reads."""


class SegmentList:
    """What there is of a log. The writer and compaction change it, any thread reads.

    Args:
        segments: In order, the last of them for appends.
        active_file: Of the last one.

    Attributes:
        lock: Guards changes, and pairs that must fit; held for memory operations only.
        all: Every segment, in order.
    """

    def __init__(self, segments: list[Segment], active_file: File) -> None:
        self.lock = threading.Lock()
        self.all = segments
        self._active_file: File | None = active_file
        self._recent_files: deque[File] = deque(maxlen=OPEN_FILES_MAX)

    @property
    def active_file(self) -> File:
        """Of the active segment; until `close_files`."""
        assert self._active_file is not None, "the log is closed"
        return self._active_file

    @property
    def active(self) -> Segment:
        """The segment that takes appends."""
        return self.all[-1]

    def begin(self, segment: Segment, file: File) -> None:
        """The active segment is sealed; another takes appends. The caller holds `lock`."""
        self._recent_files.append(self.active_file)
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
            left = (file for file in self._recent_files if file not in files)
            self._recent_files = deque(left, maxlen=OPEN_FILES_MAX)

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
                    self._recent_files.append(file)
            yield segment, file

    def offset_for_timestamp(self, timestamp_ns: int, end: int, vault: Vault | None) -> int:
        """First offset below `end` whose record is not earlier than a time; `end` if none is."""
        while True:
            with contextlib.suppress(RefusedError):  # deleted meanwhile: a later start now
                for segment, file in self.pinned(self.all[0].base_offset, end):
                    found = segment.offset_for_timestamp(file, timestamp_ns, vault)
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

    def forget_files(self) -> None:
        """Keep no file of a sealed segment open that nobody reads."""
        with self.lock:
            self._recent_files.clear()

    def close_files(self) -> None:
        """Keep no file open that nobody reads: nothing is appended any more.

        A log is in reference cycles, and may be freed much later; a file of it that is deleted
        meanwhile would take its space on the disk until then.
        """
        self.forget_files()
        with self.lock:
            self._active_file = None

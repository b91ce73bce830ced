"""Rewriting a run of a log's sealed segments: from its frames to the segment that replaces it."""

from dataclasses import dataclass, fields
from typing import Final

import structlog

from penstock.logd.core.compaction import Run
from penstock.logd.errors import RefusedError
from penstock.logd.pace import Pace
from penstock.logd.store import CommitLog, CorruptFrameError, Repacker, Rewriting
from penstock.logd.store.repacker import Choose

FREE_BYTES_MIN: Final = 64 * 1024 * 1024
"""Bytes of the file system that rewriting leaves free, for what publishers send meanwhile."""

_log = structlog.get_logger()


@dataclass(slots=True)
class CompactionCounts:
    """What compaction did to a log since the start.

    Attributes:
        records_removed: Superseded records and old tombstones.
        bytes_freed: Of log files: what they have become smaller.
        segments_replaced: Segments whose place others took.
        failures: Rewritings that the disk failed.
        bytes_read: Of sealed segments; so the next one.
        bytes_written: Of those that replace them.
        passes: Over the keys, each to its end.
        last_ns: Unix time when a segment was last replaced or a pass ended; 0: never.
        last_duration_ns: Of what was done then.
        problem: Why the last attempt failed; empty after one that did not.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    bytes_freed: int = 0
    records_removed: int = 0
    segments_replaced: int = 0
    passes: int = 0
    failures: int = 0
    last_ns: int = 0
    last_duration_ns: int = 0
    problem: str = ""

    def count_on(self, before: "CompactionCounts") -> None:
        """Go on with those of before the log was opened again."""
        for field in fields(self):
            if field.name not in ("last_ns", "last_duration_ns", "problem"):
                total = getattr(self, field.name) + getattr(before, field.name)
                setattr(self, field.name, total)
        self.last_ns, self.last_duration_ns = before.last_ns, before.last_duration_ns


class Rewriter:
    """Rewrites runs of one log.

    Args:
        log: Nobody else rewrites its segments.
        stream: Its name, for what is logged.
        counts: To count in.

    Attributes:
        unsound: Base offsets of segments found damaged on the way; they are left alone.
    """

    def __init__(self, log: CommitLog, stream: str, counts: CompactionCounts) -> None:
        self.unsound: set[int] = set()
        self.counts = counts
        self._log = log
        self._stream = stream

    def rewrite(self, run: Run, choose: Choose | None, pace: Pace) -> bool:
        """Put one segment in the place of a run; whether it was done.

        Args:
            run: Sealed segments.
            choose: Which records stay; None: all.
            pace: To work at.

        Raises:
            StoppedError: Nothing was changed.
            OSError: The disk failed or is too full; nothing was changed.
            LogFailedError: The log failed.
        """
        replaced = [
            facts
            for facts in self._log.segments()
            if run.base_offset <= facts.base_offset < run.end_offset
        ]
        size_before = sum(facts.size_bytes for facts in replaced)
        check_room(self._log, run.base_offset, run.end_offset)
        rewriting = self._log.begin_rewriting(run.base_offset, run.end_offset)
        swapped = False
        try:
            removed = self._copy(run, choose, rewriting, pace)
            rewriting.finish()
            pace.wrote(0)
            swapped = self._log.swap_in(rewriting)
        except CorruptFrameError as error:
            self.found_damage(error, run)
            return False
        except RefusedError:  # deleted by retention meanwhile
            return False
        finally:
            if not swapped:
                rewriting.discard()
        if swapped:
            self._count(run, size_before - rewriting.size, removed, len(replaced))
        return swapped

    def found_damage(self, error: CorruptFrameError, run: Run) -> None:
        """Leave the damaged segment of a run alone from now on."""
        bases = [
            facts.base_offset
            for facts in self._log.segments()
            if run.base_offset <= facts.base_offset <= error.offset < facts.next_offset
        ]
        self.unsound.update(bases or [run.base_offset])
        _log.error("damaged segment is not compacted", stream=self._stream, error=str(error))

    def _copy(self, run: Run, choose: Choose | None, rewriting: Rewriting, pace: Pace) -> int:
        repacker = Repacker(choose)
        for header, body in self._log.frames(run.base_offset, upto=run.end_offset):
            for frame in repacker.take(header, body):
                rewriting.add(*frame)
                pace.wrote(frame[0].frame_length)
            pace.read(header.frame_length)
        for frame in repacker.finish():
            rewriting.add(*frame)
            pace.wrote(frame[0].frame_length)
        return repacker.records_removed

    def _count(self, run: Run, freed: int, removed: int, replaced: int) -> None:
        self.counts.bytes_freed += freed
        self.counts.records_removed += removed
        self.counts.segments_replaced += replaced
        _log.info(
            "segments rewritten",
            stream=self._stream,
            base_offset=run.base_offset,
            end_offset=run.end_offset,
            segments=replaced,
            records_removed=removed,
            bytes_freed=freed,
        )


def check_room(log: CommitLog, first: int, upto: int) -> None:
    """Make sure that the segments that hold [first, upto) may be there twice for a while.

    Raises:
        OSError: There is too little room.
    """
    sizes = [s.size_bytes for s in log.segments() if s.base_offset < upto and first < s.next_offset]
    free, wanted = log.disk.available_bytes(log.directory), sum(sizes) + FREE_BYTES_MIN
    if free < wanted:
        message = f"{log.directory}: {free} bytes are free, rewriting wants {wanted}"
        raise OSError(message)

"""A pass over the keys of a log, at a bounded pace: of each key, only the last record stays.

The pass and its rules are described in `penstock.logd.compaction.policy`. How far it got, and when
tombstones were first seen, is written down in the checkpoint `compaction` beside the segments once
the pass is through. Without that file everything counts as dirty and every tombstone as never seen:
that costs work and keeps tombstones longer, and nothing else.

Damaged segments stay as they are, and so do all tombstones above the first of them: the records
that they remove may lie in the damage, and be read again when it is repaired.

The pace of background work: so many bytes a second, half of the time, until it is stopped.

Working code calls a `Pace` after each piece, of some milliseconds at the longest. The thread then
waits as long as the rate demands; and for as long as it has worked, so that the interpreter's lock
is free half of the time for those who serve publishers and readers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import structlog

from penstock.base.clock import Clock
from penstock.base.lazy_module import LazyModule
from penstock.logd.compaction.policy import CleanState, KeyMap, SegmentRun, cleaning_is_due
from penstock.logd.errors import CorruptError, CorruptFrameError, LogdError, RefusedError
from penstock.logd.format.batch import SCHEMA_VERSION, decode_body
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.segment_facts import SegmentFacts
from penstock.logd.storage import Checkpoint, CommitLog, Rewriting, SegmentMerger
from penstock.logd.storage.rewrite import Choose

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

_NS_PER_S: Final = 1_000_000_000
_WORK_NS: Final = 4_000_000
"""Nanoseconds of work before a pause: less than publishers notice, more than a pause costs."""


class StoppedError(Exception):
    """The work is to end now; what it began is thrown away."""


class Pace:
    """Holds one thread's work to a rate.

    Args:
        bytes_per_s_max: Read and written.
        clock: Clock of the rate.
        wait: Waits so many seconds, or less.
        stopped: Whether to end.

    Attributes:
        bytes_read: Since the start; so the next one.
        bytes_written: Bytes reported by `wrote`.
    """

    def __init__(
        self,
        bytes_per_s_max: int,
        clock: Clock,
        *,
        wait: Callable[[float], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self._rate = bytes_per_s_max
        self._clock = clock
        self._wait = wait
        self._stopped = stopped
        self._working_since_ns = clock.monotonic_ns()
        self._free_ns = 0

    def read(self, length: int) -> None:
        """Count bytes that were read, and pace them.

        Raises:
            StoppedError: The compaction must end now.
        """
        self.bytes_read += length
        self._spend(length)

    def wrote(self, length: int) -> None:
        """Count bytes that were written, and pace them.

        Raises:
            StoppedError: The compaction must end now.
        """
        self.bytes_written += length
        self._spend(length)

    def _spend(self, length: int) -> None:
        now_ns = self._clock.monotonic_ns()
        self._free_ns = max(self._free_ns, now_ns) + length * _NS_PER_S // self._rate
        worked_ns = now_ns - self._working_since_ns
        if worked_ns >= _WORK_NS or self._free_ns - now_ns >= _WORK_NS:
            self._pause_until(max(self._free_ns, now_ns + worked_ns))
        if self._stopped():
            raise StoppedError

    def _pause_until(self, end_ns: int) -> None:
        while (now_ns := self._clock.monotonic_ns()) < end_ns and not self._stopped():
            self._wait((end_ns - now_ns) / _NS_PER_S)
        self._working_since_ns = self._clock.monotonic_ns()


FREE_BYTES_MIN: Final = 64 * 1024 * 1024
"""Bytes of the file system that rewriting leaves free, for what publishers send meanwhile."""

_log = structlog.get_logger()


@dataclass(slots=True)
class CompactionCounts:
    """Counters of a log's compaction since the start.

    Attributes:
        records_removed: Superseded records and old tombstones.
        bytes_freed: Bytes by which log files have shrunk.
        segments_replaced: Segments that others replaced.
        failures: Rewrites that failed on the disk.
        bytes_read: Bytes read of sealed segments.
        bytes_written: Bytes of the segments that replace them.
        passes: Complete passes over the keys.
        last_ns: Unix time when a segment was last replaced or a pass ended; 0: never.
        last_duration_ns: Duration of that rewrite or pass.
        problem: Why the last attempt failed; empty after a success.
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
        log: No other thread rewrites its segments.
        stream: Its name, for what is logged.
        counts: Counters to increment.

    Attributes:
        unsound: Base offsets of segments found damaged on the way; they are left alone.
    """

    def __init__(self, log: CommitLog, stream: str, counts: CompactionCounts) -> None:
        self.unsound: set[int] = set()
        self.counts = counts
        self._log = log
        self._stream = stream

    def rewrite(self, run: SegmentRun, choose: Choose | None, pace: Pace) -> bool:
        """Put one segment in the place of a run; whether it was done.

        Args:
            run: Sealed segments.
            choose: Returns the records to keep; None: all.
            pace: Rate limiter.

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

    def found_damage(self, error: CorruptFrameError, run: SegmentRun) -> None:
        """Leave the damaged segment of a run alone from now on."""
        bases = [
            facts.base_offset
            for facts in self._log.segments()
            if run.base_offset <= facts.base_offset <= error.offset < facts.next_offset
        ]
        self.unsound.update(bases or [run.base_offset])
        _log.error("compaction_segment_skipped", stream=self._stream, error=str(error))

    def _copy(
        self, run: SegmentRun, choose: Choose | None, rewriting: Rewriting, pace: Pace
    ) -> int:
        merger = SegmentMerger(choose)
        for header, body in self._log.frames(run.base_offset, upto=run.end_offset):
            for frame in merger.take(header, body):
                rewriting.add(*frame)
                pace.wrote(frame[0].frame_length)
            pace.read(header.frame_length)
        for frame in merger.finish():
            rewriting.add(*frame)
            pace.wrote(frame[0].frame_length)
        return merger.records_removed

    def _count(self, run: SegmentRun, freed: int, removed: int, replaced: int) -> None:
        self.counts.bytes_freed += freed
        self.counts.records_removed += removed
        self.counts.segments_replaced += replaced
        _log.info(
            "segments_rewritten",
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


FILE_NAME: Final = "compaction"


class Cleaner:
    """Cleans one log, on the compactor's thread.

    Args:
        log: Log of a stream with `compact`.
        rewriter: Rewriter of the same log.
        memory_bytes: Memory bytes for the keys of a pass.
        dirty_ratio: Share of bytes that is dirty when a pass is due.
        tombstone_retention_s: Seconds that a tombstone stays.
        clock: Clock of tombstones' age.
    """

    def __init__(
        self,
        log: CommitLog,
        rewriter: Rewriter,
        *,
        memory_bytes: int,
        dirty_ratio: float,
        tombstone_retention_s: int,
        clock: Clock,
    ) -> None:
        self._log = log
        self._rewriter = rewriter
        self._memory_bytes = memory_bytes
        self._dirty_ratio = dirty_ratio
        self._retention_s = tombstone_retention_s
        self._clock = clock
        self._state: CleanState | None = None
        self._cut_short = False

    @property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self._log.directory / FILE_NAME, disk=self._log.disk)

    def is_unsound(self, facts: SegmentFacts) -> bool:
        return facts.damaged or facts.base_offset in self._rewriter.unsound

    def is_due(self, segments: Sequence[SegmentFacts]) -> bool:
        """Return whether a pass over these sealed segments is worth its cost."""
        return self._cut_short or cleaning_is_due(
            self._load(segments),
            segments,
            dirty_ratio=self._dirty_ratio,
            tombstone_retention_s=self._retention_s,
            now_ns=self._clock.unix_ns(),
        )

    def run(self, segments: Sequence[SegmentFacts], pace: Pace) -> None:
        """Make a pass over sealed and committed segments; another is due if memory cut it short.

        Raises:
            StoppedError: Some segments may be done; the next pass begins again.
            OSError: The disk failed or is too full; likewise.
            LogFailedError: The log failed.
        """
        now_ns = self._clock.unix_ns()
        state = self._load(segments)
        limit = state.tombstone_limit(self._retention_s, now_ns)
        keys = KeyMap(state.clean_offset, bytes_max=self._memory_bytes)
        self._note_keys(keys, segments[-1].next_offset, pace)
        sound = True
        for facts in segments:
            if facts.base_offset >= keys.end_offset:
                break
            run = SegmentRun(facts.base_offset, facts.next_offset)
            choose = _chooser(keys, limit if sound else 0)
            if not self.is_unsound(facts) and self._loses_records(run, choose, pace):
                self._rewriter.rewrite(run, choose, pace)
            if self.is_unsound(facts):
                sound = False
        self._save(
            state.after_pass(
                keys.end_offset, tombstones=keys.tombstones, limit=limit, now_ns=now_ns
            )
        )
        self._cut_short = keys.end_offset < segments[-1].next_offset
        self._rewriter.counts.passes += 1

    def _note_keys(self, keys: KeyMap, end_offset: int, pace: Pace) -> None:
        """Read the dirty part, as far as memory allows; damage is skipped."""
        while keys.end_offset < end_offset and not keys.is_full():
            try:
                for header, batch in self._batches(keys.end_offset, end_offset, pace):
                    if batch is None:
                        keys.note((), (), header.next_offset)
                        continue
                    column = batch.column("key")
                    tombstones = pc.and_(column.is_valid(), batch.column("value").is_null())
                    keys.tombstones |= bool(pc.any(tombstones, min_count=0).as_py())
                    keys.note(column.to_pylist(), _offsets(header, batch), header.next_offset)
                    if keys.is_full():
                        return
            except CorruptFrameError as error:
                keys.note((), (), max(error.next_offset, keys.end_offset + 1))
            except RefusedError:  # retention deleted where it was read
                if self._log.start_offset <= keys.end_offset:
                    raise
                keys.note((), (), self._log.start_offset)

    def _loses_records(self, run: SegmentRun, choose: Choose, pace: Pace) -> bool:
        """Return whether a pass removes records of a segment, which is read to its end."""
        loses = False
        try:
            for header, batch in self._batches(run.base_offset, run.end_offset, pace):
                kept = None if batch is None or loses else choose(header, batch)
                loses = loses or (kept is not None and not all(kept))
        except CorruptFrameError as error:
            self._rewriter.found_damage(error, run)
            return False
        except RefusedError:  # deleted meanwhile
            return False
        return loses

    def _batches(
        self, start: int, end: int, pace: Pace
    ) -> Iterator[tuple[FrameHeader, pa.RecordBatch | None]]:
        """Frames with their rows; None where they cannot be understood."""
        for header, body in self._log.frames(start, upto=end):
            batch = None
            if header.schema_version == SCHEMA_VERSION:
                try:
                    batch = decode_body(body)
                except CorruptError:  # copied as it is, as a frame of another schema is
                    batch = None
            yield header, batch
            pace.read(header.frame_length)

    def _load(self, segments: Sequence[SegmentFacts]) -> CleanState:
        if self._state is None:
            self._state = CleanState()
            try:
                document = self._checkpoint.load()
                if document is not None:
                    self._state = CleanState.restore(document)
            except (LogdError, KeyError, TypeError, ValueError) as error:
                _log.warning("compaction_checkpoint_unreadable", file=FILE_NAME, error=str(error))
        return self._state.within(segments[0].base_offset, segments[-1].next_offset)

    def _save(self, state: CleanState) -> None:
        self._checkpoint.save(state.document())
        self._state = state


def _chooser(keys: KeyMap, tombstone_limit: int) -> Choose:
    """Keep what no later record of its key supersedes, but for tombstones below a limit."""

    def choose(header: FrameHeader, batch: pa.RecordBatch) -> list[bool] | None:
        column = batch.column("key")
        if column.null_count == batch.num_rows:
            return None
        dead = batch.column("value").is_null().to_pylist()
        return [
            not (
                keys.is_superseded(key, offset)
                or (tombstone and key is not None and offset < tombstone_limit)
            )
            for key, offset, tombstone in zip(
                column.to_pylist(), _offsets(header, batch), dead, strict=True
            )
        ]

    return choose


def _offsets(header: FrameHeader, batch: pa.RecordBatch) -> list[int]:
    base = header.base_offset
    return [base + delta for delta in batch.column("offset_delta").to_pylist()]

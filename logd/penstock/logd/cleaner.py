"""A pass over the keys of a log: of each key, only the last record stays.

The pass and its rules are described in `penstock.logd.core.compaction`. How far it got, and when
tombstones were first seen, is written down in the checkpoint `compaction` beside the segments once
the pass is through. Without that file everything counts as dirty and every tombstone as never seen:
that costs work and keeps tombstones longer, and nothing else.

Damaged segments stay as they are, and so do all tombstones above the first of them: the records
that they remove may lie in the damage, and be read again when it is repaired.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from penstock.base.clock import Clock
from penstock.logd.batch import SCHEMA_VERSION, decode_body
from penstock.logd.core.compaction import CleanState, KeyMap, Run, cleaning_is_due
from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.frame import FrameHeader
from penstock.logd.pace import Pace
from penstock.logd.rewriter import Rewriter
from penstock.logd.segment_facts import SegmentFacts
from penstock.logd.store import Checkpoint, CommitLog, CorruptFrameError
from penstock.logd.store.repacker import Choose

FILE_NAME: Final = "compaction"

_log = structlog.get_logger()


class Cleaner:
    """Cleans one log, on the compactor's thread.

    Args:
        log: Of a stream with `compact`.
        rewriter: Of the same log.
        memory_bytes: For the keys of a pass.
        dirty_ratio: Share of bytes that is dirty when a pass is due.
        tombstone_retention_s: Seconds that a tombstone stays.
        clock: For that.
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
        self._checkpoint = Checkpoint(log.directory / FILE_NAME, disk=log.disk)
        self._state: CleanState | None = None
        self._cut_short = False

    def is_unsound(self, facts: SegmentFacts) -> bool:
        """Whether a segment is known to be damaged."""
        return facts.damaged or facts.base_offset in self._rewriter.unsound

    def is_due(self, segments: Sequence[SegmentFacts]) -> bool:
        """Whether a pass over these sealed segments is worth its while."""
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
            run = Run(facts.base_offset, facts.next_offset)
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
        """Read the dirty part, as far as memory allows; damage is passed over."""
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

    def _loses_records(self, run: Run, choose: Choose, pace: Pace) -> bool:
        """Whether a pass takes records out of a segment, all of which is read."""
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
                _log.warning("compaction begins again", file=FILE_NAME, error=str(error))
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

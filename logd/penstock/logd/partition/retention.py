"""Carries out a stream's retention, a small step at a time, between two turns of its log writer.

A step deletes one segment, or seals one, so that no publisher waits for more than that. Before
anything is deleted, the intake's dedup state of it (`penstock.logd.partition.rebuild`) has been
written down as of a later offset: producers' sequences and message ids outlive the records that
carried them.
"""

from collections.abc import Callable
from typing import Final

import structlog

from penstock.base.clock import Clock
from penstock.logd.format.segment_facts import SegmentFacts
from penstock.logd.limits import RETENTION_SEGMENTS_PER_S_MAX
from penstock.logd.metadata.retention_policy import DeleteBefore, Seal, decide
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.storage import CommitLog

_NS_PER_S: Final = 1_000_000_000
_PAUSE_NS: Final = _NS_PER_S // RETENTION_SEGMENTS_PER_S_MAX
_log = structlog.get_logger()


class RetentionTask:
    """Looks at a log every `interval_s` and whenever a segment was sealed.

    Args:
        log: Log whose writer calls `step`.
        config: Configuration of the stream.
        interval_s: Seconds between looks.
        high_watermark: Returns the high watermark.
        clock: Clock of the interval, and of the records' age.

    Attributes:
        leading: Whether it decides what is deleted. A follower's leaves that to its leader's.
        records_deleted: Since the start; so the next two.
        bytes_deleted: Bytes of deleted log files.
        segments_deleted: Segments.
    """

    def __init__(
        self,
        log: CommitLog,
        config: StreamConfig,
        *,
        interval_s: float,
        high_watermark: Callable[[], int],
        clock: Clock,
    ) -> None:
        self.leading = True
        self.records_deleted = 0
        self.bytes_deleted = 0
        self.segments_deleted = 0
        self._log = log
        self._stream = config.name
        self._retention, self._deletes = config.deleting, config.deleting.deletes
        self._interval_ns = int(interval_s * _NS_PER_S)
        self._high_watermark = high_watermark
        self._clock = clock
        self._due_ns = clock.monotonic_ns()
        self._segments_seen = log.segment_count
        self._doomed: list[SegmentFacts] = []  # a deque takes 760 bytes, in each idle stream
        self._snapshot_offset = 0
        self._goal = 0
        self._purge = 0
        self._unsealed = False  # what is purged waits for room for the next segment

    def due_ns(self) -> int | None:
        """Return when work may be due, monotonic; None: never."""
        planned = self._doomed and (self._goal or self._purge)
        return self._due_ns if self._decides or planned or self._unsealed else None

    def step(self) -> bool:
        """Do what is due; call often.

        Returns:
            Whether nothing can be deleted before the intake's dedup state is written down.

        Raises:
            LogFailedError: The disk failed; the log takes no more writes.
        """
        if not self._goal and not self._purge and not self._decides:
            return False
        now_ns = self._clock.monotonic_ns()
        if not self._doomed and self._log.segment_count != self._segments_seen:
            self._due_ns = now_ns
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + self._interval_ns
        if not self._doomed:
            self._plan(now_ns)
        if not self._doomed:
            return False
        if self._doomed[-1].next_offset > self._snapshot_offset:
            return True
        self._delete(self._doomed.pop(0))
        self._due_ns = now_ns + _PAUSE_NS
        return False

    def snapshot_saved(self, offset: int) -> None:
        """Note that the producer state of everything below `offset` is on disk."""
        self._snapshot_offset = offset
        if self._doomed:
            self._due_ns = self._clock.monotonic_ns()

    def delete_before(self, offset: int) -> None:
        """Delete whole sealed segments that end at or below an offset, as the leader has done."""
        self._goal = max(self._goal, offset)
        if not self._doomed:
            self._due_ns = self._clock.monotonic_ns()

    def purge_before(self, offset: int) -> None:
        """Delete whatever ends at or below an offset, the active segment too; all is committed."""
        self._purge = max(self._purge, offset)
        if not self._doomed:
            self._due_ns = self._clock.monotonic_ns()

    def was_cut(self) -> None:
        """The log was truncated or reset: what was planned is of records that may be gone."""
        end = self._log.end_offset
        self._doomed.clear()
        self._unsealed = False
        self._goal = min(self._goal, end)
        self._purge = min(self._purge, end)
        if self._snapshot_offset > end:
            self._snapshot_offset = 0  # the file speaks of what is gone, and is removed

    def count_on(self, before: "RetentionTask") -> None:
        """Go on with the counts of the one that this one takes the place of."""
        self.records_deleted += before.records_deleted
        self.bytes_deleted += before.bytes_deleted
        self.segments_deleted += before.segments_deleted

    @property
    def _decides(self) -> bool:
        return self.leading and self._deletes

    def _plan(self, now_ns: int) -> None:
        segments = self._log.segments()
        active = segments[-1]
        self._unsealed = active.size_bytes > 0 and active.next_offset <= self._purge
        if self._unsealed and self._log.roll():  # else it is tried again in an interval
            self._unsealed, segments = False, self._log.segments()
        self._segments_seen = len(segments)
        self._doomed.extend(facts for facts in segments[:-1] if facts.next_offset <= self._purge)
        if self._doomed:
            return
        if not self._decides:
            self._doomed.extend(facts for facts in segments[:-1] if facts.next_offset <= self._goal)
            return
        action = decide(
            self._retention,
            segments,
            high_watermark=self._high_watermark(),
            now_ns=self._clock.unix_ns(),
        )
        match action:
            case DeleteBefore(offset):
                self._doomed.extend(facts for facts in segments if facts.next_offset <= offset)
            case Seal():
                if self._log.roll():  # else there is no room; it is tried again in an interval
                    self._due_ns = now_ns  # it may be deletable at once
            case None:
                pass

    def _delete(self, doomed: SegmentFacts) -> None:
        """Delete what was planned; compaction may have merged it with what is to stay."""
        before = self._log.segments()
        start = self._log.delete_before(doomed.next_offset)
        self._segments_seen = self._log.segment_count
        for segment in before:
            if segment.next_offset <= start and segment is not before[-1]:
                self.segments_deleted += 1
                self.bytes_deleted += segment.size_bytes
                self.records_deleted += segment.next_offset - segment.base_offset
                _log.info(
                    "segment_deleted",
                    stream=self._stream,
                    base_offset=segment.base_offset,
                    start_offset=start,
                    bytes=segment.size_bytes,
                )

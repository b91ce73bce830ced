"""Compaction of a partition's log: what is due, and the thread that compacts one log at a time.

`penstock.logd.compaction.policy` says what is rewritten and why. Nothing is rewritten above the
high watermark, nor before the intake's dedup state of it has been written down
(`penstock.logd.partition.rebuild`), nor in the active segment, nor where there is damage.

The thread that compacts the logs of a daemon, one after another.

Neither the event loop nor a log's writer waits for it. It works at a pace
(`penstock.logd.compaction.cleaner`), and leaves a log within milliseconds when that is to be
closed: what it was writing is thrown away.
"""

import heapq
import threading
from collections.abc import Callable
from itertools import count, islice
from typing import Final

import structlog
from msgspec import Struct

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock
from penstock.logd.compaction.cleaner import Cleaner, CompactionCounts, Pace, Rewriter, StoppedError
from penstock.logd.compaction.policy import (
    PACK_BYTES_MIN,
    MergeLimits,
    SegmentRun,
    is_worth_packing,
    run_to_merge,
    sealing_is_due,
)
from penstock.logd.errors import LogdError
from penstock.logd.format.frame import HEADER_SIZE
from penstock.logd.format.segment_facts import SegmentFacts
from penstock.logd.metadata.retention_policy import SEGMENTS_PER_LIMIT
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.storage import CommitLog

_NS_PER_S: Final = 1_000_000_000
_SAMPLE_FRAMES: Final = 256
"""Frames by which a segment is classified."""

_BACKOFF_MAX_S: Final = 3600
"""Seconds after which a rewriting that failed again and again is tried once more."""

_log = structlog.get_logger()


class CompactionSettings(Struct, frozen=True, kw_only=True):
    """Settings of compaction.

    Attributes:
        interval_s: Seconds between two looks at a log.
        bytes_per_s_max: Bytes read and written a second, over all logs.
        memory_bytes: Memory bytes of the keys of one pass.
        dirty_ratio: Share of a log's bytes that is dirty when a pass over its keys begins.
    """

    interval_s: float = 30.0
    bytes_per_s_max: int = 32 * 1024 * 1024
    memory_bytes: int = 64 * 1024 * 1024
    dirty_ratio: float = 0.5


class Wants(Struct, frozen=True):
    """Requests of compaction to a log's writer; neither call waits.

    Attributes:
        memory: Requests a producer-state snapshot.
        seal: Requests a roll of the active segment.
    """

    memory: Callable[[], None]
    seal: Callable[[], None]


class CompactionScheduler:
    """One log's compaction; everything but the counters belongs to the compactor's thread.

    Args:
        log: Log whose sealed segments are rewritten.
        config: Configuration of the stream.
        settings: Settings of the daemon.
        high_watermark: Returns the high watermark.
        wants: Requests to the log's writer; it answers with `snapshot_saved`.
        clock: Clock of the interval, and of tombstones.

    Attributes:
        paused: Whether nothing is rewritten now.
    """

    def __init__(
        self,
        log: CommitLog,
        config: StreamConfig,
        settings: CompactionSettings,
        *,
        high_watermark: Callable[[], int],
        wants: "Wants",
        clock: Clock,
    ) -> None:
        self.counts = CompactionCounts()
        self.paused = False
        self.stream = config.name
        self._log = log
        self._config = config
        self._settings = settings
        self._high_watermark = high_watermark
        self._wants = wants
        self._clock = clock
        self._limits = merge_limits(config)
        self._rewriter = Rewriter(log, config.name, self.counts)
        self._cleaner = Cleaner(
            log,
            self._rewriter,
            memory_bytes=settings.memory_bytes,
            dirty_ratio=settings.dirty_ratio,
            tombstone_retention_s=config.tombstone_retention_s,
            clock=clock,
        )
        self._snapshot_offset = 0
        self._judged: dict[SegmentRun, bool] = {}
        self._idle_at: tuple[int, int] | None = None
        self._due_ns = clock.monotonic_ns() + int(settings.interval_s * _NS_PER_S)
        self._backoff = Backoff(settings.interval_s, _BACKOFF_MAX_S)

    @property
    def due_ns(self) -> int:
        """Monotonic time of the next `work`, in ns."""
        return self._due_ns

    def snapshot_saved(self, offset: int) -> None:
        """Note that the producer state of everything below `offset` is on disk."""
        if offset > self._snapshot_offset:
            self._snapshot_offset = offset
            self._due_ns = min(self._due_ns, self._clock.monotonic_ns())

    def was_cut(self, end_offset: int) -> None:
        """The log ends there now: a snapshot of more is no more. On any thread."""
        if self._snapshot_offset > end_offset:
            self._snapshot_offset = 0  # the file speaks of what is gone, and is removed

    def work(self, pace: Pace) -> None:
        """Do one thing that is due, and say when to come again.

        Raises:
            StoppedError: `pace` said so; nothing was changed by halves.
        """
        begun_ns = self._clock.monotonic_ns()
        self._due_ns = begun_ns + int(self._settings.interval_s * _NS_PER_S)
        if self._log.failure or self.paused:
            return
        read, written = pace.bytes_read, pace.bytes_written
        try:
            if self._do_something(pace):
                self._due_ns = self._clock.monotonic_ns()
                self._done(begun_ns)
        except (OSError, LogdError) as error:
            self.failed(error)
        finally:
            self.counts.bytes_read += pace.bytes_read - read
            self.counts.bytes_written += pace.bytes_written - written

    def _done(self, begun_ns: int) -> None:
        self._backoff.reset()
        self.counts.problem = ""
        self.counts.last_ns = self._clock.unix_ns()
        self.counts.last_duration_ns = self._clock.monotonic_ns() - begun_ns

    def failed(self, error: Exception) -> None:
        """Count an attempt that failed, and wait longer than after the one before."""
        self.counts.failures += 1
        self.counts.problem = str(error)
        wait_s = self._backoff.next_wait()
        self._due_ns = self._clock.monotonic_ns() + int(wait_s * _NS_PER_S)
        if self._log.failure:
            self._wants.seal()  # the writer meets the failure, and the stream says so, at once
        _log.warning("compaction_failed", stream=self.stream, error=str(error), again_in_s=wait_s)

    def _do_something(self, pace: Pace) -> bool:
        """Do the first thing that is due; whether there was one, and it could be done."""
        if self._idle_at == self._standing() and not self._config.compact:
            return False
        *sealed, active = self._log.segments()
        end = self._high_watermark() + 1
        committed = [facts for facts in sealed if facts.next_offset <= end]
        if self._config.compact and self._clean(committed, active, pace):
            return True
        sound = [facts for facts in committed if not self._cleaner.is_unsound(facts)]
        run = run_to_merge(sound, self._limits) or self._run_to_pack(sound, pace)
        if run is None:
            self._idle_at = self._standing() if len(committed) == len(sealed) else None
            return False
        if not self._may_rewrite(run.end_offset):
            return False
        done = self._rewriter.rewrite(run, None, pace)
        self._judged[run] = False  # whatever its frames are like now
        return done

    def _clean(self, committed: list[SegmentFacts], active: SegmentFacts, pace: Pace) -> bool:
        """Make a pass over the keys if one is due; it leaves out what no snapshot has yet.

        A stream may seal segments faster than its snapshots are written: a pass that
        waited for all of it would never come.
        """
        if sealing_is_due(committed, active):
            self._wants.seal()
        if not committed or not self._cleaner.is_due(committed):
            return False
        may_go = [facts for facts in committed if facts.next_offset <= self._snapshot_offset]
        if not may_go or not self._cleaner.is_due(may_go):
            self._wants.memory()
            return False
        self._cleaner.run(may_go, pace)
        return True

    def _may_rewrite(self, end_offset: int) -> bool:
        if end_offset <= self._snapshot_offset:
            return True
        self._wants.memory()
        return False

    def _run_to_pack(self, segments: list[SegmentFacts], pace: Pace) -> SegmentRun | None:
        """The first segment whose frames are better put together."""
        runs = [SegmentRun(facts.base_offset, facts.next_offset) for facts in segments]
        self._judged = {run: self._judged[run] for run in runs if run in self._judged}
        for run, facts in zip(runs, segments, strict=True):
            if facts.size_bytes < PACK_BYTES_MIN:
                continue
            if run not in self._judged:
                self._judged[run] = self._is_worth_packing(run, pace)
            if self._judged[run]:
                return run
        return None

    def _is_worth_packing(self, run: SegmentRun, pace: Pace) -> bool:
        sample = []
        try:
            for header in islice(self._log.headers(run.base_offset), _SAMPLE_FRAMES):
                if header.next_offset > run.end_offset:
                    break
                sample.append(header)
                pace.read(HEADER_SIZE)
        except LogdError:  # damaged, or deleted meanwhile
            return False
        return is_worth_packing(sample)

    def _standing(self) -> tuple[int, int]:
        return self._log.segment_count, self._log.start_offset


def merge_limits(config: StreamConfig) -> MergeLimits:
    """Return the bounds of a merged segment under the stream's retention."""
    limits = config.deleting
    age_s = limits.segment_age_s_max()
    messages = limits.messages
    return MergeLimits(
        bytes_max=limits.max_segment_bytes(config.max_segment_bytes),
        span_ns_max=None if age_s is None else int(age_s * _NS_PER_S),
        messages_max=None if messages is None else max(1, messages // SEGMENTS_PER_LIMIT),
    )


class CompactionThread:
    """Works on the logs that are added, each when it is due.

    Args:
        settings: Settings of the daemon.
        clock: Clock of all logs' compaction.
    """

    def __init__(self, settings: CompactionSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._condition = threading.Condition()
        self._due: list[tuple[int, int, CompactionScheduler]] = []
        self._numbers = count()
        self._added: dict[CompactionScheduler, int] = {}
        self._current: CompactionScheduler | None = None
        self._closing = False
        self._pace = Pace(
            settings.bytes_per_s_max, clock, wait=self._wait, stopped=self._is_stopped
        )
        self._thread = threading.Thread(target=self._run, name="compactor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for the piece that it is at."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def add(self, compaction_scheduler: CompactionScheduler) -> None:
        """Look after a log from now on."""
        with self._condition:
            self._push(compaction_scheduler)

    def wake(self, compaction_scheduler: CompactionScheduler) -> None:
        """A log may be due sooner than it said."""
        with self._condition:
            if compaction_scheduler.due_ns < self._added.get(compaction_scheduler, 0):
                self._push(compaction_scheduler)

    def remove(self, compaction_scheduler: CompactionScheduler) -> None:
        """Leave a log alone; on return nothing of it is touched any more."""
        with self._condition:
            self._added.pop(compaction_scheduler, None)
            self._condition.notify_all()
            while self._current is compaction_scheduler:
                self._condition.wait()

    def _push(self, compaction_scheduler: CompactionScheduler) -> None:
        """Note when a log is due; an earlier note of it counts no more. The lock is held."""
        due_ns = self._added[compaction_scheduler] = compaction_scheduler.due_ns
        noted = due_ns, next(self._numbers), compaction_scheduler
        heapq.heappush(self._due, noted)
        if self._due[0] is noted:  # else the thread wakes in time for what is due before
            self._condition.notify_all()

    def _run(self) -> None:
        while (compaction_scheduler := self._next()) is not None:
            try:
                compaction_scheduler.work(self._pace)
            except StoppedError:
                pass
            except Exception as error:  # noqa: BLE001 - a bug must not end the compaction of others
                _log.exception("compaction_crashed", stream=compaction_scheduler.stream)
                compaction_scheduler.failed(error)
            with self._condition:
                self._current = None
                if compaction_scheduler in self._added:
                    self._push(compaction_scheduler)
                self._condition.notify_all()

    def _next(self) -> CompactionScheduler | None:
        """The next log that is due, waiting for it; None when there will be none."""
        with self._condition:
            while not self._closing:
                if not self._due:
                    self._condition.wait()
                    continue
                due_ns, _, compaction_scheduler = self._due[0]
                wait_ns = due_ns - self._clock.monotonic_ns()
                if wait_ns > 0:
                    self._condition.wait(wait_ns / _NS_PER_S)
                    continue
                heapq.heappop(self._due)
                if self._added.get(compaction_scheduler) != due_ns:  # removed, or noted again
                    continue
                self._current = compaction_scheduler
                return compaction_scheduler
        return None

    def _wait(self, seconds: float) -> None:
        with self._condition:
            if not self._is_stopped():
                self._condition.wait(seconds)

    def _is_stopped(self) -> bool:
        return self._closing or self._current not in self._added

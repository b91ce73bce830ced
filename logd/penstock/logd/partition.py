"""One partition at work: its log, its role, its committer, its publishers and its readers."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Protocol, assert_never

import structlog

from penstock.logd.byte_budget import ByteBudget
from penstock.logd.committer import (
    CommitFailed,
    Committer,
    Durable,
    MemorySynced,
    MemoryWanted,
    Outcome,
)
from penstock.logd.core.intake import Intake
from penstock.logd.core.metadata import Stream
from penstock.logd.core.turn import (
    FRAME_OVERHEAD,
    Message,
)
from penstock.logd.errors import UnavailableError
from penstock.logd.leadership import Leadership
from penstock.logd.lone_replica import LoneReplica
from penstock.logd.rebuild import rebuild_intake
from penstock.logd.remembering import Remembering
from penstock.logd.retainer import Retainer
from penstock.logd.store import CommitLog, EpochFile, LogConfig
from penstock.logd.surroundings import Surroundings
from penstock.logd.upkeep import CompactionSettings, Upkeep, Wants

_log = structlog.get_logger()


class Role(Protocol):
    """What decides who commits: a replica of its own, or one among others.

    Attributes:
        epoch: The leader epoch; 0 before the first.
        high_watermark: Offset of the last committed record; -1 when there is none.
    """

    epoch: int
    high_watermark: int

    def synced(self, upto: int, now_ns: int) -> bool:
        """Everything below is durable; whether the high watermark has risen."""

    def failed(self, reason: str, now_ns: int) -> None:
        """The log takes no writes any more."""


class Partition:
    """One partition on this node. Made by `open`; used on the event loop.

    Attributes:
        stream: What it belongs to.
        number: Of the partition.
        log: For readers; only the committer writes.
        leadership: Takes what is published while this node leads.
        retainer: For its counters; it works on the committer's thread.
        upkeep: For its counters; it works on the compactor's thread.
        failure: Why it takes no writes; empty while it does.
        closed: Whether it serves nobody any more.
        finished: Whether everything accepted has been dealt with and its log is closed.
    """

    def __init__(
        self, stream: Stream, parts: tuple[CommitLog, Role, Intake], around: Surroundings
    ) -> None:
        self.stream = stream
        self.number = 0
        log, self._role, intake = parts
        self.log = log
        self.failure = ""
        self.closed = self.finished = False
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()
        self.retainer = Retainer(
            log,
            stream.config,
            interval_s=around.retention_interval_s,
            high_watermark=lambda: self.high_watermark,
            clock=around.clock,
        )
        self._committer = Committer(
            log,
            stream.config,
            epoch=intake.epoch,
            post=self._post,
            clock=around.clock,
            retainer=self.retainer,
        )
        self.leadership = Leadership(stream, log, intake, self._committer.submit, around)
        self.leadership.lead(self._role.epoch, log.end_offset, self.high_watermark)
        self.upkeep = self._begin_upkeep()
        self._remembering = Remembering(intake, log, self._committer, self.upkeep, around.compactor)
        self._committer.start()

    @classmethod
    async def open(cls, stream: Stream, directory: Path, around: Surroundings) -> "Partition":
        """Recover the log, begin a new leader epoch and rebuild what the intake remembers.

        Raises:
            CorruptError: The log contradicts itself.
            RefusedError: It was written by a later version.
            OSError: The disk failed.
        """
        parts = await asyncio.to_thread(_recover, stream, directory, around)
        return cls(stream, parts, around)

    @property
    def name(self) -> str:
        """Of the stream."""
        return self.stream.config.name

    @property
    def epoch(self) -> int:
        """The leader epoch."""
        return self._role.epoch

    @property
    def high_watermark(self) -> int:
        """Offset of the last committed record; -1 when there is none."""
        return self._role.high_watermark

    @property
    def intake(self) -> Intake:
        """What sequences its messages."""
        return self.leadership.intake

    @property
    def budget(self) -> ByteBudget:
        """Bytes it may hold, and does."""
        return self.leadership.budget

    @property
    def out_of_space(self) -> bool:
        """Whether it failed for want of space, so that it may be opened again."""
        return bool(self.failure) and self.log.out_of_space

    def take(self, messages: list[Message]) -> None:
        """Take what arrived in one turn, if this node leads and `close` was not called."""
        self.leadership.take(messages)

    def store(self, messages: list[Message]) -> int:
        """Take messages of logd's own, all of them or none; `wait_committed` for what it returns.

        Args:
            messages: Without reply subjects; together far below what a frame may hold, so that a
                crash leaves all or none, too.

        Returns:
            The offset of the last one.

        Raises:
            UnavailableError: None is stored.
        """
        self._check_serving()
        if FRAME_OVERHEAD + sum(m.size_bytes() for m in messages) > self.budget.room:
            raise UnavailableError(f"stream {self.name}: too many bytes wait for the disk")
        last = self.intake.next_offset + len(messages) - 1
        self.take(messages)
        assert self.intake.next_offset == last + 1, (self.name, self.intake.counts)
        return last

    async def wait_committed(self, offset: int) -> None:
        """Wait until the high watermark is at or above an offset.

        Raises:
            UnavailableError: It may never be: the storage failed, or the partition is closed.
        """
        while self.high_watermark < offset:
            self._check_serving()
            await self._woken()

    def _check_serving(self) -> None:
        if self.failure or self.closed:
            raise UnavailableError(f"stream {self.name}: {self.failure or 'it is closed'}")

    async def wait_until(self, offset: int) -> None:
        """Wait until the high watermark is at or above an offset, or the partition is closed."""
        while self.high_watermark < offset and not self.closed:
            await self._woken()

    async def wait_drained(self) -> None:
        """Wait until nothing accepted is left to commit."""
        while self.leadership.uncommitted:
            await self._woken()

    def close(self) -> None:
        """Take nothing more, and let waiting readers go; `finish` must follow."""
        self.leadership.pause()
        self.closed = True
        self._wake()

    def finish(self) -> None:
        """Write and sync what was accepted, end the thread, close the log.

        Waits for all that, and may be called on another thread than the event loop's.

        Raises:
            LogFailedError: The last sync failed.
        """
        try:
            self.end_upkeep()
            self._committer.close()
            if not self._committer.failed:
                self._remembering.close(write=True)
        finally:
            self.finished = True

    def end_upkeep(self) -> None:
        """Have compaction leave the log alone, and nothing written beside it; waits for that."""
        if self._around.compactor is not None:
            self._around.compactor.remove(self.upkeep)
        self._remembering.close()

    def count_on(self, before: "Partition") -> None:
        """Go on with the counts of a partition whose log has been opened again as this one's."""
        self.leadership.count_on(before.leadership)
        self.retainer.count_on(before.retainer)
        self.upkeep.counts.count_on(before.upkeep.counts)

    def _post(self, outcome: Outcome) -> None:
        """Called on the committer's thread."""
        self._around.postbox.post(self._loop, partial(self._settle, outcome))

    def _settle(self, outcome: Outcome) -> None:
        match outcome:
            case Durable(upto):
                if self._role.synced(upto, self._around.clock.monotonic_ns()):
                    self._commit(self.high_watermark)
            case CommitFailed(reason):
                self._fail(reason)
            case MemoryWanted():
                self._remembering.want()
            case MemorySynced(memory):
                self._remembering.write(memory)
            case _:
                assert_never(outcome)

    def _begin_upkeep(self) -> Upkeep:
        compactor = self._around.compactor
        upkeep = Upkeep(
            self.log,
            self.stream.config,
            CompactionSettings() if compactor is None else compactor.settings,
            high_watermark=lambda: self.high_watermark,
            wants=Wants(memory=self._want_memory, seal=self._committer.seal),
            clock=self._around.clock,
        )
        if compactor is not None:
            compactor.add(upkeep)
        return upkeep

    def _want_memory(self) -> None:
        """Called on the compactor's thread."""
        self.intake.dedup.whole = True
        self._post(MemoryWanted())

    def _commit(self, high_watermark: int) -> None:
        self.leadership.committed_upto(high_watermark)
        self._wake()

    def _fail(self, reason: str) -> None:
        self._role.failed(reason, self._around.clock.monotonic_ns())
        _log.error("stream failed", stream=self.name, reason=reason)
        self.failure = reason
        self.leadership.fail(reason)
        self._wake()

    async def _woken(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def _recover(
    stream: Stream, directory: Path, around: Surroundings
) -> tuple[CommitLog, LoneReplica, Intake]:
    config = stream.config
    log_config = LogConfig(
        segment_bytes_max=config.deleting.segment_bytes_max(config.segment_bytes_max),
        segment_age_s_max=config.deleting.segment_age_s_max(),
    )
    log = CommitLog.open(directory, log_config)
    epochs = EpochFile(directory / "epochs")
    replica = LoneReplica(around.node, stream.incarnation, log, epochs)
    end, epoch = log.end_offset, replica.epoch
    intake = Intake(config, next_offset=end, epoch=epoch, streams_for=around.streams_for)
    rebuild_intake(intake, log, around.clock.unix_ns())
    for finding in log.recovery.findings:
        _log.warning("log recovered", stream=config.name, finding=str(finding))
    return log, replica, intake

"""One partition at work: its log, its intake and replica cores, its committer and its readers."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import assert_never

import structlog

from penstock.logd.ack_sender import AckSender
from penstock.logd.acks import Nack, PubAck
from penstock.logd.byte_budget import ByteBudget
from penstock.logd.committer import (
    CommitFailed,
    Committer,
    Durable,
    MemorySynced,
    MemoryWanted,
    Outcome,
)
from penstock.logd.compactor import Compactor
from penstock.logd.core.admission import NEVER_LEAVE, AdmissionPolicy
from penstock.logd.core.intake import Arrived, Intake, StorageFailed
from penstock.logd.core.metadata import Stream
from penstock.logd.core.node import NodeId
from penstock.logd.core.turn import (
    FRAME_OVERHEAD,
    OFFSET_MAX,
    Ack,
    AckLater,
    AckRun,
    Append,
    Effect,
    Message,
    Refuse,
    ack_count,
)
from penstock.logd.errors import UnavailableError
from penstock.logd.lone_replica import LoneReplica
from penstock.logd.postbox import Postbox
from penstock.logd.rebuild import rebuild_intake
from penstock.logd.remembering import Remembering
from penstock.logd.retainer import Retainer
from penstock.logd.store import CommitLog, EpochFile, LogConfig
from penstock.logd.upkeep import CompactionSettings, Upkeep, Wants
from penstock.service.clock import Clock

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every partition of a daemon shares."""

    node: NodeId
    budget: ByteBudget
    acks: AckSender
    postbox: Postbox
    clock: Clock
    streams_for: Callable[[str], Collection[str]]
    retention_interval_s: float = 30.0
    admission: AdmissionPolicy = NEVER_LEAVE
    compactor: Compactor | None = None


class Partition:
    """The leader of one partition. Made by `open`; used on the event loop.

    Attributes:
        stream: What it belongs to.
        number: Of the partition.
        log: For readers; only the committer writes.
        retainer: For its counters; it works on the committer's thread.
        upkeep: For its counters; it works on the compactor's thread.
        failure: Why it takes no writes; empty while it does.
        pending_acks: Acks that wait for the high watermark.
        budget: Bytes it may hold, and does.
        passed_over: Messages on reserved subjects that its filter matched.
        closed: Whether it serves nobody any more.
        finished: Whether everything accepted has been dealt with and its log is closed.
        lost_before: What was `lost` when the log was opened again.
        first_offset_of_epoch: Where this process began to append.
    """

    def __init__(
        self, stream: Stream, parts: tuple[CommitLog, LoneReplica, Intake], around: Surroundings
    ) -> None:
        self.stream = stream
        self.number = 0
        log, self._replica, intake = parts
        self.log = log
        self.intake = intake
        self.failure = ""
        self.budget = around.budget.share(stream.config.intake_bytes_max)
        self.passed_over = 0
        self.closed = self.finished = False
        self.lost_before = self._lost = 0
        self.first_offset_of_epoch = log.end_offset
        intake.size_max = self.budget.bytes_max - FRAME_OVERHEAD
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Ack] = deque()
        self.pending_acks = 0
        self._held: deque[tuple[int, int]] = deque()
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
        return self._replica.epoch

    @property
    def high_watermark(self) -> int:
        """Offset of the last committed record; -1 when there is none."""
        return self._replica.high_watermark

    @property
    def uncommitted(self) -> int:
        """Records accepted and not committed yet."""
        return self.intake.next_offset - self.high_watermark - 1 - self._lost

    @property
    def lost(self) -> int:
        """Records that were accepted and then not stored, because the storage failed."""
        return self.lost_before + self._lost

    @property
    def out_of_space(self) -> bool:
        """Whether it failed for want of space, so that it may be opened again."""
        return bool(self.failure) and self.log.out_of_space

    def take(self, messages: list[Message]) -> None:
        """Take what arrived in one turn.

        What comes after `close` is neither taken nor answered: nobody would write it, and its
        publisher sends it again.
        """
        if self.closed:
            return
        room = self.budget.room
        now_ns = self._around.clock.unix_ns()
        arrived = Arrived(messages, room, *self._stream_room())
        self._execute(self.intake.handle(arrived, now_ns))
        self._send_acks()

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
        while self.uncommitted:
            await self._woken()

    def close(self) -> None:
        """Let waiting readers go; `finish` must follow."""
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
        committed = before.high_watermark + 1 - before.first_offset_of_epoch
        self.first_offset_of_epoch = self.log.end_offset - committed
        self.intake.counts = before.intake.counts
        self.lost_before = before.lost
        self.passed_over = before.passed_over
        self.retainer.count_on(before.retainer)
        self.upkeep.counts.count_on(before.upkeep.counts)
        self.intake.dedup.count_on(before.intake.dedup)

    def _stream_room(self) -> tuple[int | None, int]:
        """Bytes the stream itself has room for (None: no limit), and below which offset."""
        config = self.stream.config
        if config.discard == "old":
            return None, OFFSET_MAX
        limit, room, offset_max = config.retention, None, OFFSET_MAX
        if limit.bytes is not None:
            written = self.log.end_offset
            waiting = sum(size for next_offset, size in self._held if next_offset > written)
            room = limit.bytes - self.log.size_bytes - waiting
        if limit.messages is not None:
            offset_max = self.log.start_offset + limit.messages
        return room, offset_max

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Refuse():
                    self._around.acks.send_refusal(effect)
                case Append():
                    self.budget.take(effect.size_bytes)
                    self._held.append((effect.items[-1].next_offset, effect.size_bytes))
                    self._committer.submit(effect)
                case AckLater():
                    self._pending.extend(effect.acks)
                    self.pending_acks += sum([ack_count(ack) for ack in effect.acks])
                case _:
                    assert_never(effect)

    def _post(self, outcome: Outcome) -> None:
        """Called on the committer's thread."""
        self._around.postbox.post(self._loop, partial(self._settle, outcome))

    def _settle(self, outcome: Outcome) -> None:
        match outcome:
            case Durable(upto):
                if self._replica.synced(upto, self._around.clock.monotonic_ns()):
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
        while self._held and self._held[0][0] <= high_watermark + 1:
            self.budget.release(self._held.popleft()[1])
        self._send_acks()
        self._wake()

    def _send_acks(self) -> None:
        """Send every ack that the high watermark has passed."""
        pending, high_watermark = self._pending, self.high_watermark
        if not pending or pending[0].release > high_watermark:
            return
        due = []
        while pending and pending[0].release <= high_watermark:
            due.append(pending.popleft())
        self.pending_acks -= sum([ack_count(ack) for ack in due])
        self._around.acks.send_acks(self.name, self.epoch, due)

    def _fail(self, reason: str) -> None:
        self._replica.failed(reason, self._around.clock.monotonic_ns())
        _log.error("stream failed", stream=self.name, reason=reason)
        self.failure = reason
        self._lost = self.intake.next_offset - self.high_watermark - 1
        self._execute(self.intake.handle(StorageFailed(reason), self._around.clock.unix_ns()))
        description = "the stream's storage failed; it takes no writes"
        ack = PubAck(stream=self.name, nack=Nack.STORAGE_FAILED, description=description)
        for pending in self._pending:
            replies = pending.replies if isinstance(pending, AckRun) else [pending.reply]
            enveloped = not isinstance(pending, AckRun) and pending.enveloped
            for reply in filter(None, replies):
                self._around.acks.send_refusal(Refuse(reply, ack, enveloped))
        self._pending.clear()
        self.pending_acks = 0
        while self._held:
            self.budget.release(self._held.popleft()[1])
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

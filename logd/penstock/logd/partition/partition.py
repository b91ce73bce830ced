"""One partition at work: its log, its role, its log writer, its publishers and its readers."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import structlog
from msgspec import Struct

from penstock.logd.compaction.scheduler import CompactionScheduler, CompactionSettings, Wants
from penstock.logd.errors import (
    CorruptError,
    CorruptFrameError,
    RefusedError,
    UnavailableError,
)
from penstock.logd.format.frame import FrameHeader
from penstock.logd.intake.admission import ByteBudget
from penstock.logd.intake.dedup import DedupMark
from penstock.logd.intake.intake import Arrived, Intake, LogFailed
from penstock.logd.intake.turn import (
    FRAME_OVERHEAD,
    Append,
    Message,
    MessageRun,
    PrebuiltBatch,
    Refuse,
)
from penstock.logd.metadata.streams import Stream, is_internal
from penstock.logd.partition.context import PartitionContext
from penstock.logd.partition.log_writer import (
    CommitFailed,
    Frame,
    LogCommand,
    LogResult,
    LogWriter,
    ProducerSnapshotSynced,
    ProducerSnapshotWanted,
    PurgeBefore,
    SnapshotSaved,
)
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.publish_queue import PublishQueue, begin, read_frames
from penstock.logd.partition.purge import Purging
from penstock.logd.partition.rebuild import rebuild_intake, remember_anew
from penstock.logd.partition.retention import RetentionTask
from penstock.logd.partition.snapshotter import Snapshotter
from penstock.logd.storage import CommitLog, EpochFile, LogConfig
from penstock.logd.storage.checkpoint import EPOCHS_NAME

Place = tuple[Path, int]
"""A partition's directory and number."""

_log = structlog.get_logger()


class Role(Protocol):
    """Decision on commits: by this replica alone, or with others.

    Attributes:
        epoch: The leader epoch; 0 before the first.
        high_watermark: Offset of the last committed record; -1 when there is none. It is read
            several times a turn.
        epochs: Epochs of the log; after the start of its writer only that changes them.
    """

    epoch: int
    high_watermark: int
    epochs: EpochFile

    def settle(self, result: LogResult, now_ns: int) -> bool:
        """Take what the log's writer reports; whether more is committed that was not reported."""

    def submitted(self, upto: int) -> None:
        """Note that records below an offset were handed to the log's writer."""

    def failed(self, reason: str, now_ns: int) -> None:
        """The log takes no writes any more."""

    def dedup_saved(self) -> None:
        """Note that the leader's dedup state is persisted here, too."""


MakeRole = Callable[[CommitLog, EpochFile], Role]
"""Given the recovered log. Raises CorruptError, OSError."""


class RecoveredPartition(Struct, frozen=True):
    """A log that was recovered, and who decides about it.

    Attributes:
        saved: Whether the intake's dedup state is on disk.
    """

    log: CommitLog
    role: Role
    intake: Intake
    saved: bool


def recover(
    stream: Stream, place: Place, context: PartitionContext, make_role: MakeRole
) -> RecoveredPartition:
    """Recover a log, find a role, rebuild the intake's dedup state; waits for the disk.

    Args:
        stream: Stream of the partition.
        place: Directory of its log, and its number.
        context: The context that partitions share.
        make_role: Given the recovered log, makes what decides who commits.

    Raises:
        CorruptError: The log contradicts itself.
        RefusedError: It was written by a later version, or a key of it is not to be had.
        OSError: The disk failed.
    """
    config, directory = stream.config, place[0]
    log_config = LogConfig(
        max_segment_bytes=config.deleting.max_segment_bytes(config.max_segment_bytes),
        segment_age_s_max=config.deleting.segment_age_s_max(),
    )
    disk = context.disk
    cipher = context.masters.cipher_of(stream, *place)
    log = CommitLog.open(directory, log_config, disk=disk, cipher=cipher)
    epochs, rebuilt = EpochFile.open(
        directory / EPOCHS_NAME, partial(_sound_headers, log), disk=disk
    )
    if rebuilt:
        _log.warning(
            "epochs_rebuilt", stream=config.name, reason=rebuilt, epochs=len(epochs.entries)
        )
    begin(log, epochs, config, place[1])
    role = make_role(log, epochs)
    end, epoch = log.end_offset, role.epoch
    intake = Intake(
        config,
        next_offset=end,
        epoch=epoch,
        streams_for=context.streams_for,
        knows_stream=context.knows_stream,
    )
    committed = role.high_watermark + 1
    now_ns, save = context.clock.unix_ns(), committed >= end
    saved = rebuild_intake(intake, log, now_ns, save=save, committed=committed)
    for finding in log.recovery.findings:
        _log.warning("log_recovered", stream=config.name, finding=str(finding))
    return RecoveredPartition(log, role, intake, saved)


def _sound_headers(log: CommitLog) -> Iterator[FrameHeader]:
    """The headers of a log's frames, past damage."""
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            for header in log.headers(offset):
                yield header
                offset = header.next_offset
        except CorruptFrameError as error:
            offset = error.next_offset


_RESTORE_S: Final = 15.0
"""Maximum seconds in which restored frames are committed; their sender retries."""


class Partition:
    """One partition on this node; used on the event loop.

    Attributes:
        stream: Stream of the partition.
        number: Number of the partition.
        role: Decides who commits.
        log: Log for readers; only its writer writes.
        writer: Writer of the log.
        purging: Purge of the partition.
        publish_queue: Takes what is published while this node leads.
        retention_task: Retention task, for its counters; the log writer runs its steps.
        compaction_scheduler: Compaction scheduler, for its counters; it runs on the compaction
            thread.
        failure: Why it takes no writes; empty while it does.
        closed: Whether it serves no request any more.
        finished: Whether everything accepted has been dealt with and its log is closed.
    """

    def __init__(
        self, stream: Stream, number: int, opened: "RecoveredPartition", context: PartitionContext
    ) -> None:
        self.stream = stream
        self.number = number
        log, self.role, intake = opened.log, opened.role, opened.intake
        self.log = log
        self.failure = ""
        self.closed = self.finished = False
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()
        self._leaderships_ended = 0
        self.retention_task = RetentionTask(
            log,
            stream.config,
            interval_s=context.retention_interval_s,
            high_watermark=lambda: self.high_watermark,
            clock=context.clock,
        )
        self.writer = LogWriter(
            log,
            stream.config,
            epochs=self.role.epochs,
            post=self._post,
            clock=context.clock,
            retention_task=self.retention_task,
            pool=context.writer_pool,
            frames_unremembered_max=context.frames_unremembered_max,
        )
        self.purging = Purging(
            log, self.role.epochs, lambda offset: self.writer.submit(PurgeBefore(offset))
        )
        self.publish_queue = PublishQueue(stream, number, log, intake, self._submit, context)
        self.compaction_scheduler = self._begin_upkeep()
        self._snapshotter = Snapshotter(
            intake,
            log,
            self.writer,
            high_watermark=lambda: self.high_watermark,
            saved=self._saved,
            installed=self.role.dedup_saved,
            is_saved=opened.saved,
        )
        self.writer.look()
        self.purging.committed(self.high_watermark)

    @property
    def name(self) -> str:
        return self.stream.config.name

    @property
    def label(self) -> str:
        """Name of the partition for people."""
        return self.publish_queue.label

    @property
    def internal(self) -> bool:
        """True if the stream is logd's own, and on no subject."""
        return is_internal(self.name)

    @property
    def epoch(self) -> int:
        """The leader epoch."""
        return self.role.epoch

    @property
    def high_watermark(self) -> int:
        """Offset of the last committed record; -1 when there is none."""
        return self.role.high_watermark

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return max(self.log.start_offset, min(self.purging.start(), self.high_watermark + 1))

    @property
    def intake(self) -> Intake:
        """Intake that sequences the partition's messages."""
        return self.publish_queue.intake

    @property
    def budget(self) -> ByteBudget:
        """Bytes it may hold, and does."""
        return self.publish_queue.budget

    def take(self, messages: list[Message], *, alone: bool = False) -> None:
        """Take what arrived in one turn, if this node leads and `close` was not called."""
        self.publish_queue.take(messages, alone=alone)

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
        self.publish_queue.check_takes()
        if FRAME_OVERHEAD + sum(m.size_bytes() for m in messages) > self.budget.room:
            raise UnavailableError(f"stream {self.name}: too many bytes wait for the disk")
        last = self.intake.next_offset + len(messages) - 1
        self.take(messages)
        assert self.intake.next_offset == last + 1, (self.name, self.intake.counts)
        return last

    async def restore(self, data: bytes) -> int:
        """Store frames of a backup; once they are committed, the offset that is wanted next.

        Raises:
            RefusedError: `BAD_BACKUP`, `NOT_RESTORING`, `WRONG_OFFSET`.
            UnavailableError: They are not stored, or it is unknown whether they are.
        """
        self._check_serving()
        frames = await asyncio.to_thread(read_frames, data, self.stream.config)
        reached = self.publish_queue.restore(frames)
        try:
            async with asyncio.timeout(_RESTORE_S):
                await self.wait_committed(reached - 1)
        except TimeoutError:
            raise UnavailableError(f"stream {self.name}: not committed in time") from None
        return reached

    async def wait_committed(self, offset: int) -> None:
        """Wait until what was stored here up to an offset is committed; at once after it was.

        Raises:
            UnavailableError: It may never be: the storage failed, the partition is closed, or this
                leadership has ended. The next leader may lack it, and give the offset to others.
        """
        ended = self._leaderships_ended
        while self.high_watermark < offset and ended == self._leaderships_ended:
            self._check_serving()
            await self._woken()
        if ended != self._leaderships_ended:
            self._check_serving()
            raise UnavailableError(f"stream {self.name}: it is not led here any more")

    def _check_serving(self) -> None:
        if self.failure or self.closed:
            raise UnavailableError(f"stream {self.name}: {self.failure or 'it is closed'}")

    async def wait_until(self, offset: int) -> None:
        """Wait until the high watermark is at or above an offset, or the partition is closed."""
        while self.high_watermark < offset and not self.closed:
            await self._woken()

    async def wait_drained(self) -> None:
        """Wait until nothing accepted is left to commit."""
        while self.publish_queue.uncommitted:
            await self._woken()

    def close(self) -> None:
        """Take nothing more, and let waiting readers go; `finish` must follow."""
        self.publish_queue.pause()
        self.closed = True
        self._wake()

    def finish(self) -> None:
        """Write and sync what was accepted, end the writing, close the log.

        Waits for all that, and may be called on another thread than the event loop's.

        Raises:
            LogFailedError: The last sync failed.
        """
        try:
            self.end_upkeep()
            self.writer.close()
            if not self.writer.failed and self.intake.next_offset <= self.high_watermark + 1:
                self._snapshotter.close(write=True)
        finally:
            self.finished = True

    def end_upkeep(self) -> None:
        """Have compaction leave the log alone, and nothing written beside it; waits for that."""
        if self._context.compaction_thread is not None:
            self._context.compaction_thread.remove(self.compaction_scheduler)
        self._snapshotter.close()

    def count_on(self, before: "Partition") -> None:
        """Go on with the counts of a partition whose log has been opened again as this one's."""
        self.publish_queue.count_on(before.publish_queue)
        self.retention_task.count_on(before.retention_task)
        self.compaction_scheduler.counts.count_on(before.compaction_scheduler.counts)

    def _post(self, result: LogResult) -> None:
        """Called on a thread of the log writer's, or the compactor's."""
        self._context.dispatcher.post(self._loop, partial(self._settle, result))

    def _settle(self, result: LogResult) -> None:
        match result:
            case CommitFailed(reason):
                self._fail(reason)
            case ProducerSnapshotWanted(ids):
                self.intake.dedup.whole |= ids
                self._snapshotter.want()
            case ProducerSnapshotSynced(memory):
                self._snapshotter.synced(memory)
            case _:
                if self.role.settle(result, self._context.clock.monotonic_ns()):
                    self.commit(self.high_watermark)

    def _begin_upkeep(self) -> CompactionScheduler:
        compaction_thread = self._context.compaction_thread
        compaction_scheduler = CompactionScheduler(
            self.log,
            self.stream.config,
            CompactionSettings() if compaction_thread is None else compaction_thread.settings,
            high_watermark=lambda: self.high_watermark,
            wants=Wants(memory=self._want_memory, seal=lambda: self.writer.submit(LogCommand.SEAL)),
            clock=self._context.clock,
        )
        if compaction_thread is not None:
            compaction_thread.add(compaction_scheduler)
        return compaction_scheduler

    def _saved(self, offset: int) -> None:
        """Note the persisted producer state; retention and compaction go on."""
        self.writer.submit(SnapshotSaved(offset))
        self.compaction_scheduler.snapshot_saved(offset)
        if self._context.compaction_thread is not None:
            self._context.compaction_thread.wake(self.compaction_scheduler)

    def _want_memory(self) -> None:
        """Called on the compactor's thread."""
        self._post(ProducerSnapshotWanted(ids=True))

    def commit(self, high_watermark: int) -> None:
        """The high watermark has risen: answer publishers, wake readers."""
        self.publish_queue.committed_upto(high_watermark)
        self.intake.dedup.committed(high_watermark + 1)
        self.purging.committed(high_watermark)
        self._wake()

    def lead(
        self, epoch: int, next_offset: int, away_ns: int = 0, *, followed: bool = True
    ) -> None:
        """Take messages from now on, and keep the log as the stream's options say.

        Args:
            epoch: The leader epoch.
            next_offset: Offset of the first record that is accepted.
            away_ns: Nanoseconds for which no leader is known to have led.
            followed: Whether others copy what is written, before it is durable here.
        """
        tracer = self._context.tracer
        if tracer is not None:
            span = tracer.start_rare("election", ago_ns=away_ns)
            tracer.end(span, attributes={"penstock.stream": self.label, "penstock.epoch": epoch})
        self.writer.reports_written = followed
        self.retention_task.leading = True
        self.writer.look()
        self.publish_queue.decline(None)
        self.publish_queue.lead(epoch, next_offset, self.high_watermark)

    def follow(self, *, pausing: bool = False) -> None:
        """Take no messages, and keep what the leader keeps.

        Args:
            pausing: It may lead again under the same epoch: what waits for an ack goes on to.
        """
        self.retention_task.leading = False
        if pausing:
            self.publish_queue.pause()
        else:
            self.writer.reports_written = False
            self.publish_queue.stop()
            self._leaderships_ended += 1
            self._wake()

    async def remember_anew(self) -> None:
        """The log was cut: what is kept in mind of it must not know more than it has.

        Raises:
            LogdError, OSError: It cannot be read.
        """
        self._snapshotter.forget()
        now_ns = self._context.clock.unix_ns()
        self.compaction_scheduler.was_cut(self.log.end_offset)
        await asyncio.to_thread(self._snapshotter.discard, self.log.end_offset)
        committed = self.high_watermark + 1
        await asyncio.to_thread(remember_anew, self.intake, self.log, now_ns, committed)
        self._snapshotter.rebuilt()

    @property
    def is_forgetful(self) -> bool:
        """True if ids or sequences were lost at the start, within the last window of ids."""
        return self.intake.dedup.lost_until_ns > self._context.clock.unix_ns()

    def dedup_mark(self) -> DedupMark:
        """Return the summary of the dedup state, to be compared with the leader's."""
        dedup = self.intake.dedup
        return DedupMark(self.intake.next_offset, dedup.checksum.total, saved=not dedup.unsaved)

    def dedup_agrees(self, mark: DedupMark) -> bool | None:
        """Return whether the dedup state below the mark's offset is equal; None: unknown now."""
        if mark.offset > self.intake.next_offset:
            return None
        checksum = self.intake.dedup.checksum.at(mark.offset)
        if checksum is None or (checksum == mark.checksum and not mark.saved):
            return None
        return checksum == mark.checksum

    def dedup_snapshot(self) -> ProducerSnapshot:
        """Return the dedup state of committed records, message ids included."""
        return ProducerSnapshot.of(self.intake, self.high_watermark + 1, whole=True)

    async def install_dedup(self, memory: ProducerSnapshot) -> bool:
        """Take the leader's dedup state, and persist it; `Role.dedup_saved` follows.

        Args:
            memory: State of committed records. All below its offset are in this log, or were
                removed before it was copied.

        Returns:
            Whether it could be; else it is to be asked for again.
        """
        intake, config = self.intake, self.stream.config
        dedup, since = intake.dedup, intake.next_offset
        if memory.offset > since:
            return False
        own = ProducerSnapshot.of(intake, whole=True)
        merged = await asyncio.to_thread(memory.merged, own, config)
        if intake.dedup is not dedup:  # the log has been cut meanwhile
            return False
        if not dedup.checksum.correct(memory.offset, memory.checksum):
            return False
        dedup.install(*merged, offset=memory.offset, since=since, lost=memory.lost)
        if memory.offset == intake.next_offset:
            dedup.last_message_id = memory.last_message_id
        self._snapshotter.installed()
        return True

    def fail(self, reason: str) -> None:
        """Take no writes any more."""
        if not self.failure:
            self._fail(reason)

    def _submit(self, appends: list[Append], alone: bool) -> None:
        """Have it written; at once and here, if nothing came for others and a thread costs more."""
        for append in appends:
            self.writer.enqueue(append)
            self.role.submitted(append.items[-1].next_offset)
        try:
            seen_to = alone and self._context.dispatcher.run(self.writer.write_here)
        finally:  # also where what follows from the write fails: the writer goes on
            self.writer.pass_on()
        if not seen_to:
            self.writer.start()

    def append_fetched(self, frames: list[Frame], *, alone: bool) -> None:
        """Have frames of the leader's log written as they are.

        Args:
            frames: They follow what was handed over before.
            alone: Whether nothing came for other partitions with them.
        """
        self.publish_queue.follow(frames)
        size = sum([header.frame_length for header, _ in frames])
        items: list[MessageRun | PrebuiltBatch] = [PrebuiltBatch(*frame) for frame in frames]
        self.writer.enqueue(Append(items, size))
        if alone and self.writer.write_here():
            self._context.dispatcher.at_end(self._pass_on_last)
        else:
            self.writer.start()

    def _pass_on_last(self) -> None:
        """Have the writer go on after all that this turn sends, which is planned by now."""
        self._context.dispatcher.at_end(self.writer.pass_on)

    def _fail(self, reason: str) -> None:
        self.failure = reason
        alone = self.publish_queue.alone
        if alone:  # no later leader decides about what waits for an ack
            self.publish_queue.fail(reason)
        self.role.failed(reason, self._context.clock.monotonic_ns())
        _log.error("stream_failed", stream=self.name, reason=reason)
        if not alone:
            self.publish_queue.fail(reason)
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


class OfflinePartition:
    """Stands in for a stream's partition until its log can be opened. Used on the event loop.

    Publishers must not take silence for a stream that is slow: one that left a reply subject is
    told `STORAGE_FAILED`, and what has none is counted and reported as an ingest gap.

    Args:
        stream: Stream whose log it is.
        error: Why it cannot be opened.
        context: The context that partitions share.
        number: Number of the partition.

    Attributes:
        reason: Why it cannot be opened, and what to do.
        cause: Code of why, as of a `NotOpenError`.
        intake: Intake, for its counters; it accepts nothing.
        budget: Holds nothing.
        skipped: The same as of a partition.
    """

    def __init__(
        self, stream: Stream, error: Exception, context: PartitionContext, number: int = 0
    ) -> None:
        self.stream = stream
        self.number = number
        self.cause = cause_of(error)
        again = f"`penstock logd streams open {self.name}`"
        if is_internal(self.name):
            again = "start logd again"
        self.reason = f"not opened: {error}; see to that, then {again}"
        self.intake = Intake(
            stream.config,
            next_offset=0,
            epoch=0,
            streams_for=context.streams_for,
            knows_stream=context.knows_stream,
        )
        self.intake.handle(LogFailed(str(error)), context.clock.unix_ns())
        self.budget = context.budget.share(stream.config.max_intake_bytes)
        self.skipped = 0
        self._context = context

    def count_on(self, before: "OfflinePartition") -> None:
        """Go on with the counts of one that could not be opened before."""
        self.intake.counts = before.intake.counts
        self.skipped = before.skipped

    @property
    def name(self) -> str:
        return self.stream.config.name

    @property
    def label(self) -> str:
        return f"{self.name}/{self.number}" if self.number else self.name

    @property
    def subject(self) -> str:
        subject = self.stream.config.subject
        return f"{subject}.{self.number}" if self.number else subject

    def take(self, messages: list[Message], *, alone: bool = False) -> None:
        """Refuse what arrived in one turn."""
        del alone
        arrived = Arrived(messages, self.budget.room)
        for effect in self.intake.handle(arrived, self._context.clock.unix_ns()):
            assert isinstance(effect, Refuse), effect
            self._context.acks.send_refusal(effect)


def cause_of(error: Exception) -> str:
    """The code of why a log cannot be opened."""
    if isinstance(error, CorruptError):
        return "CORRUPT"
    return error.code if isinstance(error, RefusedError) else "UNAVAILABLE"

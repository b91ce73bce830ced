"""The writer's turns: what is done in which order, how much of what waits is in memory twice."""

import contextlib
import errno
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typing_extensions import override

from penstock.base.clock import Clock, SystemClock
from penstock.logd.errors import CorruptFrameError, LogFailedError
from penstock.logd.intake.turn import Append, Message, MessageRun, PrebuiltBatch
from penstock.logd.limits import (
    DISK_STALL_NS_MIN,
    FRAME_BYTES_MAX,
    WRITE_HERE_BYTES_MAX,
    WRITE_HERE_NS_MAX,
)
from penstock.logd.metadata.retention_policy import Retention
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.log_writer import (
    CommitFailed,
    Cut,
    Durable,
    EpochBegun,
    Frame,
    LogCommand,
    LogResult,
    LogWriter,
    Note,
    Patch,
    Patched,
    ProducerSnapshotSynced,
    ProducerSnapshotWanted,
    SnapshotSaved,
    StartMoved,
    WasReset,
    WriterPool,
    Written,
)
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.retention import RetentionTask
from penstock.logd.replication.events import BeginEpoch, DeleteBefore, Reset, Truncate
from penstock.logd.storage import REAL_DISK, CommitLog, Disk, EpochFile, LogConfig, ReplicaFile
from penstock.logd.storage.checkpoint import load_mark
from penstock.logd.storage.segment import segment_path
from tests.sim.disk import MemoryDisk
from tests.sim.power import Power, PowerLossError
from tests.support.frames import make_frame
from tests.support.partition_context import WRITER_POOL
from tests.support.waiting import wait_until

CONFIG = StreamConfig(name="logs", subject="t.>")
PAYLOAD = 3_000


class ReferredRun(MessageRun, weakref=True):
    """A run that weak references may be made to."""


def test_a_long_turn_is_written_in_parts_and_let_go_as_it_is(tmp_path: Path) -> None:
    runs = [
        ReferredRun(n, 1, [Message(b"t.a", b"", b"", bytes(PAYLOAD))], size=FRAME_BYTES_MAX)
        for n in range(10)
    ]
    left = [weakref.ref(run) for run in runs]
    lengths, held = list[int](), list[int]()

    class NotingLog(CommitLog):
        @override
        def append(self, frames: Sequence[Frame]) -> None:
            lengths.append(sum(header.frame_length for header, _ in frames))
            held.append(sum(run() is not None for run in left))
            super().append(frames)

    log = NotingLog.open(tmp_path, LogConfig())
    outcomes: list[LogResult] = []
    clock = SystemClock()
    retention_task = RetentionTask(
        log, CONFIG, interval_s=30, high_watermark=lambda: 0, clock=clock
    )
    epochs = EpochFile(tmp_path / "epochs")
    writer = LogWriter(
        log,
        CONFIG,
        epochs=epochs,
        post=outcomes.append,
        clock=clock,
        retention_task=retention_task,
        pool=WRITER_POOL,
        append_bytes_max=12_000,
    )
    writer.enqueue(Append([*runs], 1))
    runs.clear()
    writer.start()
    wait_until(lambda: outcomes)
    assert outcomes == [Durable(10)], "one sync, one ack for all"
    assert max(lengths) <= 12_000
    assert len(lengths) == 4
    assert held == sorted(held, reverse=True)
    assert held[-1] <= 1
    writer.close()


def fetched(frames: Iterable[Frame]) -> Append:
    return Append([PrebuiltBatch(header, body) for header, body in frames], 0)


class QuickClock(SystemClock):
    """To it every sync takes no time, whatever else the machine does."""

    @override
    def monotonic_ns(self) -> int:
        return 0


class World:
    """A log, its writer, and what that reported. Nothing is done before `run`."""

    def __init__(
        self,
        directory: Path,
        *,
        disk: Disk = REAL_DISK,
        post: Any = None,
        pool: WriterPool = WRITER_POOL,
        clock: Clock | None = None,
        kind: type[CommitLog] = CommitLog,
        config: StreamConfig = CONFIG,
        high_watermark: int = 0,
        retention: type[RetentionTask] = RetentionTask,
    ) -> None:
        self.directory, self.disk = directory, disk
        self.log = kind.open(directory, LogConfig(max_segment_bytes=2_000), disk=disk)
        self.epochs = EpochFile(directory / "epochs", disk=disk)
        self.outcomes: list[LogResult] = []
        self.retention_task = retention(
            self.log,
            config,
            interval_s=30,
            high_watermark=lambda: high_watermark,
            clock=SystemClock(),
        )
        self.writer = LogWriter(
            self.log,
            config,
            epochs=self.epochs,
            post=post or self.outcomes.append,
            clock=clock or SystemClock(),
            retention_task=self.retention_task,
            pool=pool,
        )

    def run(self) -> list[LogResult]:
        """Do everything handed over and end; what was reported."""
        self.writer.start()
        self.writer.close()
        return self.outcomes

    def write_here(self) -> bool:
        """Write on this thread, and let another one go on; whether it was seen to."""
        seen_to = self.writer.write_here()
        if seen_to:
            self.writer.pass_on()
        return seen_to

    def publish(self, base: int, count: int = 1) -> None:
        messages = [Message(b"t.a", b"", b"", b"%d" % n) for n in range(base, base + count)]
        self.writer.enqueue(Append([MessageRun(base, 1, messages)], 1))

    def frames(self) -> list[tuple[int, int, int]]:
        """(base offset, next offset, epoch) of each frame."""
        headers = self.log.headers(self.log.start_offset)
        return [(h.base_offset, h.next_offset, h.leader_epoch) for h in headers]


def test_commands_are_carried_out_and_reported_in_the_order_they_were_given(tmp_path: Path) -> None:
    world = World(tmp_path)
    writer = world.writer
    writer.enqueue(BeginEpoch(1, 0))
    world.publish(0, 3)
    world.publish(3, 2)
    writer.enqueue(BeginEpoch(4, 5))
    world.publish(5, 2)
    writer.enqueue(Truncate(5, 1))
    writer.enqueue(BeginEpoch(6, 5))
    frames = [make_frame(5, b"one", epoch=6), make_frame(6, b"two", epoch=6, records=3)]
    writer.enqueue(fetched(frames))
    writer.enqueue(fetched([make_frame(9, b"three", epoch=6)]))
    assert world.run() == [
        EpochBegun(1),
        Durable(5, 0),
        EpochBegun(4),
        Durable(7, 0),
        Cut(5, 1),
        EpochBegun(6),
        Durable(10, 1),
    ]
    assert world.frames() == [(0, 5, 1), (5, 6, 6), (6, 9, 6), (9, 10, 6)]
    assert list(world.log.frames(5))[:2] == frames, "as they came"
    assert EpochFile(tmp_path / "epochs").entries == [(1, 0), (6, 5)]


def test_an_epoch_begun_in_memory_is_durable_before_its_first_record(tmp_path: Path) -> None:
    World(tmp_path).run()
    world = World(tmp_path)
    assert world.writer.begin_epoch_here(BeginEpoch(3, 0))
    assert world.outcomes == [EpochBegun(3)]
    assert not (tmp_path / "epochs").exists()
    world.publish(0, 2)
    assert world.run() == [EpochBegun(3), Durable(2, 0)]
    assert world.frames() == [(0, 2, 3)]
    assert EpochFile(tmp_path / "epochs").entries == [(3, 0)]


def test_nothing_of_an_epoch_is_stored_that_cannot_be_made_durable() -> None:
    disk = MemoryDisk()
    disk.make_directory(Path("/data"))
    World(Path("/data/logs"), disk=disk).run()
    world = World(Path("/data/logs"), disk=disk)
    assert world.writer.begin_epoch_here(BeginEpoch(3, 0))
    disk.fail = lambda _, path: path.name.startswith("epochs")
    world.publish(0, 2)
    world.run()
    assert isinstance(world.outcomes[-1], CommitFailed)
    assert world.log.end_offset == 0


def test_an_epoch_is_not_begun_in_memory_behind_what_waits(tmp_path: Path) -> None:
    World(tmp_path).run()
    world = World(tmp_path)
    world.publish(0, 2)
    assert not world.writer.begin_epoch_here(BeginEpoch(3, 2))
    assert world.run() == [Durable(2, 0)]


def test_an_epoch_is_not_begun_in_memory_for_a_log_that_was_not_closed(tmp_path: Path) -> None:
    assert not World(tmp_path).writer.begin_epoch_here(BeginEpoch(3, 0))


def test_a_cut_takes_whole_frames_and_the_epochs_above(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.writer.enqueue(BeginEpoch(1, 0))
    world.writer.enqueue(fetched([make_frame(0, b"one", records=4), make_frame(4, b"two")]))
    world.writer.enqueue(BeginEpoch(2, 4))
    world.writer.enqueue(Truncate(3, 7))
    world.writer.enqueue(Truncate(0, 8))
    assert world.run()[-2:] == [Cut(0, 7), Cut(0, 8)]
    assert EpochFile(tmp_path / "epochs").entries == []


def test_a_reset_forgets_epochs_and_what_was_remembered(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.writer.enqueue(BeginEpoch(3, 0))
    world.publish(0, 2)
    world.writer.enqueue(Reset(70, 1))
    world.writer.enqueue(BeginEpoch(2, 70))
    world.publish(70)
    ProducerSnapshot(2, ([], []), ([], []), b"", whole=True).save(tmp_path)
    assert world.run()[2:] == [WasReset(70, 1), EpochBegun(2), Durable(71, 1)]
    assert world.frames() == [(70, 71, 2)]
    assert EpochFile(tmp_path / "epochs").entries == [(2, 70)]
    assert ProducerSnapshot.load(tmp_path) is None


def test_what_is_written_is_told_before_it_is_durable(tmp_path: Path) -> None:
    outcomes: list[tuple[LogResult, int]] = []

    def note(outcome: LogResult) -> None:
        outcomes.append((outcome, world.log.synced_offset))

    world = World(tmp_path, post=note)
    world.writer.reports_written = True
    world.publish(0, 2)
    world.publish(2)
    world.run()
    frames = tuple(world.log.frames(0))
    assert outcomes == [(Written(3, 0, frames), 0), (Durable(3, 0), 3)]


def test_a_memory_waits_for_what_was_given_before_it_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    memory = ProducerSnapshot(2, ([], []), ([], []), b"", whole=True)
    world.publish(0, 2)
    world.writer.enqueue(memory)
    world.publish(2)
    assert world.run() == [Durable(2), ProducerSnapshotSynced(memory), Durable(3)]


@pytest.mark.parametrize(
    "bad",
    [
        lambda writer: writer.enqueue(Truncate(9, 1)),
        lambda writer: writer.enqueue(BeginEpoch(1, 0)),
        lambda writer: writer.enqueue(fetched([make_frame(5, b"a gap before it")])),
    ],
)
def test_a_command_that_cannot_be_done_ends_the_writing(tmp_path: Path, bad: Any) -> None:
    world = World(tmp_path)
    world.writer.enqueue(BeginEpoch(1, 0))
    world.publish(0)
    world.writer.enqueue(LogCommand.SEAL)
    bad(world.writer)
    world.publish(1)
    *done, failed = world.run()
    assert done == [EpochBegun(1), Durable(1)]
    assert isinstance(failed, CommitFailed)
    assert world.writer.failed
    assert world.log.end_offset == 1


def test_what_is_submitted_after_a_failure_is_let_go(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.writer.enqueue(Truncate(9, 1))
    world.writer.start()
    wait_until(lambda: world.outcomes)
    run = ReferredRun(0, 1, [Message(b"t.a", b"", b"", b"x")], size=FRAME_BYTES_MAX)
    left = weakref.ref(run)
    world.writer.enqueue(Append([run], 1))
    del run
    assert left() is None
    world.writer.close()


def test_what_a_replica_knows_is_written_down_and_a_failure_is_passed_over(tmp_path: Path) -> None:
    assert ReplicaFile(tmp_path).load() == (-1, 0)
    world = World(tmp_path)
    world.writer.enqueue(Note(41, 3))
    world.run()
    assert ReplicaFile(tmp_path).load() == (41, 3)
    (tmp_path / "replica").write_bytes(b"rot")
    assert ReplicaFile(tmp_path).load() == (-1, 0)
    (tmp_path / "replica").unlink()
    (tmp_path / "replica").mkdir()
    world = World(tmp_path)
    world.writer.enqueue(Note(42, 3))
    world.publish(0)
    assert world.run() == [Durable(1)]
    world = World(tmp_path)
    world.writer.enqueue(Note(42, 3, durable=True))  # what follows must not be done without
    world.writer.enqueue(Truncate(0, 1))
    [failed] = world.run()
    assert isinstance(failed, CommitFailed)
    assert world.log.end_offset == 1


def test_damage_is_filled_unless_the_log_was_cut_since(tmp_path: Path) -> None:
    frames = [make_frame(n, b"%d" % n * 60) for n in range(3)]
    world = World(tmp_path)
    world.writer.enqueue(fetched(frames))
    assert world.run() == [Durable(3)]
    path = segment_path(tmp_path, 0)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"1" * 60, b"!" * 60))
    world = World(tmp_path)
    with pytest.raises(CorruptFrameError):
        list(world.log.frames())
    assert world.log.damaged() == [(1, 2)]
    world.writer.enqueue(Patch(1, 2, (make_frame(0, b"cannot be cut down", records=3),), cuts=0))
    world.writer.enqueue(Truncate(3, 1))
    world.writer.enqueue(Patch(1, 2, tuple(frames[1:2]), cuts=0))
    world.writer.enqueue(Truncate(3, 2))
    world.writer.enqueue(Patch(1, 2, tuple(frames[1:]), cuts=2))
    assert world.run() == [Cut(3, 1), Cut(3, 2), Patched(1, 2, 2)]
    assert list(world.log.frames()) == frames
    assert world.log.damaged() == []


def test_a_follower_deletes_as_its_leader_did_once_it_is_remembered(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.retention_task.leading = False
    for offset in range(5):
        world.writer.enqueue(fetched([make_frame(offset, bytes(100), epoch=1)]))
        world.writer.enqueue(LogCommand.SEAL)
    world.writer.enqueue(DeleteBefore(3))
    world.writer.enqueue(SnapshotSaved(2))
    world.writer.enqueue(SnapshotSaved(3))
    world.writer.start()
    wait_until(lambda: StartMoved(3) in world.outcomes)
    world.writer.close()
    assert [o for o in world.outcomes if not isinstance(o, Durable)] == [
        ProducerSnapshotWanted(ids=True),
        ProducerSnapshotWanted(ids=True),
        *(StartMoved(start) for start in (1, 2, 3)),
    ]
    assert world.frames() == [(3, 4, 1), (4, 5, 1)]
    assert world.retention_task.records_deleted == 3


def test_every_power_loss_between_orders_leaves_a_log_that_fits_its_epochs() -> None:
    random, operations, ends = Random(5), 0, set[tuple[int, int]]()
    while (40, 41) not in ends:
        operations += 1
        assert operations < 200
        disk = MemoryDisk()
        power = Power(disk)
        world = World(Path("/log"), disk=disk)
        writer = world.writer
        writer.enqueue(BeginEpoch(1, 0))
        writer.enqueue(fetched([make_frame(n, bytes(900)) for n in range(6)]))
        writer.enqueue(BeginEpoch(2, 6))
        writer.enqueue(fetched([make_frame(6, b"six", epoch=2)]))
        writer.enqueue(Truncate(4, 1))
        writer.enqueue(fetched([make_frame(4, b"four")]))
        writer.enqueue(Reset(40, 2))
        writer.enqueue(BeginEpoch(5, 40))
        writer.enqueue(fetched([make_frame(40, b"forty", epoch=5)]))
        writer.enqueue(LogCommand.CLOSE)
        power.goes_after(operations)
        disk.fail = power.fails
        with contextlib.suppress(PowerLossError):
            writer.run()
        disk.crash(random)
        again = World(Path("/log"), disk=disk)
        start, end = again.log.start_offset, again.log.end_offset
        for header in again.log.headers(start):
            assert again.epochs.epoch_at(header.base_offset) == header.leader_epoch
        synced = [o.upto for o in world.outcomes if isinstance(o, Durable)]
        if synced == [6]:
            assert (start, end >= 6) == (0, True)
        if WasReset(40, 2) in world.outcomes:
            assert start == 40
        ends.add((start, end))
    assert {(0, 0), (0, 4), (0, 5), (0, 7), (40, 40)} <= ends


def test_what_comes_alone_is_durable_before_the_call_returns(tmp_path: Path) -> None:
    world = World(tmp_path, clock=QuickClock(), pool=WriterPool())
    world.publish(0, 2)
    assert world.write_here()
    assert (world.log.synced_offset, world.outcomes) == (2, [Durable(2)])
    world.publish(2)
    assert world.run() == [Durable(2), Durable(3)], "what follows is a thread's again"


def test_an_ack_does_not_wait_for_the_mark_of_what_is_synced(tmp_path: Path) -> None:
    world = World(tmp_path, clock=QuickClock(), pool=WriterPool())
    world.publish(0, 2)
    assert world.writer.write_here()
    assert world.outcomes == [Durable(2)]
    before = load_mark(tmp_path, REAL_DISK)
    world.writer.pass_on()
    after = load_mark(tmp_path, REAL_DISK)
    assert before is not None
    assert after is not None
    assert (before[0].end_offset, after[0].end_offset) == (0, 2)
    world.publish(2)
    world.run()
    closed = load_mark(tmp_path, REAL_DISK)
    assert closed is not None
    assert (closed[0].end_offset, closed[1]) == (3, True)


def test_what_others_copy_is_written_here_and_synced_on_a_thread(tmp_path: Path) -> None:
    world = World(tmp_path, clock=QuickClock(), pool=WriterPool())
    world.writer.reports_written = True
    world.publish(0, 2)
    assert world.write_here()
    wait_until(lambda: len(world.outcomes) == 2)
    assert world.outcomes == [Written(2, 0, tuple(world.log.frames(0))), Durable(2)]
    assert world.log.synced_offset == 2


def test_a_large_write_is_not_kept_for_followers(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.writer.reports_written = True
    messages = [Message(b"t.a", b"", b"", bytes(WRITE_HERE_BYTES_MAX))]
    world.writer.enqueue(Append([MessageRun(0, 1, messages)], 1))
    assert world.run() == [Written(1), Durable(1)]


def test_a_slow_disk_is_kept_away_from_the_caller(tmp_path: Path) -> None:
    pool = WriterPool()
    world = World(tmp_path, clock=QuickClock(), pool=pool)
    for _ in range(20):
        pool.note_disk(2 * WRITE_HERE_NS_MAX, syncs=True)
    world.publish(0)
    assert not world.write_here()
    assert world.log.end_offset == 0
    assert world.run() == [Durable(1)]
    while not pool.allows_here(syncs=True):
        pool.note_disk(WRITE_HERE_NS_MAX // 2, syncs=True)
    again = World(tmp_path, clock=QuickClock(), pool=pool)
    again.publish(1)
    assert again.write_here()
    assert again.outcomes == [Durable(2)]


class SteppingClock(SystemClock):
    """To it whatever is timed takes as long as a disk that stalls, or another time."""

    now_ns = 0

    def __init__(self, step_ns: int = DISK_STALL_NS_MIN) -> None:
        self.step_ns = step_ns

    @override
    def monotonic_ns(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


@pytest.mark.parametrize("fsync", ["commit", "never"])
def test_one_stall_of_the_disk_keeps_the_next_write_away(tmp_path: Path, fsync: Any) -> None:
    pool, config = WriterPool(), replace(CONFIG, fsync=fsync)
    world = World(tmp_path, clock=SteppingClock(), pool=pool, config=config)
    world.publish(0)
    assert world.write_here()
    assert world.outcomes == [Durable(1)]
    world.publish(1)
    assert not world.write_here()
    assert world.run() == [Durable(1), Durable(2)]


@pytest.mark.parametrize("fsync", ["commit", "never"])
def test_a_write_that_waited_for_a_core_does_not_keep_the_next_away(
    tmp_path: Path, fsync: Any
) -> None:
    clock = SteppingClock((DISK_STALL_NS_MIN - 1) // 4)  # it is read a few times for each write
    config = replace(CONFIG, fsync=fsync)
    world = World(tmp_path, clock=clock, pool=WriterPool(), config=config)
    for offset in range(3):
        world.publish(offset)
        assert world.write_here(), offset
    assert world.run()[-1] == Durable(3)


def test_what_may_take_long_is_left_to_a_thread(tmp_path: Path) -> None:
    world = World(tmp_path, clock=QuickClock(), pool=WriterPool())
    world.writer.enqueue(fetched([make_frame(n, bytes(900)) for n in range(2)]))
    assert world.write_here()
    assert world.outcomes == [Durable(2)]
    large = Append([MessageRun(2, 1, [Message(b"t.a", b"", b"", bytes(900))])], 900)
    world.writer.enqueue(large)  # it does not fit into the segment, so another is begun
    assert world.write_here()
    wait_until(lambda: len(world.outcomes) == 2)
    assert world.outcomes[1] == Durable(3)
    world.writer.enqueue(Truncate(2, 1))
    world.publish(2)
    assert world.write_here()
    world.writer.close()
    assert world.outcomes == [Durable(2), Durable(3), Cut(2, 1), Durable(3, 1)]


def test_a_command_that_another_thread_hands_over_meanwhile_is_left_to_a_thread(
    tmp_path: Path,
) -> None:
    sealed = threading.Event()

    class MeanwhileLog(CommitLog):
        """While the writer looks at it, the compactor asks for the segment to be sealed."""

        @override
        def roll_is_due(self, length: int) -> bool:
            found = super().roll_is_due(length)
            compactor = threading.Thread(target=world.writer.submit, args=(LogCommand.SEAL,))
            compactor.start()
            compactor.join()
            return found

        @override
        def roll(self) -> bool:
            sealed.set()
            return super().roll()

    world = World(tmp_path, clock=QuickClock(), pool=WriterPool(), kind=MeanwhileLog)
    world.publish(0)
    assert world.write_here()
    assert sealed.wait(20)
    world.publish(1)
    assert world.run() == [Durable(1), Durable(2)]


def test_nothing_overtakes_what_a_thread_is_at(tmp_path: Path) -> None:
    syncing, go_on = threading.Event(), threading.Event()

    class WaitingLog(CommitLog):
        @override
        def sync(self, *, mark: bool = True) -> int:
            syncing.set()
            assert go_on.wait(20)
            return super().sync(mark=mark)

    world = World(tmp_path, clock=QuickClock(), pool=WriterPool(), kind=WaitingLog)
    world.publish(0)
    world.writer.start()
    assert syncing.wait(20)
    world.publish(1)
    assert not world.write_here()
    go_on.set()
    world.writer.close()
    assert world.outcomes == [Durable(1), Durable(2)]


def test_a_disk_that_fails_here_ends_the_writing_and_close_does_not_wait(tmp_path: Path) -> None:
    class FullLog(CommitLog):
        @override
        def sync(self, *, mark: bool = True) -> int:
            if self.end_offset == 1:
                raise OSError(errno.ENOSPC, "no space")
            return super().sync(mark=mark)

    world = World(tmp_path, clock=QuickClock(), pool=WriterPool(), kind=FullLog)
    world.publish(0)
    assert world.write_here()
    [failed] = world.outcomes
    assert isinstance(failed, CommitFailed)
    world.publish(1)
    assert not world.write_here()
    with pytest.raises(LogFailedError, match="no space"):
        world.writer.close()
    assert world.outcomes == [failed]


def test_a_writer_that_is_woken_for_one_thing_asks_once_for_the_next(tmp_path: Path) -> None:
    calls_ns: list[int] = []

    class NotingPool(WriterPool):
        @override
        def run_at(self, due_ns: int, work: Any) -> None:
            calls_ns.append(due_ns)
            super().run_at(due_ns, work)

    kept = Retention(age_s=3600)
    config = replace(CONFIG, fsync="interval", fsync_interval_ms=1, retention=kept)
    world = World(tmp_path, pool=NotingPool(), config=config)
    for offset in range(5):
        world.publish(offset)
        world.writer.start()
        wait_until(lambda: world.log.synced_offset == offset + 1)  # noqa: B023 - called here
    world.run()
    later_ns = SystemClock().monotonic_ns() + 1_000_000_000
    assert len([due_ns for due_ns in calls_ns if due_ns > later_ns]) == 1


def test_a_look_costs_no_thread_where_nothing_is_due(tmp_path: Path) -> None:
    ran: list[Any] = []

    class NotingPool(WriterPool):
        @override
        def run(self, work: Any) -> None:
            ran.append(work)
            super().run(work)

    world = World(tmp_path, pool=NotingPool())
    world.writer.look()
    assert not ran
    assert world.run() == []


_DELETES = replace(CONFIG, retention=Retention(messages=5))


def _with_segments(world: World) -> None:
    """Have a log written of which retention deletes something, once it is to decide."""
    world.retention_task.leading = False
    for offset in range(0, 200, 20):
        world.publish(offset, 20)
        world.writer.start()
        wait_until(lambda: world.log.synced_offset == offset + 20)  # noqa: B023 - called here
    assert world.log.segment_count > 2


def test_retention_that_is_to_decide_from_now_on_does_so_at_a_look(tmp_path: Path) -> None:
    world = World(tmp_path, config=_DELETES, high_watermark=199)
    _with_segments(world)
    world.retention_task.leading = True
    world.writer.look()
    wait_until(lambda: ProducerSnapshotWanted(ids=True) in world.outcomes)
    world.run()


def test_a_look_while_the_writer_comes_to_rest_is_not_lost(tmp_path: Path) -> None:
    class LateLeader(RetentionTask):
        armed = False

        @override
        def due_ns(self) -> int | None:
            due_ns = super().due_ns()
            if self.armed:  # the writer has seen that nothing is due, and has the turn still
                self.armed, self.leading = False, True
                world.writer.look()
            return due_ns

    world = World(tmp_path, config=_DELETES, high_watermark=199, retention=LateLeader)
    _with_segments(world)
    assert isinstance(world.retention_task, LateLeader)
    world.retention_task.armed = True
    world.writer.look()
    wait_until(lambda: ProducerSnapshotWanted(ids=True) in world.outcomes)
    world.run()


def test_as_many_threads_as_allowed_write_and_everything_is_written() -> None:
    pool, names, done = WriterPool(2), set[str](), list[int]()
    both, go_on = threading.Barrier(3), threading.Event()

    def work(number: int) -> None:
        names.add(threading.current_thread().name)
        if number < 2:
            both.wait(20)
            assert go_on.wait(20)
        done.append(number)

    for number in range(10):
        pool.run(partial(work, number))
    both.wait(20)
    assert pool.busy
    assert (len(names), done) == (2, [])
    go_on.set()
    wait_until(lambda: len(done) == 10)
    assert len(names) == 2
    assert not pool.busy


def test_a_log_that_never_rests_lets_the_others_write(tmp_path: Path) -> None:
    pool = WriterPool(1)
    busy: World

    def publish_again(result: LogResult) -> None:
        match result:
            case Durable(upto) if len(other.outcomes) == 0:
                busy.publish(upto)

    busy = World(tmp_path / "busy", pool=pool, post=publish_again)
    other = World(tmp_path / "other", pool=pool)
    busy.publish(0)
    busy.writer.start()
    other.publish(0)
    other.writer.start()
    wait_until(lambda: other.outcomes)
    busy.run()


def test_what_is_due_earlier_comes_earlier() -> None:
    pool, done = WriterPool(), list[str]()
    now_ns = SystemClock().monotonic_ns()
    pool.run_at(now_ns + 3600 * 10**9, lambda: done.append("in an hour"))
    pool.run_at(now_ns + 20 * 10**6, lambda: done.append("second"))
    pool.run_at(now_ns + 10**6, lambda: done.append("first"))
    wait_until(lambda: len(done) == 2)
    assert done == ["first", "second"]

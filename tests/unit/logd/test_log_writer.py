"""The writer's turns: what is done in which order, how much of what waits is in memory twice."""

import contextlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.errors import CorruptFrameError
from penstock.logd.intake.turn import Append, Message, MessageRun
from penstock.logd.limits import FRAME_BYTES_MAX
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.log_writer import (
    CommitFailed,
    Cut,
    Durable,
    EpochBegun,
    Frame,
    LogWriter,
    Outcome,
    Patched,
    ProducerSnapshotSynced,
    ProducerSnapshotWanted,
    StartMoved,
    WasReset,
    Written,
)
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.retention import RetentionTask
from penstock.logd.storage import REAL_DISK, CommitLog, Disk, EpochFile, LogConfig, ReplicaFile
from penstock.logd.storage.segment import segment_path
from tests.sim.disk import MemoryDisk
from tests.sim.power import Power, PowerLossError
from tests.support.frames import make_frame
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
    outcomes: list[Outcome] = []
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
        append_bytes_max=12_000,
    )
    writer.submit(Append([*runs], 1))
    runs.clear()
    writer.start()
    wait_until(lambda: outcomes)
    assert outcomes == [Durable(10)], "one sync, one ack for all"
    assert max(lengths) <= 12_000
    assert len(lengths) == 4
    assert held == sorted(held, reverse=True)
    assert held[-1] <= 1
    writer.close()


class World:
    """A log, its writer, and what that reported. Nothing is done before `run`."""

    def __init__(self, directory: Path, *, disk: Disk = REAL_DISK, post: Any = None) -> None:
        self.directory, self.disk = directory, disk
        self.log = CommitLog.open(directory, LogConfig(segment_bytes_max=2_000), disk=disk)
        self.epochs = EpochFile(directory / "epochs", disk=disk)
        self.outcomes: list[Outcome] = []
        clock = SystemClock()
        self.retention_task = RetentionTask(
            self.log, CONFIG, interval_s=30, high_watermark=lambda: 0, clock=clock
        )
        self.writer = LogWriter(
            self.log,
            CONFIG,
            epochs=self.epochs,
            post=post or self.outcomes.append,
            clock=clock,
            retention_task=self.retention_task,
        )

    def run(self) -> list[Outcome]:
        """Do everything handed over and end; what was reported."""
        self.writer.start()
        self.writer.close()
        return self.outcomes

    def publish(self, base: int, count: int = 1) -> None:
        messages = [Message(b"t.a", b"", b"", b"%d" % n) for n in range(base, base + count)]
        self.writer.submit(Append([MessageRun(base, 1, messages)], 1))

    def frames(self) -> list[tuple[int, int, int]]:
        """(base offset, next offset, epoch) of each frame."""
        headers = self.log.headers(self.log.start_offset)
        return [(h.base_offset, h.next_offset, h.leader_epoch) for h in headers]


def test_orders_are_done_and_reported_in_the_order_they_were_given(tmp_path: Path) -> None:
    world = World(tmp_path)
    writer = world.writer
    writer.begin_epoch(1, 0)
    world.publish(0, 3)
    world.publish(3, 2)
    writer.begin_epoch(4, 5)
    world.publish(5, 2)
    writer.truncate(5, 1)
    writer.begin_epoch(6, 5)
    fetched = [make_frame(5, b"one", epoch=6), make_frame(6, b"two", epoch=6, records=3)]
    writer.append_fetched(fetched)
    writer.append_fetched([make_frame(9, b"three", epoch=6)])
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
    assert list(world.log.frames(5))[:2] == fetched, "as they came"
    assert EpochFile(tmp_path / "epochs").entries == [(1, 0), (6, 5)]


def test_a_cut_takes_whole_frames_and_the_epochs_above(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.writer.begin_epoch(1, 0)
    world.writer.append_fetched([make_frame(0, b"one", records=4), make_frame(4, b"two")])
    world.writer.begin_epoch(2, 4)
    world.writer.truncate(3, 7)
    world.writer.truncate(0, 8)
    assert world.run()[-2:] == [Cut(0, 7), Cut(0, 8)]
    assert EpochFile(tmp_path / "epochs").entries == []


def test_a_reset_forgets_epochs_and_what_was_remembered(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.writer.begin_epoch(3, 0)
    world.publish(0, 2)
    world.writer.reset(70, 1)
    world.writer.begin_epoch(2, 70)
    world.publish(70)
    ProducerSnapshot(2, ([], []), ([], []), b"", whole=True).save(tmp_path)
    assert world.run()[2:] == [WasReset(70, 1), EpochBegun(2), Durable(71, 1)]
    assert world.frames() == [(70, 71, 2)]
    assert EpochFile(tmp_path / "epochs").entries == [(2, 70)]
    assert ProducerSnapshot.load(tmp_path) is None


def test_what_is_written_is_told_before_it_is_durable(tmp_path: Path) -> None:
    outcomes: list[tuple[Outcome, int]] = []

    def note(outcome: Outcome) -> None:
        outcomes.append((outcome, world.log.synced_offset))

    world = World(tmp_path, post=note)
    world.writer.tell_written = True
    world.publish(0, 2)
    world.publish(2)
    world.run()
    assert outcomes == [(Written(3, 0), 0), (Durable(3, 0), 3)]


def test_a_memory_waits_for_what_was_given_before_it_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    memory = ProducerSnapshot(2, ([], []), ([], []), b"", whole=True)
    world.publish(0, 2)
    world.writer.sync_below(memory)
    world.publish(2)
    assert world.run() == [Durable(2), ProducerSnapshotSynced(memory), Durable(3)]


@pytest.mark.parametrize(
    "bad",
    [
        lambda writer: writer.truncate(9, 1),
        lambda writer: writer.begin_epoch(1, 0),
        lambda writer: writer.append_fetched([make_frame(5, b"a gap before it")]),
    ],
)
def test_an_order_that_cannot_be_done_ends_the_writing(tmp_path: Path, bad: Any) -> None:
    world = World(tmp_path)
    world.writer.begin_epoch(1, 0)
    world.publish(0)
    world.writer.seal()
    bad(world.writer)
    world.publish(1)
    *done, failed = world.run()
    assert done == [EpochBegun(1), Durable(1)]
    assert isinstance(failed, CommitFailed)
    assert world.writer.failed
    assert world.log.end_offset == 1


def test_what_is_submitted_after_a_failure_is_let_go(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.writer.truncate(9, 1)
    world.writer.start()
    wait_until(lambda: world.outcomes)
    run = ReferredRun(0, 1, [Message(b"t.a", b"", b"", b"x")], size=FRAME_BYTES_MAX)
    left = weakref.ref(run)
    world.writer.submit(Append([run], 1))
    del run
    assert left() is None
    world.writer.close()


def test_what_a_replica_knows_is_written_down_and_a_failure_is_passed_over(tmp_path: Path) -> None:
    assert ReplicaFile(tmp_path).load() == (-1, 0)
    world = World(tmp_path)
    world.writer.note(41, 3)
    world.run()
    assert ReplicaFile(tmp_path).load() == (41, 3)
    (tmp_path / "replica").write_bytes(b"rot")
    assert ReplicaFile(tmp_path).load() == (-1, 0)
    (tmp_path / "replica").unlink()
    (tmp_path / "replica").mkdir()
    world = World(tmp_path)
    world.writer.note(42, 3)
    world.publish(0)
    assert world.run() == [Durable(1)]
    world = World(tmp_path)
    world.writer.note(42, 3, durable=True)  # what follows must not be done without
    world.writer.truncate(0, 1)
    [failed] = world.run()
    assert isinstance(failed, CommitFailed)
    assert world.log.end_offset == 1


def test_damage_is_filled_unless_the_log_was_cut_since(tmp_path: Path) -> None:
    frames = [make_frame(n, b"%d" % n * 60) for n in range(3)]
    world = World(tmp_path)
    world.writer.append_fetched(frames)
    assert world.run() == [Durable(3)]
    path = segment_path(tmp_path, 0)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"1" * 60, b"!" * 60))
    world = World(tmp_path)
    with pytest.raises(CorruptFrameError):
        list(world.log.frames())
    assert world.log.damaged() == [(1, 2)]
    world.writer.patch(1, 2, [make_frame(0, b"cannot be cut down", records=3)], cuts=0)
    world.writer.truncate(3, 1)
    world.writer.patch(1, 2, frames[1:2], cuts=0)
    world.writer.truncate(3, 2)
    world.writer.patch(1, 2, frames[1:], cuts=2)
    assert world.run() == [Cut(3, 1), Cut(3, 2), Patched(1, 2, 2)]
    assert list(world.log.frames()) == frames
    assert world.log.damaged() == []


def test_a_follower_deletes_as_its_leader_did_once_it_is_remembered(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.retention_task.leading = False
    for offset in range(5):
        world.writer.append_fetched([make_frame(offset, bytes(100), epoch=1)])
        world.writer.seal()
    world.writer.delete_before(3)
    world.writer.remembered(2)
    world.writer.remembered(3)
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
        writer.begin_epoch(1, 0)
        writer.append_fetched([make_frame(n, bytes(900)) for n in range(6)])
        writer.begin_epoch(2, 6)
        writer.append_fetched([make_frame(6, b"six", epoch=2)])
        writer.truncate(4, 1)
        writer.append_fetched([make_frame(4, b"four")])
        writer.reset(40, 2)
        writer.begin_epoch(5, 40)
        writer.append_fetched([make_frame(40, b"forty", epoch=5)])
        writer.end()
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

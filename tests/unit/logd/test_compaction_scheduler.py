"""Compaction carried out on a real log: what it waits for, leaves alone, counts and gives up."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.compaction.cleaner import Pace, StoppedError
from penstock.logd.compaction.policy import SEAL_BYTES_MIN
from penstock.logd.compaction.scheduler import (
    CompactionScheduler,
    CompactionSettings,
    CompactionThread,
    Wants,
)
from penstock.logd.format.batch import Record, decode_body
from penstock.logd.format.frame import HEADER_SIZE
from penstock.logd.format.headers import Pairs
from penstock.logd.format.rows import batch_records
from penstock.logd.intake.dedup import Dedup
from penstock.logd.intake.intake import Intake
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.rebuild import rebuild_intake
from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.storage.segment import segment_path
from tests.support.failing_disk import FailingDisk
from tests.support.frames import make_batch_frame
from tests.support.waiting import wait_until

SECOND = 1_000_000_000
KEYED = StreamConfig(name="logs", subject="t.>", compact=True, tombstone_retention_s=50)
PLAIN = StreamConfig(name="logs", subject="t.>")


class World:
    """A log, its compaction, a clock that moves when somebody waits, and what was asked for."""

    def __init__(self, directory: Path, config: StreamConfig) -> None:
        self.now_ns = 1_000 * SECOND
        self.high_watermark = 1 << 40
        self.asked: list[str] = []
        self.config = config
        self.disk = FailingDisk()
        self.log = CommitLog.open(directory, LogConfig(), disk=self.disk, now_ns=self.unix_ns)
        self.begin()

    def begin(self, saved_below: int = 1 << 40) -> None:
        self.compaction_scheduler = CompactionScheduler(
            self.log,
            self.config,
            CompactionSettings(interval_s=1),
            high_watermark=lambda: self.high_watermark,
            wants=Wants(
                memory=lambda: self.asked.append("memory"), seal=lambda: self.asked.append("seal")
            ),
            clock=self,
        )
        self.compaction_scheduler.snapshot_saved(saved_below)
        self.pace = Pace(1 << 40, self, wait=self.wait, stopped=lambda: False)

    def unix_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND) + 1

    def append(
        self,
        *pairs: tuple[bytes | None, bytes | None],
        roll: bool = True,
        headers: Pairs = (),
        **options: Any,
    ) -> None:
        """A frame for each key and value, and then a new segment."""
        for key, value in pairs:
            record = Record("t.a", value, 1, key, headers)
            base = self.log.end_offset
            self.log.append([make_batch_frame(base, [record], **options)[:2]])
        self.log.sync()
        if roll:
            self.log.roll()

    def work(self, times: int = 8) -> None:
        for _ in range(times):
            self.now_ns += SECOND
            self.compaction_scheduler.work(self.pace)

    def records(self) -> dict[int, tuple[bytes | None, bytes | None]]:
        found = {}
        for header, body in self.log.frames(self.log.start_offset):
            for offset, record in batch_records(header, decode_body(body)):
                found[offset] = (record.key, record.value)
        return found


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda config=KEYED: World(tmp_path / "log", config)


def test_the_last_record_of_each_key_stays_and_tombstones_go_in_time(make: Make) -> None:
    world = make()
    world.append((b"a", b"1"), (b"b", b"1"), (None, b"x"), (b"a", b"2"))
    world.append((b"b", None), (None, None), (b"c", b"1"))
    world.append((b"c", b"2"), roll=False)
    world.work()
    left = {2: (None, b"x"), 3: (b"a", b"2"), 4: (b"b", None), 5: (None, None)}
    assert world.records() == left | {6: (b"c", b"1"), 7: (b"c", b"2")}
    world.begin()  # as after a restart
    world.now_ns += 40 * SECOND
    world.work(1)
    assert 4 in world.records()
    world.now_ns += 10 * SECOND
    world.work()
    del left[4]
    assert world.records() == left | {6: (b"c", b"1"), 7: (b"c", b"2")}
    assert world.compaction_scheduler.counts.records_removed == 1
    assert world.compaction_scheduler.counts.failures == 0


def test_nothing_happens_above_the_high_watermark_or_before_it_is_remembered(make: Make) -> None:
    world = make()
    world.append((b"a", b"1"), (b"a", b"2"))
    world.high_watermark = 0
    world.work()
    assert len(world.records()) == 2
    world.high_watermark = 1
    world.begin(saved_below=1)
    world.work(1)
    assert (len(world.records()), world.asked) == (2, ["memory"])
    world.compaction_scheduler.snapshot_saved(2)
    assert world.compaction_scheduler.due_ns <= world.now_ns
    world.work(1)
    assert world.records() == {1: (b"a", b"2")}


def test_a_stream_that_seals_faster_than_it_remembers_is_compacted_all_the_same(make: Make) -> None:
    world = make()
    world.begin(saved_below=0)
    for number in range(10):
        world.append((b"a", b"%d" % number), (b"b", b"%d" % number))
        world.work(1)
        world.compaction_scheduler.snapshot_saved(
            2 * number
        )  # the answer comes when there is another segment
    assert world.compaction_scheduler.counts.passes > 2
    assert len(world.records()) <= 8
    assert world.records()[18] == (b"a", b"9")


def test_the_active_segment_of_a_compacted_stream_is_sealed_when_it_is_large(make: Make) -> None:
    world = make()
    world.append((b"a", bytes(SEAL_BYTES_MIN)), roll=False)
    world.work(1)
    assert world.asked == ["seal"]
    plain = make(PLAIN)
    plain.work(1)
    assert plain.asked == []


def test_small_frames_are_packed_once(make: Make) -> None:
    world = make(PLAIN)
    world.append(*[(b"a", b"%d" % n) for n in range(300)])
    before, size = world.records(), world.log.size_bytes
    world.work()
    assert world.records() == before
    assert len(list(world.log.frames())) == 1
    counts = world.compaction_scheduler.counts
    assert (counts.segments_replaced, counts.bytes_freed) == (1, size - world.log.size_bytes)
    assert world.log.size_bytes * 8 < size
    world.begin()
    world.work()
    assert world.compaction_scheduler.counts.segments_replaced == 0
    assert world.compaction_scheduler.counts.bytes_written == 0


def test_small_segments_are_merged_and_retention_is_heeded(make: Make) -> None:
    world = make(PLAIN)
    for number in range(8):
        world.append((None, b"%d" % number))
    world.compaction_scheduler.paused = True
    world.work()
    assert world.log.segment_count == 9
    world.compaction_scheduler.paused = False
    world.work()
    assert world.log.segment_count == 2
    assert len(world.records()) == 8
    world.log.delete_before(8)
    assert world.log.start_offset == 8


def test_a_damaged_segment_is_left_alone_and_tombstones_above_it_stay(make: Make) -> None:
    world = make()
    world.append((b"a", b"1"), (b"b", b"1"), (b"b", b"2"))
    world.append((b"z", b"1"))
    world.append((b"a", None))
    path = segment_path(world.log.directory, 0)
    data = bytearray(path.read_bytes())
    data[HEADER_SIZE + 700] ^= 1  # in the body of the record that the tombstone removes
    path.write_bytes(data)
    world.work()
    world.now_ns += 100 * SECOND
    world.work()
    assert path.read_bytes() == data
    offsets = [
        offset
        for header, body in world.log.frames(3)
        for offset, _ in batch_records(header, decode_body(body))
    ]
    assert offsets == [3, 4], "the tombstone is still there"
    assert world.compaction_scheduler.counts.failures == 0


def test_a_full_disk_is_reported_and_tried_again_later(make: Make) -> None:
    world = make()
    world.append((b"a", b"1"), (b"a", b"2"))
    waits = []
    world.disk.full = True
    for _ in range(15):
        world.compaction_scheduler.work(world.pace)
        waits.append((world.compaction_scheduler.due_ns - world.now_ns) // SECOND)
        world.now_ns = world.compaction_scheduler.due_ns
    world.disk.full = False
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == 3600
    assert world.compaction_scheduler.counts.failures == 15
    assert "are free" in world.compaction_scheduler.counts.problem
    assert world.log.failure == ""
    assert not list(world.log.directory.glob("*swap*"))
    world.work()
    assert world.records() == {1: (b"a", b"2")}
    assert world.compaction_scheduler.counts.problem == ""


def test_stopping_in_the_middle_leaves_nothing_behind(make: Make) -> None:
    world = make(PLAIN)
    world.append(*[(b"a", b"%d" % n) for n in range(300)])
    pieces = 0

    def stopped() -> bool:
        nonlocal pieces
        pieces += 1
        return pieces > 400

    with pytest.raises(StoppedError):
        world.compaction_scheduler.work(Pace(1 << 40, world, wait=world.wait, stopped=stopped))
    assert not list(world.log.directory.glob("*swap*"))
    assert len(world.records()) == 300
    world.work()
    assert world.compaction_scheduler.counts.segments_replaced == 1


def test_headers_of_a_batch_are_no_message_ids_after_its_frame_was_merged(make: Make) -> None:
    world = make(PLAIN)
    ids = (("Nats-Msg-Id", b"in a batch"),)
    world.append((b"a", b"1"), headers=(("Nats-Msg-Id", b"plain"),), roll=False)
    world.append((b"a", b"2"), headers=ids, producer_id=b"p" * 16, producer_sequence=7, roll=False)
    world.append(*[(b"a", b"3")] * 100)
    intake = recall(world)
    intake.dedup.whole = True
    ProducerSnapshot.of(intake).save(world.log.directory)
    world.work()
    assert len(list(world.log.frames())) < 5
    again = recall(world)
    for each in (intake, again):
        assert each.dedup.message_ids.offset(b"plain", SECOND) == 0
        assert each.dedup.message_ids.offset(b"in a batch", SECOND) is None
        last = each.dedup.producers.last(b"p" * 16)
        assert last is not None
        assert (last.sequence, last.offset) == (7, 1)


def test_what_is_remembered_does_not_claim_ids_that_were_not_asked_for(make: Make) -> None:
    answers = itertools.chain([False, False], itertools.repeat(True))  # compaction's thread asks

    class Flipping(Dedup):
        @override
        def __getattribute__(self, name: str) -> Any:
            return next(answers) if name == "whole" else super().__getattribute__(name)

    intake = recall(make(PLAIN))
    intake.dedup = Flipping(PLAIN)
    intake.dedup.message_ids.record(b"one", 0, SECOND)
    memory = ProducerSnapshot.of(intake)
    assert memory.whole == bool(memory.ids[0])


def test_the_writer_hears_at_once_of_a_log_that_compaction_failed(make: Make) -> None:
    world = make()
    world.append((b"a", b"1"), (b"a", b"2"))
    with world.disk.fails("unlink"):
        world.compaction_scheduler.work(world.pace)
    assert "swap failed" in world.log.failure
    assert world.asked == ["seal"]


def test_a_bug_in_compaction_is_counted_and_tried_again_later(tmp_path: Path) -> None:
    class Broken(CompactionScheduler):
        @override
        def work(self, pace: Pace) -> None:
            raise ValueError("a bug")

    wants = Wants(memory=lambda: None, seal=lambda: None)
    settings, log = CompactionSettings(interval_s=3600), CommitLog.open(tmp_path, LogConfig())
    broken = Broken(
        log, PLAIN, settings, high_watermark=lambda: 99, wants=wants, clock=SystemClock()
    )
    broken.snapshot_saved(1)  # there is something to do at once
    compaction_thread = CompactionThread(settings, SystemClock())
    compaction_thread.add(broken)
    compaction_thread.start()
    wait_until(lambda: broken.counts.failures)
    compaction_thread.close()
    assert (broken.counts.failures, broken.counts.problem) == (1, "a bug")
    assert broken.due_ns > SystemClock().monotonic_ns()


def recall(world: World) -> Intake:
    intake = Intake(PLAIN, next_offset=world.log.end_offset, epoch=1, streams_for=lambda _: ())
    rebuild_intake(intake, world.log, SECOND)
    return intake


def test_the_pace_is_kept() -> None:
    class Clock(SystemClock):
        now_ns = 0

        @override
        def monotonic_ns(self) -> int:
            return self.now_ns

    clock, waited = Clock(), list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        clock.now_ns += int(seconds * SECOND) + 1

    pace = Pace(1_000_000, clock, wait=wait, stopped=lambda: False)
    for _ in range(100):
        pace.read(50_000)
        pace.wrote(50_000)
    assert 9.9 <= clock.now_ns / SECOND <= 10.1
    fast = Pace(1 << 60, clock, wait=wait, stopped=lambda: False)
    waited.clear()
    for _ in range(100):
        clock.now_ns += 1_000_000
        fast.read(1)
    assert 0.07 <= sum(waited) <= 0.13, "half of the time it does nothing"


def test_a_log_that_is_removed_is_left_at_once_and_the_others_are_not(tmp_path: Path) -> None:
    worked = threading.Event()

    class Slow(CompactionScheduler):
        @override
        def work(self, pace: Pace) -> None:
            while True:
                worked.set()
                pace.read(1 << 20)

    def compaction_scheduler(kind: type[CompactionScheduler], name: str) -> CompactionScheduler:
        log = CommitLog.open(tmp_path / name, LogConfig())
        for _ in range(4):
            log.append([make_batch_frame(log.end_offset, [Record("t", b"", 1)])[:2]])
            log.roll()
        wants = Wants(memory=lambda: None, seal=lambda: None)
        made = kind(
            log, PLAIN, settings, high_watermark=lambda: 99, wants=wants, clock=SystemClock()
        )
        made.snapshot_saved(99)
        return made

    settings = CompactionSettings(interval_s=0.05, bytes_per_s_max=1 << 16)
    compaction_thread = CompactionThread(settings, SystemClock())
    slow, other = (
        compaction_scheduler(Slow, "slow"),
        compaction_scheduler(CompactionScheduler, "other"),
    )
    compaction_thread.add(slow)
    compaction_thread.start()
    assert worked.wait(20)
    compaction_thread.add(other)
    compaction_thread.remove(slow)
    wait_until(lambda: other.counts.segments_replaced == 4)
    compaction_thread.wake(slow)
    compaction_thread.remove(slow)
    compaction_thread.remove(other)
    compaction_thread.close()

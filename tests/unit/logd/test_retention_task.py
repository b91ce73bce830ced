"""Retention carried out on a real log: when it looks, what it waits for, what is remembered."""

import errno
import os
from pathlib import Path

import pytest
from typing_extensions import override

from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.format.headers import format_headers
from penstock.logd.intake.dedup import Duplicate
from penstock.logd.intake.intake import Arrived, Intake
from penstock.logd.intake.turn import Append, Message
from penstock.logd.metadata.retention_policy import Retention
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.log_writer import build_frames
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.rebuild import rebuild_intake
from penstock.logd.partition.retention import RetentionTask
from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.storage.disk import REAL_DISK, File
from penstock.logd.storage.reader import LogReader
from penstock.logd.storage.recovery import Recovery
from penstock.logd.storage.segment import Segment, SegmentList
from tests.support.failing_disk import FailingDisk
from tests.support.frames import make_frame, make_frames

SECOND = 1_000_000_000
CONFIG = StreamConfig(name="logs", subject="t.>", retention=Retention(messages=4))


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000 * SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> CommitLog:
    return CommitLog.open(tmp_path / "log", LogConfig(), now_ns=clock.unix_ns)


def fill(log: CommitLog, segments: int, *, each: int = 4) -> None:
    for _ in range(segments):
        log.append(make_frames(log.end_offset, [b"x" * 40] * each))
        log.sync()
        log.roll()


def make_retention_task(
    log: CommitLog, clock: ManualClock, high_watermark: int = 1 << 40
) -> RetentionTask:
    return RetentionTask(
        log, CONFIG, interval_s=30, high_watermark=lambda: high_watermark, clock=clock
    )


def test_nothing_is_deleted_before_it_is_remembered_then_one_segment_a_step(
    log: CommitLog, clock: ManualClock
) -> None:
    fill(log, 4)
    retention_task = make_retention_task(log, clock)
    assert retention_task.step()
    assert not retention_task.step()
    clock.now_ns += 30 * SECOND
    assert retention_task.step(), "asked again in the next interval"
    assert log.start_offset == 0
    retention_task.snapshot_saved(11)
    assert retention_task.step(), "the third segment ends at 12"
    retention_task.snapshot_saved(16)
    for start in (4, 8, 12):
        assert retention_task.due_ns() == clock.now_ns
        assert not retention_task.step()
        assert log.start_offset == start
        assert not retention_task.step(), "paced"
        assert log.start_offset == start
        clock.now_ns += SECOND // 100
    assert not retention_task.step()
    assert (retention_task.segments_deleted, retention_task.records_deleted) == (3, 12)
    assert retention_task.due_ns() == clock.now_ns + 30 * SECOND


def test_a_log_without_limits_is_never_looked_at(log: CommitLog, clock: ManualClock) -> None:
    config = StreamConfig(name="logs", subject="t.>")
    retention_task = RetentionTask(
        log, config, interval_s=1, high_watermark=lambda: 99, clock=clock
    )
    fill(log, 3)
    assert retention_task.due_ns() is None
    assert not retention_task.step()


def test_a_sealed_segment_is_reason_to_look_at_once(log: CommitLog, clock: ManualClock) -> None:
    retention_task = make_retention_task(log, clock)
    retention_task.snapshot_saved(1 << 40)
    assert not retention_task.step()
    fill(log, 2)
    assert not retention_task.step()
    assert log.start_offset == 4


def test_the_high_watermark_holds_deletion_back(log: CommitLog, clock: ManualClock) -> None:
    fill(log, 4)
    retention_task = make_retention_task(log, clock, high_watermark=8)
    retention_task.snapshot_saved(1 << 40)
    for _ in range(10):
        retention_task.step()
        clock.now_ns += SECOND
    assert log.start_offset == 4, "9 records are committed, 5 of them after the first segment"


def test_a_record_of_the_future_counts_as_of_its_arrival(
    log: CommitLog, clock: ManualClock
) -> None:
    config = StreamConfig(name="logs", subject="t.>", retention=Retention(age_s=60))
    log.append([make_frame(0, b"x", timestamp_ns=clock.now_ns * 2)])
    log.sync()
    retention_task = RetentionTask(log, config, interval_s=1, high_watermark=lambda: 0, clock=clock)
    retention_task.snapshot_saved(1 << 40)
    for age_s, start in ((0, 0), (59, 0), (1, 1)):
        clock.now_ns += age_s * SECOND
        for _ in range(3):
            retention_task.step()
            clock.now_ns += 1
        assert log.start_offset == start


def test_what_is_being_read_stays_readable(log: CommitLog) -> None:
    fill(log, 3)
    (part, *_) = log.read(0, bytes_max=10_000, upto=12)
    assert log.delete_before(12) == 12
    assert len(os.pread(part.file.fileno(), part.length, part.position)) == part.length


class Overtaken(SegmentList):
    """The first two segments are deleted as soon as a reader has seen that they are there."""

    def __init__(self, segments: list[Segment], active_file: File | None) -> None:
        super().__init__(segments, active_file)
        self.left = 2

    @override
    def check_range(self, offset: int) -> None:
        super().check_range(offset)
        while self.left:
            self.left -= 1
            self.drop_first().unlink()


def test_a_reader_overtaken_by_deletion_is_told(tmp_path: Path) -> None:

    def ranges(log: LogReader) -> object:
        return log.read(1, bytes_max=10_000, upto=12)

    def frames(log: LogReader) -> object:
        return list(log.frames(1))

    def headers(log: LogReader) -> object:
        return list(log.headers(1))

    for number, read in enumerate((ranges, frames, headers)):
        directory = tmp_path / str(number)
        written = CommitLog.open(directory, LogConfig())
        fill(written, 3)
        written.close()
        recovered = Recovery(directory, interval_bytes=4096, disk=REAL_DISK).run()
        with pytest.raises(RefusedError) as raised:
            read(LogReader(directory, Overtaken(*recovered)))
        assert raised.value.detail == {"earliest": 8, "latest": 12}


def make_intake(log: CommitLog) -> Intake:
    intake = Intake(CONFIG, next_offset=log.end_offset, epoch=1, streams_for=lambda _: ())
    rebuild_intake(intake, log, 1_000_001 * SECOND)
    return intake


def test_ids_and_producers_outlive_their_records(log: CommitLog, clock: ManualClock) -> None:
    intake = make_intake(log)
    headers = format_headers((("Nats-Msg-Id", b"one"),))
    store(log, intake, Message(b"t.a", b"r", headers, b"x"), clock)
    rows = build_batch([Record("t.a", b"x", clock.now_ns)])
    body = encode_body(rows)
    described = describe_body(body, rows, producer_id=b"p" * 16, producer_sequence=9)
    header = described.at(base_offset=1, leader_epoch=1)
    log.append([(header, body)])
    intake.dedup.recall_producer(header, clock.now_ns)
    intake.next_offset = 2
    log.sync()
    log.roll()
    store(log, intake, Message(b"t.a", b"r", b"", b"y"), clock)
    ProducerSnapshot.of(intake).save(log.directory)
    log.delete_before(2)
    for epoch in (2, 3):  # the second time from what the first has written
        reopened = CommitLog.open(log.directory, LogConfig())
        assert (reopened.start_offset, reopened.end_offset) == (2, 3)
        again = Intake(CONFIG, next_offset=3, epoch=epoch, streams_for=lambda _: ())
        rebuild_intake(again, reopened, clock.now_ns + SECOND)
        assert again.dedup.message_ids.offset(b"one", clock.now_ns + SECOND) == 0
        assert again.dedup.producers.check(b"p" * 16, 8, 9, clock.now_ns) == Duplicate(1)


def store(log: CommitLog, intake: Intake, message: Message, clock: ManualClock) -> None:
    effects = intake.handle(Arrived([message], 1 << 20), clock.unix_ns())
    (append, *_) = [effect for effect in effects if isinstance(effect, Append)]
    log.append(list(build_frames(append.items, epoch=1)))
    log.sync()


def test_a_full_disk_delays_the_sealing_of_an_idle_stream_and_does_not_fail_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = FailingDisk()
    log = CommitLog.open(tmp_path, LogConfig(), disk=disk, now_ns=clock.unix_ns)
    log.append(make_frames(0, [b"x"] * 4))
    log.sync()
    retention_task = make_retention_task(log, clock)
    with disk.fails("create", errno.ENOSPC):
        assert not retention_task.step()
    assert (log.failure, log.segment_count) == ("", 1)
    assert retention_task.due_ns() == clock.now_ns + 30 * SECOND, "not at once again"
    clock.now_ns += 30 * SECOND
    assert not retention_task.step()
    assert log.segment_count == 2


def test_a_follower_decides_nothing_and_deletes_whole_segments_below_its_leaders_start(
    log: CommitLog, clock: ManualClock
) -> None:
    fill(log, 4)
    retention_task = make_retention_task(log, clock)
    retention_task.leading = False
    assert not retention_task.step()
    assert retention_task.due_ns() is None, "its own limit of 4 messages is not looked at"
    retention_task.delete_before(11)
    assert retention_task.step(), "not before it is remembered"
    retention_task.snapshot_saved(8)
    for start in (4, 8):
        assert not retention_task.step()
        assert log.start_offset == start
        clock.now_ns += SECOND
    assert not retention_task.step()
    assert (log.start_offset, retention_task.due_ns()) == (8, None)
    retention_task.leading = True
    clock.now_ns += 30 * SECOND
    assert retention_task.step(), "now it decides"


def test_what_was_to_be_deleted_before_a_cut_is_not_after_it(
    log: CommitLog, clock: ManualClock
) -> None:
    fill(log, 3)
    retention_task = make_retention_task(log, clock)
    retention_task.leading = False
    retention_task.delete_before(12)
    assert retention_task.step()
    log.reset(0)
    retention_task.was_cut()
    fill(log, 3)
    clock.now_ns += 60 * SECOND
    retention_task.snapshot_saved(99)
    assert not retention_task.step()
    assert log.start_offset == 0


def test_what_was_written_down_of_records_that_are_cut_off_counts_no_more(
    log: CommitLog, clock: ManualClock
) -> None:
    fill(log, 3)
    retention_task = make_retention_task(log, clock)
    retention_task.leading = False
    retention_task.snapshot_saved(12)  # that file is removed with the records of which it speaks
    log.truncate_to(8)
    retention_task.was_cut()
    retention_task.delete_before(4)
    assert retention_task.step(), "nothing is deleted before it is written down again"
    assert log.start_offset == 0
    retention_task.snapshot_saved(8)
    assert not retention_task.step()
    assert log.start_offset == 4


def test_what_is_purged_goes_whatever_is_to_be_kept_the_active_segment_too(
    log: CommitLog, clock: ManualClock
) -> None:
    fill(log, 2)
    log.append(make_frames(log.end_offset, [b"x"] * 3))
    retention_task = make_retention_task(log, clock)
    retention_task.leading = False
    retention_task.snapshot_saved(1 << 40)
    retention_task.purge_before(10)
    for _ in range(4):
        retention_task.step()
        clock.now_ns += SECOND
    assert log.start_offset == 8, "10 lies in the active segment"
    retention_task.purge_before(11)
    for _ in range(2):
        retention_task.step()
        clock.now_ns += SECOND
    assert (log.start_offset, log.end_offset, log.segment_count) == (11, 11, 1)
    assert retention_task.records_deleted == 11
    log.append(make_frames(11, [b"x"]))
    clock.now_ns += 60 * SECOND
    retention_task.step()
    assert log.start_offset == 11


def test_a_purge_that_finds_no_room_to_seal_is_done_when_there_is_some(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = FailingDisk()
    log = CommitLog.open(tmp_path, LogConfig(), disk=disk, now_ns=clock.unix_ns)
    fill(log, 1)
    log.append(make_frames(log.end_offset, [b"x"] * 3))
    log.sync()
    retention_task = make_retention_task(log, clock)
    retention_task.leading = False
    retention_task.snapshot_saved(1 << 40)
    with disk.fails("create", errno.ENOSPC):
        retention_task.purge_before(log.end_offset)
        for _ in range(3):
            retention_task.step()
            clock.now_ns += SECOND
    assert (log.start_offset, log.end_offset) == (4, 7)
    due_ns = retention_task.due_ns()
    assert due_ns is not None
    clock.now_ns = due_ns
    for _ in range(2):
        retention_task.step()
        clock.now_ns += SECOND
    assert log.start_offset == 7
    assert retention_task.due_ns() is None, "nothing is left to be purged"


def test_a_purge_waits_for_what_is_remembered_and_ends_with_a_cut(
    log: CommitLog, clock: ManualClock
) -> None:
    fill(log, 2)
    retention_task = make_retention_task(log, clock)
    retention_task.leading = False
    retention_task.purge_before(8)
    assert retention_task.step()
    assert log.start_offset == 0
    log.truncate_to(4)
    retention_task.was_cut()
    retention_task.snapshot_saved(1 << 40)
    for _ in range(3):
        retention_task.step()
        clock.now_ns += SECOND
    assert log.start_offset == 4

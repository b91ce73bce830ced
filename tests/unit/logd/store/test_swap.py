"""Rewritten segments take the place of others; what a crash leaves of that, row by row."""

import contextlib
import shutil
import threading
from pathlib import Path

import pytest

from penstock.logd.errors import LogFailedError, RefusedError
from penstock.logd.format.batch import Record, decode_body
from penstock.logd.format.frame import HEADER_SIZE
from penstock.logd.format.rows import batch_records
from penstock.logd.offline.fsck import Inspection, RepairAction, apply, plan
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.storage import CommitLog, EpochFile, LogConfig, Rewriting, SegmentMerger
from penstock.logd.storage.disk import REAL_DISK, Disk
from penstock.logd.storage.segment import segment_path
from tests.support.failing_disk import FailingDisk
from tests.support.frames import make_batch_frame, make_frame
from tests.support.logd_store import state_of

CONFIG = LogConfig(max_segment_bytes=1 << 20, index_interval_bytes=300)
SEGMENTS, EACH = 4, 3


def record(offset: int) -> Record:
    return Record("t.a", b"value %d" % offset, 1_000 + offset, b"k%d" % (offset % 2))


def fill(directory: Path, disk: Disk = REAL_DISK) -> CommitLog:
    """Four sealed segments of three records each, and one record in the active segment."""
    log = CommitLog.open(directory, CONFIG, disk=disk, now_ns=lambda: 0)
    EpochFile(directory / "epochs").begin(1, 0)
    for number in range(SEGMENTS * EACH + 1):
        header, body, _ = make_batch_frame(number, [record(number)])
        log.append([(header, body)])
        log.sync()
        if number % EACH == EACH - 1:
            log.roll()
    ProducerSnapshot(log.end_offset, ([], []), ([], []), b"", whole=True).save(directory)
    return log


def rewrite(
    log: CommitLog, base: int, end: int, *, drop: frozenset[int] = frozenset()
) -> Rewriting:
    """Rewrite a range without some of its records."""
    merger = SegmentMerger(
        lambda header, batch: [n not in drop for n, _ in batch_records(header, batch)]
    )
    rewriting = log.begin_rewriting(base, end)
    for header, body in log.frames(base, upto=end):
        for frame in merger.take(header, body):
            rewriting.add(*frame)
    for frame in merger.finish():
        rewriting.add(*frame)
    rewriting.finish()
    return rewriting


def offsets(log: CommitLog, start: int = 0) -> list[int]:
    """What can be read, each record checked against its offset; frames tile the range."""
    found, expected = [], log.start_offset
    for header, body in log.frames(max(start, log.start_offset)):
        assert start or header.base_offset == expected
        expected = header.next_offset
        for offset, got in batch_records(header, decode_body(body)):
            assert got == record(offset)
            found.append(offset)
    assert expected == log.end_offset
    return found


def reopen(directory: Path) -> CommitLog:
    return CommitLog.open(directory, CONFIG, now_ns=lambda: 0)


def rows(log: CommitLog) -> str:
    return "".join(finding.row for finding in log.recovery.findings)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("0*")}


def test_a_run_is_replaced_and_reads_like_before(tmp_path: Path) -> None:
    log = fill(tmp_path)
    size = log.size_bytes
    (before, *_) = log.read(4, bytes_max=1, upto=13)
    assert log.swap_in(rewrite(log, 3, 9, drop=frozenset({3, 7, 8})))
    assert offsets(log) == [0, 1, 2, 4, 5, 6, 9, 10, 11, 12]
    assert log.segment_count == SEGMENTS
    assert log.size_bytes < size
    assert log.offset_for_timestamp(1_003) == 4
    assert log.offset_for_timestamp(1_008) == 9
    assert before.file.read(before.position, before.length)[:4] == b"PNSF"
    assert {f"{base:020d}.log" for base in (0, 3, 9, 12)} <= names(tmp_path)
    assert not [name for name in names(tmp_path) if "swap" in name]
    log.close()
    again = reopen(tmp_path)
    assert again.recovery.clean
    assert offsets(again) == [0, 1, 2, 4, 5, 6, 9, 10, 11, 12]
    assert Inspection(tmp_path).run().verdict == "sound"


def test_a_segment_of_which_nothing_is_left_keeps_its_range(tmp_path: Path) -> None:
    log = fill(tmp_path)
    assert log.swap_in(rewrite(log, 0, 6, drop=frozenset(range(6))))
    ((header, body), *_) = log.frames()
    assert (header.base_offset, header.next_offset, header.record_count) == (0, 6, 0)
    assert decode_body(body).num_rows == 0
    assert header.compacted
    assert log.offset_for_timestamp(0) == 6
    assert log.segments()[0].newest_ns < 0
    log.close()
    assert offsets(reopen(tmp_path)) == list(range(6, 13))


def test_frames_of_two_epochs_are_not_joined(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path, CONFIG)
    for number, epoch in enumerate([1, 1, 2, 2]):
        log.append([make_batch_frame(number, [record(number)], epoch=epoch)[:2]])
    log.roll()
    assert log.swap_in(rewrite(log, 0, 4, drop=frozenset({1, 2})))
    found = [(h.base_offset, h.next_offset, h.leader_epoch) for h, _ in log.frames()]
    assert found == [(0, 2, 1), (2, 4, 2)]


def test_what_cannot_be_understood_is_copied_as_it_is(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path, CONFIG)
    frames = [make_batch_frame(0, [record(0)])[:2], make_frame(1, b"opaque", records=3)]
    frames.append(make_batch_frame(4, [record(4)], producer_id=b"p" * 16, producer_sequence=9)[:2])
    log.append(frames)
    log.roll()
    assert log.swap_in(rewrite(log, 0, 5, drop=frozenset({0})))
    got = list(log.frames())
    assert got[1:] == frames[1:]
    assert (got[0][0].record_count, got[0][0].compacted) == (0, True)


def test_a_run_that_is_not_there_any_more_is_not_replaced(tmp_path: Path) -> None:
    log = fill(tmp_path)
    rewriting = rewrite(log, 0, 6)
    log.delete_before(3)
    assert not log.swap_in(rewriting)
    rewriting.discard()
    assert not [name for name in names(tmp_path) if "swap" in name]
    assert offsets(log) == list(range(3, 13))
    for base, end in ((3, 7), (4, 6), (9, 13)):
        rewriting = log.begin_rewriting(base, end)
        assert not log.swap_in(rewriting)
        rewriting.discard()


def test_readers_with_the_old_list_go_on_with_the_old_files(tmp_path: Path) -> None:
    log = fill(tmp_path)
    log.close()  # no file is open
    log = reopen(tmp_path)
    reading = log.frames()
    first, _ = next(reading)
    assert log.swap_in(rewrite(log, 0, 12, drop=frozenset({1, 4, 10})))
    found = [first.base_offset, *(header.base_offset for header, _ in reading)]
    assert found == list(range(13)), "every record of the old segments, though their files went"


@pytest.mark.parametrize("operation", ["rename", "sync_directory"])
def test_a_failed_publication_leaves_the_log_as_it_was(tmp_path: Path, operation: str) -> None:
    disk = FailingDisk()
    log = fill(tmp_path, disk)
    rewriting = rewrite(log, 0, 12, drop=frozenset({1}))
    with disk.fails(operation), pytest.raises(OSError, match="Input/output error"):
        log.swap_in(rewriting)
    rewriting.discard()
    assert offsets(log) == list(range(13))
    assert log.failure == ""
    assert not [name for name in names(tmp_path) if "swap" in name]
    assert log.swap_in(rewrite(log, 0, 12, drop=frozenset({1})))


def half_swapped(directory: Path, source: Path, *, steps: int) -> Path:
    """A directory as a crash leaves it in the middle of a swap of offsets 3 to 9; the swap file."""
    log = fill(source)
    rewriting = rewrite(log, 3, 9, drop=frozenset({4, 8}))
    swap = rewriting.swap.path
    rewriting.swap.temporary_path.rename(swap)
    for path in (segment_path(source, 6), segment_path(source, 6, ".index"))[:steps]:
        path.unlink()
    shutil.copytree(source, directory)
    return directory / swap.name


LEFT = [0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 12]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_n_a_sound_swap_is_completed(tmp_path: Path, steps: int) -> None:
    swap = half_swapped(tmp_path / "log", tmp_path / "made", steps=steps)
    log = reopen(tmp_path / "log")
    assert rows(log).replace("D", "") == "NEE"
    assert offsets(log) == LEFT
    assert not swap.exists()
    log.close()
    assert reopen(tmp_path / "log").recovery.clean


def test_o_a_damaged_swap_is_removed_while_the_run_is_whole(tmp_path: Path) -> None:
    swap = half_swapped(tmp_path / "log", tmp_path / "made", steps=0)
    damage(swap)
    log = reopen(tmp_path / "log")
    assert rows(log) == "OE"
    assert offsets(log) == list(range(13))
    assert not swap.exists()


def test_p_a_damaged_swap_is_all_that_is_left(tmp_path: Path) -> None:
    swap = half_swapped(tmp_path / "log", tmp_path / "made", steps=1)
    damage(swap)
    log = reopen(tmp_path / "log")
    assert "P" in rows(log)
    assert [(f.offset, f.next_offset) for f in log.recovery.damages] == [(3, 9)]
    assert offsets(log, 9) == [9, 10, 11, 12]


def test_p_what_a_damaged_swap_replaces_is_set_aside(tmp_path: Path) -> None:
    swap = half_swapped(tmp_path / "log", tmp_path / "made", steps=1)
    damage(swap)
    left = segment_path(swap.parent, 3).read_bytes()
    reopen(swap.parent)
    assert segment_path(swap.parent, 3, ".replaced").read_bytes() == left
    assert rows(reopen(swap.parent)).strip("EI") == "", "nothing is left to do"
    problems = Inspection(swap.parent).run().problems
    notes = [problem.file for problem in problems if "was left of" in problem.reason]
    assert notes == [str(segment_path(swap.parent, 3, ".replaced"))]


def test_p_a_damaged_swap_is_kept_when_the_run_has_lost_its_first_segment(tmp_path: Path) -> None:
    swap = half_swapped(tmp_path / "log", tmp_path / "made", steps=0)
    damage(swap)
    data = swap.read_bytes()
    segment_path(swap.parent, 3).unlink()
    log = reopen(swap.parent)
    assert "P" in rows(log)
    assert segment_path(swap.parent, 3).read_bytes() == data
    assert segment_path(swap.parent, 6, ".replaced").exists()


def test_nothing_is_deleted_after_a_swap_that_failed_half_way(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    log = fill(tmp_path, disk)
    rewriting = rewrite(log, 0, 6)
    deleting = threading.Thread(target=lambda: suppressed(log, 9), daemon=True)

    def fail(operation: str, _: Path) -> None:
        """While retention, past its first look, waits for the swap to end."""
        if operation == "unlink":
            deleting.start()
            deleting.join(0.2)
            raise OSError(5, "broken")

    with disk.before(fail), pytest.raises(LogFailedError, match="swap failed"):
        log.swap_in(rewriting)
    deleting.join()
    assert offsets(reopen(tmp_path)) == list(range(13))


def suppressed(log: CommitLog, offset: int) -> None:
    with contextlib.suppress(LogFailedError):
        log.delete_before(offset)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[HEADER_SIZE + 20] ^= 1
    path.write_bytes(data)


def test_m_a_swap_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    swap = half_swapped(tmp_path / "log", tmp_path / "made", steps=1)
    data = bytearray(swap.read_bytes())
    data[4] = 2
    from penstock.logd.format.frame import crc32c

    data[8:12] = crc32c(bytes(data[:8] + data[12:HEADER_SIZE])).to_bytes(4, "little")
    swap.write_bytes(data)
    before = state_of(tmp_path / "log")
    with pytest.raises(RefusedError, match="version 2"):
        reopen(tmp_path / "log")
    assert state_of(tmp_path / "log") == before


@pytest.mark.parametrize("sound", [True, False])
def test_repair_completes_a_sound_swap_and_leaves_a_damaged_one(
    tmp_path: Path, *, sound: bool
) -> None:
    swap = half_swapped(tmp_path / "log", tmp_path / "made", steps=1)
    if not sound:
        damage(swap)
    inspection = Inspection(tmp_path / "log")
    before = state_of(tmp_path / "log")
    report = inspection.run()
    assert state_of(tmp_path / "log") == before
    assert report.verdict == ("unclean" if sound else "damaged")
    actions = plan(inspection)
    assert (RepairAction.SWAP in [action.deed for action in actions]) == sound
    assert [str(action) for action in actions]
    apply(actions)
    assert swap.exists() != sound
    again = Inspection(tmp_path / "log")
    again.run()
    assert plan(again) == []
    if sound:
        log = reopen(tmp_path / "log")
        assert rows(log).strip("D") == "", "index files without a log do no harm"
        assert offsets(log) == LEFT

"""Row Q of the recovery table: the last segment has grown since its index was saved."""

import errno
from pathlib import Path

import pytest

from penstock.logd.errors import CorruptFrameError
from penstock.logd.offline.fsck import Inspection
from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.storage.disk import REAL_DISK, Disk
from penstock.logd.storage.segment import segment_path
from tests.support.failing_disk import FailingDisk
from tests.support.frames import make_frame, make_frames

BODIES = [bytes([65 + number]) * 104 for number in range(20)]
(FRAME, *_) = {header.frame_length for header, _ in make_frames(0, BODIES)}
SAVED = 6
"""Frames that the saved index speaks of."""

CONFIG = LogConfig(index_interval_bytes=2 * FRAME, index_save_bytes=SAVED * FRAME)
LOG = segment_path(Path(), 0)


def fill(directory: Path, count: int = 10, *, disk: Disk = REAL_DISK) -> CommitLog:
    """A log of frames that are synced one by one, not closed, as after a kill."""
    log = CommitLog.open(directory, CONFIG, disk=disk)
    for number in range(count):
        log.append([make_frame(number, BODIES[number], timestamp_ns=number)])
        log.sync()
    return log


def reopen(directory: Path) -> CommitLog:
    return CommitLog.open(directory, CONFIG)


def rows(log: CommitLog) -> str:
    return "".join(finding.row for finding in log.recovery.findings)


def bodies(log: CommitLog, offset: int = 0) -> list[bytes]:
    return [body for _, body in log.frames(offset)]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_q_only_what_came_after_the_index_is_read(tmp_path: Path) -> None:
    fill(tmp_path)
    log = reopen(tmp_path)
    assert rows(log) == "Q"
    assert log.recovery.bytes_scanned == (10 - SAVED) * FRAME
    assert (bodies(log), log.end_offset, log.recovery.damages) == (BODIES[:10], 10, [])
    assert [log.offset_for_timestamp(time_ns) for time_ns in range(11)] == list(range(11))
    for offset in range(10):
        (part, *_) = log.read(offset, bytes_max=1, upto=10)
        assert (part.base_offset, part.position) == (offset, offset * FRAME)


def test_q_what_is_appended_then_is_found_after_the_next_kill(tmp_path: Path) -> None:
    fill(tmp_path)
    log = reopen(tmp_path)
    log.append(make_frames(10, BODIES[10:12]))
    log.sync()
    log = reopen(tmp_path)
    assert (rows(log), log.recovery.bytes_scanned) == ("", 0), "saved again with the first sync"
    assert bodies(log) == BODIES[:12]


@pytest.mark.parametrize("cut", [1, FRAME // 2, FRAME - 1])
def test_q_a_torn_tail_is_cut(tmp_path: Path, cut: int) -> None:
    fill(tmp_path).append(make_frames(10, [BODIES[10]]))
    path = tmp_path / LOG
    path.write_bytes(path.read_bytes()[:-cut])
    log = reopen(tmp_path)
    assert (rows(log), bodies(log)) == ("QF", BODIES[:10])


def test_q_damage_behind_the_index_is_found_at_once(tmp_path: Path) -> None:
    fill(tmp_path)
    flip(tmp_path / LOG, 7 * FRAME + 100)
    log = reopen(tmp_path)
    assert rows(log) == "QH"
    assert [(d.offset, d.next_offset) for d in log.recovery.damages] == [(7, 8)]
    assert rows(reopen(tmp_path)) == "EI", "and again, by a scan of the whole segment"


def test_q_damage_below_the_index_is_found_when_read(tmp_path: Path) -> None:
    fill(tmp_path)
    flip(tmp_path / LOG, 3 * FRAME + 100)
    log = reopen(tmp_path)
    assert rows(log) == "Q"
    (part, *_) = log.read(0, bytes_max=10_000, upto=10)
    assert part.next_offset == 3
    with pytest.raises(CorruptFrameError):
        log.read(3, bytes_max=10_000, upto=10)
    (part, *_) = log.read(4, bytes_max=10_000, upto=10)
    assert (part.base_offset, part.next_offset) == (4, 10)


def test_q_a_log_that_is_shorter_than_the_index_says_is_read_whole(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / LOG
    path.write_bytes(path.read_bytes()[: 4 * FRAME])
    log = reopen(tmp_path)
    assert rows(log) == "EH"
    assert [(d.offset, d.next_offset) for d in log.recovery.damages] == [(4, 10)]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_q_a_kill_between_the_two_files_leaves_the_older_one(tmp_path: Path, suffix: str) -> None:
    fill(tmp_path, SAVED)
    older = (tmp_path / LOG).with_suffix(suffix)
    data = older.read_bytes()
    fill_on = reopen(tmp_path)
    for number in range(SAVED, 2 * SAVED + 1):
        fill_on.append([make_frame(number, BODIES[number], timestamp_ns=number)])
        fill_on.sync()
    older.write_bytes(data)
    log = reopen(tmp_path)
    assert rows(log) == "Q"
    assert log.recovery.bytes_scanned == (SAVED + 1) * FRAME
    assert bodies(log) == BODIES[: 2 * SAVED + 1]
    assert [log.offset_for_timestamp(n) for n in range(13)] == list(range(13))


def test_q_what_was_cut_off_is_not_in_an_index(tmp_path: Path) -> None:
    log = fill(tmp_path)
    log.truncate_to(3)
    log.append(make_frames(3, BODIES[3:5]))
    log.sync()
    log = reopen(tmp_path)
    assert (rows(log), bodies(log)) == ("E", BODIES[:5])


def test_q_an_index_that_cannot_be_saved_harms_nothing(tmp_path: Path) -> None:
    disk = FailingDisk()
    with disk.fails("create", errno.ENOSPC, name="*index*"):
        log = fill(tmp_path, disk=disk)
    assert (log.failure, log.synced_offset) == ("", 10)
    assert (rows(reopen(tmp_path)), bodies(log)) == ("E", BODIES[:10])


def test_q_an_inspection_reads_everything_and_calls_it_unclean(tmp_path: Path) -> None:
    fill(tmp_path)
    flip(tmp_path / LOG, 3 * FRAME + 100)
    report = Inspection(tmp_path).run()
    assert {"Q", "H"} <= {problem.row for problem in report.problems}
    assert report.verdict == "damaged"


def test_e_stale_index_of_an_earlier_segment_is_rebuilt(tmp_path: Path) -> None:
    fill(tmp_path).close()
    stale = {path: path.read_bytes() for path in tmp_path.glob("*index")}
    assert len(stale) == 2
    log = reopen(tmp_path)
    log.append(make_frames(10, BODIES[10:12]))
    log.roll()
    log.close()
    for path, data in stale.items():
        path.write_bytes(data)
    log = reopen(tmp_path)
    assert (rows(log), bodies(log)) == ("E", BODIES[:12])

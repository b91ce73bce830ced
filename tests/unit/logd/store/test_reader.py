"""Frames read for other nodes, and what is known to be damaged."""

from pathlib import Path

import pytest

from penstock.logd.errors import CorruptFrameError
from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.storage.reader import DamagedRanges
from penstock.logd.storage.segment import segment_path
from tests.support.failing_disk import FailingDisk
from tests.support.frames import make_frame, make_frames
from tests.unit.logd.store.test_recovery import BODIES, CONFIG, FRAME, PER_SEGMENT, fill, flip


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return fill(tmp_path, 12)


def offsets(log: CommitLog, offset: int, *, bytes_max: int = 1 << 20, upto: int = 99) -> list[int]:
    frames = log.read_frames(offset, bytes_max=bytes_max, upto=upto)
    assert [body for _, body in frames] == [BODIES[h.base_offset] for h, _ in frames]
    return [header.base_offset for header, _ in frames]


def test_whole_frames_are_read_from_an_offset_over_segments(log: CommitLog) -> None:
    assert log.segment_count > 2
    assert offsets(log, 0) == list(range(12))
    assert offsets(log, 5, upto=9) == [5, 6, 7, 8]
    assert offsets(log, 3, bytes_max=2 * FRAME) == [3, 4]
    assert offsets(log, 12) == []


def test_the_first_frame_is_given_whatever_its_size(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path, LogConfig())
    log.append([make_frame(0, bytes(50_000), records=10)])
    assert [header.base_offset for header, _ in log.read_frames(7, bytes_max=1, upto=10)] == [0]
    assert log.read_frames(7, bytes_max=1, upto=9) == [], "it holds what must not be given"


def test_a_run_of_frames_is_read_at_once(tmp_path: Path) -> None:
    fill(tmp_path, 12)
    disk, done = FailingDisk(), list[str]()
    log = CommitLog.open(tmp_path, CONFIG, disk=disk)
    offsets(log, 0)
    with disk.before(lambda operation, _: done.append(operation)):
        assert offsets(log, 0, upto=PER_SEGMENT) == list(range(PER_SEGMENT))
    assert 0 < done.count("read") <= 3, (
        "one for the frames, the others to find where they begin and end"
    )


def test_rot_after_the_first_check_ends_what_is_read_and_is_told(
    log: CommitLog, tmp_path: Path
) -> None:
    assert offsets(log, 0) == list(range(12))
    assert log.damaged() == []
    flip(segment_path(tmp_path, 0), 2 * FRAME + 100)
    assert offsets(log, 0, upto=4) == [0, 1]
    with pytest.raises(CorruptFrameError, match="offsets 2 to 2"):
        log.read_frames(2, bytes_max=1 << 20, upto=9)
    assert log.damaged() == [(2, 3)]
    assert offsets(log, 3)[0] == 3


def test_damage_found_on_opening_is_known_until_it_is_gone(tmp_path: Path) -> None:
    fill(tmp_path, 12)
    for path in tmp_path.glob("*.index"):
        path.unlink()
    flip(segment_path(tmp_path, 0), FRAME)
    flip(segment_path(tmp_path, 2 * PER_SEGMENT), 100)
    log = CommitLog.open(tmp_path, CONFIG)
    assert log.damaged() == [(1, 2), (2 * PER_SEGMENT, 2 * PER_SEGMENT + 1)]
    log.delete_before(PER_SEGMENT)
    assert log.damaged() == [(2 * PER_SEGMENT, 2 * PER_SEGMENT + 1)]
    log.truncate_to(2 * PER_SEGMENT)
    assert log.damaged() == []
    log.append(make_frames(log.end_offset, BODIES[:4]))
    assert log.damaged() == [], "what follows is sound"


def test_ranges_unite_what_overlaps_and_lose_what_is_filled() -> None:
    ranges = DamagedRanges([(5, 9), (20, 30), (9, 9)])
    ranges.add(8, 12)
    ranges.add(12, 13)
    assert ranges.within(0, 99) == [(5, 12), (12, 13), (20, 30)]
    ranges.remove(22, 24)
    assert ranges.within(6, 99) == [(6, 12), (12, 13), (20, 22), (24, 30)]
    ranges.cut(25)
    assert ranges.within(6, 99) == [(6, 12), (12, 13), (20, 22), (24, 25)]
    ranges.remove(0, 99)
    assert ranges.within(0, 99) == []

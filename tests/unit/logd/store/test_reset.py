"""A log begins again at another offset; a crash on the way leaves the old log or the new one."""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from typing_extensions import override

from penstock.logd.errors import CorruptError, LogFailedError, RefusedError
from penstock.logd.offline.fsck import Inspection, Severity
from penstock.logd.storage import CommitLog, EpochFile
from penstock.logd.storage.checkpoint import EPOCHS_NAME, MARK_NAME, MEMORY_NAME
from penstock.logd.storage.segment import segment_path
from tests.sim.disk import MemoryDisk
from tests.sim.power import Power, PowerLossError
from tests.support.failing_disk import FailingDisk
from tests.support.frames import make_frames
from tests.unit.logd.store.test_recovery import BODIES, CONFIG, bodies, fill, reopen, rows

ROOT = Path("/log")
STARTS = [0, 5, 9, 40]
"""Where the first segment begins, where another does, the end, beyond."""


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize("start", STARTS)
def test_a_reset_log_is_empty_and_goes_on_from_its_start(tmp_path: Path, start: int) -> None:
    log = fill(tmp_path, 9)
    EpochFile(tmp_path / EPOCHS_NAME).begin(3, 0)
    (tmp_path / MEMORY_NAME).write_bytes(b"what was remembered")
    log.reset(start)
    assert (log.start_offset, log.synced_offset, log.end_offset) == (start, start, start)
    assert (log.segment_count, log.size_bytes, log.damaged()) == (1, 0, [])
    assert names(tmp_path) == {segment_path(tmp_path, start).name, "synced"}
    log.append(make_frames(start, BODIES[:8]))
    log.sync()
    assert bodies(log, start) == BODIES[:8]
    again = reopen(tmp_path)
    assert (again.start_offset, again.end_offset) == (start, start + 8)
    assert again.recovery.damages == []
    assert bodies(again, start) == BODIES[:8]


def test_readers_of_what_is_gone_hear_so_and_ranges_stay_readable(tmp_path: Path) -> None:
    log = fill(tmp_path, 9)
    part = log.read(0, bytes_max=1 << 20, upto=9)[0]
    walking = log.frames(0)
    assert next(walking)[1] == BODIES[0]
    log.reset(5)
    log.append(make_frames(5, [b"other" * 20] * 6))
    assert part.file.read(part.position, part.length)[:4] == b"PNSF"
    with pytest.raises(RefusedError, match="not in 5 to 11"):
        list(walking)
    with pytest.raises(RefusedError, match="not in 5 to 11"):
        log.read(4, bytes_max=1, upto=9)
    assert log.damaged() == [], "a cut is no damage"


@pytest.mark.parametrize("operation", ["create", "sync_directory"])
def test_a_reset_without_space_leaves_a_log_that_may_be_opened_again(
    tmp_path: Path, operation: str
) -> None:
    fill(tmp_path, 9).close()
    disk = FailingDisk()
    log = CommitLog.open(tmp_path, CONFIG, disk=disk)
    with (
        disk.fails(operation, errno.ENOSPC, once=True),
        pytest.raises(LogFailedError, match="reset failed"),
    ):
        log.reset(40)
    assert log.out_of_space
    log.close()
    again = reopen(tmp_path)
    again.reset(40)
    assert (again.start_offset, again.end_offset) == (40, 40)


def test_a_rewriting_begun_before_a_reset_does_not_take_its_place(tmp_path: Path) -> None:
    log = fill(tmp_path, 6)
    old = log.segments()[0]
    rewriting = log.begin_rewriting(0, old.next_offset)
    for frame in log.frames(0, upto=old.next_offset):
        rewriting.add(*frame)
    rewriting.finish()
    log.reset(0)
    log.append(make_frames(0, [b"other" * 20] * old.next_offset))
    assert log.roll()
    assert not log.swap_in(rewriting)
    rewriting.discard()
    assert {body[:5] for body in bodies(log)} == {b"other"}


# Row R.


@pytest.mark.parametrize("start", STARTS)
def test_r_reset_that_was_interrupted_is_completed(tmp_path: Path, start: int) -> None:
    fill(tmp_path, 9)
    (tmp_path / MEMORY_NAME).write_bytes(b"what was remembered")
    (tmp_path / f"{start:020d}.reset").touch()
    (problem,) = [problem for problem in Inspection(tmp_path).run().problems if problem.row]
    assert (problem.row, problem.severity) == ("R", Severity.LEFTOVER)
    log = reopen(tmp_path)
    assert rows(log) == "R"
    assert (log.start_offset, log.end_offset) == (start, start)
    assert names(tmp_path) == {segment_path(tmp_path, start).name, "synced"}
    assert reopen(tmp_path).recovery.clean


def write_log(disk: MemoryDisk) -> CommitLog:
    """Nine frames in segments, all synced, and the small files beside them."""
    log = CommitLog.open(ROOT, CONFIG, disk=disk)
    for body in BODIES[:9]:
        log.append(make_frames(log.end_offset, [body]))
        log.sync()
    EpochFile(ROOT / EPOCHS_NAME, disk=disk).begin(3, 0)
    disk.create(ROOT / MEMORY_NAME).sync()
    disk.sync_directory(ROOT)
    return log


def lose_power(start: int, operations: int, random: Random, disk: MemoryDisk) -> tuple[str, bool]:
    """Reset a log, the power going on the way; what is found then, and whether it went at all."""
    log = write_log(disk)
    power = Power(disk)
    power.goes_after(operations)
    disk.fail = power.fails
    went = False
    try:
        log.reset(start)
        log.append(make_frames(start, BODIES[:2]))
        assert log.sync() == start + 2
    except PowerLossError:
        went = True
    disk.crash(random)
    again = CommitLog.open(ROOT, CONFIG, disk=disk)
    assert again.recovery.damages == []
    found = bodies(again, again.start_offset)
    epochs = EpochFile(ROOT / EPOCHS_NAME, disk=disk).entries
    state = (again.start_offset, found, epochs, disk.exists(ROOT / MEMORY_NAME))
    again.append(make_frames(again.end_offset, [b"goes on"]))
    again.sync()
    if state == (0, BODIES[:9], [(3, 0)], True):
        return "as before", went
    assert (state[0], state[2:]) == (start, ([], False)), state
    assert found in ([BODIES[:2]] if not went else [[], BODIES[:1], BODIES[:2]])
    return "reset", went


def every_step(start: int, make_disk: Callable[[], MemoryDisk] = MemoryDisk) -> set[str]:
    """Lose power at each operation, several times; what was found."""
    random, found, operations, went = Random(start), set[str](), 0, True
    while went:
        operations += 1
        for _ in range(12):
            state, went = lose_power(start, operations, random, make_disk())
            assert went or state == "reset", "it had returned"
            found.add(state)
    assert operations > 10
    return found


@pytest.mark.parametrize("start", STARTS)
def test_r_a_power_loss_at_every_step_leaves_the_old_log_or_the_new_one(start: int) -> None:
    assert every_step(start) == {"as before", "reset"}


class UnsyncedReset(MemoryDisk):
    """A reset file's name is not made durable."""

    @override
    def sync_directory(self, path: Path) -> None:
        if not any(name.endswith(".reset") for name in self.list_directory(path)):
            super().sync_directory(path)


class KeepingDisk(MemoryDisk):
    """Files of a name or an ending stay when the rest goes."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.kept = kept

    @override
    def unlink(self, path: Path) -> None:
        if not path.name.endswith(self.kept):
            super().unlink(path)


@pytest.mark.parametrize(
    "twin",
    [
        UnsyncedReset,
        partial(KeepingDisk, MARK_NAME),
        partial(KeepingDisk, EPOCHS_NAME),
        partial(KeepingDisk, MEMORY_NAME),
        partial(KeepingDisk, ".log"),
    ],
)
def test_r_simulation_catches_a_reset_that_cuts_corners(twin: Callable[[], MemoryDisk]) -> None:
    with pytest.raises((AssertionError, OSError, LogFailedError, CorruptError)):
        assert [every_step(start, twin) for start in STARTS]

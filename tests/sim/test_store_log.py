"""The commit log survives thousands of bad days; logs that cut corners do not.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock.logd.storage import CommitLog
from penstock.logd.storage.checkpoint import load_mark
from penstock.logd.storage.disk import File
from penstock.logd.storage.index import Claim
from penstock.logd.storage.recovery import IndexRebuild, Recovery
from penstock.logd.storage.segment import Segment
from tests.sim.disk import MemoryDisk, MemoryFile
from tests.sim.store_world import Opener, run_seed
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "800"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
TWIN_SEEDS = 300
"""Within so many seeds a log that cuts a corner must be caught."""


def test_log_keeps_what_was_synced_through_crashes_and_faults() -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        counts.update(run_seed(seed).counts)
    if SEEDS >= 500:
        rare = {"failed", "row C", "row E", "row F", "row G", "trusted a close"}
        assert {what for what in rare if counts[what] < 10} == set()


class NoDirectorySync(MemoryDisk):
    """Names are never made durable on purpose."""

    @override
    def sync_directory(self, path: Path) -> None:
        pass


class LyingFile(MemoryFile):
    """Says that it is synced before it is."""

    @override
    def sync(self) -> None:
        pass


class LyingDisk(MemoryDisk):
    """Its files sync too early."""

    @override
    def open(self, path: Path) -> File:
        return LyingFile(self, path, self.inode(path))

    @override
    def create(self, path: Path) -> File:
        super().create(path)
        return LyingFile(self, path, self.inode(path))


class RetryingLog(CommitLog):
    """Tries a failed sync again and believes the second answer."""

    @override
    def sync(self, *, mark: bool = True) -> int:
        with contextlib.suppress(OSError):
            self._active_file.sync()
        return super().sync(mark=mark)


class TruncatingByClaim(Recovery):
    """Takes what an index or mark says for the end of the log, without reading on."""

    @override
    def _rebuild_last(self, path: Path, file: File, claim: Claim, rebuild: IndexRebuild) -> Segment:
        file.truncate(claim.log_size)
        return super()._rebuild_last(path, file, claim, rebuild)


class TrustingMarks(Recovery):
    """Takes a mark of a close for true wherever the log ends."""

    @override
    def _was_closed(self, last: Segment) -> bool:
        mark = load_mark(self._directory, self._disk)
        return mark is not None and mark[1]


def is_caught(*, disk: type[MemoryDisk] = MemoryDisk, opener: Opener = CommitLog.open) -> bool:
    for seed in range(TWIN_SEEDS):
        try:
            run_seed(seed, disk=disk(), opener=opener)
        except (AssertionError, OSError):
            return True
    return False


def test_simulation_catches_missing_directory_sync() -> None:
    assert is_caught(disk=NoDirectorySync)


def test_simulation_catches_sync_reported_before_done() -> None:
    assert is_caught(disk=LyingDisk)


def test_simulation_catches_retried_sync() -> None:
    assert is_caught(opener=RetryingLog.open)


def test_simulation_catches_truncation_by_claim(code: Mutation) -> None:
    code.replace("penstock.logd.storage.log", "Recovery", TruncatingByClaim)
    assert is_caught()


def test_simulation_catches_a_mark_of_a_close_that_is_not_compared(code: Mutation) -> None:
    code.replace("penstock.logd.storage.log", "Recovery", TrustingMarks)
    assert is_caught()


def test_simulation_catches_an_index_saved_before_the_log_is_synced(code: Mutation) -> None:
    def append_and_save(really: Any, segment: Segment, file: File, frames: Any) -> None:
        really(segment, file, frames)
        with contextlib.suppress(OSError):
            segment.save_index()

    code.wrap(Segment, "append", append_and_save)
    assert is_caught()


def test_simulation_catches_torn_writes_taken_for_damage(code: Mutation) -> None:
    code.replace("penstock.logd.storage.recovery", "has_lost_sector", lambda *_: False)
    assert is_caught()


def test_simulation_catches_failed_appends_left_in_place(code: Mutation) -> None:
    def fail_without_cutting(
        really: Any, log: CommitLog, operation: str, error: OSError, *, cut_to: int | None
    ) -> None:
        del cut_to
        really(log, operation, error, cut_to=None)

    code.wrap(CommitLog, "_fail", fail_without_cutting)
    assert is_caught()


def test_simulation_catches_recovery_that_does_not_sync(code: Mutation) -> None:
    def pin_unsyncable(really: Any, segment: Segment) -> File:
        file = really(segment)
        assert isinstance(file, MemoryFile)
        return LyingFile(file.disk, file.path, file.inode)

    def run_without_sync(really: Any, recovery: Recovery) -> tuple[list[Segment], File]:
        with Mutation() as inner:
            inner.wrap(Segment, "pin", pin_unsyncable)
            segments, _ = really(recovery)
        return segments, segments[-1].pin()

    code.wrap(Recovery, "run", run_without_sync)
    assert is_caught()

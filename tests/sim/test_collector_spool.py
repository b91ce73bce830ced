"""The collector's spool keeps what it promised through power loss; spools that cut corners do not.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from typing_extensions import override

from penstock.collector.checkpoint.state import State
from penstock.collector.spool.dedup import SenderTable
from penstock.collector.spool.journal import Entry, Journal
from penstock.logd.errors import CorruptError
from penstock.logd.storage import Checkpoint, CommitLog
from penstock.logd.storage.disk import File
from tests.sim.disk import MemoryDisk, MemoryFile
from tests.sim.spool_world import run_seed
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "800")) // 8
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
TWIN_SEEDS = 60
"""Within so many seeds a spool that cuts a corner must be caught."""


def test_what_was_promised_is_there_after_every_crash() -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        try:
            counts += run_seed(seed).counts
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    if SEEDS >= 100:
        rare = {"failed", "full", "deleted", "repeat", "not saved"}
        assert {what for what in rare if counts[what] < 5} == set()


class LyingFile(MemoryFile):
    """Says that it is synced before it is."""

    @override
    def sync(self) -> None:
        pass


class LyingDisk(MemoryDisk):
    """Its segments sync too early; everything else is what it should be."""

    @override
    def open(self, path: Path) -> File:
        return (LyingFile if path.suffix == ".log" else MemoryFile)(self, path, self.inode(path))

    @override
    def create(self, path: Path) -> File:
        super().create(path)
        return self.open(path)


class NoDirectorySync(MemoryDisk):
    """Names are never made durable on purpose."""

    @override
    def sync_directory(self, path: Path) -> None:
        pass


def is_caught(disk: type[MemoryDisk] = MemoryDisk) -> bool:
    for seed in range(TWIN_SEEDS):
        try:
            run_seed(seed, disk=disk())
        except (AssertionError, CorruptError):
            return True
    return False


@pytest.mark.parametrize("disk", [LyingDisk, NoDirectorySync])
def test_a_missing_fsync_is_caught(disk: type[MemoryDisk]) -> None:
    assert is_caught(disk)


def test_a_journal_that_promises_before_its_sync_is_caught(code: Mutation) -> None:
    def write(really: Callable[..., int], journal: Journal, entries: list[Entry]) -> int:
        with Mutation() as inner:
            inner.replace(CommitLog, "sync", lambda log: log.end_offset)
            return really(journal, entries)

    code.wrap(Journal, "_write", write)
    assert is_caught()


def test_a_checkpoint_that_remembers_what_is_only_taken_is_caught(code: Mutation) -> None:
    def everything(self: object) -> dict[str, int]:
        last: dict[bytes, int] = self._last  # type: ignore[attr-defined]
        return {sender.hex(): sequence for sender, sequence in last.items()}

    code.replace(SenderTable, "snapshot", everything)
    assert is_caught()


def test_a_checkpoint_that_is_not_synced_is_caught(code: Mutation) -> None:
    """A torn one keeps the collector from starting."""
    code.wrap(Checkpoint, "save", lambda save, self, document: save(self, document, durable=False))
    assert is_caught()


def test_a_state_that_takes_any_spool_for_its_own_is_caught_by_its_end(code: Mutation) -> None:
    """A lost tail shows, though nothing else is wrong: offsets would come a second time."""
    code.replace(State, "fit_to_spool", lambda _self, _start, _end: False)
    assert is_caught(LyingDisk)

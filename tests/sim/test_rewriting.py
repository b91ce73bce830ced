"""Rewriting survives a power loss at every step; one that takes a short cut is found out.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.logd.errors import CorruptError
from penstock.logd.storage import recovery
from penstock.logd.storage.disk import Disk
from penstock.logd.storage.rewrite import Rewriting
from penstock.logd.storage.segment import Segment
from penstock.logd.storage.swap import Swap
from tests.sim.disk import MemoryDisk, MemoryFile
from tests.sim.rewriting_world import run_seed
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "300"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
pytestmark = pytest.mark.timeout(240)
TWIN_SEEDS = 300
"""Within so many seeds one that takes a short cut must be caught."""


def test_rewriting_survives_a_power_loss_at_every_step() -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        counts.update(run_seed(seed))
    if SEEDS >= 300:
        rare = {"swapped", "power loss", "rewriting failed", "failed", "row N", "row C", "row E"}
        assert {what for what in rare if counts[what] < 10} == set(), counts


def test_what_was_rewritten_before_a_cut_does_not_come_back_after_it() -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS // 2):
        counts.update(run_seed(seed, cuts=True))
    if SEEDS >= 300:
        assert {w for w in ("swapped", "truncate", "cut meanwhile") if counts[w] < 10} == set()


def is_caught(make_disk: Callable[[], MemoryDisk] = MemoryDisk) -> bool:
    for seed in range(TWIN_SEEDS):
        try:
            run_seed(seed, disk=make_disk())
        except (AssertionError, OSError, ValueError, CorruptError):
            return True
    return False


def test_simulation_catches_a_swap_of_a_file_that_is_not_synced(code: Mutation) -> None:
    def finish_without_sync(really: Any, rewriting: Rewriting) -> None:
        with Mutation() as inner:
            inner.replace(MemoryFile, "sync", lambda _: None)
            really(rewriting)

    code.wrap(Rewriting, "finish", finish_without_sync)
    assert is_caught()


def test_simulation_catches_removal_before_the_swap_is_durable(
    code: Mutation,
) -> None:
    code.replace(Swap, "publish", lambda swap, disk: disk.rename(swap.temporary_path, swap.path))
    assert is_caught()


def test_simulation_catches_a_new_name_before_the_old_ones_are_gone(
    code: Mutation,
) -> None:
    """The first log file is replaced while the others, which overlap the new one, may come back."""

    class NoSyncBetween(MemoryDisk):
        """Forgets to sync the directory between removal and renaming."""

        skip = False

        @override
        def sync_directory(self, path: Path) -> None:
            if not self.skip:
                super().sync_directory(path)

    def complete_at_once(really: Any, swap: Swap, disk: Disk, bases: Iterable[int]) -> None:
        assert isinstance(disk, NoSyncBetween)
        disk.skip = True
        really(swap, disk, bases)
        disk.skip = False
        disk.sync_directory(swap.directory)

    code.wrap(Swap, "complete", complete_at_once)
    assert is_caught(NoSyncBetween)


def test_simulation_catches_recovery_that_ignores_swaps(code: Mutation) -> None:
    code.replace(recovery, "find_swaps", lambda *_: [])
    assert is_caught()


def test_simulation_catches_recovery_that_undoes_swaps(code: Mutation) -> None:
    code.replace(recovery, "is_sound", lambda *_: False)
    code.replace(recovery, "is_whole", lambda *_: True)
    assert is_caught()


def test_simulation_catches_readers_that_open_a_file_of_the_same_name(
    code: Mutation,
) -> None:
    code.replace(Segment, "keep", Segment.pin)
    assert is_caught()

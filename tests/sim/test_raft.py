"""A Raft group survives hundreds of bad seconds; groups whose members break one rule do not.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os
from collections import Counter

import pytest

from tests.sim.raft_losing_world import run_losing_seed
from tests.sim.raft_marks import BRANCHES, count_branches
from tests.sim.raft_storage import DiskStorage
from tests.sim.raft_twins import LOSING_TWINS, TWINS, Twin
from tests.sim.raft_world import run_seed
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "200"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
TWIN_SEEDS = 100
"""Within so many seeds a member that breaks a rule must be caught."""

SHOWN = {
    "change_before_own_term_committed": 33,
    "lease_ends_with_the_term": 95,
    "merged_steps_forget_votes": 91,
    "merged_steps_pile_up": 110,
    "old_terms_answers_taken": 51,
    "reads_before_own_term_committed": 67,
    "removed_never_stands": 95,
    "uncommitted_membership_kept": 148,
}
"""Seeds that have caught those that many others do not; tried first."""

LOST = {"disk lost", "leader's disk lost", "disk lost before it was noted"}
LOST_SHOWN = {"lost_disks_acknowledge": 15, "lost_disks_vote": 55, "unknown_disks_count": 14}

DISK_SEEDS = max(1, SEEDS // 20)
"""Fewer with the real storage under every member; it has a simulation of its own."""

RARE = {
    "Restore",
    "SnapshotWanted",
    "crash while writing",
    "merged",
    "refused BusyError",
    "refused RefusedError",
    "two leaders",
}
"""What must have happened in so many seeds, beside the branches of `tests.sim.raft_marks`."""

pytestmark = pytest.mark.timeout(900)
"""It waits for nothing but the processor, which others may want too."""


def test_group_stays_one_through_crashes_partitions_and_changes(
    code: Mutation,
) -> None:
    marks: Counter[str] = Counter()
    count_branches(code, marks)
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        marks.update(run_seed(seed).marks)
    if SEEDS >= 200:
        assert {mark for mark in {*RARE, *BRANCHES} if marks[mark] < 3} == set()


def test_group_stays_one_on_the_real_storage() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + DISK_SEEDS):
        run_seed(seed, DiskStorage)


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_simulation_catches(twin: Twin, code: Mutation) -> None:
    twin(code)
    for seed in (SHOWN.get(twin.__name__, 0), *range(TWIN_SEEDS)):
        try:
            run_seed(seed)
        except AssertionError:
            return
    pytest.fail(f"{twin.__name__} was not caught in {TWIN_SEEDS} seeds")


def test_group_stays_one_though_voters_lose_their_disks() -> None:
    marks: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS // 2):
        marks.update(run_losing_seed(seed).marks)
    if SEEDS >= 200:
        assert {mark for mark in LOST if marks[mark] < 3} == set()


@pytest.mark.parametrize("twin", LOSING_TWINS.values(), ids=LOSING_TWINS)
def test_simulation_of_lost_disks_catches(twin: Twin, code: Mutation) -> None:
    twin(code)
    for seed in (LOST_SHOWN.get(twin.__name__, 0), *range(TWIN_SEEDS)):
        try:
            run_losing_seed(seed)
        except AssertionError:
            return
    pytest.fail(f"{twin.__name__} was not caught in {TWIN_SEEDS} seeds")

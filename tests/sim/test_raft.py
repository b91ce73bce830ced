"""A Raft group survives hundreds of bad seconds; groups whose members break one rule do not.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os
from collections import Counter

import pytest

from tests.sim.raft_twins import TWINS, Twin
from tests.sim.raft_world import run_seed

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
TWIN_SEEDS = 100
"""Within so many seeds a member that breaks a rule must be caught."""

RARE = {
    "Restore",
    "SnapshotWanted",
    "crash while writing",
    "refused BusyError",
    "refused RefusedError",
}


def test_group_stays_one_through_crashes_partitions_and_changes() -> None:
    marks: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        marks.update(run_seed(seed).marks)
    if SEEDS >= 100:
        assert {mark for mark in RARE if marks[mark] < 5} == set()


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_simulation_catches(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    twin(monkeypatch)
    for seed in range(TWIN_SEEDS):
        try:
            run_seed(seed)
        except AssertionError:
            return
    pytest.fail(f"{twin.__name__} was not caught in {TWIN_SEEDS} seeds")

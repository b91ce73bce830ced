"""All cores of a cluster together keep their promises under faults and operators' commands.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os
from collections import Counter

import pytest

from tests.sim.cluster_twins import TWINS
from tests.sim.cluster_world import ClusterWorld
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "1000"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
BLOCKS = 20
TWIN_SEEDS = 300
MARK_SEEDS = 150

MARKS = {
    "acked all",
    "acked leader",
    "black out",
    "controller elected",
    "cut off",
    "data removed",
    "disk failed",
    "duplicate",
    "elected as successor",
    "expansion not admitted",
    "group handed over",
    "handed over",
    "handed over from a surplus replica",
    "heartbeat refused: behind",
    "heartbeat refused: late",
    "heartbeat refused: no_raft_lease",
    "inherited",
    "isr proposal committed",
    "isr proposal deposed",
    "isr proposal lost",
    "isr proposal refused",
    "isr proposal stale",
    "members: AddLearner",
    "members: Promote",
    "move begun",
    "move ended",
    "move given up",
    "observer added",
    "observer removed",
    "paused altered",
    "read_only altered",
    "refused NOT_ENOUGH_REPLICAS",
    "refused READ_ONLY",
    "replica added",
    "replica removed",
    "replication_factor altered",
    "reset",
    "resigned",
    "stale incarnation refused",
    "state restored",
    "stopped in order",
    "stopped lease_ended",
    "stopped storage_failed",
    "stream created again",
    "truncated",
    "unsynced lost",
    "woken",
}
"""What some seed must reach, or the world is not bad enough."""

pytestmark = pytest.mark.timeout(900)
"""It waits for nothing but the processor, which others may want too."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_schedule_keeps_all_promises_and_comes_to_rest(block: int) -> None:
    for seed in range(FIRST_SEED + block, FIRST_SEED + SEEDS, BLOCKS):
        try:
            ClusterWorld(seed).run()
        except AssertionError as error:
            pytest.fail(f"make sim SEED={seed}: {error}")


def test_the_schedules_reach_the_rare_cases() -> None:
    marks: Counter[str] = Counter()
    for seed in range(MARK_SEEDS):
        world = ClusterWorld(seed)
        world.run()
        marks += world.marks
        if not MARKS - marks.keys():
            break
    assert MARKS - marks.keys() == set()


@pytest.mark.parametrize("twin", TWINS)
def test_a_known_bad_twin_is_caught(twin: str, code: Mutation) -> None:
    TWINS[twin].spoil(code)
    for seed in (TWINS[twin].seed, *range(TWIN_SEEDS)):
        try:
            ClusterWorld(seed).run()
        except Exception:  # noqa: BLE001 - however it shows
            return
    pytest.fail(f"not caught in {TWIN_SEEDS} seeds")

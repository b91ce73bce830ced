"""Replication of one partition keeps what it acknowledged, whatever happens; its bad twins do not.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os

import pytest

from tests.sim.replication_twins import TWINS
from tests.sim.replication_world import ReplicationWorld
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "300"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
BLOCKS = 10
TWIN_SEEDS = 600

MARKS = {
    "acked all",
    "acked leader",
    "addition taken back",
    "black out",
    "dedup state copied",
    "deleted",
    "disk failed",
    "duplicate",
    "empty epoch forgotten",
    "forgetful",
    "hole filled",
    "hole filled in part",
    "hole not filled",
    "led with a hole",
    "inherited",
    "proposal deposed",
    "proposal refused",
    "proposal stale",
    "refused NOT_ENOUGH_REPLICAS",
    "refused READ_ONLY",
    "reset",
    "resigned",
    "stopped deposed",
    "stopped lease_ended",
    "stopped resigned",
    "stopped storage_failed",
    "told hole_taken",
    "told skipped",
    "told unclean_loss",
    "moved",
    "observers changed",
    "replica added",
    "replica removed",
    "truncated",
    "unclean election",
    "unsynced lost",
}
"""What some seed must reach, or the world is not bad enough."""

MARK_SEEDS = (159, 339, 1172, 6, 11, 13, 18)
"""They reach all of it; if they do so no more, others are tried."""


pytestmark = pytest.mark.timeout(900)
"""It waits for nothing but the processor, which others may want too."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_schedule_keeps_what_was_acked_and_comes_to_rest(block: int) -> None:
    for seed in range(FIRST_SEED + block, FIRST_SEED + SEEDS, BLOCKS):
        try:
            ReplicationWorld(seed).run()
        except AssertionError as error:
            pytest.fail(f"make sim SEED={seed}: {error}")


@pytest.mark.parametrize("block", range(BLOCKS))
def test_who_leads_remembers_what_was_deleted_before_it_copied(block: int) -> None:
    for seed in range(FIRST_SEED + block, FIRST_SEED + SEEDS, BLOCKS):
        try:
            ReplicationWorld(seed, retaining=True).run()
        except AssertionError as error:
            pytest.fail(f"make sim SEED={seed}, retaining: {error}")


def test_the_schedules_reach_the_rare_cases() -> None:
    missing = set(MARKS)
    for seed in (*MARK_SEEDS, *range(300)):
        world = ReplicationWorld(seed)
        world.run()
        missing -= world.marks.keys()
        if not missing:
            break
    assert missing == set()


@pytest.mark.parametrize("twin", TWINS)
def test_a_known_bad_twin_is_caught(twin: str) -> None:
    with Mutation() as code:
        TWINS[twin].spoil(code)
        for seed in (TWINS[twin].seed, *range(TWIN_SEEDS)):
            try:
                ReplicationWorld(seed, retaining=TWINS[twin].retaining).run()
            except Exception:  # noqa: BLE001 - however it shows
                return
    pytest.fail(f"not caught in {TWIN_SEEDS} seeds")

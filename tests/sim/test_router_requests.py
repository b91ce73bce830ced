"""Records are given up on evidence, never for an outage, in thousands of both.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os

from penstock.router.delivery import core
from tests.sim.request_world import NEVER_S, SECOND_NS, outage, poison, shard

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "1000"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
ALL = range(FIRST_SEED, FIRST_SEED + SEEDS)
FOUND_WITHIN_S = 900


def test_an_outage_with_blips_convicts_nothing() -> None:
    for seed in ALL:
        assert not outage(seed).refused, f"seed {seed}"


def test_a_shard_that_is_away_for_a_minute_costs_nothing() -> None:
    for seed in ALL:
        assert not shard(seed).refused, f"seed {seed}"


def test_records_that_break_the_destination_are_found_and_no_others() -> None:
    for seed in ALL:
        stream_id, bad = poison(seed)
        assert set(stream_id.refused) == bad, f"seed {seed}"
        assert stream_id.now_ns < FOUND_WITHIN_S * SECOND_NS, f"seed {seed}"


def test_records_that_silence_the_destination_do_not_hide_one_another() -> None:
    """Each takes the time limit to fail, and all of them do before one of them has its turn."""
    for seed in ALL[: len(ALL) // 10]:
        stream_id, bad = poison(seed, silence_s=10.0)
        assert set(stream_id.refused) == bad, f"seed {seed}"
        assert stream_id.now_ns < 8 * FOUND_WITHIN_S * SECOND_NS, f"seed {seed}"


def test_the_world_catches_who_convicts_at_once() -> None:
    hasty = core.Policy(confirmed_after_s=0.0, poison_after_s=NEVER_S)
    assert any(shard(seed, hasty).refused for seed in range(100))


def test_the_world_catches_evidence_that_never_goes_stale() -> None:
    credulous = core.Policy(evidence_gap_s=1e9, poison_after_s=NEVER_S)
    assert any(outage(seed, credulous).refused for seed in range(100))

"""A job with three sinks, killed at random under load: short runs of `make router-kills`.

PENSTOCK_ROUTER_KILLS says how many kills; PENSTOCK_ROUTER_KILLS_SEED draws the same ones again.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from tests.router_kills.kills import KillRun

KILLS: Final = int(os.environ.get("PENSTOCK_ROUTER_KILLS", "3"))
SEED: Final = int(os.environ.get("PENSTOCK_ROUTER_KILLS_SEED", "8"))
CLUSTER_KILLS: Final = 2
CLUSTER_SEED: Final = 12
"""Draws an executor, then the driver."""

pytestmark = [pytest.mark.live, pytest.mark.timeout(900 + 120 * KILLS)]


def test_killed_at_random_each_sink_has_each_record_once(tmp_path: Path) -> None:
    outcome = KillRun(tmp_path, runs=KILLS, seed=SEED).run()
    assert outcome.broken == [], f"seed {SEED}: {outcome.summary()}"
    assert outcome.kills.total() == KILLS
    assert outcome.records > 0


def test_on_a_cluster_whose_executors_are_killed_each_sink_has_each_record_once(
    tmp_path: Path,
) -> None:
    outcome = KillRun(tmp_path, runs=CLUSTER_KILLS, seed=CLUSTER_SEED, cluster=True).run()
    assert outcome.broken == [], f"seed {CLUSTER_SEED}: {outcome.summary()}"
    assert outcome.kills == {"executor": 1, "driver": 1}
    assert outcome.records > 0

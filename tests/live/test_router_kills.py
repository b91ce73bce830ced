"""A job with three sinks, killed at random under load: short runs of `make router-kills`.

PENSTOCK_ROUTER_KILLS says how many kills; PENSTOCK_ROUTER_KILLS_SEED draws the same ones again.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from tests.harness.__main__ import run_plan

KILLS: Final = int(os.environ.get("PENSTOCK_ROUTER_KILLS", "3"))
SEED: Final = int(os.environ.get("PENSTOCK_ROUTER_KILLS_SEED", "6"))
CLUSTER_KILLS: Final = 2
CLUSTER_SEED: Final = 3
"""Draws an executor, then the driver."""

pytestmark = [pytest.mark.live, pytest.mark.timeout(900 + 120 * KILLS)]


def test_killed_at_random_each_sink_has_each_record_once(tmp_path: Path) -> None:
    report = run_plan(["router-kills", "--runs", str(KILLS), "--seed", str(SEED)], tmp_path)
    assert report.broken == [], f"seed {SEED}: {report.summary()}"
    assert report.runs == KILLS
    assert report.counts["records"] > 0


def test_on_a_cluster_whose_executors_are_killed_each_sink_has_each_record_once(
    tmp_path: Path,
) -> None:
    options = ["--cluster", "--runs", str(CLUSTER_KILLS), "--seed", str(CLUSTER_SEED)]
    report = run_plan(["router-kills", *options], tmp_path)
    assert report.broken == [], f"seed {CLUSTER_SEED}: {report.summary()}"
    assert (report.counts["executor killed"], report.counts["driver killed"]) == (1, 1)
    assert report.counts["records"] > 0

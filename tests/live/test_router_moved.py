"""What README says of another host and of a lost disk, done: no record is lost, none is twice."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish, span_line

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

LINES = [log_line(number) for number in range(900)]
SPANS = [span_line(number) for number in range(50)]


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        yield running


def run(directory: Path, logd: Logd, lake: Path, **keys: Any) -> RouterJob:
    """A job of its own directory, to its end; the lake is where it always is."""
    sinks = {"lake": {"type": "parquet", "path": str(lake)}}
    job = RouterJob(directory, logd.fetch, sinks=sinks, **keys)
    job.lake = lake
    job.daemon.start("--until-caught-up", within_s=60)
    assert job.daemon.wait(within_s=120) == 0, job.daemon.log()[-3000:]
    return job


def cursors(logd: Logd) -> dict[str, dict[str, int]]:
    """As they are asked for, and written into a job file."""
    command = [sys.executable, "-m", "penstock.logd", "cursors", "ls"]
    command += ["--consumer", "test/lake", "--server", logd.fetch, "--json"]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    found: dict[str, dict[str, int]] = {}
    for cursor in map(json.loads, done.stdout.splitlines()):
        found.setdefault(cursor["stream"], {})[str(cursor["partition"])] = cursor["offset"]
    return found


def test_a_job_goes_on_elsewhere_with_its_checkpoint_and_without_it_from_its_cursors(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    lake = tmp_path / "lake"
    publish(nats_url, "telemetry.logs.x", LINES[:300])
    publish(nats_url, "telemetry.traces.x", SPANS)
    first = run(tmp_path / "first", logd, lake)

    publish(nats_url, "telemetry.logs.x", LINES[300:600])
    checkpoint = tmp_path / "second" / "checkpoint"
    shutil.copytree(first.checkpoint_dir, checkpoint, ignore=shutil.ignore_patterns("work"))
    shutil.rmtree(first.checkpoint_dir)
    run(tmp_path / "second", logd, lake)

    at = cursors(logd)
    assert at == {"logs": {"0": 600}, "traces": {"0": 50}}
    publish(nats_url, "telemetry.logs.x", LINES[600:])
    shutil.rmtree(checkpoint)
    third = run(tmp_path / "third", logd, lake, starting_offsets=at)
    rows = third.rows()
    assert sorted(rows["value"].to_pylist()) == sorted(LINES + SPANS)

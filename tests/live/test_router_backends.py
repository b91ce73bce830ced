"""The example of two backends side by side, and of swapping one, as its files say."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.router.config import JobConfig
from penstock.service import load_config
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

HOME = Path("examples/backends")
BEFORE, SIDE_BY_SIDE, SWAPPED = sorted(HOME.glob("*.yaml"))


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def test_the_files_are_valid_and_differ_only_where_they_say() -> None:
    before, beside, swapped = map(read, (BEFORE, SIDE_BY_SIDE, SWAPPED))
    for path in (BEFORE, SIDE_BY_SIDE, SWAPPED):
        load_config(JobConfig, path, env_prefix="PENSTOCK_ROUTER", environ={})
    assert {key for key in before if before[key] != swapped[key]} == {"sinks"}
    assert before["sinks"]["lake"] == swapped["sinks"]["lake"]
    assert {key for key in before if before[key] != beside[key]} == {"routes", "sinks"}
    assert before["sinks"] == {k: v for k, v in beside["sinks"].items() if k != "candidate"}


def here(
    example: Path, job: RouterJob, in_use: HttpDestination, candidate: HttpDestination
) -> None:
    """Put an example's routes and sinks into a job, with this test's addresses."""
    document = read(example)
    addresses = {"backend-in-use.example": in_use, "candidate.example": candidate}
    for sink in document["sinks"].values():
        if "path" in sink:
            sink["path"] = str(job.lake)
        for name, destination in addresses.items():
            sink["url"] = sink["url"].replace(name, destination.address) if "url" in sink else ""
        if not sink["url"]:
            del sink["url"]
    job.config |= {key: document[key] for key in ("job", "streams", "routes", "sinks")}


def run_until_caught_up(job: RouterJob) -> None:
    job.daemon.start("--until-caught-up", within_s=60)
    assert job.daemon.wait(within_s=120) == 0, job.daemon.log()[-3000:]


def test_a_candidate_gets_the_same_and_takes_over_where_the_other_stopped(
    tmp_path: Path, nats_url: str
) -> None:
    in_use, candidate = HttpDestination(), HttpDestination()
    errors = [number for number in range(300) if number % 3 == 0]
    lines = [log_line(number, severity=17 if number % 3 == 0 else 9) for number in range(300)]
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        job = RouterJob(tmp_path / "router", logd.fetch)
        in_use.open()
        candidate.open()
        try:
            publish(nats_url, "telemetry.logs.x", lines[:200])
            here(SIDE_BY_SIDE, job, in_use, candidate)
            run_until_caught_up(job)
            first = [number for number in errors if number < 200]
            assert numbers(in_use) == numbers(candidate) == first
            publish(nats_url, "telemetry.logs.x", lines[200:])
            here(SWAPPED, job, in_use, candidate)
            run_until_caught_up(job)
            assert numbers(in_use) == first, "the old backend gets nothing more"
            assert numbers(candidate) == errors
            assert job.rows().num_rows == 300
        finally:
            in_use.close()
            candidate.close()
            if job.daemon._process is not None:
                job.daemon.close()


def numbers(destination: HttpDestination) -> list[int]:
    return [record["attributes"]["number"] for record in destination.records]

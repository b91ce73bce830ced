"""A job whose sinks read together: each is as far as it is, and has each record once."""

from pathlib import Path
from typing import Any

import pytest

from penstock.service import ExitCode
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish, read_lake
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ODD = b"not json"
COUNT = 12_000


def job_of(directory: Path, logd: Logd, destination: HttpDestination, **keys: object) -> RouterJob:
    sinks: dict[str, Any] = {
        name: {"type": "parquet", "path": str(directory / name)} for name in ("first", "second")
    }
    sinks["hook"] = {
        "type": "http",
        "url": destination.url,
        "batch": {"max_records": 1000},
        "retry": {"initial_backoff_s": 0.05, "max_backoff_s": 0.2},
    }
    errors = [{"name": "errors", "where": "severity_number >= 17", "sinks": ["first"]}]
    return RouterJob(
        directory,
        logd.fetch,
        streams=["logs"],
        routes=[*errors, {"name": "everything", "sinks": list(sinks)}],
        sinks=sinks,
        trigger={"interval_s": 0.2, "max_records": 5000},
        **keys,
    )


def test_a_job_ends_while_sinks_that_read_together_wait_for_a_destination(
    tmp_path: Path, nats_url: str
) -> None:
    """Only the query that reads for all can end their tasks."""
    destination = HttpDestination()
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        job = job_of(tmp_path / "router", logd, destination, drain_timeout_s=1)
        publish(nats_url, "telemetry.logs.x", lines(0, 100))
        destination.open()
        try:
            job.daemon.start(within_s=60)
            are_at(job, 100, "first", "second", "hook")
            assert reads_with(job) == {"first": None, "second": "first", "hook": "first"}
            destination.answers.clear()
            asked = len(destination.requests)
            publish(nats_url, "telemetry.logs.x", lines(100, 200))
            wait_until(lambda: len(destination.requests) > asked)
            assert job.daemon.stop() == ExitCode.TEMPORARY, job.daemon.log()[-3000:]
            assert "query_stop_failed" not in job.daemon.log()
        finally:
            destination.answers.set()
            job.daemon.close()
            destination.close()


def are_at(job: RouterJob, offset: int, *sinks: str) -> None:
    def are_there() -> bool:
        found = job.daemon.status()["info"]["sinks"]
        return all(found[sink]["committed"]["logs"] == offset for sink in sinks)

    wait_until(are_there, within_s=120, what=f"{sinks} at {offset}")


def reads_with(job: RouterJob) -> dict[str, str | None]:
    sinks = job.daemon.status()["info"]["sinks"]
    return {name: sink["reads_with"] for name, sink in sinks.items()}


def lines(first: int, behind: int) -> list[bytes]:
    return [log_line(number) if number % 1000 else ODD for number in range(first, behind)]


def test_a_dead_sink_leaves_its_group_and_returns_and_each_has_each_record_once(
    tmp_path: Path, nats_url: str
) -> None:
    destination = HttpDestination()
    wanted = lines(0, COUNT)
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        job = job_of(tmp_path / "router", logd, destination)
        publish(nats_url, "telemetry.logs.x", wanted[: COUNT // 2])
        try:
            job.daemon.start(within_s=60)
            are_at(job, COUNT // 2, "first", "second")
            wait_until(lambda: reads_with(job)["hook"] is None, within_s=60)
            together = sorted(map(str, reads_with(job).values()))
            assert together in (["None", "None", "first"], ["None", "None", "second"])
            assert not destination.records

            job.daemon.kill()
            job.daemon.start(within_s=60)
            destination.open()
            publish(nats_url, "telemetry.logs.x", wanted[COUNT // 2 :])
            are_at(job, COUNT, "first", "second", "hook")

            def are_together() -> bool:
                return list(reads_with(job).values()).count(None) == 1

            wait_until(are_together, within_s=180, what="the sink to return")
            publish(nats_url, "telemetry.logs.x", lines(COUNT, COUNT + 100))
            are_at(job, COUNT + 100, "first", "second", "hook")
            assert are_together()
            assert job.daemon.stop() == 0, job.daemon.log()[-3000:]
        finally:
            job.daemon.close()
            destination.close()
    good = [line for line in [*wanted, *lines(COUNT, COUNT + 100)] if line != ODD]
    lakes = [read_lake(tmp_path / "router" / name) for name in ("first", "second")]
    assert lakes[0].equals(lakes[1])
    assert lakes[0]["value"].to_pylist() == good
    numbers = {record["attributes"]["number"] for record in destination.records}
    assert numbers == {number for number in range(COUNT + 100) if number % 1000}
    dead_letters = job.checkpoint_dir / "dead_letters"
    for sink in ("first", "second", "hook"):
        files = [path for path in (dead_letters / sink).rglob("*") if path.is_file()]
        assert sum(len(it.read_bytes().splitlines()) for it in files) == COUNT // 1000 + 1, sink

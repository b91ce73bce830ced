"""A job whose sinks share what they read: each is as far as it is, and has each record once."""

from pathlib import Path
from typing import Any

import pytest

from penstock.router.read.shared.directory import MEMORY
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish, read_lake
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not MEMORY.is_dir(), reason="without such memory nothing is shared"),
]

ODD = b"not json"
COUNT = 12_000


def shared_by(job: RouterJob) -> Path | None:
    """The directory that a running job has locked."""
    beginning = f"{MEMORY}/penstock-router-"
    links = [it.readlink() for it in Path(f"/proc/{job.daemon.pid}/fd").iterdir() if it.exists()]
    found = [it for it in links if str(it).startswith(beginning)]
    return found[0] if found else None


def job_of(directory: Path, logd: Logd, destination: HttpDestination) -> RouterJob:
    sinks: dict[str, Any] = {
        name: {"type": "parquet", "path": str(directory / name)} for name in ("first", "second")
    }
    sinks["hook"] = {
        "type": "http",
        "url": destination.url,
        "batch": {"max_records": 1000},
        "max_in_flight": 1,
        "retry": {"initial_backoff_s": 0.05, "max_backoff_s": 0.2},
    }
    return RouterJob(
        directory,
        logd.fetch,
        streams=["logs"],
        routes=[{"name": "everything", "sinks": list(sinks)}],
        sinks=sinks,
        trigger={"interval_s": 0.2, "max_records": 5000},
    )


def caught_up(job: RouterJob, *sinks: str) -> None:
    def are_there() -> bool:
        return all(job.daemon.stage(f"sink/{sink}")["lag"] == 0 for sink in sinks)

    wait_until(are_there, within_s=120)


def lines(first: int, behind: int) -> list[bytes]:
    return [log_line(number) if number % 1000 else ODD for number in range(first, behind)]


def test_a_dead_sink_and_a_killed_job_leave_each_record_once_in_each(
    tmp_path: Path, nats_url: str
) -> None:
    destination = HttpDestination()
    wanted = lines(0, COUNT)
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        job = job_of(tmp_path / "router", logd, destination)
        publish(nats_url, "telemetry.logs.x", wanted[: COUNT // 2])
        try:
            job.daemon.start(within_s=60)
            caught_up(job, "first", "second")
            left = shared_by(job)
            assert left is not None
            assert list(left.iterdir()), "the two have shared pieces"
            assert not destination.records

            job.daemon.kill()
            assert left.exists()
            job.daemon.start(within_s=60)
            assert not left.exists(), "what the killed job left is gone"
            now = shared_by(job)
            destination.open()
            publish(nats_url, "telemetry.logs.x", wanted[COUNT // 2 :])
            caught_up(job, "first", "second", "hook")
            assert job.daemon.stop() == 0, job.daemon.log()[-3000:]
            assert now is not None
            assert not now.exists()
        finally:
            job.daemon.close()
            destination.close()
    good = [line for line in wanted if line != ODD]
    lakes = [read_lake(tmp_path / "router" / name) for name in ("first", "second")]
    assert lakes[0].equals(lakes[1])
    assert lakes[0]["value"].to_pylist() == good
    numbers = [record["attributes"]["number"] for record in destination.records]
    assert numbers == [number for number in range(COUNT) if number % 1000], "in order"
    dead_letters = job.checkpoint_dir / "dead_letters"
    for sink in ("first", "second", "hook"):
        files = [path for path in (dead_letters / sink).rglob("*") if path.is_file()]
        assert sum(len(it.read_bytes().splitlines()) for it in files) == COUNT // 1000, sink

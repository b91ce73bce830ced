"""A whole job that writes to a real Prometheus, and a worker that is killed within its task."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.fault_door import RESET, Answered, Asked, FaultDoor
from tests.support.logd import Logd
from tests.support.metric_servers import MetricRun, prometheus
from tests.support.router import RouterJob, publish
from tests.support.sink_batches import NOW_NS, gauge_record

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

METRICS = [{"name": "metrics", "subject": "telemetry.metrics.>"}]
SERIES = 4
COUNT = 320
OF_REQUEST = 10
OF_BATCH = 80


def test_samples_of_a_task_that_is_killed_and_runs_again_are_there_once(
    tmp_path: Path, nats_url: str
) -> None:
    """Those before its series' newest are refused the second time, and are no dead letters."""
    points = [
        gauge_record(
            number % SERIES, value=number, time_ns=NOW_NS + (number - COUNT) // SERIES * 10**9
        )
        for number in range(COUNT)
    ]
    killed: list[int] = []
    with (
        closing(prometheus()) as server,
        closing(FaultDoor(run := MetricRun(server))) as door,
        Logd(tmp_path / "logd", nats_url, METRICS) as logd,
    ):
        publish(nats_url, "telemetry.metrics.x", [json.dumps(it).encode() for it in points])
        sink = {"type": "prometheus", "url": f"{door.url}/api/v1/write", **run.keys}
        job = RouterJob(
            tmp_path / "router", logd.fetch, streams=["metrics"],
            sinks={"metrics": sink | {"batch": {"max_records": OF_REQUEST}}},
            routes=[{"name": "all", "sinks": ["metrics"]}], spark={"master": "local[2,4]"},
            trigger={"interval_s": 0.1, "max_records": OF_BATCH},
        )  # fmt: skip

        def kills_after_taking(asked: Asked) -> Answered | None:
            """The first batch is the driver's, for it may have come before."""
            if killed or len(door.asked) < OF_BATCH // OF_REQUEST + 4:
                return None
            worker = job.client(asked.connection, door.address)
            if worker.pid == job.daemon.pid:
                return None
            run.handle(asked)
            killed.append(worker.pid)
            worker.kill()
            return RESET

        door.rule = kills_after_taking
        job.daemon.start("--until-caught-up", within_s=180)
        assert job.daemon.wait(within_s=240) == 0, job.daemon.log()[-3000:]
        assert killed
        assert run.stored(NOW_NS / 1e9 + 60) == dict.fromkeys(range(SERIES), COUNT // SERIES)
    assert list((job.checkpoint_dir / "dead_letters").rglob("*.ndjson")) == []

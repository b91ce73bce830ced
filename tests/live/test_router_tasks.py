"""A sink that Spark's tasks write to, whose Python workers are killed while they write."""

from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.support.logd import Logd
from tests.support.router import RouterJob, log_line, publish
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

RECORDS = 6000
STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]


def worker_that_writes(job: RouterJob) -> psutil.Process | None:
    """A Python worker that has a file of the lake open now."""
    for process in psutil.Process(job.daemon.pid).children(recursive=True):
        try:
            if any("_writing" in file.path for file in process.open_files()):
                return process
        except psutil.Error:  # it has just ended
            continue
    return None


@pytest.mark.parametrize(("master", "restarts"), [("local[2,4]", 0), ("local[2]", 1)])
def test_a_worker_killed_in_the_middle_of_a_task_leaves_each_record_once(
    tmp_path: Path, nats_url: str, master: str, restarts: int
) -> None:
    """Where Spark runs the task again, the batch goes on; else the batch comes again."""
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        lines = [log_line(number, service=f"service-{number % 50}") for number in range(RECORDS)]
        publish(nats_url, "telemetry.logs.x", lines)
        job = RouterJob(
            tmp_path / "router",
            logd.fetch,
            streams=["logs"],
            spark={"master": master},
            source={"min_partitions": 3},
        )
        try:
            job.daemon.start(within_s=60)
            wait_until(lambda: worker_that_writes(job), within_s=120, what="a task that writes")
            worker = wait_until(lambda: worker_that_writes(job), within_s=60)
            assert worker is not None
            worker.kill()
            wait_until(lambda: job.delivered() == RECORDS, within_s=180, what="every record")
            rows = job.rows()
            assert rows["value"].to_pylist() == lines
            assert job.daemon.status()["info"]["sinks"]["lake"]["restarts"] == restarts
            files = Counter(path.parent for path in job.lake.glob("kind=*/**/*.parquet"))
            assert set(files.values()) == {3}, "one for each of the tasks that were planned once"
            publish(nats_url, "telemetry.logs.x", lines[:1])
            wait_until(lambda: job.delivered() == RECORDS + 1, within_s=120, what="one more")
            assert not any(job.lake.glob("_writing/**/*.unfinished"))
            assert job.daemon.stop() == 0
        finally:
            job.daemon.close()

"""The same job file on local threads and on a Spark standalone cluster."""

import contextlib
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish, span_line
from tests.support.spark_cluster import running_spark_cluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

CLUSTER = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}


def executors() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
    return found


def of_cluster(url: str) -> list[psutil.Process]:
    """The executors of the application whose master is there; other tests have their own."""
    port = url.rpartition(":")[2]
    return [it for it in executors() if _has_ancestor(it, f":{port}")]


def _has_ancestor(process: psutil.Process, text: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(text in " ".join(parent.cmdline()) for parent in process.parents())
    return False


def run(job: RouterJob) -> pa.Table:
    job.daemon.start("--until-caught-up", within_s=120)
    assert job.daemon.wait(within_s=180) == 0, job.daemon.log()[-3000:]
    return job.rows()


def test_a_cluster_makes_of_a_job_file_what_local_threads_make_of_it(
    tmp_path: Path, nats_url: str
) -> None:
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        running_spark_cluster(tmp_path / "spark") as url,
    ):
        publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(2000)])
        publish(nats_url, "telemetry.traces.x", [span_line(number) for number in range(500)])
        keys = {"source": {"partitions_min": 2}, "trigger": {"interval_s": 0.1, "records_max": 700}}
        local = RouterJob(tmp_path / "local", logd.fetch, **keys)
        want = run(local)
        far = RouterJob(
            tmp_path / "far", logd.fetch, **keys, spark={"master": url, "conf": CLUSTER}
        )
        assert run(far).equals(want)
        assert want.num_rows == 2500

        far.daemon.start(within_s=120)
        try:
            (first, *_) = wait_until(lambda: of_cluster(url), within_s=60, what="executors")
            publish(nats_url, "telemetry.logs.x", [log_line(n) for n in range(2000, 3000)])
            first.kill()
            wait_until(lambda: far.committed()["logs"] == 3000, within_s=120)
            assert far.daemon.stop(within_s=60) == 0, far.daemon.log()[-3000:]
        finally:
            if far.daemon._process is not None:
                far.daemon.close()
        rows = far.rows()
        logs = rows.filter(pc.equal(rows["stream"], "logs"))
        assert logs["value"].to_pylist() == [log_line(number) for number in range(3000)]

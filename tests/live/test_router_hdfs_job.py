"""A whole job into HDFS, killed in its middle and with its namenode killed as well."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.hdfs_lake import files, values
from tests.support.hdfs_server import HdfsServer, hdfs_server
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, job_of_logs, log_line, publish, span_line
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


@pytest.fixture
def server() -> Iterator[HdfsServer]:
    found = hdfs_server()
    yield found
    found.heal()


def test_a_job_has_each_record_once_in_hdfs_whoever_is_killed(
    server: HdfsServer, tmp_path: Path, nats_url: str
) -> None:
    """By the nameservice of Hadoop's files, of which one namenode is dead."""
    logs = [log_line(number) for number in range(3000)]
    spans = [span_line(number) for number in range(300)]
    hdfs = {"config_dir": str(server.config_dir), "timeout_s": 20}
    lake = {"type": "parquet", "path": "hdfs://lake/data/all", "hdfs": hdfs}
    url = server.url + "/data/all"
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        publish(nats_url, "telemetry.logs.x", logs)
        publish(nats_url, "telemetry.traces.x", spans)
        job = RouterJob(
            tmp_path / "router",
            logd.fetch,
            sinks={"lake": lake},
            trigger={"interval_s": 0.1, "max_records": 200},
        )
        job.daemon.start(within_s=180)
        wait_until(lambda: len(values(url)) > 400, within_s=120, what="some batches")
        job.daemon.kill()
        job.daemon.start(within_s=180)
        server.kill("namenode")
        more = [log_line(number) for number in range(3000, 3400)]
        publish(nats_url, "telemetry.logs.y", more)
        wait_until(lambda: "hdfs://lake" in job.daemon.log(), within_s=120, what="a failure")
        server.start("namenode")
        server.wait_for_datanode()
        job.daemon.stop()
        job.daemon.start("--until-caught-up", within_s=180)
        assert job.daemon.wait(within_s=240) == 0, job.daemon.log()[-3000:]
    assert sorted(values(url)) == sorted(logs + more + spans)
    assert not [name for name in files(url) if name.startswith("_writing")]


def writes_to(server: HdfsServer, process: psutil.Process) -> bool:
    """Return whether it has a connection to the namenode."""
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:  # it has just ended
        return False
    return any(it.raddr[1:] == (server.port,) for it in connections)


def stopped_behind_a_file(
    job: RouterJob, server: HdfsServer, directory: str
) -> list[psutil.Process]:
    """The workers of Spark, if there is a file that is whole and not published; they do no more."""
    url = server.url + directory
    if not any(name.startswith("_writing/") for name in files(url)):
        return []
    started = psutil.Process(job.daemon.pid).children(recursive=True)
    workers = [process for process in started if writes_to(server, process)]
    for worker in workers:
        worker.suspend()
    found = files(url)
    if workers and all(name.startswith("_writing/") for name in found):
        wholes = [data for data in found.values() if data[-4:] == b"PAR1"]
        if 0 < len(wholes) < len(found):
            return workers
    for worker in workers:
        worker.resume()
    return []


def test_workers_killed_behind_files_of_their_task_leave_each_record_once_in_hdfs(
    server: HdfsServer, tmp_path: Path, nats_url: str
) -> None:
    """Spark runs the task again; the files that it had finished are of no batch."""
    url = server.url + (directory := "/data/once")
    lines = [log_line(number, service=f"service-{number % 50}") for number in range(5000)]
    lake = {"type": "parquet", "path": url, "partition_by": ["service"]}
    keys = {"spark": {"master": "local[2,4]"}, "source": {"min_partitions": 1}}
    with job_of_logs(tmp_path, nats_url, lines, {"lake": lake}, **keys) as job:
        job.daemon.start(within_s=180)
        stopped = partial(stopped_behind_a_file, job, server, directory)
        for worker in wait_until(stopped, within_s=120, what="a file of two", momentary=True):
            worker.kill()
        wait_until(lambda: job.committed() == {"logs": len(lines)}, within_s=180)
        assert sorted(values(url)) == sorted(lines)
        published = [name for name in files(url) if not name.startswith("_writing/")]
        of_services = Counter(name.partition("/")[0] for name in published)
        assert set(of_services.values()) == {1}, "the files of one run of the task"
        assert job.daemon.status()["info"]["sinks"]["lake"]["restarts"] == 0
        assert job.daemon.stop() == 0

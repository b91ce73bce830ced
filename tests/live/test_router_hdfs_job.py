"""A whole job into HDFS, killed in its middle and with its namenode killed as well."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hdfs_lake import files, values
from tests.support.hdfs_server import HdfsServer, hdfs_server
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish, span_line
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

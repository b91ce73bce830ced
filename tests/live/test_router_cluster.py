"""One job file on this machine and on a Spark standalone cluster: the same result."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.router.clock import SystemClock
from tests.support.logd import Logd
from tests.support.processes import arguments_of
from tests.support.router import STREAMS, RouterJob, log_line, publish, span_line
from tests.support.spark_cluster import WORKERS, SparkCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

LOGS, SPANS = 4000, 500
SECRET = "known-to-this-cluster"


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        services = [f"service-{number % 3}" for number in range(LOGS)]
        lines = [log_line(number, service=name) for number, name in enumerate(services)]
        publish(nats_url, "telemetry.logs.x", [*lines, b"no record"])
        publish(nats_url, "telemetry.traces.x", [span_line(number) for number in range(SPANS)])
        yield running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    made = SparkCluster(tmp_path / "cluster", SECRET)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_a_cluster_without_room_degrades_the_job_with_sparks_reason_and_ends_at_once(
    tmp_path: Path, logd: Logd, cluster: SparkCluster
) -> None:
    """It was ready, with everything behind, and SIGTERM took 13 s."""
    conf = cluster.conf | {"spark.executor.memory": "64g"}
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    spark = {"master": cluster.url, "conf": conf, "secret_file": str(secret)}
    made = RouterJob(tmp_path / "job", logd.fetch, spark=spark)
    made.daemon.start(within_s=90)
    try:
        accepted = "Initial job has not accepted any resources"
        status = wait_until(
            lambda: (it := made.daemon.status()) and accepted in str(it["reasons"]) and it,
            within_s=90,
            what="the job says so",
        )
        assert status
        assert status["health"] == "degraded"
        (reason,) = status["reasons"]
        assert f"{cluster.url} has given the job no executor" in reason
        assert "spark.executor.memory 64g" in reason
    finally:
        begun_ns = SystemClock().monotonic_ns()
        assert made.daemon.stop() == 0
    assert SystemClock().monotonic_ns() - begun_ns < 8 * 10**9


def job(directory: Path, logd: Logd, conf: dict[str, str]) -> RouterJob:
    """The same file but for where it writes; strangers see nothing of it, nor of the cluster."""
    directory.mkdir()
    for name, text in (("secret", SECRET), ("token", "a token of this test")):
        (directory / name).write_text(text + "\n")
    mask = {"mask": {"fields": ["body"], "pattern": "[0-9]+"}}
    routes: list[dict[str, Any]] = [
        {"name": "some", "where": "service = 'service-1'", "transforms": [mask], "sinks": ["lake"]},
        {"name": "spans", "where": "kind = 'span'", "sinks": ["lake"]},
    ]
    return RouterJob(
        directory,
        logd.fetch,
        routes=routes,
        spark={"conf": conf, "secret_file": str(directory / "secret")},
        admin_access={"token_file": str(directory / "token")},
        source={"partitions_min": WORKERS},
        trigger={"interval_s": 0.2, "records_max": 1500},
    )


def letters(of: RouterJob) -> list[str]:
    """The names of the files of dead letters, which say whose they are."""
    return sorted(path.name for path in (of.checkpoint_dir / "dead_letters").rglob("*.ndjson"))


@contextmanager
def running(of: RouterJob, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`penstock router run` until it has caught up; what it says goes to a file."""
    of.daemon.write_config()
    directory = of.checkpoint_dir.parent
    with (directory / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.router", "run", str(directory / "router.yaml"),
             "--until-caught-up", *arguments],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ends_well(process: subprocess.Popen[bytes], of: RouterJob) -> None:
    code = process.wait(timeout=400)
    assert code == 0, (of.checkpoint_dir.parent / "said").read_text()[-3000:]


def test_a_cluster_gives_the_result_of_one_machine(
    tmp_path: Path, logd: Logd, cluster: SparkCluster
) -> None:
    here = job(tmp_path / "here", logd, cluster.conf)
    there = job(tmp_path / "there", logd, cluster.conf)
    with running(there, "--master", cluster.url) as process:
        wait_until(
            lambda: process.poll() is not None or len(cluster.executors()) == WORKERS,
            within_s=60,
            what="an executor on each worker",
        )
        shown = [
            argument
            for one in (psutil.Process(process.pid), *cluster.executors())
            for below in (one, *one.children(recursive=True))
            for argument in arguments_of(below)
        ]
        assert shown
        assert not [argument for argument in shown if SECRET in argument]
        ends_well(process, there)
    with running(here) as process:
        ends_well(process, here)
    rows = there.rows()
    assert rows.num_rows == sum(number % 3 == 1 for number in range(LOGS)) + SPANS
    assert rows.equals(here.rows())
    assert letters(there) == letters(here) != []
    assert "Registering app penstock test" in cluster.said(0), "the master has had the job"

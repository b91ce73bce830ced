"""One job file on this machine and on a Spark standalone cluster: the same result."""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

import penstock.router
from penstock.base.clock import SystemClock
from penstock.router.job.config import Spark
from penstock.router.spark.java import find_java
from penstock.router.spark.package import make_package
from penstock.router.spark.session import Session, SparkEndedError
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.processes import arguments_of
from tests.support.router import STREAMS, RouterJob, log_line, publish, span_line
from tests.support.spark import gateway_of, running_spark
from tests.support.spark_cluster import WORKERS, SparkCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

LOGS, SPANS = 4000, 500
WRITTEN = 18_000
"""Records of one batch. A task writes them long enough for a test to stop it meanwhile."""

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
    """It was ready, with everything behind, and SIGTERM took all of `drain_timeout_s`."""
    made = job_of(tmp_path / "job", logd, cluster, **{"spark.executor.memory": "64g"})
    made.config["drain_timeout_s"] = 120
    made.daemon.start(within_s=90)
    try:
        (reason,) = reasons(made, "Initial job has not accepted any resources")
        assert f"{cluster.url} has given the job no executor" in reason
        assert "spark.executor.memory 64g" in reason
    finally:
        begun_ns = SystemClock().monotonic_ns()
        assert made.daemon.stop(within_s=180) == 0
    assert SystemClock().monotonic_ns() - begun_ns < 60 * 10**9


def job_of(directory: Path, logd: Logd, cluster: SparkCluster, **conf: str) -> RouterJob:
    secret = directory.with_suffix(".secret")
    secret.write_text(SECRET)
    spark = {"master": cluster.url, "conf": cluster.conf | conf, "secret_file": str(secret)}
    return RouterJob(directory, logd.fetch, spark=spark)


def reasons(of: RouterJob, part: str, within_s: float = 90) -> list[str]:
    """Why a job is degraded, once it says something."""
    status = wait_until(
        lambda: (it := of.daemon.status()) and part in str(it["reasons"]) and it,
        within_s=within_s,
        what=f"the job says {part!r}",
    )
    assert status
    assert status["health"] == "degraded"
    found: list[str] = status["reasons"]
    return found


def python_without_our_package(directory: Path) -> Path:
    """This Python with all that is installed, but for Penstock, in executors alone.

    An environment whose path names the directory of packages: what is installed as editable is then
    not found. The driver's own processes, to which Spark gives the same path, run this one.
    """
    venv.create(directory, with_pip=False)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    chosen = directory / "chosen"
    bare = directory / "bin" / "python"
    lines = ["#!/bin/sh", "unset PYTHONPATH",
             f'[ -n "$SPARK_EXECUTOR_DIRS" ] && exec {bare} "$@"',
             f'exec {sys.executable} "$@"']  # fmt: skip
    chosen.write_text("\n".join(lines) + "\n")
    chosen.chmod(0o755)
    return chosen


def test_executors_without_the_package_and_lost_workers_degrade_the_job(
    tmp_path: Path, logd: Logd, cluster: SparkCluster
) -> None:
    without = python_without_our_package(tmp_path / "bare")
    made = job_of(tmp_path / "bare-job", logd, cluster, **{"spark.pyspark.python": str(without)})
    made.daemon.start(within_s=90)
    try:
        told = "an executor's Python has no package penstock: install it on each worker"
        assert told in str(reasons(made, "penstock"))
    finally:
        assert made.daemon.stop() == 0
    made = job_of(tmp_path / "job", logd, cluster)
    made.daemon.start(within_s=90)
    try:
        wait_until(
            lambda: made.delivered() == LOGS + SPANS,
            within_s=90,
            what="everything is delivered",
        )
        cluster.lose_workers()
        assert "has given the job no executor for" in str(reasons(made, "no executor"))
    finally:
        assert made.daemon.stop() == 0


def stopped_while_it_writes(cluster: SparkCluster) -> psutil.Process | None:
    """A Python worker that has a file of the lake open, and does no more."""
    for executor in cluster.executors():
        for process in executor.children(recursive=True):
            try:
                if not any("_writing" in file.path for file in process.open_files()):
                    continue
                process.suspend()
                if any("_writing" in file.path for file in process.open_files()):
                    return process
                process.resume()
            except psutil.Error:  # it has just ended
                continue
    return None


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[SparkCluster]:
    """Two workers, each with a separate address."""
    made = SparkCluster(tmp_path / "cluster", SECRET, apart=True)
    try:
        made.start()
        yield made
    finally:
        made.close()


SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.task.duration.threshold": "3s",
}
"""A task that takes long is run once more on another host, while the first goes on."""


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "slow"])
def test_a_worker_in_the_middle_of_a_batch_leaves_each_record_once(
    tmp_path: Path, nats_url: str, apart: SparkCluster, *, is_lost: bool
) -> None:
    """Its task is run by the other worker, also while it still writes itself."""
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        lines = [log_line(number, service=f"service-{number % 50}") for number in range(WRITTEN)]
        publish(nats_url, "telemetry.logs.x", lines)
        secret = tmp_path / "secret"
        secret.write_text(SECRET)
        conf = apart.conf | ({} if is_lost else SPECULATING)
        made = RouterJob(
            tmp_path / "job",
            logd.fetch,
            streams=["logs"],
            spark={"master": apart.url, "conf": conf, "secret_file": str(secret)},
            source={"min_partitions": 2 * WORKERS},
        )
        try:
            made.daemon.start(within_s=90)
            task = wait_until(
                lambda: stopped_while_it_writes(apart),
                within_s=120,
                what="a task that writes",
                momentary=True,
            )
            assert task is not None
            assert made.delivered() == 0, "a batch is there whole or not at all"
            if is_lost:
                apart.lose_worker_of(task)
            wait_until(lambda: made.committed()["logs"] == WRITTEN, within_s=120)
            if not is_lost:
                task.resume()
            publish(nats_url, "telemetry.logs.x", lines[:1])
            wait_until(lambda: made.committed()["logs"] == WRITTEN + 1, within_s=120)
            assert made.rows()["value"].to_pylist() == [*lines, lines[0]]
            assert made.daemon.status()["info"]["sinks"]["lake"]["restarts"] == 0
            assert made.daemon.stop() == 0
            assert not any(made.lake.glob("_writing/**/*.unfinished"))
        finally:
            made.daemon.close()


def test_a_driver_that_runs_out_of_memory_says_which_key_to_raise(tmp_path: Path) -> None:
    session = Session.start("tests", Spark(master="local[1]"), tmp_path)
    try:
        gateway = gateway_of(session.spark)
        with pytest.raises(SparkEndedError) as ended, session.alive():
            gateway.new_array(gateway.jvm.byte, 2**30)  # more than the heap
        assert "ran out of memory (spark.driver_memory: 896m)" in str(ended.value)
        assert "raise spark.driver_memory" in str(ended.value.fix)
    finally:
        session.close()
    with running_spark(tmp_path / "another") as another:
        assert another.spark.range(3).count() == 3


def job(directory: Path, logd: Logd, conf: dict[str, str], **spark: str) -> RouterJob:
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
        spark={"conf": conf, "secret_file": str(directory / "secret"), **spark},
        admin_access={"token_file": str(directory / "token")},
        source={"min_partitions": WORKERS},
        trigger={"interval_s": 0.2, "max_records": 1500},
    )


def dead_letters(of: RouterJob) -> list[str]:
    """The names of the files of dead letters, which say whose they are."""
    return sorted(path.name for path in (of.checkpoint_dir / "dead_letters").rglob("*.ndjson"))


@contextmanager
def running(of: RouterJob, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`penstock router run` until it has caught up; what it says goes to a file."""
    with started(of, [sys.executable, "-m", "penstock.router"], *arguments) as process:
        yield process


@contextmanager
def submitted(of: RouterJob, cluster: SparkCluster) -> Iterator[subprocess.Popen[bytes]]:
    """The same by Spark's own command, which says the master and how many executors there are."""
    program = str(Path(penstock.router.__file__).parent / "__main__.py")
    command = [*spark_submit(cluster), "--conf", f"spark.cores.max={WORKERS}", program]
    environment = of_spark_submit(of.checkpoint_dir.parent)
    with started(of, command, environment=environment) as process:
        yield process


def spark_submit(cluster: SparkCluster) -> list[str]:
    """Spark's own command, for a program that follows."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    return [str(program), "--master", cluster.url, "--driver-memory", "512m"]


def of_spark_submit(directory: Path) -> dict[str, str]:
    """What a user sets for it: a Java, and the Python of the driver."""
    return {"JAVA_HOME": str(find_java(directory).home), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_DRIVER_PYTHON": sys.executable}  # fmt: skip


@contextmanager
def started(
    of: RouterJob, command: list[str], *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    of.daemon.write_config()
    directory = of.checkpoint_dir.parent
    with (directory / "said").open("wb") as said:
        process = subprocess.Popen(
            [*command, "run", str(directory / "router.yaml"), "--until-caught-up", *arguments],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            env=os.environ | (environment or {}),
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
    assert dead_letters(there) == dead_letters(here) != []
    assert "Registering app penstock test" in cluster.said(0), "the master has had the job"


def imports_of(process: psutil.Process) -> set[str]:
    """The files that a process and those below it have mapped; none of those that have ended."""
    found: set[str] = set()
    with suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                found |= {mapped.path for mapped in one.memory_maps()}
    return found


def bare_python() -> str:
    """A Python that lacks Penstock and its libraries."""
    bare = os.path.realpath(sys.executable)
    missing = subprocess.run([bare, "-Ic", "import pyarrow"], capture_output=True, check=False)
    assert b"No module named 'pyarrow'" in missing.stderr
    return bare


REPORT = """
import json
import sys

from pyspark.sql import SparkSession

from penstock import router

logd, url, directory = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
router.register(spark)
options = {"logd": logd, "subscribe": "logs,traces", "minPartitions": "4"}
whole = spark.read.format("logd").options(**options).load()
earliest = options | {"startingOffsets": "earliest", "view": "records"}
rows = spark.readStream.format("logd").options(**earliest).load()
query = (
    rows.select("kind", "service")
    .writeStream.format("memory")
    .queryName("seen")
    .option("checkpointLocation", directory)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
by_kind = spark.table("seen").groupBy("kind").count().collect()
ones = router.logs(spark, options, where="service = 'service-1'", streaming=False)
ones = ones.groupBy("service").count()
ones.selectExpr("service", "count AS errors").write.format("penstock").option(
    "sink", f"{{type: http, url: '{url}'}}"
).mode("append").save()
print(json.dumps({"whole": whole.count(), "by_kind": dict(map(tuple, by_kind))}))
spark.stop()
"""


def test_a_program_of_ones_own_reads_the_log_on_workers_that_get_the_archive_only(
    tmp_path: Path, logd: Logd, cluster: SparkCluster
) -> None:
    """By the line that the command prints which makes the archive."""
    archive, program = tmp_path / "packages.tar.gz", tmp_path / "report.py"
    program.write_text(REPORT)
    make = [sys.executable, "-m", "penstock.router", "package", "--extra", "router"]
    made = subprocess.run(
        [*make, "--out", str(archive)], capture_output=True, text=True, check=True, timeout=300
    )
    command, *options, last = shlex.split(made.stdout.splitlines()[-1])
    assert (command, last) == ("spark-submit", "PROGRAM.py")
    conf = cluster.conf | {
        "spark.authenticate": "true",
        "spark.authenticate.secret": SECRET,
        "spark.pyspark.python": bare_python(),
    }
    options += [it for key, value in conf.items() for it in ("--conf", f"{key}={value}")]
    destination = HttpDestination()
    destination.open()
    try:
        arguments = [str(program), logd.fetch, destination.url, str(tmp_path / "checkpoint")]
        done = subprocess.run(
            [*spark_submit(cluster), *options, *arguments],
            env=os.environ | of_spark_submit(tmp_path),
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
    finally:
        destination.close()
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "whole": LOGS + SPANS + 1,
        "by_kind": {"log": LOGS, "span": SPANS, "raw": 1},
    }
    (record,) = destination.records
    ones = sum(number % 3 == 1 for number in range(LOGS))
    assert record["attributes"] == {"errors": ones}
    assert "Registering app report.py" in cluster.said(0), "the master has had the program"


def test_spark_submit_brings_the_packages_and_gives_the_same_result(
    tmp_path: Path, logd: Logd, cluster: SparkCluster
) -> None:
    """Executors have a Python that lacks Penstock and its libraries; the archive has both."""
    archive = tmp_path / "packages.tar.gz"
    assert make_package(archive, ["router"]).size > 1_000_000
    bare = bare_python()
    conf = cluster.conf | {"spark.pyspark.python": bare}
    there = job(tmp_path / "there", logd, conf, package=str(archive))
    here = job(tmp_path / "here", logd, cluster.conf)

    def imports_the_archive() -> bool:
        executors = [imports_of(executor) for executor in cluster.executors()]
        wanted = "/penstock-packages/pyarrow/"
        return any(wanted in path for paths in executors for path in paths)

    with submitted(there, cluster) as process:
        wait_until(
            lambda: process.poll() is not None or imports_the_archive(),
            within_s=120,
            what="an executor imports what the archive has",
        )
        assert process.poll() is None, (tmp_path / "there" / "said").read_text()[-3000:]
        ends_well(process, there)
    with running(here) as process:
        ends_well(process, here)
    rows = there.rows()
    assert rows.num_rows == sum(number % 3 == 1 for number in range(LOGS)) + SPANS
    assert rows.equals(here.rows())
    assert dead_letters(there) == dead_letters(here) != []

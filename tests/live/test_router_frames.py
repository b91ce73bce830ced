"""Spark jobs of others: they read the log, and write to the router's sinks from their frames."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock import router
from penstock.router.spark.java import find_java
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.package_files import packages_beside
from tests.support.processes import free_port
from tests.support.router import STREAMS, log_line, publish
from tests.support.spark import running_spark
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(660)]

LOGS = 300
PANDAS = "pandas==2.3.3"


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        lines = [
            log_line(number, service=f"service-{number % 3}", severity=17 if number % 2 else 9)
            for number in range(LOGS)
        ]
        publish(nats_url, "telemetry.logs.x", lines)
        yield running


@pytest.fixture
def destination() -> Iterator[HttpDestination]:
    made = HttpDestination()
    made.open()
    yield made
    made.close()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a user of Spark sets: the Python of its workers, and a Java."""
    return {"JAVA_HOME": str(find_java(tmp_path).home), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable}  # fmt: skip


@contextmanager
def connect_server(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """A server of Spark Connect; the address to give to clients."""
    port = free_port()
    home = Path(pyspark.__file__).parent
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [home / "bin" / "spark-submit", "--master", "local[2]", "--class", server,
               "--conf", f"spark.connect.grpc.binding.port={port}", "spark-internal"]  # fmt: skip
    log = directory / "connect.log"
    with (
        log.open("wb") as said,
        subprocess.Popen(
            [str(it) for it in command], env=os.environ | environment | {"SPARK_HOME": str(home)},
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=directory,
        ) as process,
    ):  # fmt: skip
        try:
            wait_until(
                lambda: process.poll() is not None or is_listening(port),
                within_s=90,
                what="Spark Connect",
            )
            assert process.poll() is None, log.read_text()[-3000:]
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.kill()


def is_listening(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("how", ["classic", "connect"])
def test_the_example_counts_errors_and_posts_them(
    tmp_path: Path, logd: Logd, destination: HttpDestination, environment: dict[str, str], how: str
) -> None:
    with ExitStack() as stack:
        if how == "connect":
            assert find_spec("pandas") is None, "the router needs none, which tests would not see"
            # Spark Connect's client needs it: the program has it, and neither server nor workers.
            pandas = str(packages_beside(PANDAS))
            server = stack.enter_context(connect_server(tmp_path, environment))
            environment |= {"SPARK_REMOTE": server, "PYTHONPATH": pandas}
        done = subprocess.run(
            [sys.executable, "examples/05_spark_job.py", logd.fetch, destination.url],
            env=os.environ | environment, capture_output=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = sorted(destination.records, key=lambda record: str(record["resource"]))
    assert [(it["resource"]["service.name"], it["attributes"], it["body"]) for it in found] == [
        (f"service-{number}", {"errors": 50}, f"50 errors in service-{number}")
        for number in range(3)
    ]


def stream_to(
    spark: SparkSession, logd: Logd, destination: HttpDestination, directory: Path
) -> None:
    """Everything that the log has now, as it is there, in batches of 100."""
    options = {"logd": logd.fetch, "subscribe": "logs", "startingOffsets": "earliest",
               "maxOffsetsPerTrigger": "100"}  # fmt: skip
    rows = spark.readStream.format("logd").options(**options).load()
    query = (
        rows.selectExpr("stream", "partition", "offset", "value")
        .writeStream.format("penstock")
        .option("sink", f"{{type: http, url: '{destination.url}'}}")
        .option("checkpointLocation", str(directory))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_stream_is_written_batch_by_batch_and_goes_on_where_it_was(
    tmp_path: Path, logd: Logd, nats_url: str, destination: HttpDestination
) -> None:
    with running_spark(tmp_path / "spark") as session:
        router.register(session.spark)
        stream_to(session.spark, logd, destination, tmp_path / "checkpoint")
        numbers = [record["attributes"]["number"] for record in destination.records]
        assert numbers == list(range(LOGS))
        batches = len(destination.requests)
        publish(nats_url, "telemetry.logs.x", [log_line(LOGS)])
        stream_to(session.spark, logd, destination, tmp_path / "checkpoint")
        assert len(destination.requests) == batches + 1
        assert destination.records[-1]["attributes"]["number"] == LOGS

        # What fails in a task, or when the options are read, says why.
        frame = session.spark.range(3).selectExpr("id", "'hello' AS body")
        with pytest.raises(PySparkException, match=r"Spark has frame\.write\.parquet"):
            frame.write.format("penstock").option("sink", "{type: parquet, path: /x}").mode(
                "append"
            ).save()
        frame.write.format("penstock").options(
            sink=json.dumps({"type": "http", "url": destination.url}), service="mine"
        ).mode("append").save()
        last = destination.records[-3:]
        assert sorted(record["attributes"]["id"] for record in last) == [0, 1, 2]
        assert {record["resource"]["service.name"] for record in last} == {"mine"}

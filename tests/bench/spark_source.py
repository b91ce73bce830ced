"""What the scenarios of the router's source share: a filled log, a Spark, and what a job costs.

Rates are per core: records divided by the CPU time of Spark's JVM and of all its Python
workers, past ones too. So they hold on a busy machine as well. The log's own processes count apart.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

import psutil
from pyspark.sql import DataFrame, SparkSession

from penstock.router.spark.session import ARCHIVE_PATH
from tests.bench.harness import Bench, Effort
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.router import publish
from tests.support.spark import running_spark

RECORD_BYTES = 300
STREAM = "logs"
QUIET = "quiet"
QUIET_SUBJECT = "telemetry.quiet.one"
SUBJECTS = tuple(f"telemetry.logs.service{number}" for number in range(5))
"""Each has a fifth of the records; so has each of five severities."""

_CHUNK = 20_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What one job took.

    Attributes:
        records: That it read, whether it kept them or not.
        core_s: CPU seconds of Spark, its Python workers included.
        wall_s: Seconds.
    """

    records: int
    core_s: float
    wall_s: float

    @property
    def per_core(self) -> float:
        """Records a second of one core."""
        return self.records / self.core_s


@dataclass(frozen=True, slots=True)
class Place:
    """A log with records and a Spark.

    Attributes:
        count: Of the records.
    """

    spark: SparkSession
    logd: Logd
    nats_url: str
    count: int
    directory: Path

    def options(self, **more: str) -> dict[str, str]:
        """Of the source."""
        given = {"logd": self.logd.fetch, "subscribe": STREAM, "minPartitions": "2"}
        return given | {"startingOffsets": "earliest"} | more

    def cost(self, make: Callable[[], DataFrame]) -> Cost:
        """Read a frame to its end and throw it away."""
        process = psutil.Process()
        begun, core_s = perf_counter(), _core_seconds(process)
        make().write.format("noop").mode("overwrite").save()
        return Cost(self.count, _core_seconds(process) - core_s, perf_counter() - begun)


PYTHONS_REST_S = 95
"""Spark ends what it has forked of a Python process a minute after its last use, a job the rest."""


def archive_classes(bench: Bench) -> None:
    """See that this Python environment has the archive of Spark's classes, as images have it."""
    if bench.effort is not Effort.SMOKE and not ARCHIVE_PATH.is_file():
        bench.progress.step("archiving Spark's classes")
        command = [sys.executable, "-m", "penstock.router", "prepare"]
        subprocess.run(command, check=True, capture_output=True)


def records_of_300(count: int) -> Iterator[bytes]:
    """Log records that differ in their numbers."""
    return map(_line, range(count))


@contextmanager
def filled_log(
    bench: Bench, name: str, count: int, values: Callable[[int], Iterator[bytes]] = records_of_300
) -> Iterator[tuple[str, Logd]]:
    """A log of `count` values and of a stream without any, and the NATS server's URL."""
    directory = bench.directory / name
    streams = [
        {"name": STREAM, "subject": "telemetry.logs.>"},
        {"name": QUIET, "subject": "telemetry.quiet.>"},
    ]
    bench.progress.step(f"{name}: filling")
    with (
        running_nats_server(directory / "nats") as url,
        Logd(directory / "logd", url, streams) as logd,
    ):
        left = values(count)
        while chunk := list(islice(left, _CHUNK)):
            for number, subject in enumerate(SUBJECTS):
                publish(url, subject, chunk[number :: len(SUBJECTS)])
        yield url, logd


@contextmanager
def filled(bench: Bench, name: str, count: int) -> Iterator[Place]:
    """That, and a Spark on two cores."""
    directory = bench.directory / name
    with filled_log(bench, name, count) as (url, logd):
        bench.progress.step(f"{name}: starting Spark")
        with running_spark(directory / "spark") as session:
            yield Place(session.spark, logd, url, count, directory)


def _line(number: int) -> bytes:
    """A log record of 300 bytes."""
    record = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": 1_795_000_000_000_000_000 + number,
        "severity_number": (5, 9, 9, 13, 17)[number % 5],
        "attributes": {"order": f"o-{number:08}", "total": number / 4, "http.route": "/orders"},
        "resource": {"service.name": f"service{number % 5}", "service.version": "1.2.3"},
        "body": "",
    }
    missing = RECORD_BYTES - len(json.dumps(record))
    return json.dumps(record | {"body": f"order {number} placed".ljust(missing, ".")}).encode()


def _core_seconds(process: psutil.Process) -> float:
    """CPU time of this process's JVMs and of everything they have started, past ones too."""
    total = 0.0
    for child in process.children():
        if "java" in child.name():
            total += tree_seconds(child)
    return total


def tree_seconds(process: psutil.Process) -> float:
    """CPU time of a process and of everything it has started, past ones too."""
    return sum(map(_own_seconds, [process, *process.children(recursive=True)]))


def _own_seconds(process: psutil.Process) -> float:
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

"""u. A whole job: from logd through its routes into three sinks or one, a second of one core.

`penstock router run` as a process, on `local[2]`, with all that a job does: a query for each sink,
checkpoints, the sinks' own notes. Records count once they are in every sink. The first half of the
log is for the JVM to compile what it runs; rates are those of the rest, memory and seconds to ready
of the whole run. The JVM has the archive of classes that images have. The destinations of requests
are a server that throws everything away; its CPU time, and logd's, count apart. A job that is idle
has had a few records, and then rested for longer than Spark keeps Python processes that have
nothing to do.

Then one sink of Parquet, of records that the collector makes of lines of eleven formats.

Then one sink by the cores of Spark: Parquet, and HTTP to a server that takes 50 ms a request, with
`local[1]`, `local[2]`, and one and two workers of one core each of a standalone cluster, whose
executors' CPU time counts with the job's.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import psutil
from typing_extensions import override

from tests.bench.figures import Aim, Case
from tests.bench.footprint import wait_idle
from tests.bench.harness import Bench
from tests.bench.spark_source import (
    PYTHONS_REST_S,
    QUIET,
    QUIET_SUBJECT,
    RECORD_BYTES,
    STREAM,
    archive_classes,
    filled_log,
    tree_seconds,
)
from tests.bench.stages import records_of_lines
from tests.support.logd import Logd
from tests.support.router import RouterJob, log_line, publish
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import wait_until

TITLE = "300 B records from logd through a job with three sinks, or with one"
ONE = "one of Parquet"
FILES = "three of Parquet"
MIXED = "Parquet, HTTP, Elasticsearch"
SMALL = "Parquet, HTTP, Elasticsearch; small"
THROUGH_ALL_MIN = {FILES: 100_000, MIXED: 25_000}
OF_A_CORE_MIN = {ONE: 110_000, FILES: 50_000}
IDLE_MIB_MAX = 500
_IDLE_RECORDS = 200

LINES_TITLE = "lines of eleven formats from logd through one sink of Parquet"
LINES = "one of Parquet, lines"
LINES_OF_A_CORE_MIN = 80_000

CORES_TITLE = "300 B records from logd through one sink, on one core of Spark and on two"
MASTERS = ("local[1]", "local[2]", "one worker", "two workers")
PARQUET = tuple(f"Parquet, {master}" for master in MASTERS)
SLOW = tuple(f"HTTP at 50 ms, {master}" for master in MASTERS)
SLOW_S = 0.05
OF_TWO_CORES_MIN = 1.5
OF_TWO_WORKERS_MIN = 1.7
DRIVER_SHARE_MAX = 10

_SMALL: dict[str, Any] = {
    "spark": {"master": "local[1]", "driver_memory": "512m"},
    "trigger": {"interval_s": 1, "max_records": 10_000},
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a job took.

    Attributes:
        ready_s: From the start of its process until it was ready.
        first_s: From there until a sink had committed records.
        memory_mib: Of all its processes, the most that was seen; shared pages count once.
        driver_s: What of `core_s` the driver took, its JVM included; elsewhere than on a cluster
            that is all of it.
    """

    records: float
    wall_s: float
    core_s: float
    ready_s: float
    first_s: float
    memory_mib: float
    driver_s: float


def run(bench: Bench) -> Iterator[Case]:
    """Fill a log and run jobs over it in turns, each with a checkpoint of its own."""
    records = Case("u", "records through all sinks", "records/s", aims=_aims(THROUGH_ALL_MIN))
    per_core = Case("u", "records through all sinks, of a core", "records/s",
                    compare={FILES: (ONE,)}, aims=_aims(OF_A_CORE_MIN))  # fmt: skip
    volume = Case("u", "bytes through all sinks, of a core", "MB/s")
    memory = Case("u", "memory of the job", "MiB", better="lower")
    ready = Case("u", "from start to ready", "s", better="lower")
    first = Case("u", "from start to the first commit", "s", better="lower")
    idle = Case("u", "memory of an idle job", "MiB", better="lower",
                aims=(Aim(ONE, None, IDLE_MIB_MAX),))  # fmt: skip
    archive_classes(bench)
    directory = bench.directory / "u"
    count = bench.pick(2_000_000, 1_200_000, 2_000)
    with filled_log(bench, "u", count) as (nats_url, logd), nowhere() as url:
        ways = {ONE: _file, FILES: _files, MIXED: _mixed, SMALL: _mixed}
        for number, (name, counts) in enumerate(bench.turns("u", tuple(ways), warm_up=False)):
            at = directory / f"job{number}"
            more = _SMALL if name is SMALL else {"trigger": {"interval_s": 1}}
            job = _job(at, logd, ways[name](at, url), more)
            ran = _ran(job, count, warm_up=count * bench.pick(5, 5, 0) / 10)
            if counts:
                records.add(name, ran.records / ran.wall_s)
                per_core.add(name, ran.records / ran.core_s)
                volume.add(name, ran.records * RECORD_BYTES / ran.core_s / 1e6)
                memory.add(name, ran.memory_mib)
                ready.add(name, ran.ready_s)
                first.add(name, ran.first_s)
        for number, _ in enumerate(bench.turns("u, idle", (ONE,), warm_up=False), 1):
            at = directory / f"idle{number}"
            job = _job(at, logd, _file(at, url), {"streams": [QUIET]})
            publish(nats_url, QUIET_SUBJECT, list(map(log_line, range(_IDLE_RECORDS))))
            rest_s = bench.pick(PYTHONS_REST_S, PYTHONS_REST_S, 1)
            idle.add(ONE, _idle_mib(job, number * _IDLE_RECORDS, rest_s))
    yield from (records, per_core, volume, memory, ready, first, idle)


def run_lines(bench: Bench) -> Iterator[Case]:
    """Records of real lines through one sink of Parquet."""
    case = Case("u", "records through all sinks, of a core, of lines", "records/s",
                aims=(Aim(LINES, None, LINES_OF_A_CORE_MIN),))  # fmt: skip
    sample = list(records_of_lines(1000))
    case.notes[LINES] = f"{sum(map(len, sample)) / len(sample):.0f} B a record"
    archive_classes(bench)
    directory = bench.directory / "u-lines"
    count = bench.pick(2_000_000, 1_200_000, 2_000)
    with filled_log(bench, "u-lines", count, records_of_lines) as (_, logd):
        for number, (name, counts) in enumerate(bench.turns("u, lines", (LINES,), warm_up=False)):
            at = directory / f"job{number}"
            job = _job(at, logd, _file(at, ""), {"trigger": {"interval_s": 1}})
            ran = _ran(job, count, warm_up=count * bench.pick(5, 5, 0) / 10)
            if counts:
                case.add(name, ran.records / ran.core_s)
    yield case


def run_by_cores(bench: Bench) -> Iterator[Case]:
    """The same for one sink, each way in turns."""
    one, two, worker, workers = PARQUET
    of_one = {PARQUET[at]: (PARQUET[at - 1],) for at in (1, 3)}
    records = Case("u", "records through the sink", "records/s",
                   compare={**of_one, **{SLOW[at]: (SLOW[at - 1],) for at in (1, 3)}},
                   aims=(Aim(two, one, OF_TWO_CORES_MIN),
                         Aim(workers, worker, OF_TWO_WORKERS_MIN),
                         Aim(SLOW[3], SLOW[2], OF_TWO_WORKERS_MIN)))  # fmt: skip
    core_us = Case("u", "CPU time of a record", "µs", better="lower", compare=of_one)
    driver = Case("u", "of that, the driver's", "%", better="lower",
                  aims=(Aim(workers, None, DRIVER_SHARE_MAX),))  # fmt: skip
    archive_classes(bench)
    directory = bench.directory / "u-cores"
    count = bench.pick(2_000_000, 1_200_000, 2_000)
    cluster = SparkCluster(directory / "cluster")
    with (
        filled_log(bench, "u-cores", count) as (_, logd),
        nowhere(SLOW_S) as url,
        closing(cluster),
    ):
        cluster.start()
        ways = (*PARQUET, *SLOW)
        for number, (name, counts) in enumerate(bench.turns("u-cores", ways, warm_up=False)):
            at = directory / f"job{number}"
            sinks = _file(at, url)
            if name in SLOW:
                sinks = {"hook": {"type": "http", "url": f"{url}/in"}}
            spark = _spark_on(name.partition(", ")[2], cluster)
            job = _job(at, logd, sinks, {"spark": spark, "trigger": {"interval_s": 1}})
            ran = _ran(job, count, cluster, warm_up=count * bench.pick(5, 5, 0) / 10)
            if counts:
                records.add(name, ran.records / ran.wall_s)
                core_us.add(name, ran.core_s / ran.records * 1e6)
                if name.endswith(MASTERS[2:]):
                    driver.add(name, ran.driver_s / ran.core_s * 100)
    yield from (records, core_us, driver)


def _aims(bounds: Mapping[str, float]) -> tuple[Aim, ...]:
    return tuple(Aim(name, None, bound) for name, bound in bounds.items())


def _spark_on(master: str, cluster: SparkCluster) -> dict[str, Any]:
    if master.startswith("local"):
        return {"master": master}
    cores = "1" if master == MASTERS[2] else "2"
    return {"master": cluster.url, "conf": cluster.conf | {"spark.cores.max": cores}}


def _file(directory: Path, url: str) -> dict[str, Any]:
    return {"lake": {"type": "parquet", "path": str(directory / "lake")}}


def _files(directory: Path, url: str) -> dict[str, Any]:
    names = ("first", "second", "third")
    return {name: {"type": "parquet", "path": str(directory / name)} for name in names}


def _mixed(directory: Path, url: str) -> dict[str, Any]:
    return {
        "lake": {"type": "parquet", "path": str(directory / "lake")},
        "hook": {"type": "http", "url": f"{url}/in"},
        "search": {"type": "elasticsearch", "url": url, "compression": "none"},
    }


def _job(directory: Path, logd: Logd, sinks: dict[str, Any], more: dict[str, Any]) -> RouterJob:
    routes = [{"name": "everything", "sinks": list(sinks)}]
    keys = {"streams": [STREAM], "routes": routes, "sinks": sinks} | more
    return RouterJob(directory, logd.fetch, **keys)


_MEMORY_EVERY_S = 1.0
_STATUS_EVERY_S = 0.25
"""Seconds between two looks, which take CPU time from what is measured."""


def _ran(job: RouterJob, count: int, cluster: SparkCluster | None = None, *, warm_up: float) -> Ran:
    """Run a job until every sink has every record, and measure it after so many of them."""
    most, looked_s, first = 0.0, 0.0, 0.0
    asked_s, known = 0.0, 0.0

    def executors_s() -> float:
        return sum(map(tree_seconds, cluster.executors())) if cluster else 0.0

    began = perf_counter()
    try:
        job.daemon.start(within_s=120)
        ready, process = perf_counter(), psutil.Process(job.daemon.pid)

        def delivered() -> float:
            """Records that every sink has, on the average."""
            nonlocal most, looked_s, first, asked_s, known
            if perf_counter() - looked_s > _MEMORY_EVERY_S:
                most, looked_s = max(most, _memory_mib(process)), perf_counter()
            if perf_counter() - asked_s < _STATUS_EVERY_S:
                return known
            asked_s = perf_counter()
            sinks = job.daemon.status()["info"]["sinks"].values()
            committed: list[int] = [sink["committed"].get(STREAM, 0) for sink in sinks]
            if any(committed):
                first = first or perf_counter()
            known = sum(committed) / len(committed)
            return known

        wait_until(lambda: delivered() >= warm_up, within_s=600, what="the JVM is warm")
        done, warm = delivered(), perf_counter()
        began_s = executors_s(), tree_seconds(process)
        wait_until(lambda: delivered() == count, within_s=600, what="every sink has every record")
        wall_s, driver_s = perf_counter() - warm, max(tree_seconds(process) - began_s[1], 0.01)
        core_s = driver_s + executors_s() - began_s[0]
        assert job.daemon.stop() == 0, job.daemon.log()[-3000:]
    finally:
        job.daemon.close()
    return Ran(count - done, wall_s, core_s, ready - began, first - began, most, driver_s)


def _idle_mib(job: RouterJob, count: int, rest_s: float) -> float:
    """The memory of a job that has had so many records, after a rest."""
    try:
        job.daemon.start(within_s=120)
        wait_until(
            lambda: job.committed().get(QUIET, 0) == count, within_s=120, what="the records' commit"
        )
        wait_idle(rest_s)
        mib = _memory_mib(psutil.Process(job.daemon.pid))
        assert job.daemon.stop() == 0, job.daemon.log()[-3000:]
    finally:
        job.daemon.close()
    return mib


def _memory_mib(process: psutil.Process) -> float:
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


class nowhere:  # noqa: N801 - a context manager, used as a function
    """A server that takes everything and keeps nothing; `wait_s` seconds a request."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self._wait_s = wait_s

    def __enter__(self) -> str:
        handler = type("_Waiting", (_Nowhere,), {"wait_s": self._wait_s})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Nowhere(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wait_s = 0.0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        sleep(self.wait_s)
        body = b'{"errors":false,"items":[]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""

"""z. The appliance of `penstock up`: until it is ready, and what each part takes, idle and loaded.

`penstock up` with one logd, as a user starts it, on free ports. Idle is with no app; the appliance
collects this host's metrics and its own logs all the same. Loaded is with one app that logs at a
fixed rate through the spec library. Memory is the proportional share (PSS), so that the sum of the
processes counts a page that several of them have once.

From the log call to the row: from the time that the call put on the record until the Parquet file
with its row had its name, which the file system notes; both are this machine's clock. Commands are
run as from a shell, while the appliance is idle; a first run, which does not count, brings the
modules into the page cache.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Final, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.base.clock import SystemClock
from tests.bench.figures import Aim, Case, percentile
from tests.bench.footprint import wait_idle
from tests.bench.harness import Bench
from tests.bench.machine import cpu_seconds
from tests.bench.spark_source import PYTHONS_REST_S, archive_classes
from tests.support.processes import arguments_of
from tests.support.waiting import wait_until

TITLE: Final = "the appliance of `penstock up`"
RATE: Final = 1_000
"""Records a second when loaded."""

TOTAL: Final = "all of it"
ROW_P50_MAX_S: Final = 2
COMMANDS: Final[Mapping[str, float]] = {"penstock --help": 0.15, "penstock logd streams ls": 0.3}
"""The aims in seconds."""

_COMMAND_RUNS: Final = 5
_PENSTOCK: Final = str(Path(sys.executable).with_name("penstock"))
_SERVICE: Final = "bench"
_PARTS: Final[Mapping[str, str]] = {
    "penstock.logd": "logd",
    "penstock.collector": "collector",
    "penstock.router": "router: driver",
    "penstock.deploy.console": "console",
}
_APP: Final = """
import sys, time
from penstock import specs
specs.setup("bench", socket=sys.argv[1], opentelemetry=False)
log, rate = specs.log("bench"), int(sys.argv[2])
print("ready", flush=True)
begun, number = time.monotonic(), 0
while True:
    due = int((time.monotonic() - begun) * rate)
    for number in range(number, due):
        log.info("order placed", order_id=f"{number:08}", customer=f"c{number % 997}", total=39.9)
    number = max(number, due)
    time.sleep(0.05)
"""


class Use(NamedTuple):
    """What a part takes.

    Attributes:
        memory_mib: PSS.
        cpu_percent: Of a core.
    """

    memory_mib: float
    cpu_percent: float


def run(bench: Bench) -> Iterator[Case]:
    """Ready, idle, commands, loaded."""
    ready = Case("z", "time to ready", "s", "lower", aims=(Aim(TOTAL, None, 12),))
    memory = Case("z", "memory, idle", "MiB", "lower", aims=(Aim(TOTAL, None, 700),))
    cpu = Case("z", "processor, idle", "% of a core", "lower", aims=(Aim(TOTAL, None, 4),))
    what = f"with {RATE:,} log records a second"
    loaded = Case("z", f"memory, {what}", "MiB", "lower")
    busy = Case("z", f"processor, {what}", "% of a core", "lower")
    row = Case("z", f"from the log call to the row in Parquet, {what}", "s", "lower",
               aims=(Aim("p50", None, ROW_P50_MAX_S),))  # fmt: skip
    aims = tuple(Aim(name, None, most_s) for name, most_s in COMMANDS.items())
    commands = Case("z", "a command, from its start to its end", "s", "lower", aims=aims)
    archive_classes(bench)
    for _ in bench.turns("z", [TOTAL], warm_up=False):
        directory = Path(tempfile.mkdtemp(prefix="penstock-bench-"))  # a socket's path is short
        try:
            begun_ns = perf_counter_ns()
            with _appliance(directory) as launcher:
                ready.add(TOTAL, (perf_counter_ns() - begun_ns) / 1e9)
                wait_idle(bench.pick(PYTHONS_REST_S, PYTHONS_REST_S, 1))
                _note(memory, cpu, _uses(launcher, bench.pick(60, 30, 1)))
                for name in COMMANDS:
                    for took_s in _command_s(name, directory):
                        commands.add(name, took_s)
                with _app(directory):
                    wait_idle(bench.pick(20, 10, 1))
                    begun_us = _now_us()
                    _note(loaded, busy, _uses(launcher, bench.pick(60, 30, 1)))
                    took = _rows_s(directory / "lake", begun_us, _now_us())
                    for percent in (50, 99):
                        row.add(f"p{percent}", percentile(took, percent))
        finally:
            shutil.rmtree(directory)
    yield from (ready, memory, cpu, loaded, busy, row, commands)


@contextmanager
def _appliance(directory: Path) -> Iterator[psutil.Process]:
    """One that is ready; gives its launcher."""
    where = ["--dir", str(directory)]
    up = [_PENSTOCK, "up", *where, "--free-ports", "--detach"]
    subprocess.run(up, check=True, capture_output=True, timeout=300)
    try:
        yield psutil.Process(json.loads((directory / "running.json").read_text())["pid"])
    finally:
        subprocess.run([_PENSTOCK, "down", *where], check=True, capture_output=True, timeout=300)


@contextmanager
def _app(directory: Path) -> Iterator[None]:
    """An app that logs at `RATE`, from now on."""
    socket = str(directory / "collector.sock")
    command = [sys.executable, "-P", "-c", _APP, socket, str(RATE)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
        assert process.poll() is None, "the app has ended"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _uses(launcher: psutil.Process, seconds: float) -> dict[str, Use]:
    """What each part takes, for so long."""
    before = {process.pid: cpu_seconds(process.pid) for process in _tree(launcher)}
    begun_ns = perf_counter_ns()
    wait_idle(seconds)
    took_s = (perf_counter_ns() - begun_ns) / 1e9
    found: dict[str, Use] = defaultdict(lambda: Use(0, 0))
    for process in _tree(launcher):
        part = _part(process)
        if part is None:
            continue
        cpu = (cpu_seconds(process.pid) - before.get(process.pid, 0)) / took_s * 100
        memory = process.memory_full_info().pss / 2**20
        for name in (part, TOTAL):
            found[name] = Use(found[name].memory_mib + memory, found[name].cpu_percent + cpu)
    return found


def _command_s(name: str, directory: Path) -> list[float]:
    """Seconds that each run of a command takes."""
    fetch = json.loads((directory / "running.json").read_text())["addresses"]["fetch"]
    environment = os.environ | {"PENSTOCK_LOGD_SERVER": fetch}
    took = []
    for _ in range(1 + _COMMAND_RUNS):
        begun_ns = perf_counter_ns()
        subprocess.run(
            [_PENSTOCK, *name.split()[1:]],
            check=True, capture_output=True, timeout=60, env=environment,
        )  # fmt: skip
        took.append((perf_counter_ns() - begun_ns) / 1e9)
    return took[1:]


def _rows_s(lake: Path, begun_us: int, ended_us: int) -> list[float]:
    """Seconds from each of the app's log calls in between until its row was there."""
    took: dict[Path, list[float]] = {}

    def all_there() -> bool:
        last_us = 0
        for file in lake.glob("kind=log/**/*.parquet"):
            if file not in took:
                there_us = file.stat().st_ctime_ns // 1000
                logged = _logged_us(file)
                took[file] = [
                    (there_us - at_us) / 1e6 for at_us in logged if begun_us <= at_us < ended_us
                ]
                last_us = max([last_us, *logged])
        return last_us >= ended_us

    wait_until(all_there, within_s=60, what="the rows of all calls")
    return [seconds for part in took.values() for seconds in part]


def _logged_us(file: Path) -> list[int]:
    """When the app's records of a file were logged, in Unix µs."""
    table = pq.ParquetFile(file).read(columns=["time", "service"])
    of_app = table.filter(pc.equal(table["service"], _SERVICE))
    found: list[int] = of_app["time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return found


def _now_us() -> int:
    return SystemClock().unix_ns() // 1000


def _tree(launcher: psutil.Process) -> list[psutil.Process]:
    return [launcher, *launcher.children(recursive=True)]


def _part(process: psutil.Process) -> str | None:
    """The part that a process of the appliance belongs to; None for one that has just ended."""
    arguments = arguments_of(process)
    if not arguments:
        return None
    name = Path(arguments[0]).name
    if name in ("java", "nats-server"):
        return {"java": "router: JVM"}.get(name, name)
    module = next((part for part in arguments if part in _PARTS), None)
    if module is not None:
        return _PARTS[module]
    spark = any(argument.startswith("pyspark.") for argument in arguments)
    return "router: Python of Spark" if spark else "launcher"


def _note(memory: Case, cpu: Case, uses: Mapping[str, Use]) -> None:
    for part, use in sorted(uses.items()):
        memory.add(part, use.memory_mib)
        cpu.add(part, use.cpu_percent)

"""g. What streams cost while nothing happens: memory, CPU, descriptors, threads, time to start.

A system with 1, 100, 1,000 and 5,000 streams is started, left alone, and looked at. logd counts
together with the nats-server it needs. Both have their streams by requests, not in a configuration,
and were stopped cleanly. Cost per stream is what the most take more than one, divided. logd's
`/metrics` is asked for several times, after the time in which nothing happens; JetStream has
none.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter_ns

from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench, Effort
from tests.bench.machine import cpu_seconds, open_files, resident_bytes, threads
from tests.bench.systems import DEFAULT, JetStream, NatsServer
from tests.support.logd import Logd
from tests.support.waiting import wait_until

_MAKERS = 16
"""Clients that have streams made side by side, so that their commands share syncs."""

NO_BOUNDS: Mapping[int, float] = {}

TITLE = "cost of idle streams, and starting"
LOGD = "logd and nats-server"
COMPARE = {LOGD: (DEFAULT,)}
START_MS_MAX = {1: 500, 5000: 5000}
"""By streams."""
IDLE_PERCENT_MAX = 1.0
METRICS_MB_MAX = 1.0
METRICS_MS_MAX = 200
"""With 5,000 streams."""
_METRICS_ASKED = 5


class _Footprint:
    """The cases, and the figures of one start."""

    def __init__(self, bench: Bench, counts: tuple[int, ...]) -> None:
        def cases(what: str, unit: str, bounds: Mapping[int, float] = NO_BOUNDS) -> dict[int, Case]:
            found = {}
            for n in counts:
                aims = (Aim(LOGD, None, bounds[n]),) if n in bounds else ()
                name = f"{n:,} stream{'s' * (n > 1)}, {what}"
                found[n] = Case("g", name, unit, "lower", COMPARE, aims)
            return found

        most = max(START_MS_MAX)
        self.idle_s = bench.pick(10, 3, 1)
        self.start = cases("time to start", "ms", START_MS_MAX)
        self.memory = cases("memory", "MiB")
        self.cpu = cases("processor", "% of a core", dict.fromkeys(counts, IDLE_PERCENT_MAX))
        self.files = cases("open files", "descriptors")
        self.threads = cases("threads", "threads")
        self.metrics_ms = cases("`/metrics`, time to answer", "ms", {most: METRICS_MS_MAX})
        self.metrics_mb = cases("`/metrics`, size", "MB", {most: METRICS_MB_MAX})

    def look(self, name: str, streams: int, pids: list[int], start_ns: int) -> None:
        """Note one start that took `start_ns`; then leave the processes alone for a while."""
        self.start[streams].add(name, start_ns / 1e6)
        wait_idle(self.idle_s / 10)
        begun_ns, used_s = perf_counter_ns(), sum(map(cpu_seconds, pids))
        wait_idle(self.idle_s)
        used_s = sum(map(cpu_seconds, pids)) - used_s
        self.cpu[streams].add(name, used_s / (perf_counter_ns() - begun_ns) * 1e11)
        self.memory[streams].add(name, sum(map(resident_bytes, pids)) / 2**20)
        self.files[streams].add(name, sum(map(open_files, pids)))
        self.threads[streams].add(name, sum(map(threads, pids)))

    def ask_for_metrics(self, streams: int, logd: Logd) -> None:
        """Note how large `/metrics` is, and how long the slowest answer took."""
        took_ms, size = 0.0, 0
        for _ in range(_METRICS_ASKED):
            begun_ns = perf_counter_ns()
            with logd.daemon.get("/metrics") as answer:
                size = len(answer.read())
            took_ms = max(took_ms, (perf_counter_ns() - begun_ns) / 1e6)
        self.metrics_ms[streams].add(LOGD, took_ms)
        self.metrics_mb[streams].add(LOGD, size / 1e6)

    def cases(self) -> list[Case]:
        looked_at = (
            self.memory, self.cpu, self.files, self.threads, self.start,
            self.metrics_ms, self.metrics_mb,
        )  # fmt: skip
        found = [case for by in looked_at for case in by.values()]
        fewest, most = min(self.memory), max(self.memory)
        each = Case("g", "memory per idle stream", "KiB", "lower", COMPARE)
        for name, values in self.memory[most].series.items():
            for high, low in zip(values, self.memory[fewest].series[name], strict=True):
                each.add(name, (high - low) * 1024 / (most - fewest))
        return [*found, each]


def wait_idle(seconds: float) -> None:
    """Let time pass."""
    until_ns = perf_counter_ns() + int(seconds * 1e9)
    wait_until(lambda: perf_counter_ns() >= until_ns, within_s=seconds + 60)


def percents(pids: list[int], seconds: int) -> list[float]:
    """CPU time of each process while time passes, in percent of a core."""
    before = [cpu_seconds(pid) for pid in pids]
    begun_ns = perf_counter_ns()
    wait_idle(seconds)
    took_s = (perf_counter_ns() - begun_ns) / 1e9
    after = [cpu_seconds(pid) for pid in pids]
    return [(end - start) / took_s * 100 for start, end in zip(before, after, strict=True)]


def run(bench: Bench) -> Iterator[Case]:
    """Both systems with each number of streams."""
    counts = {Effort.SMOKE: (1, 2), Effort.QUICK: (1, 100, 1000)}.get(
        bench.effort, (1, 100, 1000, 5000)
    )
    found = _Footprint(bench, counts)
    for streams in counts:
        with ExitStack() as stack:
            directory = bench.directory / "g"
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            logd, server = _logd(stack, directory, streams)
            peer = _jetstream(stack, directory, streams)
            for name, _ in bench.turns(f"g, {streams} streams", (LOGD, DEFAULT), warm_up=False):
                begun_ns = perf_counter_ns()
                if name == LOGD:
                    logd.daemon.start(within_s=120)
                    start_ns = perf_counter_ns() - begun_ns
                    found.look(name, streams, [logd.daemon.pid, server.pid], start_ns)
                    found.ask_for_metrics(streams, logd)
                    assert logd.daemon.stop(within_s=120) == 0, logd.daemon.log()[-3000:]
                else:
                    peer.start()
                    start_ns = perf_counter_ns() - begun_ns
                    found.look(name, streams, [peer.pid], start_ns)
                    peer.stop()
    yield from found.cases()


def _logd(stack: ExitStack, directory: Path, streams: int) -> tuple[Logd, NatsServer]:
    """A logd that has its streams already, stopped."""
    server = NatsServer(directory / "nats")
    stack.callback(server.stop)
    server.start()
    logd = Logd(directory / "logd", server.url, [])
    stack.callback(logd.daemon.close)
    logd.daemon.start(within_s=300)
    with ThreadPoolExecutor(_MAKERS) as makers:
        for made in [
            makers.submit(_make, logd, range(n, streams, _MAKERS)) for n in range(_MAKERS)
        ]:
            made.result()
    assert logd.daemon.stop(within_s=120) == 0, logd.daemon.log()[-3000:]
    return logd, server


def _make(logd: Logd, numbers: Iterable[int]) -> None:
    with logd.client(timeout_s=60) as client:
        for number in numbers:
            client.create_stream(f"s{number}", f"bench.{number}.>")


def _jetstream(stack: ExitStack, directory: Path, streams: int) -> NatsServer:
    """A nats-server that has its streams already, stopped."""
    server = NatsServer(directory / "peer", jetstream="2m")
    stack.callback(server.stop)
    server.start()
    for number in range(streams):
        subject = f"bench.{number}.>"
        JetStream(DEFAULT, server.url, subject, server, f"s{number}").create()
    server.stop()
    return server

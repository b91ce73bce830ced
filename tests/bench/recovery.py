"""g. How long a start takes with data on disk, after a clean stop and after kill -9.

Both stores hold as many records of 256 B. A start is from the process's begin until it answers that
all records can be read; what a start takes with an empty store is subtracted, and the rest divided
by the GiB of values. Files are in the page cache: this is the cost of the work, not of reading.
"""

import signal
from collections.abc import Iterator
from time import perf_counter_ns

from tests.bench.figures import Case
from tests.bench.harness import Bench
from tests.bench.reading import SIZE_BYTES, fill
from tests.bench.systems import (
    COMMIT,
    DEFAULT,
    JetStream,
    LogdStream,
    System,
    running,
    settle,
)
from tests.support.waiting import wait_until

TITLE = "recovery"
COMPARE = {COMMIT: (DEFAULT,)}
WAYS = {"a clean stop": signal.SIGTERM, "kill -9": signal.SIGKILL}


def run(bench: Bench) -> Iterator[Case]:
    """Start empty, fill, then stop and kill in turns."""
    cases = {way: Case("g", f"start after {way}", "s/GiB", "lower", COMPARE) for way in WAYS}
    empty: dict[str, float] = {}
    count = bench.pick(4_000_000, 400_000, 4_000)
    gib = count * SIZE_BYTES / 2**30
    with running(bench.directory / "r", (COMMIT, DEFAULT), allow_batched=True) as systems:
        for system, _ in bench.turns("g, empty", systems, warm_up=False):
            seconds = _restart(system, signal.SIGTERM)
            empty[system.name] = min(seconds, empty.get(system.name, seconds))
        bench.progress.step("g: filling")
        fill(bench, systems[0], count)
        bench.publish("fast", systems[1], count=count, size_bytes=SIZE_BYTES)
        settle(systems)
        for way, how in WAYS.items():
            for system, _ in bench.turns(f"g, {way}", systems, warm_up=False):
                seconds = _restart(system, how)
                cases[way].add(system.name, max(0.0, seconds - empty[system.name]) / gib)
                cases[way].notes[system.name] = (
                    f"{gib:.2g} GiB; last: {seconds:.2f} s, empty: {empty[system.name]:.2f} s"
                )
                assert system.stored() in (0, count), (system.name, system.stored())
    yield from cases.values()


def _restart(system: System, how: signal.Signals) -> float:
    """Seconds from a new process to all its records."""
    before = system.stored()
    if isinstance(system, LogdStream):
        daemon = system.logd.daemon
        if how is signal.SIGKILL:
            daemon.kill()
        else:
            assert daemon.stop(within_s=120) == 0, daemon.log()[-3000:]
        begun_ns = perf_counter_ns()
        daemon.start(within_s=300)
    else:
        assert isinstance(system, JetStream)
        system.server.stop(how)
        begun_ns = perf_counter_ns()
        system.server.start()
        system.url = system.server.url
    wait_until(lambda: system.stored() == before, within_s=300, what=f"{system.name} recovered")
    return (perf_counter_ns() - begun_ns) / 1e9

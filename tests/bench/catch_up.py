"""k. A node that was away: how fast it catches up, and how long until it is in sync.

A follower is killed (-9), records are written, and its process is started again. Catching up is
counted from when the node answers until its replica is in sync again, by what its leader says;
starting, from the beginning of the process, once with nothing to fetch and once with all that.
"""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns

from tests.bench.clusters import ReplicatedJetStream, ReplicatedStream, running_clusters
from tests.bench.figures import Case
from tests.bench.harness import Bench
from tests.bench.reading import SIZE_BYTES, fill
from tests.bench.systems import COMMIT, DEFAULT, System, settle
from tests.support.waiting import wait_until

TITLE = "a follower is killed and comes back"
COMPARE = {COMMIT: (DEFAULT,)}


def run(bench: Bench) -> Iterator[Case]:
    """Clusters in turn: a kill without a record written meanwhile, and one with many."""
    count = bench.pick(1_000_000, 200_000, 2_000)
    mib = count * SIZE_BYTES / 2**20
    rate = Case("k", "catching up", "MiB/s", compare=COMPARE)
    alone = Case("k", "start to in sync, nothing missing", "s", "lower", COMPARE)
    filled = Case("k", f"start to in sync, {mib:.3g} MiB missing", "s", "lower", COMPARE)
    with running_clusters(bench.directory / "kc", (COMMIT, DEFAULT), allow_batched=True) as systems:
        for system, _ in bench.turns("k, nothing missing", systems, warm_up=False):
            alone.add(system.name, _away(system, lambda: None)[1])
        for system, _ in bench.turns("k, catching up", systems, warm_up=False):
            answered_s, in_sync_s = _away(system, partial(_write, bench, system, count))
            rate.add(system.name, mib / (in_sync_s - answered_s))
            filled.add(system.name, in_sync_s)
            settle(systems)
    yield from (rate, alone, filled)


def _write(bench: Bench, system: System, count: int) -> None:
    """Values of so many records, the quickest way there is."""
    if isinstance(system, ReplicatedStream):
        fill(bench, system, count)
    else:
        bench.publish("fast", system, count=count, size_bytes=SIZE_BYTES)
    wait_until(system.settled, within_s=120, what=f"{system.name} settled")


def _away(system: System, meanwhile: Callable[[], None]) -> tuple[float, float]:
    """Kill a follower, and start it again.

    Returns:
        Seconds from its start until it answers, and until it is in sync.
    """
    kill, start, in_sync = _ways(system)
    wait_until(in_sync, within_s=120, what=f"{system.name} in sync")
    kill()
    wait_until(lambda: not in_sync(), within_s=120, what=f"{system.name} without a follower")
    meanwhile()
    begun_ns = perf_counter_ns()
    start()
    answered_ns = perf_counter_ns()
    wait_until(in_sync, within_s=600, what=f"{system.name} in sync again")
    return (answered_ns - begun_ns) / 1e9, (perf_counter_ns() - begun_ns) / 1e9


def _ways(
    system: System,
) -> tuple[Callable[[], object], Callable[[], object], Callable[[], bool]]:
    """How to kill and to start a follower of a system, and whether all of it is in sync."""
    if isinstance(system, ReplicatedStream):
        names = system.cluster.names
        system.info()
        name = next(name for name in names if name != system.leader)
        daemon = system.cluster.nodes[name].daemon
        return (
            daemon.kill,
            lambda: daemon.start(within_s=300),
            lambda: len(system.info().isr) == len(names),
        )
    assert isinstance(system, ReplicatedJetStream)
    server = next(server for server in system.servers if server.url != system.url)
    return lambda: server.stop(signal.SIGKILL), server.start, system.in_sync

"""l. What a cluster of three costs while nothing happens: CPU time and memory of a node.

Every stream has three replicas, and leaders are spread over the nodes. Both clusters have all their
streams and are looked at in turns. A figure is that of the node that uses most; logd's nats-server
is not a node, and noted beside.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack

from tests.bench.clusters import ReplicatedJetStream, logd_cluster, nats_cluster
from tests.bench.figures import Aim, Case
from tests.bench.footprint import percents, wait_idle
from tests.bench.harness import Bench
from tests.bench.machine import resident_bytes
from tests.bench.systems import DEFAULT
from tests.support.waiting import wait_until

TITLE = "an idle cluster of three nodes"
LOGD = "logd"
COMPARE = {LOGD: (DEFAULT,)}
CPU_AIM = 5.0
"""Percent of a core, of each node."""

_CREATE_S = 900.0
_SETTLE_S = 20


def run(bench: Bench) -> Iterator[Case]:
    """Few streams, then many."""
    for streams in ((1, 1000), (1, 100), (1, 2))[bench.effort]:
        name = f"{streams:,} stream{'s' * (streams > 1)}"
        cpu = Case("l", f"{name}, processor", "% of a core a node", "lower", COMPARE,
                   (Aim(LOGD, None, CPU_AIM),))  # fmt: skip
        memory = Case("l", f"{name}, memory", "MiB a node", "lower", COMPARE)
        with ExitStack() as stack:
            directory = bench.directory / "lc"
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            nodes, beside = _logd(bench, stack, streams)
            pids = {LOGD: nodes, DEFAULT: _jetstream(bench, stack, streams)}
            bench.progress.step("l: until nothing happens")
            wait_idle(bench.pick(_SETTLE_S, _SETTLE_S // 4, 1))
            for system, _ in bench.turns(f"l, {name}", (LOGD, DEFAULT), warm_up=False):
                used = percents([*pids[system], beside], bench.pick(20, 5, 1))
                cpu.add(system, max(used[:-1]))
                memory.add(system, max(map(resident_bytes, pids[system])) / 2**20)
                if system == LOGD:
                    cpu.notes[system] = f"nats-server besides: {used[-1]:.2g} %"
            memory.notes[LOGD] = f"nats-server besides: {resident_bytes(beside) / 2**20:.0f} MiB"
        yield from (cpu, memory)


def _logd(bench: Bench, stack: ExitStack, streams: int) -> tuple[list[int], int]:
    """The processes of a cluster with its streams in sync, and its nats-server's."""
    bench.progress.step(f"l: logd makes {streams} streams")
    cluster, server = logd_cluster(stack, bench.directory / "lc" / "logd", [])
    with cluster.client(timeout_s=60) as log:
        for number in range(streams):
            log.create_stream(f"s{number}", f"bench.{number}.>")

        def in_sync() -> bool:
            infos = [part for stream in log.streams() for part in stream.partitions]
            return len(infos) == streams and all(len(part.isr) == 3 for part in infos)

        wait_until(in_sync, within_s=_CREATE_S, what=f"{streams} streams in sync")
    return [node.daemon.pid for node in cluster.nodes.values()], server.pid


def _jetstream(bench: Bench, stack: ExitStack, streams: int) -> list[int]:
    bench.progress.step(f"l: JetStream makes {streams} streams")
    servers = nats_cluster(stack, bench.directory / "lc" / "peer", sync="2m")
    for number in range(streams):
        subject, first = f"bench.{number}.>", servers[0]
        ReplicatedJetStream(
            DEFAULT, first.url, subject, first, f"s{number}", servers=servers
        ).create()
    return [server.pid for server in servers]

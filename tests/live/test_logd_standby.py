"""Publishers without acks go on while a leader is lost: with `warm_standby` nothing is missing."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.steady_publisher import LAST, SteadyPublisher
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


def kill(cluster: LogdCluster, leader: str) -> None:
    cluster.nodes[leader].daemon.kill()
    wait_led(cluster, leader)
    cluster.start(leader)


def freeze(cluster: LogdCluster, leader: str) -> None:
    pid = cluster.nodes[leader].daemon.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_led(cluster, leader)
    finally:
        os.kill(pid, signal.SIGCONT)


def retire(cluster: LogdCluster, leader: str) -> None:
    cluster.nodes[leader].daemon.stop()
    wait_led(cluster, leader)


def wait_led(cluster: LogdCluster, before: str) -> None:
    """Wait until another node has taken what was published since."""
    other = next(name for name in cluster.running() if name != before)

    def led() -> bool:
        return cluster.partition("s", node=other).leader not in (None, before)

    wait_until(led, what="another leader")
    end = cluster.partition("s", node=other).end_offset
    wait_until(lambda: cluster.partition("s", node=other).end_offset > end, what="it goes on")


async def fail(
    cluster: LogdCluster,
    publisher: SteadyPublisher,
    stream: str,
    fault: Callable[[LogdCluster, str], None],
) -> None:
    leader = await asyncio.to_thread(cluster.leader, stream)
    await publisher.goes_on()
    await asyncio.to_thread(fault, cluster, leader)
    for name in ("s", "t"):
        await asyncio.to_thread(cluster.wait_in_sync, name)


def stored(cluster: LogdCluster, stream: str) -> Counter[bytes | None]:
    """How often each value is stored, once the last one is."""

    def found() -> Counter[bytes | None]:
        counts = Counter(cluster.values(stream))
        return counts if counts[LAST] else Counter()

    return wait_until(found, what=f"the last message in {stream}")


def told(cluster: LogdCluster, stream: str) -> set[str]:
    """Why nodes say that a stream missed messages."""
    gaps = [
        gap
        for name in cluster.running()
        for gap in cluster.nodes[name].daemon.status()["info"]["ingest_gaps"]["ended"]
    ]
    return {gap["reason"] for gap in gaps if stream in gap["streams"]}


async def test_nothing_is_missing_and_nothing_comes_twice(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server, LogdCluster(tmp_path, server.url) as cluster:
        cluster.create("s", "s.>", warm_standby=True)
        cluster.create("t", "t.>")
        cluster.wait_in_sync("s")
        publisher = SteadyPublisher(server.url, "s.a", "t.a")
        running = asyncio.create_task(publisher.run())
        await fail(cluster, publisher, "s", freeze)
        await fail(cluster, publisher, "s", kill)
        await fail(cluster, publisher, "t", kill)
        await fail(cluster, publisher, "s", retire)
        await publisher.goes_on()
        publisher.stop()
        await running
        numbers = [b"%d" % number for number in range(publisher.sent)]
        warm = await asyncio.to_thread(stored, cluster, "s")
        assert [number for number in numbers if warm[number] != 1] == []
        assert not await asyncio.to_thread(told, cluster, "s")
        cold = await asyncio.to_thread(stored, cluster, "t")
        assert [number for number in numbers if not cold[number]], "or else the test shows nothing"
        assert "no_leader" in await asyncio.to_thread(told, cluster, "t")

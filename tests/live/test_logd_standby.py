"""Publishers without acks go on while a leader is lost, and a stream with `warm_standby` has all."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import pytest

from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

RATE = 1500
SLICES = 50
"""A second; in each the messages of that slice go out together."""


class Publisher:
    """Sends numbered messages at a steady rate, and asks for no answer.

    Args:
        url: Of the NATS server.
        ids: Whether each has a `Nats-Msg-Id`.
    """

    def __init__(self, url: str, *, ids: bool) -> None:
        self.sent = 0
        self._url, self._ids = url, ids
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        client = await nats.connect(self._url)
        while not self._stopping.is_set():
            for _ in range(RATE // SLICES):
                headers = {"Nats-Msg-Id": f"m{self.sent}"} if self._ids else None
                await client.publish("s.a", b"%d" % self.sent, headers=headers)
                self.sent += 1
            await client.flush()
            await asyncio.sleep(1 / SLICES)
        await client.publish("s.a", b"last")
        await client.flush()
        await client.close()

    def stop(self) -> None:
        self._stopping.set()


Fault = Callable[[LogdCluster, str], Awaitable[None]]


async def killed(cluster: LogdCluster, leader: str) -> None:
    cluster.nodes[leader].daemon.kill()


async def stopped(cluster: LogdCluster, leader: str) -> None:
    """Frozen until another one leads, and then let go on."""
    process = cluster.nodes[leader].daemon.process
    os.kill(process.pid, signal.SIGSTOP)
    try:
        await asyncio.to_thread(wait_other, cluster, leader)
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def retired(cluster: LogdCluster, leader: str) -> None:
    await asyncio.to_thread(cluster.nodes[leader].daemon.stop)


def wait_other(cluster: LogdCluster, leader: str) -> None:
    other = next(name for name in cluster.running() if name != leader)
    wait_until(
        lambda: cluster.partition("s", node=other).leader not in (None, leader),
        within_s=20,
        what="another leader",
    )


async def fail_over(cluster: LogdCluster, url: str, fault: Fault, *, ids: bool) -> Counter[int]:
    """Publish across a fault of the leader; how often each number is stored that was sent."""
    publisher = Publisher(url, ids=ids)
    running = asyncio.create_task(publisher.run())
    leader = await asyncio.to_thread(cluster.leader, "s")
    await has_more(cluster, RATE // 2)
    await fault(cluster, leader)
    await asyncio.to_thread(wait_other, cluster, leader)
    await has_more(cluster, RATE // 2)
    publisher.stop()
    await running
    values = await asyncio.to_thread(stored, cluster)
    found = Counter(int(value) for value in values if value not in (None, b"last"))
    return Counter({number: found[number] for number in range(publisher.sent)})


async def has_more(cluster: LogdCluster, count: int) -> None:
    def end() -> int:
        with cluster.client(*cluster.running()) as log:
            return log.offsets("s")[1]

    wanted = await asyncio.to_thread(end) + count
    reached = lambda: end() >= wanted  # noqa: E731
    await asyncio.to_thread(wait_until, reached, within_s=30, what=f"offset {wanted}")


def stored(cluster: LogdCluster) -> list[bytes | None]:
    return wait_until(
        lambda: values if b"last" in (values := cluster.values("s")) else None,
        within_s=30,
        what="the last one is stored",
    )


def gaps(cluster: LogdCluster) -> list[str]:
    found = cluster.nodes[cluster.leader("s")].daemon.status()["info"]["ingest_gaps"]["ended"]
    return [gap["reason"] for gap in found]


@pytest.mark.parametrize("fault", [killed, stopped, retired])
@pytest.mark.parametrize("ids", [False, True])
async def test_nothing_is_missing_after(tmp_path: Path, fault: Fault, ids: bool) -> None:
    with nats_server(tmp_path / "nats") as server, LogdCluster(tmp_path, server.url) as cluster:
        cluster.create("s", "s.>", warm_standby=True)
        cluster.wait_in_sync("s")
        found = await fail_over(cluster, server.url, fault, ids=ids)
        assert [number for number, count in found.items() if not count] == []
        assert [number for number, count in found.items() if count > 1] == []
        assert "no_leader" not in await asyncio.to_thread(gaps, cluster)


async def test_without_it_what_is_missing_is_told(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server, LogdCluster(tmp_path, server.url) as cluster:
        cluster.create("s", "s.>")
        cluster.wait_in_sync("s")
        found = await fail_over(cluster, server.url, killed, ids=False)
        assert [number for number, count in found.items() if not count]
        assert "no_leader" in await asyncio.to_thread(gaps, cluster)

"""Publishers without acks go on while a leader is lost: with `warm_standby` nothing is missing."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import nats
import pytest

from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.live

RATE = 1200
SLICES = 40
"""A second; in each the messages of that slice go out together."""

LAST = b"last"


class Publisher:
    """Sends numbered messages at a steady rate to several subjects, and asks for no answer.

    Every other message has a `Nats-Msg-Id`.

    Attributes:
        sent: How many, to each subject.
    """

    def __init__(self, url: str, *subjects: str) -> None:
        self.sent = 0
        self._url, self._subjects = url, subjects
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        client = await nats.connect(self._url)
        while not self._stopping.is_set():
            for _ in range(RATE // SLICES):
                headers = {"Nats-Msg-Id": f"m{self.sent}"} if self.sent % 2 else None
                for subject in self._subjects:
                    await client.publish(subject, b"%d" % self.sent, headers=headers)
                self.sent += 1
            await client.flush()
            await asyncio.sleep(1 / SLICES)
        for subject in self._subjects:
            await client.publish(subject, LAST)
        await client.flush()
        await client.close()

    def stop(self) -> None:
        self._stopping.set()

    async def goes_on(self) -> None:
        """Wait until as many more are sent as in half a second."""
        wanted = self.sent + RATE // 2
        await wait_until_async(lambda: self.sent >= wanted)


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
    cluster.start(leader)


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
    publisher: Publisher,
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
        for node in cluster.nodes.values()
        for gap in node.daemon.status()["info"]["ingest_gaps"]["ended"]
    ]
    return {gap["reason"] for gap in gaps if stream in gap["streams"]}


async def test_nothing_is_missing_and_nothing_comes_twice(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server, LogdCluster(tmp_path, server.url) as cluster:
        cluster.create("s", "s.>", warm_standby=True)
        cluster.create("t", "t.>")
        cluster.wait_in_sync("s")
        publisher = Publisher(server.url, "s.a", "t.a")
        running = asyncio.create_task(publisher.run())
        for fault in (freeze, retire, kill):
            await fail(cluster, publisher, "s", fault)
        await fail(cluster, publisher, "t", kill)
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

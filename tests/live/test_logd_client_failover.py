"""Readers of a real cluster go on across kill -9 of leaders: nothing is missed or seen twice."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from penstock.logd.client import (
    AsyncLogClient,
    CommitPolicy,
    FollowOptions,
    LogClient,
    Prefer,
)
from penstock.logd.publisher import connected
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

SOON = FollowOptions(wait_s=1.0)
KILLS, COUNT = 2, 30
TOTAL = (KILLS + 1) * COUNT

Seen = list[tuple[int, bytes | None]]


async def read(cluster: LogdCluster, prefer: Prefer, seen: Seen) -> None:
    address = cluster.nodes["b"].fetch
    async with (
        AsyncLogClient(address, prefer=prefer) as log,
        aclosing(log.follow("s", 0, SOON)) as records,
    ):
        async for offset, record in records:
            seen.append((offset, record.value))
            if len(seen) == TOTAL:
                return


def consume(cluster: LogdCluster, seen: Seen) -> None:
    """Read on from a cursor, which is committed on the way and kept by the cluster."""
    addresses = ",".join(node.fetch for node in cluster.nodes.values())
    with LogClient(addresses) as log:
        following = log.cursor("c", "s").follow(commit=CommitPolicy(records=7), options=SOON)
        for offset, record in following:
            seen.append((offset, record.value))
            if len(seen) == TOTAL:
                break
        following.close()
        cursor = log.cursor("c", "s").get()
        assert cursor is not None
        assert cursor.offset == TOTAL - 1, "the last one was not asked beyond"


async def test_readers_go_on_across_kills_of_leaders(tmp_path: Path) -> None:
    seen: list[Seen] = [[], [], []]
    killed: list[str] = []
    with nats_server(tmp_path / "nats") as server, LogdCluster(tmp_path, server.url) as cluster:
        await asyncio.to_thread(cluster.create, "s", "s.>")
        reading = asyncio.gather(
            read(cluster, "leader", seen[0]),
            read(cluster, "replica", seen[1]),
            asyncio.to_thread(consume, cluster, seen[2]),
        )
        async with connected(server.url) as publisher:
            for number in range(TOTAL):
                await publisher.publish("s.a", b"%d" % number)  # also right after a kill
                if number % COUNT == COUNT - 1 and number < TOTAL - 1:
                    await asyncio.to_thread(wait_until, caught_up(seen, number - COUNT // 2))
                    leader = await asyncio.to_thread(cluster.leader, "s")
                    cluster.nodes[leader].daemon.kill()
                    killed.append(leader)
                elif killed and number % COUNT == COUNT // 2:
                    await asyncio.to_thread(cluster.start, killed.pop())
                    await asyncio.to_thread(cluster.wait_in_sync, "s")
        await asyncio.wait_for(reading, 60)
    for one in seen:
        assert one == [(number, b"%d" % number) for number in range(TOTAL)]


def caught_up(seen: list[Seen], count: int) -> Callable[[], bool]:
    return lambda: min(map(len, seen)) >= count

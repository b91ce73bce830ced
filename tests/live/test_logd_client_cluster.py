"""The clients in a cluster: to the leader, to replicas, and on across the loss of leaders."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from penstock.logd.client import AsyncLogClient, FollowOptions, LogClient, Prefer
from penstock.logd.errors import RefusedError, UnavailableError
from tests.support.logd import Logd
from tests.support.standin_cluster import StandIn, standin_cluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

SOON = FollowOptions(wait_s=0.5)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[StandIn]:
    async with standin_cluster(tmp_path) as found:
        yield found


def read(server: str, prefer: Prefer, upto: int, seen: list[int]) -> None:
    with LogClient(server, timeout_s=20.0, prefer=prefer) as log:
        for offset, _ in log.follow("logs", 0, SOON):
            seen.append(offset)
            if offset == upto - 1:
                break


async def read_async(server: str, prefer: Prefer, upto: int, seen: list[int]) -> None:
    async with (
        AsyncLogClient(server, timeout_s=20.0, prefer=prefer) as log,
        aclosing(log.follow("logs", 0, SOON)) as records,
    ):
        async for offset, _ in records:
            seen.append(offset)
            if offset == upto - 1:
                break


async def caught_up(seen: list[list[int]], count: int) -> None:
    await asyncio.to_thread(wait_until, lambda: min(map(len, seen)) >= count)


async def test_endless_reads_go_on_across_the_loss_of_leaders(cluster: StandIn) -> None:
    rounds, count, rng = 6, 20, random.Random(1)
    upto, one, every = rounds * count, cluster.nodes["b"].address, cluster.addresses
    seen: list[list[int]] = [[] for _ in range(4)]
    reading = asyncio.gather(
        asyncio.to_thread(read, one, "leader", upto, seen[0]),
        asyncio.to_thread(read, every, "replica", upto, seen[1]),
        read_async(every, "leader", upto, seen[2]),
        read_async(one, "replica", upto, seen[3]),
    )
    for number in range(rounds):
        await caught_up(seen, number * count)
        await cluster.publish(count // 2)
        lost = cluster.nodes[cluster.leader or ""]
        cluster.leader = None
        await lost.kill()
        cluster.leader = rng.choice([name for name in cluster.nodes if name != lost.name])
        lost.start()
        await cluster.publish(count // 2)
    await asyncio.wait_for(reading, 60)
    assert seen == [list(range(upto))] * len(seen)


async def test_only_the_leader_answers_unless_a_replica_will_do(cluster: StandIn) -> None:
    await cluster.publish(3)
    address = cluster.nodes["b"].address
    async with AsyncLogClient(address) as log:
        assert (await log.offsets("logs")).end == 3
        (info,) = await log.streams()
        assert (info.partitions[0].leader, info.partitions[0].high_watermark) == ("a", 2)
        assert [node.node for node in (await log.cluster()).nodes] == ["a", "b", "c"]
        assert (await log.offsets("logs")).end == 3
    assert cluster.nodes["b"].fetches == cluster.nodes["c"].fetches == 0
    async with AsyncLogClient(address, prefer="replica") as log:
        assert (await log.fetch("logs", 0)).next_offset == 3
        with pytest.raises(RefusedError):
            await log.fetch("logs", 4)
    assert cluster.nodes["b"].fetches + cluster.nodes["c"].fetches == 2


async def test_a_call_without_a_leader_ends_in_time_and_other_calls_go_on(cluster: StandIn) -> None:
    async with AsyncLogClient(cluster.addresses, timeout_s=1.0) as log:
        await log.offsets("logs")
        cluster.leader = None
        fetching = asyncio.create_task(log.fetch("logs", 0, wait_ms=0))
        assert await log.match("t.a") == ["logs"]
        with pytest.raises(UnavailableError, match="nobody leads it"):
            await fetching


def test_the_first_of_several_addresses_that_answers_is_taken(
    tmp_path: Path, nats_url: str
) -> None:
    streams = [{"name": "logs", "subject": "t.>"}]
    with Logd(tmp_path / "1", nats_url, streams) as one:
        other = Logd(tmp_path / "2", nats_url, streams)
        with LogClient(f"{other.fetch},{one.fetch}") as log:
            for _ in range(3):
                assert log.offsets("logs").end == 0
            assert log.cluster().cluster is None
            assert log.rebalance() == 0
            one.daemon.stop()
            with pytest.raises(UnavailableError, match="cannot be reached"):
                log.offsets("logs")

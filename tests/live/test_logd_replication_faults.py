"""Replication through connections that break, stall and damage what they carry."""

import asyncio
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.logd.cluster.replication import ReplicaFetchSettings
from tests.support.relay import Relay, relaying
from tests.support.replicating_nodes import A, B, C, Held, meet, running, view
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live

SIZES = [10, 100, 5_000, 60_000]


def disturb(relay: Relay, rng: random.Random) -> None:
    match rng.choices(["cut", "damage", "stall", "heal", "nothing"], [5, 5, 5, 25, 60])[0]:
        case "cut":
            relay.cut()
        case "damage":
            relay.damage_from = rng.choice([500, 5_000])
        case "stall":
            relay.flowing.clear()
        case "heal":
            relay.flowing.set()
        case _:
            pass


def is_copied(leading: Held, *others: Held) -> bool:
    end = leading.replica.log.submitted
    return all(each.log.end_offset == end for each in (leading, *others))


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_logs_become_one_again(tmp_path: Path, seed: int) -> None:
    """Two partitions whose followers are in sync, two whose followers catch up."""
    rng = random.Random(seed)
    settings = ReplicaFetchSettings(response_bytes_max=200_000)
    together = view(replicas=(A, B, C))
    async with (
        running(tmp_path, A, B, C, settings=settings) as nodes,
        relaying(nodes[0].address) as first,
        relaying(nodes[0].address) as second,
    ):
        meet(nodes[1], addresses={"a": first.address})
        meet(nodes[2], addresses={"a": second.address})
        partitions = [[node.hold(number) for node in nodes] for number in range(4)]
        for number, held in enumerate(partitions):
            apart = replace(together, isr=frozenset({A}), min_isr=1)
            for each in held:
                each.lead_or_follow(together if number < 2 else apart)
        for _ in range(150):
            for held in partitions:
                held[0].publish(*[rng.randbytes(rng.choice(SIZES)) for _ in range(3)])
            disturb(rng.choice([first, second]), rng)
            for _ in range(rng.randint(0, 40)):
                await asyncio.sleep(0)
        for relay in (first, second):
            relay.damage_from = 0
            relay.flowing.set()
        for held in partitions:
            await wait_until_async(lambda held=held: is_copied(*held))  # type: ignore[misc]
            written = list(held[0].log.frames())
            assert [list(each.log.frames()) for each in held[1:]] == [written, written]
        for held in partitions[:2]:
            last = held[0].log.end_offset - 1
            await wait_until_async(
                lambda held=held, last=last: all(each.high_watermark == last for each in held)  # type: ignore[misc]
            )
        assert nodes[1].replication.fetched["a"].sessions > 1

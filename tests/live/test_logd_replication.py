"""Replication between nodes over real sockets: what flows, what is lost, what comes again."""

from pathlib import Path

import pytest

from tests.support.replicating_nodes import A, B, C, running, view
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live


async def test_what_the_leader_writes_comes_to_every_follower_and_is_committed(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, A, B, C) as nodes:
        held = [node.hold() for node in nodes]
        for each in held:
            each.lead_or_follow(view(replicas=(A, B, C)))
        for number in range(50):
            held[0].publish(b"%d" % number)
        await wait_until_async(lambda: all(each.high_watermark == 49 for each in held))
        written = list(held[0].log.frames())
        assert [list(each.log.frames()) for each in held[1:]] == [written, written]
        assert nodes[0].replication.fed["b"].frames == 50
        assert nodes[1].replication.fetched["a"].frames == 50

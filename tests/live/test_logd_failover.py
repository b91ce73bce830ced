"""A cluster loses its leaders one after another, and nothing that it acked."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import Error

from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.live


class Publisher:
    """Sends numbered messages, one at a time, each until it is acked.

    Attributes:
        acked: (offset, number) in the order of the acks.
    """

    def __init__(self, url: str, subject: str) -> None:
        self.acked: list[tuple[int, int]] = []
        self._url, self._subject = url, subject
        self._number = 0

    async def run(self) -> None:
        client = await nats.connect(self._url)
        try:
            while True:
                self._number += 1
                self.acked.append((await self._send(client), self._number))
        finally:
            await client.close()

    async def goes_on(self) -> None:
        """Wait until twenty more are acked."""
        wanted = len(self.acked) + 20
        await wait_until_async(lambda: len(self.acked) >= wanted)

    async def _send(self, client: Any) -> int:
        payload = b"%d" % self._number
        while True:
            await asyncio.sleep(0)  # nobody listens: the answer is there at once
            with contextlib.suppress(Error):
                headers = {"Nats-Msg-Id": f"m{self._number}"}
                reply = await client.request(self._subject, payload, timeout=0.5, headers=headers)
                ack = json.loads(reply.data)
                if "error" not in ack:
                    return int(ack["offset"])


async def test_leaders_are_killed_and_nothing_acked_is_lost(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server, LogdCluster(tmp_path, server.url) as cluster:
        cluster.create("s", "s.>")
        publisher = Publisher(server.url, "s.a")
        running = asyncio.create_task(publisher.run())
        for _ in range(3):
            await publisher.goes_on()
            leader = await asyncio.to_thread(cluster.leader, "s")
            cluster.nodes[leader].daemon.kill()
            await publisher.goes_on()
            await asyncio.to_thread(cluster.start, leader)
            await asyncio.to_thread(cluster.wait_in_sync, "s")
        running.cancel()
        values = await asyncio.to_thread(cluster.values, "s")
        assert [values[offset] for offset, _ in publisher.acked] == [
            b"%d" % number for _, number in publisher.acked
        ]
        assert len(set(values)) == len(values), "each id is stored once"
        statuses = [node.daemon.status() for node in cluster.nodes.values()]
        gaps = [gap for it in statuses for gap in it["info"]["ingest_gaps"]["ended"]]
        assert "no_leader" in {gap["reason"] for gap in gaps}, "what has no ack may be missing"
        wait_until(lambda: _equal(cluster, "s"), what="replicas are equal")


def _equal(cluster: LogdCluster, stream: str) -> bool:
    found = [cluster.partition(stream, node=name) for name in cluster.names]
    return len({(part.high_watermark, part.end_offset) for part in found}) == 1

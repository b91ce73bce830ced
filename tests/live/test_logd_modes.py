"""What a cluster's stream is told to be: partitioned, paused, read-only, short of replicas."""

import contextlib
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError

from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


async def test_a_stream_is_partitioned_paused_and_made_read_only(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server, LogdCluster(tmp_path, server.url) as cluster:
        cluster.create("s", "s.a", partitions=2)
        client = await nats.connect(server.url)
        with cluster.client() as log:
            assert await offset(client, "s.a") == 0
            assert await offset(client, "s.a.1") == 0
            assert await offset(client, "s.a.1") == 1
            assert [len(cluster.values("s", number)) for number in (0, 1)] == [1, 2]

            log.set_stream_mode("s", paused=True)
            assert log.stream("s").options["paused"]
            assert await offset(client, "s.a.1") == 2, "it is stored, and acked"
            wait_until(lambda: not log.stream("s").options["paused"], what="it is awake")
            assert await offset(client, "s.a.1") == 3

            for round_ in range(3):
                log.set_stream_mode("s", paused=True, held=True)
                for subject in ("s.a", "s.a.1"):
                    while await listens(client, subject):
                        continue
                log.set_stream_mode("s", paused=False)
                stored = [await offset(client, subject) for subject in ("s.a", "s.a.1")]
                assert min(stored) > round_, "it takes messages when the call is over"

            log.set_stream_mode("s", read_only=True)
            refused = await refusal(client, "s.a")
            assert (refused["code"], refused["err_code"]) == (403, 20007)
            log.set_stream_mode("s", read_only=False)
            assert await offset(client, "s.a", patiently=True) >= 2
        await client.close()


async def test_too_few_replicas_in_sync_is_told_and_reading_goes_on(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server, LogdCluster(tmp_path, server.url) as cluster:
        cluster.create("s", "s.>", min_isr=3)
        client = await nats.connect(server.url)
        assert await offset(client, "s.a", patiently=True) == 0
        follower = next(name for name in cluster.names if name != cluster.leader("s"))
        cluster.nodes[follower].daemon.kill()
        assert (await refusal(client, "s.a"))["err_code"] == 20006
        assert cluster.values("s")[0] == b"x"
        cluster.start(follower)
        assert await offset(client, "s.a", patiently=True) >= 1
        await client.close()


async def listens(client: Any, subject: str) -> bool:
    """Whether somebody takes a message; one that is under way meanwhile may have no answer."""
    with contextlib.suppress(TimeoutError):
        try:
            await answer(client, subject)
        except NoRespondersError:
            return False
    return True


async def refusal(client: Any, subject: str) -> dict[str, Any]:
    """Why a message is refused, once one is; what is under way may have no answer until then."""
    while True:
        with contextlib.suppress(TimeoutError):
            found: dict[str, Any] = await answer(client, subject)
            if "error" in found:
                return dict(found["error"])


async def offset(client: Any, subject: str, *, patiently: bool = False) -> int:
    """Where a message was stored; patiently: also if it is refused at first."""
    while True:
        try:
            found = await answer(client, subject)
        except (NoRespondersError, TimeoutError):
            if not patiently:
                raise
            continue
        if "error" not in found:
            return int(found["offset"])
        assert patiently, found


async def answer(client: Any, subject: str) -> dict[str, Any]:
    reply = await client.request(subject, b"x", timeout=3)
    document: dict[str, Any] = json.loads(reply.data)
    return document

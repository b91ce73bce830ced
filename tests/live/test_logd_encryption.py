"""Encrypted streams on real processes: killed, rekeyed, read in every way, replicated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import nats
import orjson
import pytest
from nats.aio.client import Client

from penstock.logd.client import FollowOptions
from penstock.logd.encryption.key_file import masters_of
from penstock.logd.errors import RefusedError
from tests.support.encryption import key_file, section
from tests.support.liftbridge import EARLIEST, LiftbridgeCalls, values
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster, publish
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

SECRET = b"what nobody is to find on a disk"
AUDIT = {
    "name": "audit",
    "subject": "audit.>",
    "encryption": "aes-256-gcm",
    "max_segment_bytes": 64 * 1024,
}
PLAIN = {"name": "plain", "subject": "plain.>"}


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(nats_url)
    yield connection
    await connection.close()


async def publish_many(client: Client, subject: str, numbers: range, size: int = 0) -> None:
    for number in numbers:
        headers = {"Nats-Msg-Id": f"{SECRET.decode()} {number}"}
        await publish(client, subject, SECRET + b" %d " % number + bytes(size), headers)


def shown(directory: Path) -> list[str]:
    """Files below a directory that show what nobody is to find."""
    found = []
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):  # some are there for a moment only
            data = path.read_bytes()
            if SECRET in data or SECRET.hex().encode() in data:
                found.append(str(path))
    return found


async def test_records_outlive_kills_and_rotation_and_no_file_shows_them(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    keys = section(tmp_path, "old")
    with Logd(tmp_path / "logd", nats_url, [AUDIT, PLAIN], encryption=keys) as logd:
        await publish_many(client, "audit.a", range(40), size=5_000)
        await client.jetstream().publish("plain.a", b"plain")
        await asyncio.to_thread(logd.restart, kill=True)
        await publish_many(client, "audit.b", range(40, 60))
        await publish_many(client, "audit.b", range(50, 60))
        logd.config["encryption"] = section(tmp_path, "new", "old")
        logd.daemon.write_config()
        (log_directory,) = (path.parent for path in logd.data_dir.rglob("keys.copy"))
        wait_until(lambda: masters_of(log_directory) == ["new"], what="it is wrapped again")
        await publish_many(client, "audit.a", range(60, 70))
        logd.config["encryption"] = section(tmp_path, "new")
        await asyncio.to_thread(logd.restart, kill=True)
        stored = await asyncio.to_thread(logd.values, "audit")
        assert [int((value or b"")[len(SECRET) :].split()[0]) for value in stored] == [*range(70)]
        with logd.client() as log:
            matching = log.follow("audit", 0, FollowOptions(subject="audit.b"))
            assert [next(matching)[0] for _ in range(20)] == [*range(40, 60)]
            time_ns = next(r.timestamp_ns for o, r in log.records("audit", 55) if o == 55)
            assert log.offset_for_timestamp("audit", time_ns) == 55
            assert log.stream("audit").options["encryption"] == "aes-256-gcm"
        assert logd.values("plain") == [b"plain"]
        assert shown(logd.data_dir) == []


async def test_a_wrong_key_keeps_one_stream_closed_until_the_right_one_is_back(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    keys = section(tmp_path, "key")
    with Logd(tmp_path / "logd", nats_url, [AUDIT, PLAIN], encryption=keys) as logd:
        await publish_many(client, "audit.a", range(3))
        right = key_file(tmp_path, "key").read_text()
        key_file(tmp_path, "key", content="22" * 32)
        await asyncio.to_thread(logd.restart)
        assert (await client.jetstream().publish("plain.a", b"x")).seq == 1
        refused = orjson.loads((await client.request("audit.a", b"x", timeout=60)).data)
        assert refused["error"]["err_code"] == 10077
        status = logd.daemon.status()
        assert status["health"] == "degraded"
        assert any("master key 'key'" in reason for reason in status["reasons"])
        with logd.client() as log:
            with pytest.raises(RefusedError) as wrong:
                log.open_stream("audit")
            assert wrong.value.code == "WRONG_KEY"
            key_file(tmp_path, "key", content=right)
            log.open_stream("audit")
        assert len(logd.values("audit")) == 3


async def test_liftbridge_makes_encrypted_streams_where_there_is_a_key(
    tmp_path: Path, nats_url: str
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    create: dict[int, Any] = {1: "sub.ject", 2: "made", 18: {1: True}}
    with (
        Logd(tmp_path / "logd", nats_url, [], grpc={"listen": listen}) as logd,
        LiftbridgeCalls(listen) as calls,
    ):
        assert calls.status("CreateStream", create) is grpc.StatusCode.FAILED_PRECONDITION
        logd.config["encryption"] = section(tmp_path, "key")
        await asyncio.to_thread(logd.restart)
        assert calls.status("CreateStream", create) is grpc.StatusCode.OK
        calls.publish("made", SECRET, {8: 1})
        assert values(calls.subscribe("made", {3: EARLIEST}).take(1)) == [SECRET]
        assert shown(logd.data_dir) == []


async def test_each_node_of_a_cluster_has_keys_of_its_own(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    cluster = LogdCluster(tmp_path, nats_url)
    for name, node in cluster.nodes.items():
        node.config["encryption"] = section(tmp_path, f"key-of-{name}")
    with cluster:
        cluster.create("audit", "audit.>", encryption="aes-256-gcm", replication_factor=3)
        cluster.wait_in_sync("audit")
        await publish_many(client, "audit.a", range(20))
        leader = await asyncio.to_thread(cluster.leader, "audit")
        cluster.nodes[leader].daemon.kill()
        await asyncio.to_thread(_another_leads, cluster, leader)
        await publish_many(client, "audit.a", range(20, 30))
        await asyncio.to_thread(cluster.start, leader)
        await asyncio.to_thread(cluster.wait_in_sync, "audit")
        assert len(await asyncio.to_thread(cluster.values, "audit")) == 30
        for node in cluster.nodes.values():
            assert shown(node.data_dir) == []


def _another_leads(cluster: LogdCluster, former: str) -> None:
    wait_until(lambda: cluster.leader("audit") != former, what="another leader")

"""Data of a logd of before, which was in no cluster, is opened without a step by hand."""

import shutil
from pathlib import Path

import nats
import pytest

from penstock.logd.client import LogClient, calls
from penstock.logd.publisher import BlockingPublisher
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

GOLDEN = Path(__file__).parents[1] / "golden" / "logd" / "standalone-0.1"
"""Streams `s` (three records, two epochs) and `purged` (of three records the first two are purged),
a cursor of `reader` at offset 2 of `s`, a rule and a quota."""

STREAMS = [{"name": "s", "subject": "s.>"}, {"name": "purged", "subject": "p.>"}]


def golden(directory: Path) -> Path:
    shutil.copytree(GOLDEN, directory / "data")
    return directory


def check_whole(log: LogClient) -> None:
    """What the golden directory holds is there."""
    judged = calls.judge("read", "s", principal="alice", groups=["ops"])
    assert log.ask(judged).allowed
    assert [quota.principal for quota in log.ask(calls.quotas())] == ["bob"]
    cursor = log.cursor("reader", "s").get()
    assert cursor is not None
    assert cursor.offset == 2
    assert values(log, "s") == [b"1", b"2", b"3"]
    assert values(log, "purged") == [b"3"]
    assert log.offsets("purged") == (2, 3)


def values(log: LogClient, stream: str) -> list[bytes | None]:
    start, end = log.offsets(stream)
    return [record.value for _, record in log.records(stream, start, end)]


async def test_a_directory_of_a_release_before_is_opened_as_it_is(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        with Logd(golden(tmp_path / "a"), server.url, STREAMS) as logd:
            with logd.client() as log:
                check_whole(log)
            await publish(server.url, "s.a", [b"4"])
            logd.restart(kill=True)
            assert logd.values("s") == [b"1", b"2", b"3", b"4"]
            wait_until(lambda: logd.daemon.status()["health"] == "ready", what="ready")
        for name in ("metadata", "access"):
            assert not (tmp_path / "a" / "data" / name).exists()


async def test_one_node_can_do_what_a_cluster_can(tmp_path: Path) -> None:
    with (
        nats_server(tmp_path / "nats") as server,
        Logd(tmp_path / "a", server.url, STREAMS) as logd,
        logd.client() as log,
    ):
        assert log.cluster().controller == "logd-1"
        log.alter_stream("s", min_isr=1, retention={"messages": 7})
        log.set_stream_mode("s", read_only=True)
        assert log.stream("s").options["read_only"]
        log.set_stream_mode("s", paused=False, read_only=False)
        await publish(server.url, "s.a", [b"1"])
        assert values(log, "s") == [b"1"]


async def test_a_cluster_takes_a_directory_over_and_gives_its_streams_more_replicas(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path / "nats") as server:
        golden(tmp_path / "a")
        with LogdCluster(tmp_path, server.url) as cluster:
            assert cluster.leader("s") == "a"
            with cluster.client() as log:
                check_whole(log)
                log.alter_stream("s", replication_factor=3)
            cluster.wait_in_sync("s", size=3)
            await publish(server.url, "s.a", [b"4"])
            cluster.nodes["a"].daemon.kill()
            assert wait_until(lambda: cluster.leader("s")) in ("b", "c")
            whole = [b"1", b"2", b"3", b"4"]  # the new leader commits the last in its own epoch
            wait_until(lambda: cluster.values("s") == whole, what="all that was acked")


async def test_a_stream_whose_name_is_taken_stays_where_it_is_until_it_is_free(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path / "nats") as server:
        golden(tmp_path / "b")
        with LogdCluster(tmp_path, server.url, size=1) as cluster:
            cluster.create("s", "t.>")
            cluster.join("b", health="degraded")
            refused = "stream s of before is not in the cluster: stream 's' exists"
            node = cluster.nodes["b"].daemon
            wait_until(lambda: any(refused in reason for reason in node.status()["reasons"]))
            with cluster.client() as log:
                log.delete_stream("s")
            assert node.stop() == 0
            cluster.start("b")
            assert cluster.leader("s") == "b"
            assert cluster.values("s") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("harm", ["damaged", "empty", "missing"])
async def test_a_stream_whose_epochs_are_only_in_its_frames_is_taken_over(
    tmp_path: Path, harm: str
) -> None:
    with nats_server(tmp_path / "nats") as server:
        data = golden(tmp_path / "a") / "data"
        (epochs,) = data.glob("streams/s-*/0/epochs")
        (purged,) = data.glob("streams/purged-*/0/purged")
        purged.write_bytes(b"damage")
        epochs.unlink()
        if harm != "missing":
            epochs.write_bytes(b"damage" if harm == "damaged" else b"")
        with Logd(tmp_path / "a", server.url, []) as logd:
            refused = "stream purged of before is not in the cluster"
            wait_until(lambda: any(refused in it for it in logd.daemon.status()["reasons"]))
            with BlockingPublisher(server.url) as publisher:
                assert publisher.publish("s.a", b"4").epoch > 2
            assert logd.values("s") == [b"1", b"2", b"3", b"4"]


async def publish(url: str, subject: str, messages: list[bytes]) -> None:
    client = await nats.connect(url)
    for message in messages:
        reply = await client.request(subject, message, timeout=20)
        assert b"error" not in reply.data, reply.data
    await client.close()

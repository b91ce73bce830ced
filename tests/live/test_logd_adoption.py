"""A lone logd becomes a node of a cluster, and its streams come with it."""

from pathlib import Path

import nats
import pytest

from penstock.logd.client import Cursor, calls
from penstock.logd.publisher import BlockingPublisher
from penstock.logd.security.quotas import Quota
from tests.support.guarded_api import rule
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import nats_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


async def test_a_lone_logds_streams_are_taken_over_and_get_more_replicas(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        streams = [{"name": "s", "subject": "s.>"}]
        with Logd(tmp_path / "a", server.url, streams) as alone:
            await publish(server.url, "s.a", [b"1", b"2", b"3"])
            with alone.client() as log:
                log.ask(calls.put_acls([rule("allow group:ops read s")]))
                log.ask(calls.put_quota(Quota(principal="bob", requests_per_s=5)))
                log.set_cursors(
                    [Cursor(consumer="reader", stream="s", partition=0, offset=2, incarnation="")]
                )
            assert alone.daemon.stop() == 0
        cluster = LogdCluster(tmp_path, server.url)
        with cluster:
            assert cluster.leader("s") == "a"
            assert cluster.values("s") == [b"1", b"2", b"3"]
            with cluster.client() as log:
                judged = calls.judge("read", "s", principal="alice", groups=["ops"])
                assert log.ask(judged).allowed
                assert [quota.principal for quota in log.ask(calls.quotas())] == ["bob"]
                cursor = log.get_cursor("reader", "s")
                assert cursor is not None
                assert cursor.offset == 2
                log.alter_stream("s", replication_factor=3)
            cluster.wait_in_sync("s", size=3)
            await publish(server.url, "s.a", [b"4"])
            cluster.nodes["a"].daemon.kill()
            assert wait_until(lambda: cluster.leader("s")) in ("b", "c")
            whole = [b"1", b"2", b"3", b"4"]  # the new leader commits the last in its own epoch
            wait_until(lambda: cluster.values("s") == whole, what="all that was acked")
        for name in ("metadata", "access"):
            assert not (tmp_path / "a" / "data" / name).exists()


async def test_a_stream_whose_name_is_taken_stays_where_it_is_until_it_is_free(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path / "nats") as server:
        with Logd(tmp_path / "b", server.url, [{"name": "s", "subject": "s.>"}]) as alone:
            await publish(server.url, "s.a", [b"1", b"2"])
            assert alone.daemon.stop() == 0
        with LogdCluster(tmp_path, server.url, size=1) as cluster:
            cluster.create("s", "t.>")
            cluster.join("b", health="degraded")
            refused = "stream s of the lone logd is not in the cluster: stream 's' exists"
            node = cluster.nodes["b"].daemon
            wait_until(lambda: any(refused in reason for reason in node.status()["reasons"]))
            with cluster.client() as log:
                log.delete_stream("s")
            assert node.stop() == 0
            cluster.start("b")
            assert cluster.leader("s") == "b"
            assert cluster.values("s") == [b"1", b"2"]


async def test_damaged_files_keep_back_no_other_stream_nor_one_whose_epochs_are_in_its_frames(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path / "nats") as server:
        names = ("broken", "bad-epochs", "empty-epochs", "no-epochs")
        streams = [{"name": name, "subject": f"{name}.>"} for name in names]
        with Logd(tmp_path / "a", server.url, streams) as alone:
            for name in names:
                await publish(server.url, f"{name}.a", [b"1"])
            alone.restart()  # the next record is of another epoch
            for name in names:
                await publish(server.url, f"{name}.a", [b"2"])
            assert alone.daemon.stop() == 0
        logs = tmp_path / "a" / "data" / "streams"
        _file(logs, "broken-*/0").joinpath("purged").write_bytes(b"damage")
        _file(logs, "bad-epochs-*/0/epochs").write_bytes(b"damage")
        _file(logs, "empty-epochs-*/0/epochs").write_bytes(b"")
        _file(logs, "no-epochs-*/0/epochs").unlink()
        with LogdCluster(tmp_path, server.url, size=1) as cluster:
            node = cluster.nodes["a"].daemon
            refused = "stream broken of the lone logd is not in the cluster"
            wait_until(lambda: any(refused in reason for reason in node.status()["reasons"]))
            with BlockingPublisher(server.url) as publisher:
                for name in names[1:]:
                    assert publisher.publish(f"{name}.a", b"3").epoch > 2, name
                    assert cluster.values(name) == [b"1", b"2", b"3"], name


def _file(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


async def test_a_nodes_directory_is_not_taken_for_a_lone_logds(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        cluster = LogdCluster(tmp_path, server.url, size=1)
        with cluster:
            assert cluster.nodes["a"].daemon.stop() == 0
            del cluster.nodes["a"].config["cluster"]
            cluster.nodes["a"].daemon.launch()
            assert cluster.nodes["a"].daemon.wait(within_s=20) == 78
            assert "of a node of a cluster" in cluster.nodes["a"].daemon.log()


async def publish(url: str, subject: str, values: list[bytes]) -> None:
    client = await nats.connect(url)
    for value in values:
        reply = await client.request(subject, value, timeout=20)
        assert b"error" not in reply.data, reply.data
    await client.close()

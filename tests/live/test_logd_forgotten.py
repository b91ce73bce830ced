"""What a stream remembers of its records outlives them: purges, restarts, moves, other leaders.

A lost file of it is told, counted, and told only once.
"""

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.logd.format.batch import Record
from penstock.logd.publisher import BlockingPublisher
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.waiting import wait_until

OF_A_WHOLE_LOG = ("ready", "", 0.0)

pytestmark = pytest.mark.live

LOGS = {
    "name": "logs",
    "subject": "t.>",
    "retention": {"messages": 8},
    "dedup_window_s": 3600,
    "max_dedup_entries": 100_000,
}


def told(logd: Logd) -> tuple[str, str, float]:
    """Health, reasons, and the gauge."""
    status = logd.daemon.status()
    with urlopen(f"http://{logd.daemon.admin}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (gauge,) = (
        line.split()[1] for line in lines if line.startswith("penstock_logd_producer_state_lost{")
    )
    return status["health"], "; ".join(status["reasons"]), float(gauge)


def test_lost_ids_of_deleted_records_are_told_counted_and_told_once(
    tmp_path: Path, nats_url: str
) -> None:
    with Logd(tmp_path, nats_url, [LOGS], retention_interval_s=0.2) as logd:
        sent = 0
        with BlockingPublisher(nats_url) as publisher, logd.client() as log:

            def deleted() -> int:  # a segment goes when the ones after it hold enough
                nonlocal sent
                publisher.publish("t.a", b"%d" % sent)
                sent += 1
                return log.offsets("logs").start

            wait_until(deleted, what="records are deleted")
        logd.restart()
        wait_until(lambda: told(logd) == OF_A_WHOLE_LOG, what="the file has what the log has not")
        assert logd.daemon.stop() == 0
        (remembered,) = (tmp_path / "data" / "streams").glob("logs-*/0/producers")
        remembered.unlink()
        logd.daemon.start()
        health, reasons, lost = told(logd)
        assert (health, lost) == ("degraded", 1.0)
        assert "repeats may be stored again" in reasons
        with logd.client() as log:
            assert log.offsets("logs").end == sent, "everything else is there"
        logd.restart()
        wait_until(lambda: told(logd) == OF_A_WHOLE_LOG, what="ready")


PLAIN = {"name": "logs", "subject": "t.>", "dedup_window_s": 3600}
COUNT = 300


def publish(publisher: BlockingPublisher, ids: range) -> list[bool]:
    """Whether each was a duplicate."""
    return [publisher.publish("t.a", b"x", message_id=f"id {n}").duplicate for n in ids]


@pytest.mark.parametrize("kill", [False, True])
def test_a_purge_forgets_no_id(tmp_path: Path, nats_url: str, kill: bool) -> None:
    with Logd(tmp_path, nats_url, [PLAIN], retention_interval_s=0.2) as logd:
        with BlockingPublisher(nats_url) as publisher, logd.client() as log:
            assert not any(publish(publisher, range(20)))
            log.purge("logs", 20)
            wait_until(lambda: _segments(logd) == ["20"], what="the files are deleted")
        if kill:
            logd.daemon.kill()
        else:
            assert logd.daemon.stop() == 0
        logd.daemon.start()
        with BlockingPublisher(nats_url) as publisher:
            assert all(publish(publisher, range(20)))
            assert publish(publisher, range(20, 21)) == [False]


def _is_ready(cluster: LogdCluster, node: str) -> bool:
    return bool(cluster.nodes[node].daemon.status()["health"] == "ready")


def _segments(logd: Logd) -> list[str]:
    paths = (logd.data_dir / "streams").glob("logs-*/0/*.log")
    return sorted(path.stem.lstrip("0") for path in paths)


@pytest.fixture
def cluster(tmp_path: Path, nats_url: str) -> Iterator[LogdCluster]:
    with LogdCluster(tmp_path, nats_url, retention_interval_s=0.2) as found:
        yield found


def test_a_replica_in_sync_remembers_what_was_removed_before_it_copied(
    cluster: LogdCluster, nats_url: str
) -> None:
    """A follower is away while records come and are purged, and then it is elected."""
    cluster.create("logs", "t.>", replication_factor=3, dedup_window_s=3600)
    cluster.wait_in_sync("logs", size=3)
    leader = cluster.leader("logs")
    away, other = (name for name in cluster.names if name != leader)
    cluster.nodes[away].daemon.kill()
    with BlockingPublisher(nats_url) as publisher:
        assert not any(publish(publisher, range(COUNT)))
        publisher.publish_batch("t.a", [Record("t.a", b"x", 1)])
        with cluster.client(leader, other) as log:
            log.purge("logs", COUNT + 1)
        for _ in range(2):  # the second time it has to be on its disk
            cluster.start(away)
            cluster.wait_in_sync("logs", size=3)
            wait_until(lambda: _is_ready(cluster, away), what=f"{away} lacks nothing")
            cluster.nodes[away].daemon.kill()
        cluster.start(away)
        cluster.wait_in_sync("logs", size=3)
        assert _segments(cluster.nodes[leader]) == [str(COUNT + 1)]
        with cluster.client() as log:
            log.drain_node(other)  # the one that is not draining is elected
        cluster.nodes[leader].daemon.kill()
        wait_until(lambda: cluster.leader("logs") == away, within_s=20, what=f"{away} leads")
        assert all(publish(publisher, range(COUNT)))
        ack = publisher.publish_batch("t.a", [Record("t.a", b"y", 1)])
        assert (ack.duplicate, ack.offset) == (False, COUNT + 1), "its sequence goes on"


def test_a_moved_stream_remembers_what_was_removed_before(
    cluster: LogdCluster, nats_url: str
) -> None:
    cluster.create("logs", "t.>", replication_factor=1, dedup_window_s=3600)
    leader = cluster.leader("logs")
    target = next(name for name in cluster.names if name != leader)
    with BlockingPublisher(nats_url) as publisher:
        assert not any(publish(publisher, range(COUNT)))
        with cluster.client() as log:
            log.purge("logs", COUNT)
            assert not any(publish(publisher, range(COUNT, COUNT + 10)))
            log.move_partition("logs", 0, [target])
        wait_until(lambda: cluster.leader("logs") == target, within_s=30, what="moved")
        assert all(publish(publisher, range(COUNT + 10)))

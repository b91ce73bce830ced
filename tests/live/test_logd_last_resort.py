"""Nodes that only observe, and a partition whose in-sync replicas are lost for good."""

from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError
from penstock.logd.publisher import BlockingPublisher
from tests.support.logd_cluster import LogdCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

NAME = "penstock_logd_cluster_unclean_elections"


def test_an_observer_is_fed_serves_readers_and_counts_for_nothing(
    tmp_path: Path, nats_url: str
) -> None:
    with LogdCluster(tmp_path, nats_url) as cluster, BlockingPublisher(nats_url) as publisher:
        cluster.create("s", "s", replication_factor=1)
        leader = cluster.leader("s")
        other = next(name for name in cluster.names if name != leader)
        with cluster.client() as log:
            with pytest.raises(RefusedError, match="is a replica"):
                log.set_observers("s", 0, [leader])
            log.set_observers("s", 0, [other])
            for number in range(50):
                publisher.publish("s", b"%d" % number)
            part = log.stream("s").partitions[0]
            assert (part.isr, part.observers) == ((leader,), (other,))

        def copied() -> bool:
            return cluster.partition("s", node=other).high_watermark == 49

        wait_until(copied, what="the observer has everything")
        address = cluster.nodes[other].fetch
        with LogClient(address, prefer="replica", timeout_s=20) as log:
            assert [record.value for _, record in log.records("s", 0, 50)][-1] == b"49"
            cluster.nodes[leader].daemon.kill()
            fetched = log.fetch("s", 0)
            assert fetched.next_offset == 50, "nobody else has it now"
            wait_until(lambda: cluster.partition("s").leader is None, what="nobody leads")
            with pytest.raises(RefusedError) as refused:
                log.elect_and_lose_records("s")
            assert refused.value.code == "NO_REPLICA", "an observer never leads"
        cluster.start(leader)
        assert cluster.leader("s") == leader
        with cluster.client() as log:
            log.set_observers("s", 0, [])
            directory = tmp_path / other / "data" / "streams"
            wait_until(lambda: not any(directory.glob("s-*")), what="its copy is removed")


def test_an_operator_elects_what_is_left_and_is_told_what_is_lost(
    tmp_path: Path, nats_url: str
) -> None:
    with LogdCluster(tmp_path, nats_url) as cluster, BlockingPublisher(nats_url) as publisher:
        cluster.create("s", "s", replication_factor=2, min_isr=1)
        leader = cluster.leader("s")
        follower = next(name for name in cluster.partition("s").replicas if name != leader)
        third = next(name for name in cluster.names if name not in (leader, follower))
        publisher.publish("s", b"kept")
        cluster.nodes[follower].daemon.kill()
        wait_until(lambda: cluster.partition("s").isr == (leader,), what="it is out of the ISR")
        for _ in range(3):
            publisher.publish("s", b"lost")
        told = cluster.client()
        reader = told.follow("s", 0)
        assert [next(reader)[1].value for _ in range(4)] == [b"kept", b"lost", b"lost", b"lost"]
        with cluster.client(leader, third) as log:
            with pytest.raises(RefusedError) as refused:
                log.elect_and_lose_records("s")
            assert refused.value.code == "HAS_LEADER"
        cluster.nodes[leader].daemon.kill()
        cluster.start(follower)  # a majority again; what was in sync is gone
        wait_until(lambda: cluster.partition("s").leader is None, what="nobody leads")
        with cluster.client(follower, third) as log:
            found = log.elect_and_lose_records("s")
            assert (found.leader, found.unclean_elections) == (follower, 1)
            assert found.lost_max in (None, 3), "None if the controller has not heard the lost one"
        for _ in range(4):
            publisher.publish("s", b"new")
        with told, pytest.raises(RefusedError) as refused:
            next(reader)
        assert (refused.value.code, refused.value.detail["offset"]) == ("RECORDS_LOST", 1)
        assert cluster.values("s") == [b"kept", *[b"new"] * 4]
        with cluster.client(follower) as log, pytest.raises(RefusedError) as refused:
            log.fetch("s", 9)
        assert refused.value.code == "OUT_OF_RANGE", "who has read further is told"
        counted = f'{NAME}_total{{stream="s"}} 1.0'
        with urlopen(f"http://{cluster.nodes[follower].daemon.admin}/metrics") as answer:
            assert counted in answer.read().decode()
        status = cluster.nodes[follower].daemon.status()
        assert status["info"]["cluster"]["unclean_elections"] == {"s": 1}
        cluster.start(leader)
        cluster.wait_in_sync("s", size=2)
        assert cluster.partition("s", node=leader).end_offset == 5

"""One node becomes three while it runs, as docs/howto/grow-a-cluster.md says."""

import threading
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.logd.client import Cursor
from penstock.logd.errors import RefusedError
from penstock.logd.publisher import BlockingPublisher
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

STREAMS: list[dict[str, Any]] = [{"name": "s", "subject": "s.>"}]


class Publishing:
    """Publishes numbers one after the other, each with an ack, until it is stopped."""

    def __init__(self, url: str) -> None:
        self.acked = 0
        self._url = url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with BlockingPublisher(self._url) as publisher:
            while not self._stopping.is_set():
                assert publisher.publish("s.a", b"%d" % self.acked).offset == self.acked
                self.acked += 1


def test_one_node_becomes_three_while_it_runs(tmp_path: Path, nats_url: str) -> None:
    cursor = Cursor(consumer="c", stream="s", partition=0, offset=0, incarnation="")
    with Logd(tmp_path / "a", nats_url, STREAMS, node="a") as alone, alone.client() as log:
        log.set_cursors([cursor])
    with LogdCluster(
        tmp_path, nats_url, size=1, section={"name": "logd"}, streams=STREAMS
    ) as cluster:
        with Publishing(nats_url) as publishing:
            cluster.join("b")
            cluster.join("c")
            with cluster.client() as log:
                for stream in ("s", "__cursors"):
                    log.alter_stream(stream, replication_factor=3)
                    cluster.wait_in_sync(stream, size=3)
                with pytest.raises(RefusedError, match="logd's own"):
                    log.alter_stream("__cursors", retention={"messages": 1})
            before = publishing.acked
            wait_until(lambda: publishing.acked > before + 10, what="three nodes store more")
        stored = [b"%d" % number for number in range(publishing.acked)]
        assert cluster.values("s") == stored
        cluster.nodes["a"].daemon.kill()
        assert wait_until(lambda: cluster.leader("s")) in ("b", "c")
        wait_until(lambda: cluster.values("s") == stored, what="all that was acked")
        with cluster.client("b", "c") as log:
            assert log.cursor("c", "s").get() is not None
        refused = cluster.nodes["a"]
        del refused.config["cluster"]
        refused.daemon.launch()
        assert refused.daemon.wait(within_s=30) == 78
        assert "a node in a cluster with b, c" in refused.daemon.log()


def test_a_node_that_was_alone_founds_no_second_cluster(tmp_path: Path, nats_url: str) -> None:
    with Logd(tmp_path / "a", nats_url, STREAMS, node="a") as alone:
        assert alone.daemon.stop() == 0
        initial_members = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
        alone.config["cluster"] = {
            "name": "logd",
            "peer": "127.0.0.1:0",
            "initial_members": initial_members,
        }
        alone.daemon.launch()
        assert alone.daemon.wait(within_s=30) == 78
        assert "name this node alone as the initial member" in alone.daemon.log()

"""Streams that are made by any node of a cluster, and made again."""

from pathlib import Path

import nats
import pytest

from penstock.logd.client import Cursor
from penstock.logd.errors import RefusedError
from tests.support.logd_cluster import LogdCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


async def test_a_stream_takes_messages_when_its_making_returns_and_its_name_is_freed_in_the_end(
    tmp_path: Path, nats_url: str
) -> None:
    with LogdCluster(tmp_path, nats_url, max_cursors=1) as cluster:
        client = await nats.connect(nats_url)
        for number in range(9):
            with cluster.client(cluster.names[number % 3]) as log:
                log.create_stream(f"s{number}", f"s{number}", partitions=3)
            for subject in (f"s{number}", f"s{number}.1", f"s{number}.2"):
                answer = await client.request(subject, b"x", timeout=60)  # nobody: it raises
                assert b"error" not in answer.data
        await client.close()

        with cluster.client() as log:
            for name in ("s1", "s1", "s2"):  # and at once again
                log.set_cursors(
                    [Cursor(consumer="reader", stream=name, partition=0, offset=0, incarnation="")]
                )
                log.delete_stream(name)
                log.create_stream(name, name, partitions=3)
                # Of the one cursor that there may be. It is deleted after its stream.
                wait_until(lambda: not log.cursors(), what="the cursor is gone with its stream")
            # An observer that goes and comes again has its old data to remove first.
            log.delete_stream("s3")
            log.create_stream("s3", "s3", replication_factor=1)
            watcher = next(name for name in cluster.names if name != cluster.leader("s3"))
            for observers in ([watcher], [], [watcher], [], [watcher]):
                log.set_observers("s3", 0, observers)

        gone = next(name for name in cluster.names if name != cluster.leader("s0"))
        cluster.nodes[gone].daemon.kill()
        with cluster.client(*[name for name in cluster.names if name != gone]) as log:
            log.delete_stream("s0")

            def refusal() -> str:
                with pytest.raises(RefusedError) as refused:
                    log.create_stream("s0", "s0")
                assert refused.value.code == "STREAM_DELETING"
                return str(refused.value.detail.get("nodes") or refused.value)

            wait_until(lambda: refusal().endswith(f"from: {gone}"), what="it alone is waited for")
            cluster.start(gone)

            def made() -> bool:
                try:
                    log.create_stream("s0", "s0")
                except RefusedError as error:
                    return error.code != "STREAM_DELETING"
                return True

            wait_until(made, what="the name is free")

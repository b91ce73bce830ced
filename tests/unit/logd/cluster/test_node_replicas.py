"""A node's replicas as the state changes: what it gave back of their leaderships, and for how long.

The log and its files are real; the cluster is a state that the test writes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.base.clock import SystemClock
from penstock.logd.cluster.replica import ReplicaRunner
from penstock.logd.cluster.replica_manager import NatsReachability, ReplicaManager
from penstock.logd.metadata.records import PartitionKey as Place
from penstock.logd.metadata.records import PartitionRecord, ReplicationOptions, StreamRecord
from penstock.logd.metadata.streams import StreamConfig, StreamState
from penstock.logd.replication.events import NodeId
from tests.support.partition_context import QuietLink, make_context
from tests.support.waiting import wait_until_async

PLACE = Place("logs", 0)
HERE = NodeId("n")  # as in `make_context`
RECORD = StreamRecord(
    config=StreamConfig(name="logs", subject="t.>"),
    incarnation="i-1",
    state=StreamState.OPEN,
    options=ReplicationOptions(),
    partitions=(
        PartitionRecord(
            replicas=(HERE,), isr=(HERE,), leader=None, leader_epoch=3, last_leader=HERE
        ),
    ),
)


class Cluster:
    """What a node's replicas use of `ClusterNode`: a state, and nobody behind it."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamRecord] = {}
        self.group = SimpleNamespace(state=self, insist=self._insist)
        self.controlling = SimpleNamespace(look=lambda: None, lease=SimpleNamespace(until_ns=0))

    async def _insist(self, command: object) -> None:
        """The state hears of it, some time."""


@asynccontextmanager
async def node_with(directory: Path, *records: StreamRecord) -> AsyncIterator[Any]:
    clock, cluster = SystemClock(), Cluster()
    node: Any = ReplicaManager(
        directory,
        QuietLink(),
        lambda _: make_context(),
        clock=clock,
        reachability=NatsReachability(lambda: True, clock),
    )
    node.attach(cluster)
    node.ready = True
    become(node, *records)
    try:
        yield node
    finally:
        await node.close()


def become(node: Any, *records: StreamRecord) -> None:
    node.cluster.streams = {record.config.name: record for record in records}
    node.on_restored()


async def opened(node: Any, *, besides: ReplicaRunner | None = None) -> Any:
    return await wait_until_async(
        lambda: (found := node.at(PLACE)) is not besides and found, what="a replica is open"
    )


async def test_what_a_node_resigned_from_is_forgotten_with_the_stream(tmp_path: Path) -> None:
    async with node_with(tmp_path, RECORD) as node:
        replica = await opened(node)
        node.resignations[replica.key] = 3
        become(node)
        await wait_until_async(lambda: node.at(PLACE) is None, what="the replica is closed")
        assert node.resignations == {}


async def test_it_is_forgotten_with_a_stream_that_another_of_that_name_follows(
    tmp_path: Path,
) -> None:
    async with node_with(tmp_path, RECORD) as node:
        replica = await opened(node)
        node.resignations[replica.key] = 3
        become(node, replace(RECORD, incarnation="i-2"))
        other = await opened(node, besides=replica)
        assert other.key.incarnation == "i-2"
        assert node.resignations == {}
        assert not other.report().resigned


async def test_it_is_known_to_the_replica_that_is_opened_again(tmp_path: Path) -> None:
    async with node_with(tmp_path, RECORD) as node:
        replica = await opened(node)
        node.resignations[replica.key] = 3
        become(node, replace(RECORD, config=replace(RECORD.config, batch_rows_max=7)))
        again = await opened(node, besides=replica)
        assert again.key == replica.key
        assert node.resignations == {again.key: 3}
        assert again.report().resigned, "of the epoch that it is in"

"""Nodes that stand in for a cluster: real fetch endpoints, one log, and who leads it is said."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

from penstock.logd.api.description import describe_roles, describe_standing
from penstock.logd.api.operations import FetchApi, LoneGroups
from penstock.logd.api.server import FetchLimits, FetchServer
from penstock.logd.api.stream_options import ReplicationSettings
from penstock.logd.api.streams import not_here
from penstock.logd.errors import RefusedError
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.cursors import CursorStore
from penstock.logd.partition.partition import Partition
from penstock.logd.standalone import LoneStreams, StreamSet
from tests.support.partition_context import QuietLink, make_context

LOGS = StreamConfig(name="logs", subject="t.>")


class Node(LoneStreams):
    """One node; it has its part in the log while it is in `replicas` of its cluster."""

    def __init__(self, name: str, cluster: "StandIn") -> None:
        super().__init__(name, cluster.streams, cluster.cursors, dict)
        self.name = name
        self.address = "127.0.0.1:0"
        self._in = cluster
        self._server: FetchServer | None = None
        self._running: asyncio.Task[None] | None = None
        self.fetches = 0

    def start(self) -> None:
        self._server = FetchServer(
            FetchApi(self, self._in.cursors, LoneGroups(self.name)), FetchLimits()
        )
        self.address = self._server.listen(self.address)
        self._running = asyncio.create_task(self._server.run())

    async def kill(self) -> None:
        assert self._running is not None
        assert self._server is not None
        self._running.cancel()
        await asyncio.wait({self._running})
        self._server.close()
        self._running = None

    @property
    def runs(self) -> bool:
        """Whether it serves."""
        return self._running is not None

    @override
    def cluster(self) -> dict[str, Any]:
        nodes = [
            {
                "node": node.name,
                "fetch": node.address,
                "admin": "",
                "rack": "",
                "state": "active",
                "live": node.runs,
            }
            for node in self._in.nodes.values()
        ]
        return {"cluster": "demo", "controller": self._in.leader, "nodes": nodes}

    @override
    def describe(self, stream: str | None = None, *, internal: bool = False) -> list[Any]:
        found = super().describe(stream, internal=internal)
        here = self._in.partition if self.name == self._in.leader else None
        isr = [name for name, node in self._in.nodes.items() if node.runs]
        roles = describe_roles(self._in.leader, 1, list(self._in.nodes), isr)
        for described in found:
            described["partitions"] = [{"partition": 0} | describe_standing(here) | roles]
        return found

    @override
    def partition(self, stream: str, number: int, *, replica: bool = False) -> Partition:
        found = super().partition(stream, number)
        if stream == LOGS.name and self.name != self._in.leader and not replica:
            raise not_here(stream, number, self._in.leader, list(self._in.nodes))
        self.fetches += 1
        return found

    @override
    async def create(
        self, config: StreamConfig, replication: ReplicationSettings, *, creator: str = ""
    ) -> Any:
        self._in.changes.append(("create", config.name, replication.model_dump()))
        return await super().create(config, ReplicationSettings(), creator=creator)

    @override
    async def alter(self, stream: str, options: Mapping[str, Any]) -> dict[str, Any]:
        self._in.changes.append(("alter", stream, dict(options)))
        return self.describe(stream)[0]  # type: ignore[no-any-return]

    @override
    async def set_mode(
        self,
        stream: str,
        *,
        paused: bool | None,
        read_only: bool | None,
        held: bool | None = None,
    ) -> dict[str, Any]:
        self._in.changes.append(("set_mode", stream, paused, read_only, held))
        return self.describe(stream)[0]  # type: ignore[no-any-return]

    @override
    async def drain(self, node: str, *, undo: bool) -> None:
        if node not in self._in.nodes:
            raise RefusedError("UNKNOWN_NODE", f"there is no node {node!r}")
        self._in.changes.append(("drain", node, undo))

    @override
    async def remove_node(self, node: str) -> None:
        self._in.changes.append(("remove_node", node))

    @override
    async def move(self, stream: str, partition: int, replicas: tuple[str, ...] | None) -> None:
        self._in.changes.append(("move", stream, partition, replicas))

    @override
    async def observe(self, stream: str, partition: int, observers: tuple[str, ...]) -> None:
        self._in.changes.append(("observe", stream, partition, observers))

    @override
    async def elect(self, stream: str, partition: int) -> dict[str, Any]:
        self._in.changes.append(("elect", stream, partition))
        ends = {"end_offset": 5, "known_end": (9, 5, None)[partition]}
        return {"leader": "b", "unclean_elections": 1} | ends

    @override
    async def step_down(self, heir: str | None) -> str:
        self._in.changes.append(("step_down", heir))
        return heir or "b"

    @override
    async def rebalance(self) -> int:
        return 7


class StandIn:
    """Three nodes.

    Attributes:
        leader: Who leads.
        changes: What was asked of it and not done.
    """

    def __init__(self, streams: StreamSet, cursors: CursorStore) -> None:
        self.streams = streams
        self.cursors = cursors
        self.leader: str | None = "a"
        self.changes: list[Any] = []
        self.nodes = {name: Node(name, self) for name in ("a", "b", "c")}

    @property
    def partition(self) -> Partition:
        return self.streams.partition(LOGS.name)

    @property
    def addresses(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    async def publish(self, count: int) -> None:
        messages = [Message(b"t.a", b"", b"", b"x") for _ in range(count)]
        await self.partition.wait_committed(self.partition.store(messages))


@asynccontextmanager
async def standin_cluster(directory: Path) -> AsyncIterator[StandIn]:
    numbers = itertools.count()
    streams = StreamSet(
        directory,
        QuietLink(),
        make_context=lambda _: make_context(),
        new_incarnation=lambda: f"{next(numbers)}",
    )
    await streams.start([LOGS])
    cluster = StandIn(streams, CursorStore(streams, cursors_max=10))
    for node in cluster.nodes.values():
        node.start()
    try:
        yield cluster
    finally:
        for node in cluster.nodes.values():
            if node.runs:
                await node.kill()
        await streams.close()

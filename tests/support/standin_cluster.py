"""Nodes that stand in for a cluster: real fetch endpoints, one log, and who leads it is said."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.logd.api.server import FetchLimits, FetchServer
from penstock.logd.cluster.streams import describe_roles, describe_standing
from penstock.logd.errors import RefusedError, not_here
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.partition import Partition
from penstock.logd.stream_options import ReplicationSettings
from tests.support.guarded_api import open_api
from tests.support.one_node import OneNode, one_node

LOGS = StreamConfig(name="logs", subject="t.>")


class Node:
    """One node; it has its part in the log while it is in `replicas` of its cluster."""

    def __init__(self, name: str, cluster: "StandIn") -> None:
        self.name = self.node = name
        self._streams = cluster.one.engine.streams
        self.address = "127.0.0.1:0"
        self._in = cluster
        self._server: FetchServer | None = None
        self._running: asyncio.Task[None] | None = None
        self.fetches = 0

    def start(self) -> None:
        self._server = FetchServer(open_api(self._in.one.engine, self), FetchLimits())
        self.address = self._server.listener.listen(self.address)
        self._running = asyncio.create_task(self._server.listener.run())

    async def kill(self) -> None:
        assert self._running is not None
        assert self._server is not None
        self._running.cancel()
        await asyncio.wait({self._running})
        self._server.listener.close()
        self._running = None

    @property
    def runs(self) -> bool:
        """Whether it serves."""
        return self._running is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)

    def cluster(self) -> dict[str, Any]:
        nodes = [
            {
                "node": node.name,
                "fetch": node.address,
                "admin": "",
                "grpc": "",
                "rack": "",
                "state": "active",
                "live": node.runs,
                "problem": "",
                "problem_cause": None,
            }
            for node in self._in.nodes.values()
        ]
        return {"cluster": "demo", "controller": self._in.leader, "nodes": nodes}

    def describe(self, stream: str | None = None, *, internal: bool = False) -> list[Any]:
        found = self._streams.describe(stream, internal=internal)
        here = self._in.partition if self.name == self._in.leader else None
        isr = [name for name, node in self._in.nodes.items() if node.runs]
        roles = describe_roles(self._in.leader, 1, list(self._in.nodes), isr)
        for described in found:
            described["partitions"] = [
                {"partition": 0, "unclean_elections": 0, "refusal": self._in.refusal}
                | describe_standing(here)
                | roles
            ]
        return found

    def partition(self, stream: str, number: int, *, replica: bool = False) -> Partition:
        found = self._streams.partition(stream, number)
        if stream == LOGS.name and self.name != self._in.leader and not replica:
            raise not_here(stream, number, self._in.leader, list(self._in.nodes))
        self.fetches += 1
        return found

    async def create(
        self, config: StreamConfig, replication: ReplicationSettings, *, creator: str = ""
    ) -> Any:
        self._in.changes.append(("create", config.name, replication.model_dump()))
        return await self._streams.create(config, ReplicationSettings(), creator=creator)

    async def alter(self, stream: str, options: Mapping[str, Any]) -> dict[str, Any]:
        self._in.changes.append(("alter", stream, dict(options)))
        return self.describe(stream)[0]  # type: ignore[no-any-return]

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

    async def drain(self, node: str, *, undo: bool) -> None:
        if node not in self._in.nodes:
            raise RefusedError("UNKNOWN_NODE", f"there is no node {node!r}")
        self._in.changes.append(("drain", node, undo))

    async def remove_node(self, node: str) -> None:
        self._in.changes.append(("remove_node", node))

    async def move(self, stream: str, partition: int, replicas: tuple[str, ...] | None) -> None:
        self._in.changes.append(("move", stream, partition, replicas))

    async def observe(self, stream: str, partition: int, observers: tuple[str, ...]) -> None:
        self._in.changes.append(("observe", stream, partition, observers))

    async def elect(self, stream: str, partition: int) -> dict[str, Any]:
        self._in.changes.append(("elect", stream, partition))
        ends = {"end_offset": 5, "known_end": (9, 5, None)[partition]}
        return {"leader": "b", "unclean_elections": 1} | ends

    async def step_down(self, target: str | None) -> str:
        self._in.changes.append(("step_down", target))
        return target or "b"

    async def rebalance(self) -> int:
        return 7


class StandIn:
    """Three nodes.

    Attributes:
        leader: Who leads.
        refusal: Why it refuses publishers; empty: it takes them.
        changes: What was asked of it and not done.
    """

    def __init__(self, one: OneNode) -> None:
        self.one = one
        self.leader: str | None = "a"
        self.refusal = ""
        self.changes: list[Any] = []
        self.nodes = {name: Node(name, self) for name in ("a", "b", "c")}

    @property
    def partition(self) -> Partition:
        return self.one.partition(LOGS.name)

    @property
    def addresses(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    async def publish(self, count: int) -> None:
        messages = [Message(b"t.a", b"", b"", b"x") for _ in range(count)]
        await self.partition.wait_committed(self.partition.store(messages))


@asynccontextmanager
async def standin_cluster(directory: Path) -> AsyncIterator[StandIn]:
    async with one_node(directory, LOGS) as one:
        cluster = StandIn(one)
        for node in cluster.nodes.values():
            node.start()
        try:
            yield cluster
        finally:
            for node in cluster.nodes.values():
                if node.runs:
                    await node.kill()

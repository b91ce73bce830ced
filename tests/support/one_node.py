"""A cluster of one node in this process, without a daemon around it: its links bring nothing."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from penstock.base.clock import SystemClock
from penstock.logd.api.operations import Document
from penstock.logd.cluster.engine import ClusterEngine
from penstock.logd.cluster.replica_manager import NatsReachability
from penstock.logd.config import LogdConfig
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.context import PartitionContext, StreamLookup
from penstock.logd.partition.partition import Partition
from penstock.logd.partition.subscriptions import Link, SubscriptionManager
from penstock.logd.stream_options import ReplicationSettings
from tests.support.partition_context import QuietLink, make_context

ENDPOINTS = {"fetch": "127.0.0.1:1", "admin": "127.0.0.1:2"}


class OneNode:
    """One node that runs.

    Attributes:
        engine: What keeps its streams.
    """

    def __init__(self, engine: ClusterEngine) -> None:
        self.engine = engine

    @property
    def subscription_manager(self) -> SubscriptionManager:
        """Which streams are on their subjects."""
        return self.engine.subscription_manager

    def partition(self, stream: str, number: int = 0) -> Partition:
        """A partition, open and led."""
        found = self.engine.streams.partition(stream, number)
        assert isinstance(found, Partition)
        return found

    async def create(self, config: StreamConfig) -> Document:
        """Make a stream; its description."""
        described, _ = await self.engine.streams.create(config, ReplicationSettings())
        return described


@asynccontextmanager
async def one_node(
    directory: Path,
    *streams: StreamConfig,
    link: Link | None = None,
    context: PartitionContext | None = None,
    max_cursors: int = 10,
) -> AsyncIterator[OneNode]:
    """Run a node until the end of the block.

    Args:
        directory: Its data.
        streams: Made, where there are none of these names.
        link: Brings what is published.
        context: What its partitions share, but for the lookup of streams.
        max_cursors: At a time.
    """
    directory.mkdir(parents=True, exist_ok=True)
    clock, shared = SystemClock(), context or make_context()

    def with_lookup(lookup: StreamLookup) -> PartitionContext:
        return replace(shared, streams_for=lookup.match, knows_stream=lookup.knows)

    config = LogdConfig(data_dir=directory, node=shared.node, max_cursors=max_cursors)
    reachability = NatsReachability(lambda: True, clock)
    engine = ClusterEngine(config, link or QuietLink(), with_lookup, clock, reachability)
    await engine.open((), ENDPOINTS)
    running = asyncio.create_task(engine.run())
    try:
        await _or_end(engine.started(), running)
        node = OneNode(engine)
        for stream in streams:
            await node.create(stream)
        yield node
    finally:
        await engine.close()
        running.cancel()
        await asyncio.wait({running})


async def _or_end(wanted: Coroutine[None, None, None], running: "asyncio.Task[None]") -> None:
    """Wait for something, or for the node's end."""
    waiting = asyncio.create_task(wanted)
    await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        await running
    await waiting

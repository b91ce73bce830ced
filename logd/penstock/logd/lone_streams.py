"""The streams of a logd that is in no cluster, as the fetch api asks for them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from penstock.logd.core.cluster.records import ReplicationOptions
from penstock.logd.core.metadata import Owner, StreamConfig, is_internal
from penstock.logd.core.quotas import Quota, quota_of
from penstock.logd.cursors import CursorStore
from penstock.logd.description import describe_stream
from penstock.logd.errors import RefusedError
from penstock.logd.fetch.streams import StreamOutline
from penstock.logd.fetch.wire import Document
from penstock.logd.partition import Partition
from penstock.logd.purging import PurgePoint, check_purge
from penstock.logd.replication_settings import ReplicationSettings
from penstock.logd.streams import StreamSet


class LoneStreams:
    """A cluster of one node, as `penstock.logd.fetch.streams.Streams`.

    Args:
        node: Its name.
        streams: What it has.
        cursors: Of the consumers.
        addresses: Where it is reached: `fetch` and `admin`.
        quotas: Of principals; by default there are none.
    """

    def __init__(
        self,
        node: str,
        streams: StreamSet,
        cursors: CursorStore,
        addresses: Callable[[], Mapping[str, str]],
        quotas: Callable[[], Mapping[str, Quota]] = dict,
    ) -> None:
        self.node = node
        self._quotas = quotas
        self._purging = asyncio.Lock()
        self._streams = streams
        self._cursors = cursors
        self._addresses = addresses

    def cluster(self) -> Document:
        """Nobody but itself."""
        itself = {"node": self.node, "rack": "", "state": "active", "live": True}
        nodes = [itself | dict(self._addresses())]
        return {"cluster": None, "controller": self.node, "nodes": nodes}

    def describe(self, stream: str | None = None, *, internal: bool = False) -> list[Document]:
        """As `Streams`."""
        if stream is not None:
            return [describe_stream(self._streams.find(stream), self.node)]
        found = self._streams.all()
        shown = (one for one in found if internal or not is_internal(one.name))
        return [describe_stream(one, self.node) for one in shown]

    def names(self) -> list[str]:
        """As `Streams`."""
        return [found.name for found in self._streams.all()]

    def outline(self, stream: str) -> StreamOutline:
        """As `Streams`."""
        found = self._streams.find(stream)
        return StreamOutline(found.stream, 1, ReplicationOptions(replication_factor=1))

    def match(self, subject: str) -> tuple[str, ...]:
        """As `Streams`."""
        return self._streams.match(subject)

    def partition(self, stream: str, number: int, *, replica: bool = False) -> Partition:
        """As `Streams`; everything is here."""
        del replica
        return self._streams.partition(stream, number)

    async def create(
        self, config: StreamConfig, replication: ReplicationSettings, *, creator: str = ""
    ) -> tuple[Document, bool]:
        """As `Streams`, of one partition with one replica."""
        check_possible(replication)
        quota = quota_of(self._quotas(), creator) if creator else None
        owner = Owner(creator, None if quota is None else quota.streams)
        partition, created = await self._streams.create(config, owner)
        return describe_stream(partition, self.node), created

    async def delete(self, stream: str) -> None:
        """As `Streams`."""
        await self._streams.delete(stream)
        await self._cursors.forget_stream(stream)

    async def open(self, stream: str) -> Document:
        """As `Streams`."""
        return describe_stream(await self._streams.open(stream), self.node)

    async def purge(self, stream: str, partition: int, before: int) -> int:
        """As `Streams`; it is written down beside the log first."""
        async with self._purging:  # none overtakes another on its way to the disk
            found = self._streams.partition(stream, partition)
            start, end = found.start_offset, found.high_watermark + 1
            check_purge(stream, before, start=start, end=end)
            point = PurgePoint(max(before, start), found.epoch)
            await asyncio.to_thread(point.save, found.log.directory)
            found.purging.set(point, found.high_watermark)
            return found.start_offset

    async def alter(self, stream: str, options: Mapping[str, Any]) -> Document:
        """Refused."""
        del stream, options
        self._refuse("options of a stream follow its configuration file")

    async def set_mode(
        self,
        stream: str,
        *,
        paused: bool | None,
        read_only: bool | None,
        held: bool | None = None,
    ) -> Document:
        """Refused."""
        del stream, paused, read_only, held
        self._refuse("its streams are neither paused nor read-only")

    async def drain(self, node: str, *, undo: bool) -> None:
        """Refused."""
        del node, undo
        self._refuse("there is nowhere to move its streams")

    async def remove_node(self, node: str) -> None:
        """Refused."""
        del node
        self._refuse("it is the only node")

    async def move(self, stream: str, partition: int, replicas: tuple[str, ...] | None) -> None:
        """Refused."""
        del stream, partition, replicas
        self._refuse("there is nowhere to move its streams")

    async def observe(self, stream: str, partition: int, observers: tuple[str, ...]) -> None:
        """Refused."""
        del stream, partition, observers
        self._refuse("there is no other node to copy its streams to")

    async def elect(self, stream: str, partition: int) -> Document:
        """Refused."""
        del stream, partition
        self._refuse("it leads whatever it has")

    async def step_down(self, heir: str | None) -> str:
        """Refused."""
        del heir
        self._refuse("nobody else can decide")

    async def rebalance(self) -> int:
        """Refused."""
        self._refuse("there is nowhere to move its streams")

    def _refuse(self, why: str) -> NoReturn:
        raise RefusedError("NOT_CLUSTERED", f"{self.node} is in no cluster: {why}", node=self.node)


def check_possible(replication: ReplicationSettings) -> None:
    """Refuse what one node cannot do, rather than leave it out."""
    possible = ReplicationSettings().model_dump()
    for key, value in replication.model_dump().items():
        if value == possible[key] or (
            key in ("replication_factor", "min_isr") and value in (1, "all")
        ):
            continue
        raise RefusedError("NOT_CLUSTERED", f"{key}: {value} needs a cluster", key=key)

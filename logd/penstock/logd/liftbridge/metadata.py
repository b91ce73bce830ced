"""FetchMetadata and FetchPartitionMetadata: who is there, and who leads what."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.logd.access.guard import Guard
from penstock.logd.cursors import CURSORS_STREAM
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.fetch.api import Cursors
from penstock.logd.fetch.streams import Streams
from penstock.logd.fetch.wire import Document
from penstock.logd.liftbridge.groups import Membership
from penstock.logd.liftbridge.publishing import Context
from penstock.logd.security.principal import current_caller
from penstock.logd.wire import logd_liftbridge_pb2 as wire
from penstock.service.config import split_host_port

_AT_ONCE: Final = 50
"""Streams described before others have a turn; each takes some 50 µs."""


class Describing:
    """Tells clients where to go.

    Args:
        streams: Of the daemon or its cluster.
        cursors: What they are kept in is made when it is first asked for.
        membership: For groups.
        guard: Of streams that the caller may not know of nothing is said.
    """

    def __init__(
        self, streams: Streams, cursors: Cursors, membership: Membership, guard: Guard
    ) -> None:
        self._guard = guard
        self._streams = streams
        self._cursors = cursors
        self._membership = membership

    async def fetch(
        self, request: wire.FetchMetadataRequest, _: Context
    ) -> wire.FetchMetadataResponse:
        """The nodes that can be reached, and the streams that are named; without names, all."""
        if CURSORS_STREAM.name not in self._streams.names():
            await self._make_cursors()
        caller = current_caller()
        sees = partial(self._guard.sees, caller)
        names = list(dict.fromkeys(request.streams))
        if not names:
            names = self._guard.visible(caller, self._streams.names())
        found: dict[str, Document] = {}
        for number, name in enumerate(names, 1):
            with suppress(RefusedError):
                if sees(name):
                    (found[name],) = self._streams.describe(name)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return wire.FetchMetadataResponse(
            brokers=self._brokers([] if request.streams else found.values()),
            streamMetadata=[_stream(name, found.get(name)) for name in names],
            groupMetadata=[self._membership.metadata(group, sees) for group in request.groups],
        )

    async def fetch_partition(
        self, request: wire.FetchPartitionMetadataRequest, _: Context
    ) -> wire.FetchPartitionMetadataResponse:
        """Where a partition stands, as its leader knows."""
        self._streams.partition(request.stream, request.partition)  # its leader answers only
        (document,) = self._streams.describe(request.stream)
        (found,) = [one for one in document["partitions"] if one["partition"] == request.partition]
        metadata = _partition(found, document["options"])
        metadata.highWatermark = found["high_watermark"]
        metadata.newestOffset = found["end_offset"] - 1
        return wire.FetchPartitionMetadataResponse(metadata=metadata)

    async def _make_cursors(self) -> None:
        """Clients look for the leader of cursors before they have set one."""
        with suppress(RefusedError, UnavailableError):  # it is led elsewhere, or not yet
            await (await self._cursors.ready()).make()

    def _brokers(self, streams: Iterable[Document]) -> list[wire.Broker]:
        partitions: Counter[str] = Counter()
        leaders: Counter[str] = Counter()
        for stream in streams:
            for partition in stream["partitions"]:
                partitions.update(partition["replicas"])
                leaders[partition["leader"]] += 1
        brokers = []
        for node in self._streams.cluster()["nodes"]:
            if node["live"] and node.get("grpc"):
                host, port = split_host_port(node["grpc"])
                name = node["node"]
                brokers.append(
                    wire.Broker(
                        id=name,
                        host=host,
                        port=port,
                        partitionCount=partitions[name],
                        leaderCount=leaders[name],
                    )
                )
        return brokers


def _stream(name: str, document: Document | None) -> wire.StreamMetadata:
    if document is None:
        return wire.StreamMetadata(name=name, error=wire.StreamMetadata.UNKNOWN_STREAM)
    options = document["options"]
    return wire.StreamMetadata(
        name=name,
        subject=document["subject"],
        partitions={
            found["partition"]: _partition(found, options) for found in document["partitions"]
        },
    )


def _partition(found: Document, options: Document) -> wire.PartitionMetadata:
    return wire.PartitionMetadata(
        id=found["partition"],
        leader=found["leader"] or "",
        replicas=found["replicas"],
        isr=found["isr"],
        paused=options.get("paused", False),
        readonly=options.get("read_only", False),
    )

"""CreateStream, DeleteStream, PauseStream, SetStreamReadonly, SetCursor and FetchCursor.

SetCursor and FetchCursor: positions of consumers, in the same place as everybody's.

They are kept by the node that leads the first partition of `__cursors`; clients find it in the
metadata. What an offset means is the consumer's business: Liftbridge's Go client stores that of the
last record it had, logd's own that of the next one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import grpc

from penstock.base.sockets import split_host_port
from penstock.logd.api.operations import Document
from penstock.logd.cluster.cursors import ClusterCursors
from penstock.logd.cluster.streams import ClusterStreams
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.liftbridge.create_stream import settings_of
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.groups import GroupService
from penstock.logd.liftbridge.publish import Context
from penstock.logd.metadata.cursors import CursorKey
from penstock.logd.partition.cursors import CURSORS_STREAM, CursorStore
from penstock.logd.security.authorizer import Authorizer
from penstock.logd.security.principal import Principal, current_caller
from penstock.logd.stream_options import split_settings
from penstock.logd.wire import logd_liftbridge_pb2 as wire


class AdminService:
    """Changes streams, of the daemon or its cluster.

    Args:
        streams: Those.
        creator: Returns the principal to whose quota a new stream counts.
    """

    def __init__(self, streams: ClusterStreams, creator: Callable[[Principal], str]) -> None:
        self._streams = streams
        self._creator = creator

    async def create(
        self, request: wire.CreateStreamRequest, __: Context
    ) -> wire.CreateStreamResponse:
        """Create a stream; one that is there already is refused, whatever its options."""
        config, replication = split_settings(settings_of(request))
        creator = self._creator(current_caller())
        _, created = await self._streams.create(config, replication, creator=creator)
        if not created:
            text = f"stream {config.name!r} is there already"
            raise CallError(grpc.StatusCode.ALREADY_EXISTS, text)
        return wire.CreateStreamResponse()

    async def delete(
        self, request: wire.DeleteStreamRequest, __: Context
    ) -> wire.DeleteStreamResponse:
        """Delete a stream and its data."""
        await self._streams.delete(request.name)
        return wire.DeleteStreamResponse()

    async def pause(
        self, request: wire.PauseStreamRequest, __: Context
    ) -> wire.PauseStreamResponse:
        """Take a whole stream off its subject; a publish over gRPC resumes it."""
        self._check_whole(request.name, request.partitions)
        await self._streams.set_mode(request.name, paused=True, read_only=None)
        return wire.PauseStreamResponse()

    async def set_readonly(
        self, request: wire.SetStreamReadonlyRequest, __: Context
    ) -> wire.SetStreamReadonlyResponse:
        """Make a whole stream read-only, or writable."""
        self._check_whole(request.name, request.partitions)
        await self._streams.set_mode(request.name, paused=None, read_only=request.readonly)
        return wire.SetStreamReadonlyResponse()

    def _check_whole(self, stream: str, partitions: Sequence[int]) -> None:
        """Refuse what would be done to some partitions only."""
        count = self._streams.outline(stream).partitions
        unknown = [number for number in partitions if not 0 <= number < count]
        if unknown:
            text = f"stream {stream!r} has no partition {unknown[0]}"
            raise CallError(grpc.StatusCode.NOT_FOUND, text)
        if partitions and len(set(partitions)) < count:
            text = f"partitions: it is done to all {count} of stream {stream!r} or to none"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)


_NONE = -1


class CursorService:
    """Answers consumers."""

    def __init__(self, streams: ClusterStreams, cursors: ClusterCursors) -> None:
        self._streams = streams
        self._cursors = cursors

    async def set(self, request: wire.SetCursorRequest, _: Context) -> wire.SetCursorResponse:
        """Store a position; it may go back. It is durable when the answer comes."""
        key = _key(request)
        if request.offset < 0:
            text = f"offset: {request.offset} is below 0"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
        cursors = await self._ready(key)
        await cursors.commit([(key, request.offset, None)], rewind=True)
        return wire.SetCursorResponse()

    async def fetch(self, request: wire.FetchCursorRequest, _: Context) -> wire.FetchCursorResponse:
        """The position; -1 where there is none of this stream's incarnation."""
        key = _key(request)
        found = (await self._ready(key)).get(key)
        offset = next((cursor["offset"] for cursor in found if cursor["current"]), _NONE)
        return wire.FetchCursorResponse(offset=offset)

    async def _ready(self, key: CursorKey) -> CursorStore:
        outline = self._streams.outline(key.stream)
        if not 0 <= key.partition < outline.partitions:
            text = f"stream {key.stream!r} has no partition {key.partition}"
            raise CallError(grpc.StatusCode.NOT_FOUND, text)
        return await self._cursors.ready()


def _key(request: wire.SetCursorRequest | wire.FetchCursorRequest) -> CursorKey:
    if not request.stream or not request.cursorId:
        text = "stream and cursorId: both are needed"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
    return CursorKey(request.cursorId, request.stream, request.partition)


_AT_ONCE: Final = 50
"""Streams described before others have a turn; each takes some 50 µs."""


class MetadataService:
    """Tells clients where to go.

    Args:
        streams: Streams of the daemon or its cluster.
        cursors: Cursors; their stream is created on first use.
        membership: Membership of groups.
        authorizer: Authorizer; streams that the caller may not see are left out.
    """

    def __init__(
        self,
        streams: ClusterStreams,
        cursors: ClusterCursors,
        membership: GroupService,
        authorizer: Authorizer,
    ) -> None:
        self._authorizer = authorizer
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
        sees = partial(self._authorizer.sees, caller)
        names = list(dict.fromkeys(request.streams))
        if not names:
            names = self._authorizer.visible(caller, self._streams.names())
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
        """Return the offsets of a partition; only its leader answers."""
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

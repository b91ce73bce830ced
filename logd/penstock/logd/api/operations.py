"""What each request does; `penstock.logd.api.protocol` says what requests look like."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from penstock.logd.api.protocol import Document
from penstock.logd.api.reading import FetchReading, FetchRequest, partition_standing
from penstock.logd.api.server import Response, ResponseSlot
from penstock.logd.api.stream_options import parse, split_settings
from penstock.logd.api.streams import Streams
from penstock.logd.controller.group_messages import MemberAnswer, MemberBeat
from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import check_filter
from penstock.logd.limits import (
    CURSORS_PER_REQUEST_MAX,
    GROUP_PARTITIONS_MAX,
    GROUP_STREAMS_MAX,
    REPLICAS_MAX,
)
from penstock.logd.metadata.cursors import CursorKey, check_consumer
from penstock.logd.metadata.records import GroupPartition
from penstock.logd.metadata.streams import check_stream_name
from penstock.logd.nats.protocol import NatsRefusedError
from penstock.logd.partition.cursors import CursorStore, Granted
from penstock.logd.security.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """For metrics.

    Attributes:
        groups: Those with members, as this node knows them.
        members: Of all of them.
        counts: What this node did as their coordinator.
    """

    groups: int = 0
    members: int = 0
    counts: Mapping[str, int] = field(default_factory=Counter)


class Groups(Protocol):
    """Called on the event loop."""

    async def beat(self, beat: MemberBeat) -> MemberAnswer:
        """Tell the coordinator that a member is there; its answer.

        Raises:
            RefusedError: `UNAVAILABLE`: it gives none now.
            UnavailableError: It cannot be reached in time.
        """

    async def leave(self, group: str, member: str) -> None:
        """Tell the coordinator that a member wants to be none.

        Raises:
            UnavailableError: It cannot be reached in time.
        """

    def describe(self, group: str | None = None) -> list[Document]:
        """One group, or all by name.

        Raises:
            RefusedError: `UNKNOWN_GROUP`.
        """

    def figures(self) -> GroupFigures:
        """How many there are."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    api: str
    id: int = 0


_Number = Annotated[int, Field(ge=0)]
_Numbers = Annotated[list[_Number], Field(max_length=GROUP_PARTITIONS_MAX)]


class _Held(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    stream: str
    incarnation: str
    partitions: _Numbers


class _Beat(_Request):
    group: str
    member: str
    streams: Annotated[list[str], Field(min_length=1, max_length=GROUP_STREAMS_MAX)]
    session_ms: int
    sequence: int
    joining: bool
    epoch: int
    held: Annotated[list[_Held], Field(max_length=GROUP_PARTITIONS_MAX)]


class _Leave(_Request):
    group: str
    member: str


class _List(_Request):
    group: str | None = None


class GroupApi:
    """Answers requests about consumer groups."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def beat(self, document: Document) -> Document:
        """A member's heartbeat."""
        request = parse(_Beat, document)
        check_consumer(request.group)
        check_consumer(request.member)
        for stream in request.streams:
            check_stream_name(stream)
        beat = MemberBeat(
            group=request.group,
            member=request.member,
            streams=tuple(request.streams),
            session_ms=request.session_ms,
            sequence=request.sequence,
            joining=request.joining,
            epoch=request.epoch,
            held=tuple(
                GroupPartition(held.stream, held.incarnation, number)
                for held in request.held
                for number in held.partitions
            ),
        )
        return {"answer": _describe(await self._groups.beat(beat))}

    async def leave(self, document: Document) -> Document:
        """A member's end."""
        request = parse(_Leave, document)
        await self._groups.leave(request.group, request.member)
        return {}

    async def show(self, document: Document) -> Document:
        """The groups there are."""
        return {"groups": self._groups.describe(parse(_List, document).group)}


def _describe(answer: MemberAnswer) -> Document:
    granted = [asdict(one.partition) | {"epoch": one.epoch} for one in answer.granted]
    return asdict(answer) | {"granted": granted}


_Api = Callable[[Document, ResponseSlot], Awaitable[Response]]


class _OnPartition(_Request):
    stream: str
    partition: int = 0


class _Offsets(_OnPartition):
    at: Literal["earliest", "latest"] | int


class _Streams(_Request):
    stream: str | None = None
    internal: bool = False


class _Match(_Request):
    subject: str


class _CreateStream(_Request):
    config: dict[str, Any]


class _OneStream(_Request):
    stream: str


class _AlterStream(_OneStream):
    options: dict[str, Any]


class _SetMode(_OneStream):
    paused: bool | None = None
    held: bool | None = None
    read_only: bool | None = None


class _OneNode(_Request):
    node: str


class _Drain(_OneNode):
    undo: bool = False


class _Move(_OnPartition):
    replicas: Annotated[list[str], Field(min_length=1, max_length=REPLICAS_MAX)] | None


class _Observe(_OnPartition):
    observers: Annotated[list[str], Field(max_length=REPLICAS_MAX)]


class _Purge(_OnPartition):
    before: Annotated[int, Field(ge=0, lt=1 << 63)]


class _Restore(_OnPartition):
    upload: int


class _StepDown(_Request):
    heir: str | None = None


class _Elect(_OnPartition):
    lose_records: Literal[True]


class _Cursor(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    consumer: str
    stream: str
    partition: Annotated[int, Field(ge=0)] = 0
    offset: Annotated[int, Field(ge=0, lt=1 << 63)]
    incarnation: str | None = None
    epoch: Annotated[int, Field(ge=0, lt=1 << 63)] = 0

    def key(self) -> CursorKey:
        """Whose cursor."""
        return CursorKey(self.consumer, self.stream, self.partition)


class _SetCursor(_Request):
    cursors: Annotated[list[_Cursor], Field(min_length=1, max_length=CURSORS_PER_REQUEST_MAX)]
    rewind: bool = False
    member: str | None = None


class _OneCursor(_Request):
    consumer: str
    stream: str
    partition: Annotated[int, Field(ge=0)] = 0

    def key(self) -> CursorKey:
        """Whose cursor."""
        return CursorKey(self.consumer, self.stream, self.partition)


class _ListCursors(_Request):
    consumer: str | None = None
    stream: str | None = None
    after: list[str | int] | None = None


class Cursors(Protocol):
    """Where consumers' cursors are kept."""

    async def ready(self) -> CursorStore:
        """Those that are kept here.

        Raises:
            RefusedError: `NOT_HERE`: another node keeps them.
            UnavailableError: Nobody does now.
        """


class FetchApi:
    """Answers requests about the streams of one daemon, or of its cluster.

    Args:
        streams: Those.
        cursors: Of consumers.
        groups: Of consumers.
        creator: For whose quota a stream counts that somebody creates.
        gaps: What this daemon missed, and what of its logs cannot be read.
    """

    def __init__(
        self,
        streams: Streams,
        cursors: Cursors,
        groups: Groups,
        creator: Callable[[Principal], str] = lambda _: "",
        gaps: Callable[[], Document] = dict,
    ) -> None:
        self._streams = streams
        self._creator = creator
        self._report_gaps = gaps
        self._cursors = cursors
        self._groups = GroupApi(groups)
        self._reading = FetchReading()
        self._apis: dict[str, _Api] = {
            "fetch": self._fetch,
            "offsets": self._offsets,
            "streams": self._list,
            "match": self._match,
            "create_stream": self._create,
            "delete_stream": self._delete,
            "open_stream": self._open,
            "set_cursor": self._set_cursor,
            "get_cursor": self._get_cursor,
            "list_cursors": self._list_cursors,
            "delete_cursor": self._delete_cursor,
            "cluster": self._cluster,
            "alter_stream": self._alter,
            "set_mode": self._set_mode,
            "drain": self._drain,
            "remove_node": self._remove_node,
            "move": self._move,
            "observe": self._observe,
            "elect": self._elect,
            "rebalance": self._rebalance,
            "purge": self._purge,
            "step_down": self._step_down,
            "restore": self._restore,
            "gaps": self._gaps,
            "group_beat": self._group_beat,
            "group_leave": self._group_leave,
            "groups": self._list_groups,
        }

    def admit(self, request: Document, caller: Principal) -> None:
        """Anybody may ask; who may not is kept out before (`GuardedApi`)."""
        del request, caller

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        """Do what a request asks.

        Raises:
            RefusedError: It cannot be done; `BAD_REQUEST` and `UNKNOWN_API` are about its form.
            CorruptError: What it asks for is damaged on disk.
        """
        api = self._apis.get(request["api"])
        if api is None:
            known = ", ".join(self._apis)
            raise RefusedError("UNKNOWN_API", f"there is no api {request['api']!r}; known: {known}")
        return await api(request, turn)

    async def _fetch(self, document: Document, turn: ResponseSlot) -> Response:
        request = parse(FetchRequest, document)
        partition = self._streams.partition(
            request.stream, request.partition, replica=request.replica
        )
        return await self._reading.fetch(partition, request, turn)

    async def _offsets(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_Offsets, document)
        partition = self._streams.partition(request.stream, request.partition)
        end = partition.high_watermark + 1
        match request.at:
            case "earliest":
                offset = partition.start_offset
            case "latest":
                offset = end
            case timestamp_ns:
                found = await asyncio.to_thread(partition.log.offset_for_timestamp, timestamp_ns)
                offset = min(max(found, partition.start_offset), end)
        return Response(partition_standing(partition) | {"offset": offset})

    async def _list(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_Streams, document)
        found = self._streams.describe(request.stream, internal=request.internal)
        return Response({"node": self._streams.node, "streams": found})

    async def _match(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_Match, document)
        check_filter(request.subject)
        return Response({"streams": sorted(self._streams.match(request.subject))})

    async def _create(self, document: Document, turn: ResponseSlot) -> Response:
        request = parse(_CreateStream, document)
        config, replication = split_settings(request.config)
        try:
            stream, created = await self._streams.create(
                config, replication, creator=self._creator(turn.caller)
            )
        except NatsRefusedError as error:
            message = f"the NATS server refuses the subject: {error}"
            raise RefusedError("NATS_REFUSED", message, subject=config.subject) from None
        return Response({"stream": stream, "created": created})

    async def _delete(self, document: Document, _: ResponseSlot) -> Response:
        await self._streams.delete(parse(_OneStream, document).stream)
        return Response({})

    async def _open(self, document: Document, _: ResponseSlot) -> Response:
        stream = parse(_OneStream, document).stream
        return Response({"stream": await self._streams.open(stream)})

    async def _cluster(self, document: Document, _: ResponseSlot) -> Response:
        parse(_Request, document)
        return Response(self._streams.cluster() | {"node": self._streams.node})

    async def _alter(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_AlterStream, document)
        return Response({"stream": await self._streams.alter(request.stream, request.options)})

    async def _set_mode(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_SetMode, document)
        stream = await self._streams.set_mode(
            request.stream,
            paused=request.paused,
            read_only=request.read_only,
            held=request.held,
        )
        return Response({"stream": stream})

    async def _drain(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_Drain, document)
        await self._streams.drain(request.node, undo=request.undo)
        return Response({})

    async def _remove_node(self, document: Document, _: ResponseSlot) -> Response:
        await self._streams.remove_node(parse(_OneNode, document).node)
        return Response({})

    async def _move(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_Move, document)
        replicas = None if request.replicas is None else tuple(request.replicas)
        await self._streams.move(request.stream, request.partition, replicas)
        return Response({})

    async def _observe(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_Observe, document)
        observers = tuple(request.observers)
        await self._streams.observe(request.stream, request.partition, observers)
        return Response({})

    async def _elect(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_Elect, document)
        return Response(await self._streams.elect(request.stream, request.partition))

    async def _purge(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_Purge, document)
        start = await self._streams.purge(request.stream, request.partition, request.before)
        return Response({"start_offset": start})

    async def _restore(self, document: Document, turn: ResponseSlot) -> Response:
        request = parse(_Restore, document)
        partition = self._streams.partition(request.stream, request.partition)
        return Response({"next_offset": await partition.restore(turn.upload)})

    async def _step_down(self, document: Document, _: ResponseSlot) -> Response:
        heir = parse(_StepDown, document).heir
        return Response({"controller": await self._streams.step_down(heir)})

    async def _gaps(self, document: Document, _: ResponseSlot) -> Response:
        parse(_Request, document)
        return Response({"node": self._streams.node} | self._report_gaps())

    async def _rebalance(self, document: Document, _: ResponseSlot) -> Response:
        parse(_Request, document)
        return Response({"moves": await self._streams.rebalance()})

    async def _set_cursor(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_SetCursor, document)
        cursors = await self._cursors.ready()
        if request.member is None:
            wanted = [(item.key(), item.offset, item.incarnation) for item in request.cursors]
            return Response({"cursors": await cursors.commit(wanted, rewind=request.rewind)})
        if request.rewind or not all(item.incarnation for item in request.cursors):
            message = "a member of a group names the incarnation, and does not rewind"
            raise RefusedError("BAD_REQUEST", message, key="member")
        granted = [
            Granted(item.key(), item.offset, item.incarnation or "", item.epoch)
            for item in request.cursors
        ]
        return Response({"cursors": await cursors.commit_granted(request.member, granted)})

    async def _get_cursor(self, document: Document, _: ResponseSlot) -> Response:
        key = parse(_OneCursor, document).key()
        return Response({"cursors": (await self._cursors.ready()).get(key)})

    async def _list_cursors(self, document: Document, _: ResponseSlot) -> Response:
        request = parse(_ListCursors, document)
        found, more = (await self._cursors.ready()).page(
            consumer=request.consumer, stream=request.stream, after=_after(request.after)
        )
        return Response({"cursors": found, "more": more})

    async def _delete_cursor(self, document: Document, _: ResponseSlot) -> Response:
        key = parse(_OneCursor, document).key()
        return Response({"deleted": await (await self._cursors.ready()).delete(key)})

    async def _group_beat(self, document: Document, _: ResponseSlot) -> Response:
        return Response(await self._groups.beat(document))

    async def _group_leave(self, document: Document, _: ResponseSlot) -> Response:
        return Response(await self._groups.leave(document))

    async def _list_groups(self, document: Document, _: ResponseSlot) -> Response:
        return Response(await self._groups.show(document))


def _after(key: list[str | int] | None) -> CursorKey | None:
    match key:
        case None:
            return None
        case [str(consumer), str(stream), int(partition)]:
            return CursorKey(consumer, stream, partition)
        case _:
            raise RefusedError("BAD_REQUEST", "after: [consumer, stream, partition]", key="after")

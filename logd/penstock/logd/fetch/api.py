"""What each fetch and control request does; `penstock.logd.fetch.wire` says what they look like."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.logd.config import StreamSettings
from penstock.logd.core.cursors import CursorKey
from penstock.logd.core.metadata import is_internal
from penstock.logd.core.subjects import check_filter
from penstock.logd.cursors import CursorStore
from penstock.logd.description import describe_stream
from penstock.logd.errors import RefusedError
from penstock.logd.fetch.connection import Response, SendingTurn
from penstock.logd.fetch.reading import FetchReading, FetchRequest, partition_standing
from penstock.logd.fetch.wire import Document
from penstock.logd.limits import CURSORS_PER_REQUEST_MAX
from penstock.logd.nats.errors import NatsRefusedError
from penstock.logd.streams import StreamSet

Request = TypeVar("Request", bound=BaseModel)


_Api = Callable[[Document, SendingTurn], Awaitable[Response]]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    api: str
    id: int = 0


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


class _Cursor(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    consumer: str
    stream: str
    partition: Annotated[int, Field(ge=0)] = 0
    offset: Annotated[int, Field(ge=0, lt=1 << 63)]
    incarnation: str | None = None


class _SetCursor(_Request):
    cursors: Annotated[list[_Cursor], Field(min_length=1, max_length=CURSORS_PER_REQUEST_MAX)]
    rewind: bool = False


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


class FetchApi:
    """Answers requests about the streams of one daemon."""

    def __init__(self, streams: StreamSet, cursors: CursorStore) -> None:
        self._streams = streams
        self._cursors = cursors
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
        }

    async def answer(self, request: Document, turn: SendingTurn) -> Response:
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

    async def _fetch(self, document: Document, turn: SendingTurn) -> Response:
        request = _parse(FetchRequest, document)
        partition = self._streams.partition(request.stream, request.partition)
        return await self._reading.fetch(partition, request, turn)

    async def _offsets(self, document: Document, _: SendingTurn) -> Response:
        request = _parse(_Offsets, document)
        partition = self._streams.partition(request.stream, request.partition)
        end = partition.high_watermark + 1
        match request.at:
            case "earliest":
                offset = partition.log.start_offset
            case "latest":
                offset = end
            case timestamp_ns:
                found = await asyncio.to_thread(partition.log.offset_for_timestamp, timestamp_ns)
                offset = min(found, end)
        return Response(partition_standing(partition) | {"offset": offset})

    async def _list(self, document: Document, _: SendingTurn) -> Response:
        request = _parse(_Streams, document)
        if request.stream is not None:
            wanted = [self._streams.find(request.stream)]
        else:
            wanted = [*self._streams.partitions(), *self._streams.unopened()]
            wanted.sort(key=lambda found: found.name)
            if not request.internal:
                wanted = [found for found in wanted if not is_internal(found.name)]
        return Response({"streams": [describe_stream(found) for found in wanted]})

    async def _match(self, document: Document, _: SendingTurn) -> Response:
        request = _parse(_Match, document)
        check_filter(request.subject)
        return Response({"streams": sorted(self._streams.match(request.subject))})

    async def _create(self, document: Document, _: SendingTurn) -> Response:
        request = _parse(_CreateStream, document)
        settings = _parse(StreamSettings, request.config)
        try:
            partition, created = await self._streams.create(settings.stream_config())
        except NatsRefusedError as error:
            message = f"the NATS server refuses the subject: {error}"
            raise RefusedError("NATS_REFUSED", message, subject=settings.subject) from None
        return Response({"stream": describe_stream(partition), "created": created})

    async def _delete(self, document: Document, _: SendingTurn) -> Response:
        request = _parse(_OneStream, document)
        await self._streams.delete(request.stream)
        await self._cursors.forget_stream(request.stream)
        return Response({})

    async def _open(self, document: Document, _: SendingTurn) -> Response:
        partition = await self._streams.open(_parse(_OneStream, document).stream)
        return Response({"stream": describe_stream(partition)})

    async def _set_cursor(self, document: Document, _: SendingTurn) -> Response:
        request = _parse(_SetCursor, document)
        wanted = [
            (CursorKey(item.consumer, item.stream, item.partition), item.offset, item.incarnation)
            for item in request.cursors
        ]
        return Response({"cursors": await self._cursors.commit(wanted, rewind=request.rewind)})

    async def _get_cursor(self, document: Document, _: SendingTurn) -> Response:
        return Response({"cursors": self._cursors.get(_parse(_OneCursor, document).key())})

    async def _list_cursors(self, document: Document, _: SendingTurn) -> Response:
        request = _parse(_ListCursors, document)
        found, more = self._cursors.page(
            consumer=request.consumer, stream=request.stream, after=_after(request.after)
        )
        return Response({"cursors": found, "more": more})

    async def _delete_cursor(self, document: Document, _: SendingTurn) -> Response:
        deleted = await self._cursors.delete(_parse(_OneCursor, document).key())
        return Response({"deleted": deleted})


def _after(key: list[str | int] | None) -> CursorKey | None:
    match key:
        case None:
            return None
        case [str(consumer), str(stream), int(partition)]:
            return CursorKey(consumer, stream, partition)
        case _:
            raise RefusedError("BAD_REQUEST", "after: [consumer, stream, partition]", key="after")


def _parse(model: type[Request], document: Document) -> Request:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "request"
        raise RefusedError(
            "BAD_REQUEST", f"{key}: {first['msg'].removeprefix('Value error, ')}", key=key
        ) from None

"""What each fetch and control request does; `penstock.logd.fetch_wire` says what they look like."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.logd.config import StreamSettings
from penstock.logd.core.subjects import check_filter
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.fetch_wire import Document
from penstock.logd.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX
from penstock.logd.nats_errors import NatsRefusedError
from penstock.logd.partition import Partition
from penstock.logd.store import FileRange
from penstock.logd.streams import StreamSet, describe_partition
from penstock.logd.subject_filter import filter_ranges

Request = TypeVar("Request", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Response:
    """A response's header, and its payload: byte ranges of files, or bytes."""

    header: Document
    ranges: list[FileRange] = field(default_factory=list)
    payload: bytes = b""

    @property
    def payload_length(self) -> int:
        """Bytes after the header."""
        return len(self.payload) + sum(part.length for part in self.ranges)


_Api = Callable[[Document], Awaitable[Response]]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    api: str
    id: int = 0


class _OnPartition(_Request):
    stream: str
    partition: int = 0


class _Fetch(_OnPartition):
    offset: Annotated[int, Field(ge=0)]
    bytes_max: Annotated[int, Field(ge=1)] = 4 * 1024 * 1024
    bytes_min: Annotated[int, Field(ge=0)] = 1
    wait_ms_max: Annotated[int, Field(ge=0)] = 0
    subject: str | None = None


class _Offsets(_OnPartition):
    at: Literal["earliest", "latest"] | int


class _Streams(_Request):
    stream: str | None = None


class _Match(_Request):
    subject: str


class _CreateStream(_Request):
    config: dict[str, Any]


class _DeleteStream(_Request):
    stream: str


class FetchApi:
    """Answers requests about the streams of one daemon."""

    def __init__(self, streams: StreamSet) -> None:
        self._streams = streams
        self._apis: dict[str, _Api] = {
            "fetch": self._fetch,
            "offsets": self._offsets,
            "streams": self._list,
            "match": self._match,
            "create_stream": self._create,
            "delete_stream": self._delete,
        }

    async def answer(self, request: Document) -> Response:
        """Do what a request asks.

        Raises:
            RefusedError: It cannot be done; `BAD_REQUEST` and `UNKNOWN_API` are about its form.
            CorruptError: What it asks for is damaged on disk.
        """
        api = self._apis.get(request["api"])
        if api is None:
            known = ", ".join(self._apis)
            raise RefusedError("UNKNOWN_API", f"there is no api {request['api']!r}; known: {known}")
        return await api(request)

    async def _fetch(self, document: Document) -> Response:
        request = _parse(_Fetch, document)
        if request.subject is not None:
            check_filter(request.subject)
        partition = self._streams.partition(request.stream, request.partition)
        ranges = await self._read(partition, request)
        if request.wait_ms_max and _length(ranges) < request.bytes_min:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(request.wait_ms_max, FETCH_WAIT_MS_MAX) / 1000):
                    while _length(ranges) < request.bytes_min and not partition.closed:
                        seen = ranges[-1].next_offset if ranges else request.offset
                        await partition.wait_until(max(seen, partition.high_watermark + 1))
                        ranges = await self._read(partition, request)
        header = _standing(partition)
        header["next_offset"] = ranges[-1].next_offset if ranges else request.offset
        if request.subject is None:
            return Response(header, ranges)
        payload = await asyncio.to_thread(filter_ranges, ranges, request.subject)
        return Response(header, payload=payload)

    async def _read(self, partition: Partition, request: _Fetch) -> list[FileRange]:
        end = partition.high_watermark + 1
        if not partition.log.start_offset <= request.offset <= end:
            raise _out_of_range(partition, request)
        if request.offset == end:
            return []
        bytes_max = min(request.bytes_max, FETCH_BYTES_MAX)
        try:
            ranges = await asyncio.to_thread(
                partition.log.read, request.offset, bytes_max=bytes_max, upto=end
            )
        except RefusedError:  # deleted meanwhile; the log's own range is that of its writer
            raise _out_of_range(partition, request) from None
        _check_not_taken_back(partition, request.offset, ranges)
        return ranges

    async def _offsets(self, document: Document) -> Response:
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
        return Response(_standing(partition) | {"offset": offset})

    async def _list(self, document: Document) -> Response:
        request = _parse(_Streams, document)
        if request.stream is not None:
            wanted = [self._streams.partition(request.stream)]
        else:
            wanted = list(self._streams.partitions())
        return Response({"streams": [self._streams.describe(partition) for partition in wanted]})

    async def _match(self, document: Document) -> Response:
        request = _parse(_Match, document)
        check_filter(request.subject)
        return Response({"streams": sorted(self._streams.match(request.subject))})

    async def _create(self, document: Document) -> Response:
        request = _parse(_CreateStream, document)
        settings = _parse(StreamSettings, request.config)
        try:
            partition, created = await self._streams.create(settings.stream_config())
        except NatsRefusedError as error:
            message = f"the NATS server refuses the subject: {error}"
            raise RefusedError("NATS_REFUSED", message, subject=settings.subject) from None
        return Response({"stream": self._streams.describe(partition), "created": created})

    async def _delete(self, document: Document) -> Response:
        request = _parse(_DeleteStream, document)
        await self._streams.delete(request.stream)
        return Response({})


def _parse(model: type[Request], document: Document) -> Request:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "request"
        raise RefusedError("BAD_REQUEST", f"{key}: {first['msg']}", key=key) from None


def _out_of_range(partition: Partition, request: _Fetch) -> RefusedError:
    start, end = partition.log.start_offset, partition.high_watermark + 1
    where = f"{request.stream}/{request.partition}"
    message = f"offset {request.offset} of {where} is not in {start} to {end}"
    return RefusedError("OUT_OF_RANGE", message, earliest=start, latest=end)


def _check_not_taken_back(partition: Partition, offset: int, ranges: list[FileRange]) -> None:
    """Tell a reader of a failed log what it will never get: committed, but not synced."""
    if not ranges and partition.log.failure:
        raise UnavailableError(f"offset {offset} of {partition.name}: {partition.log.failure}")


def _length(ranges: list[FileRange]) -> int:
    return sum(part.length for part in ranges)


def _standing(partition: Partition) -> Document:
    standing = describe_partition(partition)
    del standing["size_bytes"]
    return standing | {"stream": partition.name, "incarnation": partition.stream.incarnation}

"""Base of the sources that receive HTTP requests: settings, life cycle, durable records."""

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import structlog
from pydantic import Field
from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.decode.shapes import Made
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import KIB, MIB, UNIT_DECOMPRESSED_BYTES_MAX
from penstock.collector.sources.network.http_receiver import (
    Authenticator,
    Handle,
    HttpReceiver,
    Refusal,
    Routes,
    SenderAuth,
)
from penstock.collector.sources.network.listener import Listener
from penstock.collector.sources.network.records import RequestMapper, RequestRecords
from penstock.collector.sources.network.tls import ServerTls
from penstock.collector.sources.settings import REUSE_PORT, ListeningSettings, TlsSection
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import SpoolWriter
from penstock.service import HostPort


class HttpListenSettings(ListeningSettings):
    """Settings of every source that takes HTTP requests."""

    listen: HostPort
    reuse_port: bool = Field(default=False, description=REUSE_PORT)
    tls: TlsSection | None = None
    max_message_bytes: int = Field(
        default=4 * MIB, ge=KIB, le=64 * MIB, description="a body, also after decompression"
    )

    @property
    @override
    def can_be_shared(self) -> bool:
        return True

    @property
    @override
    def max_request_bytes(self) -> int:
        return self.max_message_bytes


class AuthenticatedSettings(HttpListenSettings):
    """Settings of those whose senders may have to show a token."""

    auth: SenderAuth | None = Field(default=None, description="null: every sender may send")


class HttpRequestSource(Source):
    """Listens for HTTP requests; a subclass says what answers which, and how refusals are written.

    Args:
        resource: The collector's, of records that bring none.
        auth: Authentication of senders; None: there is none.
        open_requests: Method and path of requests that need to show nothing.
    """

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, context.resource, spool_writer=context.spool_writer())

    def __init__(
        self,
        section: HttpListenSettings,
        resource: Mapping[str, Any],
        *,
        spool_writer: SpoolWriter,
        auth: Authenticator | None = None,
        open_requests: Container[tuple[str, str]] = (),
    ) -> None:
        self.name = spool_writer.source
        self.resource = resource
        self.spool_writer = spool_writer
        self.receiver = HttpReceiver(
            self.find,
            self.refuse,
            spool_writer,
            body_bytes_max=section.max_message_bytes,
            auth=auth,
            open_requests=open_requests,
        )
        self._listen = section
        self._mapper = RequestMapper(spool_writer)
        self._listener = Listener(
            self.name,
            self.receiver.serve,
            max_connections=section.max_connections,
            note=spool_writer.note,
            descriptors=spool_writer.share.descriptors,
        )

    @abstractmethod
    def find(self, request: Request) -> Handle:
        """Choose what answers a request, by its head alone.

        Raises:
            Refusal: Nothing does.
        """

    @abstractmethod
    def refuse(self, request: Request, refusal: Refusal) -> Response:
        """Write a refusal in the form of the protocol."""

    def unreadable(self, error: RemoteProtocolError) -> Refusal:
        """The refusal of a request whose body is not what it should be, which is counted."""
        return self.receiver.malformed(str(error))

    async def keep(
        self, lines: Iterator[Made], charge: Charge, notes: Counter[str]
    ) -> RequestRecords:
        """Return once a request's records are durable.

        Args:
            lines: Makes the records when it is the request's turn.
            charge: Charge of the request's bytes.
            notes: Notes on what `lines` does not understand, counted with the records.

        Raises:
            Refusal: They are not, and nothing of them is kept.
        """
        limits = self.spool_writer.limits
        until_s = asyncio.get_running_loop().time() + limits.request_room_wait_s
        try:
            records = await self._mapper.map(([one] for one in lines), charge, until_s)
        except RemoteProtocolError as error:
            raise self.unreadable(error) from None
        except Exception as error:  # noqa: BLE001 - else the sender repeats the request for ever
            structlog.get_logger().exception("request_unreadable", source=self.name)
            raise self.receiver.malformed(f"unreadable: {type(error).__name__}") from None
        if records is None:
            raise self.receiver.come_again(429, "too much is being received at once")
        if records.exceeds(limits.max_request_records):
            most = f"{limits.max_request_records} records or {UNIT_DECOMPRESSED_BYTES_MAX} bytes"
            raise self.receiver.malformed(f"more than {most}: send less at once", 413)
        if records.lines:
            await self.receiver.persist(records.payload(), charge)
        self.count(notes)  # what is refused comes again
        return records

    def count(self, notes: Counter[str]) -> None:
        """Count what was not understood or has no place of records that are durable."""
        for what, times in notes.items():
            self.spool_writer.note(what, times)

    @property
    @override
    def endpoint(self) -> str | None:
        return self._listener.endpoint

    @override
    async def start(self) -> None:
        section = self._listen
        tls = ServerTls.of(section.tls, self.name, self.spool_writer.note)
        await self._listener.listen_tcp(
            section.listen,
            tls.context if tls else None,
            key="listen",
            reuse_port=section.reuse_port,
        )

    @override
    async def run(self) -> None:
        await asyncio.Event().wait()

    @override
    async def stop(self) -> None:
        await self._listener.close()


_TEXT: Final = {"content-type": "text/plain; charset=utf-8"}
Section = TypeVar("Section", bound=AuthenticatedSettings)


def count_query(request: Request, notes: Counter[str]) -> None:
    """Count a query, where a protocol has no use for one."""
    if request.query:
        notes["queries_ignored"] += 1


class AuthenticatedHttpSource(HttpRequestSource, Generic[Section]):
    """Takes requests of senders that may have to show a token.

    Attributes:
        section: The source's settings.
        open_requests: Method and path of requests that need to show nothing.
    """

    open_requests: ClassVar[Container[tuple[str, str]]] = ()

    def __init__(
        self, section: Section, resource: Mapping[str, Any], *, spool_writer: SpoolWriter
    ) -> None:
        super().__init__(
            section,
            resource,
            spool_writer=spool_writer,
            auth=section.auth,
            open_requests=self.open_requests,
        )
        self.section = section


class RoutedHttpSource(AuthenticatedHttpSource[Section]):
    """Answers requests by a table of paths and methods; a refusal is a line of text."""

    def __init__(
        self, section: Section, resource: Mapping[str, Any], *, spool_writer: SpoolWriter
    ) -> None:
        super().__init__(section, resource, spool_writer=spool_writer)
        self._routes = Routes(self.routes())

    @abstractmethod
    def routes(self) -> Mapping[str, Mapping[str, Handle]]:
        """What answers the requests of each path, by method."""

    @override
    def find(self, request: Request) -> Handle:
        return self._routes(request)

    @override
    def refuse(self, request: Request, refusal: Refusal) -> Response:
        return Response(refusal.status, f"{refusal.message}\n".encode(), _TEXT)

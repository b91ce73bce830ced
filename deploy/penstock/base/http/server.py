"""HTTP/1.1 answered on an event loop: whole requests of bounded size, one answer each.

`serve_http` answers the requests of one accepted connection. A connection is kept for
further requests. One that takes longer than its limits to bring a request or to take an answer, or
is idle for so long, is closed.

`HttpServer` accepts connections itself, over TCP and TLS. They are bounded in number and in time,
TLS handshakes included. When there are too many, one that has asked for nothing yet makes room for
the next; when all have asked, the new one is closed.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar

import h11

from penstock.base.sockets import ACCEPT_AT_ONCE, widen_backlog

READ_BYTES: Final = 64 * 1024
"""Read at once."""

_READ_AHEAD_BYTES: Final = 16 * 1024
"""Twice as much of a connection of `HttpServer` may wait to be read."""

_CLOSE_S: Final = 0.5
"""Seconds that answers have which are under way when a server is closed."""


class MalformedRequestError(ConnectionError):
    """The request is not HTTP; it was answered as far as possible."""


class Unread(Enum):
    """Why a request's body was not read to its end."""

    TOO_LARGE = "larger than allowed"
    NO_ROOM = "too much is being received at once"


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        path: Without the query.
        headers: Headers by lower-case name; of a repeated one the last.
        body: The body as it came, still compressed.
        query: Text after the path's question mark.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | Unread
    query: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of one connection's requests.

    Attributes:
        body_bytes_max: Bound of a request's body.
        head_bytes_max: Bound of a request's line and headers.
        request_s: Seconds from the end of one request to the end of the next, and to take an
            answer.
        first_byte_s: Seconds of the former until its first byte.
        linger_s: Seconds for which the rest of a refused request is read on and thrown away.
    """

    body_bytes_max: int
    head_bytes_max: int
    request_s: float
    first_byte_s: float
    linger_s: float = 1.0


class BodyAccount(Protocol):
    """Bytes that one request holds of a shared bound until it is answered."""

    def take(self, size: int) -> bool:
        """Hold so much more; false when there is no room."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Unaccounted:
    """A `BodyAccount` where the number of connections is bound enough."""

    def take(self, size: int) -> bool:  # noqa: ARG002 - there is room for any
        """There is room."""
        return True

    def close(self) -> None:
        """Nothing was held."""


Account = TypeVar("Account", bound=BodyAccount)
Handle = Callable[[Request, Account], Awaitable[Response]]


async def serve_http(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    handle: Handle[Account],
    limits: RequestLimits,
    account: Callable[[], Account],
) -> None:
    """Answer the requests of one connection until it ends.

    Args:
        reader: The connection.
        writer: The connection.
        handle: Answers one request.
        limits: Bounds of a request.
        account: Begins what a request holds from its body's first byte until it is answered.

    Raises:
        MalformedRequestError: What came is not HTTP; it was answered as far as it can be.
        TimeoutError: A request took too long.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes_max)
    try:
        while True:
            held = account()
            try:
                request = await _read_in_time(connection, reader, writer, limits, held)
                if request is None:
                    return
                response = await handle(request, held)
                bodiless = request.method == "HEAD"
                del request  # its body is held no longer than it is accounted for
            finally:
                held.close()
            async with asyncio.timeout(limits.request_s):
                await _answer(connection, writer, response, bodiless=bodiless)
            if connection.their_state is h11.SEND_BODY:
                await _linger(reader, writer, limits.linger_s)
                return
            if connection.our_state is h11.MUST_CLOSE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
    except _UnreadableError as unreadable:
        error = unreadable.error
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = {"content-type": "text/plain; charset=utf-8"}
            hint = Response(error.error_status_hint, str(error).encode(), headers)
            await _answer(connection, writer, hint, bodiless=unreadable.bodiless)
        raise MalformedRequestError(f"http: {error}") from None


class _UnreadableError(Exception):
    """A request is not HTTP; `bodiless` says whether the answer may have no body."""

    def __init__(self, error: h11.RemoteProtocolError, *, bodiless: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.bodiless = bodiless


async def _read_in_time(
    connection: h11.Connection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    limits: RequestLimits,
    held: BodyAccount,
) -> Request | None:
    begun_s = asyncio.get_running_loop().time()
    async with asyncio.timeout(min(limits.first_byte_s, limits.request_s)) as late:
        if limits.first_byte_s < limits.request_s:
            if not connection.trailing_data[0]:
                connection.receive_data(await reader.read(READ_BYTES))
            late.reschedule(begun_s + limits.request_s)
        return await _read(connection, reader, writer, limits.body_bytes_max, held)


async def _read(
    connection: h11.Connection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    body_bytes_max: int,
    held: BodyAccount,
) -> Request | None:
    """The next request; None at the connection's end."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            bodiless = head is not None and head.method == b"HEAD"
            raise _UnreadableError(error, bodiless=bodiless) from None
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                writer.write(connection.send(go_on) or b"")
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            assert head is not None
            if len(body) + len(event.data) > body_bytes_max:
                return _request(head, Unread.TOO_LARGE)
            if not held.take(len(event.data)):
                return _request(head, Unread.NO_ROOM)
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return _request(head, bytes(body))
        else:  # the peer closed, or we wait for it to do so
            return None


def _request(head: h11.Request, body: bytes | Unread) -> Request:
    path, _, query = head.target.decode("latin-1").partition("?")
    return Request(
        method=head.method.decode("ascii"),
        path=path,
        headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        body=body,
        query=query,
    )


async def _linger(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
) -> None:
    """Read on for a moment what nobody wants: closing before would reset the connection.

    A reset takes away what the peer has not read yet, and that is why it was refused (RFC 9112,
    section 9.6).
    """
    if writer.can_write_eof():
        writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await reader.read(READ_BYTES):
                pass


async def _answer(
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
    response: Response,
    *,
    bodiless: bool = False,
) -> None:
    """Send an answer; one to HEAD has the headers of its body, and no body."""
    headers = {"content-length": str(len(response.body)), **response.headers}
    if connection.their_state is h11.SEND_BODY:  # the rest of the request is not read
        headers["connection"] = "close"
    events = (
        h11.Response(
            status_code=response.status,
            headers=list(headers.items()),
            reason=HTTPStatus(response.status).phrase.encode(),
        ),
        h11.Data(data=b"" if bodiless else response.body),
        h11.EndOfMessage(),
    )
    writer.write(b"".join(connection.send(event) or b"" for event in events))
    await writer.drain()


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection.

    Attributes:
        address: The address that the socket names.
        certificate: Verified, in DER; None without one.
    """

    address: tuple[Any, ...]
    certificate: bytes | None


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a server's connections.

    Attributes:
        max_connections: At a time.
        connection_s: Seconds from a connection's beginning to its end.
        handshake_s: Seconds of them for TLS to begin.
        request: Bounds of each request.
    """

    max_connections: int
    connection_s: float
    handshake_s: float
    request: RequestLimits


class HttpServer:
    """Accepts connections and answers their requests, until it is closed.

    Args:
        handle: Answers a request of a peer.
        limits: Bounds of connections.
        tls: Gives the context for a new connection; without it nothing is encrypted.

    Attributes:
        connections: Open now.
        connections_refused: Connections that made room for others, or found none.
    """

    def __init__(
        self,
        handle: Callable[[Request, Peer], Awaitable[Response]],
        limits: ServerLimits,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._handle = handle
        self._limits = limits
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._silent: dict[asyncio.StreamWriter, None] = {}  # in the order in which they came
        self.connections = 0
        self.connections_refused = 0

    async def listen(self, host: str, port: int, *, family: int = 0) -> int:
        """Listen; returns the port in use.

        Args:
            host: A name or an address.
            port: 0: any.
            family: The only one of the name's addresses; 0: all.

        Raises:
            OSError: The address cannot be listened on.
        """
        self._server = await asyncio.start_server(
            self._accept,
            host,
            port,
            family=family or socket.AF_UNSPEC,
            limit=_READ_AHEAD_BYTES,
            backlog=ACCEPT_AT_ONCE,
        )
        widen_backlog(self._server)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening, and end every connection; answers under way have a moment."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for writer in self._silent:
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving, timeout=_CLOSE_S)
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or not self._has_room():
            writer.transport.abort()
            return
        transport = _transport_of(writer)
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES  # asyncio asks for four times as much at a time
        if self._tls is not None:
            transport.pause_reading()  # what comes is for TLS, once that has begun
        self.connections += 1
        self._silent[writer] = None
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving[task] = writer
        task.add_done_callback(self._ended)

    def _has_room(self) -> bool:
        """Return whether one more may connect; the oldest that has sent no request makes room."""
        if self.connections < self._limits.max_connections:
            return True
        self.connections_refused += 1
        first = next(iter(self._silent), None)
        if first is None or self.connections >= 2 * self._limits.max_connections:
            return False  # all have asked, or as many are still leaving
        del self._silent[first]
        first.transport.abort()
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        writer = self._serving.pop(task)
        self._silent.pop(writer, None)
        self.connections -= 1
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, plain: asyncio.StreamWriter) -> None:
        limits, writer = self._limits, plain
        with suppress(OSError, asyncio.CancelledError):  # it broke, took too long, or is to end
            async with asyncio.timeout(limits.connection_s):
                if self._tls is not None:
                    reader, writer = await _shake_hands(plain, self._tls(), limits.handshake_s)
                try:
                    secured = writer.get_extra_info("ssl_object")
                    certificate = secured and secured.getpeercert(binary_form=True)
                    address = plain.get_extra_info("peername") or ("", 0)  # it may have gone
                    peer = Peer(address, certificate or None)
                    answer = partial(self._answer, plain, peer)
                    await serve_http(reader, writer, answer, limits.request, Unaccounted)
                finally:
                    writer.close()
                await writer.wait_closed()

    async def _answer(
        self, plain: asyncio.StreamWriter, peer: Peer, request: Request, _: Unaccounted
    ) -> Response:
        """Answer a request. From now on the connection no longer makes room for another."""
        self._silent.pop(plain, None)
        return await self._handle(request, peer)


def _transport_of(writer: asyncio.StreamWriter) -> asyncio.Transport:
    assert isinstance(writer.transport, asyncio.Transport)
    return writer.transport


async def _shake_hands(
    plain: asyncio.StreamWriter, context: ssl.SSLContext, within_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The connection, with TLS on it.

    Not `StreamWriter.start_tls`, which in Python 3.11 leaves a writer without a transport when the
    connection ends meanwhile.

    Raises:
        OSError: It broke, or took too long.
    """
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=_READ_AHEAD_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    secured = await loop.start_tls(
        _transport_of(plain), protocol, context, server_side=True, ssl_handshake_timeout=within_s
    )
    if secured is None:
        raise ConnectionResetError("connection closed during the TLS handshake")
    protocol.connection_made(secured)
    return reader, asyncio.StreamWriter(secured, protocol, reader, loop)

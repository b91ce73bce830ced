"""HTTP/1.1 requests: bounded in time as a whole, and in the bytes of an answer.

`HttpClient` blocks its thread and keeps its connection. It leaves a connection when the server says
so, when the server answers with its own failure (5xx), and when it is `CONNECTION_AGE_S` old:
behind one name there may be many backends, and one of them that drains answers 503 for as long as
somebody stays. For each new connection the name is resolved again; of its addresses one is taken at
random, and the one that was left last.

`fetch` asks once from an event loop, on a new connection; `open_stream` does so for an answer that
may have no end, as of a watch.

Redirects are not followed, and proxies that the environment names are not used: what a request
shows to prove who it is from is for one host.
"""

import asyncio
import random
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import SplitResult, urlsplit

import h11
from typing_extensions import override

from penstock.base.clock import Clock, SystemClock

CONNECTION_AGE_S: Final = 60.0
"""Seconds that a connection is kept: so long a change of the name's addresses may go unnoticed."""

HEAD_BYTES_MAX: Final = 64 * 1024
"""Limit of an answer's status line and headers; http.client allows as much for one line alone."""

_FAILURE: Final = 500
"""The first status code that speaks of the server, not of the request (RFC 9110, 15.6)."""

_CONNECT_S_MIN: Final = 0.2
"""Seconds that each address of a name has at least."""

_READ_BYTES: Final = 64 * 1024
_WRITE_BYTES: Final = 256 * 1024
"""Sent under one look at the clock: TLS takes the time limit for each part that it is given."""

_PORTS: Final = {"http": 80, "https": 443}
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""RFC 9110, section 5."""


class HttpError(ConnectionError):
    """An exchange failed after the request was sent, wholly or in part."""


class NoAnswerError(HttpError):
    """The server closed the connection before the first byte of an answer."""


class NotHttpError(HttpError):
    """The answer is not HTTP.

    Attributes:
        reason: Why not.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"it does not speak HTTP: {reason}")


class AnswerTooLargeError(HttpError):
    """The body is above its bound.

    Attributes:
        response: The answer, with the beginning of its body.
    """

    def __init__(self, response: "Response", bytes_max: int) -> None:
        self.response = response
        super().__init__(f"the answer is above {bytes_max} bytes")


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        target: Path and query.
        headers: Besides those of the connection and of the body's length.
        body: None: a request without one.
    """

    target: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    method: str = "GET"
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; header names are in lower case, and of a repeated one the last counts."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


def forbidden_header(headers: Mapping[str, str]) -> str | None:
    """The first name that HTTP forbids, or that has a value which it forbids."""
    for name, value in headers.items():
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return name
    return None


def target_of(url: str) -> str:
    """Return the target of a request line for a URL: its path and query."""
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def client_tls(
    ca_file: Path | None = None, cert_file: Path | None = None, key_file: Path | None = None
) -> ssl.SSLContext:
    """Whom a client trusts, the system's authorities without `ca_file`, and what it shows.

    Raises:
        OSError: A file cannot be read, or is none of its kind.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context


class _Exchange:
    """One request and its answer, without I/O.

    Args:
        connection: Idle.
        parts: The URL of the server.
        body_bytes_max: Bound of the answer's body.

    Raises:
        ValueError: HTTP forbids a header or the target. Values are not shown, for they may be
            secrets.
    """

    def __init__(
        self,
        connection: h11.Connection,
        parts: SplitResult,
        request: Request,
        body_bytes_max: int,
    ) -> None:
        headers, body = request.headers, request.body
        if (name := forbidden_header(headers)) is not None:
            raise ValueError(f"header {name} has a character that HTTP forbids")
        self._connection = connection
        self._body_bytes_max = body_bytes_max
        self._head: h11.Response | None = None
        self._found = bytearray()
        self._begun = False
        given = {name.lower() for name in headers}
        fields = {} if "host" in given else {"Host": _host_of(parts)}
        if "accept-encoding" not in given:
            fields["Accept-Encoding"] = "identity"
        if body is not None and "content-length" not in given:
            fields["Content-Length"] = str(len(body))
        encoded = [
            (name.encode("ascii"), value.strip(" \t").encode("latin-1"))
            for name, value in {**fields, **headers}.items()
        ]
        try:
            head = h11.Request(method=request.method, target=request.target, headers=encoded)
        except (h11.LocalProtocolError, UnicodeEncodeError):
            raise ValueError("the target has a character that HTTP forbids") from None
        self._sent = [connection.send(head) or b""]
        if body:
            self._sent.append(connection.send(h11.Data(data=body)) or b"")
        connection.send(h11.EndOfMessage())

    def to_send(self) -> Iterator[memoryview]:
        """The request's bytes, a small one in one part."""
        head, *body = self._sent
        whole = [head + body[0]] if body and len(body[0]) < _READ_BYTES else self._sent
        for data in whole:
            view = memoryview(data)
            for at in range(0, len(view), _WRITE_BYTES):
                yield view[at : at + _WRITE_BYTES]

    def receive(self, data: bytes) -> Response | None:
        """Take bytes of the answer, none at the connection's end; the answer once it is whole.

        Raises:
            HttpError: There will be no (whole) answer.
        """
        if not data and not self._begun:
            raise NoAnswerError("the server closed the connection without an answer")
        self._begun = True
        try:
            self._connection.receive_data(data)
            while (event := self._connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    self._head = event
                elif isinstance(event, h11.Data):
                    self._take(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return self._response()
                elif not isinstance(event, h11.InformationalResponse):
                    raise NotHttpError(f"{event} comes before an answer")
        except h11.RemoteProtocolError as error:
            if self._head is None:
                raise NotHttpError(str(error)) from None
            raise HttpError(f"the answer is not whole: {error}") from None
        return None

    @property
    def is_reusable(self) -> bool:
        """True if another request may follow on the connection."""
        connection = self._connection
        done = connection.our_state is h11.DONE and connection.their_state is h11.DONE
        return done and not connection.trailing_data[0]

    def _take(self, data: bytes) -> None:
        self._found += data
        if len(self._found) > self._body_bytes_max:
            del self._found[self._body_bytes_max :]
            raise AnswerTooLargeError(self._response(), self._body_bytes_max)

    def _response(self) -> Response:
        head = self._head
        assert head is not None, "h11 gives a body after its head"
        names = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        return Response(head.status_code, head.reason.decode("latin-1"), names, bytes(self._found))


def _host_of(parts: SplitResult) -> str:
    """The header Host: without the user, and without the port where it is the scheme's own."""
    host = parts.hostname or ""
    name = f"[{host}]" if ":" in host else host
    if not name.isascii():
        name = name.encode("idna").decode("ascii")
    port = parts.port
    return name if port in (None, _PORTS.get(parts.scheme)) else f"{name}:{port}"


def _connection() -> h11.Connection:
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)


class HttpClient:
    """A connection to one server, made when it is needed. Used by one thread at a time.

    Args:
        url: The server's URL; its scheme, host and port count.
        timeout_s: Maximum seconds of `connect`, and of the whole of `send`.
        body_bytes_max: Bound of an answer's body.
        tls: TLS of `https`; the system's authorities without it.
        rng: Chooses among the addresses of a name.

    Attributes:
        repeated: Whether the last request went twice, on a new connection when the kept one had
            ended.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        body_bytes_max: int,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._parts = urlsplit(url)
        self._timeout_s = timeout_s
        self._body_bytes_max = body_bytes_max
        self._tls = tls
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - no secret
        self._socket: socket.socket | None = None
        self._connection = _connection()
        self._connected_ns = 0
        self._last: tuple[Any, ...] | None = None
        self.repeated = False

    def __enter__(self) -> Self:
        """The connection is made when it is needed."""
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Give the connection back."""
        self.close()

    def close(self) -> None:
        """Give the connection back; `send` makes another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def connect(self) -> None:
        """Make a connection where none is kept; `send` then fails with the request (partly) sent.

        Raises:
            OSError: The server cannot be reached; it has seen nothing.
        """
        self._open(self._deadline_ns())

    def send(self, request: Request) -> Response:
        """Send a request and wait for its answer.

        Raises:
            TimeoutError: There was no whole answer in time.
            HttpError: There was none, or none that can be used.
            OSError: The server cannot be reached, or the connection broke.
            ValueError: HTTP forbids a header or the target; no value is shown.
        """
        deadline_ns = self._deadline_ns()
        used = self._kept() is not None and self._connection.our_state is h11.DONE
        self.repeated = False
        try:
            return self._exchange(deadline_ns, request)
        except NoAnswerError as ended:
            if not used:
                raise
            # A kept connection that the server had closed meanwhile, as servers do.
            self.repeated = True
            try:
                self._open(deadline_ns)
            except OSError:
                # Where there is no other connection, what went over the first may have been taken.
                raise ended from None
            return self._exchange(deadline_ns, request)

    def _exchange(self, deadline_ns: int, request: Request) -> Response:
        opened = self._open(deadline_ns)
        if self._connection.our_state is h11.DONE:
            self._connection.start_next_cycle()
        stays = False
        try:
            exchange = _Exchange(self._connection, self._parts, request, self._body_bytes_max)
            cut_short = self._write(opened, exchange, deadline_ns)
            try:
                response = self._read(opened, exchange, deadline_ns)
            except OSError:
                if cut_short is not None:
                    raise cut_short from None
                raise
            stays = exchange.is_reusable and response.status < _FAILURE and cut_short is None
        finally:
            if not stays:
                self.close()
        return response

    def _write(
        self, opened: socket.socket, exchange: _Exchange, deadline_ns: int
    ) -> OSError | None:
        """Send a request; returns how it was cut short.

        A server may answer 413, and close before the body is through.
        """
        try:
            for part in exchange.to_send():
                opened.settimeout(self._left_s(deadline_ns))
                opened.sendall(part)
        except (BrokenPipeError, ConnectionResetError) as error:
            return error
        except TimeoutError:
            raise self._late() from None
        return None

    def _read(self, opened: socket.socket, exchange: _Exchange, deadline_ns: int) -> Response:
        response = None
        while response is None:
            opened.settimeout(self._left_s(deadline_ns))
            try:
                data = opened.recv(_READ_BYTES)
            except TimeoutError:
                raise self._late() from None
            response = exchange.receive(data)
        return response

    def _kept(self) -> socket.socket | None:
        """The connection, where there is one that is young enough."""
        if self._clock.monotonic_ns() - self._connected_ns > CONNECTION_AGE_S * 1e9:
            self.close()
        return self._socket

    def _open(self, deadline_ns: int) -> socket.socket:
        if (kept := self._kept()) is not None:
            return kept
        parts = self._parts
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        opened = self._dial(host, port, deadline_ns)
        try:
            if parts.scheme == "https":
                opened.settimeout(self._left_s(deadline_ns))
                opened = (self._tls or client_tls()).wrap_socket(opened, server_hostname=host)
        except BaseException:
            opened.close()
            raise
        self._socket, self._connection = opened, _connection()
        self._connected_ns = self._clock.monotonic_ns()
        return opened

    def _dial(self, host: str, port: int, deadline_ns: int) -> socket.socket:
        """A connection to one of a name's addresses, within the time limit for all of them.

        Raises:
            OSError: Of the last one: none can be reached.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        order = self._ordered([(one[0], one[4]) for one in found])
        for number, (family, address) in enumerate(order, 1):
            left_s = (deadline_ns - self._clock.monotonic_ns()) / 1e9
            opened = socket.socket(family, socket.SOCK_STREAM)
            try:
                opened.settimeout(max(left_s / (len(order) - number + 1), _CONNECT_S_MIN))
                opened.connect(address)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                opened.close()
                if number == len(order):
                    raise
            else:
                self._last = address
                return opened
        raise OSError(f"{host}: the name has no addresses")

    def _ordered(
        self, found: list[tuple[socket.AddressFamily, tuple[Any, ...]]]
    ) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
        """Shuffle addresses within a family, keep the families' order; the last used comes last."""
        families = list(dict.fromkeys(family for family, _ in found))
        shuffled = self._rng.sample(found, len(found))
        return sorted(shuffled, key=lambda one: (one[1] == self._last, families.index(one[0])))

    def _deadline_ns(self) -> int:
        return self._clock.monotonic_ns() + int(self._timeout_s * 1e9)

    def _left_s(self, deadline_ns: int) -> float:
        """Seconds until a deadline.

        Raises:
            TimeoutError: There are none.
        """
        left_s = (deadline_ns - self._clock.monotonic_ns()) / 1e9
        if left_s <= 0:
            raise self._late()
        return left_s

    def _late(self) -> TimeoutError:
        return TimeoutError(f"no answer within {self._timeout_s:g} s")


async def fetch(
    url: str,
    request: Request,
    *,
    timeout_s: float,
    body_bytes_max: int,
    tls: ssl.SSLContext | None = None,
    address: str | Path | None = None,
) -> Response:
    """Ask once, on a new connection.

    Args:
        url: The server's URL; its scheme, host and port count.
        request: The request.
        timeout_s: Maximum seconds of the request.
        body_bytes_max: Bound of the answer's body.
        tls: TLS of ``https``; the system's authorities without it.
        address: The one to ask of those that the URL's host stands for, or the path of a Unix
            socket; None: any.

    Raises:
        TimeoutError: There was no whole answer in time.
        HttpError: There was none, or none that can be used.
        OSError: The server cannot be reached, or the connection broke.
        ValueError: HTTP forbids a header or the target; no value is shown.
    """
    parts = urlsplit(url)
    exchange = _Exchange(_connection(), parts, _once(request), body_bytes_max)
    async with _in_time(timeout_s), _opened(parts, tls, address) as (reader, writer):
        return await _ask(reader, writer, exchange)


class _StreamedExchange(_Exchange):
    """An exchange whose answer's body is handed out part by part."""

    def __init__(self, parts: SplitResult, request: Request) -> None:
        super().__init__(_connection(), parts, _once(request), 0)
        self.found: list[bytes] = []

    @property
    def head(self) -> Response | None:
        """The answer without its body; None before it came."""
        return None if self._head is None else self._response()

    @override
    def _take(self, data: bytes) -> None:
        self.found.append(data)


class Stream:
    """An answer whose body is read part by part, for as long as the server sends it.

    Attributes:
        head: The answer, without its body.
    """

    def __init__(self, reader: asyncio.StreamReader, exchange: _StreamedExchange) -> None:
        self._reader = reader
        self._exchange = exchange
        self._ended = False

    @property
    def head(self) -> Response:
        head = self._exchange.head
        assert head is not None, "open_stream waits for it"
        return head

    async def begin(self) -> None:
        """Wait for the answer's head; raises what `read` does."""
        while self._exchange.head is None:
            await self._receive()

    async def read(self) -> bytes:
        """Return the next part of the body, as large as it came; empty at the body's end.

        Raises:
            HttpError: The answer was cut short, or is not HTTP.
            OSError: The connection broke.
        """
        while not (self._exchange.found or self._ended):
            await self._receive()
        found = b"".join(self._exchange.found)
        self._exchange.found.clear()
        return found

    async def _receive(self) -> None:
        self._ended = self._exchange.receive(await self._reader.read(_READ_BYTES)) is not None


@asynccontextmanager
async def open_stream(
    url: str,
    request: Request,
    *,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Stream]:
    """Ask once, on a new connection, for an answer that may go on for ever.

    The kernel asks a silent peer whether it is still there, so that a connection which a gateway
    forgot ends within a minute.

    Args:
        url: The server's URL; its scheme, host and port count.
        request: The request.
        timeout_s: Maximum seconds until the answer's head is there.
        tls: TLS of ``https``; the system's authorities without it.

    Raises:
        TimeoutError: There was no head in time.
        HttpError: There was none, or none that can be used.
        OSError: The server cannot be reached, or the connection broke.
        ValueError: HTTP forbids a header or the target; no value is shown.
    """
    parts = urlsplit(url)
    exchange = _StreamedExchange(parts, request)
    async with AsyncExitStack() as opened:
        async with _in_time(timeout_s):
            reader, writer = await opened.enter_async_context(_opened(parts, tls, None))
            _ask_whether_there(writer.get_extra_info("socket"))
            for part in exchange.to_send():
                writer.write(part)
            stream = Stream(reader, exchange)
            await stream.begin()
        yield stream


def _once(request: Request) -> Request:
    return replace(request, headers={"Connection": "close", **request.headers})


@asynccontextmanager
async def _in_time(timeout_s: float) -> AsyncIterator[None]:
    """A time limit, whose error says how long it was."""
    late = asyncio.timeout(timeout_s)
    try:
        async with late:
            yield
    except TimeoutError:
        if late.expired():
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None
        raise


@asynccontextmanager
async def _opened(
    parts: SplitResult, tls: ssl.SSLContext | None, address: str | Path | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = (tls or client_tls()) if parts.scheme == "https" else None
    name = None if context is None else parts.hostname
    if isinstance(address, Path):
        reader, writer = await asyncio.open_unix_connection(
            address, ssl=context, server_hostname=name
        )
    else:
        reader, writer = await asyncio.open_connection(
            address or parts.hostname,
            parts.port or _PORTS[parts.scheme],
            ssl=context,
            server_hostname=name,
        )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # closing would wait for what it has not taken
        with suppress(OSError):
            await writer.wait_closed()


def _ask_whether_there(opened: socket.socket) -> None:
    """Let the kernel probe a silent peer; the connection ends when it has not answered for 30 s."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, exchange: _Exchange
) -> Response:
    for part in exchange.to_send():
        writer.write(part)  # not drained: it may answer, and close, before it has read everything
    response = None
    while response is None:
        response = exchange.receive(await reader.read(_READ_BYTES))
    return response

"""One lasting connection to a NATS server: connect, subscribe, reconnect, publish.

logd keeps two: one brings messages in, the other takes acks out, so that neither delays the other.
The socket is never left unread, because nats-server cuts off whoever does not read.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import orjson
import structlog
from typing_extensions import override

from penstock.logd.core.turn import Message
from penstock.logd.errors import CorruptError, LogdError
from penstock.logd.nats_parser import NatsParser, Parsed

OnMessages = Callable[[dict[bytes, list[Message]]], None]

_HANDSHAKE_S: Final = 5.0
_PING_INTERVAL_S: Final = 20.0
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 2.0
_REFUSALS: Final = ("authorization", "permissions violation for subscription")
_WRITE_BUFFER_MAX: Final = 16 * 1024 * 1024
"""Bytes that may wait in the socket's buffer before publishing is refused."""

_log = structlog.get_logger()


class NatsRefusedError(LogdError):
    """The NATS server does not want this client: credentials or permissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAddress:
    """Where a NATS server is and who we are to it."""

    url: str
    user: str | None = None
    password: str | None = None
    token: str | None = None

    def host_port(self) -> tuple[str, int]:
        """What to connect to; 4222 is NATS's port."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 4222

    def credentials(self) -> dict[str, str]:
        """The fields of CONNECT; those in the URL give way to those of the configuration."""
        parts = urlsplit(self.url)
        found: dict[str, str] = {}
        if parts.username and parts.password is None:
            found["auth_token"] = unquote(parts.username)
        elif parts.username:
            found = {"user": unquote(parts.username), "pass": unquote(parts.password or "")}
        if self.token is not None:
            found = {"auth_token": self.token}
        if self.user is not None:
            found = {"user": self.user, "pass": self.password or ""}
        return found

    def shown(self) -> str:
        """The address without secrets."""
        host, port = self.host_port()
        return f"{host}:{port}"


class NatsLink:
    """Keeps a connection and its subscriptions alive until it is closed.

    Args:
        address: Of the server.
        name: Shown in the server's monitoring.
        on_messages: Called with what one read brought, by subscription id.
        rng: For the jitter of reconnecting.
    """

    def __init__(
        self, address: NatsAddress, *, name: str, on_messages: OnMessages, rng: random.Random
    ) -> None:
        self.address = address
        self.name = name
        self.problem = "not connected yet"
        self.reconnects = 0
        self.info: dict[str, Any] = {}
        self._on_messages = on_messages
        self._rng = rng
        self._wire: _Wire | None = None
        self._subscriptions: dict[bytes, str] = {}
        self._last_sid = 0
        self._closing = False

    @property
    def connected(self) -> bool:
        """Whether the server has us and our subscriptions."""
        return self._wire is not None

    async def connect(self) -> None:
        """Connect once and subscribe.

        Raises:
            NatsRefusedError: Credentials or permissions.
            OSError: The server cannot be reached, or broke off.
        """
        host, port = self.address.host_port()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_HANDSHAKE_S):
            _, wire = await loop.create_connection(
                lambda: _Wire(self._on_messages, self._note_error), host, port
            )
            try:
                await self._handshake(wire)
            except BaseException:
                wire.abort()
                raise
        self._wire = wire
        self.problem = ""

    async def run(self) -> None:
        """Watch the connection and reconnect as often as needed, until `close`."""
        while not self._closing:
            if self._wire is None:
                await self._reconnect()
            else:
                await self._watch(self._wire)
                self._wire = None
                self._note_loss()

    async def subscribe(self, subject: str) -> bytes:
        """Subscribe now and after each reconnect; returns the subscription's id.

        When connected, the server has the subscription on return.

        Raises:
            NatsRefusedError: The server does not permit it.
        """
        self._last_sid += 1
        sid = str(self._last_sid).encode()
        self._subscriptions[sid] = subject
        if self._wire is not None:
            self._wire.write(_sub_line(sid, subject))
            try:
                async with asyncio.timeout(_HANDSHAKE_S):
                    await self._wire.flush_checked()
            except NatsRefusedError:
                del self._subscriptions[sid]
                raise
            except OSError as error:  # the reconnect will subscribe
                _log.warning("nats subscription delayed", subject=subject, reason=str(error))
        return sid

    def unsubscribe(self, sid: bytes) -> None:
        """End a subscription; messages under way may still come."""
        self._subscriptions.pop(sid, None)
        if self._wire is not None:
            self._wire.write(b"UNSUB %b\r\n" % sid)

    def write(self, data: bytes) -> bool:
        """Send protocol bytes; False when they cannot be sent now and are not kept."""
        wire = self._wire
        if wire is None or wire.unsent_bytes() > _WRITE_BUFFER_MAX:
            return False
        wire.write(data)
        return True

    async def flush(self, timeout_s: float) -> None:
        """Wait until the server has processed what was written, or until the timeout."""
        if self._wire is not None:
            with contextlib.suppress(OSError, NatsRefusedError):
                async with asyncio.timeout(timeout_s):
                    await self._wire.flush()

    def close(self) -> None:
        """Disconnect for good."""
        self._closing = True
        if self._wire is not None:
            self._wire.abort()

    async def _handshake(self, wire: "_Wire") -> None:
        self.info = await wire.info
        if self.info.get("tls_required"):
            raise NatsRefusedError(f"{self.address.shown()} demands TLS, which is not offered yet")
        connect = {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": "0.1.0",
            "protocol": 1,
            "echo": False,
            "headers": True,
            "no_responders": True,
            "name": self.name,
        } | self.address.credentials()
        subscriptions = [_sub_line(sid, subject) for sid, subject in self._subscriptions.items()]
        wire.write(b"CONNECT %b\r\n%b" % (orjson.dumps(connect), b"".join(subscriptions)))
        await wire.flush_checked()

    async def _watch(self, wire: "_Wire") -> None:
        """Ping an idle server; return when the connection is gone."""
        while not wire.closed.done():
            seen = wire.reads
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING_INTERVAL_S):
                    await asyncio.shield(wire.closed)
            if not wire.closed.done() and wire.reads == seen:
                try:
                    async with asyncio.timeout(_HANDSHAKE_S):
                        await wire.flush()
                except (OSError, NatsRefusedError) as error:
                    self.problem = f"no answer to a ping: {error}"
                    wire.abort()

    async def _reconnect(self) -> None:
        delay_s = _BACKOFF_FIRST_S
        while not self._closing:
            try:
                await self.connect()
            except (OSError, LogdError) as error:
                self.problem = str(error) or type(error).__name__
                _log.warning("nats connect failed", link=self.name, reason=self.problem)
                await asyncio.sleep(delay_s * self._rng.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, _BACKOFF_MAX_S)
            else:
                self.reconnects += 1
                _log.info("nats connected again", link=self.name, server=self.address.shown())
                return

    def _note_loss(self) -> None:
        if not self._closing:
            self.problem = self.problem or "connection lost"
            _log.warning("nats connection lost", link=self.name, reason=self.problem)

    def _note_error(self, text: str) -> None:
        self.problem = f"nats-server says: {text}"
        _log.error("nats error", link=self.name, error=text)


class _Wire(asyncio.BufferedProtocol):
    """One connection's bytes."""

    def __init__(self, on_messages: OnMessages, on_error: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        self.info: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.reads = 0
        self._on_messages = on_messages
        self._on_error = on_error
        self._parser = NatsParser()
        self._pongs: list[asyncio.Future[None]] = []
        self._transport: asyncio.Transport | None = None
        self._refusal = ""

    def write(self, data: bytes) -> None:
        """Send, without waiting."""
        assert self._transport is not None
        self._transport.write(data)

    def unsent_bytes(self) -> int:
        """Bytes the socket has not taken yet."""
        assert self._transport is not None
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close at once."""
        assert self._transport is not None
        self._transport.abort()

    async def flush(self) -> None:
        """Wait until the server has processed everything written so far.

        Raises:
            NatsRefusedError: It is gone, for it refuses us.
            ConnectionError: It is gone.
        """
        pong = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self.write(b"PING\r\n")
        await pong

    async def flush_checked(self) -> None:
        """Flush, and see whether something was refused: for whoever has just asked for it.

        Raises:
            NatsRefusedError: The server refused some of what was written.
            ConnectionError: It is gone.
        """
        await self.flush()
        if self._refusal:
            refusal, self._refusal = self._refusal, ""
            raise NatsRefusedError(refusal)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.writable()

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.reads += 1
        try:
            parsed = self._parser.written(nbytes)
        except CorruptError as error:
            self._on_error(f"malformed input: {error}")
            self.abort()
            return
        if parsed.messages:
            self._on_messages(parsed.messages)
        if parsed.pings or parsed.pongs or parsed.errors or parsed.info is not None:
            self._take_controls(parsed)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._refusal or (str(exc) if exc else "closed by the server")
        error: Exception = (
            NatsRefusedError(self._refusal) if self._refusal else ConnectionError(reason)
        )
        waiters: list[asyncio.Future[Any]] = [self.info, *self._pongs]
        for waiting in waiters:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # nobody may be waiting any more
        if not self.closed.done():
            self.closed.set_result(None)

    def _take_controls(self, parsed: Parsed) -> None:
        if parsed.pings:
            self.write(b"PONG\r\n" * parsed.pings)
        for text in parsed.errors:
            if any(word in text.lower() for word in _REFUSALS):
                self._refusal = text
            self._on_error(text)
        if parsed.info is not None and not self.info.done():
            self.info.set_result(parsed.info)
        for _ in range(min(parsed.pongs, len(self._pongs))):
            pong = self._pongs.pop(0)
            if not pong.done():
                pong.set_result(None)


def _sub_line(sid: bytes, subject: str) -> bytes:
    return b"SUB %b %b\r\n" % (subject.encode(), sid)

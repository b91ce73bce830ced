"""One connection's bytes: parses what comes, answers PINGs, tells whoever asked what came of it."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from penstock.logd.core.turn import Message
from penstock.logd.nats.errors import ErrorKind, NatsRefusedError, ServerError, understand
from penstock.logd.nats.parser import NatsParser, Parsed

OnMessages = Callable[[dict[bytes, list[Message]]], None]
Answer = asyncio.Future[list[ServerError]]


class Wire(asyncio.BufferedProtocol):
    """A connection to a NATS server, from the first byte to the last.

    Args:
        on_messages: Called with what one read brought, by subscription id.

    Attributes:
        info: The first INFO.
        last_info: The last one so far.
        closed: Done when the connection is gone.
        reads: How often something came.
        on_info: Called with every INFO.
        on_error: Called with every -ERR.
        problem: Why the connection is gone, as far as known.
        cause: What the socket said of that, if anything.
    """

    def __init__(self, on_messages: OnMessages) -> None:
        loop = asyncio.get_running_loop()
        self.info: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.last_info: dict[str, Any] = {}
        self.reads = 0
        self.on_info: Callable[[dict[str, Any]], None] = lambda _: None
        self.on_error: Callable[[ServerError], None] = lambda _: None
        self.problem = ""
        self.cause: Exception | None = None
        self._refused = False
        self._on_messages = on_messages
        self._parser = NatsParser()
        self._pings: deque[Answer] = deque()
        self._errors: list[ServerError] = []
        self._transport: asyncio.Transport | None = None

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

    def ask(self, data: bytes = b"") -> Answer:
        """Send `data` and a PING; the errors that came before its PONG are about `data`.

        The answer raises `NatsRefusedError` or `ConnectionError` when the connection goes first.
        """
        answer: Answer = asyncio.get_running_loop().create_future()
        if self.closed.done():
            answer.set_exception(self._end())
            answer.exception()  # the caller may not look
            return answer
        self._pings.append(answer)
        self.write(data + b"PING\r\n")
        return answer

    async def secure(self, context: ssl.SSLContext, name: str, timeout_s: float) -> None:
        """Put TLS over the connection; nothing may have come but one INFO.

        Raises:
            ssl.SSLError: The handshake failed.
            OSError: The connection broke off.
        """
        if not self._parser.idle:  # it would be taken for what the server says under TLS
            raise ConnectionError("bytes came between INFO and the TLS handshake")
        assert self._transport is not None
        transport = await asyncio.get_running_loop().start_tls(
            self._transport, self, context, server_hostname=name, ssl_handshake_timeout=timeout_s
        )
        if transport is None:
            raise ConnectionError("closed by the server during the TLS handshake")
        self._transport = transport

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
        parsed = self._parser.written(nbytes)
        if parsed.messages:
            self._on_messages(parsed.messages)
        if parsed.pings or parsed.answers or parsed.info is not None:
            self._take_controls(parsed)
        if parsed.damage is not None:
            self.problem = self.problem or f"malformed input: {parsed.damage}"
            self.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self.problem:
            self.problem = str(exc) if exc else "closed by the server"
        self.cause = exc
        error = self._end()
        waiters: list[asyncio.Future[Any]] = [self.info, *self._pings]
        for waiting in waiters:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # nobody may be waiting any more
        self._pings.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    def _end(self) -> Exception:
        return NatsRefusedError(self.problem) if self._refused else ConnectionError(self.problem)

    def _take_controls(self, parsed: Parsed) -> None:
        if parsed.pings:
            self.write(b"PONG\r\n" * parsed.pings)
        if parsed.info is not None:
            self.last_info = parsed.info
            if not self.info.done():
                self.info.set_result(parsed.info)
            self.on_info(parsed.info)
        for text in parsed.answers:
            if text is None:
                self._take_pong()
            else:
                self._take_error(understand(text))

    def _take_pong(self) -> None:
        errors, self._errors = self._errors, []
        answer = self._pings.popleft() if self._pings else None
        if answer is not None and not answer.done():
            answer.set_result(errors)

    def _take_error(self, error: ServerError) -> None:
        if self._pings:
            self._errors.append(error)
        if error.kind in (ErrorKind.LOGIN, ErrorKind.FATAL):
            self.problem = f"nats-server says: {error.text}"
            self._refused = self._refused or error.kind is ErrorKind.LOGIN
        self.on_error(error)

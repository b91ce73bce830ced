"""The NATS client protocol, server to client: bytes in, messages and control lines out; no I/O.

The socket is read straight into the parser's buffer. What a read brought becomes one object, of
which payloads are slices; a message larger than a read is copied out of the buffer once. Only the
one item that the end of a read cuts is moved besides, to the buffer's front. What follows a
subscription's id in MSG and HMSG is documented in the NATS client protocol.

The buffer grows for a message or an INFO that is larger than it, by as much as is missing and never
beyond `message_size_max` and a buffer more, and is given back as soon as what is left fits without.

How the bytes are cut into reads makes no difference to what comes out, nor to what is refused.
"""

import asyncio
import re
import ssl
from collections import defaultdict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec
import orjson
from msgspec import Struct
from typing_extensions import override

from penstock.logd.errors import CorruptError, LogdError
from penstock.logd.intake.turn import Message
from penstock.logd.limits import (
    CONTROL_LINE_MAX,
    INFO_LINE_MAX,
    MESSAGE_LINE_MAX,
    MESSAGE_SIZE_MAX,
    MESSAGE_WORD_MAX,
)

BUFFER_SIZE: Final = 256 * 1024

READ_SIZE: Final = 64 * 1024
"""Bytes taken in one turn of the event loop, but for the rest of a message: what hundreds of small
messages amount to is soon done. A node's heartbeats wait for it, and its lease with them."""
"""Bytes; what one read of the socket can bring, so also what one turn is."""

_WORD: Final = rb"([^ \t\r\n]{1,%d})" % MESSAGE_WORD_MAX
"""Pattern of a word that nats-server accepts; a publisher's subject may hold any other byte."""

_MSG: Final = re.compile(rb"MSG %b %b (?:%b )?(\d{1,10})\r\n" % (_WORD, _WORD, _WORD))
_HMSG: Final = re.compile(rb"HMSG %b %b (?:%b )?(\d{1,10}) (\d{1,10})\r\n" % (_WORD, _WORD, _WORD))
_LINE_MAX: Final = {
    ord("I"): INFO_LINE_MAX,
    ord("M"): MESSAGE_LINE_MAX,
    ord("H"): MESSAGE_LINE_MAX,
    ord("-"): MESSAGE_LINE_MAX,  # an -ERR names the subject it is about
}
"""Bytes of a line, by its first; others have `CONTROL_LINE_MAX`."""

_CR: Final = 13
_LF: Final = 10
_new_tuple: Final = tuple.__new__
"""Makes a named tuple in half the time of calling its class."""


class Parsed(Struct):
    """Content of one read.

    Attributes:
        messages: Messages by subscription id, in order of arrival.
        info: The last INFO, if any came.
        pings: Number of PINGs to answer.
        answers: PONGs (None) and texts of -ERR lines, in order: an error that comes before a PONG
            is about what was sent before its PING.
        damage: Why what follows cannot be parsed; the parser is unusable then.
    """

    messages: dict[bytes, list[Message]] = msgspec.field(default_factory=lambda: defaultdict(list))
    info: dict[str, Any] | None = None
    pings: int = 0
    answers: list[str | None] = msgspec.field(default_factory=list)
    damage: CorruptError | None = None


class NatsParser:
    """Parses what is written into `writable()`.

    Args:
        message_size_max: Bytes of the largest message that is taken; more is malformed.
    """

    def __init__(self, *, message_size_max: int = MESSAGE_SIZE_MAX) -> None:
        self._message_size_max = message_size_max
        self._buffer = bytearray(BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._missing = 0

    @property
    def idle(self) -> bool:
        """True if no unparsed bytes are left."""
        return self._end == 0

    @property
    def buffer_size(self) -> int:
        """Bytes the buffer has."""
        return len(self._buffer)

    def writable(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        if self._end + self._missing > len(self._buffer) or self._end == len(self._buffer):
            grown = bytearray(max(2 * len(self._buffer), self._end + self._missing))
            grown[: self._end] = self._view[: self._end]
            self._buffer, self._view = grown, memoryview(grown)
        return self._view[self._end : self._end + max(READ_SIZE, self._missing)]

    def written(self, count: int) -> Parsed:
        """Parse, `count` bytes having been put into `writable()`."""
        self._end += count
        self._missing = 0
        parsed = Parsed()
        try:
            rest = self._parse(parsed)
        except CorruptError as error:  # what came before it is as good as ever
            parsed.damage = error
            return parsed
        left = self._end - rest
        if left and rest:
            self._view[:left] = self._view[rest : self._end]
        self._end = left
        if len(self._buffer) > BUFFER_SIZE >= left + self._missing:
            buffer = bytearray(BUFFER_SIZE)
            buffer[:left] = self._view[:left]
            self._buffer, self._view = buffer, memoryview(buffer)
        return parsed

    def _parse(self, parsed: Parsed) -> int:
        """Take every whole item; returns where the first that is not whole begins."""
        end = self._end
        # A slice of bytes costs half of a slice of a view, which pays for one more copy of a read.
        data = bytes(self._view[:end]) if end <= BUFFER_SIZE else self._view
        messages = parsed.messages
        match_message = _MSG.match
        position = 0
        while position < end:
            found = match_message(data, position, end)
            if found is None:
                following = self._parse_other(parsed, position)
                if following == position:
                    break
                position = following
                continue
            subject, sid, reply, digits = found.groups()
            start = found.end()
            stop = start + int(digits)
            if stop + 2 > end:
                self._await_bytes(stop + 2 - end, stop - start)
                break
            if data[stop] != _CR or data[stop + 1] != _LF:
                raise CorruptError(f"a message on {subject!r} does not end where it says")
            message = (subject, reply or b"", b"", bytes(data[start:stop]))
            messages[sid].append(_new_tuple(Message, message))
            position = stop + 2
        return position

    def _parse_other(self, parsed: Parsed, position: int) -> int:
        """Take one HMSG or control line; returns `position` when it is not whole."""
        buffer, end = self._buffer, self._end
        found = _HMSG.match(buffer, position, end)
        if found is not None:
            return self._parse_with_headers(parsed, found, position)
        limit = _LINE_MAX.get(buffer[position], CONTROL_LINE_MAX)
        line_end = buffer.find(b"\r\n", position, min(end, position + limit))
        if line_end < 0:
            if end - position >= limit:
                raise CorruptError(f"a line of more than {limit} bytes")
            return position
        self._take_line(parsed, bytes(self._view[position:line_end]))
        return line_end + 2

    def _parse_with_headers(self, parsed: Parsed, found: re.Match[bytes], position: int) -> int:
        subject, sid, reply, header_digits, digits = found.groups()
        start = found.end()
        payload = start + int(header_digits)
        stop = start + int(digits)
        if payload > stop:
            raise CorruptError(f"a message on {subject!r} has headers longer than itself")
        if stop + 2 > self._end:
            self._await_bytes(stop + 2 - self._end, stop - start)
            return position
        if self._buffer[stop] != _CR or self._buffer[stop + 1] != _LF:
            raise CorruptError(f"a message on {subject!r} does not end where it says")
        headers, body = bytes(self._view[start:payload]), bytes(self._view[payload:stop])
        parsed.messages[sid].append(Message(subject, reply or b"", headers, body))
        return stop + 2

    def _await_bytes(self, missing: int, size: int) -> None:
        if size > self._message_size_max:
            raise CorruptError(f"a message of {size} bytes; at most {self._message_size_max}")
        self._missing = missing

    @staticmethod
    def _take_line(parsed: Parsed, line: bytes) -> None:
        if line == b"PING":
            parsed.pings += 1
        elif line == b"PONG":
            parsed.answers.append(None)
        elif line.startswith(b"INFO "):
            parsed.info = _decode_info(line[5:])
        elif line.startswith(b"-ERR"):
            parsed.answers.append(line[4:].decode("utf-8", "replace").strip(" '"))
        elif line != b"+OK":
            raise CorruptError(f"not a line of the NATS protocol: {line[:80]!r}")


def _decode_info(text: bytes) -> dict[str, Any]:
    try:
        info = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CorruptError(f"INFO is not JSON: {error}") from None
    if not isinstance(info, dict):
        raise CorruptError("INFO is not a JSON object")
    return info


class NatsRefusedError(LogdError):
    """The NATS server does not want this client: credentials or permissions."""


class NatsSetupError(LogdError):
    """Error of a configuration that cannot work with any server, or not with this one.

    Attributes:
        key: The configuration key at fault.
        fix: The fix for the operator.
    """

    def __init__(self, key: str, message: str, *, fix: str) -> None:
        self.key = key
        self.fix = fix
        super().__init__(message)


class ErrorKind(Enum):
    """Meaning of an -ERR line for a connection."""

    LOGIN = "login"
    """Credentials are not, or no longer, accepted; the server hangs up."""

    SUBSCRIPTION = "subscription"
    """One subscription is refused or was taken away; the rest goes on."""

    PUBLISH = "publish"
    """One message was not taken; the rest goes on."""

    FATAL = "fatal"
    """The server hangs up: stale connection, too large a payload, malformed input, ..."""


class ServerError(Struct, frozen=True):
    """One -ERR line.

    Attributes:
        sid: The subscription it names, where it names one.
    """

    kind: ErrorKind
    text: str
    sid: bytes | None = None


_LOGIN: Final = ("authorization", "authentication", "account ")
_SID: Final = re.compile(r'\(sid "?(\w+)"?\)')


def understand(text: str) -> ServerError:
    """Say what an -ERR line means; unknown ones are fatal, because most are."""
    lower = text.lower()
    if lower.startswith("permissions violation for publish") or lower == "invalid publish subject":
        return ServerError(ErrorKind.PUBLISH, text)
    if (
        lower.startswith("permissions violation for subscription")
        or lower in ("invalid subject", "maximum subscriptions exceeded")
    ):  # fmt: skip
        found = _SID.search(text)
        return ServerError(ErrorKind.SUBSCRIPTION, text, found[1].encode() if found else None)
    if any(word in lower for word in _LOGIN) and "connections exceeded" not in lower:
        return ServerError(ErrorKind.LOGIN, text)
    return ServerError(ErrorKind.FATAL, text)


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
        reads: Number of reads from the socket.
        on_info: Called with every INFO.
        on_error: Called with every -ERR.
        problem: Why the connection is gone, as far as known.
        cause: Error of the socket; None: there is none.
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
                waiting.exception()  # no caller may be waiting any more
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

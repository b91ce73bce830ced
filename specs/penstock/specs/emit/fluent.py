"""A handler of the standard library's logging that speaks Fluent forward, version 1.

For Fluentd, Fluent Bit, Vector and all others that take what fluent-logger sends. The application
waits for nobody: records wait in an emitter's bounded queue, and a separate thread connects,
sends and hears of the agent. Batches go as PackedForward messages:

    [tag, bytes of [EventTime, record] back to back, {"size": 7, "chunk": "<id>"}]

and are held until the agent acknowledges the chunk; one that is not is sent again, so an agent may
get it twice.
"""

import logging
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from penstock.specs.emit.delivery import unpatched
from penstock.specs.emit.delivery.config import Counters, EmitterLimits
from penstock.specs.emit.delivery.core import Acked, Batch
from penstock.specs.emit.delivery.queue import line_of
from penstock.specs.emit.delivery.transport import (
    ANSWER_BYTES_MAX,
    Answer,
    Answers,
    RemoteProtocolError,
    Report,
    SocketLink,
)
from penstock.specs.emit.emitter import Emitter, usual_scrubber
from penstock.specs.emit.handler import SpecHandler
from penstock.specs.errors import MissingExtraError
from penstock.specs.limits import EXIT_FLUSH_MS

if TYPE_CHECKING:
    import _socket

try:
    import msgpack
except ImportError as error:
    raise MissingExtraError(error.name) from None

_EVENT_TIME: Final = struct.Struct(">II")
_CONNECT_S: Final = 3.0
_PORT: Final = 24224


class FluentHandler(SpecHandler):
    """Sends each record of the logger it is added to; what is bound and traced goes along.

    A record is a map: ``message``, ``level``, ``logger``, then the ids of the trace, the context
    and the attributes by their own names.

    Args:
        tag: Tag by which the agent routes.
        host: The agent's; it is resolved with every connection.
        port: The agent's.
        path: Its Unix socket, in the place of host and port.
        acknowledged: Whether the agent answers chunks. Without, what is on its way when a
            connection ends is lost, and not counted.
        level: The least severe level, as in `logging`.
        limits: Bounds of the queue, and times.

    Raises:
        MissingExtraError: msgpack is not installed.
        SpecError: PENSTOCK_HASH_KEY is malformed.
    """

    def __init__(  # noqa: PLR0913 - most are optional and named
        self,
        tag: str,
        *,
        host: str = "127.0.0.1",
        port: int = _PORT,
        path: str | None = None,
        acknowledged: bool = True,
        level: int = logging.NOTSET,
        limits: EmitterLimits | None = None,
    ) -> None:
        self._fluent: Final = Emitter(
            {"service.name": tag},
            link=lambda sender, _: FluentLink(
                tag, sender, path or (host, port), acknowledged=acknowledged
            ),
            limits=limits,
            scrubber=usual_scrubber(is_last=True),
            encode=encode_entry,
        )
        super().__init__(self._fluent, level)

    @override
    def flush(self) -> None:
        """Wait, with a deadline, until the agent has what was said."""
        self._fluent.flush(EXIT_FLUSH_MS / 1000)

    @override
    def close(self) -> None:
        self._fluent.close()
        super().close()

    def counters(self) -> Counters:
        return self._fluent.counters()


class FluentLink(SocketLink):
    """One connection to an agent."""

    advice = "Start the agent, or correct the host, port or path of the FluentHandler."

    def __init__(
        self, tag: str, sender: str, address: str | tuple[str, int], *, acknowledged: bool
    ) -> None:
        super().__init__(address if isinstance(address, str) else "", sender, b"{}")
        self._tag = tag
        self._address = address
        place = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
        self.peer = f"the Fluent agent at {place}"
        self._acknowledged = acknowledged
        self._sequence: int | None = None

    @override
    def send(self, batch: Batch, report: Report) -> list[Answer]:
        option: dict[str, Any] = {"size": len(batch.records)}
        if self._acknowledged:
            option["chunk"] = f"{self._sender}-{batch.sequence}"
        entries = b"".join(map(line_of, batch.records))
        self._unsent = memoryview(bytes(self._unsent) + msgpack.packb([self._tag, entries, option]))
        self._sequence = batch.sequence
        return []

    @override
    def pump(self) -> list[Answer]:
        answers = super().pump()
        if not self._acknowledged and not self._unsent and self._sequence is not None:
            answers = [Acked(self._sequence)]
            self._sequence = None
        return answers

    @override
    def close(self) -> None:
        super().close()
        self._sequence = None

    @override
    def _reader(self) -> Answers:
        return _ChunkReader(f"{self._sender}-")

    @override
    def _opened(self) -> "_socket.socket | None":
        """Connect; only this thread waits for it."""
        if isinstance(self._address, str):
            return super()._opened()
        self.is_absent = True
        try:
            found = unpatched.resolve(*self._address)
        except OSError as error:
            self._note(error)
            return None
        failure: OSError | None = None
        for family, address in found:
            attempt = unpatched.stream_socket(family)
            try:
                attempt.settimeout(_CONNECT_S)
                attempt.connect(address)
            except OSError as error:
                failure = error
                attempt.close()
                continue
            attempt.setblocking(False)
            attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.is_absent = False
            return attempt
        self._note(failure)
        return None

    def _note(self, error: OSError | None) -> None:
        reason = "the name has no address" if error is None else error.strerror or error
        self.trouble = f"{self.peer} cannot be reached ({reason})"


class _ChunkReader:
    """Cuts an agent's bytes into acknowledged chunks."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._unpacker = msgpack.Unpacker(max_buffer_size=ANSWER_BYTES_MAX)

    def feed(self, data: bytes) -> list[Answer]:
        """Add bytes; returns the answers that they complete.

        Raises:
            RemoteProtocolError: Not an answer.
        """
        try:
            self._unpacker.feed(data)
            found = list(self._unpacker)
        except (ValueError, msgpack.exceptions.UnpackException):
            raise RemoteProtocolError("the agent's answer is not msgpack") from None
        answers: list[Answer] = []
        for message in found:
            chunk = message.get("ack") if isinstance(message, dict) else None
            text = chunk.decode("utf-8", "replace") if isinstance(chunk, bytes) else chunk
            if not isinstance(text, str):
                raise RemoteProtocolError("the agent's answer names no chunk")
            number = text.removeprefix(self._prefix)
            if number != text and number.isdecimal():
                answers.append(Acked(int(number)))
        return answers


def encode_entry(record: dict[str, Any]) -> bytes:
    """A log record's JSON object as an entry of a forward message."""
    time = msgpack.ExtType(0, _EVENT_TIME.pack(*divmod(record["time_unix_nano"], 10**9)))
    fields: dict[str, Any] = {"message": record["body"], "level": record["severity_text"]}
    if "scope" in record:
        fields["logger"] = record["scope"]
    for name in ("trace_id", "span_id"):
        if name in record:
            fields[name] = record[name]
    fields |= {**record.get("context", {}), **record.get("attributes", {})}
    packed: bytes = msgpack.packb([time, fields], unicode_errors="replace")
    return packed

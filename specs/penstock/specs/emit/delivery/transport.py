r"""Transports of batches: the collector's Unix socket, or a stream such as standard output.

Over the collector's socket both directions carry frames: a length, unsigned 32-bit big-endian, then
that many bytes.

    emitter to collector, one batch a frame:
        {"batch":1,"sender":"<its id>","seq":7,"count":2,"resource":{...},
         "dropped":{"log":{"queue_full":3}},
         "account":{"emitted":45,"acked":40,"queued":0,"spooled":0},"codec":"none"}\n
        <record line>\n<record line>

    collector to emitter:
        {"ack":7}                                   the batch is durable
        {"nack":7,"reason":"...","retry":true}      it was not taken

``sender`` is new with every emitter, also when its ``service.instance.id`` is not. ``seq`` counts a
sender's batches from 1 without gaps and stays the same when a batch is sent again.
``dropped`` and ``account`` count since the sender started, all kinds together in the latter:
``emitted`` = ``acked`` + all of ``dropped`` + ``queued`` + ``spooled`` + ``count``. Record
lines leave ``resource`` out when it is the header's. Version 1; the length prefix and the keys
shown may never change.
"""

import json
import os
import random
import select
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from typing_extensions import override

from penstock.specs.emit.delivery import unpatched
from penstock.specs.emit.delivery.core import Acked, Batch, Nacked
from penstock.specs.emit.delivery.queue import line_of
from penstock.specs.errors import SpecError
from penstock.specs.limits import KIB

jitter: Final = random.SystemRandom().random
"""Draws what of a wait chance decides, from 0 to 1."""

if TYPE_CHECKING:
    import _socket

Answer = Acked | Nacked


@dataclass(frozen=True, slots=True)
class Report:
    """What a sender says of its records with each batch, since it started.

    Attributes:
        dropped: Records given up, by kind and reason.
        emitted: Records offered to it, of all kinds.
        acked: Records that the receiver acknowledged.
        queued: Records that wait in memory, without those in flight.
        spooled: Records that wait in a file, without those in flight.
    """

    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    emitted: int = 0
    acked: int = 0
    queued: int = 0
    spooled: int = 0


_READ_BYTES: Final = 64 * 1024
BATCH_VERSION: Final = 1
ANSWER_BYTES_MAX: Final = 64 * KIB
_LENGTH: Final = struct.Struct(">I")


class Link:
    """One way out for batches. Only the flusher thread touches it.

    As it stands it is always connected, and has nothing to wait for.

    Attributes:
        is_absent: Whether nobody was there when `connect` looked last; who is there may be busy.
        peer: Name and address of the receiver of batches.
        trouble: Last error, for people.
        advice: Fix of that error.
    """

    is_absent: bool = False
    peer: str = ""
    trouble: str = ""
    advice: str = ""

    def connect(self) -> bool:
        """Connect again, forgetting what was under way; False when nobody is there."""
        return True

    def send(self, batch: Batch, report: Report) -> list[Answer]:
        """Take a batch to be written; returns answers that are there at once."""
        raise NotImplementedError

    def interest(self) -> tuple[int, int] | None:
        """File descriptor and poll mask to wait for; None when there is nothing to wait for."""
        return None

    def pump(self) -> list[Answer]:
        """Write and read what is possible without waiting.

        Raises:
            OSError: The connection is over.
            SpecError: The peer does not speak the protocol.
        """
        return []

    def close(self) -> None:
        """Forget the connection."""


class Answers(Protocol):
    """Cuts the bytes that a peer sends into answers."""

    def feed(self, data: bytes) -> list[Answer]:
        """Add bytes; returns the answers that they complete."""
        ...


class SocketLink(Link):
    """The collector's Unix stream socket; nothing here ever waits."""

    advice = (
        "Start the collector, or name its socket in PENSTOCK_SOCKET; specs.doctor() tells more."
    )

    def __init__(self, path: str, sender: str, resource_json: bytes) -> None:
        self._path = path
        self.peer = f"the collector at {path}"
        self._sender = sender
        self._resource_json = resource_json
        self._socket: _socket.socket | None = None
        self._unsent = memoryview(b"")
        self._answers: Answers = AnswerReader()

    @override
    def connect(self) -> bool:
        self.close()
        self._socket = self._opened()
        self._answers = self._reader()
        return self._socket is not None

    @override
    def send(self, batch: Batch, report: Report) -> list[Answer]:
        lines = list(map(line_of, batch.records))
        frame = encode_batch(self._sender, batch.sequence, lines, self._resource_json, report)
        self._unsent = memoryview(bytes(self._unsent) + frame)
        return []

    def _opened(self) -> "_socket.socket | None":
        attempt = unpatched.stream_socket(socket.AF_UNIX)
        attempt.setblocking(False)
        try:
            # A Unix socket connects at once, or fails: with EAGAIN when the listener is busy.
            attempt.connect(self._path)
        except OSError as error:
            self.is_absent = not isinstance(error, BlockingIOError)
            reason = error.strerror or error
            self.trouble = (
                f"{self.peer} cannot be reached ({reason})"
                if self.is_absent
                else f"{self.peer} is busy: it accepts no connection now"
            )
            attempt.close()
            return None
        self.is_absent = False
        return attempt

    def _reader(self) -> Answers:
        return AnswerReader()

    @override
    def interest(self) -> tuple[int, int] | None:
        if self._socket is None:
            return None
        return self._socket.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0)

    @override
    def pump(self) -> list[Answer]:
        if self._socket is None:
            return []
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass  # the rest when the socket has room again
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("the collector closed the connection")
        return self._answers.feed(data)

    @override
    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._unsent = memoryview(b"")


class StreamLink(Link):
    """Self-contained lines to a file descriptor; a batch is answered once it is written.

    Writing may wait, which holds up the flusher thread only. `render` makes something else of each
    line, for people.
    """

    def __init__(
        self, descriptor: int, resource_json: bytes, render: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._descriptor = descriptor
        self.peer = "standard output" if descriptor == 1 else f"file descriptor {descriptor}"
        self._resource_json = resource_json
        self._end = b',"resource":%b}' % resource_json
        self._render = render
        if render is None:
            # Applications with a collector need nothing of the validator.
            from penstock.specs.validate.validator import attach

            self._attach = attach

    @override
    def send(self, batch: Batch, report: Report) -> list[Answer]:
        render = self._render or self._whole
        # Most lines can be given their resource without a look at what they hold.
        lines = [
            line[:-1] + self._end
            if self._render is None and b"resource" not in line and b"\\u" not in line
            else render(line)
            for line in map(line_of, batch.records)
        ]
        unsent = memoryview(b"\n".join(lines) + b"\n")
        try:
            while unsent:
                unsent = unsent[self._write(unsent) :]
        except OSError as error:
            # Nobody reads any more, and part of it may have been read: not again.
            self.trouble = f"{self.peer} cannot be written to ({error.strerror or error})"
            return [Nacked(batch.sequence, retry=False, jitter=0.0)]
        return [Acked(batch.sequence)]

    def _whole(self, line: bytes) -> bytes:
        return self._attach(line, self._resource_json)

    def _write(self, data: memoryview) -> int:
        """Write some of it, also to a descriptor that others made non-blocking."""
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            poll = unpatched.poll()
            poll.register(self._descriptor, select.POLLOUT)
            poll.poll()
            return 0


class RemoteProtocolError(SpecError):
    """The collector sent something that is not an answer; the connection must be given up."""


def encode_batch(
    sender: str,
    sequence: int,
    lines: Sequence[bytes],
    resource_json: bytes,
    report: Report,
) -> bytes:
    """One batch as a frame."""
    header = (
        b'{"batch":%d,"sender":%b,"seq":%d,"count":%d,"resource":%b,"dropped":%b,'
        b'"account":{"emitted":%d,"acked":%d,"queued":%d,"spooled":%d},"codec":"none"}'
        % (
            BATCH_VERSION,
            json.dumps(sender).encode(),
            sequence,
            len(lines),
            resource_json,
            json.dumps(report.dropped, separators=(",", ":")).encode(),
            report.emitted,
            report.acked,
            report.queued,
            report.spooled,
        )
    )
    body = b"\n".join((header, *lines))
    return _LENGTH.pack(len(body)) + body


class AnswerReader:
    """Cuts the collector's bytes into answers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Answer]:
        """Add bytes; returns the answers that they complete.

        Raises:
            RemoteProtocolError: Not an answer, or one longer than any answer can be.
        """
        self._buffer += data
        answers: list[Answer] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > ANSWER_BYTES_MAX:
                raise RemoteProtocolError("answer too long")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            answers.append(_answer(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return answers


def _answer(body: bytes) -> Answer:
    try:
        message: Any = json.loads(body)
    except ValueError:
        raise RemoteProtocolError("answer is not JSON") from None
    if isinstance(message, dict):
        ack, nack = message.get("ack"), message.get("nack")
        if isinstance(ack, int):
            return Acked(ack)
        if isinstance(nack, int):
            return Nacked(nack, retry=message.get("retry") is True, jitter=jitter())
    raise RemoteProtocolError("neither ack nor nack")


LINK_ERRORS: Final = (OSError, SpecError)

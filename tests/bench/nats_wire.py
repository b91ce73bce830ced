"""A blocking NATS connection with nothing between the caller and the socket.

The same code talks to both systems: it publishes bytes that were made before, and counts answers by
looking for them, not by parsing each.
"""

import json
import select
import socket
from typing import Any, Final
from urllib.parse import urlsplit

_INBOX: Final = b"_INBOX.bench"

_OPTIONS: Final = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
_READ_SIZE: Final = 1024 * 1024


class Connection:
    """Connected and known to the server; with a timeout, every read and write has it."""

    def __init__(self, url: str, *, timeout_s: float | None = None) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self.socket = socket.create_connection((address.hostname, address.port or 4222), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(2 * _READ_SIZE)
        self._view = memoryview(self._buffer)
        self._held = 0
        self._requests = 0
        self.send(b"CONNECT %b\r\n" % json.dumps(_OPTIONS).encode())
        self.flush()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        self.socket.sendall(data)

    def subscribe(self, subject: bytes) -> None:
        """Subscribe, and wait until the server knows."""
        self.send(b"SUB %b 1\r\n" % subject)
        self.flush()

    def flush(self) -> None:
        """Wait until the server has processed everything sent; what arrives meanwhile is lost."""
        self.send(b"PING\r\n")
        while b"PONG\r\n" not in self.lines():
            pass

    def pongs(self, *, wait: bool = False) -> int:
        """PINGs answered since the last time; with `wait`, once something has come."""
        if not wait and not select.select([self.socket], [], [], 0)[0]:
            return 0
        return self.lines().count(b"PONG\r\n")

    def lines(self) -> bytes:
        """What one read brings, up to its last line end; the server's PINGs are answered.

        Raises:
            ConnectionError: The server closed the connection, or refused something.
        """
        count = self.socket.recv_into(self._view[self._held :])
        if count == 0:
            raise ConnectionError("the server closed the connection")
        end = self._held + count
        stop = self._buffer.rfind(b"\r\n", 0, end) + 2
        if stop < 2:
            assert end < len(self._buffer), "a line longer than any this bench asks for"
            self._held = end
            return b""
        found, rest = bytes(self._view[:stop]), bytes(self._view[stop:end])
        self._view[: len(rest)] = rest
        self._held = len(rest)
        if b"PING\r\n" in found:
            self.send(b"PONG\r\n")
        if b"-ERR" in found:
            raise ConnectionError(f"the server says {found[found.find(b'-ERR') :][:100]!r}")
        return found

    def request(self, subject: str, document: dict[str, Any]) -> dict[str, Any]:
        """Ask a JetStream API.

        Raises:
            ConnectionError: It answered with an error.
        """
        self._requests += 1
        body = json.dumps(document).encode() if document else b""
        reply = b"_INBOX.api%d" % self._requests
        head = b"SUB %b 9%d\r\nPUB %b %b %d\r\n" % (
            reply, self._requests, subject.encode(), reply, len(body),
        )  # fmt: skip
        self.send(b"%b%b\r\nUNSUB 9%d 1\r\n" % (head, body, self._requests))
        received = b""
        while True:
            received += self.lines()
            start = received.find(b"MSG %b " % reply)
            line_end = received.find(b"\r\n", start)
            if start < 0 or line_end < 0:
                continue
            size = int(received[start:line_end].rsplit(b" ", 1)[1])
            if len(received) >= line_end + 2 + size + 2:
                break
        answer: dict[str, Any] = json.loads(received[line_end + 2 : line_end + 2 + size])
        if "error" in answer:
            raise ConnectionError(f"{subject}: {answer['error']}")
        return answer


def inbox(number: int) -> bytes:
    """Where one publisher wants all its answers; they come in order."""
    return b"%b%d" % (_INBOX, number)


class Answers:
    """Counts the answers of one publisher.

    Attributes:
        count: Answers so far.
        refused: Those that were errors, or no answer but the word that nobody listens.
        first_refusal: The first of them, shortened.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._begin = b"MSG %b " % inbox(number)
        self.count = 0
        self.refused = 0
        self.first_refusal = ""
        connection.subscribe(inbox(number))

    def wait(self) -> int:
        """Wait for one read; returns how many answers it brought.

        Raises:
            ConnectionError: Nothing came for as long as the connection waits.
        """
        try:
            data = self._connection.lines()
        except TimeoutError as error:
            waited_s = self._connection.socket.gettimeout()
            text = f"no answer for {waited_s:.0f} s after {self.count:,} answers"
            raise ConnectionError(text) from error
        new = data.count(self._begin)
        refused = data.count(b'"error"') + data.count(b"HMSG ")
        if refused and not self.refused:
            self.first_refusal = data[:300].decode(errors="replace")
        self.count += new
        self.refused += refused
        return new

"""An HTTP door in front of a destination that lets requests through, or spoils them as told.

The destination behind it is a `Backend`: a fake of a product, or a real one by `Proxy`.
"""

import http.client
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Protocol
from urllib.parse import urlsplit

from typing_extensions import override


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; header names are lower case. `connection` is its client's port."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    method: str = "POST"
    connection: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer; `size` is what HEAD tells of a body that it does not send."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    size: int = 0


class Backend(Protocol):
    """What is behind the door."""

    def handle(self, asked: Asked) -> Answered:
        """Answer a request."""
        ...


class Proxy(Backend):
    """A real server."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc

    @override
    def handle(self, asked: Asked) -> Answered:
        connection = http.client.HTTPConnection(self._host, timeout=20)
        left_out = ("host", "content-length", "connection", "transfer-encoding")
        headers = {name: value for name, value in asked.headers.items() if name not in left_out}
        connection.request(asked.method, asked.path, body=asked.body, headers=headers)
        answer = connection.getresponse()
        headers = {
            name: value for name, value in answer.getheaders() if name.lower() in _TOLD_BY_PROXY
        }
        body = answer.read()
        connection.close()
        size = answer.getheader("Content-Length") if asked.method == "HEAD" else None
        return Answered(answer.status, body, headers, int(size or 0))


_TOLD_BY_PROXY: Final = ("content-range", "etag", "last-modified")

RESET: Final = Answered(0)
"""A rule's answer: the connection is reset."""

GONE: Final = Answered(-1)
"""A rule's or fault's answer: the connection is closed without a word, as idle ones are."""

Fault = Callable[[Asked, Backend], Answered | None]
"""Answers in the destination's place; None resets the connection."""


def says(status: int, body: bytes = b"", **headers: str) -> Fault:
    """The destination sees nothing of it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda asked, backend: Answered(status, body, named)


def resets_after_taking(asked: Asked, backend: Backend) -> None:
    """The worst one: it is there, and nobody says so."""
    backend.handle(asked)


class FaultDoor:
    """Listens on a port of its own, or on one that is given.

    Attributes:
        faults: What becomes of the next requests, one each; then they are let through.
        rule: Looked at for requests that no fault is for; None lets them through.
        asked: Every request, in order.
        hung: Set to let hanging requests go.
        closing: Called when the door closes, so that no connection outlives its test.
    """

    def __init__(self, backend: Backend, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.backend = backend
        self.faults: deque[Fault] = deque()
        self.rule: Callable[[Asked], Answered | None] = lambda asked: None
        self.asked: list[Asked] = []
        self.hung = threading.Event()
        self.closing: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                door.answer(self)

            do_PUT = do_GET = do_HEAD = do_DELETE = do_POST  # noqa: N815 - as the library names them

            @override
            def log_message(self, format: str, *args: object) -> None:
                """Tests look at `asked` instead."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            @override
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that went away is what these tests are about."""

        self._server = Server((host, port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """Of the door."""
        return f"http://{self.address}"

    def close(self) -> None:
        """Stop listening."""
        for close in self.closing:
            close()
        self.hung.set()
        self._server.shutdown()
        self._server.server_close()

    def hangs(self, asked: Asked, backend: Backend) -> None:
        """A fault: no answer for as long as the test lasts."""
        self.hung.wait(60)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Handle one request."""
        body = _body_of(handler)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = Asked(handler.path, headers, body, handler.command, handler.client_address[1])
        with self._lock:
            self.asked.append(asked)
            fault = self.faults.popleft() if self.faults else None
        if fault is not None:
            found = fault(asked, self.backend)
        else:
            found = self.rule(asked) or self.backend.handle(asked)
        if found is None or found is RESET:
            self._reset(handler.connection)
            handler.close_connection = True
            return
        if found is GONE:
            handler.close_connection = True
            return
        handler.send_response(found.status)
        for name, value in found.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(found.size or len(found.body)))
        handler.end_headers()
        handler.wfile.write(found.body)

    def _reset(self, connection: socket.socket) -> None:
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()


def _body_of(handler: BaseHTTPRequestHandler) -> bytes:
    """A request's body, of a length that is told or in chunks."""
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    body = b""
    while size := int(handler.rfile.readline().partition(b";")[0], 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        pass  # trailers
    return body

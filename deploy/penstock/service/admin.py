"""The admin endpoint of a process: `/livez`, `/healthz`, `/metrics` and `/status` over HTTP.

It runs in its own thread, so it answers while the process's main loop is busy; the health it
reports is what the process last said of itself. `/healthz` is 200 when the process is ready or
degraded, 503 otherwise; its body is the same JSON as `/status`, without the stages. `/livez` is 200
whenever the process can say how it is, whatever it says: to start it again would not help. It is
for probes that kill what fails them.

Where callers must be known, `/healthz` says to others no more than the health, for a probe has no
secrets; the rest is 401, or 403 to whom it is not for. Connections are bounded in number and in
time, TLS handshakes included; each has a thread of its own, so that a slow one holds up no other.
When there are too many, one that has asked for nothing yet makes room for the next.
"""

import errno
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.base.errors import UnavailableError
from penstock.base.sockets import connections_within
from penstock.service.config import join_host_port, split_host_port
from penstock.service.host_guard import HostGuard

FINAL_STATUS = "final status"
"""The event under which `AdminServer.close` logs the last status."""

CONNECTIONS_MAX: Final = 64
"""Connections at a time, each with a thread. Beyond that the first goes that has asked for nothing
yet; when all have asked, the new one does."""

_OPEN_FILES_PART: Final = 8
"""Where few files may be open, connections are at most the limit divided by this."""

WHOLE_S: Final = 30.0
"""Seconds a connection may take from its beginning to its end."""

_SILENCE_S: Final = 10.0
"""Seconds of them without a byte."""

_ACCEPT_PAUSE_S: Final = 0.1
"""Without a descriptor for a new connection."""

_BODY_BYTES_MAX: Final = 16 * 1024
_VISITOR: Final = "penstock.visitor"
_PROBED: Final = ("/livez", "/healthz")
"""A probe has no secrets: these answer everybody."""


class Health(StrEnum):
    """What a process says of itself, true to delivery: `DEGRADED` works but something is wrong."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a process's data path, counted in records since the process started.

    Attributes:
        name: What the step is, unique in the process, as in ``stream/logs`` or ``sink/parquet``.
        received: Records that came in.
        sent: Records that went out.
        lag: Records (or, where `unit` says so, bytes) waiting in this step.
        errors: Records refused, failed or dropped; `detail` says which and why.
        detail: Further counters by name.
    """

    name: str
    received: int = 0
    sent: int = 0
    lag: int = 0
    errors: int = 0
    detail: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """A process's own account of itself, as `/status` returns it."""

    component: str
    name: str
    version: str
    health: Health
    reasons: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Visitor:
    """What a request shows of who makes it.

    Attributes:
        authorization: The header; empty without one.
        certificate: Of the connection, verified, in DER; None without one.
        peer: The other side's address.
    """

    authorization: str
    certificate: bytes | None
    peer: str

    @property
    def shows_something(self) -> bool:
        """Whether it says who it is."""
        return bool(self.authorization) or self.certificate is not None


class Admission(StrEnum):
    """What somebody may see."""

    ALL = "all"
    UNKNOWN = "unknown"
    """The health: nobody knows who asks."""

    FORBIDDEN = "forbidden"
    """The health: it is known who asks, and that they may not see the rest."""


Admit = Callable[[Visitor], Admission]
"""Says what somebody may see. Called on the threads of connections, and does not wait."""

Action = Callable[[Visitor, bytes], tuple[str, Mapping[str, Any]]]
"""Does what the body of a POST asks for; returns the status line and a document. It decides itself
who may. Called on the threads of connections, and does not wait."""

TlsSource = Callable[[], ssl.SSLContext]
"""Gives the context for a new connection."""


@dataclass(slots=True, eq=False)
class _Guest:
    """A connection.

    Attributes:
        connection: With TLS, once that was begun.
        since_s: When it came.
        asks: Whether its request is there.
        leaves: Whether it was closed for another.
    """

    connection: socket.socket
    since_s: float
    asks: bool = False
    leaves: bool = False

    def cut_off(self) -> None:
        """End it; its thread notices."""
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)  # an SSLSocket forgets TLS


class _QuietHandler(WSGIRequestHandler):
    @override
    def get_environ(self) -> WSGIEnvironment:
        environ = super().get_environ()
        connection = self.connection
        assert isinstance(self.server, _ThreadingServer)
        self.server.note_request(connection)
        certificate = (
            connection.getpeercert(binary_form=True)
            if isinstance(connection, ssl.SSLSocket)
            else None
        )
        peer = "{}:{}".format(*self.client_address[:2])
        environ[_VISITOR] = Visitor(self.headers.get("Authorization", ""), certificate, peer)
        return environ

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: a probe every second would drown the log."""


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which there are few, and none for long."""

    daemon_threads = True
    tls: TlsSource | None = None
    whole_s = WHOLE_S

    def __init__(self, *args: Any) -> None:
        self._guests: dict[socket.socket, _Guest] = {}  # in the order in which they came
        self._connections_max = connections_within(CONNECTIONS_MAX, part=_OPEN_FILES_PART)
        self._lock = threading.Lock()
        self._paused = threading.Event()  # never set
        self._clock = SystemClock()
        super().__init__(*args)

    @override
    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept; without a descriptor for it, try again after a while and not at once."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._paused.wait(_ACCEPT_PAUSE_S)
            raise

    @override
    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            staying = [guest for guest in self._guests.values() if not guest.leaves]
            if len(self._guests) - len(staying) >= self._connections_max:
                return False  # as many were closed for others, and their threads have not ended
            if len(staying) >= self._connections_max:
                idle = next((guest for guest in staying if not guest.asks), None)
                if idle is None:
                    return False
                idle.leaves = True
                idle.cut_off()
            self._guests[request] = _Guest(request, self._clock.monotonic_ns() / 1e9)
        return True

    @override
    def shutdown_request(self, request: Any) -> None:
        """A connection is over; also one that got no thread."""
        with self._lock:
            self._guests.pop(request, None)
        super().shutdown_request(request)

    @override
    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(_SILENCE_S)
        if self.tls is None:
            super().finish_request(request, client_address)
        else:
            with self._secured(request, self.tls()) as secured:
                secured.do_handshake()
                super().finish_request(secured, client_address)

    def _secured(self, request: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        with self._lock:  # what is to be cut off changes
            secured = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            self._guests[request].connection = secured
        return secured

    def note_request(self, connection: socket.socket) -> None:
        """A connection's request is there; it is answered, whoever comes."""
        with self._lock:
            for guest in self._guests.values():
                if guest.connection is connection:
                    guest.asks = True

    @override
    def service_actions(self) -> None:
        """Cut off what takes too long; called every 0.1 s."""
        now_s = self._clock.monotonic_ns() / 1e9
        with self._lock:
            for guest in self._guests.values():
                if now_s - guest.since_s > self.whole_s:
                    guest.cut_off()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke, or shook no hands, is nobody's concern."""
        if not isinstance(sys.exception(), OSError):
            structlog.get_logger().exception("admin request failed")


class AdminServer:
    """Serves one process's health, metrics and status until it is closed.

    Args:
        status: The process's account of itself.
        registry: Its metrics.
        tls: With it only TLS is served.
        admit: Says who may see more than the health; None: everybody.
        actions: What may be done, by path.
        hosts: Names by which it may be called, besides addresses and the machine's own. With TLS
            any: a page of another site would have to show a certificate.
        whole_s: Seconds that a connection may take in all.
    """

    def __init__(  # noqa: PLR0913 - what it shows, to whom, and for how long
        self,
        status: Callable[[], Status],
        registry: CollectorRegistry,
        *,
        tls: TlsSource | None = None,
        admit: Admit | None = None,
        actions: Mapping[str, Action] | None = None,
        hosts: Iterable[str] = (),
        whole_s: float = WHOLE_S,
    ) -> None:
        self._whole_s = whole_s
        self._actions = actions or {}
        self._guard = HostGuard(hosts) if tls is None else None
        self._status = status
        self._tls = tls
        self._admit = admit
        self._metrics = make_wsgi_app(registry)
        self._server: WSGIServer | None = None

    def start(self, address: str) -> str:
        """Listen on `address` (a `HostPort`) and return the address with the port in use.

        Raises:
            UnavailableError: The address cannot be listened on.
        """
        host, port = split_host_port(address)
        try:
            server = make_server(
                host, port, self._guarded, _ThreadingServer, handler_class=_QuietHandler
            )
            server.tls = self._tls
            server.whole_s = self._whole_s
            self._server = server
        except OSError as error:
            raise UnavailableError(
                f"admin endpoint: cannot listen on {address}: {error.strerror}",
                fix="stop what uses the port, or set another with the key `admin`",
            ) from None
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return join_host_port(host, self._server.server_port)

    def close(self, *, quietly: bool = False) -> None:
        """Stop listening, and log the last status, unless `quietly`: what this process did."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            if quietly:
                return
            structlog.get_logger().info(FINAL_STATUS, status=asdict(self._status()))

    def _guarded(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        called, origin = environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN", "")
        if self._guard is not None and not self._guard.allows(called, origin):
            words = "that is not a name of this endpoint: add it to the key `admin_hosts`"
            return _json(start, "421 Misdirected Request", {"error": words})
        return self._answer(environ, start)

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path in self._actions:
            return self._act(self._actions[path], environ, start)
        admission = self._admission(environ[_VISITOR], path)
        probed = path in _PROBED
        if not probed and admission is not Admission.ALL:
            return _turned_away(start, admission)
        if path == "/metrics":
            body: Iterable[bytes] = self._metrics(environ, start)
            return body
        if path not in (*_PROBED, "/status"):
            known = [*_PROBED, "/metrics", "/status"]
            return _json(start, "404 Not Found", {"paths": known})
        status = asdict(self._status())
        if path == "/status":
            return _json(start, "200 OK", status)
        del status["stages"], status["info"]
        if admission is not Admission.ALL:
            status = {key: status[key] for key in ("component", "health")}
        serving = path == "/livez" or status["health"] in (Health.READY, Health.DEGRADED)
        return _json(start, "200 OK" if serving else "503 Service Unavailable", status)

    def _act(
        self, action: Action, environ: WSGIEnvironment, start: StartResponse
    ) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "POST":
            return _json(start, "405 Method Not Allowed", {"error": "only POST"})
        length = environ.get("CONTENT_LENGTH") or "0"
        if not length.isascii() or not length.isdigit() or int(length) > _BODY_BYTES_MAX:
            return _json(start, "413 Content Too Large", {"error": f"over {_BODY_BYTES_MAX} bytes"})
        status, document = action(environ[_VISITOR], environ["wsgi.input"].read(int(length)))
        return _json(start, status, document)

    def _admission(self, visitor: Visitor, path: str) -> Admission:
        """What whoever asks may see; a probe that shows nothing is not known."""
        if self._admit is None:
            return Admission.ALL
        if path in _PROBED and not visitor.shows_something:
            return Admission.UNKNOWN
        return self._admit(visitor)


def _turned_away(start: StartResponse, admission: Admission) -> list[bytes]:
    if admission is Admission.FORBIDDEN:
        return _json(start, "403 Forbidden", {"error": "it is known who you are: not for you"})
    words = {"error": "say who you are: a client certificate, or Authorization: Bearer ..."}
    return _json(start, "401 Unauthorized", words, ("WWW-Authenticate", "Bearer"))


def _json(
    start: StartResponse, status: str, body: Mapping[str, Any], *headers: tuple[str, str]
) -> list[bytes]:
    data = json.dumps(body).encode()
    head = [("Content-Type", "application/json"), ("Content-Length", str(len(data))), *headers]
    start(status, head)
    return [data]

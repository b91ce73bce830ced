"""The admin endpoint of a process (`/livez`, `/healthz`, `/metrics`, `/status`) and its host names.

It has an event loop in its own thread, so it answers while the process's main loop is busy;
the health it reports is what the process last said of itself. `/healthz` is 200 when the process is
ready or degraded, 503 otherwise; its body is the same JSON as `/status`, without the stages.
`/livez` is 200 whenever the process can say how it is, whatever it says: to start it again would
not help. It is for probes that kill what fails them.

Where callers must be known, `/healthz` says to others no more than the health, for a probe has no
secrets; the rest is 401, or 403 to whom it is not for. Connections are those of
`penstock.base.http.server`, each for one request; each request is answered on its own thread,
so that a slow one holds up no other.

By which names an HTTP endpoint may be called: a guard against DNS rebinding.

A page of another site that has its name resolve to this machine calls the endpoint by that name,
and a browser lets it read the answer. Such a name is one of the public DNS, so it has a dot. An
address, and a name without a dot, cannot be an attacker's.
"""

import asyncio
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

import structlog

from penstock.base.clock import unix_ns
from penstock.base.errors import UnavailableError
from penstock.base.http.server import (
    HttpServer,
    Peer,
    Request,
    RequestLimits,
    Response,
    ServerLimits,
    Unread,
)
from penstock.base.sockets import connections_within, join_host_port, split_host_port
from penstock.service.process import LoopFailures

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class HostGuard:
    """Looks at the headers `Host` and `Origin` of requests. Any thread.

    Args:
        names: Further names by which the endpoint may be called.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_host_of(name) for name in names}
        self._lock = threading.Lock()
        self._own: str | None = None

    def allows(self, host: str, origin: str = "") -> bool:
        """Return whether a request may be answered.

        Args:
            host: Its header `Host`; empty: it has none, as from a client that is no browser.
            origin: Its header `Origin`, which must be the endpoint's own; empty: it has none.
        """
        if origin and origin.partition("://")[2].lower() != host.lower():
            return False
        name = _host_of(host)
        return "." not in name or _is_address(name) or name in self._names or self._is_own(name)

    def _is_own(self, name: str) -> bool:
        """Return whether it is, or begins, this machine's name: `logd-0.logd` of a pod."""
        with self._lock:
            if self._own is None:
                self._own = socket.getfqdn().lower()
            return f"{self._own}.".startswith(f"{name}.")


def _host_of(called: str) -> str:
    """The host of `HOST`, `HOST:PORT` or `[IPv6]:PORT`, in lower case."""
    called = called.strip().lower()
    if called.startswith("["):
        return called.partition("]")[0].removeprefix("[")
    return called.partition(":")[0].removesuffix(".") if called.count(":") <= 1 else called


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


FINAL_STATUS = "final_status"
"""The event under which `AdminServer.close` logs the last status."""

CONNECTIONS_MAX: Final = 64
"""Connections at a time, each for one request, and that with a thread."""

_OPEN_FILES_PART: Final = 8
"""Divisor of the limit of open files: connections may use no larger part of a small one."""

WHOLE_S: Final = 30.0
"""Seconds a connection may take from its beginning to its end."""

_SILENCE_S: Final = 10.0
"""Seconds of them for TLS to begin, and until a request's first byte."""

_HEAD_BYTES_MAX: Final = 64 * 1024
_BODY_BYTES_MAX: Final = 64 * 1024
_PROBED: Final = ("/livez", "/healthz")
"""A probe has no secrets: these answer everybody."""


class Health(StrEnum):
    """A process's health: `DEGRADED` works, but something is wrong."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a process's data path, counted in records since the process started.

    Attributes:
        name: Name of the step, unique in the process, as in ``stream/logs`` or ``sink/parquet``.
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


_STARTED_MS: Final = unix_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Status:
    """A process's own account of itself, as `/status` returns it.

    Attributes:
        started_ms: Unix time in milliseconds at which the process started; its counts began then.
    """

    component: str
    name: str
    version: str
    health: Health
    reasons: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    started_ms: int = _STARTED_MS


@dataclass(frozen=True, slots=True)
class Requester:
    """The client of a request, as far as the request shows it.

    Attributes:
        authorization: The header; empty without one.
        certificate: The connection's verified certificate, in DER; None without one.
        peer: The other side's address.
    """

    authorization: str
    certificate: bytes | None
    peer: str

    @property
    def shows_something(self) -> bool:
        """True if the client has credentials."""
        return bool(self.authorization) or self.certificate is not None


class Authorization(StrEnum):
    """The rights of a client."""

    ALL = "all"
    UNKNOWN = "unknown"
    """The health: nobody knows who asks."""

    FORBIDDEN = "forbidden"
    """The health: it is known who asks, and that they may not see the rest."""


Authorize = Callable[[Requester], Authorization]
"""Says what somebody may see. Called on the threads of connections, and does not wait."""

Action = Callable[[Requester, bytes], tuple[str, Mapping[str, Any]]]
"""Does what the body of a POST asks for; returns the status line and a document. Called on the
request's own thread."""

TlsSource = Callable[[], ssl.SSLContext]
"""Gives the context for a new connection."""


Value = TypeVar("Value")


class AdminServer:
    """Serves one process's health, metrics and status until it is closed.

    Args:
        status: The process's account of itself.
        registry: Its metrics, or what returns them as they are scraped for the first time.
        probe: The same account without stages and `info`, for the probes; None: it costs nothing to
            leave them out of `status`.
        tls: TLS; only TLS is served then.
        admit: Says who may see more than the health; None: everybody.
        actions: Actions by path, each of which decides itself who may.
        queries: The same by path, for everybody who may see more than the health.
        hosts: Names by which it may be called, besides addresses and the machine's own. With TLS
            any: a page of another site would have to show a certificate.
        whole_s: Seconds that a connection may take in all.
    """

    def __init__(  # noqa: PLR0913 - what it shows, to whom, and for how long
        self,
        status: Callable[[], Status],
        registry: "CollectorRegistry | Callable[[], CollectorRegistry]",
        *,
        probe: Callable[[], Status] | None = None,
        tls: TlsSource | None = None,
        admit: Authorize | None = None,
        actions: Mapping[str, Action] | None = None,
        queries: Mapping[str, Action] | None = None,
        hosts: Iterable[str] = (),
        whole_s: float = WHOLE_S,
    ) -> None:
        self._whole_s = whole_s
        self._actions = actions or {}
        self._queries = queries or {}
        self._guard = HostGuard(hosts) if tls is None else None
        self._status = status
        self._probe = probe or status
        self._tls = tls
        self._admit = admit
        self._registry = registry
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: HttpServer | None = None

    def start(self, address: str) -> str:
        """Listen on `address` (a `HostPort`) and return the address with the port in use.

        Raises:
            UnavailableError: The address cannot be listened on.
        """
        host, port = split_host_port(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = HttpServer(self._handle, _limits(self._whole_s), tls=self._tls)
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(LoopFailures())
        threading.Thread(target=_run, args=(loop,), name="admin", daemon=True).start()
        listening = asyncio.run_coroutine_threadsafe(server.listen(host, port, family=family), loop)
        try:
            port = listening.result()
        except OSError as error:
            loop.call_soon_threadsafe(loop.stop)
            raise UnavailableError(
                f"admin endpoint: cannot listen on {address}: {_reason(error)}",
                fix="stop what uses the port, or set another with the key `admin`",
            ) from None
        self._loop, self._server = loop, server
        return join_host_port(host, port)

    def close(self, *, quietly: bool = False) -> None:
        """Stop listening, and log the last status, unless `quietly`: what this process did."""
        if self._loop is not None and self._server is not None:
            asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = self._server = None
            if quietly:
                return
            structlog.get_logger().info("final_status", status=asdict(self._status()))

    async def _handle(self, request: Request, peer: Peer) -> Response:
        """Answer on a thread: what is asked for may take long, and waits for no other."""
        return await _on_a_thread(lambda: self._respond(request, peer))

    def _respond(self, request: Request, peer: Peer) -> Response:
        try:
            found = self._guarded(request, peer)
        except Exception:  # noqa: BLE001 - whatever it is, the process goes on
            structlog.get_logger().exception("request_failed", endpoint="admin", path=request.path)
            found = _json(500, {"error": "the process could not answer; its log says why"})
        return Response(found.status, found.body, {**found.headers, "Connection": "close"})

    def _guarded(self, request: Request, peer: Peer) -> Response:
        called, origin = request.headers.get("host", ""), request.headers.get("origin", "")
        if self._guard is not None and not self._guard.allows(called, origin):
            words = "that is not a name of this endpoint: add it to the key `admin_hosts`"
            return _json(421, {"error": words})
        shown = request.headers.get("authorization", "")
        requester = Requester(shown, peer.certificate, "{}:{}".format(*peer.address[:2]))
        path = unquote(request.path, "latin-1")
        if path in self._actions:
            return _act(self._actions[path], request, requester)
        if path in self._queries:
            admission = self._admission(requester, path)
            if admission is not Authorization.ALL:
                return _turned_away(admission)
            return _act(self._queries[path], request, requester)
        return self._answer(path, request, requester)

    def _answer(self, path: str, request: Request, requester: Requester) -> Response:
        admission = self._admission(requester, path)
        probed = path in _PROBED
        if not probed and admission is not Authorization.ALL:
            return _turned_away(admission)
        if path == "/metrics":
            return self._metrics_for(request)
        if path not in (*_PROBED, "/status"):
            known = [*_PROBED, "/metrics", "/status"]
            return _json(404, {"paths": known})
        if not probed:
            return _json(200, asdict(self._status()))
        status = self._probe()
        shown = {key: getattr(status, key) for key in ("component", "health")}
        if admission is Authorization.ALL:
            shown |= {key: getattr(status, key) for key in ("name", "version", "reasons")}
        serving = path == "/livez" or status.health in (Health.READY, Health.DEGRADED)
        return _json(200 if serving else 503, shown)

    @cached_property
    def _metrics(self) -> Callable[..., Any]:
        """What makes the metrics' text; a process that nobody scrapes does without the library."""
        from prometheus_client.exposition import make_wsgi_app

        return make_wsgi_app(self._registry() if callable(self._registry) else self._registry)

    def _metrics_for(self, request: Request) -> Response:
        """Return the metrics in the requested format, compressed where the client accepts that."""
        environ = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": "/metrics",
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.headers.get("accept", ""),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", ""),
        }
        began: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[..., Any]:
            began.append((status, headers))
            return lambda _: None

        body = b"".join(self._metrics(environ, start))
        ((status, headers),) = began
        return Response(int(status.split()[0]), body, dict(headers))

    def _admission(self, requester: Requester, path: str) -> Authorization:
        """Return the rights of the client; a probe without a token is unauthenticated."""
        if self._admit is None:
            return Authorization.ALL
        if path in _PROBED and not requester.shows_something:
            return Authorization.UNKNOWN
        return self._admit(requester)


def is_this_machine(peer: str) -> bool:
    """Return whether a client's HOST:PORT is of the loopback."""
    host = peer.rpartition(":")[0].partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _act(action: Action, request: Request, requester: Requester) -> Response:
    if request.method != "POST":
        return _json(405, {"error": "only POST"})
    if isinstance(request.body, Unread):
        return _json(413, {"error": f"over {_BODY_BYTES_MAX} bytes"})
    status, document = action(requester, request.body)
    return _json(int(status.split()[0]), document)


def _turned_away(admission: Authorization) -> Response:
    if admission is Authorization.FORBIDDEN:
        return _json(403, {"error": "it is known who you are: not for you"})
    words = {"error": "say who you are: a client certificate, or Authorization: Bearer ..."}
    return _json(401, words, ("WWW-Authenticate", "Bearer"))


def _json(status: int, body: Mapping[str, Any], *headers: tuple[str, str]) -> Response:
    return Response(
        status, json.dumps(body).encode(), {"Content-Type": "application/json", **dict(headers)}
    )


def _limits(whole_s: float) -> ServerLimits:
    request = RequestLimits(
        _BODY_BYTES_MAX, _HEAD_BYTES_MAX, request_s=whole_s, first_byte_s=_SILENCE_S
    )
    return ServerLimits(
        connections_within(CONNECTIONS_MAX, part=_OPEN_FILES_PART),
        connection_s=whole_s,
        handshake_s=_SILENCE_S,
        request=request,
    )


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped. It ends with the process, whatever it does."""
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _on_a_thread(function: Callable[[], Value]) -> Value:
    """Call a function on a thread that no end of the process waits for."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Value] = loop.create_future()

    def settle(value: Value) -> None:
        if not found.done():  # the connection may have ended meanwhile
            found.set_result(value)

    def call() -> None:
        value = function()
        with suppress(RuntimeError):  # the endpoint was closed meanwhile
            loop.call_soon_threadsafe(settle, value)

    threading.Thread(target=call, name="admin request", daemon=True).start()
    return await found


def _reason(error: OSError) -> str:
    """Why; asyncio puts the address into its own text."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)

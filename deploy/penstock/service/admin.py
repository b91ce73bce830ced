"""The admin endpoint of a process: `/healthz`, `/metrics` and `/status` over HTTP.

It runs in its own thread, so it answers while the process's main loop is busy; the health it
reports is what the process last said of itself. `/healthz` is 200 when the process is ready or
degraded, 503 otherwise; its body is the same JSON as `/status`, without the stages.
"""

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app
from typing_extensions import override

from penstock.service.config import split_host_port
from penstock.service.errors import UnavailableError

FINAL_STATUS = "final status"
"""The event under which `AdminServer.close` logs the last status."""


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


class _QuietHandler(WSGIRequestHandler):
    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: a probe every second would drown the log."""


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class AdminServer:
    """Serves one process's health, metrics and status until it is closed."""

    def __init__(self, status: Callable[[], Status], registry: CollectorRegistry) -> None:
        self._status = status
        self._metrics = make_wsgi_app(registry)
        self._server: WSGIServer | None = None

    def start(self, address: str) -> str:
        """Listen on `address` (a `HostPort`) and return the address with the port in use.

        Raises:
            UnavailableError: The address cannot be listened on.
        """
        host, port = split_host_port(address)
        try:
            self._server = make_server(
                host, port, self._answer, _ThreadingServer, handler_class=_QuietHandler
            )
        except OSError as error:
            raise UnavailableError(
                f"admin endpoint: cannot listen on {address}: {error.strerror}",
                fix="stop what uses the port, or set another with the key `admin`",
            ) from None
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stop listening, and log the last status: what this process did in its life."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            structlog.get_logger().info(FINAL_STATUS, status=asdict(self._status()))

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            body: Iterable[bytes] = self._metrics(environ, start)
            return body
        if path not in ("/healthz", "/status"):
            return _json(start, "404 Not Found", {"paths": ["/healthz", "/metrics", "/status"]})
        status = asdict(self._status())
        if path == "/status":
            return _json(start, "200 OK", status)
        del status["stages"], status["info"]
        serving = status["health"] in (Health.READY, Health.DEGRADED)
        return _json(start, "200 OK" if serving else "503 Service Unavailable", status)


def _json(start: StartResponse, status: str, body: dict[str, Any]) -> list[bytes]:
    data = json.dumps(body).encode()
    start(status, [("Content-Type", "application/json"), ("Content-Length", str(len(data)))])
    return [data]

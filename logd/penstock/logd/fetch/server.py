"""The framed TCP server of fetch and control requests: plain sockets on the event loop."""

import asyncio
import contextlib
import socket
from typing import Final, Protocol

import structlog

from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.fetch.connection import (
    FetchConnection,
    FetchCounts,
    FetchLimits,
    Response,
    SendingTurn,
)
from penstock.logd.fetch.wire import Document
from penstock.logd.store import CorruptFrameError
from penstock.service import UnavailableError
from penstock.service.config import split_host_port

_ACCEPT_PAUSE_S: Final = 0.2
"""Seconds until the next try, when a connection could not be accepted."""

_log = structlog.get_logger()


class Api(Protocol):
    """What answers the requests."""

    async def answer(self, request: Document, turn: SendingTurn) -> Response:
        """Do what a request asks."""
        ...


class FetchServer:
    """Listens until it is closed.

    Args:
        api: Answers the requests.
        limits: Further connections and requests are told so.

    Attributes:
        counts: For telemetry.
    """

    def __init__(self, api: Api, limits: FetchLimits) -> None:
        self.counts = FetchCounts()
        self._api = api
        self._limits = limits
        self._socket: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._connections)

    def listen(self, address: str) -> str:
        """Begin to listen on a `HostPort`; returns the address with the port in use.

        Raises:
            UnavailableError: It cannot be listened on.
        """
        host, port = split_host_port(address)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise UnavailableError(
                f"fetch endpoint: cannot listen on {address}: {error.strerror or error}",
                fix="stop what uses the port, or set another with the key `fetch`",
            ) from None
        self._socket.setblocking(False)
        return f"{host}:{self._socket.getsockname()[1]}"

    async def run(self) -> None:
        """Accept connections until cancelled; then all of them end."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        connection, _ = await loop.sock_accept(self._socket)
                    except OSError as error:  # no descriptor is left; some will be
                        _log.warning("connection not accepted", error=str(error))
                        await asyncio.sleep(_ACCEPT_PAUSE_S)
                        continue
                    task = group.create_task(self._serve(connection))
                    self._connections.add(task)
                    task.add_done_callback(self._connections.discard)
        finally:
            self.close()

    def close(self) -> None:
        """Listen no more."""
        if self._socket is not None:
            self._socket.close()

    async def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            served = FetchConnection(connection, self._answer, self._limits, self.counts)
            limit = self._limits.connections_max
            if len(self._connections) > limit:
                message = f"there are {limit} connections already"
                await served.refuse(0, RefusedError("TOO_MANY_CONNECTIONS", message, limit=limit))
                return
            await served.serve()

    async def _answer(self, request: Document, turn: SendingTurn) -> Response:
        """Answer, turning everything that can go wrong into a refusal for the one who asked."""
        try:
            return await self._api.answer(request, turn)
        except RefusedError:
            raise
        except CorruptError as error:
            _log.error("damaged data was asked for", error=str(error))
            raise _corrupt(error) from None
        except (LogdError, OSError) as error:
            _log.error("request failed", api=request["api"], error=str(error))
            raise RefusedError("UNAVAILABLE", str(error)) from None
        except Exception as error:  # noqa: BLE001 - one bad request must not end the daemon
            _log.exception("request failed", api=request["api"])
            raise RefusedError("INTERNAL", f"{type(error).__name__}: {error}") from None


def _corrupt(error: CorruptError) -> RefusedError:
    if isinstance(error, CorruptFrameError):
        return RefusedError(
            "CORRUPT", str(error), offset=error.offset, next_offset=error.next_offset
        )
    return RefusedError("CORRUPT", str(error))

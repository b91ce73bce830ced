"""Accepts connections and serves each of them in its own task."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from penstock.base.sockets import split_host_port
from penstock.logd.net.channel import (
    SHUTDOWN_S,
    Channel,
    EncryptedChannel,
    PlainChannel,
    address_of,
)
from penstock.logd.security.tls import TlsSource
from penstock.service import UnavailableError

HANDSHAKE_S: Final = 10.0
"""Seconds a TLS handshake may take."""

_KEEPALIVE_S: Final = 20
"""Seconds of silence after which a host is asked whether it is still there; and again."""

_ACCEPT_PAUSE_S: Final = 0.2
"""Seconds until the next try, when a connection could not be accepted."""

_log = structlog.get_logger()


class Listener:
    """Listens until it is closed.

    Connections are unauthenticated until their server marks them authenticated. There are few of
    those: one more ends the oldest, so that a client that authenticates quickly gets in, however
    many say nothing.

    Args:
        serve: Serves one connection until it ends; OSError or EOFError from it mean that it did.
        name: Name of the endpoint, for people.
        key: The configuration's key of its address.
        tls: Returns the context of each connection; only TLS is served then.
        unacked_s: The same as in `prepare`.
        max_unauthenticated: Connections without authentication, those that have not shaken hands
            included.
        handshake_s: Seconds that a handshake may take.

    Attributes:
        handshakes_failed: Connections without TLS, without a certificate that is taken, or that
            were too slow.
        connections_refused: Unauthenticated connections closed to make room.
    """

    def __init__(  # noqa: PLR0913 - whom it serves, and what it lets be
        self,
        serve: Callable[[Channel], Awaitable[None]],
        *,
        name: str,
        key: str,
        tls: TlsSource | None = None,
        unacked_s: float = 0.0,
        max_unauthenticated: int,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self.handshakes_failed = 0
        self.connections_refused = 0
        self._serve = serve
        self._name = name
        self._key = key
        self._tls = tls
        self._unacked_s = unacked_s
        self._max_unauthenticated = max_unauthenticated
        self._handshake_s = handshake_s
        self._unauthenticated: dict[
            asyncio.Task[None], socket.socket
        ] = {}  # in the order in which they came
        self._socket: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._accepted: set[socket.socket] = set()  # whose tasks have not begun yet

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._connections)

    @property
    def known(self) -> int:
        """Number of authenticated connections."""
        return len(self._connections) - len(self._unauthenticated)

    def mark_authenticated(self) -> None:
        """Mark the calling task's connection as authenticated."""
        task = asyncio.current_task()
        assert task is not None
        self._unauthenticated.pop(task, None)

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
                f"{self._name}: cannot listen on {address}: {error.strerror or error}",
                fix=f"stop what uses the port, or set another with the key `{self._key}`",
            ) from None
        self._socket.setblocking(False)
        return f"{host}:{self._socket.getsockname()[1]}"

    async def run(self) -> None:
        """Accept connections until cancelled; then all of them end."""
        assert self._socket is not None
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        connection = await self._accept(self._socket)
                    except OSError as error:  # no descriptor is left; some will be
                        _log.warning("connection_accept_failed", error=str(error))
                        await asyncio.sleep(_ACCEPT_PAUSE_S)
                        continue
                    self._make_room()
                    self._accepted.add(connection)
                    task = group.create_task(self._open(connection))
                    self._connections.add(task)
                    self._unauthenticated[task] = connection
                    task.add_done_callback(self._ended)
                    await asyncio.sleep(0)  # those that are there go on while many come
        finally:
            self.close()
            for (
                connection
            ) in self._accepted:  # a task that is cancelled before it begins closes none
                connection.close()
            self._accepted.clear()

    def _make_room(self) -> None:
        """Close the oldest unauthenticated connection if their maximum is reached."""
        if len(self._unauthenticated) >= self._max_unauthenticated:
            first = next(iter(self._unauthenticated))
            connection = self._unauthenticated.pop(first)
            self._connections.discard(first)
            self.connections_refused += 1
            first.cancel()
            if connection in self._accepted:
                self._accepted.discard(connection)
                connection.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._unauthenticated.pop(task, None)

    async def _accept(self, subscription_manager: socket.socket) -> socket.socket:
        """The next connection; `loop.sock_accept` may lose one when it is cancelled."""
        while True:
            try:
                return subscription_manager.accept()[0]
            except BlockingIOError:
                await _readable(subscription_manager.fileno())

    def close(self) -> None:
        """Listen no more."""
        if self._socket is not None:
            self._socket.close()

    async def _open(self, connection: socket.socket) -> None:
        self._accepted.discard(connection)
        with contextlib.suppress(OSError, EOFError):
            channel = await self._welcome(connection)
            try:
                await self._serve(channel)
            except asyncio.CancelledError:
                if asyncio.current_task() not in self._connections:  # it was closed for others
                    channel.abort()
                raise
            finally:
                channel.close()

    async def _welcome(self, connection: socket.socket) -> Channel:
        try:
            prepare(connection, unacked_s=self._unacked_s)
            return PlainChannel(connection) if self._tls is None else await self._secure(connection)
        except BaseException:
            connection.close()
            raise

    async def _secure(self, connection: socket.socket) -> Channel:
        assert self._tls is not None
        loop, reader, peer = (
            asyncio.get_running_loop(),
            asyncio.StreamReader(),
            address_of(connection),
        )
        try:
            transport, protocol = await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader),
                connection,
                ssl=self._tls(),
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError:
            self.handshakes_failed += 1
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return EncryptedChannel(reader, writer, peer)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def prepare(connection: socket.socket, *, unacked_s: float = 0.0) -> None:
    """Set a connection's options: it does not block, sends at once and notices a dead host.

    Args:
        connection: The accepted or connected socket.
        unacked_s: Seconds that what was sent may stay unacknowledged (TCP_USER_TIMEOUT of tcp(7),
            RFC 5482); 0: as long as the system likes.
    """
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unacked_s * 1000))


_CONNECT_S: Final = 2.0
"""Seconds a connection may take to be there; within a site it is milliseconds."""


async def dial(
    host: str, port: int, tls: ssl.SSLContext | None = None, *, unacked_s: float = 0.0
) -> Channel:
    """Connect.

    Args:
        host: A name or an address.
        port: Port of the host.
        tls: TLS; the other side's certificate must be for `host`.
        unacked_s: The same as in `prepare`.

    Raises:
        OSError: It cannot be reached, TimeoutError and ssl.SSLError included.
    """
    async with asyncio.timeout(_CONNECT_S):
        connection = await _connect(host, port)
    try:
        prepare(connection, unacked_s=unacked_s)
        peer = address_of(connection)
        if tls is None:
            return PlainChannel(connection)
        reader, writer = await asyncio.open_connection(
            sock=connection,
            ssl=tls,
            server_hostname=host,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
    except BaseException:
        connection.close()
        raise
    return EncryptedChannel(reader, writer, peer)


async def _connect(host: str, port: int) -> socket.socket:
    """The first of a host's addresses that answers."""
    loop = asyncio.get_running_loop()
    problem: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, address)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                raise
            problem = error
        else:
            return connection
    raise problem

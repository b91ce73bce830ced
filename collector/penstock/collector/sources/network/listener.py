"""Listening on TCP or on a Unix stream socket: what the sources that do have in common.

A source that may not take more stops reading, and asyncio reads on for it: by default up to 128
KiB, and 256 KiB at a time, which no budget counts. So a connection here reads `READ_AHEAD_BYTES`
ahead and asks the kernel for `READ_BYTES` at a time, by asyncio's `limit` and its transports'
attribute `max_size`. With its source's own 64 KiB a connection holds 144 KiB at most beside the
budget (`penstock.collector.spool.memory_budget`); over TLS Python allocates 256 KiB more.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import structlog
from typing_extensions import override

from penstock.base.sockets import ACCEPT_AT_ONCE, join_host_port, split_host_port, widen_backlog
from penstock.collector.descriptors import Descriptors
from penstock.collector.limits import (
    DATAGRAM_BUFFER_BYTES,
    HANDSHAKE_TIMEOUT_S,
    READ_AHEAD_BYTES,
    READ_BYTES,
    UNREAD_ANSWER_S,
)
from penstock.service import ConfigError, UnavailableError

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Note = Callable[[str, int], None]
_SUN_PATH_BYTES = 107


class Listener:
    """Accepts connections, each handled by its own task, up to a number.

    Args:
        name: The source's name, for messages.
        handle: Serves one connection; the connection is closed when it returns.
        max_connections: Open at once; one more is closed as soon as it is accepted.
        note: Counts something that is no record.
        descriptors: The process's, of which it has a share; None: only its own number bounds it.
        each: Descriptors that a connection takes.
        unread_answer_s: Seconds that an ended connection is kept for a peer that has not read its
            answers.
    """

    def __init__(  # noqa: PLR0913 - each bound of a connection
        self,
        name: str,
        handle: Handle,
        *,
        max_connections: int,
        note: Note,
        descriptors: Descriptors | None = None,
        each: int = 1,
        unread_answer_s: float = UNREAD_ANSWER_S,
    ) -> None:
        self._descriptors = descriptors
        self._each = each
        self._unread_answer_s = unread_answer_s
        self._name = name
        self._handle = handle
        self._max_connections = max_connections
        self._note = note
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._context: ssl.SSLContext | None = None
        self._path: Path | None = None
        self._closing = False
        self.endpoint: str | None = None

    async def listen_tcp(
        self,
        address: str,
        context: ssl.SSLContext | None = None,
        *,
        key: str = "listen",
        reuse_port: bool = False,
    ) -> None:
        """Listen on `HOST:PORT`.

        Args:
            address: Address to listen at.
            context: TLS context; None: without TLS.
            key: The source's key that holds the address.
            reuse_port: Other processes of this user may listen there, too.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        host, port = split_host_port(address)
        self._context = context
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._protocol,
                host,
                port,
                reuse_address=True,
                reuse_port=reuse_port,
                backlog=ACCEPT_AT_ONCE,
            )
            widen_backlog(self._server)
        except OSError as error:
            raise UnavailableError(
                f"source {self._name}: cannot listen on {address}: {error.strerror}",
                fix=f"stop what uses the port, or set another with the source's key `{key}`",
            ) from None
        self._begin()
        self.endpoint = join_host_port(*self._server.sockets[0].getsockname()[:2])

    async def listen_unix(self, path: Path, mode: int) -> None:
        """Listen on a Unix stream socket; a socket that nobody serves any more is replaced.

        Raises:
            ConfigError: The path cannot be a socket.
            UnavailableError: Another process serves it.
        """
        if len(str(path).encode()) > _SUN_PATH_BYTES:
            raise ConfigError(
                f"source {self._name}: path: {path} is longer than {_SUN_PATH_BYTES} bytes",
                fix="choose a shorter path for the socket",
            )
        try:
            clear_path(path, self._name)
            self._server = await asyncio.get_running_loop().create_unix_server(
                self._protocol, str(path), backlog=ACCEPT_AT_ONCE
            )
            widen_backlog(self._server)
            set_mode(path, mode)
        except OSError as error:
            raise ConfigError(
                f"source {self._name}: path: cannot listen on {path}: {error.strerror or error}",
                fix="choose a path in a directory that this process may write to",
            ) from None
        self._begin()
        self._path = path
        self.endpoint = str(path)

    def _begin(self) -> None:
        if self._descriptors is not None:
            self._descriptors.listen(self, self._each)

    def _has_room(self) -> bool:
        """Return whether another connection may be open, within the process's share as well."""
        if len(self._tasks) >= self._max_connections:
            return False
        if self._descriptors is None or len(self._tasks) < self._descriptors.connections(self):
            return True
        if self._descriptors.short("connections"):
            structlog.get_logger().warning(
                "connections_refused",
                source=self._name,
                connections=len(self._tasks),
                limit=self._descriptors.limit,
                reason="the process has no file descriptors for more",
            )
        return False

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._tasks)

    async def close(self) -> None:
        """Stop listening, end every connection, remove the socket's name."""
        if self._server is None:
            return
        self._closing = True
        if self._descriptors is not None:
            self._descriptors.stop_listening(self)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        self._server = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        # Cancelled here, because there is no more time, it cancels them once more.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(_Reader(limit=READ_AHEAD_BYTES // 2), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing:  # it was accepted before, and is closed now
            writer.close()
            return
        if not self._has_room():
            self._note("connections_refused", 1)
            writer.close()
            return
        _read_little(writer.transport)
        if self._context is not None:
            assert isinstance(writer.transport, asyncio.ReadTransport)
            writer.transport.pause_reading()  # nothing is read yet: what comes is for TLS
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._end(writer))  # also of one that never ran

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The peer may go away, or we may be closing: both end the connection.
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.CancelledError):
            if self._context is None:
                await self._handle(reader, writer)
                return
            with contextlib.suppress(ssl.SSLError):  # logged by the context's `ServerTls`
                reader, writer = await _secure(writer, self._context)
                try:
                    await self._handle(reader, writer)
                finally:
                    self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        """Close a connection, soon also if the peer does not read what is left."""
        transport = writer.transport
        if transport.get_extra_info("sslcontext") is not None and transport.is_closing():
            return  # its peer ended it; closed once more, asyncio's TLS forgets what it belongs to
        writer.close()
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(self._unread_answer_s, transport.abort)


class _Reader(asyncio.StreamReader):
    """Gives what came before a connection broke: asyncio's own reader forgets that."""

    @override
    def set_exception(self, exc: Exception) -> None:
        self.feed_eof()
        if self.at_eof():
            super().set_exception(exc)


async def _secure(
    plain: asyncio.StreamWriter, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with TLS on it.

    asyncio's own server would do this before it tells anybody of the connection, with 256 KiB for
    each handshake and no bound to their number.
    """
    taken: socket.socket = plain.get_extra_info("socket")
    try:
        connection = socket.socket(fileno=os.dup(taken.fileno()))
    except OSError as error:  # no descriptor is left: this one ends, and others go on
        raise ConnectionAbortedError(error.errno, error.strerror) from None
    connection.setblocking(False)
    plain.transport.abort()  # of its own descriptor; the connection stays
    loop = asyncio.get_running_loop()
    reader = _Reader(limit=READ_AHEAD_BYTES // 2)
    transport, protocol = await loop.connect_accepted_socket(
        lambda: asyncio.StreamReaderProtocol(reader),
        connection,
        ssl=context,
        ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Carry out what must not be left in the middle: it goes on when the caller is cancelled once.

    Closing a listener cancels its connections once, and what they have read is still handed over.
    The end of the time that stopping may take cancels them again, which reaches `work`, also when
    they were cancelled once before they came here.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if caller is not None and caller.cancelling() > 1:
            task.cancel()
        await task
        raise


def _read_little(transport: asyncio.BaseTransport) -> None:
    """Ask the kernel for no more than is taken at a time: asyncio asks for four times as much.

    A reader's limit, twice which is when asyncio pauses, does not bound one read. TLS has its own
    buffers.
    """
    if hasattr(transport, "max_size"):
        transport.max_size = READ_BYTES


def set_mode(path: Path, mode: int) -> None:
    path.chmod(mode)


def clear_path(path: Path, name: str, kind: int = socket.SOCK_STREAM) -> None:
    """Make the directory; remove a socket that a process which is gone left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(
                f"source {name}: path: {path} exists and is not a socket",
                fix="remove the file, or choose another path",
            )
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                raise
            path.unlink(missing_ok=True)
            return
    raise UnavailableError(
        f"source {name}: path: another process listens on {path}",
        fix="stop it, or choose another path",
    )


Peer = tuple[Any, ...]
_TABLES: Final = (Path("/proc/net/udp"), Path("/proc/net/udp6"))
_INODE_COLUMN: Final = 9


class Datagrams(asyncio.DatagramProtocol):
    """Listens on one address.

    Args:
        name: The source's name, for messages.
        take: Called with each datagram and who sent it; must not block.
    """

    def __init__(self, name: str, take: Callable[[bytes, Peer], None]) -> None:
        self._name = name
        self._take = take
        self._transport: asyncio.DatagramTransport | None = None
        self._path: Path | None = None
        self._inode = ""
        self._lost = 0
        self.endpoint: str | None = None

    async def listen(self, address: str, *, key: str = "listen", reuse_port: bool = False) -> None:
        """Listen on `HOST:PORT`.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        host, port = split_host_port(address)
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_datagram_endpoint(
                lambda: self, local_addr=(host, port), reuse_port=reuse_port or None
            )
        except OSError as error:
            raise UnavailableError(
                f"source {self._name}: cannot listen on {address} (UDP): {error.strerror}",
                fix=f"stop what uses the port, or set another with the source's key `{key}`",
            ) from None
        self._transport = transport
        used: socket.socket = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the kernel's limit is lower: it gives what it may
            used.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DATAGRAM_BUFFER_BYTES)
        self._inode = str(os.fstat(used.fileno()).st_ino)
        self.endpoint = join_host_port(*used.getsockname()[:2])

    async def listen_unix(self, path: Path, mode: int) -> None:
        """Listen on a Unix datagram socket; one that nobody serves any more is replaced.

        Raises:
            ConfigError: The path cannot be a socket.
            UnavailableError: Another process serves it.
        """
        try:
            clear_path(path, self._name, socket.SOCK_DGRAM)
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: self, local_addr=str(path), family=socket.AF_UNIX
            )
            self._transport, self._path = transport, path
            set_mode(path, mode)
        except OSError as error:
            raise ConfigError(
                f"source {self._name}: path: cannot listen on {path}: {error.strerror or error}",
                fix="choose a path in a directory that this process may write to",
            ) from None
        self.endpoint = str(path)

    @override
    def datagram_received(self, data: bytes, addr: Peer | str | None) -> None:
        self._take(data, addr if isinstance(addr, tuple) else ("",))  # a Unix socket names nobody

    def answer(self, data: bytes, peer: Peer) -> None:
        """Send a datagram back."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, peer)

    def newly_lost(self) -> int:
        """Datagrams that the kernel dropped since the last call, for want of room or otherwise."""
        lost = self._count_lost()
        new, self._lost = max(0, lost - self._lost), max(lost, self._lost)
        return new

    def close(self) -> None:
        """Stop listening."""
        if self._transport is not None:
            self._transport.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def _count_lost(self) -> int:
        for table in _TABLES:
            with contextlib.suppress(OSError, ValueError, IndexError):  # another kernel's format
                for line in table.read_text().splitlines()[1:]:
                    columns = line.split()
                    if columns[_INODE_COLUMN] == self._inode:
                        return int(columns[-1])
        return 0

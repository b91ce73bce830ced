"""The framed TCP server of fetch and control requests.

Plain sockets on the event loop: a payload goes from the page cache to the socket with sendfile. A
connection's requests are answered in order; a reader that does not read holds up nobody else and is
cut off after `STALL_S`.
"""

import asyncio
import contextlib
import os
import socket
from typing import Final

import structlog

from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.fetch_api import FetchApi, Response
from penstock.logd.fetch_wire import (
    REQUEST_HEAD,
    Document,
    check_request_size,
    decode_request,
    encode_response,
    error_document,
)
from penstock.logd.store import CorruptFrameError, FileRange
from penstock.service import UnavailableError
from penstock.service.config import split_host_port

STALL_S: Final = 60.0
"""Seconds a request may take to arrive once begun, and a response may make no progress."""

_ACCEPT_PAUSE_S: Final = 0.2
"""Seconds until the next try, when a connection could not be accepted."""

_CHUNK: Final = 1024 * 1024
"""Bytes one sendfile may send before other connections get their turn."""

_log = structlog.get_logger()


class FetchServer:
    """Listens until it is closed.

    Args:
        api: Answers the requests.
        connections_max: Further connections are told so and closed.
    """

    def __init__(self, api: FetchApi, *, connections_max: int) -> None:
        self._api = api
        self._connections_max = connections_max
        self._socket: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests = 0
        self.refused = 0
        self.bytes_sent = 0

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
        with connection, contextlib.suppress(OSError, asyncio.IncompleteReadError):
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if len(self._connections) > self._connections_max:
                message = f"there are {self._connections_max} connections already"
                refusal = RefusedError("TOO_MANY_CONNECTIONS", message)
                await _send(connection, _refusal(0, refusal))
                return
            while await self._exchange(connection):
                pass

    async def _exchange(self, connection: socket.socket) -> bool:
        """Answer one request; False when the connection is of no more use."""
        head = await _receive(connection, REQUEST_HEAD.size)
        (size,) = REQUEST_HEAD.unpack(head)
        self.requests += 1
        number = 0
        try:
            check_request_size(size)
        except RefusedError as error:
            self.refused += 1
            await _send(connection, _refusal(0, error))
            return False
        async with asyncio.timeout(STALL_S):
            body = await _receive(connection, size)
        try:
            request = decode_request(body)
            number = request.get("id", 0)
            response = await self._answer(request)
        except RefusedError as error:
            self.refused += 1
            await _send(connection, _refusal(number, error))
        else:
            await self._respond(connection, number, response)
        return True

    async def _answer(self, request: Document) -> Response:
        """Answer, turning everything that can go wrong into a refusal for the one who asked."""
        try:
            return await self._api.answer(request)
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

    async def _respond(self, connection: socket.socket, number: int, response: Response) -> None:
        length = response.payload_length
        head = encode_response(response.header | {"id": number}, length)
        await _send(connection, head + response.payload)
        for part in response.ranges:
            await _send_file(connection, part)
        self.bytes_sent += length


def _refusal(number: int, error: RefusedError) -> bytes:
    return encode_response({"id": number, "error": error_document(error)})


def _corrupt(error: CorruptError) -> RefusedError:
    if isinstance(error, CorruptFrameError):
        return RefusedError(
            "CORRUPT", str(error), offset=error.offset, next_offset=error.next_offset
        )
    return RefusedError("CORRUPT", str(error))


async def _receive(connection: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    view = memoryview(bytearray(size))
    filled = 0
    while filled < size:
        count = await loop.sock_recv_into(connection, view[filled:])
        if count == 0:
            raise asyncio.IncompleteReadError(bytes(view[:filled]), size)
        filled += count
    return bytes(view)


async def _send(connection: socket.socket, data: bytes) -> None:
    async with asyncio.timeout(STALL_S + len(data) / 65_536):
        await asyncio.get_running_loop().sock_sendall(connection, data)


async def _send_file(connection: socket.socket, part: FileRange) -> None:
    position, left = part.position, part.length
    while left:
        try:
            sent = os.sendfile(connection.fileno(), part.file.fileno(), position, min(left, _CHUNK))
        except BlockingIOError:
            await _writable(connection)
            continue
        if sent == 0:
            raise ConnectionAbortedError("the file is shorter than its index says")
        position += sent
        left -= sent
        await asyncio.sleep(0)


async def _writable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_writable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(connection.fileno(), on_writable)
    try:
        async with asyncio.timeout(STALL_S):
            await ready
    finally:
        loop.remove_writer(connection.fileno())

"""Connections on an event loop: one to each node, with many requests at a time.

Answers find their request by its id.
"""

import asyncio
import socket
from functools import partial
from typing import Any, Final, Self, TypeVar

from typing_extensions import override

from penstock.base.clock import monotonic_ns
from penstock.logd.api.operations import Document
from penstock.logd.api.protocol import Response, ResponseDecoder, encode_request, raise_error
from penstock.logd.client.access import ANYBODY, Access
from penstock.logd.client.calls import Call
from penstock.logd.client.routing import CallAttempt, MetadataCache, NextAction, split_address
from penstock.logd.errors import CorruptError, RefusedError

_CLOSED: Final = "the server closed the connection"


class Connection(asyncio.BufferedProtocol):
    """Made by `open`; of no more use once `closed`.

    Attributes:
        received_at: Time of the last bytes, by the event loop's clock.
    """

    def __init__(self, where: str) -> None:
        self._decoder = ResponseDecoder(where)
        self._where = where
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._last_id = 0
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self.received_at = self._loop.time()
        self.closed = False

    @classmethod
    async def open(cls, address: tuple[str, int], where: str, access: Access = ANYBODY) -> Self:
        """Connect and authenticate.

        Raises:
            OSError: It cannot be connected to.
            RefusedError: `UNAUTHENTICATED`, `PLAIN_TOKEN`, `BAD_TOKEN_FILE`, `BAD_TLS_FILE`.
        """
        context = greeting = None
        if access.encrypted or access.has_secret:
            context, greeting = await asyncio.to_thread(access.prepare, address[0])
        name = None if context is None else address[0]
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: cls(where), *address, ssl=context, server_hostname=name
        )
        if greeting is not None:
            try:
                raise_error((await connection.request(greeting))[0])
            except BaseException:
                connection.close()
                raise
        return connection

    def request(self, request: Document, upload: bytes = b"") -> asyncio.Future[Response]:
        """Send a request; the future gets its answer. When it is cancelled the server learns it.

        The future fails with OSError when the connection breaks, and with CorruptError when what
        comes is no answer of logd's.

        Raises:
            OSError: The connection is closed.
            RefusedError: The request is longer than a server takes.
        """
        if self.closed or self._transport is None:
            raise ConnectionResetError(_CLOSED)
        self._last_id += 1
        data = encode_request(request | {"id": self._last_id}, upload)
        future = self._waiting[self._last_id] = self._loop.create_future()
        future.add_done_callback(partial(self._settled, self._last_id))
        self._transport.write(data)
        return future

    def close(self) -> None:
        """Close; calls that wait get the error that the connection broke."""
        self._end(ConnectionAbortedError("the client closed the connection"))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed, after `close`."""
        await self._lost.wait()

    # What asyncio calls.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.room()

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.received_at = self._loop.time()
        try:
            response = self._decoder.filled(nbytes)
            if response is not None:
                self._deliver(response)
        except CorruptError as error:
            self._end(error)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        self._end(exc if isinstance(exc, OSError) else ConnectionResetError(_CLOSED))

    # Parts.

    def _settled(self, number: int, future: asyncio.Future[Response]) -> None:
        """Tell the server when no caller waits any more: a long poll would go on to its end."""
        if future.cancelled() and not self.closed and self._transport is not None:
            self._transport.write(encode_request({"api": "cancel", "request": number}))

    def _deliver(self, response: Response) -> None:
        number = response[0].get("id")
        if number == 0:  # a refusal of the connection as a whole; the server closes it
            answered = list(self._waiting.values())
            self._waiting.clear()
        else:
            found = self._waiting.pop(number, None) if isinstance(number, int) else None
            if found is None:
                raise CorruptError(f"answer to request {number}", where=self._where)
            answered = [found]
        for future in answered:
            if not future.done():  # else cancelled: the answer has no caller
                future.set_result(response)

    def _end(self, error: Exception) -> None:
        if self.closed:
            return
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()


OUTSTANDING_MAX: Final = 32
"""Calls of one client under way at a time; half of what a logd takes of a connection by default."""

Answer = TypeVar("Answer")


class ConnectionPool:
    """Makes calls, each to its end; many at a time.

    Args:
        router: Says whom to ask.
        timeout_s: Seconds without a byte for an answer that is due.
        access: TLS, and how it authenticates.
    """

    def __init__(self, router: MetadataCache, timeout_s: float, access: Access = ANYBODY) -> None:
        self._access = access
        self._router = router
        self._timeout_s = timeout_s
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._room = asyncio.Semaphore(OUTSTANDING_MAX)

    def limit(self, outstanding_max: int) -> None:
        """Have no more calls than these under way at a time; further ones wait their turn."""
        self._room = asyncio.Semaphore(outstanding_max)

    def close(self) -> None:
        """Close every connection: calls under way fail, the next opens another."""
        for address in list(self._open):
            self._drop(address)

    async def finish(self) -> None:
        """Close every connection, and wait until their sockets are closed."""
        closed = list(self._open.values())
        self.close()
        for connection in closed:
            await connection.wait_closed()

    async def call(self, call: Call[Answer]) -> Answer:
        """Make a call.

        Raises:
            LogdError: As the methods of `LogClient` say.
        """
        async with self._room:
            return await self._made(call)

    async def _made(self, call: Call[Answer]) -> Answer:
        course, again = CallAttempt(self._router, call, monotonic_ns()), False
        while True:
            step = course.step(monotonic_ns())
            if step.pause_s:
                await asyncio.sleep(step.pause_s)
            sent = reused = False
            try:
                connection, reused = await self._connected(step)
                sent = True
                header, payload = await self._answered(connection, step.request, step.call)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    self._drop(step.address)
                course.failed(step, error, sent=sent, reused=reused, now_ns=monotonic_ns())
                continue
            except BaseException:
                course.abandoned()
                raise
            try:
                raise_error(header)
            except RefusedError as error:
                if reused and not again and self._access.may_know_more(error):
                    again = True
                    self._drop(step.address, connection)
                    continue
                course.refused(step, error, monotonic_ns())
                continue
            answer = step.call.answer(header, payload, step.address)
            if course.answered(step, answer, monotonic_ns()):
                return answer  # type: ignore[no-any-return] # the call's own

    async def _connected(self, step: NextAction) -> tuple[Connection, bool]:
        """The connection, and whether it was there before."""
        async with self._opening.setdefault(step.address, asyncio.Lock()):
            present = self._open.get(step.address)
            if present is not None and not present.closed:
                return present, True
            async with asyncio.timeout(step.connect_s):
                address = split_address(step.address)
                connection = await Connection.open(address, step.address, self._access)
            self._open[step.address] = connection
            return connection, False

    async def _answered(
        self, connection: Connection, request: Document, call: Call[Any]
    ) -> Response:
        """An answer, as long as the server is not silent for longer than it may be."""
        loop = asyncio.get_running_loop()
        due = loop.time() + call.wait_s
        answer = connection.request(request, call.upload)
        try:
            while not answer.done():
                silent_until = max(due, connection.received_at) + self._timeout_s
                if silent_until <= loop.time():
                    raise TimeoutError
                await asyncio.wait({answer}, timeout=silent_until - loop.time())
            return answer.result()
        finally:
            answer.cancel()

    def _drop(self, address: str, only: Connection | None = None) -> None:
        """Close a connection, unless it is another one than `only` by now."""
        connection = self._open.get(address)
        if connection is not None and only in (None, connection):
            del self._open[address]
            connection.close()

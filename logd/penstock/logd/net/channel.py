"""A channel: bytes to and from another side, plain or by TLS, which may stall or go away.

A channel with TLS, on asyncio's transport.

What is sent is copied and encrypted in user space, so that files go out through a buffer as well.

A channel without TLS: a non-blocking socket on the event loop.

A file's range goes from the page cache to the socket with sendfile; where the system cannot do
that for a file or a socket, it is copied through one buffer of `CHUNK_BYTES`.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Final, Protocol

from penstock.logd.storage import FileRange

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes sent in one go before other channels get their turn."""

Take = Callable[[bytearray], int]
"""Given what came and was not taken yet; returns how many bytes of it are."""


class Channel(Protocol):
    """One connection. Used on the event loop; receiving and sending may go on at the same time."""

    @property
    def peer(self) -> str:
        """The other side's address, for people."""
        ...

    @property
    def certificate(self) -> bytes | None:
        """The other side's certificate, verified, in DER; None: it showed none."""
        ...

    async def receive(self, size: int) -> bytes:
        """Receive exactly `size` bytes, however long it takes.

        Raises:
            EOFError: The other side closed the connection.
            OSError: It broke.
        """
        ...

    async def receive_into(self, buffer: memoryview) -> None:
        """Fill a buffer, however long it takes.

        Raises:
            EOFError: The other side closed the connection.
            OSError: It broke.
        """
        ...

    async def consume(self, take: Take, *, ahead_max: int) -> None:
        """Hand on what comes, in the turn of the event loop in which it does, until the end.

        A task that waits for it would have it two turns later; of a loop that is busy each turn may
        take as long as other nodes wait.

        Args:
            take: Takes all that is complete.
            ahead_max: Bytes that may be left; with more, no more is received.

        Raises:
            EOFError, OSError: As `receive`; and whatever `take` raises.
        """
        ...

    def again(self) -> None:
        """`take` may take more of what it left."""
        ...

    def offer(self, data: bytes) -> int:
        """Send what can be sent without waiting; returns how many bytes of it.

        None while `send` is under way.

        Raises:
            OSError: The connection broke.
        """
        ...

    async def send(self, data: bytes | memoryview, *, stall_s: float) -> None:
        """Send all of `data`.

        Raises:
            TimeoutError: The other side took nothing for `stall_s` seconds.
            OSError: The connection broke.
        """
        ...

    async def send_range(self, part: FileRange, *, stall_s: float) -> None:
        """Send a file's range.

        Raises:
            TimeoutError: The other side took nothing for `stall_s` seconds.
            OSError: The connection broke, or the file cannot be read or is too short.
        """
        ...

    def close(self) -> None:
        """Close the connection; nothing can be received or sent any more."""
        ...

    def abort(self) -> None:
        """Close it at once, whatever was to be sent."""
        ...


async def send_copy(channel: Channel, part: FileRange, position: int, stall_s: float) -> None:
    """Send a file's range from a position on through one buffer.

    Raises:
        TimeoutError, OSError: As `Channel.send_range`.
    """
    end = part.position + part.length
    while position < end:
        size = min(end - position, CHUNK_BYTES)
        data = await asyncio.to_thread(part.file.read, position, size)
        if len(data) < size:
            raise file_too_short()
        await channel.send(data, stall_s=stall_s)
        position += size


def file_too_short() -> OSError:
    """Return the error of a connection whose announced range of a file is missing."""
    return ConnectionAbortedError("the file is shorter than its index says")


SHUTDOWN_S: Final = 5.0
"""Seconds a connection has to say goodbye, before it is cut off."""

_UNSENT_BYTES_MAX: Final = 256 * 1024
"""Bytes that may wait in the transport before the sender waits."""


class EncryptedChannel:
    """Channel over TLS; see `penstock.logd.net.channel.Channel`.

    Args:
        reader: Reader with TLS established.
        writer: Writer of the same connection; the channel closes it.
        peer: The other side's address.

    Attributes:
        peer, certificate: The same as in `Channel`.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.peer = peer
        self.certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(True)
        self._take: Take | None = None
        self._ahead = bytearray()
        self._room = asyncio.Event()
        self._sending = False
        writer.transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)

    async def receive(self, size: int) -> bytes:
        """Receive exactly `size` bytes."""
        return await self._reader.readexactly(size)

    async def receive_into(self, buffer: memoryview) -> None:
        """Fill a buffer."""
        filled = 0
        while filled < len(buffer):
            data = await self._reader.read(min(len(buffer) - filled, CHUNK_BYTES))
            if not data:
                raise EOFError
            buffer[filled : filled + len(data)] = data
            filled += len(data)

    async def consume(self, take: Take, *, ahead_max: int) -> None:
        """Hand on what comes, until the connection ends; here a task has to do it."""
        self._take = take
        try:
            while True:
                self.again()
                while len(self._ahead) > ahead_max:
                    self._room.clear()
                    await self._room.wait()
                data = await self._reader.read(CHUNK_BYTES)
                if not data:
                    raise EOFError
                self._ahead += data
        finally:
            self._take = None

    def again(self) -> None:
        """`take` may take more of what it left."""
        if self._take is None:
            return
        try:
            del self._ahead[: self._take(self._ahead)]
        except Exception as error:  # noqa: BLE001 - raised by the next read
            self._reader.set_exception(error)
        self._room.set()

    def offer(self, data: bytes) -> int:
        """Send what can be sent without waiting: all, if nothing waits in the transport."""
        if self._sending or self._writer.transport.get_write_buffer_size():
            return 0
        self._writer.write(data)
        return len(data)

    async def send(self, data: bytes | memoryview, *, stall_s: float) -> None:
        """Send all of `data`; on return up to `_UNSENT_BYTES_MAX` may not be on their way yet."""
        view = memoryview(data)
        self._sending = True
        try:
            while view:
                self._writer.write(view[:CHUNK_BYTES])
                view = view[CHUNK_BYTES:]
                async with asyncio.timeout(stall_s):
                    await self._writer.drain()
        finally:
            self._sending = False

    async def send_range(self, part: FileRange, *, stall_s: float) -> None:
        """Send a file's range."""
        await send_copy(self, part, part.position, stall_s)

    def close(self) -> None:
        """Close the connection; what waits in the transport has `SHUTDOWN_S` to go out."""
        if not self._writer.transport.is_closing():  # else asyncio's TLS forgets what it belongs to
            self._writer.close()

    def abort(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()


_AHEAD_BYTES: Final = 16 * 1024
"""Bytes received in one go when fewer are asked for: small messages come together with what says
how long they are."""

_CONSUMED_BYTES: Final = 256 * 1024
"""Bytes received in one turn of the event loop and handed on in it."""

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK})
"""Errors of sendfile when it does not support this file or this socket (sendfile(2))."""


class PlainChannel:
    """Channel without TLS; see `penstock.logd.net.channel.Channel`.

    Args:
        connection: A connected, non-blocking socket; the channel closes it.

    Attributes:
        peer, certificate: The same as in `Channel`; there is no certificate here.
    """

    certificate: bytes | None

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.peer = address_of(connection)
        self.certificate = None
        self._ahead = b""
        self._consumer: _Consumer | None = None
        self._sending = False

    async def receive(self, size: int) -> bytes:
        """Receive exactly `size` bytes."""
        if size < _AHEAD_BYTES:
            while len(self._ahead) < size:
                loop = asyncio.get_running_loop()
                data = await loop.sock_recv(self._connection, _AHEAD_BYTES)
                if not data:
                    raise EOFError
                self._ahead += data
            data, self._ahead = self._ahead[:size], self._ahead[size:]
            return data
        buffer = bytearray(size)
        await self.receive_into(memoryview(buffer))
        return bytes(buffer)

    async def receive_into(self, buffer: memoryview) -> None:
        """Fill a buffer."""
        loop = asyncio.get_running_loop()
        filled = min(len(self._ahead), len(buffer))
        buffer[:filled], self._ahead = self._ahead[:filled], self._ahead[filled:]
        while filled < len(buffer):
            count = await loop.sock_recv_into(self._connection, buffer[filled:])
            if count == 0:
                raise EOFError
            filled += count

    async def consume(self, take: Take, *, ahead_max: int) -> None:
        """Hand on what comes, until the connection ends."""
        ahead, self._ahead = bytearray(self._ahead), b""
        self._consumer = _Consumer(self._connection, take, ahead, ahead_max)
        try:
            await self._consumer.run()
        finally:
            self._consumer = None

    def again(self) -> None:
        """`take` may take more of what it left."""
        if self._consumer is not None:
            self._consumer.hand_on()

    def offer(self, data: bytes) -> int:
        """Send what can be sent without waiting."""
        if self._sending:
            return 0
        try:
            return self._connection.send(data)
        except BlockingIOError:
            return 0

    async def send(self, data: bytes | memoryview, *, stall_s: float) -> None:
        """Send all of `data`."""
        view = memoryview(data)
        self._sending = True
        try:
            while view:
                try:
                    view = view[self._connection.send(view[:CHUNK_BYTES]) :]
                except BlockingIOError:
                    await self._writable(stall_s)
                    continue
                if view:
                    await asyncio.sleep(0)
        finally:
            self._sending = False

    async def send_range(self, part: FileRange, *, stall_s: float) -> None:
        """Send a file's range."""
        position, end = part.position, part.position + part.length
        target, source = self._connection.fileno(), part.file.fileno()
        while position < end:
            try:
                sent = os.sendfile(target, source, position, min(end - position, CHUNK_BYTES))
            except BlockingIOError:
                await self._writable(stall_s)
                continue
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
                await send_copy(self, part, position, stall_s)
                return
            if sent == 0:
                raise file_too_short()
            position += sent
            if position < end:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def abort(self) -> None:
        """Close it at once."""
        self._connection.close()

    async def _writable(self, stall_s: float) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._connection.fileno(), _set, ready)
        try:
            async with asyncio.timeout(stall_s):
                await ready
        finally:
            loop.remove_writer(self._connection.fileno())


class _Consumer:
    """Receives from a socket and hands on what came, until either fails."""

    def __init__(
        self, connection: socket.socket, take: Take, ahead: bytearray, ahead_max: int
    ) -> None:
        self._connection = connection
        self._take = take
        self._ahead = ahead
        self._ahead_max = ahead_max
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._watching = False

    async def run(self) -> None:
        try:
            self.hand_on()
            await self._ended
        finally:
            self._ended.cancel()
            self._watch(wanted=False)

    def hand_on(self) -> None:
        """Have what came taken, and receive more if there is room for it."""
        if self._ended.done():
            return
        try:
            taken = self._take(self._ahead)
        except Exception as error:  # noqa: BLE001 - raised where the connection is served
            self._end(error)
            return
        del self._ahead[:taken]
        self._watch(wanted=len(self._ahead) <= self._ahead_max)

    def _watch(self, *, wanted: bool) -> None:
        if wanted is not self._watching:
            self._watching = wanted
            if wanted:
                self._loop.add_reader(self._connection.fileno(), self._receive)
            else:
                self._loop.remove_reader(self._connection.fileno())

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_CONSUMED_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if not data:
            self._end(EOFError())
            return
        self._ahead += data
        self.hand_on()

    def _end(self, error: Exception) -> None:
        self._watch(wanted=False)
        if not self._ended.done():
            self._ended.set_exception(error)


def address_of(connection: socket.socket) -> str:
    """The other side's address, for people; of one that is gone already, that."""
    try:
        host, port = connection.getpeername()[:2]
    except (OSError, ValueError):
        return "gone"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)

"""A channel without TLS: a non-blocking socket on the event loop.

A file's range goes from the page cache to the socket with sendfile; where the system cannot do
that for a file or a socket, it is copied through one buffer of `CHUNK_BYTES`.
"""

import asyncio
import errno
import os
import socket
from typing import Final

from penstock.logd.store import FileRange
from penstock.logd.tcp.channel import CHUNK_BYTES, file_too_short, send_copy

_AHEAD_BYTES: Final = 16 * 1024
"""Bytes received in one go when fewer are asked for: small messages come together with what says
how long they are."""

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK})
"""What sendfile fails with when it is not for this file or this socket (sendfile(2))."""


class PlainChannel:
    """As `penstock.logd.tcp.channel.Channel`.

    Args:
        connection: A connected, non-blocking socket; the channel closes it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ahead = b""

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

    async def send(self, data: bytes | memoryview, *, stall_s: float) -> None:
        """Send all of `data`."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._connection.send(view[:CHUNK_BYTES]) :]
            except BlockingIOError:
                await self._writable(stall_s)
                continue
            if view:
                await asyncio.sleep(0)

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

    async def _writable(self, stall_s: float) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._connection.fileno(), _set, ready)
        try:
            async with asyncio.timeout(stall_s):
                await ready
        finally:
            loop.remove_writer(self._connection.fileno())


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)

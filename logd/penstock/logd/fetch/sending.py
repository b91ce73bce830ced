"""Bytes and file ranges onto a socket that may stall, without holding up the event loop.

A file's range goes from the page cache to the socket with sendfile; where the system cannot do
that for a file or a socket, it is copied through one buffer of `CHUNK_BYTES`. A reader that takes
nothing for `stall_s` is given up: TimeoutError.
"""

import asyncio
import errno
import os
import socket
from typing import Final

from penstock.logd.store import FileRange

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes sent in one go before other connections get their turn."""

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK})
"""What sendfile fails with when it is not for this file or this socket (sendfile(2))."""


async def send(connection: socket.socket, data: bytes | memoryview, *, stall_s: float) -> None:
    """Send all of `data`.

    Raises:
        TimeoutError: The reader took nothing for `stall_s`.
        OSError: The connection broke.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[connection.send(view[:CHUNK_BYTES]) :]
        except BlockingIOError:
            await _writable(connection, stall_s)
            continue
        if view:
            await asyncio.sleep(0)


async def send_range(connection: socket.socket, part: FileRange, *, stall_s: float) -> None:
    """Send a file's range.

    Raises:
        TimeoutError: The reader took nothing for `stall_s`.
        OSError: The connection broke, or the file cannot be read or is too short.
    """
    position, end = part.position, part.position + part.length
    target, source = connection.fileno(), part.file.fileno()
    while position < end:
        try:
            sent = os.sendfile(target, source, position, min(end - position, CHUNK_BYTES))
        except BlockingIOError:
            await _writable(connection, stall_s)
            continue
        except OSError as error:
            if error.errno not in _NO_SENDFILE:
                raise
            await _send_copy(connection, part, position, stall_s)
            return
        if sent == 0:
            raise ConnectionAbortedError("the file is shorter than its index says")
        position += sent
        if position < end:
            await asyncio.sleep(0)


async def _send_copy(
    connection: socket.socket, part: FileRange, position: int, stall_s: float
) -> None:
    end = part.position + part.length
    while position < end:
        size = min(end - position, CHUNK_BYTES)
        data = await asyncio.to_thread(part.file.read, position, size)
        if len(data) < size:
            raise ConnectionAbortedError("the file is shorter than its index says")
        await send(connection, data, stall_s=stall_s)
        position += size


async def _writable(connection: socket.socket, stall_s: float) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connection.fileno(), _set, ready)
    try:
        async with asyncio.timeout(stall_s):
            await ready
    finally:
        loop.remove_writer(connection.fileno())


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)

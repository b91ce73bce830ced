"""A channel with TLS, on asyncio's transport.

What is sent is copied and encrypted in user space, so that files go out through a buffer as well.
"""

import asyncio
from typing import Final

from penstock.logd.store import FileRange
from penstock.logd.tcp.channel import CHUNK_BYTES, Take, send_copy

SHUTDOWN_S: Final = 5.0
"""Seconds a connection has to say goodbye, before it is cut off."""

_UNSENT_BYTES_MAX: Final = 256 * 1024
"""Bytes that may wait in the transport before the sender waits."""


class EncryptedChannel:
    """As `penstock.logd.tcp.channel.Channel`.

    Args:
        reader: With TLS established.
        writer: Of the same connection; the channel closes it.
        peer: The other side's address.

    Attributes:
        peer, certificate: As `Channel`.
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

"""A TCP relay between two nodes that can be cut, held up, and made to damage what it carries."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """Carries connections to an address.

    Attributes:
        flowing: Clear it to hold back what the listener behind it sends.
        damage_from: Flip a bit of the next answer that is at least so long; 0: of none.
    """

    def __init__(self, target: str) -> None:
        self.address = ""
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.damage_from = 0
        self._target = target.split(":")
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """Break every connection, those that are being made too, and wait for their ends."""
        while self._serving:
            self.cut()
            await asyncio.wait(self._serving, timeout=0.1)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.closing(writer), contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            writers = {writer, far_writer}
            self._writers |= writers
            try:
                there = asyncio.create_task(self._carry(reader, far_writer, back=False))
                back = asyncio.create_task(self._carry(far_reader, writer, back=True))
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                there.cancel()
                back.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
            finally:
                self._writers -= writers
                for each in writers:
                    each.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool
    ) -> None:
        while data := await reader.read(64 * 1024):
            if back:
                await self.flowing.wait()
                if self.damage_from and len(data) >= self.damage_from:
                    self.damage_from = 0
                    data = data[:-1] + bytes([data[-1] ^ 1])
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def relaying(target: str) -> AsyncIterator[Relay]:
    """A relay to a node's address."""
    relay = Relay(target)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()
        await relay.close()
        await server.wait_closed()

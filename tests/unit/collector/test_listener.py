"""What a listener reads of connections before anybody takes it."""

import asyncio
import socket

from penstock.collector.limits import MIB, READ_AHEAD_BYTES, READ_BYTES
from penstock.collector.sources.listener import Listener
from tests.support.waiting import wait_until_async


async def test_a_connection_that_nobody_reads_holds_little() -> None:
    """As one whose source waits for room; its sender is held back by the kernel."""
    readers: list[asyncio.StreamReader] = []

    async def never_read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        readers.append(reader)
        await asyncio.Event().wait()

    listener = Listener("x", never_read, connections_max=1, note=lambda _name, _count: None)
    await listener.listen_tcp("127.0.0.1:0")
    assert listener.endpoint is not None
    host, port = listener.endpoint.split(":")
    with socket.create_connection((host, int(port))) as sender:
        sender.setblocking(False)
        await wait_until_async(lambda: readers)
        held: list[int] = []
        still = 0
        while still < 100:  # turns of the loop in which nothing more was taken
            try:
                sender.send(bytes(MIB))
            except BlockingIOError:
                still += 1
            else:
                still = 0
            await asyncio.sleep(0)
            held.append(len(readers[0]._buffer))  # type: ignore[attr-defined]
        assert READ_AHEAD_BYTES < max(held) <= READ_AHEAD_BYTES + READ_BYTES
    await listener.close()

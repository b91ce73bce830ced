"""What a listener reads of connections before anybody takes it."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import Counter
from pathlib import Path

from penstock.collector.limits import MIB, READ_AHEAD_BYTES, READ_BYTES
from penstock.collector.sources.network.listener import Listener
from penstock.collector.sources.network.tls import ServerTls
from penstock.collector.sources.settings import TlsSection
from tests.support.certificates import Authority
from tests.support.waiting import wait_until_async


async def test_a_connection_that_nobody_reads_holds_little() -> None:
    """As one whose source waits for room; its sender is held back by the kernel."""
    readers: list[asyncio.StreamReader] = []

    async def never_read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        readers.append(reader)
        await asyncio.Event().wait()

    listener = Listener("x", never_read, max_connections=1, note=lambda _name, _count: None)
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
            held.append(len(readers[0]._buffer))  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio tells nowhere else
        assert READ_AHEAD_BYTES < max(held) <= READ_AHEAD_BYTES + READ_BYTES
    await listener.close()


async def test_connections_are_bounded_within_their_handshakes_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.sign("server", "IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own.cert, own.key)
    notes: Counter[str] = Counter()
    said: list[bytes] = []

    async def read_all(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        said.append(await reader.read())

    def note(what: str, count: int) -> None:
        notes[what] += count

    listener = Listener("x", read_all, max_connections=2, note=note)
    await listener.listen_tcp("127.0.0.1:0", context)
    assert listener.endpoint is not None
    host, port = listener.endpoint.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            silent = stack.enter_context(socket.create_connection((host, int(port))))
            silent.send(b"\x16\x03\x01")
        await wait_until_async(lambda: notes["connections_refused"] == 3)
        assert listener.connections == 2
    await wait_until_async(lambda: listener.connections == 0)
    trusting = ssl.create_default_context(cafile=authority.cert)
    for size in (0, 1, 1_000_000):
        _, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
        writer.write(b"x" * size)
        writer.close()
        await wait_until_async(lambda: said)
        assert said.pop() == b"x" * size
    await wait_until_async(lambda: listener.connections == 0)
    await listener.close()


class Late:
    """A connection's handler that begins to read when it is told to."""

    def __init__(self) -> None:
        self.begins = asyncio.Event()
        self.said: list[bytes] = []
        self.transports: list[asyncio.WriteTransport] = []

    async def read_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.transports.append(writer.transport)
        await self.begins.wait()
        self.said.append(await reader.read())


async def test_what_came_before_a_connection_broke_is_read() -> None:
    late = Late()
    listener = Listener("x", late.read_all, max_connections=1, note=lambda _name, _count: None)
    await listener.listen_tcp("127.0.0.1:0")
    assert listener.endpoint is not None
    host, port = listener.endpoint.split(":")
    with socket.create_connection((host, int(port))) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        sender.sendall(b"all of it")
        await wait_until_async(lambda: late.transports)
    await wait_until_async(late.transports[0].is_closing)
    late.begins.set()
    await wait_until_async(lambda: late.said == [b"all of it"])
    await listener.close()


async def test_a_sender_with_tls_that_never_reads_loses_nothing_when_it_closes(
    tmp_path: Path,
) -> None:
    """A session ticket that the sender leaves unread would turn its close into a reset."""
    authority = Authority(tmp_path)
    own = authority.sign("server", "IP:127.0.0.1")
    section = TlsSection(cert_file=own.cert, key_file=own.key)
    late, data = Late(), bytes(4 * READ_AHEAD_BYTES)
    listener = Listener("x", late.read_all, max_connections=1, note=lambda _name, _count: None)
    tls = ServerTls(section, "x", lambda _name, _count: None)
    await listener.listen_tcp("127.0.0.1:0", tls.context)
    assert listener.endpoint is not None
    host, port = listener.endpoint.split(":")
    trusting = ssl.create_default_context(cafile=authority.cert)

    def send() -> None:
        with (
            socket.create_connection((host, int(port))) as plain,
            trusting.wrap_socket(plain, server_hostname=host) as sender,
        ):
            sender.sendall(data)

    await asyncio.to_thread(send)
    late.begins.set()
    await wait_until_async(lambda: [*map(len, late.said)] == [len(data)])
    await listener.close()

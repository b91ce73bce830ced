"""The network of a cluster under the test's control: what each node says to each other and to NATS.

Every node listens where only this network looks for it; others are told the network's address. A
connection between nodes says in its Hello who dialled, so that each direction between two of them
can be held up by itself. What is held up arrives when that ends, as late as it may be; a cut breaks
the connections, and what was under way in them is lost.
"""

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from penstock.logd.wire.logd_peer_pb2 import Hello

NATS: Final = "nats"
"""The other end of what nodes say to the NATS server."""

_HEAD: Final = struct.Struct("<IB")
_CHUNK: Final = 64 * 1024


@dataclass(eq=False)
class _Connection:
    dialer: str
    listener: str
    writers: tuple[asyncio.StreamWriter, ...]

    def is_between(self, one: str, other: str) -> bool:
        return {one, other} == {self.dialer, self.listener}

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Network:
    """Runs on a thread of its own, so that a test that waits does not hold it up."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network")
        self._connections: set[_Connection] = set()
        self._held: dict[tuple[str, str], asyncio.Event] = {}
        self._cut: set[frozenset[str]] = set()
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    def relay(self, listener: str, target: str, *, dialer: str = "") -> str:
        """An address that leads to another one.

        Args:
            listener: Who listens there.
            target: Its address.
            dialer: Who dials; of a node, whose Hello says it, nothing.
        """
        host, port = target.rsplit(":", 1)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(reader, writer, dialer, listener, (host, int(port)))
            writer.transport.abort()

        async def listen() -> str:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            self._servers.append(server)
            return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result(20)

    def hold(self, *flows: tuple[str, str]) -> None:
        """Hold up what the first says to the second of each pair, until `heal`."""
        self._do(lambda: [self._held.setdefault(flow, asyncio.Event()) for flow in flows])

    def cut(self, one: str, others: Iterable[str]) -> None:
        """Break the connections between one end and others, and let none be made."""
        pairs = [(one, other) for other in others if other != one]

        def cut() -> None:
            self._cut.update(map(frozenset, pairs))
            for connection in list(self._connections):
                if any(connection.is_between(*pair) for pair in pairs):
                    connection.abort()

        self._do(cut)

    def heal(self) -> None:
        """Let everything through, and what was held up first."""

        def heal() -> None:
            self._cut.clear()
            for event in self._held.values():
                event.set()
            self._held.clear()

        self._do(heal)

    def _do(self, work: Callable[[], object]) -> None:
        """Do it on the network's thread, and wait until it is done."""

        async def done() -> None:
            work()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(20)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dialer: str,
        listener: str,
        target: tuple[str, int],
    ) -> None:
        hello = b"" if dialer else await _hello(reader)
        dialer = dialer or Hello.FromString(hello[_HEAD.size :]).node
        if frozenset((dialer, listener)) in self._cut:
            return
        far_reader, far_writer = await asyncio.open_connection(*target)
        connection = _Connection(dialer, listener, (writer, far_writer))
        self._connections.add(connection)
        try:
            there = asyncio.create_task(self._carry(reader, far_writer, (dialer, listener), hello))
            back = asyncio.create_task(self._carry(far_reader, writer, (listener, dialer)))
            done, others = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                task.cancel()
            await asyncio.gather(*done, *others, return_exceptions=True)
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        flow: tuple[str, str],
        first: bytes = b"",
    ) -> None:
        data = first or await reader.read(_CHUNK)
        while data:
            while (held := self._held.get(flow)) is not None:
                await held.wait()
            writer.write(data)
            await writer.drain()
            data = await reader.read(_CHUNK)
        while (held := self._held.get(flow)) is not None:  # the end is held up too
            await held.wait()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for event in self._held.values():
            event.set()
        self._held.clear()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        while tasks:
            for connection in self._connections:
                connection.abort()
            _, tasks = await asyncio.wait(tasks, timeout=0.1)


async def _hello(reader: asyncio.StreamReader) -> bytes:
    """The first frame of a node that dials, whole."""
    head = await reader.readexactly(_HEAD.size)
    length, _ = _HEAD.unpack(head)
    return head + await reader.readexactly(length)

"""Fluent forward messages, over TCP or a Unix stream socket.

Messages of one read are one unit of the spool. Senders that name a chunk get its ack once the unit
is durable; there is no refusal in this protocol: whoever asked for an ack and gets none sends
again, whoever did not is told nothing, so what cannot be taken is counted as dropped.
"""

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path

import structlog
from typing_extensions import override

from penstock.collector.core.forward import Message, MessageReader, encode_ack
from penstock.collector.core.ledger import Ledger
from penstock.collector.errors import RemoteProtocolError, SpoolFailedError, SpoolFullError
from penstock.collector.limits import READ_BYTES, UNIT_RECORDS_MAX
from penstock.collector.sources.listener import Listener
from penstock.collector.sources.source import Source
from penstock.collector.spool import Spool, Unit
from penstock.service.clock import Clock

_SOCKET_MODE = 0o660


class ForwardSource(Source):
    """Listens on one address.

    Args:
        address: `HOST:PORT`, or the path of a Unix socket.
        service: Service name of every record, or ``from_tag``: the tag up to its first dot.
    """

    def __init__(
        self,
        name: str,
        address: str | Path,
        service: str,
        *,
        spool: Spool,
        ledger: Ledger,
        clock: Clock,
    ) -> None:
        self.name = name
        self._address = address
        self._service = service
        self._spool = spool
        self._ledger = ledger
        self._clock = clock
        self._listener = Listener(name, self._serve)
        self._log = structlog.get_logger().bind(source=name)

    @property
    @override
    def endpoint(self) -> str | None:
        return self._listener.endpoint

    @override
    async def start(self) -> None:
        if isinstance(self._address, Path):
            await self._listener.listen_unix(self._address, _SOCKET_MODE)
        else:
            await self._listener.listen_tcp(self._address)

    @override
    async def run(self) -> None:
        await asyncio.Event().wait()

    @override
    async def stop(self) -> None:
        await self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        messages = MessageReader()
        while data := await reader.read(READ_BYTES):
            try:
                complete = messages.feed(data)
            except RemoteProtocolError as error:
                self._ledger[self.name].notes["protocol_errors"] += 1
                self._log.warning("a sender broke the protocol", error=str(error))
                return
            for group in _groups(complete):
                await self._take(group, writer)
            await writer.drain()

    async def _take(self, messages: list[Message], writer: asyncio.StreamWriter) -> None:
        unit = Unit(
            source=self.name,
            format="forward",
            payload=b"".join(message.raw for message in messages),
            count=sum(message.count for message in messages),
            received_ns=self._clock.unix_ns(),
            meta={"service": self._service},
        )
        try:
            future = await self._spool.put(unit)
        except SpoolFullError:
            self._give_up(messages, "spool_full")
            return
        except SpoolFailedError:
            self._give_up(messages, "spool_failed")
            return
        assert future is not None
        future.add_done_callback(functools.partial(self._answer, messages, writer))

    def _answer(
        self, messages: list[Message], writer: asyncio.StreamWriter, done: "asyncio.Future[int]"
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            self._give_up(messages, "spool_failed")
            return
        if not writer.is_closing():
            for message in messages:
                if message.chunk is not None:
                    writer.write(encode_ack(message.chunk))

    def _give_up(self, messages: list[Message], reason: str) -> None:
        """Count what nobody will send again; the rest is its sender's, who gets no ack."""
        lost = sum(message.count for message in messages if message.chunk is None)
        told = sum(message.count for message in messages if message.chunk is not None)
        if lost:
            self._ledger.dropped(self.name, reason, lost)
        if told:
            self._ledger[self.name].notes[f"refused_{reason}"] += told


def _groups(messages: list[Message]) -> Iterator[list[Message]]:
    """Messages in order, in as few units as the limit of records allows."""
    group: list[Message] = []
    count = 0
    for message in messages:
        if group and count + message.count > UNIT_RECORDS_MAX:
            yield group
            group, count = [], 0
        group.append(message)
        count += message.count
    if group:
        yield group

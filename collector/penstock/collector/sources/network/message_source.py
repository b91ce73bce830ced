"""Base of the sources of messages without acknowledgement, over TCP, UDP and Unix sockets.

What a connection brings is taken as fast as the spool has room and the disk works: TCP senders are
held back, and what UDP senders bring beyond `DATAGRAM_QUEUE_BYTES_MAX` is counted as dropped. What
was read and is not durable yet when the process is killed is lost.
"""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Final, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.limits import READ_BYTES
from penstock.collector.sources.network.framing import PADDING, Cutter, Message, pack_messages
from penstock.collector.sources.network.listener import Datagrams, Listener, Peer, finish
from penstock.collector.sources.network.tls import ServerTls
from penstock.collector.sources.settings import REUSE_PORT, ListeningSettings, TlsSection
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import Payload, RetryBuffer, SpoolWriter
from penstock.service import HostPort, SocketPath
from penstock.service.config import OCTAL

_DATAGRAM_OVERHEAD_BYTES: Final = 256
"""Bytes that holding a message costs besides its own: there may be millions of short ones."""
_WATCH_S: Final = 1.0
"""Pause between looks at the kernel's own losses."""


class MessageSettings(ListeningSettings):
    """Where messages are received: on a UDP port, a TCP port, a Unix socket, or several of them."""

    udp: HostPort | None = None
    tcp: HostPort | None = None
    path: SocketPath | None = Field(default=None, description="of a Unix socket")
    mode: int = Field(default=0o666, ge=0, le=0o777, json_schema_extra={"format": OCTAL})
    reuse_port: bool = Field(default=False, description=REUSE_PORT)
    tls: TlsSection | None = Field(default=None, description="for `tcp`")
    max_message_bytes: int = Field(ge=480)

    @property
    @override
    def can_be_shared(self) -> bool:
        return self.path is None

    @property
    def path_is_stream(self) -> bool:
        """True if `path` is a stream socket, and no datagram socket."""
        return False

    @model_validator(mode="after")
    def _listens_somewhere(self) -> Self:
        if self.udp is None and self.tcp is None and self.path is None:
            msg = "set `udp`, `tcp` (HOST:PORT) or `path` (a Unix socket)"
            raise ValueError(msg)
        if self.tls is not None and self.tcp is None:
            msg = "`tls` is for `tcp`, which is not set"
            raise ValueError(msg)
        return self


@dataclass(slots=True)
class _Connection:
    """The state of one sender's connection.

    Attributes:
        charge: Charge of the bytes of a message that has begun.
    """

    peer: str
    cutter: Cutter
    charge: Charge
    ended: bool = False


class MessageSource(Source):
    """Listens, and hands messages to the spool; a subclass cuts them and names their format.

    Attributes:
        format: The format of its units, which hold packed messages.
    """

    format: ClassVar[str]

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, spool_writer=context.spool_writer())

    def __init__(self, section: MessageSettings, *, spool_writer: SpoolWriter) -> None:
        self.name = spool_writer.source
        self.spool_writer = spool_writer
        self._listen = section
        self._held = RetryBuffer(spool_writer)
        self._datagrams = Datagrams(self.name, self._on_datagram)
        self._local_datagrams = Datagrams(self.name, self._on_datagram)
        self._listener = self._make_listener()
        self._local_listener = self._make_listener()
        self._queue: list[tuple[str, bytes]] = []
        self._queue_bytes = 0
        self._arrived = asyncio.Event()

    def _make_listener(self) -> Listener:
        return Listener(
            self.name,
            self._serve,
            max_connections=self._listen.max_connections,
            note=self.spool_writer.note,
            descriptors=self.spool_writer.share.descriptors,
        )

    @abstractmethod
    def cutter(self) -> Cutter:
        """A cutter for a new connection."""

    @property
    @abstractmethod
    def meta(self) -> Mapping[str, Any]:
        """What the decoder of the format needs to know besides the messages and their sender."""

    def message_of(self, datagram: bytes, peer: str) -> Message | None:
        """The message that a datagram is or completes; None when there is none yet.

        A datagram is one message, whatever is in it. `peer` is its sender's address.
        """
        del peer
        text = datagram.rstrip(PADDING)
        return self.bounded(text) if text else None

    def bounded(self, text: bytes) -> Message:
        """A whole message, cut where it is longer than allowed."""
        most = self._listen.max_message_bytes
        return Message(text[:most], truncated=len(text) > most)

    def watch(self) -> None:
        """Look after what has waited too long; called after each batch, once a second at least."""

    def abandon(self) -> int:
        """Give up what is not whole because the source stops; returns how many messages it was."""
        return 0

    @property
    @override
    def endpoint(self) -> str | None:
        return next(iter(self.endpoints.values()), None)

    @property
    @override
    def endpoints(self) -> Mapping[str, str]:
        found = {
            "tcp": self._listener.endpoint,
            "udp": self._datagrams.endpoint,
            "path": self._local_listener.endpoint or self._local_datagrams.endpoint,
        }
        return {part: address for part, address in found.items() if address is not None}

    @override
    async def start(self) -> None:
        section = self._listen
        if section.udp is not None:
            await self._datagrams.listen(section.udp, key="udp", reuse_port=section.reuse_port)
        if section.path is not None:
            local = self._local_listener if section.path_is_stream else self._local_datagrams
            await local.listen_unix(section.path, section.mode)
        if section.tcp is not None:
            tls = ServerTls.of(section.tls, self.name, self.spool_writer.note)
            await self._listener.listen_tcp(
                section.tcp,
                tls.context if tls else None,
                key="tcp",
                reuse_port=section.reuse_port,
            )

    @override
    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await self._arrived.wait()
            await self._take_datagrams()
            self.watch()
            self.spool_writer.note("datagrams_lost_by_kernel", self._datagrams.newly_lost())

    @override
    async def stop(self) -> None:
        self._datagrams.close()
        self._local_datagrams.close()
        try:
            await self._listener.close()
            await self._local_listener.close()
            await self._take_datagrams()
            await self._held.finish()
        finally:  # something is left when the time for stopping is over
            self._held.close()
            left = sum(1 for _ in self._messages())
            if left := left + self.abandon():
                self.spool_writer.dropped("stopped", left)

    def _on_datagram(self, data: bytes, peer: Peer) -> None:
        if self._queue_bytes >= self.spool_writer.limits.datagram_queue_bytes_max:
            self.spool_writer.dropped("receive_queue_full", 1)
            return
        self._queue.append((str(peer[0]), data))
        self._queue_bytes += len(data) + _DATAGRAM_OVERHEAD_BYTES
        self._arrived.set()

    def _messages(self) -> Iterator[tuple[str, Message]]:
        """Empty the queue; yields whole messages with the addresses of their senders."""
        queue, self._queue, self._queue_bytes = self._queue, [], 0
        for peer, data in queue:
            if (message := self.message_of(data, peer)) is not None:
                yield peer, message

    async def _take_datagrams(self) -> None:
        self._arrived.clear()
        payloads: list[Payload] = []
        for peer, group in groupby(self._messages(), key=lambda item: item[0]):
            messages = [message for _, message in group]
            payloads += [self._payload(part, peer) for part in _parts(messages)]
        await self._hand_over(payloads, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = writer.get_extra_info("peername")  # of a Unix socket no address, but an empty text
        peer = str(name[0]) if name else ""
        with Charge(self.spool_writer.share) as charge:
            connection = _Connection(peer, self.cutter(), charge)
            try:
                while await self._receive(reader, connection):
                    pass
            finally:
                rest = connection.cutter.flush()
                if rest is not None:
                    await self._take_rest(rest, connection)

    async def _receive(self, reader: asyncio.StreamReader, connection: "_Connection") -> bool:
        """Take what one read brings; false when the connection must end.

        A message that has begun holds room, so it may neither stand still nor wait for ever.
        """
        begun, limits = connection.cutter.waiting_bytes > 0, self.spool_writer.limits
        try:
            async with asyncio.timeout(limits.unfinished_timeout_s if begun else None):
                data = await reader.read(READ_BYTES)
        except TimeoutError:
            self.spool_writer.note("messages_unfinished")
            return False
        if data:
            wait_s = limits.unfinished_wait_s if begun else None
            await finish(self._take_read(data, connection, wait_s))
        return bool(data) and not connection.ended

    async def _take_read(
        self, data: bytes, connection: "_Connection", timeout_s: float | None
    ) -> None:
        cutter, charge = connection.cutter, connection.charge
        messages = [message for message in cutter.feed(data) if message.text]
        if (fault := cutter.fault) is not None:
            connection.ended = True
            self.spool_writer.note("protocol_errors")
            self.spool_writer.log.warning("protocol_error", error=fault.text, peer=connection.peer)
            if fault.lost:
                self.spool_writer.dropped("message_too_large", fault.lost)
        try:
            room = await charge.wait(len(data), timeout_s)
        except asyncio.CancelledError:
            self.spool_writer.dropped("stopped", len(messages))
            raise
        if not room:
            connection.ended = True
            self.spool_writer.note("connections_ended_no_room")
            self.spool_writer.dropped("no_room", len(messages) + (cutter.flush() is not None))
            return
        with charge.split(max(0, charge.size - cutter.waiting_bytes)) as whole:
            await self._take(messages, connection.peer, whole)

    async def _take_rest(self, rest: Message, connection: "_Connection") -> None:
        """Take what a connection ended with, unless the time for stopping is over already."""
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling() > 1:
            self.spool_writer.dropped("stopped", 1)
            return
        await finish(self._take([rest], connection.peer, connection.charge))

    async def _take(self, messages: list[Message], peer: str, charge: Charge) -> None:
        payloads = [self._payload(part, peer) for part in _parts(messages)]
        await self._hand_over(payloads, charge)

    async def _hand_over(self, payloads: list[Payload], held: Charge | None) -> None:
        """Return once they are on their way into the spool; `held` is what holds them already."""
        for index, payload in enumerate(payloads):
            size = len(payload.data)
            share = self.spool_writer.share
            charge = Charge(share) if held is None else held.split(min(size, held.size))
            try:
                if held is None:
                    await charge.wait(min(size, share.bytes_max))
                await self._held.take(payload, charge)
            except asyncio.CancelledError:
                charge.close()
                self.spool_writer.dropped("stopped", sum(one.count for one in payloads[index:]))
                raise

    def _payload(self, messages: list[Message], peer: str) -> Payload:
        truncated = [index for index, message in enumerate(messages) if message.truncated]
        self.spool_writer.note("messages_truncated", len(truncated))
        meta = {**self.meta, "peer": peer, "truncated": truncated}
        data = pack_messages(message.text for message in messages)
        return Payload(self.format, data, len(messages), meta)


def _parts(messages: list[Message]) -> Iterator[list[Message]]:
    """Messages in units of a size that others do not have to wait for."""
    part: list[Message] = []
    size = 0
    for message in messages:
        part.append(message)
        size += len(message.text)
        if size >= READ_BYTES * 4:
            yield part
            part, size = [], 0
    if part:
        yield part

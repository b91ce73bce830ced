"""Syslog over UDP, TCP, TLS and a Unix datagram socket; the protocol has no acknowledgement.

What a connection brings is taken as fast as the spool has room and the disk works: TCP senders are
held back, and what UDP senders bring beyond `DATAGRAM_QUEUE_BYTES_MAX` is counted as dropped. What
was read and is not durable yet when the process is killed is lost.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from penstock.collector.decode.timestamps import known_zone
from penstock.collector.limits import KIB, LINE_BYTES_MAX, READ_BYTES
from penstock.collector.sources.network.listener import Datagrams, Listener, Peer, finish
from penstock.collector.sources.network.tls import ServerTls
from penstock.collector.sources.settings import REUSE_PORT, ListeningSettings, TlsSection
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.sources.syslog.framing import SyslogCutter, SyslogMessage, pack_messages
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import Payload, RetryBuffer, SpoolWriter
from penstock.service import HostPort, SocketPath
from penstock.service.config import OCTAL

_PADDING: Final = b"\r\n\0"
_DATAGRAM_OVERHEAD_BYTES: Final = 256
"""Bytes that holding a message costs besides its own: there may be millions of short ones."""
_WATCH_S: Final = 1.0
"""Pause between looks at the kernel's own losses."""


class SyslogSettings(ListeningSettings):
    """Syslog messages, RFC 5424 and RFC 3164, over UDP, TCP, TLS or a Unix datagram socket."""

    type: Literal["syslog"]
    udp: HostPort | None = "127.0.0.1:5140"
    tcp: HostPort | None = "127.0.0.1:5140"
    path: SocketPath | None = Field(
        default=None, description="of a Unix datagram socket, as programs write to /dev/log"
    )
    mode: int = Field(default=0o666, ge=0, le=0o777, json_schema_extra={"format": OCTAL})
    reuse_port: bool = Field(default=False, description=REUSE_PORT)
    tls: TlsSection | None = Field(default=None, description="for `tcp`")
    service: str = Field(default="from_app", min_length=1)
    timezone: str = Field(default="UTC", description="of times that name none (RFC 3164)")
    max_message_bytes: int = Field(default=LINE_BYTES_MAX, ge=480, le=64 * KIB)

    @property
    @override
    def can_be_shared(self) -> bool:
        return self.path is None

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return known_zone(value)

    @model_validator(mode="after")
    def _listens_somewhere(self) -> "SyslogSettings":
        if self.udp is None and self.tcp is None and self.path is None:
            msg = "set `udp`, `tcp` (HOST:PORT) or `path` (a Unix socket)"
            raise ValueError(msg)
        if self.tls is not None and self.tcp is None:
            msg = "`tls` is for `tcp`, which is not set"
            raise ValueError(msg)
        return self


@dataclass(slots=True)
class _Connection:
    """A sender's.

    Attributes:
        charge: Charge of the bytes of a message that has begun.
    """

    peer: str
    cutter: SyslogCutter
    charge: Charge
    ended: bool = False


class SyslogSource(Source):
    """Listens on a UDP port, a TCP port, a Unix datagram socket, or several of them."""

    settings = SyslogSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, spool_writer=context.spool_writer())

    def __init__(self, section: SyslogSettings, *, spool_writer: SpoolWriter) -> None:
        self.name = spool_writer.source
        self._section = section
        self._spool_writer = spool_writer
        self._held = RetryBuffer(spool_writer)
        self._datagrams = Datagrams(self.name, self._on_datagram)
        self._local = Datagrams(self.name, self._on_datagram)
        self._listener = Listener(
            self.name,
            self._serve,
            max_connections=section.max_connections,
            note=spool_writer.note,
            descriptors=spool_writer.share.descriptors,
        )
        self._queue: list[tuple[str, bytes]] = []
        self._queue_bytes = 0
        self._arrived = asyncio.Event()

    @property
    @override
    def endpoint(self) -> str | None:
        return self._listener.endpoint or self._datagrams.endpoint or self._local.endpoint

    @property
    @override
    def endpoints(self) -> Mapping[str, str]:
        found = {
            "tcp": self._listener.endpoint,
            "udp": self._datagrams.endpoint,
            "path": self._local.endpoint,
        }
        return {part: address for part, address in found.items() if address is not None}

    @override
    async def start(self) -> None:
        section = self._section
        if section.udp is not None:
            await self._datagrams.listen(section.udp, key="udp", reuse_port=section.reuse_port)
        if section.path is not None:
            await self._local.listen_unix(section.path, section.mode)
        if section.tcp is not None:
            tls = ServerTls.of(section.tls, self.name, self._spool_writer.note)
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
            self._spool_writer.note("datagrams_lost_by_kernel", self._datagrams.newly_lost())

    @override
    async def stop(self) -> None:
        self._datagrams.close()
        self._local.close()
        try:
            await self._listener.close()
            await self._take_datagrams()
            await self._held.finish()
        finally:  # something is left when the time for stopping is over
            self._held.close()
            queue, self._queue, self._queue_bytes = self._queue, [], 0
            if left := sum(1 for _, data in queue if self._cut(data).text):
                self._spool_writer.dropped("stopped", left)

    def _on_datagram(self, data: bytes, peer: Peer) -> None:
        if self._queue_bytes >= self._spool_writer.limits.datagram_queue_bytes_max:
            self._spool_writer.dropped("receive_queue_full", 1)
            return
        self._queue.append((str(peer[0]), data))
        self._queue_bytes += len(data) + _DATAGRAM_OVERHEAD_BYTES
        self._arrived.set()

    async def _take_datagrams(self) -> None:
        self._arrived.clear()
        queue, self._queue, self._queue_bytes = self._queue, [], 0
        payloads: list[Payload] = []
        for peer, group in groupby(queue, key=lambda item: item[0]):
            messages = [message for _, data in group if (message := self._cut(data)).text]
            payloads += [self._payload(part, peer) for part in _parts(messages)]
        await self._hand_over(payloads, None)

    def _cut(self, datagram: bytes) -> SyslogMessage:
        """A datagram is one message, whatever is in it."""
        text = datagram.rstrip(_PADDING)
        most = self._section.max_message_bytes
        return SyslogMessage(text[:most], truncated=len(text) > most)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = str((writer.get_extra_info("peername") or ("",))[0])
        with Charge(self._spool_writer.share) as charge:
            connection = _Connection(peer, SyslogCutter(self._section.max_message_bytes), charge)
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
        begun, limits = connection.cutter.waiting_bytes > 0, self._spool_writer.limits
        try:
            async with asyncio.timeout(limits.unfinished_timeout_s if begun else None):
                data = await reader.read(READ_BYTES)
        except TimeoutError:
            self._spool_writer.note("messages_unfinished")
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
        try:
            room = await charge.wait(len(data), timeout_s)
        except asyncio.CancelledError:
            self._spool_writer.dropped("stopped", len(messages))
            raise
        if not room:
            connection.ended = True
            self._spool_writer.note("connections_ended_no_room")
            self._spool_writer.dropped("no_room", len(messages) + (cutter.flush() is not None))
            return
        with charge.split(max(0, charge.size - cutter.waiting_bytes)) as whole:
            await self._take(messages, connection.peer, whole)

    async def _take_rest(self, rest: SyslogMessage, connection: "_Connection") -> None:
        """Take what a connection ended with, unless the time for stopping is over already."""
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling() > 1:
            self._spool_writer.dropped("stopped", 1)
            return
        await finish(self._take([rest], connection.peer, connection.charge))

    async def _take(self, messages: list[SyslogMessage], peer: str, charge: Charge) -> None:
        payloads = [self._payload(part, peer) for part in _parts(messages)]
        await self._hand_over(payloads, charge)

    async def _hand_over(self, payloads: list[Payload], held: Charge | None) -> None:
        """Return once they are on their way into the spool; `held` is what holds them already."""
        for index, payload in enumerate(payloads):
            size = len(payload.data)
            share = self._spool_writer.share
            charge = Charge(share) if held is None else held.split(min(size, held.size))
            try:
                if held is None:
                    await charge.wait(min(size, share.bytes_max))
                await self._held.take(payload, charge)
            except asyncio.CancelledError:
                charge.close()
                self._spool_writer.dropped("stopped", sum(one.count for one in payloads[index:]))
                raise

    def _payload(self, messages: list[SyslogMessage], peer: str) -> Payload:
        truncated = [index for index, message in enumerate(messages) if message.truncated]
        self._spool_writer.note("messages_truncated", len(truncated))
        meta = {
            "service": self._section.service,
            "timezone": self._section.timezone,
            "peer": peer,
            "truncated": truncated,
        }
        data = pack_messages(message.text for message in messages)
        return Payload("syslog", data, len(messages), meta)


def _parts(messages: list[SyslogMessage]) -> Iterator[list[SyslogMessage]]:
    """Messages in units of a size that others do not have to wait for."""
    part: list[SyslogMessage] = []
    size = 0
    for message in messages:
        part.append(message)
        size += len(message.text)
        if size >= READ_BYTES * 4:
            yield part
            part, size = [], 0
    if part:
        yield part

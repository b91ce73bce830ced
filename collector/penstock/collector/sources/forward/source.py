"""Fluent forward messages, over TCP, TLS or a Unix stream socket.

Messages of one read are one unit of the spool. Senders that name a chunk get its ack once the unit
is durable; there is no refusal in this protocol: a sender that asked for an ack and gets none
sends again; another one would not know, so what cannot be taken is held, and nothing more is read.
A datagram on the same port is a heartbeat and is answered.
"""

import asyncio
import functools
import secrets
import socket
from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector import failpoints
from penstock.collector.errors import RemoteProtocolError, SpoolFailedError, SpoolFullError
from penstock.collector.limits import (
    FRAGMENTS_BYTES_MAX,
    HANDSHAKE_TIMEOUT_S,
    READ_BYTES,
    UNIT_RECORDS_MAX,
)
from penstock.collector.sources.forward.fragments import Gathering
from penstock.collector.sources.forward.protocol import (
    NONCE_BYTES,
    Handshake,
    Message,
    MessageReader,
    Secrets,
    encode_ack,
)
from penstock.collector.sources.network.listener import Datagrams, Listener, Peer, finish
from penstock.collector.sources.network.tls import ServerTls
from penstock.collector.sources.settings import (
    REUSE_PORT,
    ListeningSettings,
    TlsSection,
    read_secret,
)
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import Payload, RetryBuffer, SpoolWriter
from penstock.service import HostPort, SocketPath
from penstock.service.config_types import Secret

_SOCKET_MODE = 0o660
_HEARTBEAT = b"\0"


class ForwardSettings(ListeningSettings):
    """Fluent forward messages over TCP, TLS or a Unix stream socket; chunks are acknowledged."""

    type: Literal["forward"]
    listen: HostPort | None = None
    path: SocketPath | None = None
    reuse_port: bool = Field(default=False, description=REUSE_PORT)
    tls: TlsSection | None = None
    shared_key: Secret | None = Field(default=None, description="senders must prove it")
    users: dict[str, Secret] = Field(default={}, description="names and passwords besides it")
    service: str = Field(default="from_tag", min_length=1)

    @override
    def secrets(self) -> Iterator[tuple[str, Secret]]:
        if self.shared_key is not None:
            yield "shared_key", self.shared_key
        yield from ((f"users.{name}", secret) for name, secret in self.users.items())

    @property
    @override
    def can_be_shared(self) -> bool:
        return self.listen is not None

    @model_validator(mode="after")
    def _listens_somewhere(self) -> "ForwardSettings":
        if (self.listen is None) == (self.path is None):
            msg = "set either `listen` (HOST:PORT) or `path` (a Unix socket)"
            raise ValueError(msg)
        if self.tls is not None and self.listen is None:
            msg = "`tls` is for `listen`; a Unix socket needs none"
            raise ValueError(msg)
        if self.users and self.shared_key is None:
            msg = "`users` needs a `shared_key`: the protocol has no users without one"
            raise ValueError(msg)
        return self


class ForwardSource(Source):
    """Listens on one address."""

    settings = ForwardSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, spool_writer=context.spool_writer())

    def __init__(self, section: ForwardSettings, *, spool_writer: SpoolWriter) -> None:
        self.name = spool_writer.source
        self._section = section
        self._spool_writer = spool_writer
        self._held = RetryBuffer(spool_writer)
        self._unread: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._listener = Listener(
            self.name,
            self._serve,
            max_connections=section.max_connections,
            note=spool_writer.note,
            descriptors=spool_writer.share.descriptors,
        )
        self._heartbeats = Datagrams(self.name, self._beat)
        # Clients refuse a server that has their own host's name, and they are often on ours.
        self._host = f"penstock.{socket.gethostname()}"

    @property
    @override
    def endpoint(self) -> str | None:
        return self._listener.endpoint

    @override
    async def start(self) -> None:
        section = self._section
        for key, secret in section.secrets():  # without one of them no sender can log in
            read_secret(secret, f"source {self.name}: {key}")
        if section.path is not None:
            await self._listener.listen_unix(section.path, _SOCKET_MODE)
            return
        assert section.listen is not None
        tls = ServerTls.of(section.tls, self.name, self._spool_writer.note)
        await self._listener.listen_tcp(
            section.listen, tls.context if tls else None, reuse_port=section.reuse_port
        )
        assert self._listener.endpoint is not None
        await self._heartbeats.listen(self._listener.endpoint, reuse_port=section.reuse_port)

    @override
    async def run(self) -> None:
        await asyncio.Event().wait()

    @override
    async def stop(self) -> None:
        self._heartbeats.close()
        try:
            await self._listener.close()
            await self._held.finish()
        finally:
            self._held.close()

    def _beat(self, _: bytes, peer: Peer) -> None:
        self._heartbeats.answer(_HEARTBEAT, peer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        messages = MessageReader()
        try:
            with Charge(self._spool_writer.share) as charge:
                if self._section.shared_key is not None:
                    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                        complete = await self._shake_hands(messages, reader, writer)
                    await charge.wait(sum(len(message.raw) for message in complete))
                    await finish(self._take_all(complete, writer, charge))
                await self._receive(messages, reader, writer, charge)
        except RemoteProtocolError as error:
            self._spool_writer.note("protocol_errors")
            self._spool_writer.log.warning("protocol_error", error=str(error))

    async def _receive(
        self,
        messages: MessageReader,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        charge: Charge,
    ) -> None:
        """Take what one connection brings until it ends.

        Who has to wait for room holds back its sender. What is gathered of a line that has begun
        gives way first; but who holds the beginning of a message must not wait for others who do:
        its connection ends.
        """
        gathering = Gathering[Message](
            FRAGMENTS_BYTES_MAX, self._spool_writer.limits.fragments_wait_s
        )
        try:
            while await self._receive_some(messages, gathering, reader, writer, charge):
                pass
        finally:
            if left := gathering.flush():
                await finish(self._take_all(left, writer, charge, messages.waiting_bytes))

    async def _receive_some(
        self,
        messages: MessageReader,
        gathering: Gathering[Message],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        charge: Charge,
    ) -> bool:
        """Take what one read brings; false when nothing more is to be read."""
        messages.check()
        limits = self._spool_writer.limits
        begun_bytes = messages.waiting_bytes
        data = await self._read(messages, gathering, reader)
        if data is None:
            return False
        complete = messages.feed(data) if data else []
        try:
            # Who waits for room must not hold any.
            if gathering.size and not charge.share.is_free(len(data)):
                await finish(self._take_all(gathering.flush(), writer, charge, begun_bytes))
            room = await charge.wait(len(data), limits.unfinished_wait_s if begun_bytes else None)
        except asyncio.CancelledError:
            self._give_up(complete, "stopped")
            raise
        if not room:
            self._spool_writer.note("connections_ended_no_room")
            self._give_up(complete, "no_room")
            return False
        ready = gathering.add(complete, asyncio.get_running_loop().time())
        kept_bytes = messages.waiting_bytes + gathering.size
        await finish(self._take_all(ready, writer, charge, kept_bytes))
        await writer.drain()  # not for ever: `_end_unread`
        return True

    async def _read(
        self,
        messages: MessageReader,
        gathering: Gathering[Message],
        reader: asyncio.StreamReader,
    ) -> bytes | None:
        """Read on: empty when the gathered records waited long enough, None at the end."""
        begun = messages.waiting_bytes > 0
        wait_s = self._spool_writer.limits.unfinished_timeout_s if begun else None
        if gathering.size:
            wait_s = max(0.0, gathering.until_s - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(wait_s):
                data = await reader.read(READ_BYTES)
        except TimeoutError:
            if gathering.size:
                return b""
            self._spool_writer.note("messages_unfinished")
            return None
        if not data:
            self._spool_writer.note("messages_unfinished", int(begun))
            return None
        return data

    def _secrets(self) -> Secrets:
        """Read the secrets as they are now.

        Raises:
            OSError: It cannot be read.
        """
        section = self._section
        assert section.shared_key is not None
        users = {name: secret.read() for name, secret in section.users.items()}
        return Secrets(section.shared_key.read(), users)

    async def _shake_hands(
        self, messages: MessageReader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> list[Message]:
        """Let the sender prove that it knows the key; returns what it sent along already.

        Raises:
            RemoteProtocolError: It does not, or went away.
        """
        try:
            known = await asyncio.to_thread(self._secrets)
        except OSError as error:
            raise RemoteProtocolError(f"its secrets cannot be read: {error}") from None
        handshake = Handshake(
            known,
            self._host,
            nonce=secrets.token_bytes(NONCE_BYTES),
            auth_salt=secrets.token_bytes(NONCE_BYTES),
        )
        writer.write(handshake.hello())
        values: list[bytes] = []
        size = 0
        while not values:
            data = await reader.read(READ_BYTES)
            size += len(data)
            if not data:
                raise RemoteProtocolError("the connection ended within the handshake")
            values = messages.cut(data)
            if not values and size > READ_BYTES:  # no whole message before authentication
                raise RemoteProtocolError(f"handshake above {READ_BYTES} bytes")
        pong = handshake.answer(values[0])
        writer.write(pong.frame)
        await writer.drain()
        if pong.refusal:
            self._spool_writer.note("handshakes_refused")
            raise RemoteProtocolError(f"handshake: {pong.refusal}")
        return messages.read(values[1:])

    async def _take_all(
        self,
        messages: list[Message],
        writer: asyncio.StreamWriter,
        charge: Charge,
        kept_bytes: int = 0,
    ) -> None:
        """Hand messages over; `charge` keeps what lies here of the next one."""
        groups = list(_groups(messages))
        with charge.split(max(0, charge.size - kept_bytes)) as whole:
            for index, group in enumerate(groups):
                size = min(whole.size, sum(len(message.raw) for message in group))
                part = whole.split(size)
                try:
                    await self._take(group, writer, part)
                except asyncio.CancelledError:
                    part.close()
                    for later in groups[index:]:
                        self._give_up(later, "stopped")
                    raise

    async def _take(
        self, messages: list[Message], writer: asyncio.StreamWriter, charge: Charge
    ) -> None:
        payload = Payload(
            format="forward",
            data=b"".join(message.raw for message in messages),
            count=sum(message.count for message in messages),
            meta={"service": self._section.service},
        )
        if messages[0].chunk is None:
            await self._held.take(payload, charge)
            return
        try:
            future = await self._spool_writer.offer(payload)
        except (SpoolFullError, SpoolFailedError) as error:
            charge.close()
            full = isinstance(error, SpoolFullError)
            self._give_up(messages, "spool_full" if full else "spool_failed")
        else:
            future.add_done_callback(lambda _: charge.close())
            future.add_done_callback(functools.partial(self._answer, messages, writer))

    def _answer(
        self, messages: list[Message], writer: asyncio.StreamWriter, done: "asyncio.Future[int]"
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            self._give_up(messages, "spool_failed")
            return
        failpoints.passed("acked_before_answer")
        if not writer.is_closing():
            for message in messages:
                if message.chunk is not None:
                    writer.write(encode_ack(message.chunk))
            if writer not in self._unread and writer.transport.get_write_buffer_size():
                self._unread[writer] = asyncio.create_task(self._end_unread(writer))

    async def _end_unread(self, writer: asyncio.StreamWriter) -> None:
        """End a connection whose sender reads no acks, also one from which nothing more comes.

        It must not hold room, a place or the acks for ever.
        """
        try:
            async with asyncio.timeout(self._spool_writer.limits.unfinished_timeout_s):
                await writer.drain()
        except TimeoutError:
            self._spool_writer.note("answers_unread")
            writer.transport.abort()
        except OSError:
            pass  # it has ended
        finally:
            del self._unread[writer]

    def _give_up(self, messages: list[Message], reason: str) -> None:
        """Count what nobody will send again; the rest is its sender's, who gets no ack."""
        lost = sum(message.count for message in messages if message.chunk is None)
        if lost:
            self._spool_writer.dropped(reason, lost)
        refused = sum(message.count for message in messages if message.chunk is not None)
        self._spool_writer.note(f"refused_{reason}", refused)


def _groups(messages: list[Message]) -> Iterator[list[Message]]:
    """Messages in order, in as few units as the limit of records allows.

    Those that are acked and those that are not are never in one.
    """
    group: list[Message] = []
    count = 0
    for message in messages:
        full = count + message.count > UNIT_RECORDS_MAX
        if group and (full or (message.chunk is None) != (group[0].chunk is None)):
            yield group
            group, count = [], 0
        group.append(message)
        count += message.count
    if group:
        yield group

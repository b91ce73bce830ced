"""Messages over plain sockets: TCP, TLS, UDP, and Unix stream or datagram sockets.

None of these protocols has an acknowledgement: a sender is held back while the spool has no room.
GELF's chunks are put together here; everything else of a codec is decoded behind the spool.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.decode.senders.gelf import ChunkBuffer, is_chunk, is_compressed
from penstock.collector.limits import KIB, MIB, STRUCTURED_BYTES_MAX
from penstock.collector.sources.network.framing import (
    BinaryHead,
    ByteOrder,
    CountedCutter,
    Cutter,
    DecimalHead,
    DelimitedCutter,
    Framing,
    Message,
)
from penstock.collector.sources.network.message_source import MessageSettings, MessageSource
from penstock.collector.sources.settings import Section
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import SpoolWriter

Codec = Literal["text", "json", "gelf", "cef", "leef", "logfmt"]
_SERVICE_FIELDS: Final = (
    "service.name", "service_name", "service", "app", "application", "container_name",
    "cef.device.product", "leef.device.product",
)  # fmt: skip


class ChunksSection(Section):
    """Bounds of GELF messages that come in chunks, over datagrams."""

    max_messages: int = Field(
        default=1000, ge=1, le=100_000, description="that lack chunks at once"
    )
    max_bytes: int = Field(default=8 * MIB, ge=KIB, le=256 * MIB, description="of them all")
    timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="from a message's first chunk to its last"
    )


class SocketSettings(MessageSettings):
    """Messages over TCP, TLS, UDP or Unix sockets: text, JSON, GELF, CEF, LEEF or logfmt."""

    type: Literal["socket"]
    path_type: Literal["stream", "datagram"] = Field(
        default="datagram", description="of the socket at `path`"
    )
    codec: Codec = "text"
    framing: Framing | None = Field(
        default=None,
        description="of TCP and stream sockets; by default `nul` of the codec gelf, else `newline`",
    )
    prefix_bytes: Literal[1, 2, 4] = Field(default=4, description="of `length_prefix`")
    byte_order: ByteOrder = Field(default="big", description="of `length_prefix`")
    service: str = Field(
        default="socket", min_length=1, description="of messages without any of `service_fields`"
    )
    service_fields: list[str] = Field(
        default=list(_SERVICE_FIELDS),
        max_length=32,
        description="keys that name the service; the first that a message has does",
    )
    max_message_bytes: int = Field(
        default=STRUCTURED_BYTES_MAX,
        ge=480,
        le=MIB,
        description="a message, also after decompression",
    )
    chunks: ChunksSection = ChunksSection()

    @property
    @override
    def path_is_stream(self) -> bool:
        return self.path_type == "stream"

    @property
    def effective_framing(self) -> Framing:
        """The framing of streams, chosen or by the codec."""
        return self.framing or ("nul" if self.codec == "gelf" else "newline")

    @model_validator(mode="after")
    def _frames_something(self) -> Self:
        is_stream = self.tcp is not None or (self.path is not None and self.path_is_stream)
        if self.framing is not None and not is_stream:
            msg = "`framing` is for `tcp` and stream sockets: a datagram is one message"
            raise ValueError(msg)
        return self


class SocketSource(MessageSource):
    """Listens on a UDP port, a TCP port, a Unix socket, or several of them."""

    settings = SocketSettings
    format: ClassVar[str] = "socket"

    def __init__(self, section: SocketSettings, *, spool_writer: SpoolWriter) -> None:
        super().__init__(section, spool_writer=spool_writer)
        self._section = section
        self._chunks = ChunkBuffer(
            max_messages=section.chunks.max_messages,
            max_bytes=section.chunks.max_bytes,
            timeout_s=section.chunks.timeout_s,
        )
        self._chunks_charge = Charge(spool_writer.share)

    @override
    def cutter(self) -> Cutter:
        section = self._section
        match section.effective_framing:
            case "newline":
                return DelimitedCutter(b"\n", section.max_message_bytes)
            case "nul":
                return DelimitedCutter(b"\0", section.max_message_bytes)
            case "octet_counted":
                return CountedCutter(DecimalHead(), section.max_message_bytes)
            case "length_prefix":
                head = BinaryHead(section.prefix_bytes, section.byte_order)
                return CountedCutter(head, section.max_message_bytes)

    @property
    @override
    def meta(self) -> Mapping[str, Any]:
        return meta_of(self._section)

    @override
    def message_of(self, datagram: bytes, peer: str) -> Message | None:
        if self._section.codec != "gelf":
            return super().message_of(datagram, peer)
        whole: bytes | None = datagram
        if is_chunk(datagram):
            whole = self._chunks.add(datagram, peer, asyncio.get_running_loop().time())
            self._account_for_chunks()
        if whole is None:
            return None
        return self.bounded(whole) if is_compressed(whole) else super().message_of(whole, peer)

    @override
    def watch(self) -> None:
        self._chunks.expire(asyncio.get_running_loop().time())
        self._account_for_chunks()

    @override
    def abandon(self) -> int:
        left = len(self._chunks)
        self._chunks_charge.close()
        return left

    def _account_for_chunks(self) -> None:
        """Hold the bytes of chunks in the source's share, and count what was given up."""
        chunks, charge = self._chunks, self._chunks_charge
        while chunks.size > charge.size and not charge.take(chunks.size - charge.size):
            chunks.drop_oldest("no_room", asyncio.get_running_loop().time())
        charge.split(charge.size - chunks.size).close()
        for reason, count in chunks.lost.items():
            self.spool_writer.dropped(reason, count)
        chunks.lost.clear()
        self.spool_writer.note("chunks_ignored", chunks.ignored)
        chunks.ignored = 0


def meta_of(section: SocketSettings) -> dict[str, Any]:
    """What the decoder of messages needs to know of their source."""
    return {
        "codec": section.codec,
        "service": section.service,
        "service_fields": section.service_fields,
        "max_message_bytes": section.max_message_bytes,
    }

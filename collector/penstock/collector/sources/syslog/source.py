"""Syslog over UDP, TCP, TLS and a Unix datagram socket; the protocol has no acknowledgement."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from penstock.collector.decode.timestamps import known_zone
from penstock.collector.limits import KIB, LINE_BYTES_MAX
from penstock.collector.sources.network.framing import Cutter
from penstock.collector.sources.network.message_source import MessageSettings, MessageSource
from penstock.collector.sources.syslog.framing import SyslogCutter
from penstock.collector.spool.writer import SpoolWriter
from penstock.service import HostPort, SocketPath


class SyslogSettings(MessageSettings):
    """Syslog messages, RFC 5424 and RFC 3164, over UDP, TCP, TLS or a Unix datagram socket."""

    type: Literal["syslog"]
    udp: HostPort | None = "127.0.0.1:5140"
    tcp: HostPort | None = "127.0.0.1:5140"
    path: SocketPath | None = Field(
        default=None, description="of a Unix datagram socket, as programs write to /dev/log"
    )
    service: str = Field(default="from_app", min_length=1)
    timezone: str = Field(default="UTC", description="of times that name none (RFC 3164)")
    max_message_bytes: int = Field(default=LINE_BYTES_MAX, ge=480, le=64 * KIB)

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return known_zone(value)


class SyslogSource(MessageSource):
    """Listens on a UDP port, a TCP port, a Unix datagram socket, or several of them."""

    settings = SyslogSettings
    format: ClassVar[str] = "syslog"

    def __init__(self, section: SyslogSettings, *, spool_writer: SpoolWriter) -> None:
        super().__init__(section, spool_writer=spool_writer)
        self._section = section

    @override
    def cutter(self) -> Cutter:
        return SyslogCutter(self._section.max_message_bytes)

    @property
    @override
    def meta(self) -> Mapping[str, Any]:
        return {"service": self._section.service, "timezone": self._section.timezone}

"""StatsD over UDP, TCP and TLS: samples are aggregated, and become metric points at each flush.

Nothing of the protocol is acknowledged: what was received since the last flush is lost when the
process is killed, not when it is stopped. Each sample is counted: received = aggregated + refused,
by reason. What the account calls received are the points, and the records that events become.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

import orjson
from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.lines import log_record
from penstock.collector.decode.metrics import metric_line
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import READ_BYTES, STATSD_LINE_BYTES_MAX
from penstock.collector.sources.line_framing import LineCutter
from penstock.collector.sources.network.listener import Datagrams, Listener, Peer
from penstock.collector.sources.network.tls import ServerTls
from penstock.collector.sources.settings import ListeningSettings, TlsSection
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.sources.statsd.aggregation import Window
from penstock.collector.sources.statsd.protocol import Notice, parse_line
from penstock.collector.spool.writer import Payload, SpoolWriter
from penstock.service import HostPort

_SECOND_NS: Final = 1_000_000_000
_NAMED_MAX: Final = 32
"""Names of unknown fields that the log has; beyond it they are only counted."""


class StatsdSettings(ListeningSettings):
    """StatsD and DogStatsD samples over UDP or TCP, aggregated."""

    type: Literal["statsd"]
    udp: HostPort | None = "127.0.0.1:8125"
    tcp: HostPort | None = None
    tls: TlsSection | None = Field(default=None, description="for `tcp`")
    service: str = Field(default="statsd", min_length=1)
    flush_interval_s: float = Field(default=10.0, ge=0.1, le=3600)
    max_series: int = Field(default=10_000, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _listens_somewhere(self) -> "StatsdSettings":
        if self.udp is None and self.tcp is None:
            msg = "set `udp`, `tcp` or both (HOST:PORT)"
            raise ValueError(msg)
        if self.tls is not None and self.tcp is None:
            msg = "`tls` is for `tcp`, which is not set"
            raise ValueError(msg)
        return self


class StatsdSource(Source):
    """Listens on a UDP port, a TCP port or both.

    Args:
        resource: The points' resource.
    """

    settings = StatsdSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, context.resource, spool_writer=context.spool_writer())

    def __init__(
        self, section: StatsdSettings, resource: Mapping[str, Any], *, spool_writer: SpoolWriter
    ) -> None:
        self.name = spool_writer.source
        self._section = section
        self._resource = {**resource, "service.name": section.service}
        self._spool_writer = spool_writer
        self._window = Window(max_series=section.max_series, now_ns=spool_writer.clock.unix_ns())
        self._notices: list[Notice] = []
        self._unknown: set[str] = set()
        self._datagrams = Datagrams(self.name, self._on_datagram)
        self._listener = Listener(
            self.name,
            self._serve,
            max_connections=section.max_connections,
            note=spool_writer.note,
            descriptors=spool_writer.share.descriptors,
        )
        self._stopping = asyncio.Event()

    @property
    @override
    def endpoint(self) -> str | None:
        return self._datagrams.endpoint or self._listener.endpoint

    @property
    @override
    def endpoints(self) -> Mapping[str, str]:
        found = {"udp": self._datagrams.endpoint, "tcp": self._listener.endpoint}
        return {part: address for part, address in found.items() if address is not None}

    @override
    async def start(self) -> None:
        if self._section.udp is not None:
            await self._datagrams.listen(self._section.udp, key="udp")
        if self._section.tcp is not None:
            tls = ServerTls.of(self._section.tls, self.name, self._spool_writer.note)
            await self._listener.listen_tcp(
                self._section.tcp, tls.context if tls else None, key="tcp"
            )

    @override
    async def run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._section.flush_interval_s):
                    await self._stopping.wait()
            await self._flush()

    @override
    async def stop(self) -> None:
        self._datagrams.close()
        await self._listener.close()
        self._stopping.set()
        await self._flush()

    def _on_datagram(self, data: bytes, _: Peer) -> None:
        for line in data.split(b"\n"):
            self._take(line)

    async def _serve(self, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        cutter = LineCutter(STATSD_LINE_BYTES_MAX + 1)  # one more: the parser tells, and counts
        try:
            while data := await reader.read(READ_BYTES):
                for line in cutter.feed(data):
                    self._take(line.text)
        finally:  # many clients end the last line with the connection
            rest = cutter.flush()
            if rest is not None:
                self._take(rest.text)

    def _take(self, line: bytes) -> None:
        line = line.strip()
        if not line:
            return
        self._spool_writer.note("samples_received")
        try:
            found = parse_line(line)
        except RemoteProtocolError as error:
            self._spool_writer.note("samples_refused_bad_line")
            self._spool_writer.log.debug("sample_malformed", error=str(error))
            return
        if found.unknown:
            self._ignore(found.unknown)
        for what in found.lost:
            self._spool_writer.note(what)
        if isinstance(found, Notice):
            if len(self._notices) >= self._section.max_series:
                self._spool_writer.note("samples_refused_too_many_events")
                return
            self._notices.append(found)
            self._spool_writer.note("samples_aggregated")
            return
        verdict = self._window.add(found).value
        prefix = "samples_" if verdict == "aggregated" else "samples_refused_"
        self._spool_writer.note(prefix + verdict)

    def _ignore(self, names: tuple[str, ...]) -> None:
        """Count fields of a line that are not known, and say once what each is called."""
        self._spool_writer.note("fields_unknown", len(names))
        for name in names:
            if name not in self._unknown and len(self._unknown) < _NAMED_MAX:
                self._unknown.add(name)
                self._spool_writer.log.info("field_unknown", field=name)

    async def _flush(self) -> None:
        self._spool_writer.note("datagrams_lost_by_kernel", self._datagrams.newly_lost())
        self._spool_writer.note("gauges_forgotten", self._window.forgotten_gauges)
        self._window.forgotten_gauges = 0
        now_ns = self._spool_writer.clock.unix_ns()
        notices, self._notices = self._notices, []
        lines = [
            metric_line(
                point.name, point.unit, dict(point.tags), point.typed,
                time_ns=point.time_ns, observed_ns=now_ns, resource=self._resource,
            )
            for point in self._window.flush(now_ns)
        ]  # fmt: skip
        lines += [self._notice_line(notice, now_ns) for notice in notices]
        if lines:
            await self._spool_writer.persist_or_drop(
                Payload("ndjson", b"\n".join(lines), len(lines))
            )

    def _notice_line(self, notice: Notice, now_ns: int) -> bytes:
        time_ns = now_ns if notice.time_s is None else notice.time_s * _SECOND_NS
        facts = {f"dogstatsd.{key}": value for key, value in notice.facts.items()}
        attributes, left_out = flatten({**dict(notice.tags), **facts})
        self._spool_writer.note("attributes_dropped", left_out)
        fields = {"level": notice.level, "message": notice.body}
        record = log_record(fields, attributes, self._resource, now_ns, time_ns=time_ns)
        return orjson.dumps({**record, "event_name": notice.name})

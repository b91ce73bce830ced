"""Network sources on real sockets, with a spool that can be looked into."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.collector.limits import MIB
from penstock.collector.sources.forward.source import ForwardSettings, ForwardSource
from penstock.collector.sources.otlp.settings import OtlpSettings
from penstock.collector.sources.otlp.source import OtlpSource
from penstock.collector.sources.source import Source
from penstock.collector.sources.statsd.source import StatsdSettings, StatsdSource
from penstock.collector.sources.syslog.source import SyslogSettings, SyslogSource
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

Make = Callable[[SpoolingIntake], Source]


@asynccontextmanager
async def listening(
    directory: Path, make: Make, **options: Any
) -> AsyncIterator[tuple[Any, SpoolingIntake]]:
    async with spooling(directory, "net", **options) as spool_writer:
        source = make(spool_writer)
        await source.start()
        try:
            yield source, spool_writer
        finally:
            await source.stop()


def otlp(**options: Any) -> Make:
    section = OtlpSettings(
        type="otlp", grpc="127.0.0.1:0", http="127.0.0.1:0", **{"max_message_bytes": MIB, **options}
    )
    return lambda spool_writer: OtlpSource(section, {}, spool_writer=spool_writer)


def forwarding(**options: Any) -> Make:
    section = ForwardSettings(type="forward", listen="127.0.0.1:0", **options)
    return lambda spool_writer: ForwardSource(section, spool_writer=spool_writer)


def syslog(**options: Any) -> Make:
    section = SyslogSettings(type="syslog", **{"udp": None, "tcp": "127.0.0.1:0", **options})
    return lambda spool_writer: SyslogSource(section, spool_writer=spool_writer)


def statsd(**options: Any) -> Make:
    section = StatsdSettings(type="statsd", udp=None, tcp="127.0.0.1:0", **options)
    return lambda spool_writer: StatsdSource(section, {}, spool_writer=spool_writer)


async def connect(endpoint: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = endpoint.split(":")
    return await asyncio.open_connection(host, int(port))


async def send_datagrams(endpoint: str, *datagrams: bytes) -> None:
    """Send to a UDP socket of this process, and return once it has been read empty."""
    host, _, port = endpoint.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for datagram in datagrams:
            sender.sendto(datagram, (host, int(port)))
    ending = f":{int(port):04X}"

    def is_empty() -> bool:
        rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
        (queue,) = (row[4] for row in rows if row[1].endswith(ending))
        return queue.endswith(":00000000")

    await wait_until_async(is_empty)

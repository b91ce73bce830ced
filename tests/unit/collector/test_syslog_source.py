"""The syslog source on real sockets, with a spool that nobody empties."""

import asyncio
import json
import logging
import logging.handlers
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.limits import SPOOL_WRITER_LIMITS, SpoolWriterLimits
from penstock.collector.sources.syslog.source import SyslogSettings, SyslogSource
from penstock.service import UnavailableError
from tests.support.certificates import Authority
from tests.support.receiving import send_datagrams
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async


@asynccontextmanager
async def listening(
    directory: Path,
    *,
    runs: bool = True,
    limits: SpoolWriterLimits = SPOOL_WRITER_LIMITS,
    **options: Any,
) -> AsyncIterator[tuple[SyslogSource, SpoolingIntake]]:
    """A source; one that does not run takes no datagrams before it is stopped."""
    given = {"type": "syslog", "udp": "127.0.0.1:0", "tcp": "127.0.0.1:0", **options}
    async with spooling(directory, "syslog", limits=limits) as spool_writer:
        source = SyslogSource(SyslogSettings.model_validate(given), spool_writer=spool_writer)
        await source.start()
        running = asyncio.ensure_future(source.run() if runs else asyncio.Event().wait())
        try:
            yield source, spool_writer
        finally:
            await source.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def address(source: SyslogSource, part: str) -> tuple[str, int]:
    host, port = source.endpoints[part].split(":")
    return host, int(port)


def bodies(spool_writer: SpoolingIntake) -> list[str]:
    return [json.loads(line)["body"] for line in spool_writer.lines()]


@pytest.mark.parametrize("part", ["udp", "tcp"])
async def test_the_standard_librarys_handler_is_heard(tmp_path: Path, part: str) -> None:
    async with listening(tmp_path, service="shop") as (source, spool_writer):
        kind = socket.SOCK_DGRAM if part == "udp" else socket.SOCK_STREAM
        handler = logging.handlers.SysLogHandler(address(source, part), socktype=kind)
        for number in range(20):
            record = logging.LogRecord("x", logging.INFO, "", 1, f"number {number}", None, None)
            await asyncio.to_thread(handler.emit, record)
        handler.close()
        await wait_until_async(lambda: len(bodies(spool_writer)) == 20)
        assert bodies(spool_writer) == [f"number {number}" for number in range(20)]
        assert spool_writer.account.difference == 0


async def test_a_connection_that_ends_within_a_message_leaves_what_it_brought(
    tmp_path: Path,
) -> None:
    async with listening(tmp_path) as (source, spool_writer):
        _, writer = await asyncio.open_connection(*address(source, "tcp"))
        writer.write(b"9 <13>whole<13>the rest")
        writer.close()
        await wait_until_async(lambda: bodies(spool_writer) == ["whole", "the rest"])


async def test_what_arrives_faster_than_it_can_be_kept_is_counted(tmp_path: Path) -> None:
    limits = SpoolWriterLimits(datagram_queue_bytes_max=10)
    async with listening(tmp_path, runs=False, limits=limits) as (source, spool_writer):
        await send_datagrams(source.endpoints["udp"], b"<13>abcd", b"<13>efgh")
        await source.stop()
        await wait_until_async(lambda: bodies(spool_writer) == ["abcd"])
        await wait_until_async(
            lambda: spool_writer.account.received == 2
        )  # counted once it is durable
        assert spool_writer.account.dropped == {"receive_queue_full": 1}
        assert spool_writer.account.difference == 0


async def test_a_full_spool_drops_and_counts(tmp_path: Path) -> None:
    async with listening(tmp_path) as (source, spool_writer):
        _, writer = await asyncio.open_connection(*address(source, "tcp"))
        writer.write(b"<13>" + b"x" * 30_000 + b"\n")
        for _ in range(60):
            writer.write(b"<13>" + b"x" * 30_000 + b"\n")
            await writer.drain()
        writer.close()
        await wait_until_async(lambda: spool_writer.account.received == 61)
        assert spool_writer.account.dropped["spool_full"] > 0
        assert spool_writer.account.difference == 0


async def test_tls_carries_the_same(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    own = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    client = authority.sign("client", "DNS:client")
    files = {"cert_file": own.cert, "key_file": own.key, "ca_file": authority.cert}
    async with listening(tmp_path, tls=files, udp=None) as (source, spool_writer):
        assert set(source.endpoints) == {"tcp"}
        context = ssl.create_default_context(cafile=authority.cert)
        _, stranger = await asyncio.open_connection(*address(source, "tcp"), ssl=context)
        stranger.write(b"8 <13>none")
        await wait_until_async(lambda: spool_writer.account.notes["tls_handshakes_failed"] == 1)
        stranger.close()
        context.load_cert_chain(client.cert, client.key)
        _, writer = await asyncio.open_connection(*address(source, "tcp"), ssl=context)
        writer.write(b"8 <13>over TLS"[:10])
        await writer.drain()
        await wait_until_async(lambda: bodies(spool_writer) == ["over"])
        writer.close()


async def test_datagrams_received_before_the_stop_are_kept(tmp_path: Path) -> None:
    async with listening(tmp_path, runs=False) as (source, spool_writer):
        await send_datagrams(source.endpoints["udp"], b"<13>last")
        await source.stop()
        await wait_until_async(lambda: bodies(spool_writer) == ["last"])


async def test_empty_datagrams_take_room_in_the_queue_too(tmp_path: Path) -> None:
    limits = SpoolWriterLimits(datagram_queue_bytes_max=1000)
    async with listening(tmp_path, runs=False, limits=limits) as (source, spool_writer):
        await send_datagrams(source.endpoints["udp"], *[b""] * 100)
        assert spool_writer.account.dropped["receive_queue_full"] > 90


async def test_programs_of_this_host_write_to_a_unix_datagram_socket(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left_behind:
        left_behind.bind(str(path))
    async with listening(tmp_path, udp=None, tcp=None, path=path, service="shop") as (
        source,
        spool_writer,
    ):
        assert source.endpoint == str(path)
        assert path.stat().st_mode & 0o777 == 0o666
        handler = logging.handlers.SysLogHandler(str(path))
        record = logging.LogRecord("x", logging.WARNING, "", 1, "local", None, None)
        await asyncio.to_thread(handler.emit, record)
        handler.close()
        await wait_until_async(lambda: bodies(spool_writer) == ["local"])
        (line,) = spool_writer.lines()
        assert "network.peer.address" not in json.loads(line)["attributes"]
    assert not path.exists()


async def test_a_unix_socket_that_is_served_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(UnavailableError, match="another process listens"):
            async with listening(tmp_path, udp=None, tcp=None, path=path):
                pass

"""TLS of a source that listens: who shows a certificate is let in, everybody else is counted."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.collector.sources.network.listener import Listener
from tests.support.certificates import Authority
from tests.support.receiving import Make, forwarding, listening, otlp, statsd, syslog
from tests.support.waiting import wait_until_async


async def said(endpoint: str, context: ssl.SSLContext | None, line: bytes) -> None:
    """Say a line and hang up; who is not let in is told by a broken connection."""
    host, port = endpoint.split(":")
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(line)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("wrong", ["none", "another authority's", "no TLS"])
async def test_who_shows_no_certificate_is_counted_and_told_of(tmp_path: Path, wrong: str) -> None:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    own = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    files = {"cert_file": own.cert, "key_file": own.key, "ca_file": authority.cert}
    right, refused = (ssl.create_default_context(cafile=authority.cert) for _ in range(2))
    proof = authority.sign("client", "DNS:client")
    right.load_cert_chain(proof.cert, proof.key)
    if wrong == "another authority's":
        forged = other.sign("client", "DNS:client")
        refused.load_cert_chain(forged.cert, forged.key)
    with structlog.testing.capture_logs() as logs:
        async with listening(tmp_path, syslog(tls=files)) as (source, spool_writer):
            for _ in range(2):
                context = None if wrong == "no TLS" else refused
                await said(source.endpoints["tcp"], context, b"<13>intruder\n")
            await wait_until_async(
                lambda: spool_writer.account.notes["tls_handshakes_failed"] == 2,
                what="two are counted",
            )
            await said(source.endpoints["tcp"], right, b"<13>let in\n")
            await wait_until_async(lambda: bool(spool_writer.units()))
            (unit,) = spool_writer.units()
    assert b"let in" in unit.payload
    assert b"intruder" not in unit.payload
    told = [entry for entry in logs if entry["event"] == "tls_handshake_failed"]
    assert len(told) == 1, "once a minute"
    assert told[0]["error"]


@pytest.mark.parametrize("end", ["close", "abort", "cut off"])
@pytest.mark.parametrize(
    ("make", "endpoint", "data"),
    [
        (syslog, "tcp", b"<13>one\n"),
        (statsd, "tcp", b"a:1|c\n"),
        (forwarding, "listen", b"\x93\xa3app\x00\x81\xa1a\xa1b"),
        (otlp, "http", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ],
)
async def test_the_end_of_a_connection_is_no_failure_of_the_loop(
    tmp_path: Path, make: Callable[..., Make], endpoint: str, data: bytes, end: str
) -> None:
    authority = Authority(tmp_path / "ca")
    own = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    context = ssl.create_default_context(cafile=authority.cert)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
    async with listening(tmp_path, make(tls={"cert_file": own.cert, "key_file": own.key})) as (
        source,
        _,
    ):
        address = source.endpoints.get(endpoint) or source.endpoint
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(data)
        await writer.drain()
        if make is otlp:
            await reader.read(1)
        if end == "cut off":
            with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as same:
                same.shutdown(socket.SHUT_RDWR)
        elif end == "abort":
            writer.transport.abort()
        else:
            writer.close()
        await wait_until_async(lambda: not _connections(source), what="the connection is over")
        gc.collect()  # a task that nobody asks reports its failure when it is collected
        await asyncio.sleep(0)
    assert [(one["message"], one.get("exception")) for one in failures] == []


def _connections(source: Any) -> int:
    """Of the listeners that it has."""
    listeners = [value for value in vars(source).values() if isinstance(value, Listener)]
    return sum(listener.connections for listener in listeners)

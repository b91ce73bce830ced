"""TLS of a source that listens: who shows a certificate is let in, everybody else is counted."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
import structlog

from tests.support.certificates import Authority
from tests.support.receiving import listening, syslog
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
        async with listening(tmp_path, syslog(tls=files)) as (source, intake):
            for _ in range(2):
                context = None if wrong == "no TLS" else refused
                await said(source.endpoints["tcp"], context, b"<13>intruder\n")
            await wait_until_async(
                lambda: intake.account.notes["tls_handshakes_failed"] == 2, what="two are counted"
            )
            await said(source.endpoints["tcp"], right, b"<13>let in\n")
            await wait_until_async(lambda: bool(intake.units()))
            (unit,) = intake.units()
    assert b"let in" in unit.payload
    assert b"intruder" not in unit.payload
    told = [entry for entry in logs if entry["event"] == "a TLS handshake failed"]
    assert len(told) == 1, "once a minute"
    assert told[0]["error"]

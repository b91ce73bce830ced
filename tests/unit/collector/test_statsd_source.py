"""The StatsD source on real sockets, with a spool that nobody empties."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from penstock.collector.sources.statsd.source import StatsdSettings, StatsdSource
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.certificates import Authority
from tests.support.receiving import send_datagrams
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async


@asynccontextmanager
async def listening(
    directory: Path, **options: Any
) -> AsyncIterator[tuple[StatsdSource, SpoolingIntake]]:
    given = {"type": "statsd", "udp": "127.0.0.1:0", "tcp": "127.0.0.1:0", **options}
    async with spooling(directory, "statsd") as spool_writer:
        source = StatsdSource(
            StatsdSettings.model_validate(given), {"host.name": "h"}, spool_writer=spool_writer
        )
        await source.start()
        running = asyncio.ensure_future(source.run())
        try:
            yield source, spool_writer
        finally:
            await source.stop()
            await running


async def test_samples_of_both_ways_are_one_series_and_flushed_at_the_stop(tmp_path: Path) -> None:
    async with listening(tmp_path, flush_interval_s=3600) as (source, spool_writer):
        host, port = source.endpoints["udp"].split(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"Shop.sold:1|c\nshop.sold:2|c|#a:b\nbad", (host, int(port)))
        host, port = source.endpoints["tcp"].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"Shop.sold:4|c\n_e{1,1}:a|b|t:error|#level:x\n" + b"x" * 10_000 + b"\n")
        notes = spool_writer.account.notes
        await wait_until_async(lambda: notes["samples_received"] == 6)
        await source.stop()
        writer.close()
        records = [json.loads(line) for line in spool_writer.lines()]
        assert all(isinstance(check_line(line), Accepted) for line in spool_writer.lines())
        metrics = {tuple(r["attributes"].items()): r["value"] for r in records if "value" in r}
        assert metrics == {(): 5.0, (("a", "b"),): 2.0}
        names = {r["value"]: r["name"] for r in records if "value" in r}
        assert names == {5.0: "Shop.sold", 2.0: "shop.sold"}
        (event,) = (r for r in records if r["kind"] == "log")
        assert (event["body"], event["severity_number"]) == ("a\nb", 17)
        assert event["attributes"] == {"level": "x", "dogstatsd.alert_type": "error"}
        assert (notes["samples_aggregated"], notes["samples_refused_bad_line"]) == (4, 2)
        assert spool_writer.account.received == 3


async def test_each_interval_is_flushed(tmp_path: Path) -> None:
    async with listening(tmp_path, flush_interval_s=0.1) as (source, spool_writer):
        await send_datagrams(source.endpoints["udp"], b"a:1|c")
        await wait_until_async(lambda: len(spool_writer.lines()) == 1)
        await send_datagrams(source.endpoints["udp"], b"a:1|c")
        await wait_until_async(lambda: len(spool_writer.lines()) == 2)


async def test_fields_that_are_not_known_are_counted_and_named_once(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with listening(tmp_path) as (source, spool_writer):
            host, port = source.endpoints["udp"].split(":")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"a:1|c|card:low|e:x\na:1|c|card:low", (host, int(port)))
            notes = spool_writer.account.notes
            await wait_until_async(lambda: notes["fields_unknown"] == 3)
    named = [one["field"] for one in logs if one["event"] == "field_unknown"]
    assert named == ["card", "e"]


async def test_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    async with listening(tmp_path, flush_interval_s=3600) as (source, spool_writer):
        host, port = source.endpoints["tcp"].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"a:1|c\nb:2|c")
        writer.close()
        await wait_until_async(lambda: spool_writer.account.notes["samples_aggregated"] == 2)
        await source.stop()
        assert {json.loads(line)["name"] for line in spool_writer.lines()} == {"a", "b"}


async def test_tls_carries_the_same_and_asks_for_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    own = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    client = authority.sign("client", "DNS:client")
    files = {"cert_file": own.cert, "key_file": own.key, "ca_file": authority.cert}
    async with listening(tmp_path, flush_interval_s=3600, tls=files) as (source, spool_writer):
        host, port = source.endpoints["tcp"].split(":")
        notes = spool_writer.account.notes
        trusting = ssl.create_default_context(cafile=authority.cert)
        strangers: tuple[ssl.SSLContext | None, ...] = (None, trusting)
        for number, context in enumerate(strangers, 1):
            with capture_logs() as logs:
                _, stranger = await asyncio.open_connection(host, int(port), ssl=context)
                stranger.write(b"a:1|c\n")
                await wait_until_async(lambda n=number: notes["tls_handshakes_failed"] == n)  # type: ignore[misc]
                stranger.close()
            told = [one["error"] for one in logs if one["event"] == "tls_handshake_failed"]
            assert len(told) == (1 if number == 1 else 0), "once a minute"
        trusting.load_cert_chain(client.cert, client.key)
        _, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
        writer.write(b"b:1|c\n")
        await wait_until_async(lambda: notes["samples_received"] == 1)
        writer.close()


def test_tls_is_for_tcp() -> None:
    files = {"cert_file": "/a", "key_file": "/b"}
    with pytest.raises(ValidationError, match="is for `tcp`, which is not set"):
        StatsdSettings.model_validate({"type": "statsd", "tls": files})

"""The socket source on real sockets, with the libraries that programs send with."""

import asyncio
import gzip
import json
import logging
import socket
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pygelf
import pytest

from penstock.collector.limits import SPOOL_WRITER_LIMITS, SpoolWriterLimits
from penstock.collector.sources.senders.socket import SocketSettings, SocketSource
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
    share_bytes: int = 1 << 26,
    **options: Any,
) -> AsyncIterator[tuple[SocketSource, SpoolingIntake]]:
    """A source; one that does not run takes no datagrams before it is stopped."""
    async with spooling(directory, "socket", limits=limits, share_bytes=share_bytes) as writer:
        section = SocketSettings.model_validate({"type": "socket", **options})
        source = SocketSource(section, spool_writer=writer)
        await source.start()
        running = asyncio.ensure_future(source.run() if runs else asyncio.Event().wait())
        try:
            yield source, writer
        finally:
            await source.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def address(source: SocketSource, part: str) -> tuple[str, int]:
    host, port = source.endpoints[part].split(":")
    return host, int(port)


def records(writer: SpoolingIntake) -> list[dict[str, Any]]:
    return [json.loads(line) for line in writer.lines()]


def bodies(writer: SpoolingIntake) -> list[str]:
    return [record["body"] for record in records(writer)]


def refused(writer: SpoolingIntake) -> list[str]:
    return [part.reason for decoded in writer.decoded() for part in decoded.undecodable]


async def send(source: SocketSource, *parts: bytes) -> None:
    """Send over TCP, part by part, and end the connection."""
    _, writer = await asyncio.open_connection(*address(source, "tcp"))
    for part in parts:
        writer.write(part)
        await writer.drain()
    writer.close()


async def log(handler: logging.Handler, message: str, **extra: Any) -> None:
    record = logging.LogRecord("till", logging.ERROR, "a.py", 7, message, None, None)
    record.__dict__.update(extra)
    await asyncio.to_thread(handler.emit, record)
    await asyncio.to_thread(handler.close)


FRAMED: list[tuple[dict[str, Any], bytes]] = [
    ({"framing": "newline"}, b"one\r\n\ntwo\n"),
    ({"framing": "nul"}, b"one\0\0two\n\0"),
    ({"framing": "octet_counted"}, b"3 one\n3 two"),
    ({"framing": "length_prefix"}, struct.pack(">I3sI3s", 3, b"one", 3, b"two")),
    (
        {"framing": "length_prefix", "prefix_bytes": 2, "byte_order": "little"},
        struct.pack("<H3sHH3s", 3, b"one", 0, 3, b"two"),
    ),
    ({"framing": "length_prefix", "prefix_bytes": 1}, b"\x03one\x03two"),
]


@pytest.mark.parametrize(("options", "data"), FRAMED)
@pytest.mark.parametrize("step", [1, 5, 100])
async def test_a_stream_is_cut_into_messages(
    tmp_path: Path, options: dict[str, Any], data: bytes, step: int
) -> None:
    async with listening(tmp_path, tcp="127.0.0.1:0", **options) as (source, writer):
        await send(source, *(data[at : at + step] for at in range(0, len(data), step)))
        await wait_until_async(lambda: bodies(writer) == ["one", "two"])
        assert writer.account.difference == 0
        assert records(writer)[0]["resource"]["service.name"] == "socket"
        assert records(writer)[0]["attributes"] == {"network.peer.address": "127.0.0.1"}


@pytest.mark.parametrize(
    ("framing", "begun", "kept"),
    [
        ("newline", b"one\nthe rest", "the rest"),
        ("nul", b"one\0the rest", "the rest"),
        ("octet_counted", b"3 one9 the rest", "the rest"),
        ("length_prefix", b"\0\0\0\x03one\0\0\0\x09the rest", "the rest"),
    ],
)
async def test_a_connection_that_ends_within_a_message_leaves_what_it_brought(
    tmp_path: Path, framing: str, begun: bytes, kept: str
) -> None:
    async with listening(tmp_path, tcp="127.0.0.1:0", framing=framing) as (source, writer):
        await send(source, begun)
        await wait_until_async(lambda: bodies(writer) == ["one", kept])
        is_cut = "log.record.truncated" in records(writer)[1]["attributes"]
        assert is_cut is (framing in {"octet_counted", "length_prefix"})


async def test_a_line_that_is_too_long_is_cut_and_its_rest_is_skipped(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tcp": "127.0.0.1:0", "max_message_bytes": 480}
    async with listening(tmp_path, **options) as (source, writer):
        await send(source, b"a" * 400, b"a" * 400, b"a" * 10_000, b"\nnext\n")
        await wait_until_async(lambda: bodies(writer) == ["a" * 480, "next"])
        assert records(writer)[0]["attributes"]["log.record.truncated"] is True
        assert writer.account.notes["messages_truncated"] == 1
        assert writer.account.difference == 0


@pytest.mark.parametrize(
    ("framing", "data", "lost"),
    [
        ("octet_counted", b"3 one481 " + b"x" * 481 + b"3 two", {"message_too_large": 1}),
        ("octet_counted", b"3 onehello", {}),
        ("octet_counted", b"3 one12345678901 x", {}),
        ("length_prefix", b"\0\0\0\x03one\xff\xff\xff\xffx", {"message_too_large": 1}),
    ],
)
async def test_a_length_that_is_none_or_too_large_ends_the_connection(
    tmp_path: Path, framing: str, data: bytes, lost: dict[str, int]
) -> None:
    options: dict[str, Any] = {"tcp": "127.0.0.1:0", "framing": framing, "max_message_bytes": 480}
    async with listening(tmp_path, **options) as (source, writer):
        reader, sender = await asyncio.open_connection(*address(source, "tcp"))
        sender.write(data)
        assert await reader.read() == b""
        sender.close()
        await wait_until_async(lambda: bodies(writer) == ["one"])
        assert writer.account.notes["protocol_errors"] == 1
        assert writer.account.dropped == lost
        assert writer.account.difference == 0


async def test_more_connections_than_allowed_are_refused_and_counted(tmp_path: Path) -> None:
    async with listening(tmp_path, tcp="127.0.0.1:0", max_connections=1) as (source, writer):
        _, first = await asyncio.open_connection(*address(source, "tcp"))
        first.write(b"one\n")
        await wait_until_async(lambda: bodies(writer) == ["one"])
        second, other = await asyncio.open_connection(*address(source, "tcp"))
        assert await second.read() == b""
        assert writer.account.notes["connections_refused"] == 1
        other.close()
        first.close()


async def test_a_message_that_stands_still_is_ended(tmp_path: Path) -> None:
    limits = SpoolWriterLimits(unfinished_timeout_s=0.01)
    async with listening(tmp_path, tcp="127.0.0.1:0", limits=limits) as (source, writer):
        reader, sender = await asyncio.open_connection(*address(source, "tcp"))
        sender.write(b"begun")
        assert await reader.read() == b""
        sender.close()
        await wait_until_async(lambda: bodies(writer) == ["begun"])
        assert writer.account.notes["messages_unfinished"] == 1


@pytest.mark.parametrize("path_type", ["stream", "datagram"])
async def test_programs_of_this_host_write_to_a_unix_socket(tmp_path: Path, path_type: str) -> None:
    path = tmp_path / "log"
    options: dict[str, Any] = {"path": path, "path_type": path_type, "mode": 0o600, "codec": "json"}
    async with listening(tmp_path, **options) as (source, writer):
        assert source.endpoint == str(path)
        assert path.stat().st_mode & 0o777 == 0o600
        kind = socket.SOCK_STREAM if path_type == "stream" else socket.SOCK_DGRAM
        with socket.socket(socket.AF_UNIX, kind) as sender:
            sender.connect(str(path))
            sender.send(b'{"msg": "local", "service": "till"}\n')
        await wait_until_async(lambda: bodies(writer) == ["local"])
        (record,) = records(writer)
        assert record["attributes"] == {"service": "till"}
        assert record["resource"]["service.name"] == "till"
    assert not path.exists()


async def test_tls_asks_for_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    own = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    client = authority.sign("client", "DNS:client")
    files = {"cert_file": own.cert, "key_file": own.key, "ca_file": authority.cert}
    async with listening(tmp_path, tcp="127.0.0.1:0", tls=files, codec="gelf") as (source, writer):
        context = ssl.create_default_context(cafile=authority.cert)
        _, stranger = await asyncio.open_connection(*address(source, "tcp"), ssl=context)
        stranger.write(b'{"short_message": "none"}\0')
        await wait_until_async(lambda: writer.account.notes["tls_handshakes_failed"] == 1)
        stranger.close()
        host, port = address(source, "tcp")
        handler = pygelf.GelfTlsHandler(
            host=host, port=port, validate=True, ca_certs=str(authority.cert),
            certfile=str(client.cert), keyfile=str(client.key),
        )  # fmt: skip
        await log(handler, "over TLS")
        await wait_until_async(lambda: bodies(writer) == ["over TLS"])


GELF: dict[str, Callable[[str, int], logging.Handler]] = {
    "compressed": lambda host, port: pygelf.GelfUdpHandler(
        host, port, include_extra_fields=True, _app="till"
    ),
    "plain": lambda host, port: pygelf.GelfUdpHandler(
        host, port, compress=False, include_extra_fields=True, _app="till"
    ),
    "chunks": lambda host, port: pygelf.GelfUdpHandler(
        host, port, chunk_size=100, include_extra_fields=True, _app="till"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", GELF)
async def test_gelf_over_udp_as_its_library_sends_it(tmp_path: Path, way: str) -> None:
    async with listening(tmp_path, udp="127.0.0.1:0", codec="gelf") as (source, writer):
        handler = GELF[way](*address(source, "udp"))
        await log(handler, "x" * 2000, order="17", trace_id="ab" * 16)
        await wait_until_async(lambda: bodies(writer) == ["x" * 2000])
        (record,) = records(writer)
        assert record["severity_text"] == "ERROR"
        assert record["trace_id"] == "ab" * 16
        assert record["attributes"]["order"] == "17"
        assert record["resource"]["host.name"] == socket.gethostname()
        assert abs(record["time_unix_nano"] - record["observed_time_unix_nano"]) < 60 * 10**9
        assert record["resource"]["service.name"] == "till"
        assert writer.account.difference == 0


async def test_gelf_over_tcp_as_its_library_sends_it(tmp_path: Path) -> None:
    async with listening(tmp_path, tcp="127.0.0.1:0", codec="gelf") as (source, writer):
        await log(pygelf.GelfTcpHandler(*address(source, "tcp")), "by TCP")
        await wait_until_async(lambda: bodies(writer) == ["by TCP"])


def chunk(number: int, count: int, data: bytes, identity: bytes = b"identity") -> bytes:
    return b"\x1e\x0f" + identity + bytes([number, count]) + data


MESSAGE = b'{"version": "1.1", "host": "h", "short_message": "whole"}'


@pytest.mark.parametrize(
    "packed", [MESSAGE, gzip.compress(MESSAGE, mtime=0), zlib.compress(MESSAGE)]
)
async def test_chunks_are_put_together_in_any_order(tmp_path: Path, packed: bytes) -> None:
    async with listening(tmp_path, udp="127.0.0.1:0", codec="gelf") as (source, writer):
        parts = [packed[:10], packed[10:30], packed[30:]]
        chunks = [chunk(number, 3, part) for number, part in enumerate(parts)]
        await send_datagrams(source.endpoints["udp"], chunks[2], chunks[0], chunks[0], chunks[1])
        await wait_until_async(lambda: bodies(writer) == ["whole"])
        assert writer.account.notes["chunks_ignored"] == 1
        assert writer.account.difference == 0
        await wait_until_async(lambda: writer.share.used == 0)


async def test_a_message_that_lacks_a_chunk_is_given_up_and_counted(tmp_path: Path) -> None:
    options: dict[str, Any] = {"udp": "127.0.0.1:0", "codec": "gelf", "chunks": {"timeout_s": 0.01}}
    async with listening(tmp_path, **options) as (source, writer):
        await send_datagrams(source.endpoints["udp"], chunk(0, 2, b"x" * 100))
        await wait_until_async(lambda: writer.account.dropped == {"chunks_missing": 1})
        assert writer.account.difference == 0
        await wait_until_async(lambda: writer.share.used == 0)


@pytest.mark.parametrize("bound", [{"max_messages": 2}, {"max_bytes": 3000}])
async def test_chunks_beyond_their_bounds_push_out_the_oldest_message(
    tmp_path: Path, bound: dict[str, int]
) -> None:
    options: dict[str, Any] = {"udp": "127.0.0.1:0", "codec": "gelf", "chunks": bound}
    async with listening(tmp_path, **options) as (source, writer):
        for number in range(5):
            identity = b"%08d" % number
            await send_datagrams(source.endpoints["udp"], chunk(0, 2, b"x" * 1000, identity))
        await wait_until_async(lambda: writer.account.dropped == {"chunk_buffer_full": 3})
        assert 2000 < writer.share.used < 3000
    assert writer.account.dropped == {"chunk_buffer_full": 3, "stopped": 2}
    assert writer.account.difference == 0
    assert writer.share.used == 0


async def test_chunks_take_no_room_that_there_is_not(tmp_path: Path) -> None:
    options: dict[str, Any] = {"udp": "127.0.0.1:0", "codec": "gelf", "share_bytes": 2000}
    async with listening(tmp_path, **options) as (source, writer):
        for number in range(3):
            identity = b"%08d" % number
            await send_datagrams(source.endpoints["udp"], chunk(0, 2, b"x" * 1000, identity))
        await wait_until_async(lambda: writer.account.dropped["no_room"] == 2)
        assert writer.share.used < 2000


@pytest.mark.parametrize(
    ("datagram", "why"),
    [
        (gzip.compress(b" " * 10_000, mtime=0), "more than 480 bytes after decompression"),
        (gzip.compress(MESSAGE, mtime=0)[:-9], "compressed data ends early"),
        (b"\x78\x9cno zlib", "not zlib"),
        (b"plain text", "gelf: the message is no JSON object"),
        (b'{"message": "m"}', "`short_message` is missing"),
        (b"[" * 400, "gelf: the message is no JSON object"),
    ],
)
async def test_what_is_no_gelf_is_refused_with_its_reason(
    tmp_path: Path, datagram: bytes, why: str
) -> None:
    options: dict[str, Any] = {"udp": "127.0.0.1:0", "codec": "gelf", "max_message_bytes": 480}
    async with listening(tmp_path, **options) as (source, writer):
        await send_datagrams(source.endpoints["udp"], datagram, MESSAGE)
        await wait_until_async(lambda: bodies(writer) == ["whole"])
        (reason,) = refused(writer)
        assert why in reason


async def test_chunks_that_are_none_are_ignored_and_counted(tmp_path: Path) -> None:
    async with listening(tmp_path, udp="127.0.0.1:0", codec="gelf") as (source, writer):
        await send_datagrams(
            source.endpoints["udp"],
            b"\x1e\x0f", chunk(3, 3, b"x"), chunk(0, 0, b"x"), chunk(0, 129, b"x"), MESSAGE,
        )  # fmt: skip
        await wait_until_async(lambda: bodies(writer) == ["whole"])
        assert writer.account.notes["chunks_ignored"] == 4
        assert writer.account.difference == 0


async def test_datagrams_received_before_the_stop_are_kept(tmp_path: Path) -> None:
    options: dict[str, Any] = {"udp": "127.0.0.1:0", "codec": "gelf", "runs": False}
    async with listening(tmp_path, **options) as (source, writer):
        halves = chunk(0, 2, MESSAGE[:9]), chunk(1, 2, MESSAGE[9:])
        await send_datagrams(source.endpoints["udp"], *halves, chunk(0, 2, b"x", b"12345678"))
        await source.stop()
        await wait_until_async(lambda: bodies(writer) == ["whole"])
        assert writer.account.dropped == {"stopped": 1}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "set `udp`, `tcp`"),
        ({"udp": "127.0.0.1:0", "framing": "nul"}, "a datagram is one message"),
        ({"path": "/s", "framing": "nul"}, "a datagram is one message"),
        ({"udp": "127.0.0.1:0", "tls": {"cert_file": "/c", "key_file": "/k"}}, "`tls` is for"),
        ({"tcp": "127.0.0.1:0", "max_message_bytes": 100}, "greater than or equal to 480"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SocketSettings.model_validate({"type": "socket", **options})

"""The forward source on real sockets, with a spool that nobody empties."""

import asyncio
import contextlib
import gzip
import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from penstock.collector.limits import SPOOL_WRITER_LIMITS, SpoolWriterLimits
from penstock.collector.sources.forward.source import ForwardSettings, ForwardSource
from penstock.service import ConfigError
from tests.support.certificates import Authority
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

ENTRY = [1_700_000_000, {"message": "hi"}]


@asynccontextmanager
async def listening(
    directory: Path, *, limits: SpoolWriterLimits = SPOOL_WRITER_LIMITS, **options: Any
) -> AsyncIterator[tuple[ForwardSource, SpoolingIntake]]:
    async with spooling(directory, "forward", limits=limits) as spool_writer:
        section = ForwardSettings.model_validate(
            {"type": "forward", "listen": "127.0.0.1:0", **options}
        )
        source = ForwardSource(section, spool_writer=spool_writer)
        await source.start()
        try:
            yield source, spool_writer
        finally:
            await source.stop()


class Sender:
    """A connection that speaks msgpack."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unpacker = msgpack.Unpacker()

    @classmethod
    async def to(cls, source: ForwardSource, context: ssl.SSLContext | None = None) -> "Sender":
        assert source.endpoint is not None
        host, port = source.endpoint.split(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=context))

    def send(self, *messages: Any) -> None:
        self.write(b"".join(map(msgpack.packb, messages)))

    def write(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
        self._writer.write(data)

    async def end(self) -> None:
        """Send no more, and return when the source has ended the connection."""
        self._writer.write_eof()
        while await self._reader.read(4096):
            pass
        self._writer.close()

    @property
    def certificate(self) -> Any:
        """What the source has shown."""
        return self._writer.get_extra_info("peercert")

    async def receive(self) -> Any:
        """The next value; None at the end."""
        while True:
            for value in self._unpacker:
                return value
            data = await self._reader.read(4096)
            if not data:
                return None
            self._unpacker.feed(data)

    async def ping(self, key: str, user: str = "", password: str = "") -> Any:
        """Answer HELO; returns PONG."""
        _, options = await self.receive()
        salt = b"salt"
        digest = hashlib.sha512(salt + b"web-1" + options["nonce"] + key.encode()).hexdigest()
        secret = options["auth"] + f"{user}{password}".encode()
        self.send(["PING", "web-1", salt, digest, user, hashlib.sha512(secret).hexdigest()])
        return await self.receive()

    def close(self) -> None:
        self._writer.close()


async def test_every_mode_is_acknowledged_once_it_is_durable(tmp_path: Path) -> None:
    packed = msgpack.packb(ENTRY)
    async with listening(tmp_path) as (source, spool_writer):
        sender = await Sender.to(source)
        sender.send(
            ["a", *ENTRY, {"chunk": "1"}],
            ["a", [ENTRY, ENTRY], {"chunk": "2"}],
            ["a", packed, {"chunk": "3"}],
            ["a", gzip.compress(packed), {"chunk": "4", "compressed": "gzip"}],
            ["a", *ENTRY],
        )
        assert [await sender.receive() for _ in range(4)] == [{"ack": str(n)} for n in range(1, 5)]
        assert len(spool_writer.lines()) == spool_writer.account.received == 6
        sender.close()


async def test_what_cannot_be_kept_is_not_acknowledged_or_is_counted(tmp_path: Path) -> None:
    async with listening(tmp_path) as (source, spool_writer):
        sender = await Sender.to(source)
        big = ["a", [[1, {"message": "x" * 2_000_000}]]]
        sender.send([*big, {"chunk": "told"}])
        await wait_until_async(lambda: spool_writer.account.notes["refused_spool_full"] == 1)
        sender.send(big)
        await wait_until_async(lambda: spool_writer.account.dropped["spool_full"] == 1)
        sender.send(["a", *ENTRY, {"chunk": "taken"}])
        assert await sender.receive() == {"ack": "taken"}
        assert spool_writer.account.difference == 0
        sender.close()


async def test_what_came_before_what_is_no_message_is_kept(tmp_path: Path) -> None:
    plain: dict[str, Any] = {}
    for directory, options in ((tmp_path / "a", plain), (tmp_path / "b", {"shared_key": "key"})):
        async with listening(directory, **options) as (source, spool_writer):
            sender = await Sender.to(source)
            if options:
                assert (await sender.ping("key"))[1] is True
            sender.send(["a", *ENTRY], ["a", *ENTRY], 5)
            assert await sender.receive() is None
            await wait_until_async(lambda: len(spool_writer.lines()) == 2)
            assert spool_writer.account.notes["protocol_errors"] == 1
            sender.close()


async def test_the_json_form_is_refused_and_named(tmp_path: Path) -> None:
    """It has no answers: that the connection ends is all that its sender can be told."""
    async with listening(tmp_path) as (source, spool_writer):
        with capture_logs() as logs:
            sender = await Sender.to(source)
            sender.write(b'["app",1700000000,{"message":"hi"}]\n')
            assert await sender.receive() is None
            sender.close()
        assert spool_writer.account.notes["protocol_errors"] == 1
        assert [one["error"] for one in logs] == [
            "the JSON form of the forward protocol is not supported"
        ]
        assert spool_writer.lines() == []


async def test_a_connection_that_ends_within_a_message_is_counted(tmp_path: Path) -> None:
    async with listening(tmp_path) as (source, spool_writer):
        sender = await Sender.to(source)
        sender.write(msgpack.packb(["a", *ENTRY])[:-2])
        sender.close()
        await wait_until_async(lambda: spool_writer.account.notes["messages_unfinished"] == 1)
        other = await Sender.to(source)
        other.send(["a", *ENTRY, {"chunk": "1"}])
        assert await other.receive() == {"ack": "1"}
        await other.end()
        assert spool_writer.account.notes["messages_unfinished"] == 1


async def test_who_knows_the_key_and_a_password_is_let_in(tmp_path: Path) -> None:
    options: dict[str, Any] = {"shared_key": "key", "users": {"anna": "pass"}}
    async with listening(tmp_path, **options) as (source, spool_writer):
        sender = await Sender.to(source)
        assert (await sender.ping("key", "anna", "pass"))[:2] == ["PONG", True]
        sender.send(["a", *ENTRY, {"chunk": "1"}])
        assert await sender.receive() == {"ack": "1"}
        sender.close()

        for wrong in (("other", "anna", "pass"), ("key", "anna", "no"), ("key", "eve", "")):
            sender = await Sender.to(source)
            assert (await sender.ping(*wrong))[1] is False
            sender.send(["a", *ENTRY, {"chunk": "2"}])
            assert await sender.receive() is None
            sender.close()
        assert spool_writer.account.notes["handshakes_refused"] == 3
        assert len(spool_writer.lines()) == 1


async def test_a_key_of_a_file_is_read_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("old\n")
    async with listening(tmp_path, shared_key={"file": str(file)}) as (source, spool_writer):
        for key, content in (("old", "new"), ("new", None)):
            sender = await Sender.to(source)
            assert (await sender.ping(key))[1] is True
            sender.close()
            if content is not None:
                file.write_text(content)
        sender = await Sender.to(source)
        assert (await sender.ping("old"))[1] is False
        await sender.end()
        before = spool_writer.account.notes["protocol_errors"]
        file.unlink()
        sender = await Sender.to(source)
        assert await sender.receive() is None, "nobody is let in without a key to compare"
        await wait_until_async(lambda: spool_writer.account.notes["protocol_errors"] > before)
        sender.close()


@pytest.mark.parametrize("option", ["shared_key", "users"])
async def test_a_key_that_cannot_be_read_ends_the_start(tmp_path: Path, option: str) -> None:
    """A source that started without them would be `ready`, and let no sender in."""
    missing = {"file": str(tmp_path / "none")}
    options: dict[str, Any] = {"shared_key": "key", "users": {"anna": "pass"}}
    options[option] = missing if option == "shared_key" else {"anna": missing}
    key = option if option == "shared_key" else "users.anna"
    with pytest.raises(ConfigError, match=f"source forward: {key}: .*none: No such file"):
        async with listening(tmp_path, **options):
            pass


async def test_a_stranger_may_not_send_a_whole_message_for_a_ping(tmp_path: Path) -> None:
    async with listening(tmp_path, shared_key="key") as (source, spool_writer):
        sender = await Sender.to(source)
        sender.send("x" * 200_000)
        await wait_until_async(lambda: spool_writer.account.notes["protocol_errors"])
        sender.send(ENTRY)
        sender.close()
        assert spool_writer.account.notes["handshakes_refused"] == 0


async def test_messages_sent_along_with_the_ping_are_not_lost(tmp_path: Path) -> None:
    async with listening(tmp_path, shared_key="key") as (source, spool_writer):
        sender = await Sender.to(source)
        _, options = await sender.receive()
        digest = hashlib.sha512(b"s" + b"h" + options["nonce"] + b"key").hexdigest()
        sender.send(["PING", "h", "s", digest, "", ""], ["a", *ENTRY, {"chunk": "1"}])
        assert (await sender.receive())[1] is True
        assert await sender.receive() == {"ack": "1"}
        assert len(spool_writer.lines()) == 1
        sender.close()


async def test_a_datagram_is_a_heartbeat(tmp_path: Path) -> None:
    answered = asyncio.Event()

    class Heart(asyncio.DatagramProtocol):
        @override
        def datagram_received(self, data: bytes, _: Any) -> None:
            assert data == b"\0"
            answered.set()

    async with listening(tmp_path) as (source, _):
        assert source.endpoint is not None
        host, port = source.endpoint.split(":")
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            Heart, remote_addr=(host, int(port))
        )
        transport.sendto(b"\0")
        await asyncio.wait_for(answered.wait(), 20)
        transport.close()


async def test_tls_asks_for_the_certificate_that_was_configured(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    client = authority.sign("client", "DNS:client")
    files = {"cert_file": server.cert, "key_file": server.key, "ca_file": authority.cert}
    trusting = ssl.create_default_context(cafile=authority.cert)
    async with listening(tmp_path, tls=files) as (source, spool_writer):
        stranger = await Sender.to(source, trusting)
        stranger.send(["a", *ENTRY, {"chunk": "1"}])
        with contextlib.suppress(OSError):  # the alert, if it comes before the end
            assert await stranger.receive() is None
        assert spool_writer.lines() == []
        trusting.load_cert_chain(client.cert, client.key)
        sender = await Sender.to(source, trusting)
        sender.send(["a", *ENTRY, {"chunk": "1"}])
        assert await sender.receive() == {"ack": "1"}
        assert len(spool_writer.lines()) == 1

        renewed = authority.sign("renewed", "DNS:localhost,IP:127.0.0.1")
        server.replace_with(renewed)
        later = await Sender.to(source, trusting)
        assert (("commonName", "renewed"),) in later.certificate["subject"]
        for connection in (stranger, sender, later):
            connection.close()

"""Channels on real sockets: the same promises without and with TLS, and who is let in."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from penstock.logd.errors import RefusedError
from penstock.logd.net.channel import CHUNK_BYTES, Channel
from penstock.logd.net.listener import Listener, dial
from penstock.logd.net.peer_tls import PeerTls
from penstock.logd.security.tls import CertificateFiles
from penstock.logd.storage import REAL_DISK, FileRange
from penstock.service import UnavailableError
from tests.support.certificates import Authority
from tests.support.loops import ResolvingLoop, on_resolving_loop
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live

Serve = Callable[[Channel], Awaitable[None]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> CertificateFiles | None:
    if request.param == "plain":
        return None
    return files_of(request.getfixturevalue("authority"), "node")


def files_of(authority: Authority, name: str, *, expired: bool = False) -> CertificateFiles:
    made = authority.sign(name, "DNS:localhost,IP:127.0.0.1", expired=expired)
    return CertificateFiles(ca_file=authority.cert, cert_file=made.cert, key_file=made.key)


@asynccontextmanager
async def subscription_manager(
    serve: Serve, tls: CertificateFiles | None = None, *, handshake_s: float = 20
) -> AsyncIterator[int]:
    source = PeerTls.of(tls).server if tls else None
    listener = Listener(
        serve, name="test", key="test", max_unauthenticated=64, tls=source, handshake_s=handshake_s
    )
    address = listener.listen("127.0.0.1:0")
    running = asyncio.create_task(listener.run())
    try:
        yield int(address.rsplit(":", 1)[1])
    finally:
        running.cancel()
        await asyncio.wait([running])
        listener.close()


async def dial_local(port: int, tls: CertificateFiles | None = None) -> Channel:
    return await dial("127.0.0.1", port, tls.client() if tls else None)


async def test_bytes_arrive_whole_in_both_directions(tls: CertificateFiles | None) -> None:
    sent = bytes(range(256)) * (CHUNK_BYTES // 64)

    async def echo(channel: Channel) -> None:
        await channel.send(await channel.receive(len(sent)), stall_s=20)

    async with subscription_manager(echo, tls) as port:
        channel = await dial_local(port, tls)
        _, received = await asyncio.gather(
            channel.send(sent, stall_s=20), channel.receive(len(sent))
        )
        channel.close()
    assert received == sent


async def test_a_file_range_arrives(tls: CertificateFiles | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytes(range(251)) * 10_000
    path.write_bytes(content)
    with closing(REAL_DISK.open(path)) as file:
        part = FileRange(file, 1000, len(content) - 3000, 0, 1)

        async def serve(channel: Channel) -> None:
            await channel.send_range(part, stall_s=20)
            await channel.receive(1)

        async with subscription_manager(serve, tls) as port:
            channel = await dial_local(port, tls)
            received = await channel.receive(part.length)
            channel.close()
    assert received == content[1000:-2000]


async def test_a_file_that_is_too_short_ends_the_connection(
    tls: CertificateFiles | None, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"short")
    problems = []
    with closing(REAL_DISK.open(path)) as file:

        async def serve(channel: Channel) -> None:
            try:
                await channel.send_range(FileRange(file, 0, 6, 0, 1), stall_s=20)
            except OSError as error:
                problems.append(str(error))

        async with subscription_manager(serve, tls) as port:
            channel = await dial_local(port, tls)
            with pytest.raises(EOFError):
                await channel.receive(6)
            channel.close()
    assert problems == ["the file is shorter than its index says"]


async def test_one_that_takes_nothing_is_given_up(tls: CertificateFiles | None) -> None:
    stalled = asyncio.Event()

    async def serve(channel: Channel) -> None:
        try:
            await channel.send(bytes(64 * 1024 * 1024), stall_s=0.1)
        except TimeoutError:
            stalled.set()

    async with subscription_manager(serve, tls) as port:
        channel = await dial_local(port, tls)
        async with asyncio.timeout(60):
            await stalled.wait()
        channel.close()


async def test_receiving_ends_when_the_other_side_closes(tls: CertificateFiles | None) -> None:
    async def serve(channel: Channel) -> None:
        await channel.send(b"abc", stall_s=20)

    async with subscription_manager(serve, tls) as port:
        channel = await dial_local(port, tls)
        assert await channel.receive(2) == b"ab"
        with pytest.raises(EOFError):
            await channel.receive(2)
        channel.close()


def test_the_first_address_that_answers_is_taken() -> None:
    async def work(loop: ResolvingLoop) -> None:
        async with subscription_manager(never, None) as port:
            with socket.socket() as bound:  # not listening: it refuses
                bound.bind(("127.0.0.1", 0))
                loop.addresses = [bound.getsockname(), ("127.0.0.1", port)]
                (await dial("logd.invalid", port)).close()
                loop.addresses = [bound.getsockname()]
                with pytest.raises(ConnectionRefusedError):
                    await dial("logd.invalid", port)

    on_resolving_loop(work)


async def test_an_address_in_use_is_refused_with_the_key_to_change() -> None:
    async with subscription_manager(never) as port:
        second = Listener(never, name="peer endpoint", key="peer", max_unauthenticated=64)
        with pytest.raises(UnavailableError, match="cannot listen on") as refused:
            second.listen(f"127.0.0.1:{port}")
    assert "`peer`" in refused.value.fix


async def test_a_listener_with_tls_lets_nobody_in_without_a_certificate_of_its_authority(
    authority: Authority, tmp_path: Path
) -> None:
    served = []

    async def serve(channel: Channel) -> None:
        served.append(channel)
        await channel.send(b"in", stall_s=20)

    node = files_of(authority, "node")
    strange = files_of(Authority(tmp_path / "other"), "strange")
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(authority.cert)
    mixed = strange.client()
    mixed.load_verify_locations(authority.cert)
    expired = files_of(authority, "expired", expired=True).client()
    async with subscription_manager(serve, node) as port:
        for context in (None, bare, mixed, expired):
            with pytest.raises((OSError, EOFError)):
                await greeted(port, context)
        assert served == []
        assert await greeted(port, node.client()) == b"in"


async def test_a_dialer_trusts_only_its_authority_and_the_name_it_dials(
    authority: Authority, tmp_path: Path
) -> None:
    made = authority.sign("elsewhere", "DNS:elsewhere.example")
    elsewhere = CertificateFiles(ca_file=authority.cert, cert_file=made.cert, key_file=made.key)
    strange = files_of(Authority(tmp_path / "other"), "strange")
    for server in (elsewhere, strange):
        async with subscription_manager(never, server) as port:
            with pytest.raises(ssl.SSLCertVerificationError):
                await dial_local(port, files_of(authority, "node"))


async def test_a_handshake_that_never_comes_ends(authority: Authority) -> None:
    async with subscription_manager(never, files_of(authority, "node"), handshake_s=0.1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


async def test_the_listener_counts_its_connections() -> None:
    listener = Listener(never, name="test", key="test", max_unauthenticated=64)
    port = int(listener.listen("127.0.0.1:0").rsplit(":", 1)[1])
    running = asyncio.create_task(listener.run())
    channel = await dial_local(port)
    await wait_until_async(lambda: listener.connections == 1)
    channel.close()
    await wait_until_async(lambda: listener.connections == 0)
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("key", ["ca_file", "cert_file", "key_file"])
def test_files_that_are_no_certificates_are_named(
    authority: Authority, tmp_path: Path, key: str
) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    good = files_of(authority, "node")
    files = {name: getattr(good, name) for name in ("ca_file", "cert_file", "key_file")}
    for path in (rubbish, tmp_path / "missing.pem"):
        with pytest.raises(RefusedError, match=path.name) as refused:
            CertificateFiles(**files | {key: path}).server()
        assert refused.value.code == "BAD_TLS_FILE"


async def greeted(port: int, tls: ssl.SSLContext | None) -> bytes:
    channel = await dial("127.0.0.1", port, tls)
    try:
        await channel.send(b"hello", stall_s=20)
        return await channel.receive(2)
    finally:
        channel.close()


async def never(channel: Channel) -> None:
    """Serve, but say nothing."""
    await channel.receive(1)


async def test_what_comes_is_handed_on_as_far_as_there_is_room(
    tls: CertificateFiles | None,
) -> None:
    sent = bytes(range(256)) * 4096
    taken, room = bytearray(), [1000]

    def take(ahead: bytearray) -> int:
        count = min(room[0] - len(taken), len(ahead))
        taken.extend(ahead[:count])
        return count

    async def serve(channel: Channel) -> None:
        assert await channel.receive(10) == sent[:10], "what was received ahead is not lost"
        with pytest.raises(EOFError):
            await channel.consume(take, ahead_max=2000)
        ended.set()

    async def serving(channel: Channel) -> None:
        channels.append(channel)
        await serve(channel)

    channels: list[Channel] = []
    ended = asyncio.Event()
    async with subscription_manager(serving, tls) as port:
        channel = await dial_local(port, tls)
        await channel.send(sent, stall_s=20)
        channel.close()
        await wait_until_async(lambda: len(taken) == room[0])
        assert not ended.is_set()
        room[0] = len(sent)
        channels[0].again()
        async with asyncio.timeout(20):
            await ended.wait()
    assert taken == sent[10:]


async def test_what_is_wrong_with_what_came_ends_it(tls: CertificateFiles | None) -> None:
    told: list[str] = []

    def take(ahead: bytearray) -> int:
        if b"bad" in ahead:
            raise RefusedError("BAD", "no")
        return 0

    async def serve(channel: Channel) -> None:
        try:
            await channel.consume(take, ahead_max=100)
        except RefusedError as error:
            told.append(error.code)

    async with subscription_manager(serve, tls) as port:
        channel = await dial_local(port, tls)
        await channel.send(b"good ", stall_s=20)
        await channel.send(b"bad", stall_s=20)
        await wait_until_async(lambda: told == ["BAD"])
        channel.close()


async def test_an_offer_never_comes_into_the_midst_of_what_is_being_sent(
    tls: CertificateFiles | None,
) -> None:
    large = bytes(32 * CHUNK_BYTES)

    async def serve(channel: Channel) -> None:
        assert channel.offer(b"first") == 5
        sending = asyncio.create_task(channel.send(large, stall_s=20))
        await asyncio.sleep(0)
        assert channel.offer(b"between") == 0
        await sending

    async with subscription_manager(serve, tls) as port:
        channel = await dial_local(port, tls)
        assert await channel.receive(5) == b"first"
        assert await channel.receive(len(large)) == large
        channel.close()

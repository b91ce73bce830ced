"""Two nodes that talk, on real sockets: what is said, what is lost, who is let in."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.limits import (
    PEER_FRAME_SIZE_MAX,
    PEER_HELLO_SIZE_MAX,
    PEER_UNSENT_BYTES_MAX,
)
from penstock.logd.net.channel import Channel
from penstock.logd.net.listener import dial
from penstock.logd.net.peer_identity import Identity, greet
from penstock.logd.net.peer_link import PeerLink
from penstock.logd.net.peer_server import PeerServer
from penstock.logd.net.peer_tls import PeerTls
from penstock.logd.net.peer_wire import Kind, encode_frame, receive_frame
from penstock.logd.security.tls import CertificateFiles
from penstock.logd.wire.logd_peer_pb2 import Purpose, Refused
from tests.support.certificates import Authority
from tests.support.fuzzing import SEED, cases, mutated_bytes
from tests.support.processes import free_port
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live

A, B = Identity("test", "a"), Identity("test", "b")


@dataclass
class Recorder:
    """A node that does what the api says."""

    raft: list[tuple[str, bytes]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    def on_raft(self, node: str, message: bytes) -> None:
        self.raft.append((node, message))

    async def answer(self, node: str, api: str, body: bytes) -> bytes:
        match api:
            case "echo":
                return node.encode() + b":" + body
            case "wait":
                self.waiting += 1
                await self.gate.wait()
                return body
            case "refuse":
                raise RefusedError("NOT_LEADER", "ask b", leader="b")
            case "unavailable":
                raise UnavailableError("the disk is full")
            case _:
                raise KeyError(api)

    def answer_at_once(self, node: str, api: str, body: bytes) -> bytes | None:
        return None

    async def replicate(self, node: str, channel: Channel) -> None:
        await channel.send(b"frames for " + node.encode(), stall_s=20)


@asynccontextmanager
async def subscription_manager(
    service: Recorder,
    address: str = "127.0.0.1:0",
    tls: CertificateFiles | None = None,
    me: Identity = B,
    **limits: int,
) -> AsyncIterator[tuple[str, PeerServer]]:
    server = PeerServer(me, service, PeerTls.of(tls) if tls else None, **limits)
    bound = server.listener.listen(address)
    running = asyncio.create_task(server.listener.run())
    try:
        yield bound, server
    finally:
        running.cancel()
        await asyncio.wait([running])
        server.listener.close()


async def test_what_is_no_hello_ends_its_connection_only() -> None:
    """Bytes that are nearly right, and frames that are announced larger than a Hello is."""
    sound = encode_frame(Kind.HELLO, greet(A, "b", Purpose.MESSAGES))
    service = Recorder()
    async with subscription_manager(service) as (address, server):
        host, port = address.split(":")
        for number in range(cases(60)):
            rng = random.Random(f"{SEED}-{number}")
            data = mutated_bytes(rng, sound)
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                writer.write_eof()
                async with asyncio.timeout(20):
                    await reader.read()
            writer.close()
        broken = server.counts.broken
        assert broken > 0
        assert server.counts.refused > 0
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(struct.pack("<IB", PEER_HELLO_SIZE_MAX + 1, Kind.HELLO))
        async with asyncio.timeout(20):
            assert await reader.read() == b""  # at once: the rest is not waited for
        writer.close()
        await wait_until_async(lambda: server.counts.broken == broken + 1)
        assert service.raft == []
        async with linked(address) as link:
            await connected(link)
            assert await link.ask("echo", b"x", timeout_s=20) == b"a:x"


async def test_nodes_that_say_nothing_leave_room_for_who_does() -> None:
    async with subscription_manager(Recorder(), max_unauthenticated=8) as (address, server):
        host, port = address.split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(20)]
        await wait_until_async(lambda: server.listener.connections_refused == 12)
        async with linked(address) as link:
            await connected(link)
            assert await link.ask("echo", b"x", timeout_s=20) == b"a:x"
        for one in silent:
            one.close()


@asynccontextmanager
async def linked(
    address: str, tls: CertificateFiles | None = None, me: Identity = A, peer: str = "b"
) -> AsyncIterator[PeerLink]:
    link = PeerLink(me, peer, address, rng=random.Random(1), tls=PeerTls.of(tls) if tls else None)
    running = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()


def free_address() -> str:
    """Where nobody listens, and somebody may begin to."""
    return f"127.0.0.1:{free_port()}"


async def connected(link: PeerLink) -> None:
    await wait_until_async(lambda: link.up, what=link.problem)


async def test_messages_arrive_in_order_and_requests_are_answered() -> None:
    service = Recorder()
    async with subscription_manager(service) as (address, _), linked(address) as link:
        await connected(link)
        for number in range(100):
            link.post(b"%d" % number)
        assert await link.ask("echo", b"hello", timeout_s=20) == b"a:hello"
    assert service.raft == [("a", b"%d" % number) for number in range(100)]
    assert link.counts.dropped == 0


async def test_the_same_with_tls(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    made = authority.sign("node", "IP:127.0.0.1")
    tls = CertificateFiles(ca_file=authority.cert, cert_file=made.cert, key_file=made.key)
    async with (
        subscription_manager(Recorder(), tls=tls) as (address, _),
        linked(address, tls) as link,
    ):
        await connected(link)
        body = bytes(PEER_FRAME_SIZE_MAX - 1024)
        assert await link.ask("echo", body, timeout_s=20) == b"a:" + body


async def test_a_request_that_waits_holds_up_no_other() -> None:
    service = Recorder()
    async with subscription_manager(service) as (address, _), linked(address) as link:
        await connected(link)
        slow = asyncio.create_task(link.ask("wait", b"slow", timeout_s=60))
        await wait_until_async(lambda: service.waiting)
        assert await link.ask("echo", b"fast", timeout_s=20) == b"a:fast"
        assert not slow.done()
        service.gate.set()
        assert await slow == b"slow"


async def test_refusals_come_back_as_what_they_were() -> None:
    async with subscription_manager(Recorder()) as (address, _), linked(address) as link:
        await connected(link)
        with pytest.raises(RefusedError, match="ask b") as refused:
            await link.ask("refuse", b"", timeout_s=20)
        assert (refused.value.code, refused.value.detail) == ("NOT_LEADER", {"leader": "b"})
        with pytest.raises(UnavailableError, match="the disk is full"):
            await link.ask("unavailable", b"", timeout_s=20)
        with pytest.raises(RefusedError, match="KeyError") as refused:
            await link.ask("unheard of", b"", timeout_s=20)
        assert refused.value.code == "INTERNAL"
        with pytest.raises(RefusedError, match="bytes") as refused:
            await link.ask("echo", bytes(PEER_FRAME_SIZE_MAX), timeout_s=20)
        assert refused.value.code == "TOO_LARGE"


async def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_asked() -> None:
    service = Recorder()
    async with subscription_manager(service) as (address, _), linked(address) as link:
        await connected(link)
        with pytest.raises(UnavailableError, match="has not answered wait within"):
            await link.ask("wait", b"", timeout_s=0.05)
        service.gate.set()  # its late answer is for nobody
        assert await link.ask("echo", b"on", timeout_s=20) == b"a:on"


async def test_whoever_waits_for_an_answer_is_told_when_the_connection_breaks() -> None:
    service = Recorder()
    address = free_address()
    async with linked(address) as link:
        async with subscription_manager(service, address):
            await connected(link)
            asked = asyncio.create_task(link.ask("wait", b"", timeout_s=60))
            await wait_until_async(lambda: service.waiting)
        with pytest.raises(UnavailableError, match="broke before it answered"):
            await asked
        assert not link.up


async def test_a_link_finds_its_peer_again() -> None:
    service = Recorder()
    address = free_address()
    async with linked(address) as link:
        await wait_until_async(lambda: "Connect call failed" in link.problem, what=link.problem)
        link.post(b"lost")
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await link.ask("echo", b"", timeout_s=1)
        for number in range(3):
            async with subscription_manager(service, address):
                await connected(link)
                link.post(b"%d" % number)
                await link.ask("echo", b"", timeout_s=20)
            await wait_until_async(lambda: not link.up)
    assert [message for _, message in service.raft] == [b"0", b"1", b"2"]
    assert (link.counts.dropped, link.counts.connected) == (1, 3)


@pytest.mark.parametrize(
    ("me", "peer", "problem"),
    [
        (Identity("other", "a"), "b", "b is of cluster 'test', not 'other'"),
        (A, "c", "this is node 'b', not 'c'"),
        (B, "b", "a node cannot be 'b' here"),
    ],
)
async def test_a_stranger_is_refused_with_the_reason(me: Identity, peer: str, problem: str) -> None:
    async with (
        subscription_manager(Recorder()) as (address, server),
        linked(address, None, me, peer) as link,
    ):
        await wait_until_async(lambda: problem in link.problem, what=link.problem)
        assert server.counts.refused > 0
        assert not link.up


HELLO = encode_frame(Kind.HELLO, greet(A, "b", Purpose.MESSAGES))


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: logd\r\n\r\n",
        encode_frame(Kind.RAFT, b"hello"),
        encode_frame(Kind.HELLO, b"\xff"),
        (PEER_FRAME_SIZE_MAX + 1).to_bytes(4, "little") + b"\x01",
        HELLO + encode_frame(Kind.ANSWER, b""),
        HELLO + encode_frame(Kind.REQUEST, b"\xff"),
    ],
    ids=["http", "no hello", "bad hello", "too long", "not its turn", "bad request"],
)
async def test_rubbish_ends_the_connection_and_nothing_else(said: bytes) -> None:
    async with subscription_manager(Recorder()) as (address, server):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(said)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionResetError):  # it leaves what follows unread
                await reader.read()
        writer.close()
        assert server.counts.broken == 1
        async with linked(address) as link:
            await connected(link)


async def test_a_peer_that_speaks_rubbish_is_dialled_again() -> None:
    async def rubbish(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(rubbish, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, linked(f"127.0.0.1:{port}") as link:
        await wait_until_async(lambda: "unknown kind" in link.problem, what=link.problem)


async def test_one_that_listens_but_takes_nothing_is_bounded() -> None:
    """Its kernel takes some, the link holds some, the rest is dropped and counted."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.setblocking(False)
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        async with linked(address) as link:
            loop = asyncio.get_running_loop()
            connection, _ = await loop.sock_accept(deaf)
            with connection:
                await loop.sock_sendall(connection, encode_frame(Kind.WELCOME, b"\x08\x01"))
                await connected(link)
                for _ in range(64):
                    link.post(bytes(1024 * 1024))
                assert link.unsent_bytes <= PEER_UNSENT_BYTES_MAX + 1024
                gone = link.counts.dropped + link.counts.sent  # the kernel takes some
                assert gone >= 64 - PEER_UNSENT_BYTES_MAX // (1024 * 1024)
                with pytest.raises(UnavailableError, match="too slowly"):
                    await link.ask("echo", bytes(1024 * 1024), timeout_s=1)


async def test_a_connection_for_replication_is_handed_over() -> None:
    async with subscription_manager(Recorder()) as (address, _):
        host, port = address.split(":")
        channel = await dial(host, int(port))
        hello = greet(A, "b", Purpose.REPLICATION)
        await channel.send(encode_frame(Kind.HELLO, hello), stall_s=20)
        kind, _ = await receive_frame(channel)
        assert kind is Kind.WELCOME
        assert await channel.receive(12) == b"frames for a"
        channel.close()


async def test_a_later_version_of_a_dialer_is_answered_with_ours() -> None:
    async with subscription_manager(Recorder()) as (address, _):
        host, port = address.split(":")
        answers = []
        for version in (b"\x08\x09", b"\x08\x00"):
            channel = await dial(host, int(port))
            hello = version + greet(A, "b", Purpose.MESSAGES)[2:]
            await channel.send(encode_frame(Kind.HELLO, hello), stall_s=20)
            answers.append(await receive_frame(channel))
            channel.close()
    assert answers[0] == (Kind.WELCOME, b"\x08\x01")
    assert answers[1][0] is Kind.REFUSED
    assert Refused.FromString(answers[1][1]).code == "UNKNOWN_VERSION"


def named(authority: Authority, name: str) -> PeerTls:
    made = authority.sign(name, "IP:127.0.0.1")
    files = CertificateFiles(ca_file=authority.cert, cert_file=made.cert, key_file=made.key)
    return PeerTls.of(files, named=True)


async def test_a_node_is_whom_its_certificate_names(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "nodes")
    a, b, c = (named(authority, name) for name in ("a", "b", "c"))
    service = Recorder()
    server = PeerServer(B, service, b)
    address = server.listener.listen("127.0.0.1:0")
    running = asyncio.create_task(server.listener.run())
    stranger = named(Authority(tmp_path / "others"), "a")
    for tls, me, peer, reason in (
        (c, A, "b", "its certificate does not"),  # c says that it is a
        (a, A, "z", "its certificate does not"),  # a call to z comes to b
        (stranger, A, "b", "certificate verify failed"),
    ):
        link = PeerLink(me, peer, address, rng=random.Random(1), tls=tls)
        trying = asyncio.create_task(link.run())
        await wait_until_async(lambda: reason in link.problem, what=link.problem)  # noqa: B023
        trying.cancel()
    assert server.counts.refused >= 1
    link = PeerLink(A, "b", address, rng=random.Random(1), tls=a)
    talking = asyncio.create_task(link.run())
    await connected(link)
    assert await link.ask("echo", b"hello", timeout_s=20) == b"a:hello"
    for task in (talking, running):
        task.cancel()
        await asyncio.wait([task])
    server.listener.close()

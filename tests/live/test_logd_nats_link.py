"""The NATS connection against a server that misbehaves on purpose."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from penstock.base.clock import SystemClock
from penstock.logd.intake.turn import Message
from penstock.logd.nats.connect import NatsAccess, dial
from penstock.logd.nats.link import LinkTiming, NatsLink, Subscriptions
from penstock.logd.nats.protocol import NatsRefusedError
from penstock.logd.nats.servers import NatsServer, parse_servers
from tests.support.loops import ResolvingLoop, on_resolving_loop
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live

INFO = b'INFO {"server_id":"fake","max_payload":1048576,"headers":true}\r\n'


class FakeServer:
    """Speaks just enough of the protocol; `greet` decides what each connection is sent.

    The first `mute` connections are not answered any more.
    """

    def __init__(self, greet: Callable[[int], bytes]) -> None:
        self.greet = greet
        self.connections = 0
        self.mute = 0
        self.lines: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        self.writers.append(writer)
        writer.write(INFO)
        try:
            while line := await reader.readline():
                self.lines.append(line.strip())
                if line == b"PING\r\n" and number >= self.mute:
                    writer.write(self.greet(number) + b"PONG\r\n")
        except ConnectionError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def linked(
    server: FakeServer, timing: LinkTiming | None = None
) -> AsyncIterator[tuple[NatsLink, list[Message]]]:
    got: list[Message] = []

    def on_messages(messages: dict[bytes, list[Message]]) -> None:
        for arrived in messages.values():
            got.extend(arrived)

    subscription_manager = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = subscription_manager.sockets[0].getsockname()[1]
    link = NatsLink(
        NatsAccess(servers=parse_servers(f"nats://tom:p%40ss@127.0.0.1:{port}")),
        name="test",
        on_messages=on_messages,
        rng=random.Random(1),
        clock=SystemClock(),
        timing=timing,
    )
    try:
        yield link, got
    finally:
        link.close()
        for writer in server.writers:
            writer.close()
        subscription_manager.close()
        await subscription_manager.wait_closed()


async def test_malformed_input_leads_to_a_new_connection_with_the_subscriptions() -> None:
    def greet(number: int) -> bytes:
        if not server.lines[-2].startswith(b"SUB"):
            return b""
        return b"MSG t.a 1 2\r\nok\r\n" + (b"GARBAGE\r\n" if number < 2 else b"")

    server = FakeServer(greet)
    async with linked(server) as (link, got), asyncio.TaskGroup() as tasks:
        link.subscribe("t.>")
        with pytest.raises(ConnectionError):
            await link.connect()
        running = tasks.create_task(link.run())
        await wait_until_async(lambda: len(got) == 3, what="three connections")
        assert server.connections == 3
        assert [message.payload for message in got] == [b"ok"] * 3
        assert server.lines.count(b"SUB t.> 1") == 3
        assert any(b'"user":"tom"' in line and b'"pass":"p@ss"' in line for line in server.lines)
        link.close()
        await running


async def test_a_link_asks_as_often_as_its_timing_says() -> None:
    often, seldom = FakeServer(lambda _: b""), FakeServer(lambda _: b"")
    async with (
        linked(often, LinkTiming(ask_s=0.01)) as (asking, _),
        linked(seldom, LinkTiming(ask_s=3600)) as (quiet, _),
        asyncio.TaskGroup() as tasks,
    ):
        for link in (quiet, asking):
            await link.connect()
            tasks.create_task(link.run())
        await wait_until_async(lambda: seldom.lines.count(b"PING") == 2)  # of the start, then one
        await wait_until_async(lambda: often.lines.count(b"PING") > 20)
        assert seldom.lines.count(b"PING") == 2
        quiet.close()
        asking.close()


async def test_a_refusal_names_what_the_server_said() -> None:
    server = FakeServer(lambda _: b"-ERR 'Authorization Violation'\r\n")
    async with linked(server) as (link, _):
        with pytest.raises(NatsRefusedError, match="Authorization Violation"):
            await link.connect()
        assert not link.connected


async def test_writes_are_refused_while_disconnected() -> None:
    server = FakeServer(lambda _: b"")
    async with linked(server) as (link, _):
        assert not link.write(b"PUB a 0\r\n\r\n")
        await link.connect()
        assert link.write(b"PUB a 0\r\n\r\n")
        await link.flush(5)
        assert b"PUB a 0" in server.lines


async def test_random_bytes_never_stop_the_link() -> None:
    rng = random.Random(5)
    server = FakeServer(lambda number: rng.randbytes(200) if number < 4 else b"")
    async with linked(server) as (link, _), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(link.run())
        await wait_until_async(lambda: link.connected and server.connections > 4, what="connected")
        link.close()
        await running


async def test_a_refused_subscription_is_told_to_who_asked_and_not_to_a_ping_under_way() -> None:
    def greet(_: int) -> bytes:
        refused = any(line.startswith(b"SUB bad") for line in server.lines)
        return b"-ERR 'Permissions Violation for Subscription to \"bad\"'\r\n" * refused

    server = FakeServer(greet)
    async with linked(server) as (link, _):
        access = NatsAccess(servers=link.servers)
        wire = await dial(
            access, link.servers[0], name="test", on_messages=print, clock=SystemClock()
        )
        subscriptions = Subscriptions(lambda _: None)
        subscriptions.attach(wire)
        ping = wire.ask()
        sid = subscriptions.add("bad", "")
        await subscriptions.known(sid)
        with pytest.raises(NatsRefusedError):
            subscriptions.check(sid)
        assert await ping == []
        assert not wire.closed.done()
        wire.abort()


async def test_another_subscription_taken_away_meanwhile_is_not_this_ones_refusal() -> None:
    def greet(_: int) -> bytes:
        asked = any(line.startswith(b"SUB good") for line in server.lines)
        return b'-ERR \'Permissions Violation for Subscription to "old" (sid "1")\'\r\n' * asked

    server = FakeServer(greet)
    async with linked(server) as (link, _):
        old = link.subscribe("old")
        await link.connect()
        await link.confirmed(link.subscribe("good"))
        assert list(link.denials()) == [old]


async def test_a_connection_that_breaks_at_once_again_and_again_is_made_less_and_less_often() -> (
    None
):
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    def greet(number: int) -> bytes:
        subscribed = server.lines[-2].startswith(b"SUB")
        return b"GARBAGE\r\n" if subscribed and 0 < number < 8 else b""

    server = FakeServer(greet)
    timing = LinkTiming(short_s=3600, sleep=note)  # on a slow machine, too, none has lasted
    async with linked(server, timing) as (link, _), asyncio.TaskGroup() as tasks:
        link.subscribe("t.>")
        await link.connect()
        server.writers[0].close()
        running = tasks.create_task(link.run())
        await wait_until_async(lambda: server.connections >= 9, what="connections")
        link.close()
        await running
    assert server.connections == 9
    assert pauses[6] > pauses[3] > pauses[0] > 0


async def test_a_server_that_falls_silent_while_it_is_to_be_left_is_given_up() -> None:
    server = FakeServer(lambda _: b"")
    async with linked(server, LinkTiming(confirm_s=0.2)) as (link, _), asyncio.TaskGroup() as tasks:
        await link.connect()
        server.mute = 1
        server.writers[0].write(INFO.replace(b"{", b'{"ldm":true,'))
        running = tasks.create_task(link.run())
        await wait_until_async(lambda: server.connections == 2, what="another connection")
        await wait_until_async(lambda: link.connected, what="connected")
        link.close()
        await running


def test_an_address_of_a_name_that_answers_is_found_behind_one_that_does_not() -> None:
    async def work(loop: ResolvingLoop) -> None:
        server = FakeServer(lambda _: b"")
        with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
            loop.addresses = [("127.0.0.1", 0)]
            async with linked(server) as (link, _):
                port = link.servers[0].port
                deaf.bind(("127.0.0.2", port))
                deaf.listen(0)
                for filling in (first, second):  # Linux drops what does not fit the backlog
                    filling.setblocking(False)
                    filling.connect_ex(deaf.getsockname())
                loop.addresses = [("127.0.0.2", port), ("127.0.0.1", port)]
                wire = await dial(
                    NatsAccess(servers=link.servers),
                    NatsServer("several.test", port),
                    name="test",
                    on_messages=print,
                    clock=SystemClock(),
                )
                assert not wire.closed.done()
                wire.abort()

    on_resolving_loop(work)

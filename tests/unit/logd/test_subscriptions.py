"""Subscriptions while one server is left for another: a new one counts once a server has it."""

import asyncio
import random

import pytest

from penstock.base.clock import SystemClock
from penstock.logd.core.servers import parse_servers
from penstock.logd.nats.dial import NatsAccess
from penstock.logd.nats.errors import ErrorKind, NatsRefusedError, ServerError
from penstock.logd.nats.link import NatsLink


class FakeWire:
    """Keeps what was asked, until the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, asyncio.Future[list[ServerError]]]] = []

    def ask(self, lines: bytes = b"") -> "asyncio.Future[list[ServerError]]":
        answer: asyncio.Future[list[ServerError]] = asyncio.get_running_loop().create_future()
        self.asked.append((lines, answer))
        return answer

    def answer(self, *errors: ServerError) -> None:
        self.asked.pop(0)[1].set_result([*errors])

    def write(self, data: bytes) -> None:
        pass


def make_link(wire: FakeWire | None) -> NatsLink:
    link = NatsLink(
        NatsAccess(servers=parse_servers("nats://127.0.0.1:1")),
        name="data",
        on_messages=print,
        rng=random.Random(1),
        clock=SystemClock(),
    )
    if wire is not None:
        attach(link, wire)
    return link


def attach(link: NatsLink, wire: FakeWire) -> None:
    link._wire = wire  # type: ignore[assignment]
    link._subscriptions.attach(wire)  # type: ignore[arg-type]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_subscription_made_while_the_server_is_left_waits_for_the_other_one() -> None:
    link = make_link(FakeWire())
    link._subscriptions.detach()  # the old server was told; the new one does not have us yet
    sid = link.subscribe("a")
    waiting = asyncio.create_task(link.confirmed(sid))
    await turns()
    assert not waiting.done()
    other = FakeWire()
    attach(link, other)
    await turns()
    assert not waiting.done()
    assert other.asked[0][0] == b"SUB a 1\r\n"
    other.answer()
    async with asyncio.timeout(20):
        await waiting


async def test_a_subscription_that_the_old_server_never_answered_waits_for_the_other_one() -> None:
    old, other = FakeWire(), FakeWire()
    link = make_link(old)
    waiting = asyncio.create_task(link.confirmed(link.subscribe("a")))
    await turns()
    link._subscriptions.detach()
    old.asked[0][1].set_exception(ConnectionError("it is left"))
    await turns()
    assert not waiting.done()
    attach(link, other)
    other.answer(ServerError(ErrorKind.SUBSCRIPTION, "Permissions Violation", b"1"))
    with pytest.raises(NatsRefusedError, match="Permissions"):
        await waiting
    assert link.denials() == {}


async def test_nobody_waits_for_a_server_that_there_is_not_or_a_subscription_that_ended() -> None:
    link = make_link(None)
    await link.confirmed(link.subscribe("a"))
    attach(link, FakeWire())
    sid = link.subscribe("b")
    waiting = asyncio.create_task(link.confirmed(sid))
    await turns()
    link.unsubscribe(sid)
    async with asyncio.timeout(20):
        await waiting

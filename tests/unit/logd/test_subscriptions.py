"""Subscriptions while one server is left for another: a new one counts once a server has it."""

import asyncio
import random
from typing import TYPE_CHECKING, cast

import pytest

from penstock.base.clock import SystemClock
from penstock.logd.nats.connect import NatsAccess
from penstock.logd.nats.link import NatsLink, Subscriptions
from penstock.logd.nats.protocol import ErrorKind, NatsRefusedError, ServerError
from penstock.logd.nats.servers import parse_servers

if TYPE_CHECKING:
    from penstock.logd.nats.protocol import Wire


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


def subscriptions(wire: FakeWire) -> Subscriptions:
    made = Subscriptions(lambda _: None)
    attach(made, wire)
    return made


def attach(made: Subscriptions, wire: FakeWire) -> None:
    made.attach(cast("Wire", wire))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_subscription_made_while_the_server_is_left_waits_for_the_other_one() -> None:
    made = subscriptions(FakeWire())
    made.detach()  # the old server was told; the new one does not have us yet
    sid = made.add("a", "")
    waiting = asyncio.create_task(made.known(sid))
    await turns()
    assert not waiting.done()
    other = FakeWire()
    attach(made, other)
    await turns()
    assert not waiting.done()
    assert other.asked[0][0] == b"SUB a 1\r\n"
    other.answer()
    async with asyncio.timeout(20):
        await waiting


async def test_a_subscription_that_the_old_server_never_answered_waits_for_the_other_one() -> None:
    old, other = FakeWire(), FakeWire()
    made = subscriptions(old)
    sid = made.add("a", "")
    waiting = asyncio.create_task(made.known(sid))
    await turns()
    made.detach()
    old.asked[0][1].set_exception(ConnectionError("it is left"))
    await turns()
    assert not waiting.done()
    attach(made, other)
    other.answer(ServerError(ErrorKind.SUBSCRIPTION, "Permissions Violation", b"1"))
    async with asyncio.timeout(20):
        await waiting
    with pytest.raises(NatsRefusedError, match="Permissions"):
        made.check(sid)
    assert made.denials() == {}


async def test_nobody_waits_for_a_server_that_there_is_not_or_a_subscription_that_ended() -> None:
    link = NatsLink(
        NatsAccess(servers=parse_servers("nats://127.0.0.1:1")),
        name="data",
        on_messages=print,
        rng=random.Random(1),
        clock=SystemClock(),
    )
    await link.confirmed(link.subscribe("a"))
    made = subscriptions(FakeWire())
    sid = made.add("b", "")
    waiting = asyncio.create_task(made.known(sid))
    await turns()
    made.remove(sid)
    async with asyncio.timeout(20):
        await waiting
    made.check(sid)

"""What becomes of a publish on its way: a link that is there or not, answers that come or not."""

import asyncio
from typing import Any

import grpc
import pytest

from penstock.base.clock import SystemClock
from penstock.logd.format.acks import Nack
from penstock.logd.format.publish_envelope import published_in, refused_ack, stored_ack
from penstock.logd.intake.turn import Message
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.publish import Relay
from penstock.logd.nats.connect import NatsAccess
from penstock.logd.nats.servers import parse_servers
from penstock.logd.net.byte_semaphore import ByteSemaphore
from penstock.logd.wire import logd_liftbridge_pb2 as wire


class Link:
    """Takes what is published, and lets `answer` say what comes back."""

    max_payload = 4096

    def __init__(self, relay: Relay) -> None:
        self.lines: list[bytes] = []
        self.answers: list[Any] = []
        self._relay = relay

    def write(self, line: bytes) -> bool:
        what = self.answers.pop(0) if self.answers else None
        if what == "unsent":
            return False
        self.lines.append(line)
        if what is not None:
            inbox = line.split(b" ")[2]
            head, body = (what, b"") if what.startswith(b"NATS") else (b"", what)
            self._relay.on_messages({b"1": [Message(inbox, b"", head, body)]})
        return True


def stored(offset: int) -> bytes:
    return stored_ack(b"", stream="s", offset=offset, epoch=1, duplicate=False, now_ns=1)


def refused(nack: Nack) -> bytes:
    return refused_ack(b"", stream="s", nack=nack, description="why")


@pytest.fixture
def relay() -> Relay:
    access = NatsAccess(servers=parse_servers("nats://127.0.0.1:1"))
    clock = SystemClock()
    made = Relay(access, node="n", bytes_max=1 << 20, clock=clock, resend_s=0.01, pause_s=0.001)
    made.link = Link(made)  # type: ignore[assignment]
    return made


async def publish(relay: Relay, *, repeat: bool = True, timeout_s: float = 20.0) -> wire.Ack:
    message = wire.Message(value=b"x")
    return await relay.publish("s", message, stream="s", repeat=repeat, timeout_s=timeout_s)


@pytest.mark.parametrize(
    "answers",
    [
        [],
        ["unsent", "unsent"],
        [b"NATS/1.0 503\r\n\r\n"],
        [refused(Nack.BUSY), refused(Nack.NOT_ENOUGH_REPLICAS)],
        [None, None],
        [b"somebody else's answer"],
    ],
)
async def test_a_publish_is_sent_again_until_it_is_answered(
    relay: Relay, answers: list[Any]
) -> None:
    link: Any = relay.link
    link.answers = [*answers, stored(7)]
    assert (await publish(relay)).offset == 7
    ids = {line.partition(b"Nats-Msg-Id: ")[2].partition(b"\r\n")[0] for line in link.lines}
    assert len(ids) == 1, "all of them count as one"
    assert len(link.lines) == 1 + sum(what != "unsent" for what in answers)
    assert (relay.gate.held, relay.waiting) == (0, 0)


async def test_without_a_window_of_ids_silence_is_not_answered_by_a_repeat(relay: Relay) -> None:
    link: Any = relay.link
    with pytest.raises(CallError) as raised:
        await publish(relay, repeat=False, timeout_s=0.1)
    assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(link.lines) == 1
    link.answers = [b"NATS/1.0 503\r\n\r\n", stored(7)]  # nobody had it: that is no repeat
    assert (await publish(relay, repeat=False)).offset == 7


async def test_a_refusal_that_stays_one_is_told_at_once(relay: Relay) -> None:
    link: Any = relay.link
    link.answers = [refused(Nack.READ_ONLY)]
    assert (await publish(relay)).errorNumber == Nack.READ_ONLY.err_code


async def test_the_reason_is_told_when_the_time_is_over(relay: Relay) -> None:
    link: Any = relay.link
    link.answers = [refused(Nack.BUSY)] * 1000
    with pytest.raises(CallError, match="why"):
        await publish(relay, timeout_s=0.1)


async def test_what_nats_does_not_take_is_refused(relay: Relay) -> None:
    message = wire.Message(value=bytes(5000))
    with pytest.raises(CallError) as raised:
        await relay.publish("s", message, stream="s", repeat=True, timeout_s=1)
    assert raised.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_publishers_own_id_is_the_one_that_counts(relay: Relay) -> None:
    link: Any = relay.link
    link.answers = [stored(0)]
    message = wire.Message(value=b"x", headers={"Nats-Msg-Id": b"own"})
    await relay.publish("s", message, stream="", repeat=True, timeout_s=5)
    (line,) = link.lines
    assert line.count(b"Nats-Msg-Id") == 1
    published = published_in(line[line.index(b"\xb9\x0e") : -2], b"s", 0)
    assert published is not None
    assert published.headers == (("Nats-Msg-Id", b"own"),)


async def test_room_is_given_in_line_and_comes_back_from_those_who_leave() -> None:
    gate = ByteSemaphore(10)
    first = await gate.take(6)
    large, small = (asyncio.create_task(gate.take(size)) for size in (6, 4))
    await asyncio.sleep(0)
    assert (gate.held, gate.waiting) == (6, 2)  # the small one would fit, and waits its turn
    large.cancel()
    assert await small == 4
    waiting = asyncio.create_task(gate.take(3))
    await asyncio.sleep(0)
    gate.give(first)
    waiting.cancel()  # it has its room, and does not take it
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.give(4)
    assert (gate.held, gate.waiting) == (0, 0)
    assert await gate.take(100) == 10


async def test_another_streams_ack_says_nothing(relay: Relay) -> None:
    link: Any = relay.link
    other = stored_ack(b"", stream="other", offset=9, epoch=1, duplicate=False, now_ns=1)
    link.answers = [other, stored(3)]
    ack = await publish(relay)
    assert (ack.stream, ack.offset) == ("s", 3)
    assert relay.counts["foreign"] == 1


async def test_an_ack_that_nats_does_not_take_is_not_forwarded(relay: Relay) -> None:
    """The server would end the connection, and with it every publish that waits for its ack."""
    relay.forward("_INBOX.mine", wire.Ack(correlationId="c" * 5000))
    relay.forward("_INBOX.mine", wire.Ack(correlationId="c"))
    link: Any = relay.link
    assert [line[:16] for line in link.lines] == [b"PUB _INBOX.mine "]
    assert relay.counts["not_forwarded"] == 1

"""Up to when everything has come, by what the server answers and when."""

import asyncio
from typing import cast

from penstock.logd.nats.link import Probe
from penstock.logd.nats.protocol import Answer, Wire

S = 1_000_000_000


class FakeClock:
    """Says what the test sets."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        raise AssertionError


class FakeWire:
    """A connection whose answers the test gives."""

    def __init__(self) -> None:
        self.reads = 0
        self.asked: list[Answer] = []

    def ask(self) -> Answer:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]

    async def answer(self) -> None:
        self.reads += 1
        self.asked[-1].set_result([])
        await asyncio.sleep(0)


def made() -> tuple[Probe, FakeWire, FakeClock]:
    wire, clock = FakeWire(), FakeClock()
    clock.now_ns = 100 * S
    return Probe(cast("Wire", wire), clock), wire, clock


async def test_what_was_asked_counts_from_when_it_was_asked_and_only_once_answered() -> None:
    probe, wire, clock = made()
    for second in (101, 102, 103):  # it is behind: one question at a time
        clock.now_ns = second * S
        assert probe.look()
    assert (len(wire.asked), probe.complete_ns) == (1, 100 * S)
    clock.now_ns = 104 * S
    await wire.answer()
    assert probe.complete_ns == 101 * S
    assert probe.look()
    await wire.answer()
    assert (len(wire.asked), probe.complete_ns) == (2, 104 * S)


async def test_a_connection_that_breaks_answers_nothing() -> None:
    probe, wire, _ = made()
    probe.look()
    wire.asked[-1].set_exception(ConnectionError())
    await asyncio.sleep(0)
    assert probe.complete_ns == 100 * S


async def test_a_server_that_sends_is_there_however_late_its_answer() -> None:
    probe, wire, clock = made()
    for second in range(100, 160):
        clock.now_ns = second * S
        wire.reads += second % 2
        assert probe.look()


async def test_a_server_that_sends_nothing_though_asked_is_gone() -> None:
    probe, wire, clock = made()
    probe.look()
    await wire.answer()
    clock.now_ns = 200 * S
    assert probe.look()
    clock.now_ns += 5 * S - 1
    assert probe.look()
    clock.now_ns += 1
    assert not probe.look()

"""Streams without acks while the disk fails: senders wait, nothing is lost or out of order."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import msgpack
import pytest

from penstock.base.clock import SystemClock
from penstock.collector.errors import SpoolFailedError
from penstock.collector.ledger import Ledger
from penstock.collector.limits import MIB, SpoolWriterLimits
from penstock.collector.sources.forward.source import ForwardSettings, ForwardSource
from penstock.collector.sources.source import Source
from penstock.collector.sources.syslog.source import SyslogSettings, SyslogSource
from penstock.collector.spool.memory_budget import Budget, Charge
from penstock.collector.spool.spool import Unit
from penstock.collector.spool.writer import Payload, RetryBuffer, SpoolWriter
from tests.support.receiving import send_datagrams
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

Make = Callable[[SpoolingIntake], Source]


def syslog(spool_writer: SpoolingIntake) -> SyslogSource:
    given = {"type": "syslog", "tcp": "127.0.0.1:0", "udp": None}
    return SyslogSource(SyslogSettings.model_validate(given), spool_writer=spool_writer)


def forward(spool_writer: SpoolingIntake) -> ForwardSource:
    given = {"type": "forward", "listen": "127.0.0.1:0"}
    return ForwardSource(ForwardSettings.model_validate(given), spool_writer=spool_writer)


def by_syslog(number: int) -> bytes:
    return b"<13>number %d\n" % number


def by_forward(number: int) -> bytes:
    packed: bytes = msgpack.packb(["a", 1_700_000_000, {"message": f"number {number}"}])
    return packed


QUICKLY = SpoolWriterLimits(spool_retry_s=0.01)
WAYS = pytest.mark.parametrize(("make", "encode"), [(syslog, by_syslog), (forward, by_forward)])


@asynccontextmanager
async def listening(
    directory: Path, make: Make
) -> AsyncIterator[tuple[Source, SpoolingIntake, asyncio.StreamWriter]]:
    """A source with a connection to it."""
    async with spooling(directory, "s", limits=QUICKLY) as spool_writer:
        source = make(spool_writer)
        await source.start()
        place = source.endpoint or getattr(source, "endpoints", {})["tcp"]
        host, port = place.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        try:
            yield source, spool_writer, writer
        finally:
            writer.close()
            await source.stop()


def bodies(spool_writer: SpoolingIntake) -> list[str]:
    return [json.loads(line)["body"] for line in spool_writer.lines()]


def failing(spool_writer: SpoolingIntake) -> AbstractContextManager[None]:
    """A disk that is full until the block ends."""
    return spool_writer.disk.failing(errno.ENOSPC)


async def wait_for_failures(spool_writer: SpoolingIntake, more: int) -> None:
    """Return when so many writes more were refused."""
    before = spool_writer.journal.failures
    await wait_until_async(lambda: spool_writer.journal.failures >= before + more)


@WAYS
async def test_what_comes_while_the_disk_fails_is_there_in_order_afterwards(
    tmp_path: Path, make: Make, encode: Callable[[int], bytes]
) -> None:
    async with listening(tmp_path, make) as (_, spool_writer, writer):
        writer.write(encode(0))
        await wait_until_async(lambda: len(bodies(spool_writer)) == 1)
        with failing(spool_writer):
            for number in range(1, 6):
                writer.write(encode(number))
                await wait_for_failures(spool_writer, 1)
        for number in range(6, 9):
            writer.write(encode(number))
        await wait_until_async(lambda: len(bodies(spool_writer)) == 9)
        assert bodies(spool_writer) == [f"number {number}" for number in range(9)]
        assert not spool_writer.account.dropped
        await wait_until_async(lambda: spool_writer.share.used == 0)


@WAYS
async def test_what_cannot_be_kept_until_the_end_is_counted(
    tmp_path: Path, make: Make, encode: Callable[[int], bytes]
) -> None:
    async with listening(tmp_path, make) as (source, spool_writer, writer):
        with failing(spool_writer):
            first, rest = encode(0), encode(1) + encode(2)
            writer.write(first)
            await wait_for_failures(spool_writer, 1)
            writer.write(rest)
            await wait_until_async(lambda: spool_writer.share.used == len(first + rest))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await source.stop()
            await wait_until_async(lambda: spool_writer.account.dropped.total() == 3)
            assert set(spool_writer.account.dropped) <= {"stopped", "spool_failed"}
            assert (spool_writer.share.used, spool_writer.account.difference) == (0, 0)


async def test_datagrams_wait_for_the_disk_too(tmp_path: Path) -> None:
    async with spooling(tmp_path, "s", limits=QUICKLY) as spool_writer:
        given = {"type": "syslog", "udp": "127.0.0.1:0", "tcp": None}
        source = SyslogSource(SyslogSettings.model_validate(given), spool_writer=spool_writer)
        await source.start()
        running = asyncio.ensure_future(source.run())
        with failing(spool_writer):
            for number in range(5):
                await send_datagrams(source.endpoints["udp"], by_syslog(number))
                await wait_for_failures(spool_writer, 1)
        await wait_until_async(lambda: len(bodies(spool_writer)) == 5)
        assert bodies(spool_writer) == [f"number {number}" for number in range(5)]
        assert not spool_writer.account.dropped
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await source.stop()


def payload(number: int) -> Payload:
    return Payload("lines", b"%d" % number, 1, {"service": "s"})


async def test_payloads_that_fail_together_come_again_in_their_turn(tmp_path: Path) -> None:
    async with spooling(tmp_path, "s", limits=QUICKLY) as spool_writer:
        held = RetryBuffer(spool_writer)
        with failing(spool_writer):
            async with spool_writer.journal.held():
                for number in range(4):
                    charge = Charge(spool_writer.share)
                    assert charge.take(10)
                    await held.take(payload(number), charge)
            await wait_for_failures(spool_writer, 3)
        await held.finish()
        assert bodies(spool_writer) == ["0", "1", "2", "3"]
        assert spool_writer.share.used == 0
        held.close()


class ScriptedSpool:
    """Takes units; the test says what becomes of each."""

    epoch = 0

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, asyncio.Future[int]]] = []

    async def put(
        self, unit: Unit, *, epoch: int | None = None, wait: bool = True
    ) -> asyncio.Future[int] | None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.taken.append((unit.payload, future))
        return future


async def test_who_comes_at_the_moment_of_a_failure_overtakes_nobody() -> None:
    """It comes before anybody has heard of the failure."""
    spool, budget = ScriptedSpool(), Budget(bytes_max=MIB, share_bytes_max=MIB)
    spool_writer = SpoolWriter(
        "s",
        spool=spool,
        ledger=Ledger(),
        clock=SystemClock(),
        share=budget.share("s"),
        limits=QUICKLY,
    )
    held = RetryBuffer(spool_writer)
    await held.take(payload(0), Charge(spool_writer.share))
    coming = asyncio.ensure_future(held.take(payload(1), Charge(spool_writer.share)))
    spool.taken[0][1].set_exception(SpoolFailedError("no space left on device"))
    await wait_until_async(lambda: len(spool.taken) > 1)
    spool.taken[1][1].set_result(0)
    await coming
    assert [data for data, _ in spool.taken] == [b"0", b"0", b"1"]
    spool.taken[2][1].set_result(1)
    await held.finish()
    held.close()

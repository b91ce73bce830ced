"""Streams without acks while the disk fails: senders wait, nothing is lost or out of order."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from penstock.collector import held_back
from penstock.collector.budget import Charge
from penstock.collector.held_back import HeldBack
from penstock.collector.intake import Payload
from penstock.collector.journal import Entry
from penstock.collector.source_sections import ForwardSource as ForwardSection
from penstock.collector.source_sections import SyslogSource as SyslogSection
from penstock.collector.sources.forward import ForwardSource
from penstock.collector.sources.source import Source
from penstock.collector.sources.syslog import SyslogSource
from tests.support.intake import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

Make = Callable[[SpoolingIntake], Source]


def syslog(intake: SpoolingIntake) -> SyslogSource:
    given = {"type": "syslog", "tcp": "127.0.0.1:0", "udp": None}
    return SyslogSource(SyslogSection.model_validate(given), intake=intake)


def forward(intake: SpoolingIntake) -> ForwardSource:
    given = {"type": "forward", "listen": "127.0.0.1:0"}
    return ForwardSource(ForwardSection.model_validate(given), intake=intake)


def by_syslog(number: int) -> bytes:
    return b"<13>number %d\n" % number


def by_forward(number: int) -> bytes:
    packed: bytes = msgpack.packb(["a", 1_700_000_000, {"message": f"number {number}"}])
    return packed


WAYS = pytest.mark.parametrize(("make", "encode"), [(syslog, by_syslog), (forward, by_forward)])


class Disk:
    """The spool's, which may fail."""

    def __init__(self, intake: SpoolingIntake) -> None:
        self._journal = intake.journal
        self._works = intake.journal._write
        self.writes = 0

    def fail(self) -> None:
        """From now on."""

        def failing(entries: list[Entry]) -> int:
            self.writes += 1
            raise OSError(28, "No space left on device")

        self._journal._write = failing  # type: ignore[method-assign]

    def work(self) -> None:
        """Again."""
        self._journal._write = self._works  # type: ignore[method-assign]


@asynccontextmanager
async def listening(
    directory: Path, make: Make
) -> AsyncIterator[tuple[Source, SpoolingIntake, asyncio.StreamWriter]]:
    """A source with a connection to it."""
    async with spooling(directory, "s") as intake:
        source = make(intake)
        await source.start()
        place = source.endpoint or getattr(source, "endpoints", {})["tcp"]
        host, port = place.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        try:
            yield source, intake, writer
        finally:
            writer.close()
            await source.stop()


def bodies(intake: SpoolingIntake) -> list[str]:
    return [json.loads(line)["body"] for line in intake.lines()]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_back, "_RETRY_S", 0.01)


@WAYS
async def test_what_comes_while_the_disk_fails_is_there_in_order_afterwards(
    tmp_path: Path, make: Make, encode: Callable[[int], bytes]
) -> None:
    async with listening(tmp_path, make) as (_, intake, writer):
        disk = Disk(intake)
        writer.write(encode(0))
        await wait_until_async(lambda: len(bodies(intake)) == 1)
        disk.fail()
        for number in range(1, 6):
            writer.write(encode(number))
            writes = disk.writes
            await wait_until_async(lambda at=writes: disk.writes > at)  # type: ignore[misc]
        disk.work()
        for number in range(6, 9):
            writer.write(encode(number))
        await wait_until_async(lambda: len(bodies(intake)) == 9)
        assert bodies(intake) == [f"number {number}" for number in range(9)]
        assert not intake.account.dropped
        await wait_until_async(lambda: intake.share.used == 0)


@WAYS
async def test_what_cannot_be_kept_until_the_end_is_counted(
    tmp_path: Path, make: Make, encode: Callable[[int], bytes]
) -> None:
    async with listening(tmp_path, make) as (source, intake, writer):
        disk = Disk(intake)
        disk.fail()
        first, rest = encode(0), encode(1) + encode(2)
        writer.write(first)
        await wait_until_async(lambda: disk.writes > 0)
        writer.write(rest)
        await wait_until_async(lambda: intake.share.used == len(first + rest))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await source.stop()
        await wait_until_async(lambda: intake.account.dropped.total() == 3)
        assert set(intake.account.dropped) <= {"stopped", "spool_failed"}
        assert (intake.share.used, intake.account.difference) == (0, 0)
        disk.work()


async def test_datagrams_wait_for_the_disk_too(tmp_path: Path) -> None:
    async with spooling(tmp_path, "s") as intake:
        given = {"type": "syslog", "udp": "127.0.0.1:0", "tcp": None}
        source = SyslogSource(SyslogSection.model_validate(given), intake=intake)
        disk = Disk(intake)
        disk.fail()
        await source.start()
        running = asyncio.ensure_future(source.run())
        for number in range(5):
            source._on_datagram(by_syslog(number), ("127.0.0.1", 1))
            writes = disk.writes
            await wait_until_async(lambda at=writes: disk.writes > at)  # type: ignore[misc]
        disk.work()
        await wait_until_async(lambda: len(bodies(intake)) == 5)
        assert bodies(intake) == [f"number {number}" for number in range(5)]
        assert not intake.account.dropped
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await source.stop()


def payload(number: int) -> Payload:
    return Payload("lines", b"%d" % number, 1, {"service": "s"})


async def test_payloads_that_fail_together_come_again_in_their_turn(tmp_path: Path) -> None:
    async with spooling(tmp_path, "s") as intake:
        held, disk = HeldBack(intake), Disk(intake)
        disk.fail()
        async with intake.journal._committing:
            for number in range(4):
                charge = Charge(intake.share)
                assert charge.take(10)
                await held.take(payload(number), charge)
        await wait_until_async(lambda: disk.writes > 2)
        disk.work()
        await held.finish()
        assert bodies(intake) == ["0", "1", "2", "3"]
        assert intake.share.used == 0
        held.close()


async def test_who_comes_at_the_moment_of_a_failure_overtakes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spooling(tmp_path, "s") as intake:
        held, disk, fail = HeldBack(intake), Disk(intake), intake.journal._fail
        coming: list[asyncio.Task[None]] = []

        def failed(group: Any, error: Exception) -> None:
            coming.append(asyncio.ensure_future(held.take(payload(1), Charge(intake.share))))
            fail(group, error)
            disk.work()

        monkeypatch.setattr(intake.journal, "_fail", failed)
        disk.fail()
        await held.take(payload(0), Charge(intake.share))
        await wait_until_async(lambda: len(bodies(intake)) == 2)
        assert bodies(intake) == ["0", "1"]
        await asyncio.gather(*coming)
        held.close()

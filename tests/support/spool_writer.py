"""A source's way into a spool that nobody empties, and what lies in it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.clock import Clock, SystemClock
from penstock.collector.decode.units import Decoded, decode_records
from penstock.collector.ledger import Account, Ledger
from penstock.collector.limits import MIB, SPOOL_WRITER_LIMITS, SpoolWriterLimits
from penstock.collector.spool.journal import Journal
from penstock.collector.spool.memory_budget import Budget
from penstock.collector.spool.spool import Spool, Unit, decode_unit
from penstock.collector.spool.writer import SpoolWriter
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async

if TYPE_CHECKING:
    from penstock.collector.config import WhenFull

SPOOL_BYTES = 1 << 20


class WatchedSpool:
    """Passes units on to a spool, and knows who waits for it.

    Attributes:
        waiting: Callers that it has not answered: there is no room.
        undurable: Units that it has taken and that are not on the disk.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self.waiting = 0
        self.undurable: list[Unit] = []

    async def put(
        self, unit: Unit, *, epoch: int | None = None, wait: bool = True
    ) -> asyncio.Future[int] | None:
        """Take a unit."""
        self.waiting += 1
        try:
            future = await self._spool.put(unit, epoch=epoch, wait=wait)
        finally:
            self.waiting -= 1
        if future is not None:
            self.undurable.append(unit)
            future.add_done_callback(lambda _: self.undurable.remove(unit))
        return future

    @property
    def epoch(self) -> int:
        """Changes whenever something that was taken could not be made durable."""
        return self._spool.epoch


class SpoolingIntake(SpoolWriter):
    """An intake whose spool can be looked into, and whose disk fails as told."""

    def __init__(
        self,
        source: str,
        journal: Journal,
        disk: FailingDisk,
        *,
        drop_newest: bool,
        clock: Clock,
        share_bytes: int,
        limits: SpoolWriterLimits,
    ) -> None:
        self.journal = journal
        self.disk = disk
        self.ledger = Ledger()
        self.budget = Budget(bytes_max=share_bytes, share_bytes_max=share_bytes)
        full: WhenFull = "drop_newest" if drop_newest else "block"
        self.spool = WatchedSpool(Spool(journal, self.ledger, when_full=lambda _: full))
        share = self.budget.share(source)
        super().__init__(
            source, spool=self.spool, ledger=self.ledger, clock=clock, share=share, limits=limits
        )
        self._others = self.budget.share("another source")

    @property
    def account(self) -> Account:
        """The source's."""
        return self.ledger[self.source]

    def units(self) -> list[Unit]:
        """Everything that is durable."""
        return [decode_unit(header, body) for header, body in self.journal.frames(0)]

    def decoded(self) -> list[Decoded]:
        """The same, taken apart."""
        return [decode_records(unit, {"host.name": "h"}) for unit in self.units()]

    def lines(self) -> list[bytes]:
        """Every record of it."""
        return [line for decoded in self.decoded() for line in decoded.lines]

    def leave_room(self, size: int) -> None:
        """Have another source hold all but so many bytes of what is free for all; once."""
        assert self._others.take(self.budget.bytes_max - self.budget.used - size)

    def give_room(self) -> None:
        """That source holds nothing any more."""
        self._others.give(self._others.used)

    async def wait_for_waiting(self) -> None:
        """Return when somebody waits for room in the spool."""
        await wait_until_async(lambda: self.spool.waiting > 0)

    async def wait_for_awaited(self) -> None:
        """Return when somebody waits for bytes that another source holds."""
        await wait_until_async(self.budget.is_awaited)


@asynccontextmanager
async def spooling(
    directory: Path,
    source: str,
    *,
    drop_newest: bool = True,
    clock: Clock | None = None,
    share_bytes: int = 64 * MIB,
    spool_bytes: int = SPOOL_BYTES,
    limits: SpoolWriterLimits = SPOOL_WRITER_LIMITS,
) -> AsyncIterator[SpoolingIntake]:
    """An intake with a small spool of its own."""
    disk = FailingDisk()
    journal = Journal(directory / "spool", bytes_max=spool_bytes, disk=disk)
    journal.open()
    commits = asyncio.ensure_future(journal.run())
    clock = clock or SystemClock()
    try:
        yield SpoolingIntake(
            source,
            journal,
            disk,
            drop_newest=drop_newest,
            clock=clock,
            share_bytes=share_bytes,
            limits=limits,
        )
    finally:
        commits.cancel()
        await asyncio.gather(commits, return_exceptions=True)
        await journal.close()

"""A source's way into a spool that nobody empties, and what lies in it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.clock import Clock, SystemClock
from penstock.collector.budget import Budget
from penstock.collector.core.ledger import Account, Ledger
from penstock.collector.decode.units import Decoded, decode_records
from penstock.collector.intake import Intake
from penstock.collector.journal import Journal
from penstock.collector.limits import MIB
from penstock.collector.spool import Spool, Unit, decode_unit

if TYPE_CHECKING:
    from penstock.collector.config import WhenFull

SPOOL_BYTES = 1 << 20


class SpoolingIntake(Intake):
    """An intake whose spool can be looked into."""

    def __init__(
        self, source: str, journal: Journal, *, drop_newest: bool, clock: Clock, share_bytes: int
    ) -> None:
        self.journal = journal
        self.ledger = Ledger()
        self.budget = Budget(bytes_max=share_bytes, share_bytes_max=share_bytes)
        full: WhenFull = "drop_newest" if drop_newest else "block"
        spool = Spool(journal, self.ledger, when_full=lambda _: full)
        share = self.budget.share(source)
        super().__init__(source, spool=spool, ledger=self.ledger, clock=clock, share=share)

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


@asynccontextmanager
async def spooling(
    directory: Path,
    source: str,
    *,
    drop_newest: bool = True,
    clock: Clock | None = None,
    share_bytes: int = 64 * MIB,
    spool_bytes: int = SPOOL_BYTES,
) -> AsyncIterator[SpoolingIntake]:
    """An intake with a small spool of its own."""
    journal = Journal(directory / "spool", bytes_max=spool_bytes)
    journal.open()
    commits = asyncio.ensure_future(journal.run())
    clock = clock or SystemClock()
    try:
        yield SpoolingIntake(
            source, journal, drop_newest=drop_newest, clock=clock, share_bytes=share_bytes
        )
    finally:
        commits.cancel()
        await asyncio.gather(commits, return_exceptions=True)
        await journal.close()

"""Reading one spool into the pipeline, in order, and letting go of what is oldest when told to."""

import asyncio

import structlog

from penstock.collector.core.delivery import Read
from penstock.collector.core.ledger import Ledger
from penstock.collector.courier import Courier
from penstock.collector.errors import UndecodableError
from penstock.collector.pipeline import Pipeline
from penstock.collector.spool import Spool, Unit, decode_unit
from penstock.collector.state import URGENT_ORIGIN
from penstock.logd.store import CorruptFrameError

DROPPED = "spool_full_oldest"


class Reader:
    """Hands the units of a spool to the pipeline.

    Attributes:
        position: Every unit before it was handed over or dropped.
    """

    def __init__(self, spool: Spool, pipeline: Pipeline, courier: Courier, ledger: Ledger) -> None:
        self._spool = spool
        self._pipeline = pipeline
        self._courier = courier
        self._ledger = ledger
        self._urgent = spool.origin == URGENT_ORIGIN
        self._log = structlog.get_logger()
        self.position = 0
        self._next = 0
        self._progress = asyncio.Event()
        self._dropping = asyncio.Lock()
        spool.make_room = self.make_room

    def begin(self, position: int) -> None:
        """Begin at a position; nothing before it is pending."""
        self._next = position
        self._moved(position)

    async def run(self) -> None:
        """Read the spool on, until cancelled."""
        journal = self._spool.journal
        while True:
            await journal.wait_durable(self.position)
            try:
                await self._read_on()
            except CorruptFrameError as error:
                self._log.error("the spool is damaged", error=str(error), file=error.file)
                self._ledger["spool"].notes["units_lost_to_damage"] += (
                    error.next_offset - error.offset
                )
                self._next = max(self._next, error.next_offset)
                self._moved(self._next)

    async def wait_until_read(self) -> None:
        """Return when every unit that is durable now was handed to delivery."""
        offset = self._spool.journal.durable_offset
        while self.position < offset:
            self._progress.clear()
            await self._progress.wait()

    async def _read_on(self) -> None:
        for header, body in self._spool.journal.frames(self.position):
            await self._courier.wait_for_room(urgent=self._urgent)
            if header.base_offset < self._next:
                return  # it was dropped meanwhile
            self._next = header.next_offset
            try:
                unit = decode_unit(header, body, self._spool.verdicts.take(header.base_offset))
            except UndecodableError as error:
                unit = Unit("spool", "unknown", body, 1, header.first_timestamp_ns)
                self._ledger.recovered(unit.source, unit.count)
                self._log.error("spooled unit is unreadable", error=str(error))
            await self._pipeline.take_unit(self._spool.origin, header.base_offset, unit)
            self._moved(self._next)

    def _moved(self, position: int) -> None:
        self.position = position
        self._progress.set()
        self._courier.handle(Read(self._spool.origin, position))

    # Dropping what is oldest.

    async def make_room(self, size: int) -> None:
        """Give up whole segments, the oldest first, until so many bytes fit.

        Only units that were not read yet are given up, and only where each of them is of a kind
        that may be; what was read is in memory and is delivered from there.
        """
        async with self._dropping:
            while not self._spool.journal.has_room(size):
                if not await self._drop_segment():
                    return

    async def _drop_segment(self) -> bool:
        """Drop the first segment; false when it must be kept."""
        journal = self._spool.journal
        end = await journal.first_segment_end()
        if end is None:
            return False
        counts = await asyncio.to_thread(self._droppable, self._next, end)
        if counts is None:
            return False
        first = self._next
        if first < end:
            for offset, source, count in counts:
                if offset >= first:  # some may have been read meanwhile
                    self._ledger.shed(source, DROPPED, count)
            self._next = end
            if self.position == first:  # else a unit is being taken, which then moves to the end
                self._moved(end)
        await journal.delete_before(end)
        self._log.warning("the spool is full: the oldest units were dropped", upto=end)
        return True

    def _droppable(self, first: int, end: int) -> list[tuple[int, str, int]] | None:
        """Offset, source and records of each unit in a range; None when one must be kept."""
        found: list[tuple[int, str, int]] = []
        try:
            for header, body in self._spool.journal.frames(first):
                if header.base_offset >= end:
                    break
                unit = decode_unit(header, body)
                if self._spool.when_full(unit.kind) != "drop_oldest":
                    return None
                found.append((header.base_offset, unit.source, unit.count))
        except (CorruptFrameError, UndecodableError):
            return None  # reading it on names the damage
        return found

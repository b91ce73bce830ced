"""The reader of one spool: into the pipeline in order, and past what the policy drops.

A read that fails is tried again, while everything before it goes on. Bytes that the disk does not
give (`EIO`) for `UNREADABLE_S` are given up like damage, if the disk takes new writes meanwhile:
then only these bytes are bad, and the disk is not just away. Every other error, such as a lack of
descriptors, is retried without end, and restarts that time.
"""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Final

import structlog

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock
from penstock.collector.checkpoint.state import INDEX_BITS, URGENT_ORIGIN
from penstock.collector.delivery.core import Read
from penstock.collector.delivery.ordered_queue import Batch, OrderedQueue
from penstock.collector.delivery.pipeline import Pipeline
from penstock.collector.delivery.publisher import Sender
from penstock.collector.errors import UndecodableError
from penstock.collector.ledger import Ledger
from penstock.collector.spool.journal import undamaged
from penstock.collector.spool.spool import Spool, Unit, decode_unit
from penstock.collector.spool.urgency import Kind
from penstock.logd.errors import CorruptFrameError, RefusedError
from penstock.logd.format.frame import FrameHeader

DROPPED: Final = "spool_full_oldest"
UNREADABLE_S: Final = 600


@dataclass(slots=True)
class RetryBackoff:
    """Pauses before what failed is tried again, one thing after another; in nanoseconds.

    Attributes:
        limit_ns: One that has failed by itself for so long may be given up.
    """

    limit_ns: int
    first_ns: int = 100_000_000
    longest_ns: int = 10_000_000_000
    _what: int = -1
    _since_ns: int | None = None
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        """Nothing has failed yet."""
        self._backoff = Backoff(self.first_ns, self.longest_ns)

    def failed(self, what: int, now_ns: int, *, by_itself: bool) -> int:
        """It failed; returns how long to wait before it is tried again.

        Args:
            what: The thing.
            now_ns: The time by a monotonic clock.
            by_itself: False where something else may be the cause: the limit begins again then.
        """
        if what != self._what:
            self._what, self._since_ns = what, None
            self._backoff.reset()
        if not by_itself:
            self._since_ns = None
        elif self._since_ns is None:
            self._since_ns = now_ns
        return int(self._backoff.next_wait())

    def is_over(self, what: int, now_ns: int) -> bool:
        """Return whether the unit has failed alone for at least `limit_ns`."""
        since_ns = self._since_ns if what == self._what else None
        return since_ns is not None and now_ns - since_ns >= self.limit_ns


class Reader:
    """Hands the units of a spool to the pipeline.

    Args:
        patience: Policy of how long unreadable entries are retried; None: `UNREADABLE_S`.

    Attributes:
        position: Every unit before it was handed over or dropped.
        trouble: Why nothing is read now; empty when nothing stands in the way.
    """

    def __init__(
        self,
        spool: Spool,
        pipeline: Pipeline,
        sender: Sender,
        ledger: Ledger,
        clock: Clock,
        *,
        patience: RetryBackoff | None = None,
    ) -> None:
        self._spool = spool
        self._pipeline = pipeline
        self._sender = sender
        self._ledger = ledger
        self._urgent = spool.origin == URGENT_ORIGIN
        self._clock = clock
        self._patience = patience or RetryBackoff(limit_ns=UNREADABLE_S * 10**9)
        self._log = structlog.get_logger()
        self.position = 0
        self.trouble = ""
        self._next = 0
        self._taking = ""
        self._kept: tuple[int, Kind] | None = None
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
                for frame in journal.frames(self.position):
                    if not await self._take(*frame):
                        break
            except CorruptFrameError as error:
                self._lose(error)
            except RefusedError as error:
                self._go_on_behind_dropped(error)
            except OSError as error:
                await self._read_around(error)

    async def wait_until_read(self) -> None:
        """Return when every unit that is durable now was handed to delivery."""
        offset = self._spool.journal.durable_offset
        while self.position < offset:
            self._progress.clear()
            await self._progress.wait()

    async def _take(self, header: FrameHeader, body: bytes) -> bool:
        """Hand a unit over; false when it was dropped meanwhile."""
        await self._sender.wait_for_room(urgent=self._urgent)
        if header.base_offset < self._next:
            return False
        self._next = header.next_offset
        try:
            unit = decode_unit(header, body, self._spool.verdicts.take(header.base_offset))
        except UndecodableError as error:
            unit = Unit("spool", "unknown", body, 1, header.first_timestamp_ns)
            self._ledger.recovered(unit.source, unit.count)
            self._log.error("spool_unit_unreadable", error=str(error))
        else:
            self._count_late(header.base_offset, unit.source, unit.count)
        self._taking = unit.source
        await self._pipeline.take_unit(self._spool.origin, header.base_offset, unit)
        self._moved(self._next)
        return True

    def _count_late(self, offset: int, source: str, count: int) -> None:
        """Count a unit as recovered that could not be read when the others were."""
        if self._spool.was_skipped(offset):
            self._ledger.recovered(source, count)

    async def _read_around(self, error: OSError) -> None:
        """Take what can be read before what cannot; wait for that, and give it up in the end."""
        damage: CorruptFrameError | None = None
        takes_writes = self._spool.journal.takes_writes
        is_there = await takes_writes()
        try:
            frames = self._spool.journal.frames(self.position, salvage=True)
            while frame := await asyncio.to_thread(next, frames, None):
                if not await self._take(*frame):
                    return
        except CorruptFrameError as found:
            damage = found
        except RefusedError as refused:
            self._go_on_behind_dropped(refused)
            return
        except OSError as again:
            error = again
        else:
            return  # it can be read again
        # Asked before and after the read: a disk that comes or goes meanwhile costs nothing.
        by_itself = damage is not None and is_there and await takes_writes()
        now_ns = self._clock.monotonic_ns()
        if damage and by_itself and self._patience.is_over(self.position, now_ns):
            self._lose(damage)
            return
        if not self.trouble:
            self._log.error("spool_read_failed", error=str(error))
        self.trouble = f"{self._spool.origin}: cannot be read: {error}"
        wait_ns = self._patience.failed(self.position, now_ns, by_itself=by_itself)
        await asyncio.sleep(wait_ns / 1e9)

    def _lose(self, error: CorruptFrameError) -> None:
        """Units are damaged, or cannot be had: go on behind them."""
        upto = min(error.next_offset, self._spool.journal.durable_offset)
        self._log.error("spool_damaged", error=str(error), file=error.file)
        self._ledger["spool"].notes["units_lost_to_damage"] += upto - error.offset
        self._next = max(self._next, upto)
        self._moved(self._next)

    def _go_on_behind_dropped(self, error: RefusedError) -> None:
        """Go on behind segments that were dropped before they were read."""
        if error.code != "OUT_OF_RANGE":
            raise error
        self._next = max(self._next, self._spool.journal.log.start_offset)
        self._moved(self._next)

    def _moved(self, position: int) -> None:
        self.position = position
        self.trouble = ""
        self._progress.set()
        self._sender.handle(Read(self._spool.origin, position))

    # Dropping what is oldest.

    async def make_room(self, size: int) -> None:
        """Give up whole segments, the oldest first, until so many bytes fit.

        Only where each unit that is not delivered is of a kind that may be. What was read of them
        is in memory and is delivered from there, or counted in the end: `give_up`.
        """
        async with self._dropping:
            while not self._spool.journal.has_room(size):
                if not await self._drop_segment():
                    return

    async def _drop_segment(self) -> bool:
        """Drop the first segment; false when it must be kept."""
        journal = self._spool.journal
        if self._kept is not None and self._must_keep(*self._kept):
            return False
        end = await journal.first_segment_end()
        if end is None:
            return False
        start = journal.log.start_offset
        begin = max(start, self._sender.delivery.passed(self._spool.origin))
        undelivered = set(self._undelivered())
        counts = await asyncio.to_thread(self._droppable, begin, self.position, end, undelivered)
        if journal.log.start_offset != start:
            return True  # what was delivered was given back meanwhile
        if counts is None:
            return False
        first = self._next
        if first < end:
            for offset, source, count in counts:
                if offset >= first:  # some may have been read meanwhile
                    self._count_late(offset, source, count)
                    self._ledger.shed(source, DROPPED, count)
            self._next = end
            if self.position == first:  # else a unit is being taken, which then moves to the end
                self._moved(end)
        await journal.delete_before(end)
        self._log.warning("spool_units_dropped", upto=end)
        return True

    def _droppable(
        self, begin: int, position: int, end: int, undelivered: Collection[int]
    ) -> list[tuple[int, str, int]] | None:
        """Offset, source and records of each unit in a range that is not delivered.

        Args:
            begin: Units before are delivered.
            position: Units from here on were not read, or are just being taken.
            end: Exclusive.
            undelivered: Units before `position` of which something is in memory.

        Returns:
            None when one must be kept.
        """
        found: list[tuple[int, str, int]] = []
        try:
            for header, body in self._frames(begin, position):
                offset = header.base_offset
                if offset >= end:
                    break
                if offset < position and offset not in undelivered:
                    continue
                unit = decode_unit(header, body)
                if self._spool.when_full(unit.kind) != "drop_oldest":
                    self._kept = (offset, unit.kind)
                    return None
                found.append((offset, unit.source, unit.count))
        except (CorruptFrameError, OSError, RefusedError, UndecodableError):
            return None  # reading it on names the damage
        return found

    def _frames(self, begin: int, position: int) -> Iterator[tuple[FrameHeader, bytes]]:
        """Read frames from `begin` on; damage before `position` was reported when that was read."""
        frames = self._spool.journal.frames
        found = undamaged(frames, begin, salvage=True)
        read = takewhile(lambda frame: frame[0].base_offset < position, found)
        return chain(read, frames(max(begin, position), salvage=True))

    def _must_keep(self, offset: int, kind: Kind) -> bool:
        """Return whether a unit that must not be dropped is not delivered yet."""
        return self._spool.when_full(kind) != "drop_oldest" and (
            offset >= self.position or any(_has(batch, offset) for _, batch in self._pending())
        )

    def _undelivered(self) -> Iterator[int]:
        """The unit of each record that was read and is not delivered."""
        for _, batch in self._pending():
            for sequence in batch.sequences:
                yield (sequence - 1) >> INDEX_BITS

    def _pending(self) -> Iterator[tuple[OrderedQueue, Batch]]:
        for queue in self._sender.delivery.queues.values():
            if queue.key.origin == self._spool.origin:
                for batch in queue.pending():
                    yield queue, batch

    def give_up(self) -> int:
        """Count what is in memory alone as dropped; called at the end, when its segments are gone.

        Nothing may run any more. Of what was on its way, something may be in the log all the same.
        """
        start = self._spool.journal.log.start_offset
        counts: Counter[str] = Counter()
        for queue in {queue.key: queue for queue, _ in self._pending()}.values():
            counts[queue.key.source] += queue.give_up((start << INDEX_BITS) + 1, start)
        if self.position < start:  # that unit was being taken; the rest of it goes, too
            left = self._pipeline.taking[self._spool.origin]
            counts[self._taking] += left
            self._ledger[self._taking].pending -= left
            self._pipeline.taking[self._spool.origin] = 0
            self._moved(start)
        for source, count in counts.items():
            self._ledger[source].dropped[DROPPED] += count
        if total := counts.total():
            self._log.warning(
                "spool_records_dropped",
                records=total,
                sources=sorted(+counts),
                reason="the spool is full and when_full is drop_oldest",
            )
        return total


def _has(batch: Batch, offset: int) -> bool:
    """Return whether records of a unit are in the batch."""
    first = bisect_right(batch.sequences, offset << INDEX_BITS)
    return first < bisect_right(batch.sequences, (offset + 1) << INDEX_BITS)

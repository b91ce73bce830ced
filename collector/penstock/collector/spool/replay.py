"""Replays of the quarantine: records are put back into the spool, each once.

First a mark is made durable in the quarantine. Its offset is the sequence under which the record
goes into the spool, from its own sender. After a crash between the two, marked records that
the spool does not know are put in again: nothing is lost, and nothing comes twice.

Entries that the disk does not give now stay where they are and are reported, because the disk may
give them later; entries behind them are put back. A lost entry may be the mark of an earlier
record. So a record that may have such a mark is not put back meanwhile, and none comes twice. A
mark whose record never reached the spool does no harm: the record gets another one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from penstock.base.clock import Clock
from penstock.base.pluralize import pluralize
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.limits import REPLAY_RECORDS_MAX
from penstock.collector.spool.journal import Journal, undamaged
from penstock.collector.spool.quarantine import Again, Kept, Mark, kept_in, mark_of, read_quarantine
from penstock.collector.spool.spool import Spool, Unit, sender_id, take_apart
from penstock.logd.errors import CorruptFrameError
from penstock.logd.format.frame import NO_PRODUCER, FrameHeader
from penstock.logd.storage import CommitLog

SENDER: Final = "penstock-quarantine"
"""Sender of records that are put back; sources' names have a line break behind them."""

_PART: Final = 256
"""Refusals that are read at a time to be shown."""

_Put = list[tuple[Mark, int, asyncio.Future[int] | None]]
"""Marks with the records of each, and what is done when these are durable, if that is to come."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A choice of records to put back; an empty field takes all.

    Attributes:
        reason: Prefix of the reasons.
        offsets: In the quarantine.
    """

    source: str = ""
    reason: str = ""
    offsets: frozenset[int] = frozenset()

    def takes(self, kept: Kept) -> bool:
        """Return whether the record is selected."""
        return (
            (not self.source or kept.source == self.source)
            and kept.reason.startswith(self.reason)
            and (not self.offsets or kept.offset in self.offsets)
        )


@dataclass(slots=True)
class Outcome:
    """The result of a replay.

    Attributes:
        replayed: Records put back into the spool.
        before: Records that were put back before, and were left.
        unknown: Records that an earlier version kept without saying how they can be read.
        stopped: Why not all were put back, or not all could be looked at; else empty.
    """

    replayed: int = 0
    before: int = 0
    unknown: int = 0
    stopped: str = ""

    def add(self, other: "Outcome") -> None:
        """Add the counts of another replay."""
        self.replayed += other.replayed
        self.before += other.before
        self.unknown += other.unknown
        self.stopped = "; ".join(filter(None, (self.stopped, other.stopped)))


class Replayer:
    """Puts records of one quarantine back.

    Args:
        quarantine: Open; its commits run elsewhere.
        spool: Everything goes into this one; a replay's order is the quarantine's.
        done: Every mark before this offset of the quarantine was put into the spool.
    """

    def __init__(self, quarantine: Journal, spool: Spool, clock: Clock, *, done: int) -> None:
        self._quarantine = quarantine
        self._spool = spool
        self._clock = clock
        self.done = done
        self._running = asyncio.Lock()

    async def replay(self, wanted: Wanted) -> Outcome:
        """Put back what is wanted and was not before; what a crash left half done, first."""
        async with self._running:
            outcome = Outcome()
            self._learn()
            try:
                await self._put(await asyncio.to_thread(self._half_done), outcome)
                found = await asyncio.to_thread(self._look, wanted, outcome)
                for first in range(0, len(found), REPLAY_RECORDS_MAX):
                    marks = await self._mark(found[first : first + REPLAY_RECORDS_MAX])
                    await self._put(marks, outcome)
                await self._give_back()
            except (SpoolFullError, SpoolFailedError, OSError) as error:
                outcome.add(Outcome(stopped=str(error)))
            return outcome

    async def kept(self) -> AsyncIterator[tuple[Kept, bool]]:
        """Every refusal, oldest first, and whether it was put back; read on another thread."""
        found = kept_in(self._quarantine.log)
        while part := await asyncio.to_thread(list, islice(found, _PART)):
            for one in part:
                yield one

    async def finish(self) -> None:
        """Put back what was marked before a crash and did not get into the spool.

        Raises:
            SpoolFullError: Not all could be; the next replay goes on.
            SpoolFailedError: Likewise.
            OSError: Likewise; the disk does not give something.
        """
        async with self._running:
            self._learn()
            await self._put(await asyncio.to_thread(self._half_done), Outcome())

    def _learn(self) -> None:
        sender = sender_id(SENDER)
        self.done = max(self.done, self._spool.senders.durable(sender))
        if self.done > self._quarantine.log.end_offset:  # it was taken away, and begins at 0 again
            self._spool.senders.forget(sender)
            self.done = 0

    def _half_done(self) -> list[Mark]:
        """Marks that were not put into the spool; their frames alone are from no producer."""
        log = self._quarantine.log
        marks = [
            header.base_offset
            for header in undamaged(log.headers, log.start_offset, salvage=True)
            if header.producer_id == NO_PRODUCER and header.base_offset >= self.done
        ]
        found = [entry_at(log, offset, salvage=True) for offset in marks]
        return [entry for entry in found if isinstance(entry, Mark)]

    def _look(self, wanted: Wanted, outcome: Outcome) -> list[int]:
        """Offsets of what is to be put back; reads the whole quarantine, in a separate thread."""
        wanted_ones: dict[int, tuple[int, bool]] = {}
        marked: set[int] = set()
        missing = Missing(self._quarantine.log)
        for entry in missing.entries():
            if isinstance(entry, Mark):
                marked.add(entry.replays)
            elif wanted.takes(entry):
                wanted_ones[entry.offset] = (entry.count, _again(entry) is not None)
        found: list[int] = []
        doubtful = 0
        for offset, (count, known) in wanted_ones.items():
            if offset in marked:
                outcome.before += count
            elif offset < missing.marks_below(self.done):
                doubtful += count
            elif known:
                found.append(offset)
            else:
                outcome.unknown += count
        outcome.stopped = missing.text(doubtful)
        return found

    async def _mark(self, offsets: Iterable[int]) -> list[Mark]:
        now_ns = self._clock.unix_ns()
        offers = [
            (offset, self._quarantine.offer(mark_of(offset, now_ns), always=True))
            for offset in offsets
        ]
        return [Mark(await offer, offset) for offset, offer in offers]

    async def _put(self, marks: list[Mark], outcome: Outcome) -> None:
        """Put marked records into the spool, in the order of the marks.

        None is put after one that could not be made durable: what is durable of a sender says that
        all before it is.
        """
        epoch = self._spool.epoch
        put: _Put = []
        try:
            for mark in marks:
                kept = entry_at(self._quarantine.log, mark.replays)
                if isinstance(kept, Kept):
                    future = await self._spool.put(_unit_of(kept, mark.offset + 1), epoch=epoch)
                    put.append((mark, kept.count, future))
        except (SpoolFullError, SpoolFailedError, OSError):
            await self._settle(put, outcome)
            raise
        await self._settle(put, outcome)

    async def _settle(self, put: _Put, outcome: Outcome) -> None:
        """Return when what was put is durable."""
        for mark, count, future in put:
            if future is not None:
                await asyncio.shield(future)  # who stops waiting does not end it
                outcome.replayed += count
            self.done = max(self.done, mark.offset + 1)

    async def _give_back(self) -> None:
        """Delete the oldest segments when all that is in them was put back."""
        first = await asyncio.to_thread(self._first_left)
        await self._quarantine.delete_before(first)

    def _first_left(self) -> int:
        """The offset of the oldest record that was not put back, or what is not known to be."""
        kept: list[int] = []
        marked: set[int] = set()
        missing = Missing(self._quarantine.log)
        for entry in missing.entries():
            if isinstance(entry, Mark):
                marked.add(entry.replays)
            else:
                kept.append(entry.offset)
        left = [offset for offset in kept if offset not in marked]
        return min([self.done, *left[:1], *(one.offset for one in missing.ranges)])


class Missing:
    """Ranges of a quarantine that the disk does not give, found while all is read.

    Attributes:
        ranges: In the order of offsets.
    """

    def __init__(self, log: CommitLog) -> None:
        self.ranges: list[CorruptFrameError] = []
        self._log = log

    def entries(self) -> Iterator[Kept | Mark]:
        """Everything that can be read."""
        return read_quarantine(self._log, read=self._read)

    def marks_below(self, done: int) -> int:
        """Records before this offset may have been put back by a mark that is missing.

        Args:
            done: Every mark before it was put into the spool; later ones were not.
        """
        ends = (min(one.next_offset, done) for one in self.ranges if one.offset < done)
        return max(ends, default=0)

    def text(self, doubtful: int) -> str:
        """The message about it; empty when nothing is missing."""
        if not self.ranges:
            return ""
        count = sum(one.next_offset - one.offset for one in self.ranges)
        first = self.ranges[0]
        text = (
            f"the disk does not give {pluralize(count, 'entry')}, from {first.where} on; left there"
        )
        if doubtful:
            text += f"; whether it was put back is not known of {pluralize(doubtful, 'record')}"
        return text

    def _read(self, offset: int, /, *, salvage: bool) -> Iterator[tuple[FrameHeader, bytes]]:
        del salvage
        try:
            yield from self._log.frames(offset, salvage=True)
        except CorruptFrameError as error:
            if self._is_missing(error):
                self.ranges.append(error)
            raise

    def _is_missing(self, error: CorruptFrameError) -> bool:
        """Return whether the disk failed, rather than that what it holds is damaged."""
        try:
            frame = next(undamaged(self._log.frames, error.offset), None)
        except OSError:
            return True
        return frame is not None and frame[0].base_offset < error.next_offset


def entry_at(log: CommitLog, offset: int, *, salvage: bool = False) -> Kept | Mark | None:
    """Return the entry at an offset of a quarantine; None when it is damaged or gone.

    With `salvage`, also when the disk does not give it.

    Raises:
        OSError: The disk does not give it.
    """
    if not log.start_offset <= offset < log.end_offset:
        return None
    entry = next(read_quarantine(log, offset, salvage=True), None)
    if not salvage and (entry is None or entry.offset != offset):
        entry = next(read_quarantine(log, offset), None)
    return entry if entry is not None and entry.offset == offset else None


def _again(kept: Kept) -> Again | None:
    """Return how to take a record again; None when that is not known."""
    if kept.again is not None and kept.again.format != "unknown":
        return kept.again
    return Again("ndjson", {}, kept.time_ns) if kept.raw.startswith(b"{") else None


def _unit_of(kept: Kept, sequence: int) -> Unit:
    again = _again(kept)
    assert again is not None, "only what can be read again is marked"
    unit = Unit(
        source=kept.source,
        format=again.format,
        payload=kept.raw,
        count=kept.count,
        received_ns=again.received_ns,
        meta=dict(again.meta),
        sender=SENDER,
        sequence=sequence,
    )
    return take_apart(unit)[0] if again.format == "ndjson" else unit

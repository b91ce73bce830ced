"""From durable bytes to lanes: decode, check against the spec, quarantine or hand to delivery.

Nothing here needs to survive a crash. What was read from the spool or a file and is not done is
read again from the cursor, and gets the same sequences:

    spool   offset of the unit << 20 | index of the record in it + 1, so a spool may hold 2^44 units
            and a unit 2^20 - 1 records
    file    position after the record's newline

"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog

from penstock.collector.admission import Admit
from penstock.collector.core.batch import Batch, LaneKey
from penstock.collector.core.delivery import Read, Take
from penstock.collector.core.ledger import Ledger
from penstock.collector.courier import Courier
from penstock.collector.decode.units import Undecodable, decode_records
from penstock.collector.errors import UndecodableError
from penstock.collector.quarantine import Quarantine, Refusal
from penstock.collector.spool import ORIGIN, Spool, Unit, decode_unit
from penstock.collector.state import INDEX_BITS
from penstock.logd.store import CorruptFrameError

_SLICE_RECORDS: Final = 500
"""Records handled before other tasks get a turn; a few milliseconds of work."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Record lines read from one origin.

    Attributes:
        start: Position to read again from, to meet all of them.
        resource: JSON, of the lines that have none of their own; empty when all are complete.
    """

    origin: str
    source: str
    start: int
    sequences: Sequence[int]
    lines: Sequence[bytes]
    resource: bytes
    observed_ns: int


class Pipeline:
    """Moves records from the spool into lanes; file sources hand theirs over themselves."""

    def __init__(
        self,
        spool: Spool,
        courier: Courier,
        quarantine: Quarantine,
        ledger: Ledger,
        *,
        admit: Admit,
        resource: Mapping[str, Any],
    ) -> None:
        self._spool = spool
        self._courier = courier
        self._quarantine = quarantine
        self._ledger = ledger
        self._admit = admit
        self._resource = resource
        self._log = structlog.get_logger()
        self.position = 0
        self._progress = asyncio.Event()

    async def run(self, position: int) -> None:
        """Read the spool from a position on, until cancelled."""
        self._moved(position)
        journal = self._spool.journal
        while True:
            await journal.wait_durable(self.position)
            try:
                for header, body in journal.frames(self.position):
                    await self._courier.wait_for_room()
                    try:
                        unit = decode_unit(header, body)
                    except UndecodableError as error:
                        unit = Unit("spool", "unknown", body, 1, header.first_timestamp_ns)
                        self._ledger.recovered(unit.source, unit.count)
                        self._log.error("spooled unit is unreadable", error=str(error))
                    await self._take_unit(header.base_offset, unit)
                    self._moved(header.next_offset)
            except CorruptFrameError as error:
                self._log.error("the spool is damaged", error=str(error), file=error.file)
                self._ledger["spool"].notes["units_lost_to_damage"] += (
                    error.next_offset - error.offset
                )
                self._moved(error.next_offset)

    async def wait_until_read(self, offset: int) -> None:
        """Return when every unit of the spool before `offset` was handed to delivery."""
        while self.position < offset:
            self._progress.clear()
            await self._progress.wait()

    def _moved(self, position: int) -> None:
        self.position = position
        self._progress.set()
        self._courier.handle(Read(ORIGIN, position))

    async def _take_unit(self, offset: int, unit: Unit) -> None:
        decoded = decode_records(unit, self._resource)
        base = (offset << INDEX_BITS) + 1
        self._ledger.decoded(unit.source, counted=unit.count, found=decoded.count)
        await self._refuse(unit.source, _refusals(unit.source, base, decoded.undecodable))
        chunk = Chunk(
            origin=ORIGIN,
            source=unit.source,
            start=offset,
            sequences=[base + index for index in decoded.indexes],
            lines=decoded.lines,
            resource=orjson.dumps(decoded.resource) if decoded.resource else b"",
            observed_ns=unit.received_ns,
        )
        await self.take(chunk)

    async def take(self, chunk: Chunk) -> None:
        """Check records and hand them to delivery; what is refused is in quarantine on return.

        The ledger counts the records as pending already.
        """
        for first in range(0, len(chunk.lines), _SLICE_RECORDS):
            end = first + _SLICE_RECORDS
            refusals = self._sort(chunk, chunk.sequences[first:end], chunk.lines[first:end])
            if refusals:
                await self._refuse(chunk.source, refusals)
            await asyncio.sleep(0)
            if end < len(chunk.lines):  # a unit may hold many times what may be pending
                await self._courier.wait_for_room()

    def _sort(
        self, chunk: Chunk, sequences: Sequence[int], lines: Sequence[bytes]
    ) -> list[Refusal]:
        """Hand good records to delivery, by subject; returns the others."""
        batches: dict[str, Batch] = {}
        refusals: list[Refusal] = []
        scrubbed = 0
        admit, resource, observed_ns = self._admit, chunk.resource, chunk.observed_ns
        for sequence, line in zip(sequences, lines, strict=True):
            verdict = admit(line, resource, observed_ns)
            if isinstance(verdict, str):
                refusals.append(Refusal(chunk.origin, chunk.source, sequence, verdict, line))
                continue
            batch = batches.get(verdict.subject)
            if batch is None:
                batch = batches[verdict.subject] = Batch(chunk.start)
            batch.sequences.append(sequence)
            batch.timestamps.append(verdict.time_ns)
            batch.lines.append(verdict.line)
            batch.size += len(verdict.line)
            scrubbed += verdict.scrubbed
        account = self._ledger[chunk.source]
        account.pending -= len(lines) - len(refusals)
        account.notes["scrubbed"] += scrubbed
        for subject, batch in batches.items():
            lane = LaneKey(chunk.origin, chunk.source, subject)
            self._courier.handle(Take(lane, batch))
        return refusals

    async def _refuse(self, source: str, refusals: list[Refusal]) -> None:
        if not refusals:
            return
        total = sum(refusal.count for refusal in refusals)
        account = self._ledger[source]
        dropped = await self._quarantine.put(refusals)
        account.pending -= total
        account.quarantined += total - dropped
        account.dropped["quarantine_full"] += dropped


def _refusals(source: str, base: int, parts: Iterable[Undecodable]) -> list[Refusal]:
    return [
        Refusal(ORIGIN, source, base + part.index, part.reason, part.raw, count=part.count)
        for part in parts
    ]

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
from penstock.collector.core.delivery import Take
from penstock.collector.core.ledger import Ledger
from penstock.collector.courier import Courier
from penstock.collector.decode.units import REASON_MAX, Undecodable, decode_records
from penstock.collector.quarantine import Again, Quarantine, Refusal
from penstock.collector.spool import Unit
from penstock.collector.state import INDEX_BITS, URGENT_ORIGIN
from penstock.collector.taps import Taps

_SLICE_RECORDS: Final = 500
"""Records handled before other tasks get a turn; a few milliseconds of work."""

_OF_THE_WHOLE: Final = frozenset({"refused", "truncated"})
"""What a unit's `meta` says of lines by their index."""


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
    """Moves records into lanes: a spool's reader and file sources hand theirs over."""

    def __init__(
        self,
        courier: Courier,
        quarantine: Quarantine,
        ledger: Ledger,
        *,
        admit: Admit,
        resource: Mapping[str, Any],
    ) -> None:
        self._courier = courier
        self._quarantine = quarantine
        self._ledger = ledger
        self._admit = admit
        self._resource = resource
        self.taps = Taps()
        self._log = structlog.get_logger()

    def replace(self, admit: Admit, resource: Mapping[str, Any]) -> None:
        """Check what is taken from now on like this; what is being taken goes on as it began."""
        self._admit = admit
        self._resource = resource

    async def take_unit(self, origin: str, offset: int, unit: Unit) -> None:
        """Take a spooled unit apart and hand over its records."""
        decoded = decode_records(unit, self._resource)
        base = (offset << INDEX_BITS) + 1
        self._ledger.decoded(unit.source, counted=unit.count, found=decoded.count)
        await self._refuse(unit.source, _refusals(origin, unit, base, decoded.undecodable))
        chunk = Chunk(
            origin=origin,
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
        admit = self._admit
        for first in range(0, len(chunk.lines), _SLICE_RECORDS):
            refusals = self._sort(chunk, slice(first, end := first + _SLICE_RECORDS), admit)
            if refusals:
                await self._refuse(chunk.source, refusals)
            await asyncio.sleep(0)
            if end < len(chunk.lines):  # a unit may hold many times what may be pending
                await self._courier.wait_for_room(urgent=chunk.origin == URGENT_ORIGIN)

    def _sort(self, chunk: Chunk, part: slice, admit: Admit) -> list[Refusal]:
        """Hand good records to delivery, by subject; returns the others."""
        sequences, lines = chunk.sequences[part], chunk.lines[part]
        batches: dict[str, Batch] = {}
        refusals: list[Refusal] = []
        scrubbed = 0
        resource, observed_ns = chunk.resource, chunk.observed_ns
        for sequence, line in zip(sequences, lines, strict=True):
            try:
                verdict = admit(line, resource, observed_ns)
            except Exception as error:  # noqa: BLE001 - the next record goes on
                self._log.exception("a record cannot be checked", source=chunk.source)
                verdict = f"check_failed: {type(error).__name__}: {error}"[:REASON_MAX]
            if isinstance(verdict, str):
                again = Again("ndjson", _resource_of(resource), observed_ns)
                refusals.append(
                    Refusal(chunk.origin, chunk.source, sequence, verdict, line, again=again)
                )
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
        if self.taps.active:
            self._show(chunk.source, lines, batches, refusals)
        for subject, batch in batches.items():
            lane = LaneKey(chunk.origin, chunk.source, subject)
            self._courier.handle(Take(lane, batch))
        return refusals

    def _show(
        self,
        source: str,
        lines: Sequence[bytes],
        batches: Mapping[str, Batch],
        refusals: Sequence[Refusal],
    ) -> None:
        self.taps.show("in", source, lines)
        for subject, batch in batches.items():
            self.taps.show("out", source, batch.lines, subject=subject)
        for refusal in refusals:
            self.taps.show("quarantine", source, [refusal.raw], reason=refusal.reason)

    async def _refuse(self, source: str, refusals: list[Refusal]) -> None:
        if not refusals:
            return
        total = sum(refusal.count for refusal in refusals)
        account = self._ledger[source]
        dropped = await self._quarantine.put(refusals)
        account.pending -= total
        account.quarantined += total - dropped
        account.dropped["quarantine_full"] += dropped


def _resource_of(resource: bytes) -> dict[str, Any]:
    return {"resource": orjson.loads(resource)} if resource else {}


def _refusals(origin: str, unit: Unit, base: int, parts: Iterable[Undecodable]) -> list[Refusal]:
    meta = {key: value for key, value in unit.meta.items() if key not in _OF_THE_WHOLE}
    again = Again(unit.format, meta, unit.received_ns)
    return [
        Refusal(
            origin,
            unit.source,
            base + part.index,
            part.reason,
            part.raw,
            count=part.count,
            again=again,
        )
        for part in parts
    ]

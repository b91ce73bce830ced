"""The pipeline from durable bytes to queues: decode, validate, quarantine or hand to delivery.

Nothing here needs to survive a crash. What was read from the spool or a file and is not done is
read again from the cursor, and gets the same sequences:

    spool   offset of the unit << 20 | index of the record in it + 1, so a spool may hold 2^44 units
            and a unit 2^20 - 1 records
    file    position after the record's newline

"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson
import structlog

from penstock.base.clock import Clock
from penstock.collector.agent.taps import Taps
from penstock.collector.checkpoint.state import INDEX_BITS, SPOOL_ORIGINS, URGENT_ORIGIN
from penstock.collector.decode.units import Decoded, Undecodable, decode_records
from penstock.collector.delivery.core import Held, Take
from penstock.collector.delivery.ordered_queue import QueueKey
from penstock.collector.delivery.publisher import Sender
from penstock.collector.drops.journal import DropJournal
from penstock.collector.ledger import Ledger
from penstock.collector.limits import MIB
from penstock.collector.spool.quarantine import Again, Quarantine, Refusal
from penstock.collector.spool.rejection_reasons import meaning
from penstock.collector.spool.spool import Unit
from penstock.collector.spool.validation_cache import Known
from penstock.collector.transforms.graph.graph import Chunk, Graph, Outcome
from penstock.collector.transforms.transform import DropReason

_SLICE_RECORDS: Final = 500
"""Records handled before other tasks get a turn; a few milliseconds of work."""

_SLICE_BYTES: Final = 1 * MIB
"""Bytes of them, for `explode` may make many times as much of them."""

_OF_THE_WHOLE: Final = frozenset({"refused", "truncated"})
"""Keys of a unit's `meta` that name lines by their index."""


class Pipeline:
    """Moves records into queues: a spool's reader and file sources hand theirs over.

    Args:
        sender: Takes what goes on.
        quarantine: Keeps what is refused.
        ledger: Counts everything.
        graph: Decides what becomes of records, until `replace`.
        resource: Resource of records that bring none.
        clock: Monotonic time for transforms.
        drops: Records what transforms dropped; None: nothing does.

    Attributes:
        taking: Pending records of the last unit or chunk, by origin, in the ledger's sense.
        retired: Graphs that were replaced, and may still hold created records.
        flush: Takes what a graph has to give out before its time, then waits while records of the
            origin must not be read on; None: nothing does.
    """

    def __init__(  # noqa: PLR0913 - what it moves records by, and where each may end
        self,
        sender: Sender,
        quarantine: Quarantine,
        ledger: Ledger,
        *,
        graph: Graph,
        resource: Mapping[str, Any],
        clock: Clock,
        drops: DropJournal | None = None,
    ) -> None:
        self._sender = sender
        self._quarantine = quarantine
        self._drops = drops
        self._ledger = ledger
        self.graph = graph
        self.retired: list[Graph] = []
        self._resource = resource
        self._clock = clock
        self.taking: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self.taps = Taps()
        self.flush: Callable[[str], Awaitable[None]] | None = None
        self._log = structlog.get_logger()

    def replace(self, graph: Graph, resource: Mapping[str, Any]) -> None:
        """Check what is taken from now on like this; `retired` may still hold created records."""
        self.retired.append(self.graph)
        self._sender.delivery.forget_noted()
        self.graph = graph
        self._resource = resource

    def reached(self) -> dict[str, int]:
        """Return the positions, by origin, up to which records may have been handed over.

        They are behind the unit or chunk that is in work, which others get a turn within.
        """
        read = self._sender.delivery.reached()
        return {origin: max(at, self._ends.get(origin, 0)) for origin, at in read.items()}

    def forget(self, origin: str) -> None:
        """Know no more of an origin that is read to its end and done."""
        self._sender.delivery.forget(origin)
        self.taking.pop(origin, None)
        self._ends.pop(origin, None)

    async def take_unit(self, origin: str, offset: int, unit: Unit) -> None:
        """Take a spooled unit apart and hand over its records."""
        decoded = decode_records(unit, self._resource)
        base = (offset << INDEX_BITS) + 1
        self._ledger.decoded(unit.source, counted=unit.count, found=decoded.count)
        self._ledger[unit.source].notes.update(decoded.notes)
        self.taking[origin] = decoded.count
        self._ends[origin] = offset + 1
        await self._refuse(unit.source, _refusals(origin, unit, base, decoded.undecodable))
        chunk = Chunk(
            origin=origin,
            source=unit.source,
            start=offset,
            sequences=[base + index for index in decoded.indexes],
            lines=decoded.lines,
            resource=orjson.dumps(decoded.resource) if decoded.resource else b"",
            observed_ns=unit.received_ns,
            verdicts=_known(unit, decoded),
            ended={base + index: end for index, end in decoded.ended.items()},
        )
        await self._take(chunk)

    async def take(self, chunk: Chunk) -> None:
        """Check records and hand them to delivery; what is refused is in quarantine on return.

        The ledger counts the records as pending already.
        """
        self.taking[chunk.origin] = len(chunk.lines)
        self._ends[chunk.origin] = chunk.sequences[-1]
        await self._take(chunk)

    async def _take(self, chunk: Chunk) -> None:
        end = 0
        while (first := end) < len(chunk.lines):
            end = _slice_end(chunk.lines, first)
            outcome = self._sort(chunk.part(first, end))
            if outcome.refused:
                await self._refuse(chunk.source, _refused(chunk, outcome))
            if self.flush is not None and self.graph.is_flush_due:
                await self.flush(chunk.origin)
            await asyncio.sleep(outcome.pause_ns / 1e9)
            if end < len(chunk.lines):  # a unit may hold many times what may be pending
                await self._sender.wait_for_room(urgent=chunk.origin == URGENT_ORIGIN)

    def _sort(self, chunk: Chunk) -> Outcome:
        """Let the graph validate records, count what ends here, hand the rest to delivery."""
        lines = chunk.lines
        if noted := self._sender.delivery.noted(chunk.origin):
            shift = INDEX_BITS if chunk.origin in SPOOL_ORIGINS else 0
            met = {name: position << shift for name, position in noted.items()}
            chunk = replace(chunk, met=met)
        sampler = None if self._drops is None else self._drops.sampler
        outcome = self.graph.process(chunk, self._clock.monotonic_ns(), sampler)
        for transform in outcome.held:
            self._sender.handle(Held(chunk.origin, transform, chunk.start))
        account, ended = self._ledger[chunk.source], outcome.ended
        self._ledger.sorted(
            chunk.source, taken=len(lines), copies=outcome.copies, refused=len(outcome.refused)
        )
        self.taking[chunk.origin] -= len(lines) - len(outcome.refused)
        account.notes["scrubbed"] += outcome.scrubbed
        account.sensitive.update(outcome.found)
        account.filtered += ended[DropReason.FILTERED]
        account.sampled += ended[DropReason.SAMPLED]
        account.deduplicated += ended[DropReason.DEDUPLICATED]
        account.aggregated += ended[DropReason.AGGREGATED] + ended[DropReason.REPEATED]
        if throttled := ended[DropReason.THROTTLED]:
            account.dropped["throttled"] += throttled
        if outcome.drops and self._drops is not None:
            self._drops.add(outcome.drops)
        if self.taps.active:
            self._show(chunk.source, lines, outcome)
        for (subject, branch), batch in outcome.batches.items():
            queue = QueueKey(chunk.origin, chunk.source, subject, branch)
            self._sender.handle(Take(queue, batch))
        return outcome

    def record_drops(self, graph: Graph) -> None:
        """Record what transforms of a graph held and have dropped since the last call."""
        if self._drops is not None:
            dropped = graph.drops(self._clock.monotonic_ns(), self._drops.sampler)
            if dropped:
                self._drops.add(dropped)

    def _show(self, source: str, lines: Sequence[bytes], outcome: Outcome) -> None:
        self.taps.show("in", source, lines)
        for (subject, _), batch in outcome.batches.items():
            self.taps.show("out", source, batch.lines, subject=subject)
        for refused in outcome.refused:
            self.taps.show("quarantine", source, [refused.line], reason=refused.reason)

    async def _refuse(self, source: str, refusals: list[Refusal]) -> None:
        if not refusals:
            return
        total = sum(refusal.count for refusal in refusals)
        account = self._ledger[source]
        for refusal in refusals:
            account.refuse(meaning(refusal.reason) or refusal.reason, refusal.count)
        dropped = await self._quarantine.put(refusals)
        account.pending -= total
        self.taking[refusals[0].origin] -= total
        account.quarantined += total - dropped
        account.dropped["quarantine_full"] += dropped


def _slice_end(lines: Sequence[bytes], first: int) -> int:
    """Return where the slice ends that begins with the line `first`."""
    size = 0
    last = min(first + _SLICE_RECORDS, len(lines))
    if sum(map(len, lines[first:last])) < _SLICE_BYTES:
        return last
    for place in range(first, last):
        size += len(lines[place])
        if size >= _SLICE_BYTES:
            return place + 1
    return last


def _known(unit: Unit, decoded: Decoded) -> Known:
    """The verdicts on a unit's lines; none when they are not known."""
    if decoded.verdicts:
        return decoded.verdicts
    if len(unit.verdicts) != decoded.count:
        return ()
    return [unit.verdicts[index] for index in decoded.indexes]


def _refused(chunk: Chunk, outcome: Outcome) -> list[Refusal]:
    """Refusals of lines; what was made of one line is kept once, with the first reason."""
    again = Again("ndjson", _resource_of(chunk.resource), chunk.observed_ns)
    counts = Counter(each.sequence for each in outcome.refused)
    first = {each.sequence: each for each in reversed(outcome.refused)}
    return [
        Refusal(
            chunk.origin,
            chunk.source,
            sequence,
            first[sequence].reason,
            first[sequence].line,
            count=count,
            again=again,
        )
        for sequence, count in counts.items()
    ]


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

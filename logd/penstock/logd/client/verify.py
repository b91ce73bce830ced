"""Comparison of what the replicas of a partition hold, while it is written to.

Compared are the offsets that all of them must have: from the highest of their first offsets, below
which retention or a purge may have deleted, to the lowest of their high watermarks, above which a
replica may be behind. They are read in chunks, each at all nodes at a time. Where the checksums of
a chunk are equal, nothing more is asked; else the nodes send one of each record.

Nodes compact on their own, so a record of a compacted stream may be gone at one node and still be
there at another. That is no difference if a later record of its key is there, for that one is why
it went, or if it is a tombstone, which goes in time. A record without a key never goes.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock.base.clock import monotonic_ns
from penstock.logd.api.operations import Verify
from penstock.logd.client import calls
from penstock.logd.client.async_client import AsyncLogClient
from penstock.logd.client.results import HeldRecords
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.format.record_checksums import RecordChecksum
from penstock.logd.limits import DIFFERENCES_MAX, VERIFY_BYTES_MAX

_BEHIND_S: Final = 10.0
"""Seconds for a node to have again what it had: after a restart it learns what is committed."""

_LOOK_S: Final = 0.1

_OF_ONE_NODE: Final = frozenset(
    {"CORRUPT", "INTERNAL", "NOT_HERE", "NOT_READY", "UNAVAILABLE", "UNKNOWN_API", "UNKNOWN_NODE"}
)
"""Refusals for which the other nodes are compared all the same."""


class Kind(StrEnum):
    """Kind of a difference in a range of offsets at a node."""

    DAMAGED = "damaged"
    """Frames cannot be read: a CRC does not match, or the file is shorter than it was."""
    MISSING = "missing"
    """There are no records where others have some, or no frames at all."""
    DIFFERS = "differs"
    """There are other records than at most nodes, or than at the leader where as many agree."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A range [first, upto) of offsets in which nodes are not as they should be."""

    first: int
    upto: int
    kind: Kind
    nodes: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class PartitionVerdict:
    """The result of a partition's verification.

    Attributes:
        first: First offset of the range that was compared.
        upto: End of the range, exclusive.
        records: Records in it, at the node that has most.
        size_bytes: Bytes of the frames that were read, at the node that has most.
        nodes: The nodes that were compared to the end.
        unasked: Why other nodes could not be asked, by node.
        differences: Differences in order of offsets.
        complete: False if it ended early, after too many differences.
    """

    partition: int
    first: int = 0
    upto: int = 0
    records: int = 0
    size_bytes: int = 0
    nodes: tuple[str, ...] = ()
    unasked: dict[str, str] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    complete: bool = True


class Comparison:
    """Compares what nodes hold of one partition, chunk by chunk, in order. No I/O.

    Args:
        nodes: Their names, the leader's first: on equal votes it is right.

    Attributes:
        differences: Found so far.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.differences: list[Difference] = []
        self._nodes = tuple(nodes)
        self._absent: dict[bytes, list[tuple[int, tuple[str, ...]]]] = defaultdict(list)

    @property
    def waits(self) -> bool:
        """True while records are missing for which no later one of the same key was seen."""
        return bool(self._absent)

    def take(self, held: dict[str, HeldRecords]) -> bool:
        """Compare the checksums of a chunk; whether those of its records are needed."""
        for node, part in held.items():
            for first, upto in part.range.damaged:
                self._add(first, upto, Kind.DAMAGED, (node,))
            for first, upto in part.range.missing:
                self._add(first, upto, Kind.MISSING, (node,))
        return len({part.range.checksum for part in held.values()}) > 1

    def take_records(self, held: dict[str, HeldRecords]) -> None:
        """Compare the records of a chunk; those of one node only say which keys there are."""
        found: dict[int, dict[str, RecordChecksum]] = defaultdict(dict)
        for node, part in held.items():
            for record in part.checksums:
                found[record.offset][node] = record
        for offset in sorted(found):
            records = found[offset]
            for record in records.values():
                if record.key is not None:
                    self._absent.pop(record.key, None)
            if len(held) > 1:
                self._compare(offset, records, held)

    def end(self) -> None:
        """There is no later record: what is absent is missing."""
        for waiting in self._absent.values():
            for offset, nodes in waiting:
                self._add(offset, offset + 1, Kind.MISSING, nodes)
        self._absent.clear()
        found = dict.fromkeys(self.differences)
        self.differences = sorted(found, key=lambda one: (one.first, one.upto, one.nodes))

    def _compare(
        self, offset: int, records: dict[str, RecordChecksum], held: dict[str, HeldRecords]
    ) -> None:
        contents = {node: record.content for node, record in records.items()}
        votes = Counter(contents[node] for node in self._nodes if node in contents)
        right, _ = votes.most_common(1)[0]  # the first of equals is the leader's
        wrong = tuple(node for node in self._nodes if contents.get(node, right) != right)
        if wrong:
            self._add(offset, offset + 1, Kind.DIFFERS, wrong)
        absent = tuple(
            node
            for node in self._nodes
            if node in held
            and node not in records
            and not _within(offset, (*held[node].range.damaged, *held[node].range.missing))
        )
        record = next(iter(records.values()))
        if not absent or record.tombstone:
            return
        if record.key is None:
            self._add(offset, offset + 1, Kind.MISSING, absent)
        else:
            self._absent[record.key].append((offset, absent))

    def _add(self, first: int, upto: int, kind: Kind, nodes: tuple[str, ...]) -> None:
        last = self.differences[-1] if self.differences else None
        if last is not None and (last.upto, last.kind, last.nodes) == (first, kind, nodes):
            self.differences[-1] = Difference(last.first, upto, kind, nodes)
        else:
            self.differences.append(Difference(first, upto, kind, nodes))


def _within(offset: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= offset < upto for first, upto in ranges)


class _BehindError(Exception):
    """Nodes do not have what they had."""


class PartitionVerifier:
    """Verifies one partition.

    Args:
        client: Client of logd.
        stream: The stream's name.
        partition: Its number.
        nodes: Nodes that have the partition, the leader first; a lone node only has its name.
        incarnation: Incarnation of the stream.
        alone: Whether it is a node alone, which is asked wherever it was reached.
        bytes_per_s: Bytes that each node reads a second; None: as many as it can.
        advanced: Called with the records and bytes that were read, at the node that has most.
    """

    def __init__(  # noqa: PLR0913 - what is compared, and how
        self,
        client: AsyncLogClient,
        stream: str,
        partition: int,
        nodes: Sequence[str],
        *,
        incarnation: str,
        alone: bool,
        bytes_per_s: int | None = None,
        advanced: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        self._client = client
        self._stream = stream
        self._incarnation = incarnation
        self._alone = alone
        self._chunk_bytes = min(VERIFY_BYTES_MAX, bytes_per_s or VERIFY_BYTES_MAX)
        self._rate = bytes_per_s
        self._free_ns = monotonic_ns()
        self._advanced = advanced
        self._nodes = list(nodes)
        self._verdict = PartitionVerdict(partition=partition)
        self._compared = Comparison(nodes)

    async def run(self) -> PartitionVerdict:
        """Compare all that there is now.

        Raises:
            RefusedError: `PERMISSION_DENIED`, `STREAM_RECREATED` and others that concern all nodes.
        """
        verdict, compared = self._verdict, self._compared
        standing = await self._ask(0, 0)
        starts = [part.range.start_offset for part in standing.values()]
        ends = [part.range.high_watermark + 1 for part in standing.values()]
        position = verdict.first = max(starts, default=0)
        end = verdict.upto = max(position, min(ends, default=0))
        while position < end and self._nodes:
            position = await self._chunk(position, end)
            if len(compared.differences) >= DIFFERENCES_MAX:
                verdict.upto, verdict.complete = position, False
                break
        if verdict.complete:
            await self._find_later(end)
        compared.end()
        verdict.nodes = tuple(self._nodes)
        verdict.differences = compared.differences
        return verdict

    async def _chunk(self, position: int, end: int) -> int:
        """Compare one chunk; where the next one begins."""
        held = await self._equally_far(position, end)
        if not held:
            return end
        first = max(part.range.first for part in held.values())
        if first > position:  # deleted meanwhile
            return min(first, end)
        upto = min(part.range.next_offset for part in held.values())
        if self._compared.take(held):
            recorded = await self._equally_far(position, upto, records=True)
            if max((part.range.first for part in recorded.values()), default=position) > position:
                return position  # deleted meanwhile
            upto = min((part.range.next_offset for part in recorded.values()), default=upto)
            self._compared.take_records(recorded)
        elif self._compared.waits:
            self._compared.take_records(
                await self._ask(position, upto, records=True, nodes=self._nodes[:1])
            )
        records = max(part.range.records for part in held.values())
        size = max(part.range.bytes for part in held.values())
        self._verdict.records += records
        self._verdict.size_bytes += size
        self._advanced(records, size)
        return upto

    async def _equally_far(
        self, position: int, end: int, *, records: bool = False
    ) -> dict[str, HeldRecords]:
        """Return the records of all nodes from an offset up to where the first of them stops."""
        until = monotonic_ns() + round(_BEHIND_S * 1e9)
        while True:
            held = await self._ask(position, end, records=records)
            if not held or max(part.range.first for part in held.values()) > position:
                return held
            upto = min(part.range.next_offset for part in held.values())
            if upto == position:
                behind = [node for node, part in held.items() if part.range.next_offset == position]
                if monotonic_ns() >= until:
                    self._give_up(behind, f"it has no committed record at offset {position}")
                await asyncio.sleep(_LOOK_S)
                continue
            further = [node for node, part in held.items() if part.range.next_offset > upto]
            held |= await self._ask(position, upto, records=records, nodes=further)
            read = {(part.range.first, part.range.next_offset) for part in held.values()}
            if read == {(position, upto)}:
                return {node: part for node, part in held.items() if node in self._nodes}

    async def _find_later(self, position: int) -> None:
        """Look above the range for later records of keys whose records are absent in it."""
        while self._compared.waits and self._nodes:
            held = await self._ask(position, 1 << 62, records=True, nodes=self._nodes[:1])
            upto = max((part.range.next_offset for part in held.values()), default=position)
            if upto <= position:
                return
            self._compared.take_records(held)
            position = upto

    async def _ask(
        self,
        position: int,
        upto: int,
        *,
        records: bool = False,
        nodes: Sequence[str] | None = None,
    ) -> dict[str, HeldRecords]:
        """Return the records of nodes; a node that cannot be asked is left out from now on."""
        asked = list(self._nodes if nodes is None else nodes)
        request = Verify(
            stream=self._stream,
            partition=self._verdict.partition,
            offset=position,
            upto=upto,
            bytes_max=self._chunk_bytes,
            records=records,
            incarnation=self._incarnation,
        )
        await self._wait()
        answers = await asyncio.gather(
            *(
                self._client.ask(calls.verify(request, node=None if self._alone else node))
                for node in asked
            ),
            return_exceptions=True,
        )
        held: dict[str, HeldRecords] = {}
        for node, answer in zip(asked, answers, strict=True):
            if isinstance(answer, RefusedError) and answer.code not in _OF_ONE_NODE:
                raise answer
            if isinstance(answer, LogdError):
                self._give_up([node], str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                held[node] = answer
        self._spend(max((part.range.bytes for part in held.values()), default=0))
        return held

    def _give_up(self, nodes: Iterable[str], problem: str) -> None:
        for node in nodes:
            self._verdict.unasked[node] = problem
            self._nodes.remove(node)

    async def _wait(self) -> None:
        if (left_ns := self._free_ns - monotonic_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)

    def _spend(self, size: int) -> None:
        """Note that bytes were read at each node, and delay the next read by the rate."""
        if self._rate is not None:
            self._free_ns = max(self._free_ns, monotonic_ns()) + size * 1_000_000_000 // self._rate

"""Reads a stream back and holds it against what its publishers were told.

A compacted stream besides: of each key the last record is there, at its offset, for ever; unless it
is a tombstone, which may go after `tombstone_retention_s`, and then nothing of its key is left.
What is gone does not come back. Records without a key stay.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.rows import batch_records
from tests.harness.ledger import (
    Acked,
    Gaps,
    Item,
    Keys,
    Rule,
    Sequences,
    Step,
    is_tombstone,
    item_of,
    key_of,
)
from tests.harness.plan import SECOND_NS, BrokenPromiseError

_OVERLAP = 300
"""Records read again at each look, to see that they are still the same."""

_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletes:
    """What retention must leave, whatever it deletes; None: nothing by this limit.

    Attributes:
        messages: Offsets, exactly.
        age_s: Records younger than that, exactly.
        bytes: Of frames.
    """

    messages: int | None = None
    age_s: int | None = None
    bytes: int | None = None


@dataclass
class StreamChecker:
    """What is known of one stream's log; `look` extends it.

    Args:
        stream: Its name.
        rules: Of its publishers, by name.
        keys: Of their records.
        deletes: What retention may do; None: nothing.

    Attributes:
        items: By offset, all that were read and not deleted since.
        end: Read up to there (exclusive).
        counts: Records acked, by what became of them, and others.
    """

    stream: str
    rules: dict[str, Rule]
    keys: dict[str, Keys]
    deletes: Deletes | None = None
    items: dict[int, Item] = field(default_factory=dict)
    end: int = 0
    epoch: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    clock: SystemClock = field(default_factory=SystemClock)
    _times_ns: dict[int, int] = field(default_factory=dict)
    _frame_epoch: int = 0

    def __post_init__(self) -> None:
        self._sequences = Sequences(self.rules, self.gaps)

    @property
    def gaps(self) -> Gaps:
        return Gaps.BATCHES if self.deletes else Gaps.NONE

    def look(
        self, log: LogClient, acked: Iterable[Acked], *, restarted: bool = True, whole: bool = False
    ) -> None:
        """Read what is new and some of what is not, or the whole stream.

        Args:
            log: Of the logd.
            acked: What publishers were told before this call.
            restarted: Whether it was started since the last look.
            whole: Read everything.

        Raises:
            BrokenPromiseError: It is not what was promised.
        """
        partition = log.stream(self.stream).partitions[0]
        rises = partition.epoch > self.epoch or (not restarted and partition.epoch == self.epoch)
        self.demand(rises, f"epoch {partition.epoch} follows {self.epoch}")
        self.epoch = partition.epoch
        start, end = log.offsets(self.stream)
        self.demand(end >= self.end, f"it ended at {self.end}, now at {end}")
        self._check_start(start, end)
        asked = start if whole or not self.end else max(start, self.end - _OVERLAP)
        first, size = self.read(log, asked, end)
        if whole and start and first == start and self.deletes and self.deletes.bytes:
            self.demand(size >= self.deletes.bytes, f"retention left only {size} bytes")
        self.end = max(self.end, end)
        for ack in acked:
            for row in ack.rows():
                self.find(row, first)

    def read(self, log: LogClient, start: int, end: int) -> tuple[int, int]:
        """Take what lies in [start, end): where it really began, and bytes of frames."""
        while start < end:
            try:
                return start, self._read_from(log, start, end)
            except RefusedError as error:
                if error.code != "OUT_OF_RANGE" or not self.deletes:
                    raise
                start = int(error.detail["earliest"])  # deleted while it was read
        return start, 0

    def take(self, offset: int, item: Item, record: Record) -> None:
        """A record was read."""
        known = self.items.get(offset)
        if known is not None:
            self.demand(known == item, f"{known} at {offset} has become {item}")
            return
        self.items[offset] = item
        if self.deletes and self.deletes.age_s:
            self._times_ns[offset] = record.timestamp_ns
        if offset < self.end:
            return  # deleted before it was seen, or not yet deleted again
        self.counts["read"] += 1
        last = self._sequences.lasts.get(item.publisher)
        step = self._sequences.take(item)
        self.counts[Step.AGAIN.value] += step is Step.AGAIN
        right = step in (Step.NEXT, Step.AGAIN)
        self.demand(right, f"{item} at {offset} comes after {last}: {step.value}")

    def find(self, ack: Acked, first: int) -> None:
        """Look for a record that was acked among what is known, from the offset `first` on."""
        self.demand(ack.offset < self.end, f"{ack} lies beyond the end {self.end}")
        if self.deletes and ack.offset < first and ack.offset not in self.items:
            self._check_age(f"{ack}", ack.sent_ns)
            self.counts["acked, deleted by retention"] += 1
            return
        found = self.items.get(ack.offset)
        self.demand(found == ack.item, f"{ack} was acked; found {found}")
        self.counts["acked, found"] += 1

    def may_have_holes(self, header: FrameHeader) -> bool:
        """Whether records of a frame may have been taken out."""
        del header
        return False

    def demand(self, holds: bool, message: str) -> None:
        if not holds:
            raise BrokenPromiseError(f"{self.stream}: {message}")

    # Parts.

    def _check_start(self, start: int, end: int) -> None:
        """Forget what retention deleted; it must not have deleted too much."""
        deletes = self.deletes or Deletes()
        self.demand(start == 0 or self.deletes is not None, f"it begins at {start}")
        if deletes.messages is not None and start:
            self.demand(end - start >= deletes.messages, f"retention left only [{start}, {end})")
        for offset in [offset for offset in self.items if offset < start]:
            item = self.items.pop(offset)
            self._check_age(f"{item} at {offset}", self._times_ns.pop(offset, 0))

    def _check_age(self, what: str, time_ns: int) -> None:
        """What retention deleted must be old enough, where it deletes by age."""
        if self.deletes and self.deletes.age_s:
            age_s = (self.clock.unix_ns() - time_ns) / SECOND_NS
            self.demand(age_s >= self.deletes.age_s, f"{what} is deleted at {age_s:.3f} s")

    def _read_from(self, log: LogClient, start: int, end: int) -> int:
        reached, size = -1, 0
        self._frame_epoch = 0
        for header, batch in log.batches(self.stream, start, end):
            dense = header.record_count == header.last_offset_delta + 1
            self.demand(dense or self.may_have_holes(header), f"a frame has holes: {header}")
            self._check_tiles(header, start if reached < 0 else reached, first=reached < 0)
            self._check_epoch(header)
            reached, size = header.next_offset, size + header.frame_length
            for offset, record in batch_records(header, batch):
                item = item_of(record, self.keys)
                if item is None:
                    raise BrokenPromiseError(f"{self.stream}: changed at {offset}: {record}")
                self.take(offset, item, record)
        self.demand(reached >= end, f"it could be read up to {reached} only, not {end}")
        return size

    def _check_tiles(self, header: FrameHeader, reached: int, *, first: bool) -> None:
        """Frames follow each other; one that was put together meanwhile may begin before that."""
        joins = header.base_offset == reached
        covers = header.base_offset < reached < header.next_offset
        self.demand(joins or (covers and (first or header.compacted)), f"a gap before {header}")

    def _check_epoch(self, header: FrameHeader) -> None:
        rises = self._frame_epoch <= header.leader_epoch <= self.epoch
        self.demand(rises, f"epoch {self._frame_epoch} before {header}, now {self.epoch}")
        self._frame_epoch = header.leader_epoch


@dataclass(frozen=True, slots=True)
class _Last:
    """The last record of a key that is known to be stored; `since_ns`: Unix, not after it was."""

    item: Item
    offset: int
    since_ns: int


@dataclass
class CompactedChecker(StreamChecker):
    """Reads the whole stream at each look: compaction keeps it short.

    Args:
        tombstone_retention_s: Of the stream.
    """

    tombstone_retention_s: int = 0
    _lasts: dict[bytes, _Last] = field(default_factory=dict)
    _present: dict[int, bytes | None] = field(default_factory=dict)

    @property
    @override
    def gaps(self) -> Gaps:
        return Gaps.ROWS

    @override
    def look(
        self, log: LogClient, acked: Iterable[Acked], *, restarted: bool = True, whole: bool = False
    ) -> None:
        self._present = {}
        acked = list(acked)
        for row in (row for ack in acked for row in ack.rows()):
            self._note(row.item, row.offset, row.sent_ns)
        super().look(log, acked, restarted=restarted, whole=True)
        self._forget(log)
        self._check_lasts(log)
        self._check_deleted(log)

    @override
    def take(self, offset: int, item: Item, record: Record) -> None:
        back = offset < self.end and offset not in self.items
        self.demand(not back, f"{item} at {offset} was gone and has come back")
        self._present[offset] = self._key(item)
        super().take(offset, item, record)
        self._note(item, offset, record.timestamp_ns)

    @override
    def find(self, ack: Acked, first: int) -> None:
        last = self._lasts.get(self._key(ack.item) or b"")
        if ack.offset in self.items or ack.offset < first or last is None:
            super().find(ack, first)
            return
        self.demand(ack.offset < self.end, f"{ack} lies beyond the end {self.end}")
        self.demand(ack.offset <= last.offset, f"{ack} comes after {last}")  # which is looked for
        self.counts["acked, then compacted away"] += 1

    @override
    def may_have_holes(self, header: FrameHeader) -> bool:
        return header.compacted

    # Parts.

    def _key(self, item: Item) -> bytes | None:
        return key_of(item, self.keys[item.publisher])

    def _note(self, item: Item, offset: int, since_ns: int) -> None:
        key = self._key(item)
        if key is None:
            return
        last = self._lasts.get(key)
        if last is None or offset > last.offset:
            self._lasts[key] = _Last(item, offset, since_ns)
        elif offset == last.offset:
            self.demand(last.item == item, f"{last} and {item} at one offset")

    def _forget(self, log: LogClient) -> None:
        """Forget what is gone; only what has a key may be, but for what retention deletes."""
        start = log.offsets(self.stream).start
        for offset in [offset for offset in self.items if offset not in self._present]:
            item = self.items.pop(offset)
            keyed = self._key(item) is not None
            self.demand(keyed or offset < start, f"{item} at {offset} has no key, and is gone")

    def _check_lasts(self, log: LogClient) -> None:
        """Of each key, the last record is there. It may be superseded by what came meanwhile."""
        for _ in range(_TRIES):
            if not self._missing(log):
                return
            end = log.offsets(self.stream).end
            self.read(log, self.end, end)
            self.end = max(self.end, end)
        missing = self._missing(log)
        self.demand(not missing, f"the last record of a key is gone: {missing}")

    def _missing(self, log: LogClient) -> list[_Last]:
        """What should be there and is not; what retention deleted is forgotten."""
        start = log.offsets(self.stream).start
        self._lasts = {key: last for key, last in self._lasts.items() if last.offset >= start}
        return [last for last in self._lasts.values() if self._is_missing(last)]

    def _is_missing(self, last: _Last) -> bool:
        if last.offset in self._present:
            return False
        age_ns = self.clock.unix_ns() - last.since_ns
        old = age_ns >= self.tombstone_retention_s * SECOND_NS
        return not (old and is_tombstone(last.item, self.keys[last.item.publisher]))

    def _check_deleted(self, log: LogClient) -> None:
        """Where a tombstone is gone, all that it deleted is."""
        gone = {
            key: last.offset
            for key, last in self._lasts.items()
            if last.offset not in self._present
        }
        self.counts["keys that went with their tombstones"] = len(gone)
        for offset, key in self._present.items():
            if key is not None and offset < gone.get(key, 0) and self._is_there(log, offset):
                item = self.items.get(offset)
                self.demand(False, f"{item} at {offset} outlives its tombstone {self._lasts[key]}")

    def _is_there(self, log: LogClient, offset: int) -> bool:
        """Whether it can still be read: it may have gone between two reads, and what deleted it."""
        try:
            return any(found == offset for found, _ in log.records(self.stream, offset, offset + 1))
        except RefusedError:  # deleted by retention
            return False

"""Reads a stream back and holds it against what its publishers were told."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.base.clock import SystemClock
from penstock.logd.batch import Record
from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError
from penstock.logd.frame import FrameHeader
from penstock.logd.rows import batch_records
from tests.soak.content import Item, Keys, item_of, rows_of
from tests.soak.ledger import Acked, Rule

_OVERLAP = 300
"""Records read again at each look, to see that they are still the same."""

_NS_PER_S = 1_000_000_000


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


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
    _last: dict[str, Item] = field(default_factory=dict)
    _seen: dict[str, set[int]] = field(default_factory=dict)
    _times_ns: dict[int, int] = field(default_factory=dict)
    _frame_epoch: int = 0

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
        last = self._last.get(item.publisher)
        self._last[item.publisher] = item
        message = f"{item} at {offset} comes after {last}"
        match self.rules[item.publisher]:
            case Rule.ONCE_IN_ORDER:
                self.demand(last is None or item.number > last.number, message)
            case Rule.IN_ORDER:
                self.demand(last is None or item.number >= last.number, message)
                self.counts["stored again, as may be"] += item == last
            case Rule.ONCE:
                seen = self._seen.setdefault(item.publisher, set())
                self.demand(item.number not in seen, f"{item} at {offset} is there twice")
                seen.add(item.number)
            case Rule.BATCHES:
                self.demand(self.follows(last, item), message)

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

    def follows(self, last: Item | None, item: Item) -> bool:
        """Whether a row of a batch is the next one of its producer."""
        if last is None:
            return item.row == 0 and (item.number == 1 or self.deletes is not None)
        if item.row:
            return item == last._replace(row=last.row + 1)
        whole = last.row == rows_of(last.publisher, last.number) - 1
        follows = item.number == last.number + 1
        return whole and (follows or (self.deletes is not None and item.number > last.number))

    def may_have_holes(self, header: FrameHeader) -> bool:
        """Whether records of a frame may have been taken out."""
        del header
        return False

    def demand(self, holds: bool, message: str) -> None:
        """Raise unless it holds."""
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
            age_s = (self.clock.unix_ns() - time_ns) / _NS_PER_S
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

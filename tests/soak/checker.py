"""Reads a stream back and holds it against what its publishers were told."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError
from penstock.logd.frame import FrameHeader
from penstock.logd.rows import batch_records
from tests.soak.content import Item, decode, key_of, rows_of
from tests.soak.publishers import Acked, Rule

_OVERLAP = 300
"""Records read again at each look, to see that they are still the same."""


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


@dataclass
class StreamChecker:
    """What is known of one stream's log; `look` extends it.

    Args:
        stream: Its name.
        rules: Of its publishers, by name.
        keyed: Those whose records have keys.
        deletes: Whether retention may delete its oldest records.
        kept_bytes: Bytes of frames that retention must leave once it has deleted anything.
    """

    stream: str
    rules: Mapping[str, Rule]
    keyed: Collection[str] = ()
    deletes: bool = False
    kept_bytes: int = 0
    items: dict[int, Item] = field(default_factory=dict)
    end: int = 0
    epoch: int = 0
    records_seen: int = 0
    _last: dict[str, Item] = field(default_factory=dict)
    _seen: dict[str, set[int]] = field(default_factory=dict)
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
        self._demand(rises, f"epoch {partition.epoch} follows {self.epoch}")
        self.epoch = partition.epoch
        start, end = log.offsets(self.stream)
        self._demand(end >= self.end, f"it ended at {self.end}, now at {end}")
        self._demand(start == 0 or self.deletes, f"it begins at {start}")
        for offset in [offset for offset in self.items if offset < start]:
            del self.items[offset]
        first = start if whole or not self.end else max(start, self.end - _OVERLAP)
        asked = first
        first, size = self._read(log, first, end)
        if whole and start and first == asked and self.kept_bytes > 0:
            self._demand(size >= self.kept_bytes, f"retention left only {size} bytes")
        self.end = max(self.end, end)
        self._find(acked, first)

    def _read(self, log: LogClient, start: int, end: int) -> tuple[int, int]:
        """Take what lies in [start, end): where it really began, and bytes of frames."""
        while start < end:
            try:
                return self._read_from(log, start, end)
            except RefusedError as error:
                if error.code != "OUT_OF_RANGE" or not self.deletes:
                    raise
                start = int(error.detail["earliest"])  # deleted while it was read
        return start, 0

    def _read_from(self, log: LogClient, start: int, end: int) -> tuple[int, int]:
        expected, size = -1, 0
        self._frame_epoch = 0
        for header, batch in log.batches(self.stream, start, end):
            dense = header.record_count == header.last_offset_delta + 1
            self._demand(dense, f"a frame has holes: {header}")
            tiles = header.base_offset <= start if expected < 0 else header.base_offset == expected
            self._demand(tiles, f"a gap before {header}")
            self._check_epoch(header)
            expected, size = header.next_offset, size + header.frame_length
            for offset, record in batch_records(header, batch):
                item = decode(record.value)
                if item is None:
                    raise BrokenPromiseError(
                        f"{self.stream}: bytes at {offset} were changed: {record}"
                    )
                key = key_of(item) if item.publisher in self.keyed else None
                self._demand(record.key == key, f"{item} at {offset} has the key {record.key!r}")
                self._take(offset, item)
        self._demand(expected >= end, f"it could be read up to {expected} only, not {end}")
        return start, size

    def _check_epoch(self, header: FrameHeader) -> None:
        rises = self._frame_epoch <= header.leader_epoch <= self.epoch
        self._demand(rises, f"epoch {self._frame_epoch} before {header}, now {self.epoch}")
        self._frame_epoch = header.leader_epoch

    def _take(self, offset: int, item: Item) -> None:
        known = self.items.get(offset)
        if known is not None:
            self._demand(known == item, f"{known} at {offset} has become {item}")
            return
        self.items[offset] = item
        if offset < self.end:
            return  # deleted before it was seen, or not yet deleted again
        self.records_seen += 1
        last = self._last.get(item.publisher)
        self._last[item.publisher] = item
        message = f"{item} at {offset} comes after {last}"
        match self.rules[item.publisher]:
            case Rule.ONCE_IN_ORDER:
                self._demand(last is None or item.number > last.number, message)
            case Rule.IN_ORDER:
                self._demand(last is None or item.number >= last.number, message)
            case Rule.ONCE:
                seen = self._seen.setdefault(item.publisher, set())
                self._demand(item.number not in seen, f"{item} at {offset} is there twice")
                seen.add(item.number)
            case Rule.BATCHES:
                self._demand(self._follows(last, item), message)

    def _follows(self, last: Item | None, item: Item) -> bool:
        """Whether a row of a batch is the next one of its producer."""
        if last is None:
            return item.row == 0 and (item.number == 1 or self.deletes)
        if item.row:
            return item == last._replace(row=last.row + 1)
        whole = last.row == rows_of(last.publisher, last.number) - 1
        follows = item.number == last.number + 1
        return whole and (follows or (self.deletes and item.number > last.number))

    def _find(self, acked: Iterable[Acked], first: int) -> None:
        """Look for what was acked among what is known, from an offset on."""
        for ack in acked:
            self._demand(ack.offset < self.end, f"{ack} lies beyond the end {self.end}")
            if self.deletes and ack.offset < first and ack.offset not in self.items:
                continue
            found = self.items.get(ack.offset)
            self._demand(found == ack.item, f"{ack} was acked; found {found}")

    def _demand(self, holds: bool, message: str) -> None:
        if not holds:
            raise BrokenPromiseError(f"{self.stream}: {message}")

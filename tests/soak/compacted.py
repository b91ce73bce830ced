"""Holds a compacted stream against what its publishers were told.

Of each key the last record is there, at its offset, for ever; unless it is a tombstone, which may
go after `tombstone_retention_s`, and then nothing of its key is left. What is gone does not come
back. Records without a key stay.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from typing_extensions import override

from penstock.logd.batch import Record
from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError
from penstock.logd.frame import FrameHeader
from tests.soak.checker import StreamChecker
from tests.soak.content import Item, is_tombstone, key_of
from tests.soak.ledger import Acked

_NS_PER_S = 1_000_000_000
_TRIES = 10


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
    def follows(self, last: Item | None, item: Item) -> bool:
        return last is None or (item.number, item.row) > (last.number, last.row)

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
        old = age_ns >= self.tombstone_retention_s * _NS_PER_S
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

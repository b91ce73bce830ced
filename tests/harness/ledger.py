"""What was sent and what was promised of it: records that nothing can change unseen, and acks.

A payload names its publisher, its number and its row, and goes on with bytes that follow from them.
Of what has keys, these and the tombstones follow from the item too; a tombstone has no payload, and
names its item in a header.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import shake_128
from typing import Final, NamedTuple

from penstock.base.clock import SystemClock
from penstock.logd.format.batch import Record

ITEM_HEADER: Final = "Soak-Item"

_LONG_ONE_IN = 32
_TOMBSTONE_ONE_IN = 8
_HOT_KEYS = 12
_COLD_ONE_IN = 16
_COLD_NUMBERS = 64


class Item(NamedTuple):
    """One record: `row` counts within a batch, and is 0 in a plain message."""

    publisher: str
    number: int
    row: int = 0


class Keys(Enum):
    """What keys a publisher's records have."""

    NONE = "none"
    FEW = "a few, so that each comes again and again"
    CHANGING = "a few that come again and again, others for a while and then never; tombstones too"


def encode(item: Item) -> bytes:
    """The payload of an item: always the same one, 30 bytes to 40 KB, mostly below 1 KB."""
    head = _name(item) + b"|"
    draw = shake_128(head).digest(4)
    size = int.from_bytes(draw[:2]) % 1000
    if draw[2] % _LONG_ONE_IN == 0 and item.row == 0:
        size *= 40
    return head + shake_128(head + b"body").digest(size)


def value_of(item: Item, keys: Keys) -> bytes | None:
    return None if is_tombstone(item, keys) else encode(item)


def headers_of(item: Item, keys: Keys) -> dict[str, str]:
    """The headers that name an item whose value does not."""
    return {ITEM_HEADER: _name(item).decode()} if is_tombstone(item, keys) else {}


def key_of(item: Item, keys: Keys) -> bytes | None:
    match keys:
        case Keys.NONE:
            return None
        case Keys.FEW:
            return b"%s/%d" % (item.publisher.encode(), item.number % 16)
        case Keys.CHANGING:
            draw = _draw(item)
            cold = draw[0] % _COLD_ONE_IN == 0
            suffix = b"cold-%d-%d" % (item.number // _COLD_NUMBERS, draw[1] % 2)
            return item.publisher.encode() + b"/%b" % (
                suffix if cold else b"%d" % (draw[1] % _HOT_KEYS)
            )


def is_tombstone(item: Item, keys: Keys) -> bool:
    """Whether a publisher's item deletes its key."""
    return keys is Keys.CHANGING and _draw(item)[2] % _TOMBSTONE_ONE_IN == 0


def item_of(record: Record, keys: Mapping[str, Keys]) -> Item | None:
    """The item of a record; None when the record is not exactly what was sent.

    Args:
        record: As it was read.
        keys: Of the publishers, by name.
    """
    name = dict(record.headers).get(ITEM_HEADER, b"") if record.value is None else record.value
    publisher, *rest = name.split(b"|", 3)
    try:
        item = Item(publisher.decode(), int(rest[0]), int(rest[1]))
        kind = keys[item.publisher]
    except (IndexError, KeyError, ValueError):
        return None
    same = record.value == value_of(item, kind) and record.key == key_of(item, kind)
    return item if same else None


def rows_of(publisher: str, number: int) -> int:
    """How many rows a batch has: 1 to 20."""
    return 1 + shake_128(b"%s/%d" % (publisher.encode(), number)).digest(1)[0] % 20


def _name(item: Item) -> bytes:
    return b"%s|%d|%d" % (item.publisher.encode(), item.number, item.row)


def _draw(item: Item) -> bytes:
    return shake_128(_name(item) + b"key").digest(3)


class Rule(Enum):
    """What must hold of a publisher's records in the log."""

    ONCE_IN_ORDER = "each at most once, numbers rise"
    ONCE = "each at most once"
    IN_ORDER = "numbers never fall"
    BATCHES = "whole batches, each once, no number left out"


@dataclass(frozen=True, slots=True)
class Acked:
    """Somebody was told that an item is stored at an offset.

    Attributes:
        sent_ns: Unix time before it was sent for the first time.
    """

    stream: str
    item: Item
    offset: int
    sent_ns: int

    def rows(self) -> Iterator["Acked"]:
        """The ack of a batch, which is that of its last row, for each of its rows."""
        for row in range(self.item.row + 1):
            offset = self.offset - self.item.row + row
            yield replace(self, item=self.item._replace(row=row), offset=offset)


@dataclass
class Ledger:
    """What publishers were told. They note it on one thread, checkers take it on another.

    Attributes:
        acked: Not yet taken.
        records: Acked so far.
        counts: Acked records by rule, and what else happened.
        broken: Promises that an answer itself breaks.
    """

    acked: list[Acked] = field(default_factory=list)
    records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    clock: SystemClock = field(default_factory=SystemClock)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last_ns: int = 0
    _silence_ns: int = 0

    def note(self, acked: Acked, rule: Rule) -> None:
        """An ack arrived."""
        rows, now_ns = acked.item.row + 1, self.clock.monotonic_ns()
        with self._lock:
            self.acked.append(acked)
        self.records += rows
        self.counts[f"acked, {rule.value}"] += rows
        if self._last_ns:
            self._silence_ns = max(self._silence_ns, now_ns - self._last_ns)
        self._last_ns = now_ns

    def take(self) -> list[Acked]:
        """What was acked since the last call."""
        with self._lock:
            acked, self.acked = self.acked, []
        return acked

    def take_silence_s(self) -> float:
        """The longest time between two acks since the last call."""
        silence_ns, self._silence_ns = self._silence_ns, 0
        return silence_ns / 1e9


class Gaps(Enum):
    """What of a publisher's records may be missing between two that follow each other."""

    NONE = "nothing"
    BATCHES = "whole batches, which retention deleted"
    ROWS = "any record, which compaction took out"


class Step(Enum):
    """How a record in a log follows those of its publisher before it."""

    NEXT = "as its rule wants it"
    AGAIN = "stored again, as may be"
    DUPLICATED = "stored again against its rule"
    REORDERED = "stored in another order than its publisher's"


@dataclass
class Sequences:
    """The order of a log's records, by publisher.

    Args:
        rules: Of the publishers, by name.
        gaps: What may be missing.
        late_repeats: Whether a repeat may come after later records: a network holds messages up.
    """

    rules: Mapping[str, Rule]
    gaps: Gaps = Gaps.NONE
    late_repeats: bool = False
    lasts: dict[str, Item] = field(default_factory=dict)
    _seen: set[Item] = field(default_factory=set)

    def take(self, item: Item) -> Step:
        """The next record of the log."""
        rule, last = self.rules[item.publisher], self.lasts.get(item.publisher)
        again = item in self._seen
        self._seen.add(item)
        self.lasts[item.publisher] = item
        if again and rule is Rule.IN_ORDER:
            return Step.AGAIN if self.late_repeats or item == last else Step.REORDERED
        if again:
            return Step.DUPLICATED
        return Step.NEXT if self._follows(rule, last, item) else Step.REORDERED

    def _follows(self, rule: Rule, last: Item | None, item: Item) -> bool:
        match rule:
            case Rule.ONCE:
                return True
            case Rule.ONCE_IN_ORDER | Rule.IN_ORDER:
                return last is None or item.number > last.number
            case Rule.BATCHES if self.gaps is Gaps.ROWS:
                return last is None or (item.number, item.row) > (last.number, last.row)
            case Rule.BATCHES if last is None:
                return item.row == 0 and (item.number == 1 or self.gaps is not Gaps.NONE)
            case Rule.BATCHES if item.row:
                return item == last._replace(row=last.row + 1)
            case Rule.BATCHES:
                whole = last.row == rows_of(last.publisher, last.number) - 1
                rises = item.number > last.number and self.gaps is not Gaps.NONE
                return whole and (rises or item.number == last.number + 1)

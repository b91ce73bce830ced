"""What the publishers of a soak were told, and what must hold of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from tests.soak.content import Item


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
    """What the publishers were told.

    Attributes:
        acked: Not yet looked for in the log.
        records: Acked so far.
        counts: Acked records by rule, and what else happened.
        broken: Promises that an answer itself breaks.
    """

    acked: list[Acked] = field(default_factory=list)
    records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def note(self, acked: Acked, rule: Rule) -> None:
        """An ack arrived."""
        rows = acked.item.row + 1
        self.acked.append(acked)
        self.records += rows
        self.counts[f"acked, {rule.value}"] += rows

    def take(self) -> list[Acked]:
        """What was acked since the last call."""
        acked, self.acked = self.acked, []
        return acked

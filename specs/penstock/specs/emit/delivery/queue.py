"""Records that wait to be sent: bounded in number and bytes; the least important go first.

Invariant: offered = taken + dropped + held, by kind.
"""

from collections import deque
from collections.abc import Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Final

DEBUG, NORMAL, WARNING, EVENT, AUDIT = range(5)
"""Ranks, least important first."""

_INFO: Final = 9
_WARN: Final = 13
_NEVER: Final = float("inf")


Held = tuple[int, str, bytes]
"""One record in the queue: its order, which rises with every record offered, its kind, and its wire
form without a newline. Records leave in their order.

A plain tuple, since every record of an application becomes one: the garbage collector looks at it
once and never again, as it would at an instance of any class.
"""

order_of: Final = itemgetter(0)
kind_of: Final = itemgetter(1)
line_of: Final = itemgetter(2)


def rank_of(kind: str, severity_number: int) -> int:
    """Return how long a record is kept without room: audit longest, debug logs shortest."""
    if kind == "audit":
        return AUDIT
    if kind == "event":
        return EVENT
    if severity_number >= _WARN:
        return WARNING
    return NORMAL if severity_number >= _INFO else DEBUG


class RecordQueue:
    """One line of records per rank; taken in the order in which they were offered."""

    def __init__(self, *, records_max: int, bytes_max: int) -> None:
        assert records_max > 0 < bytes_max
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._ranks: tuple[deque[Held], ...] = tuple(deque() for _ in range(AUDIT + 1))
        self._order = 0
        self.records = 0
        self.held_bytes = 0

    def has_room(self, size: int) -> bool:
        """Return whether a record of that size fits without dropping another."""
        return self.records < self._records_max and self.held_bytes + size <= self._bytes_max

    def offer(self, kind: str, rank: int, line: bytes) -> Sequence[Held]:
        """Add a record; returns those dropped to make room, itself if all others rank higher."""
        size = len(line)
        self._order += 1
        record = (self._order, kind, line)
        if size > self._bytes_max:
            return (record,)
        dropped: Sequence[Held] = ()
        if self.records >= self._records_max or self.held_bytes + size > self._bytes_max:
            dropped = self._make_room(record, rank, size)
            if dropped and dropped[-1] is record:
                return dropped
        self._ranks[rank].append(record)
        self.records += 1
        self.held_bytes += size
        return dropped

    def take(self, *, records_max: int, bytes_max: int) -> list[Held]:
        """Remove the oldest records that fit; at least one, if there is one."""
        if not self.records:
            return []
        if self.records <= records_max and self.held_bytes <= bytes_max:
            return self._take_all()
        if (bulk := self._take_bulk(records_max, bytes_max)) is not None:
            return bulk
        taken: list[Held] = []
        size = 0
        while self.records and len(taken) < records_max:
            line = self._oldest()
            last = self._next_elsewhere(line)
            while line and order_of(line[0]) < last and len(taken) < records_max:
                record_bytes = len(line_of(line[0]))
                if taken and size + record_bytes > bytes_max:
                    return taken
                size += record_bytes
                taken.append(line.popleft())
                self.records -= 1
                self.held_bytes -= record_bytes
        assert self.records >= 0 <= self.held_bytes
        return taken

    def settle(self, sequence: int) -> None:
        """Do nothing: a batch that was taken is no longer here."""

    def _take_all(self) -> list[Held]:
        filled = [line for line in self._ranks if line]
        taken = list(filled[0]) if len(filled) == 1 else sorted(chain.from_iterable(filled))
        for line in filled:
            line.clear()
        self.records = self.held_bytes = 0
        return taken

    def _take_bulk(self, records_max: int, bytes_max: int) -> list[Held] | None:
        """The usual case of many, without a look at each: one rank only, and they fit."""
        line = next(line for line in self._ranks if line)
        if len(line) != self.records or self.records < records_max:
            return None
        taken = list(islice(line, records_max))
        size = sum(map(len, map(line_of, taken)))
        if size > bytes_max:
            return None
        for _ in taken:
            line.popleft()
        self.records -= records_max
        self.held_bytes -= size
        return taken

    def _make_room(self, record: Held, rank: int, size: int) -> list[Held]:
        dropped: list[Held] = []
        while self.records >= self._records_max or self.held_bytes + size > self._bytes_max:
            victim = self._least(rank)
            if victim is None:
                dropped.append(record)
                return dropped
            dropped.append(victim)
        return dropped

    def _oldest(self) -> deque[Held]:
        """The rank whose first record was offered before all others."""
        filled = [line for line in self._ranks if line]
        return filled[0] if len(filled) == 1 else min(filled, key=_first_order)

    def _next_elsewhere(self, line: deque[Held]) -> float:
        """Return when the oldest record of all other ranks was offered."""
        others = (order_of(other[0]) for other in self._ranks if other and other is not line)
        return min(others, default=_NEVER)

    def _least(self, rank: int) -> Held | None:
        """Remove the oldest record of the lowest rank that is at most `rank`."""
        for line in self._ranks[: rank + 1]:
            if line:
                victim = line.popleft()
                self._forget(victim)
                return victim
        return None

    def _forget(self, record: Held) -> None:
        self.records -= 1
        self.held_bytes -= len(line_of(record))
        assert self.records >= 0 <= self.held_bytes


def _first_order(line: deque[Held]) -> int:
    return line[0][0]

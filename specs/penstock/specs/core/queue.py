"""Records that wait to be sent: bounded in number and bytes; the least important go first.

Invariant: offered = taken + dropped + held, by kind.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

DEBUG, NORMAL, WARNING, EVENT, AUDIT = range(5)
"""Ranks, least important first."""

_INFO: Final = 9
_WARN: Final = 13


@dataclass(frozen=True, slots=True)
class Held:
    """One record in the queue.

    Attributes:
        order: Rises with every record offered; records leave in this order.
        line: Its wire form, without a newline.
    """

    order: int
    kind: str
    line: bytes


def rank_of(kind: str, severity_number: int) -> int:
    """How long a record is kept when there is no room: audit longest, debug logs shortest."""
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
        self.bytes = 0

    def offer(self, kind: str, rank: int, line: bytes) -> list[Held]:
        """Add a record; returns those dropped to make room, itself if all others rank higher."""
        size = len(line)
        self._order += 1
        record = Held(self._order, kind, line)
        dropped: list[Held] = []
        if size > self._bytes_max:
            return [record]
        while self.records >= self._records_max or self.bytes + size > self._bytes_max:
            victim = self._least(rank)
            if victim is None:
                dropped.append(record)
                return dropped
            dropped.append(victim)
        self._ranks[rank].append(record)
        self.records += 1
        self.bytes += size
        return dropped

    def take(self, *, records_max: int, bytes_max: int) -> list[Held]:
        """Remove the oldest records that fit; at least one, if there is one."""
        taken: list[Held] = []
        size = 0
        while self.records and len(taken) < records_max:
            line = self._oldest()
            if taken and size + len(line[0].line) > bytes_max:
                break
            record = line.popleft()
            self._forget(record)
            size += len(record.line)
            taken.append(record)
        return taken

    def _oldest(self) -> deque[Held]:
        """The rank whose first record was offered before all others."""
        filled = [line for line in self._ranks if line]
        return filled[0] if len(filled) == 1 else min(filled, key=_first_order)

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
        self.bytes -= len(record.line)
        assert self.records >= 0 <= self.bytes


def _first_order(line: deque[Held]) -> int:
    return line[0].order

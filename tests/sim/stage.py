"""What simulated worlds of several nodes play on: time, and a network that is not to be trusted."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MS: Final = 1_000_000


class Stage(ABC):
    """The queue of what is to happen, and the links between places.

    Args:
        seed: Picks everything.

    Attributes:
        marks: Which rare things have happened, how often.
        calm: No more trouble.
        drop, repeat: Chances of each message.
        slowest_ms: How long it takes at most.
        blocked: Links that lead nowhere, each in one direction.
    """

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.now_ns = 0
        self.marks: Counter[str] = Counter()
        self.calm = False
        self.drop, self.repeat = random.choice(((0.0, 0.0), (0.02, 0.02), (0.15, 0.1)))
        self.slowest_ms = random.choice((2, 6, 30))
        self.blocked: set[tuple[str, str]] = set()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def mark(self, what: str) -> None:
        self.marks[what] += 1

    # Time.

    def at(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now_ns + max(delay_ns, 1), self._count, action))

    def every(self, period_ns: int, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.at(self.random.randrange(period_ns // 2, period_ns * 3 // 2), again)

        self.at(self.random.randrange(period_ns), again)

    def play_until(self, end_ns: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end_ns:
            self.now_ns, _, action = heapq.heappop(heap)
            action()
        self.now_ns = end_ns

    # The network.

    def send(self, source: str, target: str, action: Callable[[Any], None]) -> None:
        """Have something happen at another place, later, never, or twice."""
        random = self.random
        if (source, target) in self.blocked:
            return
        if not self.calm:
            if random.random() < self.drop:
                return
            if random.random() < self.repeat:
                self._deliver(target, action)
        self._deliver(target, action)

    def delay_ns(self) -> int:
        """How long a message is under way."""
        return self.random.randrange(MS // 4, self.slowest_ms * MS)

    @abstractmethod
    def _deliver(self, target: str, action: Callable[[Any], None]) -> None:
        """Have it happen there after `delay_ns`."""

    def block(self, name: str, others: list[str]) -> None:
        """Cut some links of a place, one way or both, for a while."""
        ways = self.random.choice(("in", "out", "both"))
        links: set[tuple[str, str]] = {(name, other) for other in others if ways != "in"}
        links |= {(other, name) for other in others if ways != "out"}
        self.blocked |= links
        self.at(
            self.random.choice((20, 60, 200)) * MS, lambda: self.blocked.difference_update(links)
        )

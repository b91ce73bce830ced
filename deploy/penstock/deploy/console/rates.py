"""Rates of counters that others keep: what a counter grew by, over the time in which it did.

A counter that is below what it was began again at 0, so it grew by all that it shows. Times come
from a monotonic clock; one that steps back all the same is skipped, and nothing that comes out
is ever negative, infinite or no number. A counter that was not seen for a window has no rate.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

SECOND_NS: Final = 10**9

KEYS_MAX: Final = 50_000
"""Counters at a time, each with a few samples; the one that was seen least lately goes first."""


@dataclass(slots=True)
class _Counter:
    """One counter.

    Attributes:
        last: Last value.
        grown: Growth since it is known.
        samples: (time in ns, `grown` then), times rising; the first may be older than the window.
    """

    last: float
    grown: float = 0.0
    samples: deque[tuple[int, float]] = field(default_factory=deque)


class Rates:
    """Rates over a sliding window.

    Args:
        window_ns: Nanoseconds that a rate covers.
        keys_max: Maximum number of counters.
    """

    def __init__(self, window_ns: int, keys_max: int = KEYS_MAX) -> None:
        assert window_ns > 0
        assert keys_max > 0
        self._window_ns = window_ns
        self._keys_max = keys_max
        self._counters: OrderedDict[Hashable, _Counter] = OrderedDict()

    def __len__(self) -> int:
        """Counters that are known."""
        return len(self._counters)

    def take(self, key: Hashable, total: float, at_ns: int) -> None:
        """A counter shows `total` (0 or more) at a time; what is not later than before is not."""
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = _Counter(total)
            while len(self._counters) > self._keys_max:
                self._counters.popitem(last=False)
        elif at_ns <= counter.samples[-1][0]:
            return
        else:
            counter.grown += total - counter.last if total >= counter.last else total
            counter.last = total
            self._counters.move_to_end(key)
        samples = counter.samples
        samples.append((at_ns, counter.grown))
        while len(samples) > 2 and samples[1][0] <= at_ns - self._window_ns:
            samples.popleft()

    def per_second(self, key: Hashable, now_ns: int) -> float | None:
        """Return a counter's growth a second; None: it was seen only once within the window."""
        counter = self._counters.get(key)
        if counter is None or len(counter.samples) < 2:
            return None
        first_ns, first = counter.samples[0]
        last_ns, last = counter.samples[-1]
        if now_ns - last_ns > self._window_ns:
            return None
        return (last - first) * SECOND_NS / (last_ns - first_ns)

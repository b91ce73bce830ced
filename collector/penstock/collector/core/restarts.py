"""When something that failed is begun again: after a wait that doubles while it goes on failing."""

from dataclasses import dataclass


@dataclass(slots=True)
class Restarts:
    """One thing's failures; times in nanoseconds.

    Attributes:
        calm_ns: It ran so long before it failed: the wait is the first one again.
    """

    first_ns: int = 1_000_000_000
    longest_ns: int = 60_000_000_000
    calm_ns: int = 60_000_000_000
    count: int = 0
    _wait_ns: int = 0

    def failed(self, *, ran_ns: int) -> int:
        """It failed after so long; returns how long to wait before it is begun again."""
        self.count += 1
        calm = ran_ns >= self.calm_ns or not self._wait_ns
        self._wait_ns = self.first_ns if calm else min(self._wait_ns * 2, self.longest_ns)
        return self._wait_ns

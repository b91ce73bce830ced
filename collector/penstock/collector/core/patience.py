"""How long something that fails is waited for before it is given up."""

from dataclasses import dataclass


@dataclass(slots=True)
class Patience:
    """One thing after another; times in nanoseconds.

    Attributes:
        limit_ns: One that has failed for so long may be given up.
    """

    limit_ns: int
    first_ns: int = 100_000_000
    longest_ns: int = 10_000_000_000
    _what: int = -1
    _since_ns: int = 0
    _wait_ns: int = 0

    def failed(self, what: int, now_ns: int) -> int:
        """It failed; returns how long to wait before it is tried again."""
        if what != self._what:
            self._what, self._since_ns, self._wait_ns = what, now_ns, self.first_ns
        else:
            self._wait_ns = min(self._wait_ns * 2, self.longest_ns)
        return self._wait_ns

    def is_over(self, what: int, now_ns: int) -> bool:
        """Whether it has failed for as long as is waited."""
        return what == self._what and now_ns - self._since_ns >= self.limit_ns

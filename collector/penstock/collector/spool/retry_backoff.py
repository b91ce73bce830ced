"""How long something that fails is waited for before it is given up."""

from dataclasses import dataclass, field

from penstock.base.backoff import Backoff


@dataclass(slots=True)
class RetryBackoff:
    """One thing after another; times in nanoseconds.

    Attributes:
        limit_ns: One that has failed by itself for so long may be given up.
    """

    limit_ns: int
    first_ns: int = 100_000_000
    longest_ns: int = 10_000_000_000
    _what: int = -1
    _since_ns: int | None = None
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        """Nothing has failed yet."""
        self._backoff = Backoff(self.first_ns, self.longest_ns)

    def failed(self, what: int, now_ns: int, *, by_itself: bool) -> int:
        """It failed; returns how long to wait before it is tried again.

        Args:
            what: The thing.
            now_ns: Of a monotonic clock.
            by_itself: False where something else may be the cause: the limit begins anew then.
        """
        if what != self._what:
            self._what, self._since_ns = what, None
            self._backoff.reset()
        if not by_itself:
            self._since_ns = None
        elif self._since_ns is None:
            self._since_ns = now_ns
        return int(self._backoff.next_wait())

    def is_over(self, what: int, now_ns: int) -> bool:
        """Whether it has failed by itself for as long as is waited."""
        since_ns = self._since_ns if what == self._what else None
        return since_ns is not None and now_ns - since_ns >= self.limit_ns

"""Backoff: longer pauses after each failure, up to a bound."""

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """The waits between attempts at one thing.

    After the n-th failure in a row the wait has a limit: `initial` times `multiplier` to the power
    of n - 1, and `max` at most. **Jitter** is the share of the limit that chance decides, so that
    those who failed together do not come back together. A wait is drawn evenly between
    `(1 - jitter)` of its limit and all of it: with 0 it is the limit, with 0.5 the upper half of it
    ("equal jitter"), with 1 any part of it ("full jitter").

    It neither sleeps nor rolls dice: callers pass in what they drew, and wait as they like. Times
    are in one unit, the caller's.

    Attributes:
        initial: Limit of the first wait.
        max: Limit of every wait.
        multiplier: Factor of the limit with each failure; 1 or more.
        jitter: Random part of a wait, from 0 to 1.
        failures: Since the last success.
    """

    initial: float
    max: float
    multiplier: float = 2.0
    jitter: float = 0.0
    failures: int = 0

    def __post_init__(self) -> None:
        """Limits never shrink, and no wait is negative."""
        assert self.multiplier >= 1, self.multiplier
        assert 0 <= self.jitter <= 1, self.jitter

    def next_wait(self, draw: float = 1.0) -> float:
        """Count a failure; returns how long to wait before the next attempt.

        Args:
            draw: A number from 0 to 1, at random.
        """
        try:
            limit = min(self.initial * self.multiplier**self.failures, self.max)
        except OverflowError:  # of a power that is far beyond any bound
            limit = self.max
        self.failures += 1
        return limit * (1 - self.jitter * (1 - draw))

    def reset(self) -> None:
        """An attempt succeeded: the next wait is a first one."""
        self.failures = 0


@dataclass(slots=True)
class Restarts:
    """The failures of something that runs until it fails, and is then started again.

    Attributes:
        backoff: Waits before a restart.
        calm: It ran so long before it failed: the failures before were another matter.
        count: Number of failures.
    """

    backoff: Backoff
    calm: float
    count: int = 0

    def failed(self, ran: float) -> float:
        """It failed after so long; returns how long to wait before it is started again."""
        self.count += 1
        if ran >= self.calm:
            self.backoff.reset()
        return self.backoff.next_wait()

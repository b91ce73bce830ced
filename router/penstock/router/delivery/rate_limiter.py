"""Rate limits of a sink: records and bytes a second, on the average.

Each limit is an account that fills as time passes, up to one second's worth. A delivery is booked
in whole, and may overdraw the account: what comes next waits until it is even again. So a batch
that is larger than a second's worth passes, and the ones after it pay for it.
"""

from dataclasses import dataclass
from typing import Final

_NANOSECONDS: Final = 1_000_000_000
_MICRO: Final = 1_000_000
BURST_S: Final = 1
"""Seconds of unused pace that are saved up."""


@dataclass(slots=True)
class _Account:
    """Whole numbers only, so that who has waited as long as it was told to may go.

    Attributes:
        rate: Millionths a second.
        balance: Millionths of billionths, which is what a rate earns in a nanosecond.
        at_ns: Time of that balance.
    """

    rate: int
    balance: int
    at_ns: int

    def fill(self, now_ns: int) -> None:
        earned = (now_ns - self.at_ns) * self.rate
        self.balance = min(self.balance + earned, self.rate * BURST_S * _NANOSECONDS)
        self.at_ns = now_ns


class RateLimiter:
    """The accounts of one sink.

    Args:
        records_per_s: Limit; None for none.
        bytes_per_s: Maximum of the records' own bytes a second, on the average.
        now_ns: The time; accounts begin full.
    """

    def __init__(
        self, *, records_per_s: float | None, bytes_per_s: float | None, now_ns: int
    ) -> None:
        self._records = _account(records_per_s, now_ns)
        self._bytes = _account(bytes_per_s, now_ns)

    def wait_ns(self, now_ns: int) -> int:
        """Return how many ns the next delivery has to wait; 0: it may go."""
        accounts = [it for it in (self._records, self._bytes) if it is not None]
        return max((_until_even(it, now_ns) for it in accounts), default=0)

    def book(self, *, records: int, size: int, now_ns: int) -> None:
        """Take a delivery down; `size` in bytes."""
        for account, amount in ((self._records, records), (self._bytes, size)):
            if account is not None:
                account.fill(now_ns)
                account.balance -= amount * _MICRO * _NANOSECONDS


def _account(rate: float | None, now_ns: int) -> _Account | None:
    if rate is None:
        return None
    millionths = max(round(rate * _MICRO), 1)
    return _Account(millionths, millionths * BURST_S * _NANOSECONDS, now_ns)


def _until_even(account: _Account, now_ns: int) -> int:
    account.fill(now_ns)
    return -(min(account.balance, 0) // account.rate)

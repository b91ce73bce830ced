"""Rate limits of a sink: records and bytes a second, on the average.

Each limit is an account that fills as time passes, up to one second's worth. A delivery is booked
in whole, and may overdraw the account: what comes next waits until it is even again. So a delivery
that is larger than a second's worth passes, and the ones after it pay for it.

Tasks of Spark that send requests of one batch know nothing of each other. Each gets a share of the
rate, and of what the account has; it saves before it sends, for nobody after it would pay. What
they have sent is settled with the account when the batch comes back.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Final, Self

_NANOSECONDS: Final = 1_000_000_000
_MICRO: Final = 1_000_000
_UNIT: Final = _MICRO * _NANOSECONDS
BURST_S: Final = 1
"""Seconds of unused pace that are saved up."""

TASKS_WAIT_S_MAX: Final = 5.0
"""Seconds for which tasks of a batch wait that run one after the other: they hold Spark's slots."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the tasks of a batch run.

    Attributes:
        tasks: Number of tasks.
        at_once: Maximum number of them that run at the same time.
    """

    tasks: int
    at_once: int


ONE_TASK: Final = Parallelism(1, 1)


@dataclass(frozen=True, slots=True)
class AccountShare:
    """A task's share of one limit: so much a second, and so much at once."""

    per_s: float
    saved: float


@dataclass(frozen=True, slots=True)
class TaskShare:
    """What one task may send; it can be pickled.

    Attributes:
        records: Share of the limit of records; None: there is none.
        size: Likewise, of bytes.
        waits_for_s: Seconds that the task may wait in all.
    """

    records: AccountShare | None
    size: AccountShare | None
    waits_for_s: float

    def without_saved(self) -> Self:
        """Return that of a task that runs again: it may have sent what was saved before."""
        records, size = (
            None if it is None else replace(it, saved=0.0) for it in (self.records, self.size)
        )
        return replace(self, records=records, size=size)


@dataclass(slots=True)
class _Account:
    """Whole numbers only, so that who has waited as long as it was told to may go.

    Attributes:
        rate: Millionths a second.
        balance: Millionths of billionths, which is what a rate earns in a nanosecond.
        at_ns: Time of that balance.
        lent: What tasks have of the balance, in the same unit.
    """

    rate: int
    balance: int
    at_ns: int
    lent: int = 0

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """Return the ns until the account has an amount; for one it may save up for longer."""
        wanted = amount * _UNIT
        self._earn(now_ns, max(wanted, self._burst))
        return max(-((self.balance - wanted) // self.rate), 0)

    def book(self, amount: int, now_ns: int) -> None:
        self._earn(now_ns, self._burst)
        self.balance -= amount * _UNIT

    def lend(self, parallelism: Parallelism, now_ns: int) -> AccountShare:
        self._earn(now_ns, self._burst)
        self.lent = max(self.balance, 0)
        self.balance -= self.lent
        saved = self.lent / _UNIT / parallelism.tasks
        return AccountShare(self.rate / _MICRO / parallelism.at_once, saved)

    def settle(self, amount: int, now_ns: int) -> None:
        """Book what was sent since `lend`: it was earned in that time, however long."""
        earned = (now_ns - self.at_ns) * self.rate
        self.balance += self.lent + earned - amount * _UNIT
        self.balance = min(self.balance, self._burst)
        self.lent, self.at_ns = 0, now_ns

    @property
    def _burst(self) -> int:
        return self.rate * BURST_S * _NANOSECONDS

    def _earn(self, now_ns: int, most: int) -> None:
        """Fill the account up to `most`; what was saved for a delivery stays."""
        earned = (now_ns - self.at_ns) * self.rate
        if self.balance < most:
            self.balance = min(self.balance + earned, most)
        self.at_ns = now_ns


class RateLimiter:
    """The accounts of one sink.

    Args:
        records_per_s: Limit; None for none.
        bytes_per_s: Maximum bytes a second, on the average.
        now_ns: The time; accounts begin full.
    """

    def __init__(
        self, *, records_per_s: float | None, bytes_per_s: float | None, now_ns: int
    ) -> None:
        self._records = _account(records_per_s, now_ns)
        self._bytes = _account(bytes_per_s, now_ns)

    @classmethod
    def of_task(cls, share: TaskShare, now_ns: int) -> Self:
        """Return that of a task, which begins with what it was given."""
        made = cls(records_per_s=None, bytes_per_s=None, now_ns=now_ns)
        made._records, made._bytes = (_shared(it, now_ns) for it in (share.records, share.size))
        return made

    def wait_ns(self, now_ns: int, *, records: int = 0, size: int = 0) -> int:
        """Return how many ns the next delivery has to wait; 0: it may go.

        Args:
            now_ns: The time.
            records: What the accounts must have for it; 0: it may overdraw them.
            size: Likewise, in bytes.
        """
        waits = [it.wait_ns(amount, now_ns) for it, amount in self._accounts(records, size)]
        return max(waits, default=0)

    def book(self, *, records: int, size: int, now_ns: int) -> None:
        """Take a delivery down; `size` in bytes."""
        for account, amount in self._accounts(records, size):
            account.book(amount, now_ns)

    def lend(self, parallelism: Parallelism, now_ns: int) -> TaskShare | None:
        """Give each task of a batch its share, until `settle`; None: there is no limit."""
        if self._records is None and self._bytes is None:
            return None
        records, size = (
            None if it is None else it.lend(parallelism, now_ns)
            for it in (self._records, self._bytes)
        )
        waves = ceil(parallelism.tasks / parallelism.at_once)
        return TaskShare(records, size, TASKS_WAIT_S_MAX / waves)

    def settle(self, *, records: int, size: int, now_ns: int) -> None:
        """Take down what the tasks have sent of the batch."""
        for account, amount in self._accounts(records, size):
            account.settle(amount, now_ns)

    def _accounts(self, records: int, size: int) -> list[tuple[_Account, int]]:
        pairs = ((self._records, records), (self._bytes, size))
        return [(account, amount) for account, amount in pairs if account is not None]


def _account(rate: float | None, now_ns: int) -> _Account | None:
    if rate is None:
        return None
    millionths = max(round(rate * _MICRO), 1)
    return _Account(millionths, millionths * BURST_S * _NANOSECONDS, now_ns)


def _shared(share: AccountShare | None, now_ns: int) -> _Account | None:
    if share is None:
        return None
    return _Account(max(int(share.per_s * _MICRO), 1), int(share.saved * _UNIT), now_ns)

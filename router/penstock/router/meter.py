"""Counters of a sink; workers of Spark's tasks import them, without what makes metrics of them."""

import threading
from collections import Counter
from typing import TYPE_CHECKING

from penstock.router.delivery.breaker import Circuit

if TYPE_CHECKING:
    from penstock.service import Stage


class Meter:
    """Counters of one sink since the process started; any thread may count.

    Attributes:
        problem: Description of what keeps the sink from delivering now; None while it works.
        circuit: The state of the sink's circuit breaker, if it has one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = 0
        self._errors = 0
        self._detail: Counter[str] = Counter()
        self.problem: str | None = None
        self.circuit = Circuit()

    def sent(self, records: int) -> None:
        """Records are in the sink for good."""
        with self._lock:
            self._sent += records

    def failed(self, what: str, *, records: int = 1) -> None:
        """Something went wrong; `what` names the counter."""
        with self._lock:
            self._errors += records
            self._detail[what] += records

    def count(self, what: str, number: int = 1) -> None:
        """Count something that is not an error."""
        with self._lock:
            self._detail[what] += number

    def counted(self) -> Counter[str]:
        with self._lock:
            return self._detail.copy()

    def stage(self, sink: str, *, received: int, lag: int) -> "Stage":
        from penstock.service import Stage

        with self._lock:
            detail = dict(sorted(self._detail.items()))
            return Stage(f"sink/{sink}", received, self._sent, lag, self._errors, detail)

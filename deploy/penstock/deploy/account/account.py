"""The account of parts that are polled, for as long as it is kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.deploy.account.figures import Reading, Status
from penstock.deploy.account.rows import Row, Start, rows_of


@dataclass(frozen=True, slots=True)
class Answer:
    """The last answer of a part.

    Attributes:
        status: None: it never gave one.
        problem: Why its last question was not answered; empty: it was.
        asked_ns: Monotonic time at which the answer was asked for.
    """

    part: str
    status: Status | None
    problem: str
    asked_ns: int

    @property
    def is_given(self) -> bool:
        return self.status is not None and not self.problem


class Account:
    """Makes readings of answers, keeps the last ones, and where the comparison of counts began.

    Each part is polled in its own time. A reading is complete once every part that answers was
    asked after the reading before was complete, so that two readings have no moment in common.

    Attributes:
        rows: The rows as of the last reading.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._before: Reading | None = None
        self._start: Start | None = None
        self._read_ns = -1

    def look(self, answers: Sequence[Answer], now_ns: int) -> None:
        """Take a reading if it is complete; `now_ns` is monotonic."""
        given = [answer for answer in answers if answer.is_given]
        if not given or any(answer.asked_ns <= self._read_ns for answer in given):
            return
        self._read_ns = now_ns
        self.take(
            Reading(
                {one.part: one.status if one.is_given else None for one in answers},
                {one.part: one.problem for one in answers if one.problem},
            )
        )

    def take(self, reading: Reading) -> None:
        """Take a reading of which each part was asked after all had answered the one before."""
        before, self._before = self._before, reading
        self.rows = rows_of(before, reading, self._start)
        if before is not None and (self._start is None or not self._start.holds(reading)):
            self._start = Start.between(before, reading)

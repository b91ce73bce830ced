"""Ten minutes without a log, and longer: what the delivery core does all that time."""

from itertools import pairwise

import pytest

from penstock.collector.delivery.core import (
    Delivery,
    Effect,
    Failed,
    Publish,
    Read,
    Reconnected,
    Stored,
    Take,
    Tick,
)
from penstock.collector.delivery.ordered_queue import Batch, Limits, QueueKey

SECOND_NS = 1_000_000_000
LIMITS = Limits()
QUEUES = [QueueKey("spool", "app", f"telemetry.logs.{name}") for name in "abc"]
RECORDS = 5000


def take(queue: QueueKey, first: int) -> Take:
    sequences = list(range(first, first + 1000))
    return Take(queue, Batch(first, sequences, sequences[:], [b"x" * 100] * 1000, 100_000))


class Outage:
    """A core whose every attempt fails, on a clock of its own.

    Attributes:
        attempts: When something was sent.
    """

    def __init__(self, reason: str, *, took_ns: int) -> None:
        self.core = Delivery(LIMITS, jitter=lambda: 0.5)
        self.now_ns = 0
        self.attempts: list[int] = []
        self._reason = reason
        self._took_ns = took_ns
        self._answers: list[tuple[int, int]] = []
        for queue in QUEUES:
            for first in range(1, RECORDS, 1000):
                self._do(self.core.handle(take(queue, first), 0))
        self.core.handle(Read("spool", 10), 0)

    def until(self, end_ns: int) -> None:
        while self.now_ns < end_ns:
            deadline_ns = self.core.next_deadline_ns()
            answer_ns = self._answers[0][0] if self._answers else None
            due = [time_ns for time_ns in (deadline_ns, answer_ns) if time_ns is not None]
            assert due, "nothing would ever happen again"
            self.now_ns = max(self.now_ns, min(due))
            if answer_ns is not None and answer_ns <= self.now_ns:
                _, request = self._answers.pop(0)
                self._do(self.core.handle(Failed(request, self._reason), self.now_ns))
            else:
                self._do(self.core.handle(Tick(), self.now_ns))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Publish), "nothing is given up for an outage"
            self.attempts.append(self.now_ns)
            self._answers.append((self.now_ns + self._took_ns, effect.request))

    def deliver(self) -> None:
        """The log is back, and answers what it is sent from now on."""
        while self._answers:
            self._do(self.core.handle(Failed(self._answers.pop(0)[1], self._reason), self.now_ns))
        effects = self.core.handle(Reconnected(), self.now_ns)
        assert effects, "the first attempt does not wait for its turn"
        while effects:
            sent, effects = effects, []
            for effect in sent:
                assert isinstance(effect, Publish)
                effects += self.core.handle(Stored(effect.request), self.now_ns)


@pytest.mark.parametrize(
    ("reason", "took_ns"),
    [
        ("nats_disconnected", 0),
        ("no_responders", SECOND_NS // 1000),
        ("ack_timeout", 5 * SECOND_NS),
    ],
)
@pytest.mark.parametrize("minutes", [10, 60])
def test_an_outage_costs_little_and_ends_with_everything_delivered(
    reason: str, took_ns: int, minutes: int
) -> None:
    outage = Outage(reason, took_ns=took_ns)
    end_ns = minutes * 60 * SECOND_NS
    outage.until(end_ns)
    steady = [time_ns for time_ns in outage.attempts if time_ns >= end_ns // 2]
    # Each queue tries what its window holds, at most once in half the longest wait.
    most = len(QUEUES) * LIMITS.queue_flight_max * (end_ns // 2) // (LIMITS.backoff_max_ns // 2)
    assert 0 < len(steady) <= most
    gaps = [after - before for before, after in pairwise(steady)]
    assert max(gaps) <= LIMITS.backoff_max_ns + took_ns, "it is tried for ever, not ever less"
    assert outage.core.pending_records == len(QUEUES) * RECORDS
    assert set(outage.core.troubles.values()) == {reason}
    assert outage.core.cursor("spool") == 1

    outage.deliver()
    assert outage.core.pending_records == 0
    assert outage.core.done() == dict.fromkeys(QUEUES, RECORDS)
    assert outage.core.troubles == {}

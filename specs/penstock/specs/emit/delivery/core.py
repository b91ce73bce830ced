"""Bringing batches to the collector: one at a time, each once, in order.

A batch keeps its sequence until it is answered and is sent again under it after every new
connection; the collector drops what it has already taken. Only one batch is unanswered at any time:
a collector may take a later sequence after refusing an earlier one for now, and would then take the
earlier one, sent again, for a repeat. At a thousand records a batch, waiting for each answer costs
nothing that an application would notice.

    DOWN --backoff over--> CONNECTING --Connected--> UP --Lost--> DOWN
                                     --Lost--> DOWN
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, assert_never

from penstock.base.backoff import Backoff
from penstock.specs.emit.delivery.config import MS, EmitterLimits
from penstock.specs.emit.delivery.queue import Held, kind_of


@dataclass(frozen=True, slots=True)
class Batch:
    """Records on their way; `sequence` counts from 1 without gaps."""

    sequence: int
    records: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection stands."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Connecting failed, or the connection ended. `jitter` is a random number from 0 to 1."""

    jitter: float


@dataclass(frozen=True, slots=True)
class Acked:
    """The collector holds this batch durably."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Nacked:
    """The collector did not take this batch; `retry` says whether sending again can help."""

    sequence: int
    retry: bool
    jitter: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline passed, or records were queued."""


Event = Connected | Lost | Acked | Nacked | Tick


@dataclass(frozen=True, slots=True)
class Connect:
    """Begin to connect; answer with `Connected` or `Lost`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Write this batch to the connection."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection; it has been forgotten already, so do not answer with `Lost`."""


Effect = Connect | Send | Close


class Link(Enum):
    """The state of the connection."""

    DOWN = auto()
    CONNECTING = auto()
    UP = auto()


class Queue(Protocol):
    """The queue of records that wait to be sent."""

    @property
    def records(self) -> int: ...

    @property
    def held_bytes(self) -> int: ...

    def take(self, *, records_max: int, bytes_max: int) -> Sequence[Held]:
        """Remove the oldest that fit; at least one, if there is one."""
        ...

    def settle(self, sequence: int) -> None:
        """Forget a batch that was answered for good."""
        ...


class Delivery:
    """The state machine between the queue and the connection.

    Args:
        queue: Queue that has the batches.
        limits: Bounds and times.
        sequence: The newest batch that the same sender sent before.
        flight: Batch in flight; None: there is none.
    """

    def __init__(
        self,
        queue: Queue,
        limits: EmitterLimits,
        *,
        sequence: int = 0,
        flight: Batch | None = None,
    ) -> None:
        self._queue = queue
        self._limits = limits
        self._ack_timeout_ns = limits.ack_timeout_ms * MS
        self._link = Link.DOWN
        self._sequence = sequence
        self._flight = flight
        self._backoff = Backoff(
            limits.initial_backoff_ms * MS, limits.max_backoff_ms * MS, jitter=0.5
        )
        self._retry_at_ns = 0
        self._answer_by_ns = 0
        self._oldest_ns: int | None = None
        self._hurried = False
        self.acked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @property
    def link(self) -> Link:
        return self._link

    @property
    def in_flight(self) -> int:
        """Records sent and not answered."""
        return len(self._flight.records) if self._flight else 0

    @property
    def idle(self) -> bool:
        """Nothing is queued and nothing unanswered."""
        return self._flight is None and not self._queue.records

    @property
    def failures(self) -> int:
        """Attempts that failed since a batch was answered last."""
        return self._backoff.failures

    def flush_now(self) -> None:
        """Send without waiting for batches to fill, until all that is queued is answered."""
        self._hurried = True

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Advance by one event."""
        match event:
            case Connected():
                effects = self._connected(now_ns)
            case Lost(jitter):
                self._down(now_ns, jitter)
                effects = []
            case Acked(sequence):
                effects = self._answered(sequence, self.acked)
            case Nacked(sequence, retry, jitter):
                effects = self._nacked(sequence, retry, jitter, now_ns)
            case Tick():
                effects = self._expire(now_ns)
            case _:
                assert_never(event)
        return effects + self._advance(now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return when to send the next `Tick`, in ns; None: only an event can change anything."""
        match self._link:
            case Link.DOWN:
                return self._retry_at_ns if not self.idle else None
            case Link.CONNECTING:
                return self._answer_by_ns
            case Link.UP:
                if self._flight is not None:
                    return self._answer_by_ns
                return None if self._oldest_ns is None else self._due_ns(self._oldest_ns)
            case _:
                assert_never(self._link)

    def _connected(self, now_ns: int) -> list[Effect]:
        if self._link is not Link.CONNECTING:
            return []
        self._link = Link.UP
        if self._flight is None:
            return []
        self._answer_by_ns = now_ns + self._ack_timeout_ns
        return [Send(self._flight)]

    def _down(self, now_ns: int, jitter: float) -> None:
        """Wait before the next attempt."""
        assert 0 <= jitter <= 1
        self._link = Link.DOWN
        self._retry_at_ns = now_ns + int(self._backoff.next_wait(jitter))

    def _answered(self, sequence: int, counts: Counter[str]) -> list[Effect]:
        """The batch in flight is settled; answers to anything else are late and mean nothing."""
        if self._flight is not None and self._flight.sequence == sequence:
            self._queue.settle(sequence)
            counts.update(_by_kind(self._flight.records))
            self._flight = None
            self._backoff.reset()
        return []

    def _nacked(self, sequence: int, retry: bool, jitter: float, now_ns: int) -> list[Effect]:
        if not retry:
            return self._answered(sequence, self.refused)
        if self._flight is None or self._flight.sequence != sequence:
            return []
        self._down(now_ns, jitter)
        return [Close()]

    def _expire(self, now_ns: int) -> list[Effect]:
        """Give up a connection that does not answer, or that is not made, in time."""
        waits = self._link is Link.CONNECTING or (self._link is Link.UP and self._flight)
        if waits and now_ns >= self._answer_by_ns:
            self._down(now_ns, 1.0)
            return [Close()]
        return []

    def _advance(self, now_ns: int) -> list[Effect]:
        """Whatever the state allows now: connect, or cut the next batch."""
        if self._queue.records and self._oldest_ns is None:
            self._oldest_ns = now_ns
        if self.idle:
            self._hurried = False
            self._oldest_ns = None
        elif self._link is Link.DOWN and now_ns >= self._retry_at_ns:
            self._link = Link.CONNECTING
            self._answer_by_ns = now_ns + self._ack_timeout_ns
            return [Connect()]
        elif self._link is Link.UP and self._flight is None and self._is_due(now_ns):
            return [self._cut(now_ns)]
        return []

    def _cut(self, now_ns: int) -> Send:
        limits = self._limits
        records = self._queue.take(
            records_max=limits.max_batch_records, bytes_max=limits.max_batch_bytes
        )
        self._sequence += 1
        self._flight = Batch(self._sequence, tuple(records))
        self._oldest_ns = now_ns if self._queue.records else None
        self._answer_by_ns = now_ns + self._ack_timeout_ns
        return Send(self._flight)

    def _is_due(self, now_ns: int) -> bool:
        return (
            self._hurried
            or self._queue.records >= self._limits.max_batch_records
            or self._queue.held_bytes >= self._limits.max_batch_bytes
            or (self._oldest_ns is not None and now_ns >= self._due_ns(self._oldest_ns))
        )

    def _due_ns(self, oldest_ns: int) -> int:
        return oldest_ns if self._hurried else oldest_ns + self._limits.max_batch_age_ms * MS


def _by_kind(records: Iterable[Held]) -> Counter[str]:
    return Counter(map(kind_of, records))

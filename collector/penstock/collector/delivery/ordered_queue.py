"""One queue: batches waiting, batches in flight, and what logd is known to hold.

A queue is in one of three states:

    FLOWING     sends while the window has room
    WAITING     logd or NATS could not take a batch; sends again, from the oldest batch, at
                `retry_at_ns`
    SETTLING    logd will never take the oldest batch; nothing is sent until it is in quarantine

Acks are cumulative: logd stores a batch only on top of the one before it, so an ack of sequence s
says that every record of the queue up to s is stored. That holds for a late ack of an earlier
attempt, too. A refusal counts only for the current attempt; those of earlier ones are history.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate
from typing import NamedTuple

from penstock.base.backoff import Backoff


class QueueKey(NamedTuple):
    """One chain of records that logd must store in order: the unit of retry and of sequence.

    Attributes:
        origin: Name of a read position: ``spool``, or ``file/<generation>``.
        source: Name of the source, as configured.
        subject: NATS subject of every record in the queue.
        branch: Number among the copies that transforms made of a record for the same subject; the
            sequences of a queue rise, and copies share one.
    """

    origin: str
    source: str
    subject: str
    branch: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the delivery core.

    Attributes:
        batch_bytes_max: Bytes of record lines in a batch; one larger record still makes a batch.
        batch_records_max: Records in a batch.
        batch_age_ns: Nanoseconds that a batch may wait for more records.
        queue_flight_max: Batches of one queue that are sent and unanswered.
        flight_bytes_max: Bytes of all queues that are sent and unanswered.
        backoff_min_ns: First wait after a failure; it doubles up to `backoff_max_ns`.
        queues_max: Queues kept; beyond it those with nothing to do are forgotten.
    """

    batch_bytes_max: int = 512 * 1024
    batch_records_max: int = 1000
    batch_age_ns: int = 200_000_000
    queue_flight_max: int = 8
    flight_bytes_max: int = 8 * 1024 * 1024
    backoff_min_ns: int = 100_000_000
    backoff_max_ns: int = 10_000_000_000
    queues_max: int = 4096


@dataclass(slots=True)
class Batch:
    """Records of one queue, columns of equal length.

    Attributes:
        start: Position of the origin from which reading again meets every record of the batch.
        sequences: Rising; the producer's sequence is the last.
        size: Sum of the lines' lengths, bytes.
        body: The encoded batch, kept by the shell for retries; a changed batch has none.
    """

    start: int
    sequences: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    body: bytes | None = None

    def __len__(self) -> int:
        """Records."""
        return len(self.sequences)

    @property
    def last(self) -> int:
        """Sequence of the last record."""
        return self.sequences[-1]

    def extend(self, other: "Batch", first: int, end: int, size: int) -> None:
        """Append records `first` to `end` (exclusive) of another batch, `size` bytes in all."""
        self.sequences += other.sequences[first:end]
        self.timestamps += other.timestamps[first:end]
        self.lines += other.lines[first:end]
        self.size += size

    def after(self, sequence: int) -> "Batch":
        """The records whose sequence is greater."""
        return self.part(bisect_right(self.sequences, sequence), len(self))

    def part(self, first: int, end: int) -> "Batch":
        """Records `first` to `end` (exclusive)."""
        lines = self.lines[first:end]
        return Batch(
            self.start,
            self.sequences[first:end],
            self.timestamps[first:end],
            lines,
            sum(map(len, lines)),
        )

    def halves(self) -> tuple["Batch", "Batch"]:
        """Both halves, neither empty."""
        middle = len(self) // 2
        assert middle > 0
        return self.part(0, middle), self.part(middle, len(self))


class QueueState(Enum):
    """State of a queue, which decides whether it may send."""

    FLOWING = auto()
    WAITING = auto()
    SETTLING = auto()


@dataclass(slots=True)
class Flight:
    """A batch that was sent and not answered, and the request that carries it now."""

    batch: Batch
    request: int


@dataclass(slots=True)
class OrderedQueue:
    """State of one queue.

    Attributes:
        done: Every record up to this sequence is stored or in quarantine; survives restarts.
        chain: The sequence that logd stored last before the oldest pending record; differs from
            `done` after a batch went to quarantine or when logd forgot the producer.
        waiting: Sealed batches, oldest first, all after those in flight.
        window: Batches allowed in flight; 1 while a refused batch is looked for.
        unanswered: Last sequence of each batch that has no answer yet, by request.
        unsure: Up to this sequence logd may have batches whose answer was lost.
        earlier: Up to this sequence logd had every record before this process sent it.
        repeated: Number of records that this process met or sent after they were stored.
    """

    key: QueueKey
    limits: Limits
    done: int = 0
    chain: int = 0
    open: Batch | None = None
    opened_ns: int = 0
    waiting: deque[Batch] = field(default_factory=deque)
    flight: deque[Flight] = field(default_factory=deque)
    state: QueueState = QueueState.FLOWING
    window: int = 0
    unanswered: dict[int, int] = field(default_factory=dict)
    unsure: int = 0
    earlier: int = 0
    retry_at_ns: int = 0
    backoff: Backoff = field(init=False)
    reason: str = ""
    delivered: int = 0
    quarantined: int = 0
    repeated: int = 0

    def __post_init__(self) -> None:
        """Open the window."""
        limits = self.limits
        self.window = limits.queue_flight_max
        self.backoff = Backoff(limits.backoff_min_ns, limits.backoff_max_ns, jitter=0.5)

    def take(self, records: Batch, now_ns: int) -> None:
        """Queue records; those known to be done from before a restart are skipped."""
        if records.sequences[0] <= self.done:
            total = len(records)
            records = records.after(self.done)
            self.repeated += total - len(records)
        limits = self.limits
        first = 0
        while first < len(records):
            if self.open is None:
                self.open, self.opened_ns = Batch(records.start), now_ns
            batch = self.open
            end, size = _fitting(records, first, batch, limits)
            batch.extend(records, first, end, size)
            first = end
            full = len(batch) >= limits.batch_records_max or batch.size >= limits.batch_bytes_max
            if full or first < len(records):
                self.seal()

    def seal(self) -> None:
        """Close the batch that is being filled."""
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    def send(self, request: int) -> tuple[int, Batch]:
        """Move the oldest waiting batch into flight; returns the sequence before it and itself."""
        assert self.can_send
        batch = self.waiting.popleft()
        previous = self.flight[-1].batch.last if self.flight else self.chain
        self.flight.append(Flight(batch, request))
        self.unanswered[request] = batch.last
        return previous, batch

    @property
    def own(self) -> int:
        """Up to this sequence logd may have records because this process sent them."""
        return max(self.unsure, *self.unanswered.values(), 0)

    def answered(self, request: int, *, is_unsure: bool) -> None:
        """A request has its answer; `is_unsure`: logd may have its batch all the same."""
        last = self.unanswered.pop(request)
        if is_unsure:
            self.unsure = max(self.unsure, last)

    @property
    def can_send(self) -> bool:
        """True if a batch waits and the queue's window has room."""
        return (
            self.state is QueueState.FLOWING
            and bool(self.waiting)
            and len(self.flight) < self.window
        )

    def is_current(self, request: int) -> bool:
        """Return whether the request is the latest attempt of a batch in flight."""
        return any(flight.request == request for flight in self.flight)

    def stored(self, sequence: int) -> None:
        """Logd holds every record up to `sequence`."""
        if sequence <= self.done:
            return
        self.done = self.chain = sequence
        self._forget_done()
        self.backoff.reset()
        self.reason = ""
        if self.state is QueueState.WAITING and not self.flight:
            self.state = QueueState.FLOWING

    def resume_after(self, last: int, now_ns: int, jitter: float) -> None:
        """Logd says that it stored `last` last: go on from there.

        What logd names is stored but perhaps not durable yet, so it counts as done only when an
        ack says so: pending records up to `last` are sent again, as duplicates to be acked, in
        batches that end at `last`.
        """
        self.requeue()
        if not self.waiting or last < self.waiting[0].sequences[0]:
            self.chain = last
        else:
            self._cut_after(last)
        if self.backoff.failures == 0:
            self.backoff.failures = 1
        else:
            self.back_off("sequence_gap", now_ns, jitter)

    def back_off(self, reason: str, now_ns: int, jitter: float) -> None:
        """Try everything unanswered again later."""
        self.requeue()
        self.reason = reason
        self.retry_at_ns = now_ns + int(self.backoff.next_wait(jitter))
        self.state = QueueState.WAITING

    def refuse(self, request: int) -> Batch | None:
        """Logd will never take this batch as it is; returns it when it must go to quarantine.

        Only the oldest batch counts: a later one is sent again, alone, once it is the oldest.
        A batch of several records is halved, so that one bad record does not take others along.
        """
        head = self.flight[0]
        is_head = head.request == request
        self.requeue()
        self.window = 1
        if not is_head:
            return None
        if len(head.batch) > 1:
            self.waiting.popleft()
            self.waiting.extendleft(reversed(head.batch.halves()))
            return None
        self.state = QueueState.SETTLING
        return head.batch

    def settled(self, batch: Batch) -> None:
        """The refused batch, the oldest, is durably in quarantine."""
        assert self.state is QueueState.SETTLING
        if self.waiting and self.waiting[0] is batch:
            self.waiting.popleft()
            self.quarantined += len(batch)
            self.done = max(self.done, batch.last)
        self.window = self.limits.queue_flight_max
        self.state = QueueState.FLOWING

    def requeue(self) -> None:
        """Take back everything in flight, in order."""
        while self.flight:
            self.waiting.appendleft(self.flight.pop().batch)

    def give_up(self, before: int, start: int) -> int:
        """Drop the pending records of lower sequences; returns how many.

        For the end of the process: nothing may be on its way, and nothing is sent any more.

        Args:
            before: The lowest sequence that is left.
            start: Position at which reading meets it again.
        """
        self.requeue()
        self.seal()
        total = sum(map(len, self.waiting))
        left = [batch.after(before - 1) for batch in self.waiting]
        self.waiting = deque(batch for batch in left if len(batch))
        for batch in self.waiting:
            batch.start = max(batch.start, start)
        return total - sum(map(len, self.waiting))

    @property
    def start(self) -> int | None:
        """Position from which reading must start again to meet every pending record, if any."""
        for batch in self.pending():
            return batch.start
        return None

    @property
    def is_idle(self) -> bool:
        """True if the queue has no records, none on their way into quarantine either."""
        return self.start is None and self.state is QueueState.FLOWING

    def pending(self) -> Iterator[Batch]:
        """Batches not known to be stored, oldest first."""
        for flight in self.flight:
            yield flight.batch
        yield from self.waiting
        if self.open is not None:
            yield self.open

    def _cut_after(self, last: int) -> None:
        """Let a waiting batch end at `last` where one straddles it."""
        for index, batch in enumerate(self.waiting):
            if batch.sequences[0] <= last < batch.last:
                rest = batch.after(last)
                self.waiting[index] = batch.part(0, len(batch) - len(rest))
                self.waiting.insert(index + 1, rest)
                return

    def _forget_done(self) -> None:
        """Drop records up to `done` from what is pending; they count as delivered or repeated."""
        while self.flight and self.flight[0].batch.last <= self.done:
            self._count_stored(self.flight.popleft().batch)
            self.window = self.limits.queue_flight_max
        while not self.flight and self.waiting and self.waiting[0].sequences[0] <= self.done:
            batch = self.waiting.popleft()
            rest = batch.after(self.done)
            self._count_stored(batch.part(0, len(batch) - len(rest)))
            if len(rest):
                self.waiting.appendleft(rest)

    def _count_stored(self, batch: Batch) -> None:
        repeated = bisect_right(batch.sequences, self.earlier)
        self.repeated += repeated
        self.delivered += len(batch) - repeated


def _fitting(records: Batch, first: int, batch: Batch, limits: Limits) -> tuple[int, int]:
    """Return how far records from `first` fit into `batch`: end index (exclusive) and bytes."""
    end_max = min(len(records), first + limits.batch_records_max - len(batch))
    takes_all = first == 0 and end_max == len(records)
    if takes_all and batch.size + records.size <= limits.batch_bytes_max:
        return end_max, records.size
    sizes = [*accumulate(map(len, records.lines[first:end_max]), initial=0)]
    count = bisect_right(sizes, limits.batch_bytes_max - batch.size) - 1
    count = max(count, 0 if len(batch) else 1)
    return first + count, sizes[count]

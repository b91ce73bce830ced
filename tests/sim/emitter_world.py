"""An emitter's delivery core, a connection that breaks and a collector, driven by one seed.

The collector does what its protocol says: it takes a batch whose sequence is above the sender's
last, acks a repeat without taking it again, and may refuse, for now or for good. Messages and
answers are lost when the connection breaks; a late answer never crosses into the next connection.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

from penstock.specs import EmitterLimits
from penstock.specs.emit.delivery.core import (
    Acked,
    Batch,
    Close,
    Connect,
    Connected,
    Delivery,
    Event,
    Lost,
    Nacked,
    Send,
    Tick,
)
from penstock.specs.emit.delivery.queue import RecordQueue, line_of

MS = 1_000_000
LIMITS = EmitterLimits(
    max_batch_records=7,
    max_batch_bytes=300,
    max_batch_age_ms=10,
    ack_timeout_ms=200,
    initial_backoff_ms=5,
    max_backoff_ms=80,
)
RECORDS = 300


class World:
    """One seeded run. `delivery` may be a twin that is wrong on purpose."""

    def __init__(
        self, seed: int, make: Callable[[RecordQueue, EmitterLimits], Delivery] = Delivery
    ) -> None:
        self.random = Random(seed)
        self.queue = RecordQueue(records_max=40, bytes_max=1500)
        self.delivery = make(self.queue, LIMITS)
        self.now_ns = 0
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.connection = 0
        self.kind = False
        self.trouble = self.random.random() * 0.4
        self.offered: list[bytes] = []
        self.dropped: list[bytes] = []
        self.taken: list[bytes] = []
        self.refused: list[bytes] = []
        self.last = 0
        self.seen: dict[int, tuple[bytes, ...]] = {}
        self.marks: Counter[str] = Counter()

    def run(self) -> None:
        """Trouble for two seconds, then kindness until everything must have been answered."""
        for number in range(RECORDS):
            self._later(self.random.randrange(2_000) * MS, lambda n=number: self._offer(n))  # type: ignore[misc]
        self._later(0, self._break)
        self._run_until(2_000 * MS)
        self.kind = True
        self._run_until(6_000 * MS)

    def check(self) -> None:
        """Each record is taken once, refused once or dropped once; those taken are in order."""
        fates = Counter(self.taken) + Counter(self.refused) + Counter(self.dropped)
        assert fates == Counter(self.offered), "a record was lost, or taken twice"
        place = {line: index for index, line in enumerate(self.offered)}
        places = [place[line] for line in self.taken]
        assert places == sorted(places), "order"
        assert self.delivery.idle, "everything is answered in the end"
        assert self.delivery.acked["log"] == len(self.taken), "acks are counted"
        assert self.delivery.refused["log"] == len(self.refused), "refusals are counted"
        assert sorted(self.seen) == list(range(1, len(self.seen) + 1)), "sequences are dense"

    def _offer(self, number: int) -> None:
        line = b"%d " % number + b"x" * self.random.randint(0, 90)
        self.offered.append(line)
        rank = self.random.randint(0, 4)
        self.dropped += [line_of(record) for record in self.queue.offer("log", rank, line)]
        self._handle(Tick())

    def _handle(self, event: Event) -> None:
        for effect in self.delivery.handle(event, self.now_ns):
            match effect:
                case Connect():
                    self._connect()
                case Send(batch):
                    connection = self.connection
                    self._soon(lambda b=batch, c=connection: self._receive(b, c))  # type: ignore[misc]
                case Close():
                    self.marks["close"] += 1
                    self.connection += 1
        deadline = self.delivery.next_deadline_ns()
        if deadline is not None:
            self._later(max(MS, deadline - self.now_ns), self._tick)

    def _tick(self) -> None:
        deadline = self.delivery.next_deadline_ns()
        if deadline is not None and deadline <= self.now_ns:
            self._handle(Tick())

    def _connect(self) -> None:
        self.connection += 1
        connection = self.connection
        works = self.kind or self.random.random() > self.trouble
        event: Event = Connected() if works else Lost(self.random.random())

        def answer() -> None:
            if connection == self.connection:
                self._handle(event)

        self._soon(answer)

    def _receive(self, batch: Batch, connection: int) -> None:
        if connection != self.connection:
            return
        lines = tuple(line_of(record) for record in batch.records)
        assert self.seen.setdefault(batch.sequence, lines) == lines, "a sequence changed its batch"
        if batch.sequence <= self.last:
            self.marks["repeat"] += 1
            self._answer(Acked(batch.sequence), connection)
            return
        roll = 1.0 if self.kind else self.random.random()
        if roll < self.trouble / 4:
            self.marks["nack"] += 1
            self._answer(
                Nacked(batch.sequence, retry=True, jitter=self.random.random()), connection
            )
        elif roll < self.trouble / 3:
            self.marks["refused"] += 1
            self.refused += lines
            self.last = batch.sequence
            self._answer(Nacked(batch.sequence, retry=False, jitter=0.5), connection)
        else:
            self.taken += lines
            self.last = batch.sequence
            self._answer(Acked(batch.sequence), connection)

    def _answer(self, event: Acked | Nacked, connection: int) -> None:
        if not self.kind and self.random.random() < self.trouble / 4:
            self.marks["silence"] += 1
            if isinstance(event, Nacked) and not event.retry:
                # The verdict is remembered; when asked again, a collector says the same.
                self.refused = self.refused[: -len(self.seen[event.sequence])]
                self.last = event.sequence - 1
            return

        def arrive() -> None:
            if connection == self.connection:
                self._handle(event)
            elif isinstance(event, Nacked) and not event.retry:
                self.refused = [
                    line for line in self.refused if line not in self.seen[event.sequence]
                ]
                self.last = min(self.last, event.sequence - 1)

        self._soon(arrive)

    def _break(self) -> None:
        """Break the connection now and then."""
        if self.kind:
            return
        if self.random.random() < self.trouble:
            self.marks["break"] += 1
            self.connection += 1
            self._handle(Lost(self.random.random()))
        self._later(self.random.randrange(1, 60) * MS, self._break)

    def _soon(self, act: Callable[[], None]) -> None:
        self._later(self.random.randrange(1, 15) * MS, act)

    def _later(self, delay_ns: int, act: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now_ns + delay_ns, self.count, act))

    def _run_until(self, end_ns: int) -> None:
        while self.heap and self.heap[0][0] <= end_ns:
            self.now_ns, _, act = heapq.heappop(self.heap)
            act()
        self.now_ns = end_ns

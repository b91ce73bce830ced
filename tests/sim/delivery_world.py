"""A collector's delivery core, an unkind network and a model of logd, driven by one seed.

The model logd follows docs/decisions/0004: it stores a batch only on top of the producer's last
sequence, acks after its sync, and forgets what was not synced when it restarts. The network loses,
delays, repeats and reorders messages and answers, across restarts of both sides.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from penstock.collector.delivery.core import (
    Behind,
    Delivery,
    Effect,
    Event,
    Failed,
    Flush,
    Publish,
    Read,
    Refused,
    Settled,
    Stored,
    Take,
    Tick,
)
from penstock.collector.delivery.ordered_queue import Batch, Limits, QueueKey

MS = 1_000_000
LIMITS = Limits(
    batch_bytes_max=400,
    batch_records_max=6,
    batch_age_ns=20 * MS,
    queue_flight_max=3,
    flight_bytes_max=1200,
    backoff_min_ns=10 * MS,
    backoff_max_ns=200 * MS,
    queues_max=2,
)
POISON = b"poison"


@dataclass
class ModelLogd:
    """Stores batches per queue, as logd does per producer.

    `stored` is what is durable or will be at the next sync; `synced` counts what is durable.
    """

    stored: dict[QueueKey, list[tuple[int, bytes]]] = field(default_factory=dict)
    synced: dict[QueueKey, int] = field(default_factory=dict)
    acks_before_sync: bool = False
    checks_previous: bool = True

    def last(self, queue: QueueKey) -> int:
        log = self.stored.get(queue)
        return log[-1][0] if log else 0

    def receive(self, queue: QueueKey, previous: int, records: list[tuple[int, bytes]]) -> str:
        if any(line == POISON for _, line in records):
            return "refused"
        last = self.last(queue)
        if records[-1][0] <= last:
            durable = self.synced.get(queue, 0) >= last
            return "stored" if durable or self.acks_before_sync else "wait"
        if previous != last and self.checks_previous:
            return "behind"
        self.stored.setdefault(queue, []).extend(records)
        return "stored" if self.acks_before_sync else "wait"

    def sync(self) -> None:
        self.synced = {queue: log[-1][0] for queue, log in self.stored.items()}

    def restart(self) -> None:
        for queue, log in self.stored.items():
            upto = self.synced.get(queue, 0)
            log[:] = [record for record in log if record[0] <= upto]
        self.stored = {queue: log for queue, log in self.stored.items() if log}


Records = tuple[tuple[QueueKey, int, bytes], ...]


@dataclass(frozen=True)
class Unit:
    """What an origin yields in one read; positions are unit indexes."""

    records: Records


class World:
    """One seeded run."""

    limits = LIMITS
    units: ClassVar = {"spool": 40, "file/1": 15}

    def __init__(self, seed: int, *, logd: ModelLogd | None = None) -> None:
        self.random = Random(seed)
        self.logd = logd or ModelLogd()
        self.now_ns = 0
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.life = 0
        self.kind = True
        self.trouble = self.random.random() * 0.3
        self.origins = {origin: self._units(origin, n) for origin, n in self.units.items()}
        self.quarantined: dict[tuple[QueueKey, int], bytes] = {}
        self.marks: set[str] = set()
        self._waiting: list[Callable[[], None]] = []
        self.checkpoint: tuple[dict[str, int], dict[QueueKey, int]] = (
            dict.fromkeys(self.origins, 0),
            {},
        )
        self.start()

    def run(self) -> None:
        """Trouble for a while, then kindness until everything must have arrived."""
        self.kind = False
        self.later(self._chaos)
        self.later(self._sync)
        self._run_until(3_000 * MS)
        self.kind = True
        self._run_until(30_000 * MS)

    def check(self) -> None:
        """Each record is in the log once, in order, or in quarantine if logd cannot take it."""
        for origin, units in self.origins.items():
            assert self.delivery.cursor(origin) == len(units), f"{origin} is not done"
        queues: dict[QueueKey, list[tuple[int, bytes]]] = {}
        for units in self.origins.values():
            for unit in units:
                for queue, sequence, line in unit.records:
                    queues.setdefault(queue, []).append((sequence, line))
        for queue, records in queues.items():
            good = [record for record in records if record[1] != POISON]
            assert self.logd.stored.get(queue, []) == good, queue
            poison = {(queue, s): line for s, line in records if line == POISON}
            held = {key: line for key, line in self.quarantined.items() if key[0] == queue}
            assert held == poison, queue
        assert self.delivery.pending_bytes == 0

    def _units(self, origin: str, count: int) -> list[Unit]:
        random = self.random
        poison = random.choice((0.0, 0.02))
        units = []
        for position in range(count):
            records = []
            for index in range(random.randint(1, 9)):
                queue = QueueKey(origin, "source", f"subject.{random.randint(1, 3)}")
                line = (
                    POISON if random.random() < poison else random.randbytes(random.randint(8, 120))
                )
                records.append((queue, (position << 20 | index) + 1, line))
            units.append(Unit(tuple(records)))
        return units

    def later(self, action: Callable[[], None], delay_ms: float | None = None) -> None:
        delay = self.random.expovariate(1 / 15) if delay_ms is None else delay_ms
        self.count += 1
        heapq.heappush(self.heap, (self.now_ns + int(delay * MS) + 1, self.count, action))

    def _run_until(self, end_ns: int) -> None:
        while self.heap and self.heap[0][0] <= end_ns:
            self.now_ns, _, action = heapq.heappop(self.heap)
            action()
        self.now_ns = end_ns

    def sorted(self, queue: QueueKey) -> QueueKey:
        """Into which queue a record goes now that went into this one at first."""
        return queue

    def producer(self, queue: QueueKey) -> QueueKey:
        """By what logd knows a queue now."""
        return queue

    def restored(self) -> tuple[dict[str, int], dict[QueueKey, int]]:
        """Cursors, and what is done by queue, as a start finds them."""
        return self.checkpoint

    def takes(self, subject: str) -> bool:
        """Whether there is a stream for a subject."""
        return True

    def disturbed(self, dice: float) -> bool:
        """Whether something else happens, of what only some worlds know."""
        return False

    def start(self) -> None:
        cursors, done = self.restored()
        self.life += 1
        self.delivery = Delivery(self.limits, jitter=self.random.random, done=done)
        self.positions = dict(cursors)
        for origin, position in cursors.items():
            self._handle(Read(origin, position))
        self.later(self._read)
        self._arm()

    def _handle(self, event: Event) -> None:
        for effect in self.delivery.handle(event, self.now_ns):
            self._carry_out(effect)
        pending = sum(
            batch.size for queue in self.delivery.queues.values() for batch in queue.pending()
        )
        assert self.delivery.pending_bytes == pending, "a lane with records was overlooked"

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Publish):
            self._publish(effect)
            return
        life = self.life

        def settle() -> None:
            if life == self.life:
                for sequence, line in zip(effect.batch.sequences, effect.batch.lines, strict=True):
                    self.quarantined[effect.queue, sequence] = line
                self._handle(Settled(effect.queue, effect.batch))

        self.later(settle)

    def _publish(self, effect: Publish) -> None:
        records = list(zip(effect.batch.sequences, effect.batch.lines, strict=True))
        producer = self.producer(effect.queue)
        life, answered = self.life, False

        def answer(event: Event) -> None:
            nonlocal answered
            if life == self.life and not answered:
                answered = True
                self._handle(event)

        def arrive() -> None:
            verdict = self.logd.receive(producer, effect.previous, records)
            self.marks.add(verdict)
            event: Event = Stored(effect.request)
            if verdict == "behind":
                event = Behind(effect.request, self.logd.last(producer))
            elif verdict == "refused":
                event = Refused(effect.request, "poison")
            if verdict == "wait":
                self._waiting.append(lambda: self._reply(event, answer))
            else:
                self._reply(event, answer)

        goes = self.takes(effect.queue.subject)
        if not self._lost() and goes:
            self.later(arrive)
        if not self.kind and self.random.random() < self.trouble and goes:
            self.later(arrive, self.random.uniform(0, 400))
        self.later(lambda: answer(Failed(effect.request, "timeout")), 120)

    def _reply(self, event: Event, answer: Callable[[Event], None]) -> None:
        if not self._lost():
            self.later(lambda: answer(event))

    def _lost(self) -> bool:
        return not self.kind and self.random.random() < self.trouble

    def _sync(self) -> None:
        self.logd.sync()
        waiting, self._waiting[:] = list(self._waiting), []
        for reply in waiting:
            reply()
        self.later(self._sync)

    def _read(self) -> None:
        life = self.life

        def again() -> None:
            if life == self.life:
                self._read()

        for origin, units in self.origins.items():
            position = self.positions[origin]
            if position < len(units) and self.delivery.pending_bytes < 4000:
                self._take(origin, position, units[position])
        if self.random.random() < 0.3:
            self.save()
        self.later(again)

    def _take(self, origin: str, position: int, unit: Unit) -> None:
        self._hand_over(position, unit.records)
        self.positions[origin] = position + 1
        self._handle(Read(origin, position + 1))

    def _hand_over(self, position: int, records: Records) -> None:
        batches: dict[QueueKey, Batch] = {}
        for queue, sequence, line in records:
            batch = batches.setdefault(self.sorted(queue), Batch(position))
            batch.sequences.append(sequence)
            batch.timestamps.append(self.now_ns)
            batch.lines.append(line)
            batch.size += len(line)
        for queue, batch in batches.items():
            self._handle(Take(queue, batch))

    def save(self) -> None:
        cursors = {origin: self.delivery.cursor(origin) for origin in self.origins}
        self.checkpoint = (cursors, self.delivery.done())

    def _arm(self) -> None:
        life = self.life

        def tick() -> None:
            if life != self.life:
                return
            deadline = self.delivery.next_deadline_ns()
            if deadline is not None and deadline <= self.now_ns:
                self._handle(Tick())
            self._arm()

        self.later(tick, 5)

    def _chaos(self) -> None:
        if self.kind:
            return
        dice = self.random.random()
        if self.disturbed(dice):
            pass
        elif dice < 0.04:
            self.start()
            self.marks.add("collector restarted")
        elif dice < 0.08:
            self.logd.restart()
            self._waiting.clear()
            self.marks.add("logd restarted")
        elif dice < 0.15:
            self._handle(Flush())
        self.later(self._chaos)


def run(seed: int, *, logd: ModelLogd | None = None) -> World:
    """Run one seed to its end."""
    world = World(seed, logd=logd)
    world.run()
    return world

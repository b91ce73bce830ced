"""The delivery core: brings records of many queues into the log, each once and in order.

It takes records that are durable where they came from (the spool, or the file itself), decides what
to send when, and answers how far each origin is done. It never sends: effects say what the shell
must do, and every effect comes back as exactly one event:

    Publish     -> Stored | Behind | Refused | Failed
    Quarantine  -> Settled

Records that transforms hold in memory keep the position of their origin back (`Held`) until what
became of them is durable (`Released`). Each transform has its own (`new_from`): behind the oldest
record that one holds lie others that another one needs no more.

After a crash the shell restores `done` per queue and reads each origin from its cursor on. The core
skips records that `done` covers, and logd skips the others that it has.

`Window` bounds the unanswered bytes by the delay of acks, after TCP Vegas (Brakmo, O'Malley,
Peterson: TCP Vegas, SIGCOMM 1994). The shortest recent delay is that of an empty way; a longer
delay, times the rate, is what waits on the way. The window grows while fewer than `_FEW` batches
wait, shrinks above `_MANY`, and is halved when an answer does not come. It grows only where it was
the reason that batches waited, so a quiet collector keeps its window.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from penstock.collector.delivery.holds import Holds
from penstock.collector.delivery.ordered_queue import (
    Batch,
    Limits,
    OrderedQueue,
    QueueKey,
    QueueState,
)

_FEW: Final = 2
_MANY: Final = 6
_MEMORY_NS: Final = 30_000_000_000
"""The shortest round trip is kept for this time at least, and for twice as long at most."""


class Window:
    """The window of one way to the log; sizes in bytes, times in nanoseconds.

    Args:
        step: A batch: what the window grows by in the time of an ack, and its least size.
        size_max: Its greatest size.
    """

    def __init__(self, *, step: int, size_max: int) -> None:
        self._step = min(step, size_max)
        self._size_max = size_max
        self.size = min(size_max, 4 * self._step)
        self._starting = True
        self._base_ns = 0
        self._recent_ns = 0
        self._since_ns = 0
        self._calm_until_ns = 0

    @property
    def base_ns(self) -> int:
        """The shortest time an ack took lately; 0 when none came."""
        return min((known for known in (self._base_ns, self._recent_ns) if known), default=0)

    def resize(self, *, step: int, size_max: int) -> None:
        """Other limits hold from now on."""
        self._step = min(step, size_max)
        self._size_max = size_max
        self._set(self.size)

    def acked(self, size: int, took_ns: int, now_ns: int, *, held_back: bool) -> None:
        """A batch of `size` bytes was acked; `held_back`: others waited for the window."""
        took_ns = max(took_ns, 1)
        self._remember(took_ns, now_ns)
        waiting = self.size * (took_ns - self.base_ns) // took_ns
        if waiting > _MANY * self._step:
            self._starting = False
            self._set(self.size - self._share(size))
        elif held_back and waiting < _FEW * self._step:
            self._set(self.size + (size if self._starting else self._share(size)))

    def failed(self, now_ns: int) -> None:
        """No answer came in time, or one that says that there is too much."""
        self._starting = False
        if now_ns >= self._calm_until_ns:  # batches sent together fail together
            self._calm_until_ns = now_ns + max(self.base_ns, 1_000_000)
            self._set(self.size // 2)

    def _share(self, size: int) -> int:
        """A step for each window's worth of acked bytes."""
        return max(1, self._step * size // self.size)

    def _set(self, size: int) -> None:
        self.size = max(self._step, min(size, self._size_max))

    def _remember(self, took_ns: int, now_ns: int) -> None:
        if now_ns - self._since_ns > _MEMORY_NS:
            self._base_ns, self._recent_ns = self._recent_ns, 0
            self._since_ns = now_ns
        self._recent_ns = min(self._recent_ns, took_ns) if self._recent_ns else took_ns


URGENT_SHARE: Final = 4
"""One part in so many of the bytes in flight is for urgent queues alone."""

_TOO_MUCH: Final = frozenset({"ack_timeout", "busy"})
"""Failures that sending less may help against."""


@dataclass(frozen=True, slots=True)
class Take:
    """Records read from an origin, in order; `records` is not used by the caller any more."""

    queue: QueueKey
    records: Batch


@dataclass(frozen=True, slots=True)
class Read:
    """Everything of an origin before `position` was taken, filtered or put in quarantine."""

    origin: str
    position: int


@dataclass(frozen=True, slots=True)
class Held:
    """A transform took records in; reading from `position` on meets them again."""

    origin: str
    transform: str
    position: int


@dataclass(frozen=True, slots=True)
class Released:
    """All else that transforms took in by now is durable in another form, or dropped.

    Attributes:
        since_ns: When a transform took in the oldest record that it holds, for those that hold any.
        now_ns: When it was so.
    """

    since_ns: Mapping[str, int]
    now_ns: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Logd acknowledged the request's batch, as new or as a duplicate."""

    request: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Behind:
    """Logd refused the batch's previous sequence; `last` is the one it stored last."""

    request: int
    last: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The log refused the batch for good."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer, or one that says to try later.

    Attributes:
        may_be_stored: Whether logd may have the batch all the same.
    """

    request: int
    reason: str
    may_be_stored: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """A refused batch is durably in quarantine."""

    queue: QueueKey
    batch: Batch


@dataclass(frozen=True, slots=True)
class Flush:
    """Send what waits for more records now."""


@dataclass(frozen=True, slots=True)
class Tick:
    """`next_deadline_ns` has passed."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The server can be reached again: do not wait for the end of a backoff."""


Event = (
    Take
    | Read
    | Held
    | Released
    | Stored
    | Behind
    | Refused
    | Failed
    | Settled
    | Flush
    | Tick
    | Reconnected
)


@dataclass(frozen=True, slots=True)
class Publish:
    """Send a batch; `previous` is the producer's sequence before it."""

    request: int
    queue: QueueKey
    previous: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Make a refused batch durable in quarantine, then report `Settled`."""

    queue: QueueKey
    batch: Batch
    reason: str


Effect = Publish | Quarantine


@dataclass(frozen=True, slots=True)
class _Request:
    """A batch that was sent: its last sequence, its bytes, and when.

    Attributes:
        own: Up to this sequence the log may have had records then because this process sent them.
    """

    queue: OrderedQueue
    sequence: int
    size: int
    sent_ns: int
    own: int


class Delivery:
    """All queues of one collector.

    Queues of urgent origins go first wherever there is a choice, and a part of what may be in
    flight is theirs alone: what is plentiful fills its own part and waits there.

    Args:
        limits: Bounds.
        jitter: A number from 0 to 1, at random.
        done: Progress that a restart would know, by queue.
        urgent: Origins whose queues go first.
        noted: What an earlier process knew as `new_from`, by origin.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        jitter: Callable[[], float],
        done: Mapping[QueueKey, int] | None = None,
        urgent: Collection[str] = (),
        noted: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self._limits = limits
        self._jitter = jitter
        self._urgent = frozenset(urgent)
        self.window = Window(step=limits.batch_bytes_max, size_max=limits.flight_bytes_max)
        self.queues: dict[QueueKey, OrderedQueue] = {}
        self._read: dict[str, int] = {}
        self._holds = Holds()
        self._noted = dict(noted or {})
        self._requests: dict[int, _Request] = {}
        self._request = 0
        self._starved: dict[QueueKey, None] = {}
        self._busy: dict[QueueKey, OrderedQueue] = {}  # only these can have something to do
        self._flight_bytes = 0
        self.revision = 0
        """Grows with everything that may change what `cursor` and `done` return."""
        self.retired: dict[str, tuple[int, int, int]] = {}
        """Delivered, quarantined and repeated records of forgotten queues by source."""
        for key, sequence in (done or {}).items():
            self.queues[key] = OrderedQueue(key, limits, done=sequence, chain=sequence)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:  # noqa: PLR0911 - one an event
        """Apply one event; the returned effects are carried out in order."""
        self.revision += 1
        match event:
            case Take(key, records):
                queue = self._queue(key)
                queue.take(records, now_ns)
                return self._pump(queue, now_ns)
            case Read() | Held() | Released():
                self._move(event, now_ns)
                return []
            case Stored() | Behind() | Refused() | Failed():
                return self._answered(event, now_ns)
            case Settled(key, batch):
                settled = self.queues.get(key)
                if settled is None or settled.state is not QueueState.SETTLING:
                    return []  # it was stored after all, and its origin forgotten
                settled.settled(batch)
                return self._pump(settled, now_ns)
            case Flush():
                return self._flush(now_ns)
            case Tick():
                return self._tick(now_ns)
            case Reconnected():
                for queue in self._busy.values():
                    queue.retry_at_ns = now_ns
                return self._tick(now_ns)
        assert_never(event)

    def _move(self, event: Read | Held | Released, now_ns: int) -> None:
        """Move what `cursor` answers."""
        match event:
            case Read(origin, position):
                self._read[origin] = position
            case Held(origin, transform, position):
                self._holds.hold(origin, transform, position, now_ns)
            case Released(since_ns, then_ns):
                self._holds.release(since_ns, then_ns)

    def next_deadline_ns(self) -> int | None:
        """Return when the next batch is old enough or a retry is due; None: neither waits."""
        deadlines = [
            queue.opened_ns + self._limits.batch_age_ns
            for queue in self._busy.values()
            if queue.open is not None
        ]
        deadlines += [
            queue.retry_at_ns for queue in self._busy.values() if queue.state is QueueState.WAITING
        ]
        return min(deadlines, default=None)

    def cursor(self, origin: str) -> int:
        """Every record of the origin before this position is done: reading begins there again."""
        held = self._holds.position(origin)
        passed = self.passed(origin)
        return passed if held is None else min(held, passed)

    def held_at(self, origin: str) -> int | None:
        """The position at which transforms hold the origin back; None: they do not."""
        return self._holds.position(origin)

    def noted(self, origin: str) -> Mapping[str, int]:
        """Return `new_from` as an earlier process left it, while records before may be met."""
        return self._noted.get(origin, {})

    def forget_noted(self) -> None:
        """Records go another way from now on, so each of them is new to the transforms there."""
        self.revision += 1
        self._noted.clear()

    def new_from(self, origin: str) -> dict[str, int]:
        """Return the positions from which records are new to transforms, after a kill.

        What lies before is in the log, and durable in what the transform made of it. The name `""`
        stands for all transforms that have none; it is empty where reading begins there anyway.
        """
        noted, held = self._noted.get(origin, {}), self._holds.positions(origin)
        if origin not in self._read or not (noted or held):
            return {**noted}
        passed = self.passed(origin)
        now = {"": passed} | {name: min(passed, position) for name, position in held.items()}
        found = {
            name: max(known.get(name, known.get("", 0)) for known in (now, noted))
            for name in {*now, *noted}
        }
        if max(found.values()) > self.cursor(origin):
            return found
        self._noted.pop(origin, None)
        return {}

    @property
    def holds_anything(self) -> bool:
        """True if transforms hold records of some origin."""
        return bool(self._holds)

    def holds_all_of(self, transform: str) -> bool:
        """Return whether all that a transform has in memory is read again after the end."""
        return self._holds.holds_all_of(transform)

    def let_go(self, origin: str) -> bool:
        """Hold the origin back no more, whatever transforms have of it; whether they had any."""
        self.revision += 1
        return self._holds.forget(origin)

    def passed(self, origin: str) -> int:
        """Every record of the origin before this position is done, or a transform holds it."""
        starts = (queue.start for key, queue in self._busy.items() if key.origin == origin)
        pending = [start for start in starts if start is not None]
        return min(pending, default=self._read[origin])

    def reached(self) -> dict[str, int]:
        """Return the positions up to which origins are read."""
        return {**self._read}

    def is_done(self, origin: str, position: int) -> bool:
        """Return whether nothing of an origin before a position is read again."""
        return origin not in self._read or self.cursor(origin) >= position

    def done(self) -> dict[QueueKey, int]:
        """Per queue, the sequence up to which every record is done: what a restart needs."""
        return {key: queue.done for key, queue in self.queues.items() if queue.done}

    @property
    def pending_bytes(self) -> int:
        """Bytes of records taken and not done."""
        return sum(batch.size for batch in self._pending())

    @property
    def urgent_bytes(self) -> int:
        """Pending bytes of urgent queues."""
        queues = (queue for key, queue in self._busy.items() if key.origin in self._urgent)
        return sum(batch.size for queue in queues for batch in queue.pending())

    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and not answered."""
        return self._flight_bytes

    @property
    def pending_records(self) -> int:
        """Records taken and not done."""
        return sum(len(batch) for batch in self._pending())

    @property
    def troubles(self) -> dict[QueueKey, str]:
        """Queues that cannot deliver now, and why."""
        return {key: queue.reason for key, queue in self.queues.items() if queue.reason}

    def limit(self, limits: Limits) -> None:
        """Other bounds hold from now on; batches that are complete stay as they are."""
        self._limits = limits
        self.window.resize(step=limits.batch_bytes_max, size_max=limits.flight_bytes_max)
        for queue in self.queues.values():
            queue.limits = limits

    def is_pending(self, source: str) -> bool:
        """Return whether records of a source were accepted and are not done."""
        return any(
            key.source == source and queue.start is not None for key, queue in self._busy.items()
        )

    def forget(self, origin: str) -> None:
        """Drop an origin that is read to its end and done, with its queues."""
        self.revision += 1
        for key in [key for key in self.queues if key.origin == origin]:
            self._retire(key)
        self._holds.forget(origin)
        self._noted.pop(origin, None)
        self._read.pop(origin, None)

    def _queue(self, key: QueueKey) -> OrderedQueue:
        queue = self.queues.get(key)
        if queue is None:
            if len(self.queues) >= self._limits.queues_max:
                self.retire_idle()
            queue = self.queues[key] = OrderedQueue(key, self._limits)
        return queue

    def retire_idle(self) -> None:
        """Forget queues without pending records, and so all that is done beyond what was taken.

        A forgotten queue that comes back starts its chain at 0, is refused by logd and goes on from
        the sequence that logd names: one more round trip, nothing lost or repeated. One that may
        still be met again when reading from the cursor is safe for the same reason.
        """
        for key in [key for key, queue in self.queues.items() if queue.is_idle]:
            self._retire(key)

    def _retire(self, key: QueueKey) -> None:
        self.revision += 1
        queue = self.queues.pop(key)
        assert queue.start is None, key
        self._busy.pop(key, None)
        counts = (queue.delivered, queue.quarantined, queue.repeated)
        before = self.retired.get(key.source, (0, 0, 0))
        self.retired[key.source] = (
            before[0] + counts[0],
            before[1] + counts[1],
            before[2] + counts[2],
        )

    def _pending(self) -> Iterator[Batch]:
        for queue in self._busy.values():
            yield from queue.pending()

    def _answered(self, event: Stored | Behind | Refused | Failed, now_ns: int) -> list[Effect]:
        request = self._requests.pop(event.request)
        queue = request.queue
        before = _flight_bytes(queue)
        effects: list[Effect] = []
        is_unsure = isinstance(event, Failed) and event.may_be_stored
        queue.answered(event.request, is_unsure=is_unsure)
        self._note_earlier(request, event)
        if isinstance(event, Stored):
            took_ns = now_ns - request.sent_ns
            self.window.acked(request.size, took_ns, now_ns, held_back=bool(self._starved))
            queue.stored(request.sequence)
        elif queue.is_current(event.request):
            if isinstance(event, Failed) and event.reason in _TOO_MUCH:
                self.window.failed(now_ns)
            effects = self._not_stored(queue, event, now_ns)
        self._flight_bytes += _flight_bytes(queue) - before
        if queue.key.origin in self._urgent:
            effects += self._pump(queue, now_ns)
        effects += self._feed_starved(now_ns)
        effects += self._pump(queue, now_ns)
        return effects

    @staticmethod
    def _note_earlier(request: _Request, event: Stored | Behind | Refused | Failed) -> None:
        """Note up to where the log has records that this process did not bring there."""
        match event:
            case Stored(duplicate=True):
                last = request.sequence
            case Behind(last=last):
                pass
            case _:
                last = 0
        if last > request.own:
            request.queue.earlier = max(request.queue.earlier, last)

    def _not_stored(
        self, queue: OrderedQueue, event: Behind | Refused | Failed, now_ns: int
    ) -> list[Effect]:
        match event:
            case Behind(_, last):
                queue.resume_after(last, now_ns, self._jitter())
            case Failed(_, reason):
                queue.back_off(reason, now_ns, self._jitter())
            case Refused(request, reason):
                batch = queue.refuse(request)
                if batch is not None:
                    return [Quarantine(queue.key, batch, reason)]
        return []

    def _flush(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for queue in self._in_turn():
            queue.seal()
            effects += self._pump(queue, now_ns)
        return effects

    def _tick(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for queue in self._in_turn():
            if queue.open is not None and now_ns >= queue.opened_ns + self._limits.batch_age_ns:
                queue.seal()
            if queue.state is QueueState.WAITING and now_ns >= queue.retry_at_ns:
                queue.state = QueueState.FLOWING
            effects += self._pump(queue, now_ns)
        return effects

    def _in_turn(self) -> list[OrderedQueue]:
        if not self._urgent:
            return list(self._busy.values())
        return sorted(self._busy.values(), key=lambda queue: queue.key.origin not in self._urgent)

    def _has_room(self, queue: OrderedQueue) -> bool:
        if queue.key.origin in self._urgent:
            return self._flight_bytes < self._limits.flight_bytes_max
        share = self._limits.flight_bytes_max // URGENT_SHARE if self._urgent else 0
        return self._flight_bytes < min(self.window.size, self._limits.flight_bytes_max - share)

    def _pump(self, queue: OrderedQueue, now_ns: int) -> list[Effect]:
        """Send what the queue's window and the common one have room for; last for each event."""
        effects: list[Effect] = []
        while queue.can_send:
            if not self._has_room(queue):
                self._starved[queue.key] = None
                break
            self._request += 1
            own = queue.own
            previous, batch = queue.send(self._request)
            self._requests[self._request] = _Request(queue, batch.last, batch.size, now_ns, own)
            self._flight_bytes += batch.size
            effects.append(Publish(self._request, queue.key, previous, batch))
        if self.queues.get(queue.key) is not queue:  # a late answer to one that was forgotten
            return effects
        if queue.is_idle:
            self._busy.pop(queue.key, None)
        else:
            self._busy[queue.key] = queue
        return effects

    def _feed_starved(self, now_ns: int) -> list[Effect]:
        """Send for queues that found no room, the urgent first, else who waited longest."""
        effects: list[Effect] = []
        for key in sorted(self._starved, key=lambda key: key.origin not in self._urgent):
            queue = self.queues.get(key)
            if queue is None:
                del self._starved[key]
            elif self._has_room(queue):
                del self._starved[key]
                effects += self._pump(queue, now_ns)
            else:
                break
        return effects


def _flight_bytes(queue: OrderedQueue) -> int:
    return sum(flight.batch.size for flight in queue.flight)

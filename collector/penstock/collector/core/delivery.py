"""The delivery core: brings records of many lanes into the log, each once and in order.

It takes records that are already durable where they came from (the spool, or the file itself),
decides what to send when, and answers how far each origin is done. It never sends: effects say
what the shell must do, and every effect comes back as exactly one event:

    Publish     -> Stored | Behind | Refused | Failed
    Quarantine  -> Settled

After a crash the shell restores `done` per lane and reads each origin from its cursor on. Records
met again are skipped here as far as `done` knows, and by logd, which knows the rest.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from penstock.collector.core.batch import Batch, LaneKey, Limits
from penstock.collector.core.lane import Lane, LaneState


@dataclass(frozen=True, slots=True)
class Take:
    """Records read from an origin, in order; `records` is not used by the caller any more."""

    lane: LaneKey
    records: Batch


@dataclass(frozen=True, slots=True)
class Read:
    """Everything of an origin before `position` was taken, filtered or put in quarantine."""

    origin: str
    position: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Logd acknowledged the request's batch, as new or as a duplicate."""

    request: int


@dataclass(frozen=True, slots=True)
class Behind:
    """Logd refused the batch's previous sequence; `last` is the one it stored last."""

    request: int
    last: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The same batch can never be stored."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer, or one that says to try later."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Settled:
    """A refused batch is durably in quarantine."""

    lane: LaneKey
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


Event = Take | Read | Stored | Behind | Refused | Failed | Settled | Flush | Tick | Reconnected


@dataclass(frozen=True, slots=True)
class Publish:
    """Send a batch; `previous` is the producer's sequence before it."""

    request: int
    lane: LaneKey
    previous: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Make a refused batch durable in quarantine, then report `Settled`."""

    lane: LaneKey
    batch: Batch
    reason: str


Effect = Publish | Quarantine


class Delivery:
    """All lanes of one collector."""

    def __init__(
        self,
        limits: Limits,
        *,
        jitter: Callable[[], float],
        done: Mapping[LaneKey, int] | None = None,
    ) -> None:
        self._limits = limits
        self._jitter = jitter
        self.lanes: dict[LaneKey, Lane] = {}
        self._read: dict[str, int] = {}
        self._requests: dict[int, tuple[Lane, int]] = {}
        self._request = 0
        self._starved: dict[LaneKey, None] = {}
        self._flight_bytes = 0
        self.retired: dict[str, tuple[int, int, int]] = {}
        """Delivered, quarantined and repeated records of forgotten lanes by source."""
        for key, sequence in (done or {}).items():
            self.lanes[key] = Lane(key, limits, done=sequence, chain=sequence)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:  # noqa: PLR0911 - one an event
        """Apply one event; the returned effects are carried out in order."""
        match event:
            case Take(key, records):
                lane = self._lane(key)
                lane.take(records, now_ns)
                return self._pump(lane)
            case Read(origin, position):
                self._read[origin] = position
                return []
            case Stored() | Behind() | Refused() | Failed():
                return self._answered(event, now_ns)
            case Settled(key, batch):
                lane = self.lanes[key]
                lane.settled(batch)
                return self._pump(lane)
            case Flush():
                return self._flush()
            case Tick():
                return self._tick(now_ns)
            case Reconnected():
                for lane in self.lanes.values():
                    lane.retry_at_ns = now_ns
                return self._tick(now_ns)
        assert_never(event)

    def next_deadline_ns(self) -> int | None:
        """When the next batch is old enough or the next retry is due; None when neither waits."""
        deadlines = [
            lane.opened_ns + self._limits.batch_age_ns
            for lane in self.lanes.values()
            if lane.open is not None
        ]
        deadlines += [
            lane.retry_at_ns for lane in self.lanes.values() if lane.state is LaneState.WAITING
        ]
        return min(deadlines, default=None)

    def cursor(self, origin: str) -> int:
        """Every record of the origin before this position is done."""
        starts = (lane.start for key, lane in self.lanes.items() if key.origin == origin)
        pending = [start for start in starts if start is not None]
        return min(pending, default=self._read[origin])

    def done(self) -> dict[LaneKey, int]:
        """Per lane, the sequence up to which every record is done: what a restart needs."""
        return {key: lane.done for key, lane in self.lanes.items() if lane.done}

    @property
    def pending_bytes(self) -> int:
        """Bytes of records taken and not done."""
        return sum(batch.size for batch in self._pending())

    @property
    def pending_records(self) -> int:
        """Records taken and not done."""
        return sum(len(batch) for batch in self._pending())

    @property
    def troubles(self) -> dict[LaneKey, str]:
        """Lanes that cannot deliver now, and why."""
        return {key: lane.reason for key, lane in self.lanes.items() if lane.reason}

    def forget(self, origin: str) -> None:
        """Drop an origin that is read to its end and done, with its lanes."""
        for key in [key for key in self.lanes if key.origin == origin]:
            self._retire(key)
        self._read.pop(origin, None)

    def _lane(self, key: LaneKey) -> Lane:
        lane = self.lanes.get(key)
        if lane is None:
            if len(self.lanes) >= self._limits.lanes_max:
                self._retire_idle()
            lane = self.lanes[key] = Lane(key, self._limits)
        return lane

    def _retire_idle(self) -> None:
        """Forget lanes without pending records.

        A forgotten lane that comes back starts its chain at 0, is refused by logd and goes on from
        the sequence that logd names: one more round trip, nothing lost or repeated. One that may
        still be met again when reading from the cursor is safe for the same reason.
        """
        for key in [key for key, lane in self.lanes.items() if lane.start is None]:
            self._retire(key)

    def _retire(self, key: LaneKey) -> None:
        lane = self.lanes.pop(key)
        assert lane.start is None, key
        counts = (lane.delivered, lane.quarantined, lane.repeated)
        before = self.retired.get(key.source, (0, 0, 0))
        self.retired[key.source] = (
            before[0] + counts[0],
            before[1] + counts[1],
            before[2] + counts[2],
        )

    def _pending(self) -> Iterator[Batch]:
        for lane in self.lanes.values():
            yield from lane.pending()

    def _answered(self, event: Stored | Behind | Refused | Failed, now_ns: int) -> list[Effect]:
        lane, sequence = self._requests.pop(event.request)
        before = _flight_bytes(lane)
        effects: list[Effect] = []
        if isinstance(event, Stored):
            lane.stored(sequence)
        elif lane.is_current(event.request):
            effects = self._not_stored(lane, event, now_ns)
        self._flight_bytes += _flight_bytes(lane) - before
        effects += self._pump(lane)
        effects += self._feed_starved()
        return effects

    def _not_stored(
        self, lane: Lane, event: Behind | Refused | Failed, now_ns: int
    ) -> list[Effect]:
        match event:
            case Behind(_, last):
                lane.resume_after(last, now_ns, self._jitter())
            case Failed(_, reason):
                lane.back_off(reason, now_ns, self._jitter())
            case Refused(request, reason):
                batch = lane.refuse(request)
                if batch is not None:
                    return [Quarantine(lane.key, batch, reason)]
        return []

    def _flush(self) -> list[Effect]:
        effects: list[Effect] = []
        for lane in self.lanes.values():
            lane.seal()
            effects += self._pump(lane)
        return effects

    def _tick(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for lane in self.lanes.values():
            if lane.open is not None and now_ns >= lane.opened_ns + self._limits.batch_age_ns:
                lane.seal()
            if lane.state is LaneState.WAITING and now_ns >= lane.retry_at_ns:
                lane.state = LaneState.FLOWING
            effects += self._pump(lane)
        return effects

    def _pump(self, lane: Lane) -> list[Effect]:
        """Send what the lane's window and the common one have room for."""
        effects: list[Effect] = []
        while lane.can_send:
            if self._flight_bytes >= self._limits.flight_bytes_max:
                self._starved[lane.key] = None
                break
            self._request += 1
            previous, batch = lane.send(self._request)
            self._requests[self._request] = (lane, batch.last)
            self._flight_bytes += batch.size
            effects.append(Publish(self._request, lane.key, previous, batch))
        return effects

    def _feed_starved(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._starved and self._flight_bytes < self._limits.flight_bytes_max:
            key = next(iter(self._starved))
            del self._starved[key]
            if key in self.lanes:
                effects += self._pump(self.lanes[key])
        return effects


def _flight_bytes(lane: Lane) -> int:
    return sum(flight.batch.size for flight in lane.flight)

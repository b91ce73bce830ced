"""The emitter: takes records from the application and sees to it that they leave the process.

It never raises at the application and never waits for anyone. What it holds is bounded; when there
is no room, the least important and oldest record goes, and is counted:

    emitted = acked + dropped (by reason) + queued + in flight        for every kind

A forked child starts with an empty queue, a new ``service.instance.id`` and, at its first record, a
thread of its own; the records that were queued stay the parent's.
"""

import atexit
import os
import threading
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from penstock.specs import clock, limits
from penstock.specs.codec import to_wire
from penstock.specs.core.delivery import Delivery, DeliveryLimits
from penstock.specs.core.queue import RecordQueue, rank_of
from penstock.specs.envelope import Record
from penstock.specs.flusher import Flusher
from penstock.specs.links import Link, SocketLink, StreamLink
from penstock.specs.resource import fit_resource
from penstock.specs.scrub import Scrubber
from penstock.specs.sensitive import HashKey
from penstock.specs.subjects import KINDS
from penstock.specs.wire import encode_json

MS: Final = 1_000_000
HASH_KEY_VARIABLE: Final = "PENSTOCK_HASH_KEY"
_JOIN_S: Final = 1.0
_EMITTERS: "weakref.WeakSet[Emitter]" = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitterLimits:
    """What an emitter may hold, and how patient it is."""

    queue_records_max: int = limits.QUEUE_RECORDS_MAX
    queue_bytes_max: int = limits.QUEUE_BYTES_MAX
    batch_records_max: int = limits.BATCH_RECORDS_MAX
    batch_bytes_max: int = limits.BATCH_BYTES_MAX
    batch_age_ms: int = limits.BATCH_AGE_MS
    ack_timeout_ms: int = limits.ACK_TIMEOUT_MS
    backoff_min_ms: int = limits.BACKOFF_MIN_MS
    backoff_max_ms: int = limits.BACKOFF_MAX_MS

    def delivery(self) -> DeliveryLimits:
        """The part that the delivery core needs, in its units."""
        return DeliveryLimits(
            batch_records_max=self.batch_records_max,
            batch_bytes_max=self.batch_bytes_max,
            batch_age_ns=self.batch_age_ms * MS,
            ack_timeout_ns=self.ack_timeout_ms * MS,
            backoff_min_ns=self.backoff_min_ms * MS,
            backoff_max_ns=self.backoff_max_ms * MS,
        )


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of the records of one process so far.

    Attributes:
        emitted: Offered to the emitter, by kind.
        acked: Durable at the collector (or written, to a stream), by kind.
        dropped: Given up, by kind and reason.
        queued: Waiting, all kinds.
        in_flight: Sent and not answered yet, all kinds.
    """

    emitted: dict[str, int]
    acked: dict[str, int]
    dropped: dict[str, dict[str, int]]
    queued: int
    in_flight: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(slots=True)
class _State:
    """Everything that must be new in a forked child."""

    resource: dict[str, Any]
    queue: RecordQueue
    delivery: Delivery
    flusher: Flusher
    lock: Any
    busy: bool = False
    emitted: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    reentrant: Counter[str] = field(default_factory=Counter)


class Emitter:
    """Takes lines and brings them to the collector, or to a stream when there is no socket.

    Args:
        resource: Who emits; goes into each batch's header. ``service.instance.id`` is replaced in
            a forked child.
        socket_path: The collector's Unix socket. It need not exist yet.
        descriptor: Where lines go without a socket; 1 is standard output.
        limits: Bounds and times.
        scrubber: What becomes of sensitive values. By default the specs' actions, with the key of
            PENSTOCK_HASH_KEY; without one, pseudonyms go on as they are.

    Raises:
        SpecError: PENSTOCK_HASH_KEY is malformed.
    """

    def __init__(
        self,
        resource: Mapping[str, Any],
        *,
        socket_path: str | None = None,
        descriptor: int = 1,
        limits: EmitterLimits | None = None,
        scrubber: Scrubber | None = None,
    ) -> None:
        self.scrubber: Final = scrubber or _usual_scrubber()
        self._socket_path = socket_path
        self._descriptor = descriptor
        self._limits = limits or EmitterLimits()
        self._state = self._new_state(dict(resource))
        _EMITTERS.add(self)

    @property
    def resource(self) -> dict[str, Any]:
        """The resource of this process; it changes with a fork."""
        return self._state.resource

    def emit(self, kind: str, line: bytes, severity_number: int = 9) -> bool:
        """Offer one record's line, without its newline; False when it was dropped at once."""
        state = self._state
        if len(line) > limits.RECORD_BYTES_MAX or kind not in KINDS:
            self.lose(kind, "too_large" if kind in KINDS else "bad_kind")
            return False
        with state.lock:
            if state.busy:
                # A signal handler interrupted this very thread in here; the queue is half changed.
                state.reentrant[kind] += 1
                return False
            state.busy = True
            try:
                kept, wake = self._offer(state, kind, line, severity_number)
            finally:
                state.busy = False
        if wake:
            state.flusher.wake()
        return kept

    def emit_record(self, record: Record) -> bool:
        """Offer a record; False when it was dropped at once."""
        try:
            line = encode_json(self.scrubber.scrub(to_wire(record)))
        except Exception:  # noqa: BLE001 - the application must not fail because of its telemetry
            self.lose(record.kind, "not_encodable")
            return False
        return self.emit(record.kind, line, getattr(record, "severity_number", 9))

    def lose(self, kind: str, reason: str) -> None:
        """Count a record that could not even be offered."""
        state = self._state
        with state.lock:
            state.emitted[kind] += 1
            state.dropped[kind, reason] += 1

    def flush(self, timeout_s: float) -> bool:
        """Send all that is queued; True when all of it was answered in time."""
        state = self._state
        if state.busy:
            return False  # called by a signal handler that interrupted `emit`
        return state.flusher.flush(timeout_s)

    def counters(self) -> Counters:
        """What became of this process's records so far."""
        state = self._state
        with state.lock:
            return Counters(
                emitted=dict(state.emitted + state.reentrant),
                acked=dict(state.delivery.acked),
                dropped=_dropped(state),
                queued=state.queue.records,
                in_flight=state.delivery.in_flight,
            )

    def close(self, timeout_s: float = limits.EXIT_FLUSH_MS / 1000) -> bool:
        """Flush, then end the thread and the connection; the counters stay readable."""
        done = self.flush(timeout_s)
        self._state.flusher.stop(_JOIN_S)
        _EMITTERS.discard(self)
        return done

    def _offer(
        self, state: _State, kind: str, line: bytes, severity_number: int
    ) -> tuple[bool, bool]:
        """Whether the record was kept, and whether the flusher must look at the queue now."""
        queue = state.queue
        records, size = queue.records, queue.bytes
        state.emitted[kind] += 1
        dropped = queue.offer(kind, rank_of(kind, severity_number), line)
        for record in dropped:
            state.dropped[record.kind, "queue_full"] += 1
        state.flusher.ensure_started()
        bounds = self._limits
        full = (
            records < bounds.batch_records_max <= queue.records
            or size < bounds.batch_bytes_max <= queue.bytes
        )
        return not (dropped and dropped[-1].line is line), records == 0 or full

    def _new_state(self, resource: dict[str, Any]) -> _State:
        bounds = self._limits
        queue = RecordQueue(records_max=bounds.queue_records_max, bytes_max=bounds.queue_bytes_max)
        delivery = Delivery(queue, bounds.delivery())
        lock = threading.RLock()
        resource = fit_resource(resource)
        # Not the resource's id, which may come from the environment and be that of the process
        # before: the collector would take our first batches for repeats of its.
        sender = clock.instance_id()
        resource.setdefault("service.instance.id", sender)
        resource_json = encode_json(resource)
        link: Link
        if self._socket_path is None:
            link = StreamLink(self._descriptor, resource_json)
        else:
            link = SocketLink(self._socket_path, sender, resource_json)
        state_holder: list[_State] = []
        flusher = Flusher(delivery, link, lock, lambda: _dropped(state_holder[0]))
        state_holder.append(_State(resource, queue, delivery, flusher, lock))
        return state_holder[0]

    def _become_child(self) -> None:
        """After a fork: nothing that the parent's threads may have held is used again."""
        parent = self._state
        parent.flusher.abandon()
        resource = {**parent.resource, "service.instance.id": clock.instance_id()}
        if "process.pid" in resource:
            resource["process.pid"] = os.getpid()
        self._state = self._new_state(resource)


def _usual_scrubber() -> Scrubber:
    key = os.environ.get(HASH_KEY_VARIABLE)
    return Scrubber(HashKey.parse(key) if key else None, keyless="keep", values=False)


def _dropped(state: _State) -> dict[str, dict[str, int]]:
    """All drops by kind and reason; call with the state's lock held."""
    found: dict[str, dict[str, int]] = {}
    for (kind, reason), count in state.dropped.items():
        found.setdefault(kind, {})[reason] = count
    for reason, counts in (("refused", state.delivery.refused), ("reentrant", state.reentrant)):
        for kind, count in counts.items():
            found.setdefault(kind, {})[reason] = count
    return found


def _renew_after_fork() -> None:
    for emitter in list(_EMITTERS):
        emitter._become_child()  # noqa: SLF001 - this module's own


def _flush_at_exit() -> None:
    for emitter in list(_EMITTERS):
        emitter.flush(limits.EXIT_FLUSH_MS / 1000)


os.register_at_fork(after_in_child=_renew_after_fork)
atexit.register(_flush_at_exit)

"""The emitter: takes records from the application and sees to it that they leave the process.

It never raises at the application and never waits for anyone, unless its limits say so
(`EmitterLimits.max_block_ms`). What it holds is bounded; when there
is no room, the least important and oldest record goes, and is counted:

    emitted = acked + dropped (by reason) + queued + in flight        for every kind

A forked child starts with an empty queue, a new ``service.instance.id`` and, at its first record,
its own thread; the records that were queued stay the parent's.
"""

import atexit
import logging
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count as counter
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from penstock.base import clock
from penstock.specs import ids, limits
from penstock.specs.emit.delivery import exit_hooks, notices, unpatched
from penstock.specs.emit.delivery.config import MS, Counters, EmitterLimits
from penstock.specs.emit.delivery.core import Delivery
from penstock.specs.emit.delivery.exit_hooks import ProcessExit
from penstock.specs.emit.delivery.journal import AuditJournal
from penstock.specs.emit.delivery.queue import RecordQueue, kind_of, line_of, rank_of
from penstock.specs.emit.delivery.transport import Link, Report, SocketLink, StreamLink
from penstock.specs.emit.delivery.worker import DeliveryWorker
from penstock.specs.emit.log_writer import LogLines, LogWriter, encode_log
from penstock.specs.emit.sampling import Folder, Sampler
from penstock.specs.emit.system_metrics import MachineFacts
from penstock.specs.models.attributes import encodable
from penstock.specs.models.codec import encode_json, lift, to_wire
from penstock.specs.models.dimensions import Dimension
from penstock.specs.models.envelope import AT_EDGE, Record
from penstock.specs.models.log import DEFAULT_SEVERITY
from penstock.specs.models.resource import DROPPED, fit_and_count
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.redact.sensitivity import HashKey
from penstock.specs.subjects import KINDS

FULL: Final = "queue_full"
WANTED: Final = frozenset({"sampled", "repeated"})
"""Reasons of drops that lose nothing that was to be kept."""
HASH_KEY_VARIABLE: Final = "PENSTOCK_HASH_KEY"
_RANKS: Final = {kind: tuple(rank_of(kind, number) for number in range(25)) for kind in KINDS}
"""Each kind's rank by severity number."""
_JOIN_S: Final = 1.0
_RELEASE_MS: Final = 1000
"""Pause between looks at what was folded."""
_LOGGER: Final = logging.getLogger("penstock.specs")
_EMITTERS: "weakref.WeakSet[Emitter]" = weakref.WeakSet()
"""Emitters in use, which are flushed when the process ends."""
_ALL: "weakref.WeakSet[Emitter]" = weakref.WeakSet()
"""All emitters, closed ones included: each has another sender id in a forked child."""

MakeLink = Callable[[str, bytes], Link]
"""Makes the way out of a process: of the sender's id and the resource as JSON."""


@dataclass(slots=True)
class _State:
    """Everything that must be new in a forked child."""

    resource: dict[str, Any]
    queue: RecordQueue
    delivery: Delivery
    link: Link
    flusher: DeliveryWorker
    lock: Any
    audit: AuditJournal | None = None
    adopted: Sequence[AuditJournal] = ()
    busy: bool = False
    acked_at_timeout: int = -1
    passing: int = -1
    dropped_said: int = 0
    emitted: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    reentrant: Counter[str] = field(default_factory=Counter)

    @property
    def workers(self) -> Sequence[DeliveryWorker]:
        """Workers that send this process's own records."""
        return (self.flusher,) if self.audit is None else (self.flusher, self.audit)

    @property
    def journals(self) -> Sequence[AuditJournal]:
        return self.adopted if self.audit is None else (self.audit, *self.adopted)


class Emitter:
    """Takes lines and brings them to the collector, or to a stream when there is no socket.

    Args:
        resource: Resource that emits; goes into each batch's header. ``service.instance.id`` is
            replaced in a forked child.
        socket_path: The collector's Unix socket. It need not exist yet.
        descriptor: File descriptor of lines without a socket; 1 is standard output.
        link: Another way out than these two.
        limits: Bounds and times.
        scrubber: Treatment of sensitive values. By default the specs' actions, with the key of
            PENSTOCK_HASH_KEY; without one, pseudonyms go on unchanged.
        sampling: The share of traces whose logs and spans are kept, above 0 and up to 1. Errors,
            metrics, events, audit and what belongs to no trace are always kept.
        machine_facts: Whether records carry what the machine is doing.
        spill_dir: Directory in which audit records wait for the collector, in their own journal.
            Without, they share the queue, and are the last to be dropped.
        encode: Makes what `link` takes for a log record's line.

    Raises:
        SpecError: PENSTOCK_HASH_KEY is malformed.
        ValueError: `sampling` is not a share.
    """

    def __init__(  # noqa: PLR0913 - all are optional and named
        self,
        resource: Mapping[str, Any],
        *,
        socket_path: str | None = None,
        descriptor: int = 1,
        link: MakeLink | None = None,
        limits: EmitterLimits | None = None,
        scrubber: Scrubber | None = None,
        sampling: float = 1.0,
        machine_facts: bool = False,
        spill_dir: Path | None = None,
        encode: Callable[[dict[str, Any]], bytes] = encode_log,
    ) -> None:
        self.scrubber: Final = scrubber or usual_scrubber()
        self.sampler: Final = Sampler(sampling) if sampling != 1 else None
        self.facts: Final = MachineFacts() if machine_facts else None
        self._cardinality = Cardinality()
        self._limits = limits or EmitterLimits()
        self._max_batch_records = self._limits.max_batch_records
        self._max_batch_bytes = self._limits.max_batch_bytes
        self._max_block_ms = self._limits.max_block_ms
        max_repeats = self._limits.max_repeats
        self.logs: Final = LogWriter(
            self,
            LogLines(self.scrubber, self.facts),
            self.sampler,
            Folder(max_repeats) if max_repeats else None,
            encode,
        )
        self._spill_dir = spill_dir if socket_path is not None and link is None else None
        self._socket_path = socket_path
        self._make_link = link or _usual_link(socket_path, descriptor)
        self._state = self._new_state(dict(resource), adopts=True)
        _EMITTERS.add(self)
        _ALL.add(self)

    @property
    def process_exit(self) -> ProcessExit:
        """The end of the process, in which this emitter is flushed with all others."""
        return PROCESS_EXIT

    @property
    def resource(self) -> dict[str, Any]:
        """The resource of this process; it changes with a fork."""
        return self._state.resource

    @property
    def is_busy(self) -> bool:
        """True if this thread is inside the emitter already; signal handlers check it."""
        owned: bool = self._state.lock._is_owned()  # noqa: SLF001 - as `threading` asks
        return owned

    def emit(self, kind: str, line: bytes, severity_number: int = DEFAULT_SEVERITY) -> bool:
        """Offer one record's line, without its newline; False when it was dropped at once."""
        state = self._state
        if self._max_block_ms and state.passing != unpatched.thread_id():
            return self._emit_when_there_is_room(kind, line, severity_number)
        ranks = _RANKS.get(kind)
        if ranks is None or len(line) > limits.RECORD_BYTES_MAX:
            self.record_drop(kind, "too_large" if ranks else "bad_kind")
            return False
        late = False
        rank = ranks[severity_number] if 0 <= severity_number < len(ranks) else ranks[-1]
        if kind == "audit" and state.audit is not None:
            return state.audit.offer(line)
        queue = state.queue
        with state.lock:
            if state.busy:
                # A signal handler interrupted this very thread in here; the queue is half changed.
                state.reentrant[kind] += 1
                return False
            state.busy = True
            try:
                state.emitted[kind] += 1
                records, size = queue.records, queue.held_bytes
                dropped = queue.offer(kind, rank, line)
                if dropped:
                    state.dropped.update((kind_of(record), FULL) for record in dropped)
                if not state.flusher.is_started:
                    late = self._start()
            finally:
                state.busy = False
        if late and not self.is_busy:
            self.process_exit.flush_late(self)
        if (
            records == 0
            or records < self._max_batch_records <= queue.records
            or size < self._max_batch_bytes <= queue.held_bytes
        ):
            state.flusher.wake()
        return not (dropped and line_of(dropped[-1]) is line)

    def _emit_when_there_is_room(self, kind: str, line: bytes, severity_number: int) -> bool:
        state = self._state
        taken = False
        until_ns = clock.monotonic_ns() + self._max_block_ms * MS
        while True:
            with state.lock:
                acked = state.delivery.acked.total()
                left_ns = until_ns - clock.monotonic_ns()
                if (
                    state.busy
                    or state.queue.has_room(len(line))
                    or state.acked_at_timeout == acked
                    or state.flusher.is_own_thread
                ):
                    state.passing = unpatched.thread_id()
                    try:
                        taken = self.emit(kind, line, severity_number)
                    finally:
                        state.passing = -1
                    break
                if left_ns <= 0:
                    state.acked_at_timeout = acked
                    continue
                state.flusher.ensure_started()
                waiter = state.flusher.room()
            state.flusher.wake()
            waiter.acquire(timeout=left_ns / 1e9)
        if state.flusher.is_inline:
            self.process_exit.flush_late(self)
        return taken

    def _start(self) -> bool:
        """Start the thread; True where there is none any more, since the process ends."""
        flusher = self._state.flusher
        flusher.ensure_started()
        _EMITTERS.add(self)  # one that was closed is in use again
        return flusher.is_inline

    def emit_record(self, record: Record) -> bool:
        """Offer a record; False when it was dropped at once."""
        try:
            fields = to_wire(record)
            if record.kind == "metric" and record.own_fields:
                try:
                    self._cardinality.fold(type(record), fields)
                except ValueError:
                    self.record_drop(record.kind, "dimension_overflow")
                    return False
        except Exception:  # noqa: BLE001 - the application must not fail because of its telemetry
            self.record_drop(record.kind, "not_encodable")
            return False
        return self.emit_fields(fields, getattr(record, "severity_number", DEFAULT_SEVERITY))

    def emit_fields(
        self, fields: dict[str, Any], severity_number: int, resource_json: bytes | None = None
    ) -> bool:
        """Redact a record's JSON object and offer it; False when it was dropped at once.

        The one place where records are redacted, but for log records that loggers make, which
        `LogLines` redacts by parts.

        Args:
            fields: The record, as it goes onto the wire.
            severity_number: Its importance.
            resource_json: Its resource, where that is not the emitter's.
        """
        try:
            redacted = self.scrubber.scrub(fields)
            try:
                line = encode_json(redacted)
            except (TypeError, ValueError):
                line = encode_json(encodable(redacted))
        except Exception:  # noqa: BLE001 - the application must not fail because of its telemetry
            self.record_drop(fields["kind"], "not_encodable")
            return False
        if resource_json is not None:
            line = line[:-1] + b',"resource":' + resource_json + b"}"
        return self.emit(fields["kind"], line, severity_number)

    def record_drop(self, kind: str, reason: str, count: int = 1) -> None:
        """Count records that could not, or were not to, be offered."""
        state = self._state
        with state.lock:
            state.emitted[kind] += count
            state.dropped[kind, reason] += count

    def flush(self, timeout_s: float) -> bool:
        """Send all that is queued; True when all of it was answered in time."""
        state = self._state
        if self.is_busy:
            return False  # called by a signal handler that interrupted the emitter
        self.logs.release(everything=True)
        until_ns = clock.monotonic_ns() + int(timeout_s * 1e9)
        done = True
        for worker in state.workers:
            left_s = max(0.0, (until_ns - clock.monotonic_ns()) / 1e9)
            done = worker.flush(left_s) and done
        return done

    def counters(self) -> Counters:
        """Return the counts of this process's records."""
        state = self._state
        with state.lock:
            counters = Counters(
                emitted=dict(state.emitted + state.reentrant),
                acked=dict(state.delivery.acked),
                dropped=_dropped(state),
                queued=state.queue.records,
                in_flight=state.delivery.in_flight,
                folded=dict(self._cardinality.folded),
                keyless=dict(self.scrubber.keyless),
            )
        return counters if state.audit is None else state.audit.counted(counters)

    def lost(self, *, waiting: bool = True) -> dict[str, int]:
        """Records that are lost if the process ends now, by reason; all kinds.

        What was left out on purpose is not, nor are audit records, which a journal keeps.

        Args:
            waiting: Count those, too, that nobody has answered so far.
        """
        counters = self.counters()
        found: Counter[str] = Counter()
        for reasons in counters.dropped.values():
            found.update({reason: n for reason, n in reasons.items() if reason not in WANTED})
        if waiting:
            kept = 0 if self._state.audit is None else self._state.audit.held
            found["not delivered"] = counters.queued + counters.in_flight - kept
        return {reason: count for reason, count in found.items() if count > 0}

    def close(self, timeout_s: float = limits.EXIT_FLUSH_MS / 1000) -> bool:
        """Flush, then end the thread and the connection; the counters stay readable."""
        done = self.flush(timeout_s)
        self._state.flusher.stop(_JOIN_S)
        for journal in self._state.journals:
            journal.close(_JOIN_S)
        _EMITTERS.discard(self)
        return done

    @property
    def no_listener(self) -> bool:
        """True if no collector has answered so far, so that `flush` need not wait."""
        return all(worker.no_listener for worker in self._state.workers)

    @property
    def trouble(self) -> str:
        """Why records did not leave the process when they last did not, for people; or nothing."""
        return self._state.link.trouble

    @property
    def socket_path(self) -> str | None:
        """The collector's; None where records go elsewhere."""
        return self._socket_path

    @property
    def destination(self) -> str:
        """The place records go to, for people."""
        return self._state.link.peer

    def remove_empty_journal(self) -> None:
        """Remove the journal if it is empty; called at the end of the process."""
        for journal in self._state.journals:
            journal.remove_empty()

    def end(self) -> None:
        """Let threads that emit send their records themselves; called at the end of the process."""
        self._state.flusher.end(_JOIN_S)

    def _new_state(self, resource: dict[str, Any], *, adopts: bool = False) -> _State:
        bounds = self._limits
        queue = RecordQueue(records_max=bounds.max_queue_records, bytes_max=bounds.max_queue_bytes)
        delivery = Delivery(queue, bounds)
        lock = unpatched.reentrant_lock()
        resource, left_out = fit_and_count(resource)
        if left_out:
            _LOGGER.warning(
                "the resource is too large: %d of its attributes are left out of every record, "
                "which say so as %s; see OTEL_RESOURCE_ATTRIBUTES", left_out, DROPPED,
            )  # fmt: skip
        # Not the resource's id, which may come from the environment and be that of the process
        # before: the collector would take our first batches for repeats of its.
        sender = ids.instance_id()
        resource.setdefault("service.instance.id", sender)
        state_holder: list[_State] = []
        link = self._make_link(sender, encode_json(resource))
        flusher = DeliveryWorker(
            delivery,
            link,
            lock,
            lambda: _report(state_holder[0]),
            self._look_after,
        )
        state = _State(resource, queue, delivery, link, flusher, lock)
        state_holder.append(state)
        if self._spill_dir is not None and self._socket_path is not None:
            where = self._spill_dir, self._socket_path
            state.audit = AuditJournal.of_process(
                *where, sender=sender, resource_json=encode_json(resource), bounds=bounds
            )
            state.adopted = AuditJournal.adopt(*where, bounds) if adopts else ()
        return state

    def _look_after(self) -> int | None:
        """Now and then, in the thread: what was folded, and what had to be dropped."""
        holds = self.logs.release()
        state = self._state
        dropped = sum(count for (_, reason), count in state.dropped.items() if reason == FULL)
        if dropped > state.dropped_said and notices.say(
            f"full {state.link.peer}",
            f"{notices.pluralized(dropped)} dropped so far because the queue was full: the"
            f" application emits faster than {state.link.peer} takes. EmitterLimits has"
            " max_queue_records, max_queue_bytes and max_block_ms; specs.doctor() tells more.",
        ):
            state.dropped_said = dropped
        return _RELEASE_MS if holds else None

    def _become_child(self) -> None:
        """After a fork: nothing that the parent's threads may have held is used again."""
        parent = self._state
        for worker in (parent.flusher, *parent.journals):
            worker.after_fork()
        resource = {**parent.resource, "service.instance.id": ids.instance_id()}
        if "process.pid" in resource:
            resource["process.pid"] = os.getpid()
        self.logs.renew()
        self._state = self._new_state(resource)


def _usual_link(socket_path: str | None, descriptor: int) -> MakeLink:
    if socket_path is None:
        return lambda _, resource_json: StreamLink(descriptor, resource_json)
    return lambda sender, resource_json: SocketLink(socket_path, sender, resource_json)


def usual_scrubber(*, is_last: bool = False) -> Scrubber:
    """Make the scrubber with the key of PENSTOCK_HASH_KEY.

    Args:
        is_last: No collector comes behind that searches values, and makes pseudonyms with its key.

    Raises:
        SpecError: PENSTOCK_HASH_KEY is malformed.
    """
    key = os.environ.get(HASH_KEY_VARIABLE)
    return Scrubber(
        HashKey.parse(key) if key else None,
        keyless="redact" if is_last else "defer",
        values=is_last,
    )


def _dropped(state: _State) -> dict[str, dict[str, int]]:
    """Return all drops by kind and reason; call with the state's lock held."""
    found: dict[str, dict[str, int]] = {}
    for (kind, reason), count in state.dropped.items():
        found.setdefault(kind, {})[reason] = count
    for reason, counts in (("refused", state.delivery.refused), ("reentrant", state.reentrant)):
        for kind, count in counts.items():
            found.setdefault(kind, {})[reason] = count
    return found


def _report(state: _State) -> Report:
    """Return what a batch's header says; call with the state's lock held."""
    return Report(
        dropped=_dropped(state),
        emitted=state.emitted.total() + state.reentrant.total(),
        acked=state.delivery.acked.total(),
        queued=state.queue.records,
    )


PROCESS_EXIT: Final = ProcessExit(_EMITTERS)
"""The end of this process."""


def _renew_after_fork() -> None:
    for emitter in list(_ALL):
        emitter._become_child()  # noqa: SLF001 - this module's own
    exit_hooks.register_child_exit(PROCESS_EXIT.end_child)


os.register_at_fork(after_in_child=_renew_after_fork)
atexit.register(PROCESS_EXIT.flush_last)
PROCESS_EXIT.flush_first(PROCESS_EXIT.flush_last)
exit_hooks.register_child_exit(PROCESS_EXIT.end_child)
exit_hooks.register_process_exit(PROCESS_EXIT.end_child)


OVERFLOW: Final = "__other__"
"""Replaces values beyond the cap. A dimension that cannot hold it is left out, if it may be."""


class Cardinality:
    """The values of metrics' dimensions that a process has seen. It takes no lock.

    It knows as many values of a dimension as its `Dimension` allows; what comes later goes out
    under `OVERFLOW`. Of a value only its hash is kept, so that memory is bounded in bytes, too: two
    values with one hash are a chance of one in 10**16, and cost one series.

    Attributes:
        folded: Values that went out as `OVERFLOW`, or not at all, by the dimension's attribute.
    """

    def __init__(self) -> None:
        self.folded: Final[Counter[str]] = Counter()
        self._seen: dict[tuple[str, str], _Seen] = {}

    def fold(self, model: type[Record], fields: dict[str, Any]) -> None:
        """Change, in a record's JSON object, what is beyond a cap; tells of each dimension once.

        Raises:
            ValueError: A dimension that has to be there, and cannot say `OVERFLOW`, is beyond it.
        """
        for key, cap in _caps(model):
            value = fields.get("attributes", {}).get(key)
            if value is None:
                continue
            seen = self._seen.get((model.spec, key))
            if seen is None:
                seen = self._seen.setdefault((model.spec, key), _Seen(cap))
            if not seen.takes(value):
                self.folded[key] += 1
                if self.folded[key] == 1:
                    _LOGGER.warning(
                        "%s: %s has more than %d values; the others go out as %s. Raise its cap,"
                        " or put what has so many on an event", model.spec, key, cap, OVERFLOW,
                    )  # fmt: skip
                seen.fold(model, fields, key)


class _Seen:
    """The values of one dimension."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._numbers: dict[int, int] = {}
        self._next = counter()
        self._overflow: list[Any] = []

    def takes(self, value: Any) -> bool:
        """Return whether a value is among the first `cap` distinct ones.

        Threads that meet here get different numbers, hence never more than the cap in all.
        """
        mark = hash((type(value), tuple(value) if isinstance(value, list) else value))
        if mark in self._numbers:
            return True
        if len(self._numbers) >= self._cap:
            return False
        if self._numbers.setdefault(mark, next(self._next)) < self._cap:
            return True
        self._numbers.pop(mark, None)
        return False

    def fold(self, model: type[Record], fields: dict[str, Any], key: str) -> None:
        """Say the overflow in the value's place: the first that the spec accepts, found once."""
        candidates = self._overflow or [OVERFLOW, [OVERFLOW], None]
        for candidate in candidates:
            attributes = {**fields["attributes"], key: candidate}
            if candidate is None:
                del attributes[key]
            changed = {**fields, "attributes": attributes}
            if self._overflow or _is_right(model, changed):
                self._overflow = [candidate]
                fields["attributes"] = attributes
                return
        raise ValueError(f"{key} has more values than its cap, and cannot say so")


@lru_cache(maxsize=1024)
def _caps(model: type[Record]) -> tuple[tuple[str, int], ...]:
    """Attribute and cap of each dimension that has one."""
    return tuple(
        (key, rule.max_cardinality)
        for name, key in model.own_fields.items()
        for rule in model.model_fields[name].metadata
        if isinstance(rule, Dimension)
    )


def _is_right(model: type[Record], fields: dict[str, Any]) -> bool:
    try:
        model.model_validate(lift(model, fields), context=AT_EDGE)
    except ValidationError:
        return False
    return True

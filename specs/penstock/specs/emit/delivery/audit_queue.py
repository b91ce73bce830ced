"""Audit records' own way to the collector: never sampled, never crowded out, journalled, acked.

Each process has a journal of its own, made with its first audit record. A record is in it before
`offer` returns, and leaves it when the collector has acknowledged it. Journals of processes that
died are adopted and delivered, under their own sender and resource. The journal is capped: when the
collector has been away for so long that it is full, `offer` says False, and it is counted.

What the collector does not acknowledge soon is brought to the disk, by this queue's thread; what is
said meanwhile shares the next sync. Who must know that a record is there can wait for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from penstock.specs import clock, limits
from penstock.specs.emit.delivery import unpatched
from penstock.specs.emit.delivery.config import MS, Counters, EmitterLimits
from penstock.specs.emit.delivery.core import Acked, Delivery
from penstock.specs.emit.delivery.queue import Held
from penstock.specs.emit.delivery.spill import Spill
from penstock.specs.emit.delivery.spill_file import SpillFile, boot_id, journal_name, orphans
from penstock.specs.emit.delivery.transport import Answer, SocketLink
from penstock.specs.emit.delivery.worker import DeliveryWorker

KIND: Final = "audit"
FULL: Final = "spill_full"


class AuditQueue:
    """The lanes of one process: its own, and those that it adopted.

    Args:
        directory: Where journals lie; it must be usable.
        socket_path: The collector's.
        sender: Of the process.
        resource_json: Of its records.
        bounds: The emitter's.
        adopts: Whether journals of processes that died are looked for.
    """

    def __init__(
        self,
        directory: Path,
        socket_path: str,
        *,
        sender: str,
        resource_json: bytes,
        bounds: EmitterLimits,
        adopts: bool,
    ) -> None:
        spill = Spill(bounds.spill_bytes_max, resource_json)
        boot = boot_id()
        file = SpillFile(directory / journal_name(sender, boot), spill)
        self._own = JournalSender(file, socket_path, bounds)
        found = orphans(directory, bounds.spill_bytes_max, boot) if adopts else iter(())
        self._adopted = [
            JournalSender(orphan, socket_path, bounds)
            for orphan in islice(found, limits.SPILL_FILES_ADOPTED_MAX)
        ]
        for journal in self._adopted:
            journal.start()

    def counted(self, others: Counters) -> Counters:
        """The account of all kinds."""
        own = self._own
        if not own.emitted:
            return others
        reasons = {FULL: own.full, "refused": own.refused}
        dropped = {reason: count for reason, count in reasons.items() if count}
        return replace(
            others,
            emitted={**others.emitted, KIND: others.emitted.get(KIND, 0) + own.emitted},
            acked={**others.acked, KIND: others.acked.get(KIND, 0) + own.acked},
            dropped={**others.dropped, KIND: {**others.dropped.get(KIND, {}), **dropped}}
            if dropped
            else others.dropped,
            queued=others.queued + own.held - own.in_flight,
            in_flight=others.in_flight + own.in_flight,
        )

    def offer(self, line: bytes) -> bool:
        """Take one record; False when the journal is full."""
        return self._own.offer(line)

    def flush(self, timeout_s: float) -> bool:
        """Wait until this process's records are acknowledged."""
        return self._own.flush(timeout_s)

    @property
    def held(self) -> int:
        """Records that this process's journal holds."""
        return self._own.held

    @property
    def no_listener(self) -> bool:
        """Whether there is nobody to wait for."""
        return self._own.no_listener

    def close(self, timeout_s: float) -> None:
        """End all lanes; what is not acknowledged stays in the journals."""
        for journal in (self._own, *self._adopted):
            journal.close(timeout_s)

    def remove_empty_journal(self) -> None:
        """At the end of the process: delete journals of which nothing is left."""
        for journal in (self._own, *self._adopted):
            journal.remove_empty_journal()

    def after_fork(self) -> None:
        """In a forked child: they are the parent's."""
        for journal in (self._own, *self._adopted):
            journal.after_fork()


class JournalSender:
    """One journal and its way to the collector."""

    def __init__(self, file: SpillFile, socket_path: str, bounds: EmitterLimits) -> None:
        self._file = file
        self._lock = unpatched.reentrant_lock()
        self._busy = False
        self._late: list[bytes] = []
        self._sync_ns = bounds.audit_sync_ms * MS
        self._wait_s = bounds.audit_wait_ms / 1000
        self._unsynced_since_ns: int | None = None
        self._waiting: list[tuple[int, Any]] = []
        self._queue = JournalQueue(file)
        spill = file.spill
        self._delivery = Delivery(
            self._queue, bounds.delivery(), sequence=spill.sequence, flight=spill.batch()
        )
        link = JournalLink(socket_path, file, self._lock)
        self._flusher = DeliveryWorker(self._delivery, link, self._lock, self._dropped, self._sync)
        self.emitted = 0
        self.full = 0

    @property
    def acked(self) -> int:
        """Records that the collector holds durably; call with the lock held, or at rest."""
        return self._delivery.acked[KIND]

    @property
    def held(self) -> int:
        """Records that wait, or are on their way."""
        return self._file.spill.held

    @property
    def in_flight(self) -> int:
        """Records that are on their way."""
        return self._file.spill.flight

    @property
    def refused(self) -> int:
        """Records that the collector has refused for good."""
        return self._delivery.refused[KIND]

    @property
    def no_listener(self) -> bool:
        """Whether nobody was ever there to acknowledge it, or it is acknowledged."""
        return self._flusher.no_listener

    def start(self) -> None:
        """Deliver what an adopted journal holds."""
        with self._lock:
            self._flusher.ensure_started()
            self._delivery.flush_now()
            self._unsynced_since_ns = clock.monotonic_ns()
        self._flusher.wake()

    def offer(self, line: bytes) -> bool:
        """Take one record, also in a signal handler that interrupted this very method."""
        with self._lock:
            if self._busy:
                self._late.append(line)
                return True
            self._busy = True
            try:
                taken = self._take(line)
                while self._late:
                    self._take(self._late.pop(0))
            finally:
                self._busy = False
            waits = taken and self._wait_s > 0
            synced = self._wait_for(self._file.written) if waits else None
        self._flusher.wake()
        if synced is not None and not self._lock._is_owned():  # noqa: SLF001 - as `threading` asks
            synced.acquire(timeout=self._wait_s)
            with self._lock:
                self._waiting = [waiting for waiting in self._waiting if waiting[1] is not synced]
        return taken

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged."""
        return self._flusher.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """End the thread; a journal of which nothing is left is deleted."""
        self._flusher.stop(timeout_s)
        self.remove_empty_journal()
        with self._lock:
            self._file.forget()

    def remove_empty_journal(self) -> None:
        """Delete a journal of which nothing is left; another record would make another."""
        with self._lock:
            if not self._file.spill.held:
                self._file.remove()

    def after_fork(self) -> None:
        """In a forked child: close this process's copies of the descriptors."""
        self._flusher.after_fork()
        self._file.after_fork()

    def _take(self, line: bytes) -> bool:
        self.emitted += 1
        entry = self._file.spill.offer(line)
        if entry is None:
            self.full += 1
            return False
        self._file.append(entry)
        if self._unsynced_since_ns is None:
            self._unsynced_since_ns = clock.monotonic_ns()
        self._flusher.ensure_started()
        return True

    def _wait_for(self, written: int) -> Any:
        """A lock that is released when so many entries are on the disk."""
        synced = unpatched.allocate_lock()
        synced.acquire()
        self._waiting.append((written, synced))
        return synced

    def _sync(self) -> int | None:
        """Bring the journal to the disk when it is time; in how many milliseconds to ask again.

        This queue's thread does so, without the lock: later records share the next sync.
        """
        with self._lock:
            opened = self._due()
        if isinstance(opened, int) or opened is None:
            return opened
        descriptor, number, written = opened
        done = self._file.sync(descriptor)
        with self._lock:
            self._file.was_synced(number, written, done=done)
            more = self._file.synced < self._file.written
            self._unsynced_since_ns = clock.monotonic_ns() if more else None
            self._release(self._file.synced)
        return self._sync_ns // MS if more else None

    def _due(self) -> tuple[int, int, int] | int | None:
        """What to sync now; or in how many milliseconds, if at all. Call with the lock held."""
        if not self._file.spill.held:  # the collector has it all
            self._unsynced_since_ns = None
            self._release(self._file.written)
        if self._unsynced_since_ns is None:
            return None
        left_ns = self._unsynced_since_ns + self._sync_ns - clock.monotonic_ns()
        if left_ns > 0 and not self._waiting:
            return -(-left_ns // MS)
        return self._file.opened() or max(1, self._sync_ns // MS)

    def _release(self, synced: int) -> None:
        """Let go of those whose records are on the disk, and who still wait."""
        late = [waiting for waiting in self._waiting if waiting[0] > synced]
        for written, lock in self._waiting:
            if written <= synced:
                lock.release()
        self._waiting = late

    def _dropped(self) -> dict[str, dict[str, int]]:
        return {KIND: {FULL: self.full}} if self.full else {}


class JournalQueue:
    """What `Delivery` takes its batches from; each is in the journal before it is sent."""

    def __init__(self, file: SpillFile) -> None:
        self._file = file

    @property
    def records(self) -> int:
        """Records that wait."""
        return self._file.spill.records

    @property
    def bytes(self) -> int:
        """Bytes that are not settled."""
        return self._file.spill.held_bytes

    def take(self, *, records_max: int, bytes_max: int) -> Sequence[Held]:
        """The next batch."""
        taken, entry = self._file.spill.send(records_max=records_max, bytes_max=bytes_max)
        self._file.append(entry)
        return taken


class JournalLink(SocketLink):
    """The collector's socket; answers are in the journal before anyone hears of them."""

    def __init__(self, path: str, file: SpillFile, lock: Any) -> None:
        super().__init__(path, file.path.stem, file.spill.resource_json)
        self._file = file
        self._lock = lock

    @override
    def pump(self) -> list[Answer]:
        answers = super().pump()
        for answer in answers:
            if isinstance(answer, Acked) or not answer.retry:
                self._settle(answer.sequence)
        return answers

    def _settle(self, sequence: int) -> None:
        with self._lock:
            entry = self._file.spill.settle(sequence)
            if entry is not None:
                self._file.append(entry)
                self._file.shrink()

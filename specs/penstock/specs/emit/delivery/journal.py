"""The audit journal: the queue of audit records, which is on disk until the collector has them.

It is delivered as the emitter's other records are, by a `DeliveryWorker` over a connection of its
own: never sampled, never crowded out. A record is in the file before `offer` returns, and leaves it
when the collector has acknowledged it. The file is capped: when the collector has been away for so
long that it is full, `offer` says False, and it is counted.

What the collector does not acknowledge soon is brought to the disk by the journal's thread; what is
said meanwhile shares the next sync. A caller that must know that a record is there can wait for it.

Each process has its own file, made with its first audit record and locked while the process
lives. Files of processes that died are adopted and delivered, under their own sender and resource.
A file's name is its sender's: ``<the process's id>-<the boot's>-audit.spill``. The entry that says
what was sent may not be on the disk when power fails, and what is sent again under a sequence that
the collector knows is lost unless it is the same. So a file of an earlier boot is adopted under
another name: what it holds arrives at least once. Within a boot it arrives once.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

from typing_extensions import override

from penstock.base import clock
from penstock.base.files import sync_directories
from penstock.specs import ids, limits
from penstock.specs.emit.delivery import unpatched
from penstock.specs.emit.delivery.config import MS, Counters, EmitterLimits
from penstock.specs.emit.delivery.core import Delivery
from penstock.specs.emit.delivery.queue import Held
from penstock.specs.emit.delivery.spill import Spill
from penstock.specs.emit.delivery.transport import Report, SocketLink
from penstock.specs.emit.delivery.worker import DeliveryWorker

KIND: Final = "audit"
FULL: Final = "spill_full"
SUFFIX: Final = ".spill"
_NAME: Final = "-audit" + SUFFIX
_MODE: Final = 0o600
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_BOOT_CHARACTERS: Final = 8


class AuditJournal(DeliveryWorker):
    """The worker whose queue is a `SpillFile`; it syncs the file between its batches."""

    def __init__(self, file: "SpillFile", socket_path: str, bounds: EmitterLimits) -> None:
        self._file = file
        self._lock = unpatched.reentrant_lock()
        self._busy = False
        self._late: list[bytes] = []
        self._sync_ns = bounds.audit_sync_ms * MS
        self._wait_s = bounds.audit_wait_ms / 1000
        self._unsynced_since_ns: int | None = None
        self._waiting: list[tuple[int, Any]] = []
        self._emitted = 0
        self._full = 0
        spill = file.spill
        self._adopted = spill.held
        delivery = Delivery(file, bounds, sequence=spill.sequence, flight=spill.batch())
        link = SocketLink(socket_path, file.path.stem, spill.resource_json)
        super().__init__(delivery, link, self._lock, self._said, self._sync)

    @classmethod
    def of_process(
        cls, directory: Path, socket_path: str, *, sender: str, resource_json: bytes,
        bounds: EmitterLimits,
    ) -> Self:  # fmt: skip
        """The journal that this process's audit records go to."""
        spill = Spill(bounds.max_spill_bytes, resource_json)
        return cls(
            SpillFile(directory / journal_name(sender, boot_id()), spill), socket_path, bounds
        )

    @classmethod
    def adopt(cls, directory: Path, socket_path: str, bounds: EmitterLimits) -> list[Self]:
        """Journals of processes that died, which are delivered from now on."""
        found = orphans(directory, bounds.max_spill_bytes, boot_id())
        adopted = [cls(file, socket_path, bounds)
                   for file in islice(found, limits.SPILL_FILES_ADOPTED_MAX)]  # fmt: skip
        for journal in adopted:
            journal.deliver()
        return adopted

    @property
    def held(self) -> int:
        """Records that wait, or are on their way."""
        return self._file.spill.held

    def offer(self, line: bytes) -> bool:
        """Take one record, also in a signal handler that interrupted this very method.

        Returns:
            False when the journal is full.
        """
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
        self.wake()
        if synced is not None and not self._lock._is_owned():  # noqa: SLF001 - as `threading` asks
            synced.acquire(timeout=self._wait_s)
            with self._lock:
                self._waiting = [waiting for waiting in self._waiting if waiting[1] is not synced]
        return taken

    def counted(self, others: Counters) -> Counters:
        """The account of all kinds: that of `others`, and this journal's."""
        if not self._emitted:
            return others
        delivery, spill = self._delivery, self._file.spill
        reasons = {FULL: self._full, "refused": delivery.refused[KIND]}
        dropped = {reason: count for reason, count in reasons.items() if count}
        before = others.dropped.get(KIND, {})
        return replace(
            others,
            emitted={**others.emitted, KIND: others.emitted.get(KIND, 0) + self._emitted},
            acked={**others.acked, KIND: others.acked.get(KIND, 0) + delivery.acked[KIND]},
            dropped={**others.dropped, KIND: {**before, **dropped}} if dropped else others.dropped,
            queued=others.queued + spill.records,
            in_flight=others.in_flight + spill.flight,
        )

    def close(self, timeout_s: float) -> None:
        """End the thread; what is not acknowledged stays in the file."""
        self.stop(timeout_s)
        self.remove_empty()
        with self._lock:
            self._file.forget()

    def remove_empty(self) -> None:
        """Delete a file of which nothing is left; another record would make another."""
        with self._lock:
            if not self._file.spill.held:
                self._file.remove()

    @override
    def after_fork(self) -> None:
        super().after_fork()
        self._file.after_fork()

    def deliver(self) -> None:
        """Begin with what an adopted file holds."""
        with self._lock:
            self.ensure_started()
            self._delivery.flush_now()
            self._unsynced_since_ns = clock.monotonic_ns()
        self.wake()

    def _take(self, line: bytes) -> bool:
        self._emitted += 1
        if not self._file.offer(line):
            self._full += 1
            return False
        if self._unsynced_since_ns is None:
            self._unsynced_since_ns = clock.monotonic_ns()
        self.ensure_started()
        return True

    def _wait_for(self, written: int) -> Any:
        """A lock that is released when so many entries are on the disk."""
        synced = unpatched.allocate_lock()
        synced.acquire()
        self._waiting.append((written, synced))
        return synced

    def _sync(self) -> int | None:
        """Bring the file to the disk when it is time; in how many milliseconds to ask again.

        The journal's thread does so, without the lock: later records share the next sync.
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
        """Return what to sync now, or the milliseconds until then, if any. Hold the lock."""
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

    def _said(self) -> Report:
        """What a batch's header says: records of an adopted file count as emitted."""
        reasons = {FULL: self._full, "refused": self._delivery.refused[KIND]}
        dropped = {reason: count for reason, count in reasons.items() if count}
        return Report(
            dropped={KIND: dropped} if dropped else {},
            emitted=self._adopted + self._emitted,
            acked=self._delivery.acked[KIND],
            spooled=self._file.spill.records,
        )


class SpillFile:
    """A journal's records and its file: the queue that `Delivery` takes batches from.

    Each change is written to the page cache at once, which survives the death of the process;
    `sync` brings all that was written to the disk. What the disk refuses stays in memory, and is
    counted: then the file is behind, and stays as it is until there is room for another that says
    everything. All methods but `sync` need the caller's lock.

    Attributes:
        failures: Entries that could not be written, and syncs that failed.
        written: Entries that were appended so far.
        synced: Number of these that are on disk.
    """

    def __init__(self, path: Path, spill: Spill) -> None:
        self.path = path
        self.spill = spill
        self.failures = 0
        self.written = 0
        self.synced = 0
        self._size = 0
        self._in_file = 0
        self._is_behind = False
        self._named_now = path
        self._descriptor = -1
        self._syncing = -1
        self._files = 0
        self._named = -1

    @classmethod
    def adopt(cls, path: Path, bytes_max: int, boot: str) -> Self | None:
        """Open a journal whose process has died; None when it lives, or there is nothing left."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        found = cls(path, Spill(bytes_max))
        found._descriptor = descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino != path.stat().st_ino:
                found.forget()  # its owner has just put another in its place
                return None
            good = found.spill.replay(path.read_bytes())
            os.ftruncate(descriptor, good)
            os.lseek(descriptor, 0, os.SEEK_END)
            found.path = path.rename(path.with_name(_renamed(path.name, boot)))
            found._named_now = found.path
        except OSError:
            found.forget()
            return None
        found._size = good
        if not found.spill.held:
            found.remove()
            return None
        return found

    @property
    def records(self) -> int:
        return self.spill.records

    @property
    def held_bytes(self) -> int:
        """Bytes of records that are not settled."""
        return self.spill.held_bytes

    def offer(self, line: bytes) -> bool:
        """Take a record; False when there is no room."""
        entry = self.spill.offer(line)
        if entry is not None:
            self._append(entry)
        return entry is not None

    def take(self, *, records_max: int, bytes_max: int) -> Sequence[Held]:
        """Return the next batch; the file says that it is on its way before it is sent.

        A file that cannot say so gets another sender's name. A process that adopts it would else
        send other records under a sequence that the collector knows, and they would be lost.
        """
        taken, entry = self.spill.send(records_max=records_max, bytes_max=bytes_max)
        self._append(entry)
        if self._is_behind and self._named_now == self.path:
            with suppress(OSError):
                other = journal_name(ids.instance_id(), boot_id())
                self._named_now = self.path.rename(self.path.with_name(other))
        return taken

    def settle(self, sequence: int) -> None:
        """Take note of an answer to a batch for good; others mean nothing."""
        entry = self.spill.settle(sequence)
        if entry is not None:
            self._append(entry)
            self._shrink()

    def _append(self, data: bytes) -> None:
        """Write an entry that the journal's state has already; the first one makes the file.

        After a failure the file says less than the state, so it is made again, for which there may
        be room: nothing settled is in it. If not, the next entry tries again. Until then the file
        keeps what it has. A process that adopts it cuts off the part of an entry at its end.
        """
        self.written += 1
        appends = self._descriptor >= 0 and not self._is_behind
        try:
            if not appends:
                self._create()
                return
            _write_whole(self._descriptor, data)
            self._size += len(data)
            self._in_file = self.written
        except OSError:
            self.failures += 1
            if appends:
                self._replace_file()

    def _shrink(self) -> None:
        """Rewrite a journal that is mostly settled, once it has grown.

        It is on the disk before it takes the other's place, which may be there already.
        """
        settled = self._size - self.spill.held_bytes
        if self._descriptor < 0 or self._size < self.spill.bytes_max or settled < self._size // 2:
            return
        with suppress(OSError):
            self._create(sync=True)

    def opened(self) -> tuple[int, int, int] | None:
        """Return a descriptor for `sync`, the file's number, and how much is written to it."""
        if self._descriptor < 0:
            return None
        try:
            self._syncing = os.dup(self._descriptor)
        except OSError:
            return None  # no descriptors: later
        return self._syncing, self._files, self._in_file

    def sync(self, descriptor: int) -> bool:
        """Bring the file and its name to the disk, which may take long; False when that failed.

        Without the caller's lock, so that others append meanwhile: they share the next one.
        """
        number = self._files
        try:
            os.fdatasync(descriptor)
            if self._named != number:
                sync_directories([self.path.parent])
                self._named = number
        except OSError:
            return False
        finally:
            self._syncing = -1
            os.close(descriptor)
        return True

    def was_synced(self, number: int, written: int, *, done: bool) -> None:
        """Take note of what `sync` said of what `opened` returned.

        Nothing is believed of a file that could not be synced, not even when it is tried again: the
        kernel may have thrown away what it could not write. It is made again.
        """
        if number != self._files:
            return  # another file has taken its place
        if done:
            self.synced = max(self.synced, min(written, self._in_file))
        else:
            self.failures += 1
            self._in_file = self.synced
            self._replace_file()

    def remove(self) -> None:
        """Delete it; nothing in it is unsettled."""
        with suppress(OSError):
            if self._descriptor >= 0:
                self._named_now.unlink()
        self.forget()

    def forget(self) -> None:
        """Close it and leave it as it is, to another process."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._is_behind, self._named_now = False, self.path
        self._files += 1

    def after_fork(self) -> None:
        """Close all copies in a forked child; they would keep the parent's lock when it dies."""
        self.forget()
        if self._syncing >= 0:
            os.close(self._syncing)
        self._syncing = -1

    def _replace_file(self) -> None:
        """Put another in the file's place; the file stays, behind, where there is no room."""
        try:
            self._create()
        except OSError:
            self._is_behind = True

    def _create(self, *, sync: bool = False) -> None:
        """Write everything under another name, locked, before it gets its own: nobody adopts it.

        The descriptor stays open, with its lock, so this is no `penstock.base.files.atomic_write`.
        """
        beside = self.path.with_suffix(".new")
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(beside, flags, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = self.spill.content()
            _write_whole(descriptor, content)
            if sync:
                os.fdatasync(descriptor)
            beside.replace(self.path)
        except OSError:
            os.close(descriptor)
            with suppress(OSError):
                beside.unlink()  # what it has takes the room of others
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        if self._named_now != self.path:
            with suppress(OSError):
                self._named_now.unlink()
        self._descriptor, self._size, self._in_file = descriptor, len(content), self.written
        self._is_behind, self._named_now = False, self.path
        self._files += 1


def _write_whole(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) < len(data):
        raise OSError(errno.ENOSPC, "written in part")


def boot_id() -> str:
    """Another one after every start of the machine; ``unknown`` where the system does not say."""
    try:
        return _BOOT_ID.read_text()[:_BOOT_CHARACTERS]
    except OSError:
        return "unknown"


def journal_name(process: str, boot: str) -> str:
    return f"{process}-{boot}{_NAME}"


def _renamed(name: str, boot: str) -> str:
    """The name under which a journal is adopted: the same, within the boot it was made in."""
    if not name.endswith(_NAME) or name.endswith(f"-{boot}{_NAME}"):
        return name
    return journal_name(name.removesuffix(_NAME).rpartition("-")[0] or "adopted", boot)


def orphans(directory: Path, bytes_max: int, boot: str) -> Iterator[SpillFile]:
    """Journals in a directory whose processes have died, opened."""
    try:
        paths = sorted(directory.glob(f"*{SUFFIX}"))
    except OSError:
        return
    for path in paths:
        found = SpillFile.adopt(path, bytes_max, boot)
        if found is not None:
            yield found

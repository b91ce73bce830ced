"""Events of the stream `__activity` (what happened, when, by whom) and the journal of waiting ones.

An event is a record whose subject is `__activity.` and its kind, and whose value is JSON:

    {"id": "...", "time": "2026-11-22T09:15:02.123456+00:00", "node": "logd-1",
     "kind": "stream.delete", "by": {"name": "alice", "method": "key"},
     "facts": {"request": {"api": "delete_stream", "stream": "orders"}, "result": "ok"}}

`record` only puts it in line: it neither waits nor fails, so what is recorded never depends on
whether it can be. A task writes what stands in line and tries until it is stored; the id keeps what
is written twice from being stored twice. What finds no place in line is counted, and the next event
that does says how many are missing before it.

Events that wait to be written to `__activity`, in a file: a kill of the process loses none.

The file is lines, one an event, oldest first:

    8 hexadecimal digits: CRC32 of the rest | space | JSON: {"id", "kind", "value"} | newline

`value` is the event's own JSON, as text. A line that is cut or changed is skipped and counted.
What has been stored since is in the file until all is, or until the rest is rewritten: the
event's id keeps it from being stored twice.

A line is in the page cache when `append` returns: what happens to the process does not matter. To
outlast the machine it takes `sync`, which an answered client waits for.
"""

import asyncio
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import orjson
import structlog

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock
from penstock.logd.errors import LogdError, UnavailableError
from penstock.logd.format.headers import format_headers
from penstock.logd.intake.turn import FRAME_OVERHEAD, Message
from penstock.logd.limits import (
    ACTIVITY_BATCH_EVENTS_MAX,
    ACTIVITY_EVENT_BYTES_MAX,
    ACTIVITY_WAITING_MAX,
)
from penstock.logd.metadata.streams import ACTIVITY
from penstock.logd.partition.partition import Partition
from penstock.logd.security.principal import Method, Principal
from penstock.logd.security.quotas import Buckets, Flow
from penstock.logd.storage.disk import REAL_DISK, Disk

_REWRITE_BYTES: Final = 1024 * 1024
"""Bytes of the file from which on it is worth while to leave out what is stored."""

_CRC_LENGTH: Final = 8
_log = structlog.get_logger()


class Event(NamedTuple):
    """An event to be written to the activity stream."""

    id: str
    kind: str
    value: bytes


class ActivityJournal:
    """The file. Used on the event loop, but for `sync`.

    Args:
        path: Path of the file, which is created if missing.
        disk: The file system.

    Attributes:
        found: Events that were in it.
        skipped: Lines that were cut or changed.
        appended: Number of events that `append` accepted.
        synced: Number of these that are durable, or known not to be.
        problem: Why it cannot be written; empty: it can.

    Raises:
        OSError: It can be neither read nor made.
    """

    def __init__(self, path: Path, *, disk: Disk = REAL_DISK) -> None:
        self._path = path
        self._disk = disk
        self._file = disk.open(path) if disk.exists(path) else disk.create(path)
        disk.sync_directory(path.parent)
        self._size = self._file.size()
        self.appended = self.synced = 0
        self.skipped = 0
        self.problem = ""
        self.found = tuple(self._read())
        if self.skipped:
            _log.warning("activity_journal_damaged", path=str(path), lines_skipped=self.skipped)
            self._rewrite(self.found)

    def append(self, event: Event) -> bool:
        """Write an event behind the others; whether that was possible."""
        taken = self._write(self._size, _line(event))
        self.appended += taken
        return taken

    def settle(self, waiting: Iterable[Event], waiting_count: int) -> None:
        """Take in what still waits after some was stored; the rest need not be in the file."""
        if not self._size or (waiting_count and self._size < _REWRITE_BYTES):
            return
        if not waiting_count:
            self._truncate(0)
            return
        left = b"".join(map(_line, waiting))
        if len(left) * 2 < self._size:
            self._replace(left)

    def sync(self) -> bool:
        """Make what was appended outlast the machine; whether that was possible. On any thread."""
        upto = self.appended  # what is appended meanwhile may be synced or not
        try:
            self._file.sync()
        except OSError as error:
            self._failed(error)
            return False
        finally:
            self.synced = max(self.synced, upto)
        return True

    def _read(self) -> Iterator[Event]:
        for line in self._file.read(0, self._size).split(b"\n"):
            event = _event(line)
            if event is not None:
                yield event
            elif line:
                self.skipped += 1

    def _rewrite(self, events: Iterable[Event]) -> None:
        self._replace(b"".join(map(_line, events)))

    def _replace(self, data: bytes) -> None:
        """Put another file in place: a kill leaves the old one or the new one.

        Not `penstock.base.files.atomic_write`: the file stays open, and is the journal's from the
        rename on, also where the directory's sync fails.
        """
        temporary = self._path.with_name(self._path.name + ".tmp")
        try:
            file = self._disk.create(temporary)
            file.write(0, [data])
            file.sync()
            self._disk.rename(temporary, self._path)
            self._file, self._size = file, len(data)  # the one before has no name any more
            self._disk.sync_directory(self._path.parent)
        except OSError as error:
            with suppress(OSError):
                self._disk.unlink(temporary)
            self._failed(error)
            return
        self.problem = ""

    def _write(self, position: int, data: bytes) -> bool:
        try:
            self._file.write(position, [data])
        except OSError as error:
            self._truncate(position)
            self._failed(error)
            return False
        self._size, self.problem = position + len(data), ""
        return True

    def _truncate(self, size: int) -> None:
        try:
            self._file.truncate(size)
        except OSError as error:
            self._failed(error)
            return
        self._size = size

    def _failed(self, error: OSError) -> None:
        if not self.problem:
            _log.error("activity_journal_write_failed", path=str(self._path), error=str(error))
        self.problem = f"{self._path}: {error.strerror or error}"


def _line(event: Event) -> bytes:
    body = orjson.dumps({"id": event.id, "kind": event.kind, "value": event.value.decode()})
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _event(line: bytes) -> Event | None:
    """The event of a line; None: it is none."""
    body = line[_CRC_LENGTH + 1 :]
    if line[:_CRC_LENGTH] != b"%08x" % zlib.crc32(body) or not body:
        return None
    document = orjson.loads(body)
    return Event(document["id"], document["kind"], document["value"].encode())


_FLOODS: Final = ("auth.failed", "access.denied")
"""Kinds that anybody can cause as often as they like; of each so many a second are written."""

_FLOOD_PER_S: Final = 10
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 2.0


class Record(Protocol):
    """Records what happened."""

    def __call__(
        self, kind: str, by: Principal | None, /, *, event_id: str = "", **facts: Any
    ) -> None:
        """Record one event. Never waits and never raises.

        Args:
            kind: Kind of the event, as in `stream.create`.
            by: Principal that caused it; None: this node.
            event_id: Id of an event that other nodes may record, too; None: a new id.
            facts: More about it, as JSON has it. No secrets.
        """


class TakesDown(Protocol):
    """The part of `ActivityLog` that request handlers use."""

    @property
    def record(self) -> Record:
        """Records what happened."""

    async def kept(self) -> None:
        """Wait until everything recorded so far is durable. Never raises."""


class Sink(Protocol):
    """The destination of events."""

    async def store(self, events: Sequence[Event]) -> None:
        """Write events, once each; on return they are durable.

        Raises:
            LogdError: Not now, or it is unknown whether they are.
        """


class ActivityLog:
    """Takes events, and writes them as it runs. Used on the event loop.

    Args:
        node: This one's name.
        boot: Id of this process, which makes its event ids unique.
        clock: The clock.
        sink: None: they are only logged.
        journal: Journal of waiting events; those that an earlier process left there are written
            first.

    Attributes:
        counts: Events by what became of them: `recorded` is the sum of `written`, `waiting`,
            `suppressed` and `lost`. `recovered` ones were left by an earlier process,
            `unprotected` ones wait in memory only, as the journal could not be written.
        problem: Why what waits is not written; empty: it is.
    """

    def __init__(
        self,
        node: str,
        boot: str,
        clock: Clock,
        sink: Sink | None,
        journal: ActivityJournal | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.problem = ""
        self._me = Principal(node, Method.NODE)
        self._boot = boot
        self._clock = clock
        self._sink = sink
        self._journal = journal
        self._number = 0
        self._line: deque[Event] = deque()
        self._came, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._buckets = Buckets()
        self._suppressed: Counter[str] = Counter()
        self._lost = 0
        self._syncing: asyncio.Task[None] | None = None
        if journal is not None and journal.found:
            self.counts["recorded"] = self.counts["recovered"] = len(journal.found)
            self._put(*journal.found)

    @property
    def unprotected(self) -> str:
        """Why what waits would not outlast this process; empty: it would."""
        return "" if self._journal is None else self._journal.problem

    @property
    def waiting(self) -> int:
        """Events that are still to be written."""
        return len(self._line)

    def record(
        self, kind: str, by: Principal | None, /, *, event_id: str = "", **facts: Any
    ) -> None:
        self.counts["recorded"] += 1
        if self._floods(kind):
            self._suppressed[kind] += 1
            self.counts["suppressed"] += 1
            return
        by, facts = by or self._me, _bounded(facts)
        _log.info("activity", kind=kind, by=by.name, facts=facts)
        if self._sink is None:
            self.counts["written"] += 1
            return
        if len(self._line) >= ACTIVITY_WAITING_MAX:
            self._lost += 1
            self.counts["lost"] += 1
            return
        if self._suppressed[kind]:
            facts["suppressed_before"] = self._suppressed.pop(kind)
        if self._lost:
            facts["lost_before"], self._lost = self._lost, 0
        event = self._event(kind, by, event_id, facts)
        if self._journal is not None and not self._journal.append(event):
            self.counts["unprotected"] += 1
        self._put(event)

    async def kept(self) -> None:
        """Wait until everything recorded so far is synced; concurrent callers share a sync.

        An event that the journal refused is not waited for: it is counted (`unprotected`). Never
        raises.
        """
        journal = self._journal
        mark = 0 if journal is None else journal.appended
        while journal is not None and journal.synced < mark:
            if self._syncing is None or self._syncing.done():
                self._syncing = asyncio.create_task(self._sync(journal))
            await asyncio.wait((self._syncing,))

    async def run(self) -> None:
        """Write what stands in line, for ever."""
        backoff = Backoff(_PAUSE_S, _PAUSE_S_MAX)
        while self._sink is not None:
            await self._came.wait()
            part = list(islice(self._line, ACTIVITY_BATCH_EVENTS_MAX))
            try:
                await self._sink.store(part)
            except (LogdError, OSError) as error:
                self.problem = str(error)
                await self.kept()
                await asyncio.sleep(backoff.next_wait())
                continue
            self.problem = ""
            backoff.reset()
            for _ in part:
                self._line.popleft()
            self.counts["written"] += len(part)
            if self._journal is not None:
                self._journal.settle(self._line, len(self._line))
            if not self._line:
                self._came.clear()
                self._empty.set()

    async def drain(self, timeout_s: float) -> None:
        """Wait until all is written, or not longer than this; it runs meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()

    def _put(self, *events: Event) -> None:
        self._line.extend(events)
        self._came.set()
        self._empty.clear()

    async def _sync(self, journal: ActivityJournal) -> None:
        before = journal.synced
        if not await asyncio.to_thread(journal.sync):
            self.counts["unprotected"] += journal.synced - before

    def _floods(self, kind: str) -> bool:
        if kind not in _FLOODS:
            return False
        now_ns = self._clock.monotonic_ns()
        if self._buckets.wait_ns(kind, Flow.REQUESTS, now_ns):
            return True
        self._buckets.take(kind, Flow.REQUESTS, 1, _FLOOD_PER_S, now_ns)
        return False

    def _event(self, kind: str, by: Principal, event_id: str, facts: dict[str, Any]) -> Event:
        self._number += 1
        event_id = event_id or f"{self._me.name}.{self._boot}.{self._number}"
        now = datetime.fromtimestamp(self._clock.unix_ns() / 1e9, UTC)
        document = {
            "id": event_id,
            "time": now.isoformat(timespec="microseconds"),
            "node": self._me.name,
            "kind": kind,
            "by": {"name": by.name, "method": str(by.method)},
            "facts": facts,
        }
        value = _encode(document)
        if len(value) > ACTIVITY_EVENT_BYTES_MAX:
            cut = {key: fact for key, fact in facts.items() if isinstance(fact, int)}
            value = _encode(document | {"facts": cut | {"left_out_bytes": len(value)}})
        return Event(event_id, kind, value)


async def store_events(partition: Partition, events: Sequence[Event]) -> None:
    """Store events in the partition that is led here; those that it has already are not again.

    Raises:
        UnavailableError: Not all of them are known to be stored.
    """
    if partition.failure or partition.closed:
        raise UnavailableError(f"stream {partition.name}: {partition.failure or 'it is closed'}")
    partition.publish_queue.check_takes()
    messages = [_message(event) for event in events]
    if FRAME_OVERHEAD + sum(one.size_bytes() for one in messages) > partition.budget.room:
        raise UnavailableError(f"stream {partition.name}: too many bytes wait for the disk")
    refused = partition.intake.counts.refused.total()
    partition.take(messages)
    if partition.intake.counts.refused.total() != refused:
        raise UnavailableError(f"stream {partition.name} takes nothing now")
    await partition.wait_committed(partition.intake.next_offset - 1)


def nothing(kind: str, by: Principal | None, /, *, event_id: str = "", **facts: Any) -> None:
    """A `Record` that forgets."""
    del kind, by, event_id, facts


def _message(event: Event) -> Message:
    subject = f"{ACTIVITY}.{event.kind}".encode()
    headers = format_headers((("Nats-Msg-Id", event.id.encode()),))
    return Message(subject, b"", headers, event.value)


def _bounded(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts as they can be written; callers have a say in how long and how deep they are."""
    try:
        size = len(_encode(facts))
    except TypeError:  # nested deeper than is written
        size = 0
    if 0 < size <= ACTIVITY_EVENT_BYTES_MAX:
        return facts
    kept = {key: fact for key, fact in facts.items() if isinstance(fact, int)}
    return kept | {"left_out_bytes": size}


def _encode(document: dict[str, Any]) -> bytes:
    fallback: Callable[[Any], str] = str
    return orjson.dumps(document, default=fallback, option=orjson.OPT_NON_STR_KEYS)

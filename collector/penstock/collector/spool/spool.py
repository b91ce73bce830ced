"""The spool: units as received, durable before their sender gets the ack, also when it is full.

A unit is what came at once: a batch from the Unix socket, one read's worth of forward messages or
of standard input, one round of host metrics. Each is one frame of a commit log with one record:

    subject   name of the source
    headers   format  how to read the value: unix, lines, forward or ndjson
              count   records in it
              kind    of them: logs, traces, metrics, events or audit
              meta    what the format needs besides, as JSON
    value     the bytes as received
    timestamp when they were received

The frame's producer id and sequence are the sender's. So after a crash the headers of the frames
alone say which batches of each sender were taken.

A collector has two spools: one for audit and event records, one for everything else. Each has its
own room, senders' sequences and cursor, so a flood of debug logs can neither fill the room of audit
records nor delay them. A batch with both kinds is split. Its sender gets the ack when both parts
are durable. If the batch comes again, a part that was taken before is a repeat.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import UUID, uuid5

import orjson

from penstock.collector.checkpoint.state import SPOOL_ORIGIN
from penstock.collector.config import WhenFull
from penstock.collector.decompression import unzstd
from penstock.collector.errors import (
    RemoteProtocolError,
    SpoolFailedError,
    SpoolFullError,
    UndecodableError,
)
from penstock.collector.ledger import Ledger
from penstock.collector.limits import UNIT_DECOMPRESSED_BYTES_MAX, UNIX_FRAME_BYTES_MAX
from penstock.collector.sources.unix.framing import BATCH_VERSION, decode_batch_header
from penstock.collector.spool.dedup import SenderTable
from penstock.collector.spool.journal import Entry, Journal, entry_size, read_record, undamaged
from penstock.collector.spool.urgency import URGENT, ByUrgency, Kind, split_by_urgency
from penstock.collector.spool.validation_cache import Known, ValidationCache
from penstock.logd.format.batch import Record
from penstock.logd.format.frame import NO_PRODUCER, FrameHeader
from penstock.specs.subjects import KINDS

_SENDER_NAMESPACE: Final = UUID("6f0d1c5e-7a58-5b2e-9d39-0b6a3f3f8f31")
ORIGIN: Final = SPOOL_ORIGIN


@dataclass(frozen=True, slots=True)
class Unit:
    """The bytes that a source received at once.

    Attributes:
        count: Records in it, as far as the source can tell.
        kind: The kind of the records; it decides what happens when there is no room.
        sender: The sender's id, for removing repeats; empty when it cannot send again.
        sequence: The sender's number of the unit.
        verdicts: The validator's verdicts on its lines, where they were validated already; they
            are not written.
    """

    source: str
    format: str
    payload: bytes
    count: int
    received_ns: int
    meta: dict[str, Any] = field(default_factory=dict)
    sender: str = ""
    sequence: int = 0
    kind: Kind = "logs"
    verdicts: Known = ()

    @property
    def size(self) -> int:
        """Bytes that it will take in a spool, roughly; never too few."""
        return entry_size(len(self.payload))


Policy = Callable[[Kind], WhenFull]
"""Function from a kind to what happens to its units when there is no room."""

MakeRoom = Callable[[int], Awaitable[None]]
"""Drop what is oldest until so many bytes fit, as far as that is allowed."""


def sender_id(sender: str) -> bytes:
    """A sender's name as a producer id."""
    return uuid5(_SENDER_NAMESPACE, sender).bytes


class Spool:
    """Takes units, removes repeats, answers when they are durable.

    Args:
        origin: Name of its records' queues.
    """

    def __init__(
        self, journal: Journal, ledger: Ledger, *, when_full: Policy, origin: str = ORIGIN
    ) -> None:
        self.journal = journal
        self.origin = origin
        self.when_full = when_full
        self.make_room: MakeRoom | None = None
        self._ledger = ledger
        self.senders = SenderTable()
        self.verdicts = ValidationCache()
        self._pending: dict[bytes, asyncio.Future[int]] = {}
        self._skipped: list[range] = []

    async def put(
        self, unit: Unit, *, epoch: int | None = None, wait: bool = True
    ) -> asyncio.Future[int] | None:
        """Take a unit; when there is no room, do what is configured for its kind.

        Units put one after another become durable in that order.

        Args:
            unit: Received unit.
            epoch: The `epoch` when the sender's connection began. After a failed write the sender
                begins again with the first unit without an ack, so another epoch is refused.
            wait: Whether to wait for room; false for senders that are told to retry.

        Returns:
            A future that is done when the unit is durable and raises `SpoolFailedError` when it is
            not; None for a repeat of a unit that is durable already.

        Raises:
            SpoolFullError: Nothing was taken.
            SpoolFailedError: Likewise; the epoch has passed.
        """
        await self.find_room(unit.size, unit.kind, wait=wait)
        entry = _entry(unit)
        if epoch is not None and epoch != self.epoch:
            raise SpoolFailedError(self.journal.failure or "the spool failed and was opened again")
        if not unit.sender:
            future = self._offer(entry, unit.verdicts)
            future.add_done_callback(lambda done: self._count(unit, done))
            return future
        if self.senders.is_repeat(entry.producer_id, entry.sequence):
            return self._pending.get(entry.producer_id)
        future = self._offer(entry, unit.verdicts)
        self.senders.record(entry.producer_id, entry.sequence)
        self._pending[entry.producer_id] = future
        future.add_done_callback(lambda done: self._settle(entry, done))
        future.add_done_callback(lambda done: self._count(unit, done))
        return future

    def _offer(self, entry: Entry, verdicts: Known) -> asyncio.Future[int]:
        future = self.journal.offer(entry)
        if verdicts:
            self.verdicts.keep(future, verdicts)
        return future

    async def find_room(self, size: int, kind: Kind, *, wait: bool = True) -> None:
        """Make room as configured: drop what is oldest or, with `wait`, wait.

        Raises:
            SpoolFullError: There is still none.
        """
        journal = self.journal
        if size > journal.bytes_max:
            raise SpoolFullError(f"{size} bytes never fit", for_ever=True)
        if journal.has_room(size):
            return
        policy = self.when_full(kind)
        if policy == "drop_oldest" and self.make_room is not None:
            await self.make_room(size)
        elif policy == "block" and wait:
            await journal.wait_for_room(size)
        if not journal.has_room(size):
            raise SpoolFullError(f"{journal.directory} holds {journal.used_bytes} bytes")

    @property
    def epoch(self) -> int:
        """Changes whenever something that was taken could not be made durable."""
        return self.journal.failures

    def note(self, what: str) -> None:
        """Count something that is no record; shown under the source `spool` of the status."""
        self._ledger["spool"].notes[what] += 1

    def _count(self, unit: Unit, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._ledger.spooled(unit.source, unit.count)

    def _settle(self, entry: Entry, done: asyncio.Future[int]) -> None:
        if self._pending.get(entry.producer_id) is done:
            del self._pending[entry.producer_id]
        if done.cancelled():
            return
        if done.exception() is None:
            self.senders.kept(entry.producer_id, entry.sequence)
        else:
            self.senders.retract(entry.producer_id, entry.sequence)

    def recover(self, snapshot: dict[str, int], cursor: int) -> None:
        """Know again which batches were taken, and what waits from the cursor on."""
        self.senders.restore(snapshot)
        log = self.journal.log
        for header in undamaged(log.headers, log.start_offset, salvage=True):
            if header.producer_id != NO_PRODUCER:
                self.senders.record(header.producer_id, header.producer_sequence)
                self.senders.kept(header.producer_id, header.producer_sequence)
        reached = cursor
        for header, body in undamaged(self.journal.frames, cursor, salvage=True):
            if header.base_offset > reached:
                self._skipped.append(range(reached, header.base_offset))
            reached = header.next_offset
            with contextlib.suppress(UndecodableError):  # counted where it is decoded again
                unit = decode_unit(header, body)
                self._ledger.recovered(unit.source, unit.count)
        self._skipped.append(range(reached, log.end_offset))

    def was_skipped(self, offset: int) -> bool:
        """Return whether `recover` could not read a unit and so did not count it."""
        return any(offset in units for units in self._skipped)


def _entry(unit: Unit) -> Entry:
    headers: list[tuple[str, bytes]] = [
        ("format", unit.format.encode()),
        ("count", str(unit.count).encode()),
        ("kind", unit.kind.encode()),
    ]
    if unit.meta:
        headers.append(("meta", orjson.dumps(unit.meta)))
    record = Record(
        subject=unit.source,
        value=unit.payload,
        timestamp_ns=unit.received_ns,
        headers=tuple(headers),
    )
    if not unit.sender:
        return Entry(record)
    return Entry(record, sender_id(unit.sender), unit.sequence)


def decode_unit(header: FrameHeader, body: bytes, verdicts: Known = ()) -> Unit:
    """Read a unit back from its frame, with what is known of its lines.

    Raises:
        UndecodableError: The frame does not hold a unit.
    """
    source, headers, payload = read_record(body)
    try:
        return Unit(
            source=source,
            format=headers["format"].decode(),
            payload=payload,
            count=_count(headers["count"]),
            received_ns=header.first_timestamp_ns,
            meta=_meta(headers.get("meta", b"{}")),
            kind=_kind(headers.get("kind", b"").decode()),
            verdicts=verdicts,
        )
    except (KeyError, ValueError) as error:
        raise UndecodableError(f"not a spooled unit: {error}") from None


def _count(text: bytes) -> int:
    """Read the number of records that the source counted; the decoder checks it."""
    count = int(text)
    if count < 0:
        msg = f"{count} records"
        raise ValueError(msg)
    return count


def _meta(text: bytes) -> dict[str, Any]:
    meta = orjson.loads(text)
    if not isinstance(meta, dict):
        msg = "what the format needs is no object"
        raise ValueError(msg)  # noqa: TRY004 - of bytes, not of an argument
    return meta


def _kind(text: str) -> Kind:
    """Earlier versions did not say."""
    return next((kind for kind in KINDS.values() if kind == text), "logs")


class Spooling(Protocol):
    """Interface through which sources put units into the spool; see `Spool.put`."""

    async def put(
        self, unit: Unit, *, epoch: int | None = None, wait: bool = True
    ) -> asyncio.Future[int] | None:
        """Take a unit."""
        ...

    @property
    def epoch(self) -> int:
        """Changes whenever something that was taken could not be made durable."""
        ...


@dataclass(frozen=True, slots=True)
class _Lack:
    spool: Spool
    size: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Spools:
    """Puts each record where its kind belongs."""

    bulk: Spool
    urgent: Spool
    _apart: set[asyncio.Future[int]] = field(default_factory=set, init=False)
    """The futures of units that are being written to both spools."""

    @property
    def both(self) -> tuple[Spool, Spool]:
        """The urgent one first."""
        return self.urgent, self.bulk

    @property
    def epoch(self) -> int:
        """The epoch that both spools share."""
        return self.bulk.epoch + self.urgent.epoch

    async def put(
        self, unit: Unit, *, epoch: int | None = None, wait: bool = True
    ) -> asyncio.Future[int] | None:
        """Take a unit, in two parts if it must be; raises and returns what `Spool.put` does.

        What was taken of a unit whose other part failed is a repeat when it comes again from the
        same sender; who has no name may then send it twice.
        """
        while True:
            parts = take_apart(unit)
            full = self._full(parts)
            if full is None:
                break
            del parts  # what a batch expands to is not held while it waits
            await full.spool.find_room(full.size, full.kind, wait=wait)
        if epoch is not None and epoch != self.epoch:
            raise SpoolFailedError("the spool failed and was opened again")
        futures = [await self._of(part).put(part, wait=False) for part in parts]
        if len(parts) == 1:
            return futures[0]
        whole = _all_of([future for future in futures if future is not None])
        if whole is not None:
            self._apart.add(whole)
            whole.add_done_callback(self._apart.discard)
        return whole

    async def settle(self) -> None:
        """Return once the future of each unit is done whose parts the spools have written."""
        while self._apart:
            await asyncio.wait(self._apart)

    def _full(self, parts: list[Unit]) -> "_Lack | None":
        """Return the first part that has no room."""
        lacks = (_Lack(self._of(part), part.size, part.kind) for part in parts)
        return next((one for one in lacks if not one.spool.journal.has_room(one.size)), None)

    def _of(self, unit: Unit) -> Spool:
        return self.urgent if unit.kind in URGENT else self.bulk


def take_apart(unit: Unit) -> list[Unit]:
    """A unit by its records' urgency, with their kind; the urgent part first.

    One that would expand too far when it is taken apart stays whole, as urgent as its records are.
    """
    if unit.format == "ndjson":
        return _by_line(unit)
    if unit.format != "unix":
        return [unit]
    try:
        header = decode_batch_header(unit.payload)
        body = unit.payload[header.body_at :]
        if header.codec == "zstd":
            body = unzstd(body, UNIT_DECOMPRESSED_BYTES_MAX)
    except (RemoteProtocolError, UndecodableError):
        return [unit]  # decoding says what is wrong
    head = {
        "batch": BATCH_VERSION,
        "sender": header.sender,
        "seq": header.sequence,
        "count": header.count,
        "resource": dict(header.resource),
    }
    found = split_by_urgency(body)
    if found.rest and found.urgent and len(body) > UNIX_FRAME_BYTES_MAX:  # parts are not compressed
        return [dataclasses.replace(unit, kind=found.urgent_kind)]
    return _parts(unit, orjson.dumps(head) + b"\n", found)


def _by_line(unit: Unit) -> list[Unit]:
    kinds = [KINDS[one.kind] for one in unit.verdicts if one is not None]
    if kinds and len(kinds) == len(unit.verdicts) and URGENT.isdisjoint(kinds):
        return [dataclasses.replace(unit, kind=kinds[0])]  # the validator has said it of each
    found = split_by_urgency(unit.payload)
    if found.rest and found.urgent and "refused" in unit.meta:  # it counts lines
        return [dataclasses.replace(unit, kind=found.urgent_kind)]
    return _parts(unit, b"", found)


def _parts(unit: Unit, head: bytes, found: ByUrgency) -> list[Unit]:
    if not found.urgent:
        return [dataclasses.replace(unit, kind=found.kind)]
    if not found.rest:
        return [dataclasses.replace(unit, kind=found.urgent_kind)]
    return [
        dataclasses.replace(
            unit, payload=head + b"\n".join(lines), count=len(lines), kind=kind, verdicts=()
        )
        for lines, kind in ((found.urgent, found.urgent_kind), (found.rest, found.kind))
    ]


def _all_of(futures: list[asyncio.Future[int]]) -> asyncio.Future[int] | None:
    """Done when all are, not before: until then they hold what they were given.

    Fails when one of them did. None: there are none.
    """
    if not futures:
        return None
    whole: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = len(futures)

    def settle(_: asyncio.Future[int]) -> None:
        nonlocal waiting
        waiting -= 1
        if waiting or whole.done():
            return
        errors = [one.exception() for one in futures if not one.cancelled()]
        failed = next((error for error in errors if error is not None), None)
        if failed is not None:
            whole.set_exception(failed)
        elif len(errors) < len(futures):
            whole.cancel()
        else:
            whole.set_result(futures[-1].result())

    for future in futures:
        future.add_done_callback(settle)
    return whole


__all__ = [
    "ORIGIN",
    "MakeRoom",
    "Policy",
    "Spool",
    "SpoolFailedError",
    "SpoolFullError",
    "Unit",
    "decode_unit",
    "sender_id",
]

"""The spool: units as they were received, durable before their sender hears so.

A unit is what came in one piece: a batch from the Unix socket, one read's worth of forward messages
or of standard input, one round of host metrics. Each is one frame of a commit log with one record:

    subject   name of the source
    headers   format  how to read the value: unix, lines, forward or ndjson
              count   records in it
              kind    of them: logs, traces, metrics, events or audit
              meta    what the format needs besides, as JSON
    value     the bytes as received
    timestamp when they were received

The frame's producer id and sequence are the sender's, so the batches that each sender had taken can
be told from frame headers alone after a crash.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid5

import orjson

from penstock.collector.config import WhenFull
from penstock.collector.core.kinds import KINDS, Kind
from penstock.collector.core.ledger import Ledger
from penstock.collector.core.senders import SenderTable
from penstock.collector.errors import SpoolFailedError, SpoolFullError, UndecodableError
from penstock.collector.journal import Entry, Journal, entry_size, read_record, undamaged
from penstock.collector.state import SPOOL_ORIGIN
from penstock.collector.verdicts import Known, Verdicts
from penstock.logd.format.batch import Record
from penstock.logd.format.frame import NO_PRODUCER, FrameHeader

_SENDER_NAMESPACE: Final = UUID("6f0d1c5e-7a58-5b2e-9d39-0b6a3f3f8f31")
ORIGIN: Final = SPOOL_ORIGIN


@dataclass(frozen=True, slots=True)
class Unit:
    """What a source received in one piece.

    Attributes:
        count: Records in it, as far as the source can tell.
        kind: Of the records; decides what happens when there is no room.
        sender: Who sent it, for removing repeats; empty when it cannot be sent again.
        sequence: The sender's number for it.
        verdicts: The gate's on its lines, where they were judged already; not written.
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
"""What happens to units of a kind when there is no room."""

MakeRoom = Callable[[int], Awaitable[None]]
"""Drop what is oldest until so many bytes fit, as far as that is allowed."""


def sender_id(sender: str) -> bytes:
    """A sender's name as a producer id."""
    return uuid5(_SENDER_NAMESPACE, sender).bytes


class Spool:
    """Takes units, removes repeats, answers when they are durable.

    Args:
        origin: What its records' lanes call it.
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
        self.verdicts = Verdicts()
        self._pending: dict[bytes, asyncio.Future[int]] = {}
        self._passed_over: list[range] = []

    async def put(
        self, unit: Unit, *, era: int | None = None, wait: bool = True
    ) -> asyncio.Future[int] | None:
        """Take a unit; when there is no room, do what is configured for its kind.

        Units put one after another become durable in that order.

        Args:
            unit: What was received.
            era: The `era` when the sender's connection began. After a failed write the sender must
                begin again with what it was not told is durable, so a later era is refused.
            wait: For room; false for senders that are told to come again instead.

        Returns:
            A future that is done when the unit is durable and raises `SpoolFailedError` when it is
            not; None for a repeat of a unit that is durable already.

        Raises:
            SpoolFullError: Nothing was taken.
            SpoolFailedError: Likewise; the era has passed.
        """
        await self.find_room(unit.size, unit.kind, wait=wait)
        entry = _entry(unit)
        if era is not None and era != self.era:
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
        """Where there is none, drop what is oldest or, with `wait`, wait, as is configured.

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
    def era(self) -> int:
        """Changes whenever something that was taken could not be made durable."""
        return self.journal.failures

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
                self._passed_over.append(range(reached, header.base_offset))
            reached = header.next_offset
            with contextlib.suppress(UndecodableError):  # counted where it is decoded again
                unit = decode_unit(header, body)
                self._ledger.recovered(unit.source, unit.count)
        self._passed_over.append(range(reached, log.end_offset))

    def was_passed_over(self, offset: int) -> bool:
        """Whether `recover` could not read a unit, and so did not count it."""
        return any(offset in units for units in self._passed_over)


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
    """As its source counted; what decodes the unit says where that is too much."""
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

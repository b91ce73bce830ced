"""Quarantine: records that can never be delivered, kept with the reason.

Each is one frame of a commit log with one record:

    subject   name of the source
    headers   reason  why it is here
              origin  where it was read from: spool, or file/<generation>
              subject where it would have gone, when that is known
              count   records that the value stands for
              again   how the value can be taken again: JSON of format, meta, received_ns
    value     the bytes that were refused
    timestamp when it was put here

The frame's producer id and sequence say which record of which origin it is, so that one met again
after a crash is not put here twice. A frame with the header `replays` and no value marks the record
at the offset that it names as put back into the spool (`penstock.collector.spool.replay`).
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid5

import orjson
import structlog

from penstock.base.clock import Clock
from penstock.collector.delivery.core import Quarantine as QuarantineEffect
from penstock.collector.errors import SpoolFailedError, SpoolFullError, UndecodableError
from penstock.collector.spool.journal import Entry, Journal, Read, read_record, undamaged
from penstock.logd.format.batch import Record
from penstock.logd.format.frame import FrameHeader
from penstock.logd.storage import CommitLog

_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Again:
    """The parts of a unit that decode refused bytes; see `penstock.collector.spool.spool`."""

    format: str
    meta: Mapping[str, Any]
    received_ns: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record, or bytes that should have been some, that cannot be delivered."""

    origin: str
    source: str
    sequence: int
    reason: str
    raw: bytes
    subject: str = ""
    count: int = 1
    again: Again | None = None


class Quarantine:
    """Keeps refusals, each once."""

    def __init__(self, journal: Journal, incarnation: UUID, clock: Clock) -> None:
        self.journal = journal
        self._incarnation = incarnation
        self._clock = clock
        self._known: set[tuple[bytes, int]] = set()
        self._log = structlog.get_logger()
        self.dropped = 0

    def recover(self, begins: Mapping[tuple[str, str], int]) -> None:
        """Know again what is kept already, as far as it may be met again.

        Args:
            begins: Sequence at which reading begins, by origin and source; of others all is known.
        """
        log = self.journal.log
        firsts = {self._producer(*names): sequence for names, sequence in begins.items()}
        self._known = {
            (header.producer_id, header.producer_sequence)
            for header in undamaged(log.headers, log.start_offset, salvage=True)
            if header.producer_sequence >= firsts.get(header.producer_id, 0)
        }

    async def put(self, refusals: list[Refusal]) -> int:
        """Keep refusals; returns when they are durable.

        Returns:
            How many records could not be kept because the quarantine is full.
        """
        waiting = [r for r in refusals if self._identity(r) not in self._known]
        dropped = 0
        while waiting:
            offers = [(refusal, self._offer(refusal)) for refusal in waiting]
            dropped += sum(refusal.count for refusal, offer in offers if offer is None)
            waiting = [refusal for refusal, offer in offers if offer and not await _kept(offer)]
            if waiting:
                self._log.warning("quarantine_write_failed")
                await asyncio.sleep(_RETRY_S)
        self.dropped += dropped
        return dropped

    async def put_batch(self, effect: QuarantineEffect) -> int:
        """Keep a batch that logd refused for good; returns what `put` does."""
        queue, batch = effect.queue, effect.batch
        rows = zip(batch.sequences, batch.timestamps, batch.lines, strict=True)
        return await self.put(
            [
                Refusal(
                    queue.origin,
                    queue.source,
                    sequence,
                    effect.reason,
                    line,
                    queue.subject,
                    again=Again("ndjson", {}, time_ns),
                )
                for sequence, time_ns, line in rows
            ]
        )

    def _offer(self, refusal: Refusal) -> asyncio.Future[int] | None:
        entry = Entry(_record(refusal, self._clock.unix_ns()), *self._identity(refusal))
        try:
            return self.journal.offer(entry)
        except SpoolFullError:
            return None

    def _identity(self, refusal: Refusal) -> tuple[bytes, int]:
        return self._producer(refusal.origin, refusal.source), refusal.sequence

    def _producer(self, origin: str, source: str) -> bytes:
        return uuid5(self._incarnation, f"quarantine\n{origin}\n{source}").bytes


async def _kept(offer: asyncio.Future[int]) -> bool:
    try:
        await offer
    except SpoolFailedError:
        return False
    return True


def _record(refusal: Refusal, now_ns: int) -> Record:
    headers = [
        ("reason", refusal.reason.encode("utf-8", "replace")),
        ("origin", refusal.origin.encode()),
        ("subject", refusal.subject.encode()),
        ("count", str(refusal.count).encode()),
    ]
    again = refusal.again
    if again is not None:
        how = {"format": again.format, "meta": again.meta, "received_ns": again.received_ns}
        headers.append(("again", orjson.dumps(how)))
    return Record(
        subject=refusal.source, value=refusal.raw, timestamp_ns=now_ns, headers=tuple(headers)
    )


def mark_of(offset: int, now_ns: int) -> Entry:
    """Return the mark which says that the record at an offset was put back."""
    headers = (("replays", str(offset).encode()),)
    return Entry(Record(subject="", value=b"", timestamp_ns=now_ns, headers=headers))


@dataclass(frozen=True, slots=True)
class Kept:
    """A refusal as it lies in quarantine."""

    offset: int
    time_ns: int
    source: str
    reason: str
    subject: str
    count: int
    raw: bytes
    again: Again | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """The record at `replays` was put back; `offset` is the mark's own."""

    offset: int
    replays: int


def read_quarantine(
    log: CommitLog,
    offset: int | None = None,
    *,
    salvage: bool = False,
    read: Read[tuple[FrameHeader, bytes]] | None = None,
) -> Iterator[Kept | Mark]:
    """Everything in a quarantine from an offset on, oldest first; what is damaged is left out.

    What is whole and no entry of a quarantine is kept as it is, with that as the reason.

    Args:
        log: The quarantine's.
        offset: Offset to begin at; by default the start.
        salvage: Whether to leave out what the disk cannot read now.
        read: Reads it; by default the log.

    Raises:
        OSError: The disk does not give something.
    """
    start = log.start_offset if offset is None else offset
    for header, body in undamaged(read or log.frames, start, salvage=salvage):
        try:
            entry = read_entry(header, body)
        except UndecodableError as error:
            time_ns = header.first_timestamp_ns
            entry = Kept(header.base_offset, time_ns, "", f"unreadable: {error}", "", 1, body)
        yield entry


def kept_in(log: CommitLog) -> Iterator[tuple[Kept, bool]]:
    """Every refusal in a quarantine that can be read, oldest first, and whether it was put back."""
    found = read_quarantine(log, salvage=True)
    marked = {entry.replays for entry in found if isinstance(entry, Mark)}
    for entry in read_quarantine(log, salvage=True):
        if isinstance(entry, Kept):
            yield entry, entry.offset in marked


def facts_of(kept: Kept, *, replayed: bool) -> dict[str, Any]:
    """A refusal as people see it; bytes that are no text are escaped."""
    return {
        "offset": kept.offset,
        "time_unix_nano": kept.time_ns,
        "source": kept.source,
        "reason": kept.reason,
        "subject": kept.subject,
        "records": kept.count,
        "replayed": replayed,
        **_names_of(kept),
        "raw": kept.raw.decode("utf-8", "backslashreplace"),
    }


def _names_of(kept: Kept) -> dict[str, str]:
    """The service, trace and id of a refused record; empty where its bytes do not say them.

    The service may be known from what it was received with.
    """
    try:
        fields = orjson.loads(kept.raw)
    except ValueError:
        fields = None
    fields = fields if isinstance(fields, dict) else {}
    meta = kept.again.meta if kept.again is not None else {}
    services = (
        *(found.get("service.name") for found in (fields.get("resource"), meta.get("resource"))
          if isinstance(found, dict)),
        meta.get("service"),
    )  # fmt: skip
    named = {
        "service": next((one for one in services if one), ""),
        "trace_id": fields.get("trace_id"),
        "record_id": fields.get("record_id"),
    }
    return {name: value if isinstance(value, str) else "" for name, value in named.items()}


def read_entry(header: FrameHeader, body: bytes) -> Kept | Mark:
    """One entry of a quarantine.

    Raises:
        UndecodableError: It is none.
    """
    source, pairs, raw = read_record(body)
    try:
        if "replays" in pairs:
            return Mark(header.base_offset, int(pairs["replays"]))
        headers = {name: value.decode("utf-8", "replace") for name, value in pairs.items()}
        return Kept(
            offset=header.base_offset,
            time_ns=header.first_timestamp_ns,
            source=source,
            reason=headers.get("reason", ""),
            subject=headers.get("subject", ""),
            count=int(headers.get("count", "1")),
            raw=raw,
            again=_again(pairs.get("again")),
        )
    except ValueError as error:
        raise UndecodableError(f"not an entry of a quarantine: {error}") from None


def _again(data: bytes | None) -> Again | None:
    """Records that an earlier version put here do not say it."""
    if data is None:
        return None
    match orjson.loads(data):
        case {"format": str(format_), "meta": dict(meta), "received_ns": int(received_ns)}:
            return Again(format_, meta, received_ns)
        case other:
            msg = f"{other!r} does not say how it can be taken again"
            raise ValueError(msg)

"""Quarantine: records that can never be delivered, kept with the reason.

Each is one frame of a commit log with one record:

    subject   name of the source
    headers   reason  why it is here
              origin  where it was read from: spool, or file/<generation>
              subject where it would have gone, when that is known
              count   records that the value stands for
    value     the bytes that were refused
    timestamp when it was put here

The frame's producer id and sequence say which record of which origin it is, so that one met again
after a crash is not put here twice.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid5

import structlog

from penstock.collector.core.delivery import Quarantine as QuarantineEffect
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.journal import Entry, Journal, undamaged
from penstock.logd.batch import Record, decode_body
from penstock.logd.frame import FrameHeader
from penstock.logd.store import CommitLog
from penstock.service.clock import Clock

_RETRY_S: Final = 1.0


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


class Quarantine:
    """Keeps refusals, each once."""

    def __init__(self, journal: Journal, incarnation: UUID, clock: Clock) -> None:
        self.journal = journal
        self._incarnation = incarnation
        self._clock = clock
        self._known: set[tuple[bytes, int]] = set()
        self._log = structlog.get_logger()
        self.dropped = 0

    def recover(self) -> None:
        """Know again what is kept already."""
        log = self.journal.log
        self._known = {
            (header.producer_id, header.producer_sequence)
            for header in undamaged(log.headers, log.start_offset)
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
                self._log.warning("quarantine cannot write; trying again")
                await asyncio.sleep(_RETRY_S)
        self.dropped += dropped
        return dropped

    async def put_batch(self, effect: QuarantineEffect) -> int:
        """Keep a batch that logd refused for good; returns what `put` does."""
        lane, batch = effect.lane, effect.batch
        return await self.put(
            [
                Refusal(lane.origin, lane.source, sequence, effect.reason, line, lane.subject)
                for sequence, line in zip(batch.sequences, batch.lines, strict=True)
            ]
        )

    def _offer(self, refusal: Refusal) -> asyncio.Future[int] | None:
        entry = Entry(_record(refusal, self._clock.unix_ns()), *self._identity(refusal))
        try:
            return self.journal.offer(entry)
        except SpoolFullError:
            return None

    def _identity(self, refusal: Refusal) -> tuple[bytes, int]:
        name = f"quarantine\n{refusal.origin}\n{refusal.source}"
        return uuid5(self._incarnation, name).bytes, refusal.sequence


async def _kept(offer: asyncio.Future[int]) -> bool:
    try:
        await offer
    except SpoolFailedError:
        return False
    return True


def _record(refusal: Refusal, now_ns: int) -> Record:
    return Record(
        subject=refusal.source,
        value=refusal.raw,
        timestamp_ns=now_ns,
        headers=(
            ("reason", refusal.reason.encode()),
            ("origin", refusal.origin.encode()),
            ("subject", refusal.subject.encode()),
            ("count", str(refusal.count).encode()),
        ),
    )


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


def read_quarantine(log: CommitLog) -> Iterator[Kept]:
    """Everything in a quarantine, oldest first."""
    for header, body in log.frames(log.start_offset):
        yield _read(header, body)


def _read(header: FrameHeader, body: bytes) -> Kept:
    batch = decode_body(body)
    pairs = batch.column("headers")[0].as_py()
    headers = {name: value.decode("utf-8", "replace") for name, value in pairs}
    return Kept(
        offset=header.base_offset,
        time_ns=header.first_timestamp_ns,
        source=batch.column("subject")[0].as_py(),
        reason=headers.get("reason", ""),
        subject=headers.get("subject", ""),
        count=int(headers.get("count", "1")),
        raw=batch.column("value")[0].as_py(),
    )

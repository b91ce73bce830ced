"""A source's way into the spool, and its account: what every source does once bytes are a payload.

Who can be told no gets `keep`, which raises; who cannot, `keep_or_drop`, which counts; who can be
made to wait, `keep_surely`, which tries on, or, without waiting for the disk while it works, what
`penstock.collector.held_back` has.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from penstock.base.clock import Clock
from penstock.collector.budget import Charge, Share
from penstock.collector.core.ledger import Ledger
from penstock.collector.core.lines import Line
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.limits import INTAKE_LIMITS, IntakeLimits
from penstock.collector.spool import Unit
from penstock.collector.spools import Spooling
from penstock.collector.verdicts import Known


@dataclass(frozen=True, slots=True)
class Payload:
    """What was received in one piece, and how it is to be read again.

    Attributes:
        count: Records in it, as far as the source can tell.
        meta: What the format needs besides.
        verdicts: The gate's on its lines, where they were judged already.
    """

    format: str
    data: bytes
    count: int
    meta: dict[str, Any] = field(default_factory=dict)
    verdicts: Known = ()


def payload_of_lines(
    lines: Sequence[Line],
    *,
    service: str,
    attributes: Mapping[str, str] | None = None,
    rules: Mapping[str, Any] | None = None,
) -> Payload:
    """Raw lines that become log records, with what holds for all of them.

    `rules` is what a source of lines has as its `line_options`.
    """
    return Payload(
        format="lines",
        data=b"\n".join(line.text for line in lines),
        count=len(lines),
        meta={
            "service": service,
            "truncated": [index for index, line in enumerate(lines) if line.truncated],
            "attributes": dict(attributes or {}),
            **({"rules": dict(rules)} if rules else {}),
        },
    )


class Intake:
    """One source's door to the spool.

    Args:
        source: The source's name, under which everything is counted.
        share: What the source may hold of what is not durable yet.
        limits: Of the source's senders, and of its waiting.
    """

    def __init__(
        self,
        source: str,
        *,
        spool: Spooling,
        ledger: Ledger,
        clock: Clock,
        share: Share,
        limits: IntakeLimits = INTAKE_LIMITS,
    ) -> None:
        self.source = source
        self.share = share
        self.limits = limits
        self.clock = clock
        self.log = structlog.get_logger().bind(source=source)
        self._spool = spool
        self._ledger = ledger

    async def offer(self, payload: Payload, *, wait: bool = True) -> asyncio.Future[int]:
        """Hand a payload over; the future is done once it is durable, or raises `SpoolFailedError`.

        Args:
            payload: What was received.
            wait: For room, where the spool is configured to let senders wait.

        Raises:
            SpoolFullError: Nothing was taken.
            SpoolFailedError: Likewise.
        """
        unit = Unit(
            source=self.source,
            format=payload.format,
            payload=payload.data,
            count=payload.count,
            received_ns=self.clock.unix_ns(),
            meta=payload.meta,
            verdicts=payload.verdicts,
        )
        future = await self._spool.put(unit, wait=wait)
        assert future is not None, "only a unit with a sender can be a repeat"
        return future

    async def keep(
        self, payload: Payload, *, wait: bool = True, charge: Charge | None = None
    ) -> None:
        """Return once the payload is durable; raises what `offer` and its future do.

        Who is cancelled here knows nothing of the payload: it may become durable, and is counted.
        Until then it lies here, and what `charge` holds for it goes on to be held.
        """
        future = await self.offer(payload, wait=wait)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if charge is not None:
                rest = charge.split(charge.size)
                future.add_done_callback(lambda _: rest.close())
            raise

    async def keep_or_drop(self, payload: Payload) -> bool:
        """Return once the payload is durable or counted as dropped; whether it is durable."""
        try:
            await asyncio.shield(await self._offer_until_stopped(payload))
        except SpoolFullError:
            self.dropped("spool_full", payload.count)
        except SpoolFailedError as error:
            self.dropped("spool_failed", payload.count)
            self.log.warning("the spool cannot write", error=str(error))
        else:
            return True
        return False

    async def _offer_until_stopped(self, payload: Payload) -> asyncio.Future[int]:
        """`offer`; nobody has the payload any more when its source is stopped while it waits."""
        try:
            return await self.offer(payload)
        except asyncio.CancelledError:
            self._stopped(payload)
            raise

    async def keep_surely(
        self, payload: Payload, *, leave: Callable[[Payload], None] | None = None
    ) -> None:
        """Return once the payload is durable, however long the disk fails.

        What the spool is configured to refuse when it is full is counted as dropped.

        Args:
            payload: What was received.
            leave: Takes what is not durable when this is cancelled, and will not be; None: that is
                counted as dropped.
        """
        leave = leave or self._stopped
        future: asyncio.Future[int] | None = None
        try:
            while True:
                try:
                    future = await self.offer(payload)
                    await asyncio.shield(future)
                except SpoolFailedError as error:
                    future = None
                    self.log.warning("the spool cannot write; trying again", error=str(error))
                    await asyncio.sleep(self.limits.spool_retry_s)
                else:
                    return
        except SpoolFullError:
            self.dropped("spool_full", payload.count)
        except asyncio.CancelledError:
            if future is None:
                leave(payload)
            else:
                leave_where_it_fails(future, payload, leave)
            raise

    def _stopped(self, payload: Payload) -> None:
        self.dropped("stopped", payload.count)

    def dropped(self, reason: str, count: int) -> None:
        """Records were received and given up."""
        self._ledger.dropped(self.source, reason, count)

    def note(self, what: str, count: int = 1) -> None:
        """Count something that is no record; shown in the source's stage of the status."""
        if count:
            self._ledger[self.source].notes[what] += count


def leave_where_it_fails(
    future: asyncio.Future[int], payload: Payload, leave: Callable[[Payload], None]
) -> None:
    """Leave a payload that is on its way into the spool to somebody, if it does not arrive."""

    def settle(done: asyncio.Future[int]) -> None:
        if done.cancelled() or done.exception() is not None:
            leave(payload)

    future.add_done_callback(settle)

"""A source's way into the spool, and its account: what every source does once bytes are a payload.

    persist             raises what the spool refuses: for senders that are answered
    persist_or_drop     counts what the spool refuses as dropped: for datagrams
    persist_with_retry  waits and tries again until it is durable: for input that can wait
    RetryBuffer         the same without waiting for the disk while it works: for streams without
                        acks

A disk that is full or fails takes nothing for a while. What was read from a stream without acks is
held then and tried again until it is durable, in the order in which it came, and what comes after
it waits; then nothing is read either, and the sender's own queue takes over.
"""

import asyncio
import functools
import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from penstock.base.clock import Clock
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.ledger import Ledger
from penstock.collector.limits import SPOOL_WRITER_LIMITS, SpoolWriterLimits
from penstock.collector.sources.line_framing import Line
from penstock.collector.spool.memory_budget import Charge, Share
from penstock.collector.spool.spool import Spooling, Unit
from penstock.collector.spool.validation_cache import Known


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes received at once, and how they are read again.

    Attributes:
        count: Records in it, as far as the source can tell.
        meta: Metadata that the format needs.
        verdicts: The validator's on its lines, where they were validated already.
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


class SpoolWriter:
    """One source's access to the spool.

    Args:
        source: The source's name, under which everything is counted.
        share: Share of the source in what is not durable yet.
        limits: Bounds of the source's senders, and of its waits.
    """

    def __init__(
        self,
        source: str,
        *,
        spool: Spooling,
        ledger: Ledger,
        clock: Clock,
        share: Share,
        limits: SpoolWriterLimits = SPOOL_WRITER_LIMITS,
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
            payload: Received payload.
            wait: Whether to wait for room, where the spool is configured to let senders wait.

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

    async def persist(
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

    async def persist_or_drop(self, payload: Payload) -> bool:
        """Return once the payload is durable or counted as dropped; whether it is durable."""
        try:
            await asyncio.shield(await self._offer_until_stopped(payload))
        except SpoolFullError:
            self.dropped("spool_full", payload.count)
        except SpoolFailedError as error:
            self.dropped("spool_failed", payload.count)
            self.log.warning("spool_write_failed", error=str(error))
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

    async def persist_with_retry(
        self, payload: Payload, *, leave: Callable[[Payload], None] | None = None
    ) -> None:
        """Return once the payload is durable, however long the disk fails.

        What the spool is configured to refuse when it is full is counted as dropped.

        Args:
            payload: Received payload.
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
                    self.log.warning("spool_write_failed", error=str(error))
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


class _Held(NamedTuple):
    """A payload by its turn; no two have the same."""

    turn: int
    payload: Payload
    charge: Charge


class RetryBuffer:
    """The payloads of one source.

    Args:
        spool_writer: Writer that receives them.
    """

    def __init__(self, spool_writer: SpoolWriter) -> None:
        self._spool_writer = spool_writer
        self._turns = itertools.count()
        self._flying: set[asyncio.Future[int]] = set()
        self._failed: list[_Held] = []  # a heap
        self._retrying: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self, payload: Payload, charge: Charge) -> None:
        """Return once it is on its way into the spool; `charge` is held until it is durable.

        What a spool is configured to refuse when it is full is counted as dropped. Who is cancelled
        here has the payload still, and the charge.
        """
        while self._retrying is not None or self._is_unsettled():
            if self._retrying is None:
                await asyncio.sleep(0)
            else:
                await asyncio.wait([self._retrying])
        await self._offer(_Held(next(self._turns), payload, charge))

    async def finish(self) -> None:
        """Return once everything is durable."""
        while self._flying or self._retrying is not None:
            await asyncio.wait(self._flying if self._retrying is None else [self._retrying])

    def close(self) -> None:
        """Give up what is not on its way into the spool, and count it as dropped."""
        self._closed = True
        if self._retrying is not None:
            self._retrying.cancel()
        for held in self._failed:
            self._drop(held, "stopped")
        self._failed.clear()

    async def _offer(self, held: _Held) -> asyncio.Future[int] | None:
        """Hand it to the spool; None where it is not on its way there."""
        try:
            future = await self._spool_writer.offer(held.payload)
        except SpoolFullError:
            self._drop(held, "spool_full")
        except SpoolFailedError as error:
            self._try_again(held, error)
        else:
            self._flying.add(future)
            future.add_done_callback(functools.partial(self._settle, held))
            return future
        return None

    def _is_unsettled(self) -> bool:
        """Return whether a write has ended, perhaps with an error that is not handled yet."""
        return any(future.done() for future in self._flying)

    def _settle(self, held: _Held, done: "asyncio.Future[int]") -> None:
        self._flying.discard(done)
        if done.cancelled():
            self._drop(held, "stopped")
        elif error := done.exception():
            self._try_again(held, error)
        else:
            held.charge.close()

    def _try_again(self, held: _Held, error: BaseException) -> None:
        if self._closed:
            self._drop(held, "spool_failed")
            return
        heapq.heappush(self._failed, held)
        if self._retrying is None:
            self._spool_writer.log.warning("spool_write_failed", error=str(error))
            self._retrying = asyncio.ensure_future(self._retry())
            self._retrying.add_done_callback(self._retried)

    async def _retry(self) -> None:
        """One after the other, until none is left."""
        while self._failed:
            await asyncio.sleep(self._spool_writer.limits.spool_retry_s)
            while self._failed:
                held = heapq.heappop(self._failed)
                try:
                    future = await self._offer(held)
                except asyncio.CancelledError:
                    self._drop(held, "stopped")
                    raise
                if future is not None:
                    await asyncio.wait([future])
                if held in self._failed:
                    break

    def _retried(self, done: asyncio.Task[None]) -> None:
        self._retrying = None
        if not done.cancelled() and (error := done.exception()) is not None:
            raise error

    def _drop(self, held: _Held, reason: str) -> None:
        held.charge.close()
        self._spool_writer.dropped(reason, held.payload.count)

"""What senders wait with who can neither be told no nor send again: streams without acks.

A disk that is full or fails takes nothing for a while. What was read from such a sender is held
and tried again until it is durable, in the order in which it came, and whoever comes after it
waits; then nothing is read either, and the sender's own queue takes over.
"""

import asyncio
import functools
import heapq
import itertools
from typing import NamedTuple

from penstock.collector.budget import Charge
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.intake import Intake, Payload


class _Held(NamedTuple):
    """A payload by its turn; no two have the same."""

    turn: int
    payload: Payload
    charge: Charge


class HeldBack:
    """The payloads of one source.

    Args:
        intake: Where they go.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
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
            future = await self._intake.offer(held.payload)
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
        """Whether something failed, perhaps, that is not among what failed yet."""
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
            self._intake.log.warning("the spool cannot write; senders wait", error=str(error))
            self._retrying = asyncio.ensure_future(self._retry())
            self._retrying.add_done_callback(self._retried)

    async def _retry(self) -> None:
        """One after the other, until none is left."""
        while self._failed:
            await asyncio.sleep(self._intake.limits.spool_retry_s)
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
        self._intake.dropped(reason, held.payload.count)

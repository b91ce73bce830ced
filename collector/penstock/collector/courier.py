"""The shell of the delivery core: carries out its effects, brings answers back, keeps time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import assert_never

from penstock.base.clock import Clock
from penstock.collector.core.delivery import (
    Delivery,
    Effect,
    Event,
    Flush,
    Publish,
    Quarantine,
    Settled,
    Tick,
)
from penstock.collector.limits import PENDING_BYTES_MAX, URGENT_PENDING_BYTES_MAX
from penstock.collector.publisher import Answer


class Courier:
    """Runs one `Delivery` on the event loop.

    Args:
        publish: Sends a batch and returns logd's answer; may be exchanged for another.
        quarantine: Returns when a refused batch is durably in quarantine.
    """

    def __init__(
        self,
        delivery: Delivery,
        clock: Clock,
        *,
        publish: Callable[[Publish], Awaitable[Answer]],
        quarantine: Callable[[Quarantine], Awaitable[None]],
    ) -> None:
        self.delivery = delivery
        self._clock = clock
        self.publish = publish
        self._quarantine = quarantine
        self._effects: asyncio.Queue[Effect] = asyncio.Queue()
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._pending_bytes = 0
        self._urgent_bytes = 0

    def handle(self, event: Event) -> None:
        """Apply an event now; what it causes happens in `run`."""
        for effect in self.delivery.handle(event, self._clock.monotonic_ns()):
            self._effects.put_nowait(effect)
        self._urgent_bytes = self.delivery.urgent_bytes
        self._pending_bytes = self.delivery.pending_bytes - self._urgent_bytes
        self._room.set()
        self._arm()

    async def wait_for_room(self, *, urgent: bool = False) -> None:
        """Return when more records may be read; urgent ones have room of their own."""
        while not self._has_room(urgent=urgent):
            self._room.clear()
            await self._room.wait()

    def _has_room(self, *, urgent: bool) -> bool:
        if urgent:
            return self._urgent_bytes < URGENT_PENDING_BYTES_MAX
        return self._pending_bytes < PENDING_BYTES_MAX

    async def run(self) -> None:
        """Carry out effects in order until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                effect = await self._effects.get()
                match effect:
                    case Publish():
                        tasks.create_task(self._send(effect))
                    case Quarantine():
                        tasks.create_task(self._settle(effect))
                    case _:
                        assert_never(effect)

    async def drain(self) -> None:
        """Return when nothing is pending."""
        self.handle(Flush())
        while self.delivery.pending_records:
            self._room.clear()
            await self._room.wait()

    async def _send(self, effect: Publish) -> None:
        self.handle(await self.publish(effect))

    async def _settle(self, effect: Quarantine) -> None:
        await self._quarantine(effect)
        self.handle(Settled(effect.lane, effect.batch))

    def _arm(self) -> None:
        deadline_ns = self.delivery.next_deadline_ns()
        if self._timer is not None:
            if deadline_ns is not None and deadline_ns == self._timer_ns:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ns is not None:
            wait_s = max(0, deadline_ns - self._clock.monotonic_ns()) / 1e9
            self._timer_ns = deadline_ns
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.handle(Tick())

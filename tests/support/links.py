"""A NatsLink on the test's event loop, and what it brought."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.base.clock import SystemClock
from penstock.logd.intake.turn import Message
from penstock.logd.nats.config import NatsSettings
from penstock.logd.nats.link import LinkEvent, LinkState, LinkTiming, NatsLink


class LinkUnderTest(NatsLink):
    """A link that remembers what came of it."""

    def __init__(self, settings: dict[str, Any], timing: LinkTiming | None = None) -> None:
        self.messages: list[Message] = []
        self.events: list[LinkEvent] = []
        super().__init__(
            NatsSettings.model_validate(settings).access(),
            name="test",
            on_messages=self._keep,
            rng=random.Random(1),
            clock=SystemClock(),
            on_event=self.events.append,
            timing=timing,
        )

    @property
    def payloads(self) -> list[bytes]:
        """Of everything that came."""
        return [message.payload for message in self.messages]

    def states(self) -> list[LinkState]:
        """What happened, in order."""
        return [event.state for event in self.events]

    def _keep(self, messages: dict[bytes, list[Message]]) -> None:
        for arrived in messages.values():
            self.messages.extend(arrived)


@asynccontextmanager
async def running_link(
    settings: dict[str, Any], *subjects: str, timing: LinkTiming | None = None
) -> AsyncIterator[LinkUnderTest]:
    """A link that is connected, subscribed and kept up until the block ends."""
    link = LinkUnderTest(settings, timing)
    for subject in subjects:
        link.subscribe(subject)
    await link.connect()
    running = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        link.close()
        await asyncio.wait_for(running, 20)

"""Lanes: what is stored in the order it is sent, and a bounded number of them."""

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile

from penstock.logd.acks import PubAck


@dataclass(slots=True)
class Lane:
    """The plain messages, or the batches of a subject.

    Attributes:
        turn: Held by who sends next.
        window: Messages sent, in order, with those that were answered out of order.
        sequence: Of the last batch.
        producer_id: Of the batches.
        users: Calls that wait for their turn, and messages without an answer.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    window: deque[asyncio.Task[PubAck]] = field(default_factory=deque)
    sequence: int = 0
    producer_id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    users: int = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        """Somebody needs the lane until the block ends."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    async def room(self, limit: int) -> None:
        """Wait until the message `limit` before is settled; by so many others overtake at most."""
        while self.window and (len(self.window) >= limit or self.window[0].done()):
            await asyncio.wait({self.window[0]})
            self.window.popleft()

    async def before_me(self) -> None:
        """Wait until every message before the running task's is settled.

        The one just before is not enough: it may have been refused for good, or given up, while
        one further ahead is still to be sent again.
        """
        me = asyncio.current_task()
        ahead = set(takewhile(lambda task: task is not me, self.window))
        if ahead:
            await asyncio.wait(ahead)


class Lanes:
    """The lanes of the subjects batches are published on.

    Of a lane that is forgotten every batch is settled: acked, refused, or given up. So when its
    subject comes back under another producer id, nothing is sent again and nothing was left out.
    Only a batch that was given up without an answer may still be under way; on a lane that is
    remembered logd refuses it when it comes too late, else it is stored after those sent since.

    Args:
        limit: Lanes; more only while as many are in use.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lanes: OrderedDict[str, Lane] = OrderedDict()

    def __len__(self) -> int:
        """Those that are remembered."""
        return len(self._lanes)

    def __iter__(self) -> Iterator[str]:
        """Their subjects, that used longest ago first."""
        return iter(self._lanes)

    def of(self, subject: str) -> Lane:
        """A subject's lane; the one idle longest may be forgotten for it."""
        lane = self._lanes.get(subject)
        if lane is None:
            self._forget()
            lane = self._lanes[subject] = Lane()
        self._lanes.move_to_end(subject)
        return lane

    def _forget(self) -> None:
        """Make room for another; lanes that became too many while all were in use go now."""
        excess = len(self._lanes) + 1 - self._limit
        idle = (subject for subject, lane in self._lanes.items() if not lane.users)
        for subject in [found for _, found in zip(range(excess), idle, strict=False)]:
            del self._lanes[subject]

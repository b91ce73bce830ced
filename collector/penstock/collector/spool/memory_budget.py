"""Bytes that network sources hold of what is not durable yet, under one bound and a share for each.

They are taken while they are read, before anything is known of what they will become, and given
back once they are durable, refused or dropped. A sender that can come again is refused at once;
who cannot is not read from until there is room. A sender that begins messages and never ends them
holds its source's share at most, and no longer than the source waits for the rest.
"""

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass, field
from operator import itemgetter
from types import TracebackType
from typing import Self

from penstock.collector.descriptors import Descriptors


class Budget:
    """The bound of all sources together.

    Who waits is let go on in the order of asking, whichever source it belongs to, so that none
    starves while others take turns. Who finds its source's share used up stands aside until that
    changes; who only finds too little left of the whole is overtaken by nobody.

    Args:
        bytes_max: Bound of all shares together.
        share_bytes_max: Bound of one source's share.
        descriptors: Descriptors of connections; None: they are not bounded.
    """

    def __init__(
        self, *, bytes_max: int, share_bytes_max: int, descriptors: Descriptors | None = None
    ) -> None:
        self.descriptors = descriptors
        self.bytes_max = bytes_max
        self.share_bytes_max = min(share_bytes_max, bytes_max)
        self.used = 0
        self.shares: dict[str, Share] = {}
        self.tickets = itertools.count()
        self._given: asyncio.Future[None] | None = None

    def share(self, source: str) -> "Share":
        """A source's part; the same one for the same name."""
        return self.shares.setdefault(source, Share(self))

    def limit(self, *, bytes_max: int, share_bytes_max: int) -> None:
        """Go on under other bounds; what is held stays, and above them nothing is taken."""
        self.bytes_max = bytes_max
        self.share_bytes_max = min(share_bytes_max, bytes_max)
        self.grant()

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes fit; a share's own bound is not considered."""
        return self.used + size <= self.bytes_max

    def is_awaited(self) -> bool:
        """Return whether a share waits for nothing but room in the whole budget."""
        return any(share.first_ticket() is not None for share in self.shares.values())

    def given(self) -> asyncio.Future[None]:
        """Done when something is given back next, or the bounds change."""
        if self._given is None:
            self._given = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._given)

    def grant(self) -> None:
        """Let go on who waited longest, as far as there is room."""
        if self._given is not None:
            self._given.set_result(None)
            self._given = None
        while True:
            first = [(t, s) for s in self.shares.values() if (t := s.first_ticket()) is not None]
            if not first or not min(first, key=itemgetter(0))[1].let_go():
                return


@dataclass(slots=True, eq=False)
class _Waiter:
    ticket: int
    size: int
    granted: asyncio.Future[None]


class Share:
    """The bytes that one source may hold.

    Attributes:
        used: Bytes held now.
        peak: The most that was held at once.
        refused: Number of refusals for lack of room, to callers that could not wait, or no longer.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._waiters: deque[_Waiter] = deque()
        self.used = 0
        self.peak = 0
        self.refused = 0

    @property
    def descriptors(self) -> Descriptors | None:
        """The process's descriptors that connections may take; None where these are not bounded."""
        return self._budget.descriptors

    @property
    def bytes_max(self) -> int:
        """The bound of `used`."""
        return self._budget.share_bytes_max

    def take(self, size: int) -> bool:
        """Hold so much more; false, and nothing is held, when there is no room or others wait."""
        if size and not self.is_free(size):
            self.refused += 1
            return False
        self._hold(size)
        return True

    async def wait(self, size: int, timeout_s: float | None = None) -> bool:
        """Hold so much more once there is room, in the order of asking; false after the time."""
        if not size or self.is_free(size):
            self._hold(size)
            return True
        granted = asyncio.get_running_loop().create_future()
        waiter = _Waiter(next(self._budget.tickets), size, granted)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.granted
        except TimeoutError:
            self._leave(waiter)
            self.refused += 1
            return False
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        return True

    @property
    def is_within(self) -> bool:
        """True if the held bytes are within the bounds, which `grow` may exceed."""
        budget = self._budget
        return self.used <= self.bytes_max and budget.used <= budget.bytes_max

    async def settled(self, timeout_s: float) -> bool:
        """Wait until it `is_within`; false after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_within:
                    await self._budget.given()
        except TimeoutError:
            self.refused += 1
            return False
        return True

    def grow(self, size: int) -> None:
        """Hold so much more, room or none: of what has turned out to be larger than it was."""
        self._hold(size)

    def give(self, size: int) -> None:
        """Hold so much less."""
        if size:
            self.used -= size
            self._budget.used -= size
            self._budget.grant()

    def first_ticket(self) -> int | None:
        """Return the longest waiter's ticket; None without one, or where the share is used up."""
        while self._waiters and self._waiters[0].granted.done():
            self._waiters.popleft()  # cancelled in this turn of the loop
        if not self._waiters or self.used + self._waiters[0].size > self.bytes_max:
            return None
        return self._waiters[0].ticket

    def let_go(self) -> bool:
        """Let go on who waits longest here; false when there is too little left of the whole."""
        if not self._budget.has_room(self._waiters[0].size):
            return False
        waiter = self._waiters.popleft()
        self._hold(waiter.size)
        waiter.granted.set_result(None)
        return True

    def _leave(self, waiter: _Waiter) -> None:
        """Wait no more; what was granted in the same turn of the loop is given back."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._budget.grant()
        elif waiter.granted.done() and not waiter.granted.cancelled():
            self.give(waiter.size)

    def is_free(self, size: int) -> bool:
        """Return whether there is room and no earlier waiter would be overtaken."""
        within = not self._waiters and self.used + size <= self.bytes_max
        return within and self._budget.has_room(size) and not self._budget.is_awaited()

    def _hold(self, size: int) -> None:
        self.used += size
        self.peak = max(self.peak, self.used)
        self._budget.used += size


@dataclass(slots=True)
class Charge:
    """Bytes of a share that one message holds until it is closed.

    Attributes:
        size: Bytes.
    """

    share: Share
    size: int = field(default=0, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Whatever happened, nothing is held any more."""
        self.close()

    def take(self, size: int) -> bool:
        """Hold so much more; false when there is no room."""
        if not self.share.take(size):
            return False
        self.size += size
        return True

    async def wait(self, size: int, timeout_s: float | None = None) -> bool:
        """Hold so much more once there is room; false after the time."""
        if not await self.share.wait(size, timeout_s):
            return False
        self.size += size
        return True

    def grow(self, size: int) -> None:
        """Hold at least so much in all, whether there is room or none."""
        more = max(0, size - self.size)
        self.share.grow(more)
        self.size += more

    def split(self, size: int) -> "Charge":
        """A part of it as a separate charge."""
        assert 0 <= size <= self.size, "no more than is held"
        part = Charge(self.share)
        self.size -= size
        part.size = size
        return part

    def close(self) -> None:
        """Give everything back."""
        size, self.size = self.size, 0
        self.share.give(size)

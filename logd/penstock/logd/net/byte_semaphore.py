"""Room for what waits: a request that finds none waits in line."""

import asyncio
from collections import deque


class ByteSemaphore:
    """A number of bytes, taken and given back. Used on the event loop.

    Args:
        limit: Bytes there are.

    Attributes:
        held: Bytes that are taken.
    """

    def __init__(self, limit: int) -> None:
        self.held = 0
        self._limit = limit
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def take(self, size: int) -> int:
        """Wait for room; what is larger than all there is takes all of it.

        Returns:
            What to give back.
        """
        size = min(size, self._limit)
        if self._line or self.held + size > self._limit:
            turn = asyncio.get_running_loop().create_future()
            self._line.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give(size)
                else:
                    self._line.remove((size, turn))
                    self._admit()
                raise
            return size
        self.held += size
        return size

    def give(self, size: int) -> None:
        """Give back what `take` returned."""
        self.held -= size
        self._admit()

    def _admit(self) -> None:
        while self._line and self.held + self._line[0][0] <= self._limit:
            size, turn = self._line.popleft()
            self.held += size
            turn.set_result(None)

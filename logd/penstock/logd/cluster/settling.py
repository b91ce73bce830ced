"""Makes things as they are wanted: one at a time for each partition, many beside one another."""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.logd.core.cluster.records import PartitionKey


class Settling:
    """Used on the event loop.

    Args:
        bring_about: Makes one partition as is wanted by then.
    """

    def __init__(self, bring_about: Callable[[PartitionKey], Awaitable[None]]) -> None:
        self._bring_about = bring_about
        self._dirty: set[PartitionKey] = set()
        self._working: dict[PartitionKey, asyncio.Task[None]] = {}
        self._closing = False

    def touch(self, place: PartitionKey) -> None:
        """Something else is wanted of it; not after `close`."""
        if self._closing:
            return
        self._dirty.add(place)
        if place not in self._working:
            self._working[place] = asyncio.create_task(self._work(place))

    async def settled(self, place: PartitionKey) -> None:
        """Wait until nothing is being done about it."""
        while (task := self._working.get(place)) is not None:
            await asyncio.wait([task])

    async def close(self) -> None:
        """Begin nothing more; wait for what is being done."""
        self._closing = True
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    async def _work(self, place: PartitionKey) -> None:
        try:
            while place in self._dirty and not self._closing:
                self._dirty.discard(place)
                await self._bring_about(place)
        finally:
            del self._working[place]

"""A consumer in a group, on an event loop and blocking."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from penstock.base.clock import monotonic_ns
from penstock.logd.client.grouping import GroupOptions, GroupRecord, GroupRows, Hand, Reading
from penstock.logd.client.membership import Membership
from penstock.logd.core.cluster.records import GroupPartition

if TYPE_CHECKING:
    from penstock.logd.client.asynchronous import AsyncLogClient

Item = TypeVar("Item", GroupRecord, GroupRows)
Answer = TypeVar("Answer")

AsyncPositions = Callable[[GroupPartition], Awaitable[int | None]]
"""Where a consumer's own store has it go on in a partition; None: the store knows nothing of it."""

Positions = Callable[[GroupPartition], int | None]

_REPORT_NS: Final = 200_000_000
"""Between two words to the loop about what the caller's thread is done with."""


class AsyncGroupConsumer:
    """Made by `AsyncLogClient.join_group`; a member while its `async with` lasts.

    What was given counts as done with when the next is asked for, or `commit` is called.
    """

    def __init__(
        self,
        clients: "tuple[AsyncLogClient, AsyncLogClient]",
        group: str,
        streams: tuple[str, ...],
        options: GroupOptions,
        positions: AsyncPositions | None,
    ) -> None:
        self.clients = clients
        self.membership = Membership(*clients, group, streams, options, asks=positions is not None)
        self.hand = Hand()
        self._positions = positions

    async def __aenter__(self) -> Self:
        """Join; partitions come when the others have let go of them."""
        self.membership.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As `close`."""
        await self.close()

    async def close(self) -> None:
        """Commit what is done with, as the options say, and leave: others go on at once.

        Raises:
            UnavailableError: It may not be committed.
        """
        async with self.clients[1]:
            await self.report()
            await self.membership.close()

    @property
    def member(self) -> str:
        """The id of this membership."""
        return self.membership.id

    def partitions(self) -> list[GroupPartition]:
        """What it may be reading now."""
        return self.membership.held()

    def __aiter__(self) -> AsyncIterator[GroupRecord]:
        """Records, one by one and without end; see `record`."""
        return self._each(self.record)

    def batches(self) -> AsyncIterator[GroupRows]:
        """Rows of whole frames, without end; see `record`."""
        return self._each(self.rows)

    async def record(self) -> GroupRecord:
        """The next record of any partition it was granted; what was given last is done with.

        Waits for one. May be cancelled: nothing is passed over.

        Raises:
            RefusedError: `FENCED`: the session ended and others have the partitions; join again.
                `GROUP_REFUSED`; `OUT_OF_RANGE`, unless the options say where to go on.
            CorruptError: Damaged or missing frames.
        """
        return await self._next(self.hand.record)

    async def rows(self) -> GroupRows:
        """As `record`, all the rows of a frame."""
        return await self._next(self.hand.rows)

    async def commit(self) -> None:
        """Commit the positions after everything that was given, the last of it too; durable.

        Raises:
            RefusedError: `FENCED`: the session ended before some of it was committed; others do
                that again.
            UnavailableError: It may not be committed.
        """
        self.hand.account()
        await self.report()
        await self.membership.commit()

    # Parts; the blocking consumer calls them, too.

    async def report(self) -> None:
        """Take note of what is done with."""
        progress = self.hand.progress()
        if progress is not None:
            await self.membership.done(*progress)

    async def fill(self) -> Reading | None:
        """Have rows in hand on return; or the partition of which it must be told where to begin."""
        await self.report()
        reading = self.hand.reading
        if reading is not None:
            self.hand.drop()
            self.membership.release(reading)
        reading, rows = await self.membership.take()
        if rows is None:
            return reading
        self.hand.put(reading, rows)
        return None

    def pick(self, give: Callable[[], Item | None]) -> Item | None:
        """What is to be given of what is in hand, while it may be."""
        reading = self.hand.reading
        if reading is None or not self.membership.may_read(reading):
            return None
        return give()

    async def _next(self, give: Callable[[], Item | None]) -> Item:
        self.hand.account()
        await self.report()
        while True:
            item = self.pick(give)
            if item is not None:
                return item
            asked = await self.fill()
            if asked is not None:
                await self._begin(asked)

    async def _begin(self, reading: Reading) -> None:
        assert self._positions is not None
        try:
            offset = await self._positions(reading.partition)
        except BaseException:
            self.membership.ask_again(reading)
            raise
        self.membership.begin(reading, offset)

    async def _each(self, following: Callable[[], Awaitable[Item]]) -> AsyncIterator[Item]:
        while True:
            yield await following()


class GroupConsumer:
    """As `AsyncGroupConsumer`, blocking; heartbeats go out from a thread of its own.

    Made by `LogClient.join_group`. One thread uses it, which `positions` is called on, too.
    """

    def __init__(
        self,
        make: "Callable[[], tuple[AsyncLogClient, AsyncLogClient]]",
        group: str,
        streams: tuple[str, ...],
        options: GroupOptions,
        positions: Positions | None,
    ) -> None:
        self._positions = positions
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"group {group}", daemon=True
        )
        self._reported_ns = 0

        async def consumer() -> AsyncGroupConsumer:
            return AsyncGroupConsumer(make(), group, streams, options, _asked_elsewhere(positions))

        self._make = consumer
        self._consumer: AsyncGroupConsumer | None = None

    def __enter__(self) -> Self:
        """Join; partitions come when the others have let go of them."""
        self._thread.start()
        self._consumer = self._run(self._make())
        self._run(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As `close`."""
        self.close()

    def close(self) -> None:
        """As `AsyncGroupConsumer.close`."""
        if self._loop.is_closed():
            return
        try:
            self._run(self._shut())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def member(self) -> str:
        """The id of this membership."""
        return self._inner.member

    def partitions(self) -> list[GroupPartition]:
        """What it may be reading now."""
        return self._inner.partitions()

    def __iter__(self) -> Iterator[GroupRecord]:
        """Records, one by one and without end; see `record`."""
        while True:
            yield self.record()

    def batches(self) -> Iterator[GroupRows]:
        """Rows of whole frames, without end; see `record`."""
        while True:
            yield self.rows()

    def record(self) -> GroupRecord:
        """As `AsyncGroupConsumer.record`."""
        return self._next(self._inner.hand.record)

    def rows(self) -> GroupRows:
        """As `AsyncGroupConsumer.rows`."""
        return self._next(self._inner.hand.rows)

    def commit(self) -> None:
        """As `AsyncGroupConsumer.commit`."""
        self._run(self._inner.commit())

    @property
    def _inner(self) -> AsyncGroupConsumer:
        assert self._consumer is not None, "use it in a `with`"
        return self._consumer

    def _next(self, give: Callable[[], Item | None]) -> Item:
        inner = self._inner
        inner.hand.account()
        now_ns = monotonic_ns()
        if now_ns - self._reported_ns >= _REPORT_NS:
            self._reported_ns = now_ns
            self._run(inner.report())
        while True:
            item = inner.pick(give)
            if item is not None:
                return item
            asked = self._run(inner.fill())
            if asked is not None:
                self._begin(asked)

    def _begin(self, reading: Reading) -> None:
        assert self._positions is not None
        try:
            offset = self._positions(reading.partition)
        except BaseException:
            self._loop.call_soon_threadsafe(self._inner.membership.ask_again, reading)
            raise
        self._loop.call_soon_threadsafe(self._inner.membership.begin, reading, offset)

    async def _shut(self) -> None:
        if self._consumer is not None:
            async with self._consumer.clients[0]:
                await self._consumer.close()

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt: what was about to come is still there
            raise


def _asked_elsewhere(positions: Positions | None) -> AsyncPositions | None:
    """Tells the membership only that there is a store: it is asked on the caller's thread."""
    if positions is None:
        return None

    async def never(_: GroupPartition) -> int | None:
        raise AssertionError

    return never

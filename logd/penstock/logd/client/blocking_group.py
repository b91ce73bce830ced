"""A consumer in a group that blocks; its heartbeats go out from its own thread."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from penstock.base.clock import monotonic_ns
from penstock.logd.client.access import Access
from penstock.logd.client.async_client import AsyncLogClient
from penstock.logd.client.following import GroupOptions
from penstock.logd.client.group_consumer import (
    AsyncGroupConsumer,
    AsyncPositions,
    GroupRecord,
    GroupRows,
    Item,
    PartitionConsumer,
)
from penstock.logd.client.routing import Prefer
from penstock.logd.metadata.records import GroupPartition

Answer = TypeVar("Answer")

Positions = Callable[[GroupPartition], int | None]
"""Function from a partition to the next offset by the consumer's own store; None: unknown."""

_REPORT_NS: Final = 200_000_000
"""Between two words to the loop about what the caller's thread is done with."""


class Connects(Protocol):
    """A client's words for where it connects and how, as both clients have them."""

    server: str
    timeout_s: float
    prefer: Prefer
    rack: str
    access: Access


class GroupConsumer:
    """A member of a consumer group that blocks; its heartbeats are sent by a thread.

    Made by `LogClient.join_group`. One thread uses it, which `positions` is called on, too. In a
    forked child it is no member: every call raises RuntimeError, and `close` does nothing.
    """

    def __init__(
        self,
        client: Connects,
        group: str,
        streams: tuple[str, ...],
        options: GroupOptions,
        positions: Positions | None,
    ) -> None:
        self._positions = positions
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"group {group}", daemon=True
        )
        self._reported_ns = 0

        async def consumer() -> AsyncGroupConsumer:
            asks = _asked_elsewhere(positions)
            beside = AsyncLogClient(
                client.server,
                timeout_s=client.timeout_s,
                prefer=client.prefer,
                rack=client.rack,
                access=client.access,
            )
            return AsyncGroupConsumer(beside, group, streams, options, asks)

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
        """Leave the group; see `close`."""
        self.close()

    def close(self) -> None:
        """Leave the group and end the thread; see `AsyncGroupConsumer.close`."""
        if self._loop.is_closed() or self._process != os.getpid():
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
        """Return the partitions that are assigned to this member now."""
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
        """Return the next record, and wait for it; see `AsyncGroupConsumer.record`."""
        return self._next(self._inner.hand.record)

    def rows(self) -> GroupRows:
        """Return the next rows, and wait for them; see `AsyncGroupConsumer.rows`."""
        return self._next(self._inner.hand.rows)

    def commit(self) -> None:
        """Commit what the caller is done with; see `AsyncGroupConsumer.commit`."""
        self._run(self._inner.commit())

    @property
    def _inner(self) -> AsyncGroupConsumer:
        assert self._consumer is not None, "use it in a `with`"
        if self._process != os.getpid():
            raise RuntimeError("this member is the parent process's; join again after the fork")
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

    def _begin(self, reading: PartitionConsumer) -> None:
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

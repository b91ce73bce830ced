"""What was purged does not reach Liftbridge's subscribers, though its files are there."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.logd.cluster.streams import ClusterStreams
from penstock.logd.errors import RefusedError
from penstock.logd.intake.turn import Message
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.subscribe import CHUNK_ROWS, SubscribeService
from penstock.logd.wire import logd_liftbridge_pb2 as wire
from tests.support.one_node import OneNode, one_node
from tests.unit.logd.test_purging import LOGS


class Everybody:
    """Permits everything."""

    def read(self, *_: object) -> None:
        """Permitted."""

    async def spend(self, *_: object) -> None:
        """Permitted."""


class Calling:
    """A subscriber that does something when a record reaches it."""

    def __init__(self, meanwhile: Callable[[int], Awaitable[None]] | None = None) -> None:
        self.offsets: list[int] = []
        self._meanwhile = meanwhile

    async def write(self, message: wire.Message) -> None:
        """Take the empty message that says it is subscribed, then records."""
        if not message.subject:
            return
        self.offsets.append(message.offset)
        if self._meanwhile is not None:
            await self._meanwhile(message.offset)


async def subscribe(streams: ClusterStreams, calling: Any, **request: Any) -> Any:
    permits: Any = Everybody()
    subscribing = SubscribeService(streams, permits, max_subscriptions=1)
    with pytest.raises((CallError, RefusedError)) as ended:
        await subscribing.subscribe(wire.SubscribeRequest(stream="logs", **request), calling)
    return ended.value


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[OneNode]:
    async with one_node(tmp_path, LOGS) as found:
        yield found


async def store(node: OneNode, count: int) -> ClusterStreams:
    """Have so many records in one frame."""
    partition = node.partition("logs")
    offset = partition.store([Message(b"t.a", b"", b"", b"x") for _ in range(count)])
    await partition.wait_committed(offset)
    return node.engine.streams


async def test_backward_it_ends_where_what_was_purged_begins(node: OneNode) -> None:
    streams, calling = await store(node, 6), Calling()
    await streams.purge("logs", 0, 3)
    assert node.partition("logs").log.start_offset == 0, "its file is there"
    ended = await subscribe(streams, calling, startPosition=wire.LATEST, reverse=True)
    assert (ended.code, calling.offsets) == (grpc.StatusCode.RESOURCE_EXHAUSTED, [5, 4, 3])


async def test_forward_who_is_behind_a_purge_is_told(node: OneNode) -> None:
    """When what was read before the purge has been sent."""
    streams = await store(node, CHUNK_ROWS + 20)

    async def purge(offset: int) -> None:
        if offset == 1:
            await streams.purge("logs", 0, CHUNK_ROWS + 10)

    calling = Calling(purge)
    ended = await subscribe(streams, calling, startPosition=wire.EARLIEST)
    assert (ended.code, calling.offsets) == ("OUT_OF_RANGE", list(range(CHUNK_ROWS)))

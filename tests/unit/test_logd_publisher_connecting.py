"""Connecting ends in time, whatever nats-py does with the request to stop."""

import asyncio
from typing import Any

import pytest

from penstock.logd.publisher import connect_within


class Deaf:
    """Connects for ever and loses the first cancellations, as `asyncio.wait_for` can."""

    def __init__(self, lost: int) -> None:
        self.lost = lost

    async def connect(self, **_: Any) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.lost:
                    raise
                self.lost -= 1


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_lost_cancellation_is_sent_again(lost: int) -> None:
    client: Any = Deaf(lost)
    with pytest.raises(TimeoutError):
        await connect_within(client, 0.01)
    assert client.lost == 0


async def test_who_is_cancelled_leaves_nothing_running() -> None:
    client: Any = Deaf(1)
    connecting = asyncio.create_task(connect_within(client, 100))
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert asyncio.all_tasks() == {asyncio.current_task()}

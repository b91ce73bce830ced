"""Work goes on to its end though its waiter is cancelled."""

import asyncio

import pytest

from penstock.base.uncancelled import uncancelled


@pytest.mark.parametrize("fails", [False, True])
async def test_who_is_cancelled_is_so_once_the_work_has_ended(fails: bool) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        if fails:
            raise OSError
        return "done"

    waiting = asyncio.ensure_future(uncancelled(work()))
    await begun.wait()
    for _ in range(2):
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
    go_on.set()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_it_returns_or_raises_what_the_work_does() -> None:
    async def fail() -> None:
        raise OSError("full")

    assert await uncancelled(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(OSError, match="full"):
        await uncancelled(fail())

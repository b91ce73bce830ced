"""Await work to its end, also where the waiter is cancelled."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def uncancelled(work: Awaitable[T]) -> T:
    """Await work to its end. A waiter that is cancelled meanwhile is cancelled then.

    A thread that replaces a file, for example, must have ended before another one replaces it.

    Raises:
        asyncio.CancelledError: The waiter was cancelled; the work has ended.
        Exception: What the work raises.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    finally:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])

"""Work that a cancelled waiter does not leave half done."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def uncancelled(work: Awaitable[T]) -> T:
    """Await work to its end; who is cancelled meanwhile is so at that end.

    For what a thread does and no other one may do beside it, such as to replace a file.

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

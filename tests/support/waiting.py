"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE = 3
"""How many times as long as a test says is waited: deadlines are for tests that hang, and a busy
machine is no reason to fail."""

_POLL_S = 0.02


def wait_until(condition: Callable[[], Value], *, within_s: float = 20.0, what: str = "") -> Value:
    """Call `condition` until it returns something true; return that.

    Raises:
        AssertionError: It stayed false for `PATIENCE` times `within_s` seconds.
    """
    within_s *= PATIENCE
    deadline = time.monotonic() + within_s  # noqa: TID251 - a real deadline for real processes
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {what or condition}"  # noqa: TID251
        time.sleep(_POLL_S)


async def wait_until_async(
    condition: Callable[[], Value], *, within_s: float = 20.0, what: str = ""
) -> Value:
    """`wait_until` for a condition that changes on the running event loop."""
    async with asyncio.timeout(within_s * PATIENCE):
        while not (value := condition()):  # noqa: ASYNC110 - any condition, not only events
            await asyncio.sleep(_POLL_S)
    assert value, what
    return value

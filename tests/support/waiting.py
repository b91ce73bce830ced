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
_POLL_MAX_S = 0.2


def _pause_s(waited_s: float, look_s: float) -> float:
    """Seconds until the next look.

    A process that starts takes seconds, and looks take the processor from it: so they become fewer
    after two seconds, and what a look takes is at most a third of the whole.
    """
    return min(max(_POLL_S, min(waited_s / 100, 0.05), 2 * look_s), _POLL_MAX_S)


def wait_until(
    condition: Callable[[], Value],
    *,
    within_s: float = 20.0,
    what: str = "",
    momentary: bool = False,
) -> Value:
    """Call `condition` until it returns something true; return that.

    `momentary`: it may be true for some milliseconds only, so look as often as can be.

    Raises:
        AssertionError: It stayed false for `PATIENCE` times `within_s` seconds.
    """
    within_s *= PATIENCE
    begun = time.monotonic()  # noqa: TID251 - a real deadline for real processes
    while True:
        looked = time.monotonic()  # noqa: TID251
        value = condition()
        if value:
            return value
        now = time.monotonic()  # noqa: TID251
        assert now - begun < within_s, f"not within {within_s} s: {what or condition}"
        time.sleep(0.001 if momentary else _pause_s(now - begun, now - looked))


async def wait_until_async(
    condition: Callable[[], Value], *, within_s: float = 20.0, what: str = ""
) -> Value:
    """`wait_until` for a condition that changes on the running event loop."""
    async with asyncio.timeout(within_s * PATIENCE):
        while not (value := condition()):  # noqa: ASYNC110 - any condition, not only events
            await asyncio.sleep(_POLL_S)
    assert value, what
    return value

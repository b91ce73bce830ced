"""The collector's status, asked for on its loop or from another thread."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable

from penstock.service import Status

_WAIT_S = 1.0


class Reporter:
    """Keeps the last status, for when there is no time for a new one.

    Args:
        describe: Makes the status; called on the loop.
        first: The status before the first.
    """

    def __init__(self, describe: Callable[[], Status], first: Status) -> None:
        self._describe = describe
        self.last = first

    def now(self) -> Status:
        """On the loop."""
        self.last = self._describe()
        return self.last

    def ask(self, loop: asyncio.AbstractEventLoop) -> Status:
        """For another thread; the last one when the loop has no time or is closed."""
        asked: concurrent.futures.Future[None] = concurrent.futures.Future()

        def answer() -> None:
            self.now()
            asked.set_result(None)

        with contextlib.suppress(TimeoutError, RuntimeError):
            loop.call_soon_threadsafe(answer)
            asked.result(_WAIT_S)
        return self.last

"""What threads tell the event loop: what comes together wakes it once, and is answered at once."""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.logd.ack_sender import AckSender


class Postbox:
    """Takes calls from any thread and makes them on the event loop, in order.

    A turn of the event loop costs as much as storing a few messages. So the acks that the calls
    amount to are written when all were made, and not in a turn of their own.

    Args:
        acks: Where the calls' acks gather.
    """

    def __init__(self, acks: AckSender) -> None:
        self._acks = acks
        self._calls: deque[Callable[[], None]] = deque()
        self._awaited = False

    def post(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Have a call made on the event loop soon; from any thread.

        Raises:
            RuntimeError: The event loop is closed.
        """
        self._calls.append(call)
        if not self._awaited:  # else `_take` is still to come, and finds the call
            self._awaited = True
            loop.call_soon_threadsafe(self._take, loop)

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        self._awaited = False
        self._acks.gather()
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            self._acks.flush()
            if self._calls and not self._awaited:  # one has failed; the event loop reports it
                self._awaited = True
                loop.call_soon(self._take, loop)

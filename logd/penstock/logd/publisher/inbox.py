"""The inbox of a publisher: one subscription, and which message each answer belongs to.

nats-py's `request` makes for each message two futures, a timer and a task's wait. Here an answer is
a call, and one timer serves all messages: as all wait equally long, the first sent is the first
whose time is over.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nats.errors import Error

if TYPE_CHECKING:
    from nats.aio.msg import Msg

OnReply = Callable[["Msg | None"], None]
"""Called once with the answer, or with None when none came in time."""


class ReplyInbox:
    """Publishes messages that are answered, over a NATS connection.

    Args:
        client: Connection of nats-py.
        timeout_s: Seconds that each message waits for its answer.
    """

    def __init__(self, client: Any, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._subscription: Any = None
        self._subscribing = asyncio.Lock()
        self._prefix = ""
        self._count = 0
        self._waiting: dict[str, tuple[float, OnReply]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def send(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, on_reply: OnReply
    ) -> None:
        """Publish a message; its answer is for `on_reply`.

        Raises:
            Error: nats-py did not send it; `on_reply` is not called.
        """
        if self._subscription is None:
            await self._subscribe()
        self._count += 1
        reply = f"{self._prefix}{self._count}"
        loop = asyncio.get_running_loop()
        self._waiting[reply] = (loop.time() + self._timeout_s, on_reply)
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_s, self._expire)
        try:
            await self._client.publish(subject, payload, reply=reply, headers=headers)
        except BaseException:
            self._waiting.pop(reply, None)
            raise

    async def close(self) -> None:
        """End the subscription; what still waits gets no answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is None or self._client.is_closed:
            return
        try:
            await subscription.unsubscribe()
        except (Error, OSError):  # the connection is on its way down, and takes it along
            return

    async def _subscribe(self) -> None:
        async with self._subscribing:
            if self._subscription is None:
                prefix = f"{self._client.new_inbox()}."
                self._subscription = await self._client.subscribe(f"{prefix}*", cb=self._take)
                self._prefix = prefix

    async def _take(self, message: "Msg") -> None:
        waiting = self._waiting.pop(message.subject, None)
        if waiting is not None:  # else it comes after its time
            waiting[1](message)

    def _expire(self) -> None:
        """Give up what has waited for its whole time, and look again when the next one has."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._waiting:
            reply, (until_s, on_reply) = next(iter(self._waiting.items()))
            if until_s > loop.time():
                self._timer = loop.call_at(until_s, self._expire)
                return
            del self._waiting[reply]
            on_reply(None)

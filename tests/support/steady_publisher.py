"""A publisher that asks for no acks, and goes on when nobody listens."""

import asyncio

import nats

from tests.support.waiting import wait_until_async

RATE = 1200
SLICES = 40
"""A second; in each the messages of that slice go out together."""

LAST = b"last"


class SteadyPublisher:
    """Sends numbered messages at a steady rate to several subjects, and asks for no answer.

    Every other message has a `Nats-Msg-Id`.

    Attributes:
        sent: How many, to each subject.
    """

    def __init__(self, url: str, *subjects: str) -> None:
        self.sent = 0
        self._url, self._subjects = url, subjects
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        client = await nats.connect(self._url)
        while not self._stopping.is_set():
            for _ in range(RATE // SLICES):
                headers = {"Nats-Msg-Id": f"m{self.sent}"} if self.sent % 2 else None
                for subject in self._subjects:
                    await client.publish(subject, b"%d" % self.sent, headers=headers)
                self.sent += 1
            await client.flush()
            await asyncio.sleep(1 / SLICES)
        for subject in self._subjects:
            await client.publish(subject, LAST)
        await client.flush()
        await client.close()

    def stop(self) -> None:
        self._stopping.set()

    async def goes_on(self) -> None:
        """Wait until as many more are sent as in half a second."""
        wanted = self.sent + RATE // 2
        await wait_until_async(lambda: self.sent >= wanted)

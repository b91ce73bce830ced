"""The source waits here for new records, so that an idle query costs nothing.

logd answers a fetch at the end of a log when a record has come, or when the time is over. One such
fetch waits at the end of each partition that is read.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from penstock.logd.api.operations import Fetch
from penstock.logd.client import AsyncLogClient, Fetched, calls
from penstock.logd.client.calls import Call
from penstock.logd.client.transport import OUTSTANDING_MAX
from penstock.logd.errors import LogdError
from penstock.router.read.async_calls import AsyncCalls
from penstock.router.read.offsets import StreamPartition

PARTITIONS_MAX: Final = OUTSTANDING_MAX
"""Partitions that can be waited at, which is how many calls of a client are under way at a time."""

_LOOK_S: Final = 1.0
"""Between two calls of `is_useless`."""


class News:
    """Waits for new records.

    Args:
        client: Asks logd.
    """

    def __init__(self, client: AsyncCalls) -> None:
        self._client = client

    def wait(
        self,
        ends: Mapping[StreamPartition, int],
        seconds: float,
        *,
        subject: str | None,
        is_useless: Callable[[], bool],
    ) -> bool:
        """True if a record came at one of the ends within so many seconds.

        It returns early, and False, where logd cannot be asked, or there are more partitions than
        `PARTITIONS_MAX` or none: the next look at the log says what there is.

        Args:
            ends: The offset of the next record, by partition.
            seconds: At most a minute.
            subject: Subject of the readable records; others may end the wait, too.
            is_useless: Asked once a second; ends the wait.
        """
        if not 0 < len(ends) <= PARTITIONS_MAX:
            return False
        return self._client.run(
            lambda client: _first_news(
                client, ends, seconds, subject=subject, is_useless=is_useless
            )
        )


async def _first_news(
    client: AsyncLogClient,
    ends: Mapping[StreamPartition, int],
    seconds: float,
    *,
    subject: str | None,
    is_useless: Callable[[], bool],
) -> bool:
    waiting = {
        asyncio.create_task(client.ask(_fetch(client, at, end, seconds, subject))): end
        for at, end in ends.items()
    }
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    done: set[asyncio.Task[Fetched]] = set()
    try:
        while not done and (left_s := until - loop.time()) > 0 and not is_useless():
            done, _ = await asyncio.wait(
                waiting, timeout=min(left_s, _LOOK_S), return_when=asyncio.FIRST_COMPLETED
            )
        return any(_has_news(answer, waiting[answer]) for answer in done)
    finally:
        for answer in waiting:
            answer.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _fetch(
    client: AsyncLogClient, at: StreamPartition, end: int, seconds: float, subject: str | None
) -> Call[Fetched]:
    fetch = Fetch(
        stream=at.stream,
        partition=at.partition,
        offset=end,
        bytes_max=1,
        wait_ms_max=int(seconds * 1000),
        subject=subject,
    )
    return calls.fetch(fetch, where=client.server)


def _has_news(answer: asyncio.Task[Fetched], end: int) -> bool:
    error = answer.exception()
    if error is None:
        return answer.result().next_offset > end
    if isinstance(error, LogdError):
        return False
    raise error

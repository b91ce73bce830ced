"""When a micro-batch begins: the source's options for it, and the wait for new records.

logd answers a fetch at the end of a log when a record has come, or when the time is over. One such
fetch waits at the end of each partition that is read, so an idle query costs nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.logd.api.operations import Fetch
from penstock.logd.client import AsyncLogClient, Fetched, calls
from penstock.logd.client.calls import Call
from penstock.logd.client.transport import OUTSTANDING_MAX
from penstock.logd.errors import LogdError
from penstock.router.read.async_calls import AsyncCalls
from penstock.router.read.offsets import StreamPartition

WAIT_S: Final = 10.0
"""Maximum seconds that a request waits for new records, at the partitions known at its start."""

PAUSE_MIN_S: Final = 1.0
"""Between two looks at a log that cannot be waited for."""

PARTITIONS_MAX: Final = OUTSTANDING_MAX
"""Partitions that can be waited at, which is how many calls of a client are under way at a time."""

_LOOK_S: Final = 1.0
"""Between two calls of `is_useless`."""


@dataclass(slots=True)
class Admission:
    """The options `minOffsetsPerTrigger` and `maxTriggerDelay`, as Spark's Kafka source has them.

    Attributes:
        min_rows: Records that are waited for; None: any number will do.
        delay_ns: They are waited for no longer than this, counted from the batch before.
    """

    min_rows: int | None
    delay_ns: int
    _last_ns: int | None = None

    def admits(self, waiting: int, now_ns: int) -> bool:
        """Return whether a batch may begin.

        Args:
            waiting: Records that the log has and the query has not read.
            now_ns: Monotonic time.
        """
        if self.min_rows is None:
            return True
        late = self._last_ns is None or now_ns - self._last_ns >= self.delay_ns
        return late or waiting >= self.min_rows

    def begun(self, now_ns: int) -> None:
        """A batch began."""
        self._last_ns = now_ns


class BatchPace:
    """Rate of a stream's batches: the option `batchInterval`.

    Batches begin an interval apart at least, unless the log has a full one behind a full one: it is
    as large as it may be, so waiting would only make the reader fall behind. Where the log had
    nothing new at the end of an interval, the batch begins half an interval after its first record
    came, so that records which come together are in one batch. At any even rate of records that
    makes about as many batches as looking once in an interval.

    Args:
        interval_ns: The interval.

    Attributes:
        due_ns: Monotonic time from which on the next batch may begin.
        is_idle: True if the log had nothing new when it was looked at last.
    """

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self.due_ns = 0
        self.is_idle = False

    def looked(self, now_ns: int, *, begins: bool) -> None:
        """The log was looked at.

        Args:
            now_ns: Monotonic.
            begins: True if a batch begins with what was found.
        """
        self.is_idle = not begins
        if begins:
            self.due_ns = now_ns + self._interval_ns

    def news(self, now_ns: int) -> None:
        """The first new record came."""
        self.is_idle = False
        self.due_ns = max(self.due_ns, now_ns + self._interval_ns // 2)


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

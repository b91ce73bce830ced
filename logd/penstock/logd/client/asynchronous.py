"""The asyncio client."""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Final, Self, TypeVar

from typing_extensions import override

from penstock.base.clock import monotonic_ns
from penstock.logd.batch import Record
from penstock.logd.client import calls
from penstock.logd.client.access import ANYBODY, Access
from penstock.logd.client.answers import Cursor, Fetched, OffsetRange
from penstock.logd.client.async_cursor import AsyncCursorHandle
from penstock.logd.client.async_managing import AsyncManaging
from penstock.logd.client.calls import Call
from penstock.logd.client.connections import Connections
from penstock.logd.client.following import (
    FETCH_BYTES,
    Following,
    FollowOptions,
    Patience,
    Position,
    Rows,
)
from penstock.logd.client.group_consumer import AsyncGroupConsumer, AsyncPositions
from penstock.logd.client.grouping import GroupOptions
from penstock.logd.client.membership import BEATS_S_MIN
from penstock.logd.client.routing import Prefer, Router
from penstock.logd.core.cluster.group_member import BEATS_PER_SESSION
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.rows import batch_records

Answer = TypeVar("Answer")

OUTSTANDING_MAX: Final = 32
"""Calls of one client under way at a time; half of what a logd takes of a connection by default."""

_DEFAULT: Final = FollowOptions()
_GROUP: Final = GroupOptions()


class AsyncLogClient(AsyncManaging):
    """`LogClient` for an event loop.

    Any number of tasks may call at once: their requests share the connection to a node and wait for
    nobody else's answer. Methods are those of `LogClient` and raise what those raise.

    Args:
        server: As for `LogClient`; so `prefer` and `rack`.
        timeout_s: Seconds to wait for a connection, and without a byte for an answer that is due.
        outstanding_max: Calls under way at a time; further ones wait their turn.
        access: How it is let in: TLS, certificate, token.
        rng: For the jitter of pauses between tries, and the choice of a replica.
    """

    def __init__(  # noqa: PLR0913 - independent of each other, all but one with a default
        self,
        server: str,
        *,
        timeout_s: float = 10.0,
        outstanding_max: int = OUTSTANDING_MAX,
        prefer: Prefer = "leader",
        rack: str = "",
        access: Access = ANYBODY,
        rng: random.Random | None = None,
    ) -> None:
        self.server = server
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        router = Router(server, prefer=prefer, rack=rack, timeout_s=timeout_s, rng=self._rng)
        self._access = access
        self._connections = Connections(router, timeout_s, access)
        self._outstanding = asyncio.Semaphore(outstanding_max)

    async def __aenter__(self) -> Self:
        """Nothing is connected yet."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        for connection in self._connections.close():
            await connection.wait_closed()

    def close(self) -> None:
        """Close the connections; calls under way fail, the next one opens another."""
        self._connections.close()

    # Reading.

    async def offsets(self, stream: str, partition: int = 0) -> OffsetRange:
        """What can be read of a partition now."""
        return await self._call(calls.offsets(stream, partition))

    async def offset_for_timestamp(self, stream: str, timestamp_ns: int, partition: int = 0) -> int:
        """The first record at or after a time; the end of what can be read when there is none."""
        return await self._call(calls.offset_at(stream, partition, timestamp_ns))

    async def fetch(  # noqa: PLR0913 - a request of many optional parts
        self,
        stream: str,
        offset: int,
        *,
        partition: int = 0,
        bytes_max: int = FETCH_BYTES,
        bytes_min: int = 1,
        wait_ms: int = 0,
        subject: str | None = None,
        incarnation: str | None = None,
    ) -> Fetched:
        """Read whole frames from an offset on; see `LogClient.fetch`."""
        call = calls.fetch(
            stream,
            offset,
            partition=partition,
            bytes_max=bytes_max,
            bytes_min=bytes_min,
            wait_ms=wait_ms,
            subject=subject,
            incarnation=incarnation,
            where=self.server,
        )
        return await self._call(call)

    async def follow_batches(
        self, stream: str, start: Position, options: FollowOptions = _DEFAULT
    ) -> AsyncGenerator[Rows, None]:
        """Read a partition for ever, as Arrow batches; see `LogClient.follow_batches`."""
        async with aclosing(self.following(stream, start, options)) as following:
            async for rows in following:
                if not isinstance(rows, int):
                    yield rows

    async def follow(
        self, stream: str, start: Position, options: FollowOptions = _DEFAULT
    ) -> AsyncGenerator[tuple[int, Record], None]:
        """`follow_batches` one by one, as (offset, record)."""
        async with aclosing(self.following(stream, start, options)) as following:
            async for rows in following:
                for item in () if isinstance(rows, int) else batch_records(*rows):
                    yield item

    async def following(
        self, stream: str, start: Position, options: FollowOptions = _DEFAULT
    ) -> AsyncGenerator[Rows | int, None]:
        """`follow_batches` that also yields, after each answer, how far it has looked (offset)."""
        reading = Following(self.server, stream, start, options)
        patience = Patience(options.retry_s, self._rng)
        while True:
            try:
                try:
                    answer = await self._call(reading.next_call())
                except RefusedError as refusal:
                    reading.refused(refusal)
                    continue
            except UnavailableError as error:
                await asyncio.sleep(patience.pause(error, monotonic_ns()))
                continue
            patience.succeeded()
            for rows in reading.take(answer):
                yield rows
            yield reading.offset

    # Cursors.

    def cursor(self, consumer: str, stream: str, partition: int = 0) -> AsyncCursorHandle:
        """A consumer's position in a partition."""
        return AsyncCursorHandle(self, consumer, stream, partition)

    async def cursors(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[Cursor]:
        """The committed cursors, of one consumer or stream if named."""
        found: list[Cursor] = []
        more = True
        while more:
            after = found[-1] if found else None
            call = calls.cursors(consumer=consumer, stream=stream, after=after)
            part, more = await self._call(call)
            found += part
        return found

    async def get_cursor(self, consumer: str, stream: str, partition: int = 0) -> Cursor | None:
        """A committed cursor; None where there is none."""
        return await self._call(calls.get_cursor(consumer, stream, partition))

    async def set_cursors(self, wanted: Iterable[Cursor], *, rewind: bool = False) -> list[Cursor]:
        """Commit cursors, all of them or none; see `LogClient.set_cursors`."""
        items: Sequence[Cursor] = list(wanted)
        return await self._call(calls.set_cursors(items, rewind=rewind))

    async def delete_cursor(self, consumer: str, stream: str, partition: int = 0) -> bool:
        """Delete a cursor, durably; whether there was one."""
        return await self._call(calls.delete_cursor(consumer, stream, partition))

    # Groups.

    def join_group(
        self,
        group: str,
        streams: str | Sequence[str],
        options: GroupOptions = _GROUP,
        *,
        positions: AsyncPositions | None = None,
    ) -> AsyncGroupConsumer:
        """Be a member of a consumer group while an `async with` lasts; see `LogClient`."""
        names = (streams,) if isinstance(streams, str) else tuple(streams)
        beats = self.for_beats(options)
        return AsyncGroupConsumer((self, beats), group, names, options, positions)

    def for_beats(self, options: GroupOptions) -> "AsyncLogClient":
        """A client that soon goes to another node: a session is short."""
        timeout_s = max(BEATS_S_MIN, options.session_s / BEATS_PER_SESSION)
        return AsyncLogClient(self.server, timeout_s=timeout_s, access=self._access, rng=self._rng)

    async def ask(self, call: Call[Answer]) -> Answer:
        """Make a call of `penstock.logd.client.calls`."""
        return await self._call(call)

    @override
    async def _call(self, call: Call[Answer]) -> Answer:
        async with self._outstanding:
            return await self._connections.call(call)

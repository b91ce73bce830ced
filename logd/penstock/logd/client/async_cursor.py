"""`CursorHandle` for the asyncio client."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.base.clock import monotonic_ns
from penstock.logd.batch import Record
from penstock.logd.client.answers import Cursor
from penstock.logd.client.committing import (
    CommitPolicy,
    Committing,
    Explode,
    Item,
    begin,
    single,
    whole,
)
from penstock.logd.client.following import FollowOptions, Position, Rows
from penstock.logd.errors import UnavailableError

if TYPE_CHECKING:
    from penstock.logd.client.asynchronous import AsyncLogClient

_DEFAULT: Final = FollowOptions()
_AT_CLOSE: Final = CommitPolicy()


class AsyncCursorHandle:
    """Made by `AsyncLogClient.cursor`; the methods are those of `CursorHandle`."""

    def __init__(
        self, client: "AsyncLogClient", consumer: str, stream: str, partition: int
    ) -> None:
        self._client = client
        self._at = Cursor(
            consumer=consumer, stream=stream, partition=partition, offset=0, incarnation=""
        )

    async def get(self) -> Cursor | None:
        """The committed cursor; None when there is none."""
        at = self._at
        return await self._client.get_cursor(at.consumer, at.stream, at.partition)

    async def commit(self, offset: int, *, incarnation: str = "", rewind: bool = False) -> Cursor:
        """Commit the offset of the next record wanted; durable on return."""
        wanted = replace(self._at, offset=offset, incarnation=incarnation)
        return (await self._client.set_cursors([wanted], rewind=rewind))[0]

    async def delete(self) -> bool:
        """Delete the cursor; whether there was one."""
        at = self._at
        return await self._client.delete_cursor(at.consumer, at.stream, at.partition)

    def follow_batches(
        self,
        start: Position = "earliest",
        *,
        commit: CommitPolicy = _AT_CLOSE,
        options: FollowOptions = _DEFAULT,
    ) -> AsyncGenerator[Rows, None]:
        """As `CursorHandle.follow_batches`; close it (`contextlib.aclosing`) to commit the rest."""
        return self._follow(start, commit, options, whole)

    def follow(
        self,
        start: Position = "earliest",
        *,
        commit: CommitPolicy = _AT_CLOSE,
        options: FollowOptions = _DEFAULT,
    ) -> AsyncGenerator[tuple[int, Record], None]:
        """`follow_batches` one by one, as (offset, record)."""
        return self._follow(start, commit, options, single)

    async def _follow(
        self, start: Position, policy: CommitPolicy, options: FollowOptions, explode: Explode[Item]
    ) -> AsyncGenerator[Item, None]:
        found, info = await self.get(), await self._client.stream(self._at.stream)
        position, options, cursor = begin(self._at, found, info, start, options)
        committing = Committing(cursor, policy)
        try:
            following = self._client.following(self._at.stream, position, options)
            async with aclosing(following):
                async for rows in following:
                    if isinstance(rows, int):
                        committing.passed(rows, monotonic_ns())
                    else:
                        for item, next_offset, count in explode(rows):
                            yield item
                            committing.done(next_offset, count, monotonic_ns())
                            await self._commit(committing, committing.due(monotonic_ns()))
                    await self._commit(committing, committing.due(monotonic_ns()))
        except GeneratorExit:
            await self._commit(committing, committing.pending(), closing=True)
            raise

    async def _commit(
        self, committing: Committing, cursor: Cursor | None, *, closing: bool = False
    ) -> None:
        if cursor is None:
            return
        try:
            await self._client.set_cursors([cursor])
        except UnavailableError:
            if closing:
                raise
            committing.postponed(monotonic_ns())
        else:
            committing.committed()

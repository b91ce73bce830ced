"""A consumer's position in one partition: get it, commit it, read on from it."""

from collections.abc import Generator
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
    from penstock.logd.client.blocking import LogClient

_DEFAULT: Final = FollowOptions()
_AT_CLOSE: Final = CommitPolicy()


class CursorHandle:
    """Made by `LogClient.cursor`."""

    def __init__(self, client: "LogClient", consumer: str, stream: str, partition: int) -> None:
        self._client = client
        self._at = Cursor(
            consumer=consumer, stream=stream, partition=partition, offset=0, incarnation=""
        )

    def get(self) -> Cursor | None:
        """The committed cursor; None when there is none."""
        at = self._at
        return self._client.get_cursor(at.consumer, at.stream, at.partition)

    def commit(self, offset: int, *, incarnation: str = "", rewind: bool = False) -> Cursor:
        """Commit the offset of the next record wanted; durable on return.

        Raises:
            RefusedError: As `LogClient.set_cursors`.
        """
        wanted = replace(self._at, offset=offset, incarnation=incarnation)
        return self._client.set_cursors([wanted], rewind=rewind)[0]

    def delete(self) -> bool:
        """Delete the cursor; whether there was one."""
        at = self._at
        return self._client.delete_cursor(at.consumer, at.stream, at.partition)

    def follow_batches(
        self,
        start: Position = "earliest",
        *,
        commit: CommitPolicy = _AT_CLOSE,
        options: FollowOptions = _DEFAULT,
    ) -> Generator[Rows, None, None]:
        """`LogClient.follow_batches` from the committed cursor on, committing on the way.

        What was yielded counts as done with when the next is asked for; what is done with is
        committed when `commit` says so, and when the iterator is closed.

        Args:
            start: Where to begin when nothing is committed yet.
            commit: When to commit.
            options: Its partition is the cursor's.

        Raises:
            RefusedError: As `LogClient.follow_batches`; `STREAM_RECREATED` also when the cursor is
                of an earlier stream; `CURSOR_BEHIND` when another has moved it further.
        """
        return self._follow(start, commit, options, whole)

    def follow(
        self,
        start: Position = "earliest",
        *,
        commit: CommitPolicy = _AT_CLOSE,
        options: FollowOptions = _DEFAULT,
    ) -> Generator[tuple[int, Record], None, None]:
        """`follow_batches` one by one, as (offset, record)."""
        return self._follow(start, commit, options, single)

    def _follow(
        self, start: Position, policy: CommitPolicy, options: FollowOptions, explode: Explode[Item]
    ) -> Generator[Item, None, None]:
        found, info = self.get(), self._client.stream(self._at.stream)
        position, options, cursor = begin(self._at, found, info, start, options)
        committing = Committing(cursor, policy)
        try:
            for rows in self._client.following(self._at.stream, position, options):
                if isinstance(rows, int):
                    committing.passed(rows, monotonic_ns())
                else:
                    for item, next_offset, count in explode(rows):
                        yield item
                        committing.done(next_offset, count, monotonic_ns())
                        self._commit(committing, committing.due(monotonic_ns()))
                self._commit(committing, committing.due(monotonic_ns()))
        except GeneratorExit:
            self._commit(committing, committing.pending(), closing=True)
            raise

    def _commit(
        self, committing: Committing, cursor: Cursor | None, *, closing: bool = False
    ) -> None:
        if cursor is None:
            return
        try:
            self._client.set_cursors([cursor])
        except UnavailableError:
            if closing:
                raise
            committing.postponed(monotonic_ns())
        else:
            committing.committed()

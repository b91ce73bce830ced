"""Where a member of a consumer group begins to read, and what becomes of its commits."""

from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.logd.client.answers import Cursor
from penstock.logd.client.committing import CommitPolicy, Committing
from penstock.logd.client.grouping import GroupOptions, Reading
from penstock.logd.client.membership import Membership
from penstock.logd.core.cluster.records import GroupPartition
from penstock.logd.errors import RefusedError

if TYPE_CHECKING:
    from penstock.logd.client.asynchronous import AsyncLogClient

PARTITION = GroupPartition("s", "i", 0)


class Cursors:
    """A client of a store that refuses commits with an error, if it is given one."""

    def __init__(self, error: RefusedError | None) -> None:
        self._error = error

    async def get_cursor(self, consumer: str, stream: str, partition: int) -> Cursor:
        return Cursor(
            consumer=consumer, stream=stream, partition=partition, offset=5, incarnation="i"
        )

    async def ask(self, call: Any) -> list[Cursor]:
        if self._error is not None:
            raise self._error
        return [await self.get_cursor("g", call.request["cursors"][0]["stream"], 0)]


def a_member(error: RefusedError | None) -> Membership:
    client = cast("AsyncLogClient", Cursors(error))
    return Membership(client, client, "g", ("s",), GroupOptions(), asks=False)


async def begins(error: RefusedError | None) -> int:
    return await a_member(error)._claim(Reading(PARTITION, epoch=7))


async def commits(error: RefusedError | None) -> bool:
    """Commit what is done with; whether that was all."""
    member, reading = a_member(error), Reading(PARTITION, epoch=7)
    reading.committing = Committing(member._cursor(reading, 5), CommitPolicy())
    reading.committing.done(8, 3, 0)
    await member._commit(reading)
    return reading.committing.pending() is None


async def test_a_member_begins_where_its_group_has_come() -> None:
    assert await begins(None) == 5


async def test_a_member_goes_on_from_its_own_commit_that_was_on_its_way() -> None:
    assert await begins(RefusedError("CURSOR_BEHIND", "is at 9", offset=9)) == 9


async def test_a_member_that_was_fenced_begins_nowhere() -> None:
    with pytest.raises(RefusedError, match="another's"):
        await begins(RefusedError("FENCED", "it is another's"))


async def test_a_member_whose_own_late_commit_got_further_goes_on() -> None:
    """One that was cut off with it, and granted the partition again under the same epoch."""
    assert await commits(None)
    assert await commits(RefusedError("CURSOR_BEHIND", "is at 9", offset=9))
    with pytest.raises(RefusedError, match="another's"):
        await commits(RefusedError("FENCED", "it is another's"))

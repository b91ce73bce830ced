"""Where a member of a consumer group begins to read."""

from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.logd.client.answers import Cursor
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


async def begins(error: RefusedError | None) -> int:
    client = cast("AsyncLogClient", Cursors(error))
    member = Membership(client, client, "g", ("s",), GroupOptions(), asks=False)
    return await member._claim(Reading(PARTITION, epoch=7))


async def test_a_member_begins_where_its_group_has_come() -> None:
    assert await begins(None) == 5


async def test_a_member_goes_on_from_its_own_commit_that_was_on_its_way() -> None:
    assert await begins(RefusedError("CURSOR_BEHIND", "is at 9", offset=9)) == 9


async def test_a_member_that_was_fenced_begins_nowhere() -> None:
    with pytest.raises(RefusedError, match="another's"):
        await begins(RefusedError("FENCED", "it is another's"))

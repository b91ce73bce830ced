"""Where a member of a consumer group begins to read, and what becomes of its commits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.logd.api.models import Cursor
from penstock.logd.client.calls import Call
from penstock.logd.client.following import GroupOptions, Rows
from penstock.logd.client.group_consumer import Membership
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record
from tests.support.frames import make_batch_frame
from tests.support.waiting import wait_until_async

if TYPE_CHECKING:
    from penstock.logd.client.async_client import AsyncLogClient


class Log:
    """As a client: grants the partition, and refuses commits with an error, if it is given one.

    Attributes:
        refused: How often it has.
        began: Where reading has begun.
    """

    def __init__(self) -> None:
        self.error: RefusedError | None = None
        self.refused = 0
        self.began: list[int] = []

    async def ask(self, call: Call[Any]) -> Any:
        request = call.request
        if request["api"] == "group_beat":
            granted = {"stream": "s", "incarnation": "i", "partition": 0, "epoch": 7}
            answer = {name: request[name] for name in ("group", "member", "sequence")}
            answer |= {"epoch": 7, "granted": [granted], "error": "", "message": ""}
            return call.read({"answer": answer}, memoryview(b""))
        if request["api"] == "group_leave":
            return None
        if request["api"] == "get_cursor":
            return _cursor(request["stream"])
        if self.error is not None:
            self.refused += 1
            raise self.error
        return [_cursor(request["cursors"][0]["stream"])]

    async def following(self, _: str, start: int, __: Any) -> AsyncIterator[Rows]:
        self.began.append(start)
        header, _body, batch = make_batch_frame(5, [Record("t.a", b"", 1)] * 3)
        yield header, batch
        await asyncio.Event().wait()


def _cursor(stream: str) -> Cursor:
    return Cursor(consumer="g", stream=stream, partition=0, offset=5, incarnation="i")


@asynccontextmanager
async def a_member(log: Log) -> AsyncIterator[Membership]:
    client = cast("AsyncLogClient", log)
    options = GroupOptions(commit=None)
    member = Membership(client, client, "g", ("s",), options, asks=False)
    member.start()
    try:
        yield member
    finally:
        await member.close()


async def begins(error: RefusedError | None) -> int | None:
    """Where a member begins that is refused so; None: nowhere."""
    log = Log()
    log.error = error
    async with a_member(log), asyncio.timeout(20):
        await wait_until_async(lambda: log.began or (error and log.refused))
        for _ in range(5):
            await asyncio.sleep(0)
        return log.began[0] if log.began else None


async def commits(error: RefusedError | None) -> bool:
    """Commit what is done with; whether that was all."""
    log = Log()
    async with a_member(log) as member, asyncio.timeout(20):
        reading, rows = await member.take()
        assert rows is not None
        await member.done(reading, 8, 3)
        log.error = error
        await member.commit()
        return not reading.has_pending


async def test_a_member_begins_where_its_group_has_come() -> None:
    assert await begins(None) == 5


async def test_a_member_goes_on_from_its_own_commit_that_was_on_its_way() -> None:
    assert await begins(RefusedError("CURSOR_BEHIND", "is at 9", offset=9)) == 9


async def test_a_member_that_was_fenced_begins_nowhere() -> None:
    assert await begins(RefusedError("FENCED", "it is another's")) is None


async def test_a_member_whose_own_late_commit_got_further_goes_on() -> None:
    """One that was cut off with it, and granted the partition again under the same epoch."""
    assert await commits(None)
    assert await commits(RefusedError("CURSOR_BEHIND", "is at 9", offset=9))
    with pytest.raises(RefusedError, match="another's"):
        await commits(RefusedError("FENCED", "it is another's"))

"""Logs are opened on a few threads, and what came of them is reported together."""

import asyncio
import threading
from typing import Any, cast

import pytest

from penstock.logd.cluster.replica_manager import LogOpeners
from penstock.logd.errors import CorruptError
from tests.support.waiting import wait_until_async


class Logs:
    """Logs that count how many are being opened at a time."""

    def __init__(self) -> None:
        self.begun = self.open_at_a_time = self.opening = 0
        self.lock = threading.Lock()
        self.go_on = threading.Event()

    def open(self, number: int) -> Any:
        with self.lock:
            self.begun += 1
            self.opening += 1
            self.open_at_a_time = max(self.open_at_a_time, self.opening)
        assert self.go_on.wait(30)
        with self.lock:
            self.opening -= 1
        if number == 3:
            raise CorruptError("is damaged")
        return number


async def test_every_log_is_opened_by_so_many_threads_at_a_time() -> None:
    openers, logs = LogOpeners(2), Logs()
    waiting = [
        asyncio.create_task(openers.run(lambda number=n: logs.open(number)))  # type: ignore[misc]
        for n in range(8)
    ]
    await wait_until_async(lambda: logs.begun == 2)
    logs.go_on.set()
    found = cast("list[Any]", await asyncio.gather(*waiting, return_exceptions=True))
    assert isinstance(found[3], CorruptError)
    assert [one for one in found if one is not found[3]] == [0, 1, 2, 4, 5, 6, 7]
    assert logs.open_at_a_time == 2
    # The threads have ended by now, or soon; another log is opened all the same.
    assert cast("Any", await openers.run(lambda: logs.open(9))) == 9
    with pytest.raises(CorruptError):
        await openers.run(lambda: logs.open(3))


async def test_a_log_whose_opening_nobody_waits_for_any_more_holds_up_no_other() -> None:
    openers, logs = LogOpeners(1), Logs()
    first = asyncio.create_task(openers.run(lambda: logs.open(1)))
    second = asyncio.create_task(openers.run(lambda: logs.open(2)))
    await wait_until_async(lambda: logs.begun == 1)
    first.cancel()
    await asyncio.wait([first])
    logs.go_on.set()
    assert cast("Any", await second) == 2

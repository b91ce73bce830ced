"""Logs are opened on few threads, and what came of them is reported together."""

import asyncio
import threading
from functools import partial
from itertools import count
from typing import Any, cast

import pytest

from penstock.logd.cluster.replica_manager import LogOpeners
from penstock.logd.errors import CorruptError
from tests.support.waiting import wait_until_async

DAMAGED = 3


class Logs:
    """Logs that count how many are being opened at a time."""

    def __init__(self) -> None:
        self.begun = self.most_at_a_time = self.opening = 0
        self.lock = threading.Lock()
        self.go_on, self.all_wait = threading.Event(), threading.Event()

    def open(self, number: int) -> Any:
        with self.lock:
            self.begun += 1
            self.opening += 1
            self.most_at_a_time = max(self.most_at_a_time, self.opening)
        assert (self.go_on if number else self.all_wait).wait(30)
        with self.lock:
            self.opening -= 1
        if number == DAMAGED:
            raise CorruptError("is damaged")
        return number

    def opened_by(self, openers: LogOpeners, number: int) -> asyncio.Task[Any]:
        return asyncio.create_task(openers.run(partial(self.open, number)))


async def test_logs_that_memory_holds_are_opened_one_after_the_other() -> None:
    openers, logs = LogOpeners(4, blocks_read=lambda: 7), Logs()
    waiting = [logs.opened_by(openers, n) for n in range(8)]
    await asyncio.sleep(0)  # the tasks begin
    logs.all_wait.set()
    await wait_until_async(lambda: logs.begun == 2)
    logs.go_on.set()
    found = cast("list[Any]", await asyncio.gather(*waiting, return_exceptions=True))
    assert isinstance(found[DAMAGED], CorruptError)
    assert [one for one in found if one is not found[DAMAGED]] == [0, 1, 2, 4, 5, 6, 7]
    assert logs.most_at_a_time == 1
    # The thread has ended by now, or soon; another log is opened all the same.
    assert await logs.opened_by(openers, 9) == 9
    with pytest.raises(CorruptError):
        await logs.opened_by(openers, DAMAGED)


async def test_where_logs_come_from_the_disk_more_threads_wait_for_it() -> None:
    openers, logs = LogOpeners(2, blocks_read=partial(next, count())), Logs()
    waiting = [logs.opened_by(openers, n) for n in (0, 1, 2, 4, 5, 6)]
    await asyncio.sleep(0)  # the tasks begin
    logs.all_wait.set()
    await wait_until_async(lambda: logs.opening == 2)
    logs.go_on.set()
    assert await asyncio.gather(*waiting) == [0, 1, 2, 4, 5, 6]
    assert logs.most_at_a_time == 2


async def test_a_log_that_nobody_waits_for_any_more_holds_up_no_other() -> None:
    openers, logs = LogOpeners(1), Logs()
    first, second = (logs.opened_by(openers, n) for n in (1, 2))
    await wait_until_async(lambda: logs.begun == 1)
    first.cancel()
    await asyncio.wait([first])
    logs.go_on.set()
    assert await second == 2

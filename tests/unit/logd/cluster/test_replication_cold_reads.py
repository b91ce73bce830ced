"""Reads that may wait for the disk: few at a time, each partition's turn comes, reading ahead."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.logd.cluster.replication.sender import ColdReads, Found
from penstock.logd.replication.session import PartitionId
from tests.support.waiting import wait_until_async

A, B, C = (PartitionId("i", number) for number in range(3))


class Reading:
    """Each read gives ten records; where it was read is remembered."""

    def __init__(self, executor: ThreadPoolExecutor, kept_s: float = 1.0) -> None:
        self.ready: list[PartitionId] = []
        self.failed: list[tuple[PartitionId, Exception]] = []
        self.read: list[int] = []
        self.free = threading.Event()
        self.free.set()
        self.cold = ColdReads(
            executor,
            self.ready.append,
            lambda key, error: self.failed.append((key, error)),
            kept_s=kept_s,
        )

    def take(self, key: PartitionId, offset: int, *, upto: int = 10, epoch: int = 1) -> int | None:
        """The offset that what is taken was read at."""
        found = self.cold.take(key, (epoch, offset), upto, self._read)
        return None if found is None else int(found.data)

    async def taken(self, key: PartitionId, offset: int, *, upto: int = 10) -> int:
        """The same, when it has been read."""
        if (found := self.take(key, offset, upto=upto)) is not None:
            return found
        await wait_until_async(lambda: key in self.ready)
        self.ready.remove(key)
        found = self.take(key, offset, upto=upto)
        assert found is not None
        return found

    def _read(self, offset: int) -> Found:
        self.free.wait()
        self.read.append(offset)
        if offset < 0:
            raise OSError(5, "Input/output error")
        return Found(b"%d" % offset, 1, offset + 10)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def reading(executor: ThreadPoolExecutor) -> Iterator[Reading]:
    made = Reading(executor)
    yield made
    made.free.set()


async def test_what_comes_next_is_read_while_the_follower_writes(reading: Reading) -> None:
    assert await reading.taken(A, 0, upto=25) == 0
    await wait_until_async(lambda: reading.ready == [A])
    assert reading.read == [0, 10]
    assert reading.take(A, 10, upto=25) == 10
    await wait_until_async(lambda: reading.read == [0, 10, 20])
    await wait_until_async(lambda: reading.ready == [A, A])
    assert reading.take(A, 20, upto=25) == 20
    assert reading.read == [0, 10, 20], "there is no more"


async def test_what_was_read_elsewhere_or_in_another_epoch_is_not_taken(reading: Reading) -> None:
    assert await reading.taken(A, 0, upto=25) == 0
    await wait_until_async(lambda: reading.ready == [A])
    assert reading.take(A, 5) is None
    await wait_until_async(lambda: reading.ready == [A, A])
    assert reading.take(A, 5, epoch=2) is None
    await wait_until_async(lambda: reading.ready == [A, A, A])
    assert reading.take(A, 5, epoch=2) == 5


async def test_whoever_waits_comes_before_reading_ahead(reading: Reading) -> None:
    reading.free.clear()
    assert [reading.take(key, 0, upto=100) for key in (A, B, C)] == [None] * 3
    reading.free.set()
    await wait_until_async(lambda: sorted(reading.ready) == [A, B])
    assert reading.take(A, 0, upto=100) == 0
    assert reading.ready[-1] == C
    assert reading.take(C, 0, upto=100) is None
    await wait_until_async(lambda: reading.ready.count(C) == 2)
    assert reading.take(C, 0, upto=100) == 0


async def test_what_nobody_takes_makes_room_in_time(
    executor: ThreadPoolExecutor,
) -> None:
    reading = Reading(executor, kept_s=0.05)
    assert [reading.take(key, 0) for key in (A, B)] == [None] * 2
    await wait_until_async(lambda: len(reading.ready) == 2)
    reading.take(C, 0)
    await wait_until_async(lambda: C in reading.ready)
    reading.ready.clear()
    assert await reading.taken(C, 0) == 0


async def test_a_read_that_fails_is_told_and_makes_room(reading: Reading) -> None:
    assert reading.take(A, -1) is None
    await wait_until_async(lambda: reading.failed)
    assert reading.failed[0][0] == A
    assert await reading.taken(A, 0) == 0


async def test_a_partition_that_is_forgotten_is_not_told(reading: Reading) -> None:
    reading.free.clear()
    assert [reading.take(key, 0) for key in (A, B, C)] == [None] * 3
    reading.cold.forget(C)
    reading.cold.forget(A)
    reading.free.set()
    await wait_until_async(lambda: reading.ready == [B])
    reading.cold.close()

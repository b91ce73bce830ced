"""A log that failed for want of space is opened again; one whose sync failed is not."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.intake.turn import Message
from penstock.logd.partition.cursors import CURSORS_STREAM
from penstock.logd.partition.partition import Partition
from penstock.logd.standalone import Reviver, StreamSet
from penstock.logd.telemetry import stage
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async
from tests.unit.logd.test_streams import LOGS, stream_set

SECOND = 1_000_000_000


class ManualClock(SystemClock):
    """Stands still until it is moved."""

    now_ns = 0

    @override
    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
async def streams(tmp_path: Path, disk: FailingDisk) -> AsyncIterator[StreamSet]:
    async with stream_set(tmp_path, disk=disk) as found:
        await found.start([LOGS])
        yield found


def publish(streams: StreamSet) -> Partition:
    partition = streams.partition("logs")
    streams.subscription_manager.on_messages({b"0": [Message(b"t.a", b"", b"", b"x" * 100)] * 3})
    return partition


async def publish_and_fail(
    streams: StreamSet, disk: FailingDisk, operation: str, number: int
) -> Partition:
    with disk.fails(operation, number, name="*.log"):
        partition = publish(streams)
        await wait_until_async(lambda: partition.failure)
    return partition


def reconciles(partition: Partition) -> bool:
    found = stage(partition)
    duplicates = found.detail["duplicates"]
    return found.received == found.sent + duplicates + found.errors + found.lag


async def test_a_stream_out_of_space_goes_on_with_its_counts(
    streams: StreamSet, disk: FailingDisk
) -> None:
    clock = ManualClock()
    looking = Reviver(streams, clock)
    before = publish(streams)
    await wait_until_async(lambda: before.high_watermark == 2)
    waiting = asyncio.create_task(before.wait_until(3))
    failed = await publish_and_fail(streams, disk, "write", errno.ENOSPC)
    assert failed is before
    failed.retention_task.records_deleted = failed.compaction_scheduler.counts.passes = 7
    failed.intake.dedup.producers.evicted = 7
    disk.full = True
    await looking.look()
    disk.full = False
    assert streams.partition("logs") is failed
    await looking.look()
    again = streams.partition("logs")
    await waiting
    assert (again.failure, again.epoch, looking.revived) == ("", failed.epoch + 1, 1)
    publish(streams)
    await wait_until_async(lambda: again.high_watermark == 5)
    found = stage(again)
    assert (found.received, found.sent, found.detail["lost"]) == (9, 6, 3)
    kept = ("records_deleted", "compaction_passes", "dedup_evicted")
    assert [found.detail[name] for name in kept] == [7, 7, 7]
    assert reconciles(again)
    assert failed.finished


async def test_pauses_between_attempts_double(streams: StreamSet, disk: FailingDisk) -> None:
    clock = ManualClock()
    looking = Reviver(streams, clock)
    for number, wait_s in enumerate((0, 1, 2, 4, 8, 16, 32, 60, 60)):
        failed = await publish_and_fail(streams, disk, "write", errno.EDQUOT)
        if wait_s:
            clock.now_ns += wait_s * SECOND - 1
            await looking.look()
            assert streams.partition("logs") is failed
            clock.now_ns += 1
        await looking.look()
        assert looking.revived == number + 1
    assert reconciles(streams.partition("logs"))


async def test_what_cannot_be_opened_yet_stays_as_it_is(
    streams: StreamSet, disk: FailingDisk
) -> None:
    looking = Reviver(streams, ManualClock())
    failed = await publish_and_fail(streams, disk, "write", errno.ENOSPC)
    with disk.fails("open", errno.ENOSPC, name="*.log"):
        await looking.look()
    assert streams.partition("logs") is failed
    assert looking.revived == 0
    await streams.reopen(failed)
    await streams.reopen(failed)  # not the stream's any more
    assert streams.partition("logs").failure == ""


async def test_a_directory_that_goes_away_meanwhile_stops_nobody(
    streams: StreamSet, disk: FailingDisk
) -> None:
    failed = await publish_and_fail(streams, disk, "write", errno.ENOSPC)
    with disk.fails("available_bytes", errno.ENOENT):
        await Reviver(streams, ManualClock()).look()
    assert streams.partition("logs") is failed


async def test_streams_of_logd_itself_stay_failed(streams: StreamSet, disk: FailingDisk) -> None:
    partition, _ = await streams.create(CURSORS_STREAM)
    with disk.fails("write", errno.ENOSPC, name="*.log"):
        partition.store([Message(b"__cursors", b"", b"", b"x")])
        await wait_until_async(lambda: partition.failure)
    await Reviver(streams, ManualClock()).look()
    assert streams.partition(CURSORS_STREAM.name) is partition, "what is read from it is kept"


async def test_closing_waits_for_a_log_that_is_being_opened_again(
    streams: StreamSet, disk: FailingDisk
) -> None:
    failed = await publish_and_fail(streams, disk, "write", errno.ENOSPC)
    with disk.holds("list_directory", name="0") as held:
        reopening = asyncio.create_task(streams.reopen(failed))
        await wait_until_async(held.reached.is_set)
        reopening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reopening
        closing = asyncio.create_task(streams.close())
        await asyncio.sleep(0)
        assert not closing.done()
    await closing
    again = streams.partition("logs")
    assert again is not failed
    assert again.finished


@pytest.mark.parametrize(
    ("operation", "number"),
    [("write", errno.EIO), ("sync", errno.EIO), ("sync", errno.ENOSPC)],
)
async def test_other_failures_stay_until_a_restart(
    streams: StreamSet, disk: FailingDisk, operation: str, number: int
) -> None:
    failed = await publish_and_fail(streams, disk, operation, number)
    await Reviver(streams, ManualClock()).look()
    assert streams.partition("logs") is failed

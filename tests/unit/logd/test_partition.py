"""A partition around its end: what it remembers must be what its log holds."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from penstock.base.clock import SystemClock
from penstock.logd.api.operations import Fetch
from penstock.logd.api.reading import FetchReading
from penstock.logd.api.server import ResponseSlot
from penstock.logd.compaction.cleaner import Pace
from penstock.logd.errors import CorruptError, LogFailedError, UnavailableError
from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.envelope import BatchPayload, encode_batch
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.streams import Stream, StreamConfig
from penstock.logd.partition.log_writer import LogCommand
from penstock.logd.partition.partition import Partition
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.storage import EpochFile
from tests.support import lone_replica
from tests.support.failing_disk import FailingDisk
from tests.support.partition_context import make_context
from tests.support.waiting import wait_until, wait_until_async

PRODUCER = b"p" * 16
STREAM = Stream(config=StreamConfig(name="logs", subject="t.>"), incarnation="1")


async def open_partition(directory: Path, stream: Stream = STREAM, **shared: Any) -> Partition:
    return await lone_replica.open_partition(stream, directory, make_context(**shared))


def batch(previous: int, sequence: int) -> Message:
    payload = BatchPayload(
        schema_version=1,
        record_count=1,
        producer_id=PRODUCER,
        previous_sequence=previous,
        sequence=sequence,
        body=encode_body(build_batch([Record("t.a", b"x", 1)])),
    )
    return Message(b"t.a", b"r", b"", encode_batch(payload))


def last_sequence(partition: Partition) -> int:
    state = partition.intake.dedup.producers.last(PRODUCER)
    return state.sequence if state else 0


async def test_a_batch_that_comes_after_closing_is_not_remembered_as_stored(
    tmp_path: Path,
) -> None:
    partition = await open_partition(tmp_path / "0")
    partition.take([batch(0, 1)])
    await partition.wait_drained()
    partition.close()
    partition.writer.close()
    partition.take([batch(1, 2)])  # while another thread is about to save the producers
    partition.finish()
    again = await open_partition(tmp_path / "0")
    assert (again.log.end_offset, last_sequence(again)) == (1, 1)
    await finish(again)


async def test_a_batch_that_the_last_write_lost_is_not_remembered_as_stored(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    partition = await open_partition(tmp_path / "0", disk=disk)
    partition.take([batch(0, 1)])
    await partition.wait_drained()
    with disk.fails("write", errno.ENOSPC, name="*.log"):
        partition.take([batch(1, 2)])
        partition.finish()  # before the event loop has heard of the failure
    again = await open_partition(tmp_path / "0")
    assert (again.log.end_offset, last_sequence(again)) == (1, 1)
    await finish(again)


async def test_a_failed_partition_holds_nothing_of_what_it_cannot_write(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    partition = await open_partition(tmp_path / "0", disk=disk)
    with disk.fails("write", errno.ENOSPC, name="*.log"):
        partition.take([batch(0, 1)])
        wait_until(lambda: partition.writer.failed)
    partition.take([batch(1, 2)])  # the event loop has not heard of the failure yet
    await partition.wait_drained()
    assert partition.failure
    assert partition.budget.held == 0
    await finish(partition)


async def finish(partition: Partition) -> None:
    partition.close()
    await asyncio.to_thread(partition.finish)


async def test_a_rotted_record_within_the_window_of_ids_is_passed_over_at_start(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "0"
    partition = await open_partition(directory)
    partition.take([Message(b"t.a", b"", b"", b"rots" * 8)])
    await partition.wait_drained()
    partition.take([Message(b"t.a", b"", b"", b"stays")])
    await partition.wait_drained()
    await finish(partition)
    path = directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes().replace(b"rots", b"rotz"))
    again = await open_partition(directory)
    assert again.log.end_offset == 2
    await finish(again)


async def test_reading_what_a_failed_sync_took_back_is_refused_and_does_not_wait(
    tmp_path: Path,
) -> None:
    """With `interval` a record is readable before it is synced; a reader must not ask for ever."""
    config = StreamConfig(name="logs", subject="t.>", fsync="interval", fsync_interval_ms=3_600_000)
    disk = FailingDisk()
    stream = Stream(config=config, incarnation="1")
    partition = await open_partition(tmp_path / "0", stream, disk=disk)
    partition.take([Message(b"t.a", b"", b"", b"1")])
    await partition.wait_drained()
    with disk.fails("sync", name="*.log"), pytest.raises(LogFailedError):
        partition.log.sync()
    request = Fetch(stream="logs", offset=0, wait_ms_max=60_000)
    with pytest.raises(UnavailableError, match="Input/output error"):
        await FetchReading().fetch(partition, request, ResponseSlot(asyncio.Lock()))
    await finish(partition)


async def test_a_log_that_ends_before_its_last_epoch_began_is_damaged(tmp_path: Path) -> None:
    EpochFile(make(tmp_path / "0") / "epochs").begin(3, 7)
    with pytest.raises(CorruptError, match="epoch 3 began at offset 7, the log ends at 0"):
        await open_partition(tmp_path / "0")


def make(directory: Path) -> Path:
    directory.mkdir()
    return directory


async def test_what_is_remembered_is_written_down_while_frames_gather(
    tmp_path: Path,
) -> None:
    partition = await open_partition(tmp_path / "0", frames_unremembered_max=2)
    for number in range(4):
        partition.take([batch(number, number + 1)])
        await partition.wait_drained()
    await wait_until_async(lambda: written_offset(tmp_path / "0") >= 4)
    await finish(partition)


async def test_records_are_stored_while_what_is_remembered_is_written_down(tmp_path: Path) -> None:
    disk = FailingDisk()
    partition = await open_partition(tmp_path / "0", disk=disk, frames_unremembered_max=1)
    with disk.holds("create", name="producers.tmp") as held:
        partition.take([batch(0, 1)])
        assert await asyncio.to_thread(held.reached.wait, 30)
        async with asyncio.timeout(20):
            for number in (1, 2):  # what is remembered of both is written after the one under way
                partition.take([batch(number, number + 1)])
                await partition.wait_drained()
        assert written_offset(tmp_path / "0") < 1
    await wait_until_async(lambda: written_offset(tmp_path / "0") == 3)
    await finish(partition)


async def test_a_stream_that_closes_waits_for_what_is_being_written_down_and_keeps_the_last(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    partition = await open_partition(tmp_path / "0", disk=disk, frames_unremembered_max=1)
    with disk.holds("create", name="producers.tmp", once=True) as held:
        partition.take([batch(0, 1)])
        assert await asyncio.to_thread(held.reached.wait, 30)
        partition.take([batch(1, 2)])
        await partition.wait_drained()
        finishing = asyncio.create_task(finish(partition))
        done, _ = await asyncio.wait({finishing}, timeout=0.2)
        assert not done, "it waits"
    await finishing
    assert written_offset(tmp_path / "0") == 2, "an older one took the place of a newer one"


def written_offset(directory: Path) -> int:
    memory = ProducerSnapshot.load(directory)
    return memory.offset if memory else -1


async def test_a_stream_that_closes_while_its_dedup_state_is_rebuilt_writes_no_part_of_it(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    partition = await open_partition(tmp_path / "0", disk=disk)
    partition.take([batch(0, 1)])
    await partition.wait_drained()
    with disk.holds("read", name="*.log") as held:
        rebuilding = asyncio.create_task(partition.remember_anew())
        assert await asyncio.to_thread(held.reached.wait, 30)
        rebuilding.cancel()  # as the end of its node does
        await asyncio.wait({rebuilding})
        await finish(partition)
    again = await open_partition(tmp_path / "0")
    assert (again.log.end_offset, last_sequence(again)) == (1, 1)
    await finish(again)


async def test_a_snapshot_that_is_wanted_while_the_dedup_state_is_rebuilt_has_all_of_it(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    partition = await open_partition(tmp_path / "0", disk=disk)
    for number in range(3):
        partition.take([batch(number, number + 1)])
        await partition.wait_drained()
        partition.writer.submit(LogCommand.SEAL)
    await wait_until_async(lambda: partition.log.segment_count == 4)
    pace = Pace(1 << 40, SystemClock(), wait=lambda _: None, stopped=lambda: False)
    with disk.holds("read", name="*.log") as held:
        rebuilding = asyncio.create_task(partition.remember_anew())
        assert await asyncio.to_thread(held.reached.wait, 30)
        partition.compaction_scheduler.work(pace)  # it wants one before it merges the segments
        await asyncio.sleep(0)  # the event loop hears of that
    await rebuilding
    await wait_until_async(lambda: written_offset(tmp_path / "0") == 3)
    memory = ProducerSnapshot.load(tmp_path / "0")
    assert memory
    assert memory.producers[0] == [PRODUCER]
    await finish(partition)

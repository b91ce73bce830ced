"""The collector's journal when the disk does not let it give back what is done with."""

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext as does_not_raise
from pathlib import Path

import pytest
from typing_extensions import override

from penstock.collector.errors import SpoolFailedError
from penstock.collector.spool.journal import Entry, Journal
from penstock.logd.format.batch import Record
from penstock.logd.storage.disk import File, RealDisk, RealFile
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async


async def test_a_disk_that_gives_nothing_back_ends_nothing(tmp_path: Path) -> None:
    disk = FailingDisk()
    journal = Journal(tmp_path / "spool", bytes_max=1 << 20, disk=disk)
    journal.open()
    taken = journal.offer(Entry(Record(subject="s", value=b"x" * 2000, timestamp_ns=1)))
    await journal.commit()
    assert await taken == 0

    with disk.fails("create", name="*.log"):
        assert await journal.first_segment_end() is None
        assert (journal.failures, "Input/output error" in journal.failure) == (1, True)
        await journal.delete_before(1)
        assert journal.failures == 2
    again = journal.offer(Entry(Record(subject="s", value=b"y", timestamp_ns=2)))
    await journal.commit()
    assert (await again, journal.failure) == (1, "")
    await journal.delete_before(2)
    await journal.close()


async def test_a_disk_that_is_well_again_is_told_though_nothing_is_written(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    journal = Journal(tmp_path / "spool", bytes_max=1 << 20, disk=disk, look_s=0.01)
    journal.open()
    commits = asyncio.ensure_future(journal.run())
    await journal.offer(Entry(Record(subject="s", value=b"x" * 2000, timestamp_ns=1)))

    with disk.failing():
        refused = journal.offer(Entry(Record(subject="s", value=b"y", timestamp_ns=2)))
        with pytest.raises(SpoolFailedError):
            await refused
        await journal.delete_before(1)
        assert journal.failure, "that it gives room back does not say that it takes any"
    await wait_until_async(lambda: not journal.failure)
    with disk.fails("create", name="*.log"):
        await journal.delete_before(1)
        assert journal.failure
    await journal.delete_before(1)
    assert not journal.failure
    commits.cancel()
    await asyncio.gather(commits, return_exceptions=True)
    await journal.close()
    assert not list(journal.directory.glob("*.tmp"))


async def test_a_disk_is_full_until_it_takes_as_much_as_it_refused(tmp_path: Path) -> None:
    room = 50_000

    class SmallFile(RealFile):
        @override
        def write(self, position: int, buffers: Sequence[bytes]) -> None:
            if position + sum(len(part) for part in buffers) > room:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(position, buffers)

    class SmallDisk(RealDisk):
        @override
        def open(self, path: Path) -> File:
            return SmallFile(path, os.O_RDWR)

        @override
        def create(self, path: Path) -> File:
            return SmallFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    journal = Journal(tmp_path / "spool", bytes_max=1 << 20, disk=SmallDisk())
    journal.open()
    refused = journal.offer(Entry(Record(subject="s", value=os.urandom(60_000), timestamp_ns=1)))
    await journal.commit()
    with pytest.raises(SpoolFailedError):
        await refused
    assert await journal.takes_writes()
    assert "No space" in journal.failure
    room = 100_000
    assert await journal.takes_writes()
    assert not journal.failure
    await journal.close()


async def test_a_full_disk_gets_the_room_of_all_that_is_done(tmp_path: Path) -> None:
    disk = FailingDisk()
    journal = Journal(tmp_path / "spool", bytes_max=1 << 30, disk=disk)
    journal.open()

    def offered() -> asyncio.Future[int]:
        return journal.offer(Entry(Record(subject="s", value=b"x" * 2000, timestamp_ns=1)))

    first = offered()
    await journal.commit()
    await journal.delete_before(await first + 1)
    assert journal.used_bytes > 2000  # one segment, far from full

    with disk.fails("write", errno.ENOSPC, name="*.log"):
        refused = offered()
        await journal.commit()
        with pytest.raises(SpoolFailedError):
            await refused
        await journal.delete_before(1)
        assert journal.used_bytes == 0
    taken = offered()
    await journal.commit()
    assert await taken == 1
    await journal.close()


async def test_what_is_synced_is_not_cut_off_before_anybody_heard_of_it(tmp_path: Path) -> None:
    """Deletions may be queued behind a write, and the log may fail in the first of them."""
    disk = FailingDisk()
    journal = Journal(tmp_path / "spool", bytes_max=1 << 20, disk=disk)
    journal.open()
    taken = journal.offer(Entry(Record(subject="s", value=b"x", timestamp_ns=1)))
    rolls: list[Path] = []
    again_rolled = threading.Event()

    def fail_first(operation: str, path: Path) -> None:
        if operation == "create" and path.suffix == ".log":
            rolls.append(path)
            if len(rolls) == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            again_rolled.set()

    with disk.before(fail_first), disk.holds("sync", name="*.log", once=True) as sync:
        committing = asyncio.ensure_future(journal.commit())
        await wait_until_async(sync.reached.is_set)
        rolling = asyncio.ensure_future(journal.first_segment_end())
        deleting = asyncio.ensure_future(journal.delete_before(0))
        last = asyncio.ensure_future(journal.first_segment_end())
        await asyncio.sleep(0)  # they are in the thread's queue, behind the write
        sync.go_on.set()
        assert again_rolled.wait(10)  # the loop stands still meanwhile
        await asyncio.gather(committing, rolling, deleting, last)
    assert (await taken, len(rolls), last.result()) == (0, 2, 1)
    assert [header.base_offset for header, _ in journal.frames(0)] == [0]
    again = journal.offer(Entry(Record(subject="s", value=b"y", timestamp_ns=2)))
    await journal.commit()
    assert await again == 1
    await journal.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_who_is_cancelled_while_it_is_written_leaves_no_offer_without_an_answer(
    tmp_path: Path, fails: bool
) -> None:
    disk = FailingDisk()
    journal = Journal(tmp_path / "spool", bytes_max=1 << 20, disk=disk)
    journal.open()
    running = asyncio.ensure_future(journal.run())
    failure = disk.fails("sync", name="*.log", once=True) if fails else does_not_raise()
    with disk.holds("sync", name="*.log", once=True) as sync, failure:
        taken = journal.offer(Entry(Record(subject="s", value=b"x", timestamp_ns=1)))
        await wait_until_async(sync.reached.is_set)
        running.cancel()
        await asyncio.sleep(0)
        sync.go_on.set()
        await journal.commit()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    if fails:
        with pytest.raises(SpoolFailedError):
            await taken
    else:
        assert await taken == 0
    await journal.close()

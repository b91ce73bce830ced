"""Streams whose disk fails at the wrong moment."""

import asyncio
import errno
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.logd.api.description import describe_stream
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.format.acks import Nack
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.standalone import Reviver, StreamSet
from penstock.logd.storage import REAL_DISK, Disk, EpochFile
from tests.support.failing_disk import FailingDisk
from tests.support.partition_context import make_context
from tests.support.waiting import wait_until_async

LOGS = StreamConfig(name="logs", subject="t.>")
AUDIT = StreamConfig(name="audit", subject="t.>")
PLAIN = Message(b"t.a", b"", b"", b"x")


class QuietLink:
    """Brings nothing."""

    def __init__(self) -> None:
        self.sids = itertools.count()
        self.asked: asyncio.Event | None = None
        self.answer = asyncio.Event()

    def subscribe(self, subject: str, queue: str = "") -> bytes:
        return b"%d" % next(self.sids)

    async def confirmed(self, sid: bytes) -> None:
        if self.asked is not None:
            self.asked.set()
            await self.answer.wait()

    def unsubscribe(self, sid: bytes) -> None:
        pass

    pause = resume = unsubscribe


@asynccontextmanager
async def stream_set(
    directory: Path, link: QuietLink | None = None, disk: Disk = REAL_DISK
) -> AsyncIterator[StreamSet]:
    incarnations = itertools.count()
    opened = StreamSet(
        directory,
        link or QuietLink(),
        make_context=lambda _: make_context(disk=disk),
        new_incarnation=lambda: str(next(incarnations)),
    )
    try:
        yield opened
    finally:
        await opened.close()


async def test_a_stream_that_could_not_be_opened_can_be_created_again(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with stream_set(tmp_path, disk=disk) as found:
        await found.start([])
        with (
            disk.fails("create", errno.ENOSPC, name="*.log"),
            pytest.raises(OSError, match="space"),
        ):
            await found.create(LOGS)
        partition, created = await found.create(LOGS)
        assert (partition.name, created) == ("logs", False)


async def test_a_stream_that_could_not_be_opened_can_be_deleted(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with stream_set(tmp_path, disk=disk) as found:
        await found.start([])
        with (
            disk.fails("create", errno.ENOSPC, name="*.log"),
            pytest.raises(OSError, match="space"),
        ):
            await found.create(LOGS)
        await found.delete("logs")
        assert (await found.create(LOGS))[1]


async def test_a_stream_whose_deletion_was_cut_short_can_be_created_anew(tmp_path: Path) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
        (tmp_path / "trash").rmdir()
        with pytest.raises(FileNotFoundError):
            await found.delete("logs")
        (tmp_path / "trash").mkdir()
        partition, created = await found.create(LOGS)
        assert created
        assert partition.stream.incarnation == "1"


async def test_a_stream_without_its_partition_is_not_begun_again_at_offset_0(
    tmp_path: Path,
) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
    moved, place = tmp_path / "moved", tmp_path / "streams" / "logs-0" / "0"
    place.rename(moved)
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
        assert found.partitions() == []
        with pytest.raises(UnavailableError, match="lost its data"):
            found.partition("logs")
        with pytest.raises(UnavailableError, match="lost its data"):
            await found.open("logs")
        moved.rename(place)
        assert (await found.open("logs")).epoch == 2


async def test_a_stream_that_cannot_be_opened_refuses_and_keeps_no_other_one_from_it(
    tmp_path: Path,
) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([LOGS, AUDIT])
    epochs = tmp_path / "streams" / "logs-0" / "0" / "epochs"
    sound = epochs.read_bytes()
    EpochFile(epochs).begin(2, 1000)
    async with stream_set(tmp_path) as found:
        await found.start([LOGS, AUDIT])
        assert [partition.name for partition in found.partitions()] == ["audit"]
        (offline_partition,) = found.offline_partition()
        assert "records have been lost; see to that, then `penstock" in offline_partition.reason
        assert (found.incarnation("logs"), found.incarnation("none")) == ("0", None)
        shown = describe_stream(found.find("logs"), "n")
        (part,) = shown["partitions"]
        assert (part["leader"], part["end_offset"]) == (None, None), "it does not look empty"
        assert (shown["problem"], offline_partition.cause) == (offline_partition.reason, "CORRUPT")
        for sid in (b"0", b"1"):
            found.subscription_manager.on_messages({sid: [Message(b"t.a", b"r", b"", b"x"), PLAIN]})
        counts = offline_partition.intake.counts
        assert (counts.received, counts.stored, counts.refused[Nack.STORAGE_FAILED]) == (2, 0, 2)
        assert counts.untold[Nack.STORAGE_FAILED] == 1
        assert found.partition("audit").intake.counts.stored == 2
        with pytest.raises(UnavailableError, match="records have been lost"):
            await found.open("logs")
        epochs.write_bytes(sound)
        await found.open("logs")
        found.subscription_manager.on_messages({b"0": [PLAIN], b"1": [PLAIN]})
        counts = found.partition("logs").intake.counts
        assert (counts.received, counts.stored, found.offline_partition()) == (3, 1, [])
        assert await found.open("logs") is found.partition("logs"), "nothing is to be done"


@pytest.mark.parametrize("content", [b"", b"PNSC1 00000000 {}\n", None])
async def test_epochs_that_are_damaged_or_gone_are_made_again_from_the_frames(
    tmp_path: Path, content: bytes | None
) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
        found.partition("logs").take([PLAIN])
        await found.partition("logs").wait_drained()
    epochs = tmp_path / "streams" / "logs-0" / "0" / "epochs"
    if content is None:
        epochs.unlink()
    else:
        epochs.write_bytes(content)
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
        assert found.offline_partition() == []
        partition = found.partition("logs")
        assert (partition.epoch, partition.high_watermark) == (2, 0)
        assert EpochFile(epochs).entries == [(1, 0), (2, 1)]


async def test_a_stream_that_cannot_be_opened_can_be_deleted(tmp_path: Path) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
    EpochFile(tmp_path / "streams" / "logs-0" / "0" / "epochs").begin(2, 1000)
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
        await found.delete("logs")
        assert found.offline_partition() == []
        assert (await found.create(LOGS))[1]


async def test_a_stream_that_failed_is_opened_as_a_restart_would(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with stream_set(tmp_path, disk=disk) as found:
        await found.start([LOGS])
        failed = found.partition("logs")
        with disk.fails("sync", name="*.log"):
            failed.take([PLAIN])
            await wait_until_async(lambda: failed.failure)
        again = await found.open("logs")
        assert (again.failure, failed.closed, again.epoch) == ("", True, 2)
        with pytest.raises(RefusedError, match="no stream 'other'"):
            await found.open("other")


async def test_a_stream_is_created_and_listens_though_who_asked_for_it_went_away(
    tmp_path: Path,
) -> None:
    link = QuietLink()
    async with stream_set(tmp_path, link) as found:
        await found.start([])
        link.asked = asyncio.Event()
        asking = asyncio.create_task(found.create(LOGS))
        await link.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        # What comes before the server has confirmed the subscription is the stream's already.
        found.subscription_manager.on_messages({b"0": [Message(b"t.a", b"", b"", b"early")]})
        link.answer.set()
        partition, created = await found.create(LOGS)
        found.subscription_manager.on_messages({b"0": [Message(b"t.a", b"", b"", b"late")]})
        assert (created, partition.intake.counts.stored) == (False, 2)


async def test_a_stream_is_deleted_whole_though_who_asked_for_it_went_away(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with stream_set(tmp_path, disk=disk) as found:
        await found.start([LOGS])
        with disk.holds("create", name="metadata.tmp") as held:
            asking = asyncio.create_task(found.delete("logs"))
            await asyncio.to_thread(held.reached.wait, 30)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        partition, created = await found.create(LOGS)
        assert (created, partition.stream.incarnation) == (True, "1")


async def test_a_stream_is_not_created_while_logd_stops(tmp_path: Path) -> None:
    link = QuietLink()
    async with stream_set(tmp_path, link) as found:
        await found.start([AUDIT])
        found.subscription_manager.stop()
        with pytest.raises(UnavailableError, match="logd stops"):
            await found.create(LOGS)
        assert next(link.sids) == 1


async def test_a_stream_that_is_made_when_logd_stops_is_whole_and_does_not_subscribe(
    tmp_path: Path,
) -> None:
    link, disk = QuietLink(), FailingDisk()
    async with stream_set(tmp_path, link, disk) as found:
        await found.start([])
        with disk.holds("create", name="*.log") as held:
            creating = asyncio.create_task(found.create(LOGS))
            await asyncio.to_thread(held.reached.wait, 30)
            found.subscription_manager.stop()
        _, created = await creating
        assert (created, next(link.sids)) == (True, 0)


async def test_a_stream_that_could_not_be_opened_for_want_of_space_is_opened_when_there_is_some(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with stream_set(tmp_path, disk=disk) as found:
        await found.start([LOGS])

    async with stream_set(tmp_path, disk=disk) as found:
        with disk.fails("open", errno.ENOSPC, name="*.log"):
            await found.start([LOGS])
            assert found.offline_partition()[0].out_of_space
        reviver = Reviver(found, SystemClock())
        await reviver.look()
        assert (found.offline_partition(), reviver.revived) == ([], 1)

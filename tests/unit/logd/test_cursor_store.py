"""Cursors on a real log whose disk is slow or fails: an answer means durable."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.format.acks import Nack
from penstock.logd.intake.options import Refusal
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.cursors import CursorKey
from penstock.logd.metadata.records import Group, GroupPartition, Share
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.cursors import CURSORS_STREAM, CursorStore, Extent, Granted
from penstock.logd.partition.partition import Partition
from penstock.logd.storage import REAL_DISK, Disk, EpochFile
from tests.support.failing_disk import FailingDisk
from tests.support.one_node import OneNode, one_node
from tests.support.partition_context import make_context
from tests.support.waiting import wait_until_async

LOGS = StreamConfig(name="logs", subject="t.>")
OF_CURSORS = f"{CURSORS_STREAM.name}-*/0/*.log"
KEY = CursorKey("c", "logs", 0)


@asynccontextmanager
async def store(
    directory: Path, disk: Disk = REAL_DISK
) -> AsyncIterator[tuple[CursorStore, OneNode]]:
    async with one_node(directory, LOGS, context=make_context(disk=disk)) as node:
        yield await node.engine.cursors.ready(), node


async def commit(cursors: CursorStore, offset: int = 0, *, rewind: bool = False) -> None:
    await cursors.commit([(KEY, offset, None)], rewind=rewind)


async def test_a_commit_is_answered_when_it_is_synced_and_not_before(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with store(tmp_path, disk) as (cursors, _):
        await commit(cursors)
        with disk.holds("sync", name=OF_CURSORS) as held:
            deleting = asyncio.create_task(cursors.delete(KEY))
            await asyncio.to_thread(held.reached.wait, 20)
            assert not deleting.done()
            assert len(cursors.get(KEY)) == 1
        assert await deleting
        assert cursors.get(KEY) == []


async def test_a_commit_whose_consumer_has_gone_counts_for_the_next_one_of_its_name(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with store(tmp_path, disk) as (cursors, node):
        await commit(cursors)
        node.partition("logs").take([Message(b"t.a", b"", b"", b"x")])
        await node.partition("logs").wait_committed(0)
        partition = node.partition(CURSORS_STREAM.name)
        with disk.holds("sync", name=OF_CURSORS) as held:
            committing = asyncio.create_task(commit(cursors, 1))
            await asyncio.to_thread(held.reached.wait, 20)
            committing.cancel()  # as a connection that ends cancels what it has asked for
            await asyncio.wait({committing})
        await partition.wait_committed(1)
        assert cursors.get(KEY)[0]["offset"] == 1
        assert cursors.page(consumer="c", stream=None, after=None)[0][0]["offset"] == 1


async def test_a_commit_that_the_disk_does_not_take_is_no_answer(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with store(tmp_path, disk) as (cursors, _):
        await commit(cursors)
        with disk.fails("sync", name=OF_CURSORS):
            for _ in range(2):
                with pytest.raises(UnavailableError, match=r"__cursors: .*Input/output error"):
                    await commit(cursors, rewind=True)
        assert cursors.get(KEY)[0]["offset"] == 0


async def test_cursors_of_a_stream_that_is_no_more_are_forgotten(tmp_path: Path) -> None:
    async with store(tmp_path) as (cursors, node):
        await commit(cursors)
        await node.engine.streams.delete("logs")
        with pytest.raises(RefusedError, match="no partition 0 of 'logs'"):
            await commit(cursors)
        await wait_until_async(lambda: cursors.get(KEY) == [], what="it is forgotten")
    async with store(tmp_path) as (cursors, _):
        assert cursors.get(KEY) == []
        await commit(cursors)
    async with store(tmp_path) as (cursors, _):
        assert cursors.get(KEY)[0]["current"] is True


async def test_cursors_that_the_disk_does_not_give_end_no_node_and_are_forgotten_later(
    tmp_path: Path,
) -> None:
    async with store(tmp_path) as (cursors, _):
        await commit(cursors)
    disk = FailingDisk()
    async with one_node(tmp_path, LOGS, context=make_context(disk=disk)) as node:
        with disk.fails("read", name=OF_CURSORS), capture_logs() as logs:
            await node.engine.streams.delete("logs")
            await wait_until_async(
                lambda: [one for one in logs if one["event"] == "cursor_deletion_failed"]
            )
        cursors = await node.engine.cursors.ready()
        await wait_until_async(lambda: cursors.get(KEY) == [], what="it is forgotten")


async def test_cursors_that_cannot_be_read_are_never_taken_for_none(tmp_path: Path) -> None:
    async with store(tmp_path) as (cursors, _):
        await commit(cursors)
    damage(tmp_path, "__cursors")
    async with one_node(tmp_path, LOGS) as node:
        assert [partition.name for partition in node.engine.partitions()] == ["logs"]
        with pytest.raises(UnavailableError, match=r"records have been lost.*start logd again"):
            await node.engine.cursors.ready()


async def test_cursors_of_a_stream_that_cannot_be_opened_are_kept(tmp_path: Path) -> None:
    async with store(tmp_path) as (cursors, _):
        await commit(cursors)
    damage(tmp_path, "logs")
    async with one_node(tmp_path) as node:
        cursors = await node.engine.cursors.ready()
        (cursor,) = cursors.get(KEY)
        assert cursor["current"]
        await commit(cursors)


def damage(directory: Path, stream: str) -> None:
    (log,) = directory.glob(f"streams/{stream}-*/0")
    EpochFile(log / "epochs").begin(2, 1000)


INCARNATION = "i"


def group_of(*, epoch: int, owner: str, granted: int) -> Group:
    share = Share(
        partition=GroupPartition("logs", INCARNATION, 0), wanted=owner, owner=owner, epoch=granted
    )
    return Group(name="c", epoch=epoch, members=(), shares=(share,))


class OnePartition:
    """As `CursorStreams`: a log that is long enough."""

    def __init__(self, node: OneNode) -> None:
        self.partition = node.partition

    async def create(self, config: StreamConfig) -> tuple[Partition, bool]:
        return self.partition(config.name), False

    def extent(self, stream: str, number: int) -> Extent:
        return Extent(INCARNATION)

    def incarnation(self, stream: str, number: int) -> str | None:
        return INCARNATION


async def test_commits_of_a_grant_that_is_over_are_refused_and_positions_never_go_back(
    tmp_path: Path,
) -> None:
    groups = {"c": group_of(epoch=7, owner="a", granted=7)}
    async with store(tmp_path) as (_, node):
        cursors = CursorStore(OnePartition(node), max_cursors=10, groups=groups.get)

        async def granted(member: str, offset: int, epoch: int) -> tuple[int, int]:
            wanted = Granted(KEY, offset, INCARNATION, epoch)
            (found,) = await cursors.commit_granted(member, [wanted])
            return found["offset"], found["epoch"]

        async def refused(member: str, offset: int, epoch: int) -> str:
            with pytest.raises(RefusedError) as refusal:
                await granted(member, offset, epoch)
            return refusal.value.code

        assert await granted("a", 100, 7) == (100, 7)
        assert await refused("a", 99, 7) == "CURSOR_BEHIND"
        with pytest.raises(UnavailableError, match="epoch 9 of the group is not known"):
            await granted("b", 50, 9)
        groups["c"] = group_of(epoch=9, owner="b", granted=9)
        assert await refused("a", 101, 7) == "FENCED"
        assert await granted("b", 50, 9) == (100, 9)
        assert await granted("b", 101, 9) == (101, 9)
        with pytest.raises(RefusedError, match="stop them first") as refusal:
            await commit(cursors, rewind=True)
        assert refusal.value.code == "GROUP_ACTIVE"
        with pytest.raises(RefusedError, match="stop them first"):
            await cursors.delete(KEY)
        del groups["c"]
        await commit(cursors, rewind=True)
        assert await refused("b", 200, 9) == "FENCED"
        again = CursorStore(OnePartition(node), max_cursors=10)
        await again.start()
        assert again.get(KEY)[0]["epoch"] == 9


async def test_a_commit_that_its_stream_does_not_take_now_is_refused_as_unavailable(
    tmp_path: Path,
) -> None:
    async with store(tmp_path) as (cursors, node):
        await commit(cursors)
        publish_queue = node.partition(CURSORS_STREAM.name).publish_queue
        publish_queue.decline(Refusal(Nack.NOT_ENOUGH_REPLICAS, "too few replicas are in sync"))
        with pytest.raises(UnavailableError, match="too few replicas are in sync"):
            await commit(cursors)
        publish_queue.decline(None)
        publish_queue.pause()
        with pytest.raises(UnavailableError, match="not led here any more"):
            await commit(cursors)
        assert cursors.commits == 1

"""What is purged is gone for readers at once, stays so, and costs nothing that was not purged."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.logd.api.server import ResponseSlot
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.commands import PurgePartition
from penstock.logd.metadata.state import ClusterState
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.partition import Partition
from penstock.logd.partition.purge import PURGED_NAME, PurgePoint, Purging
from penstock.logd.storage import Checkpoint, CommitLog, EpochFile, LogConfig
from tests.support.cluster_state import Cluster
from tests.support.frames import make_frames
from tests.support.guarded_api import open_api
from tests.support.one_node import OneNode, one_node
from tests.support.waiting import wait_until_async

LOGS = StreamConfig(name="logs", subject="t.>")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[OneNode]:
    async with one_node(tmp_path / "data", LOGS) as found:
        yield found


async def publish(partition: Partition, count: int) -> None:
    for _ in range(count):
        message = Message(b"t.a", b"", b"", b"x")
        await partition.wait_committed(partition.store([message]))


def segments(partition: Partition) -> list[tuple[int, int]]:
    return [(facts.base_offset, facts.next_offset) for facts in partition.log.segments()]


async def test_everything_committed_goes_with_its_files(node: OneNode) -> None:
    partition = node.partition("logs")
    await publish(partition, 5)
    assert await node.engine.streams.purge("logs", 0, 5) == 5
    assert partition.start_offset == 5, "at once"
    await wait_until_async(lambda: segments(partition) == [(5, 5)], what="its file is gone")
    await publish(partition, 2)
    assert (partition.start_offset, partition.high_watermark) == (5, 6)


async def test_readers_are_told_and_cursors_stay(node: OneNode) -> None:
    partition = node.partition("logs")
    await publish(partition, 6)
    api = open_api(node.engine)

    async def ask(name: str, **request: object) -> dict[str, object]:
        asked = {"api": name, "stream": "logs", "partition": 0} | request
        return (await api.answer(asked, ResponseSlot(asyncio.Lock()))).header

    assert await ask("purge", before=4) == {"start_offset": 4}
    assert segments(partition) == [(0, 6)], "what is below goes with the segment that holds it"
    assert (await ask("offsets", at="earliest"))["offset"] == 4
    assert (await ask("offsets", at=0))["offset"] == 4, "the first at or after a time"
    assert (await ask("fetch", offset=4))["next_offset"] == 6
    for request in ({"offset": 3}, {"offset": 3, "subject": "t.a"}):
        with pytest.raises(RefusedError) as refused:
            await ask("fetch", **request)
        assert refused.value.code == "OUT_OF_RANGE"
        assert (refused.value.detail["earliest"], refused.value.detail["latest"]) == (4, 6)
    assert await ask("purge", before=2) == {"start_offset": 4}, "it never becomes less"
    (described,) = node.engine.streams.describe("logs")
    assert described["partitions"][0]["start_offset"] == 4


async def test_what_is_purged_stays_so_over_a_restart(tmp_path: Path) -> None:
    async with one_node(tmp_path, LOGS) as node:
        await publish(node.partition("logs"), 6)
        await node.engine.streams.purge("logs", 0, 4)
    async with one_node(tmp_path, LOGS) as node:
        partition = node.partition("logs")
        assert (partition.start_offset, partition.log.start_offset) == (4, 0)
        await publish(partition, 1)
        assert await node.engine.streams.purge("logs", 0, 7) == 7
        await wait_until_async(lambda: segments(partition) == [(7, 7)], what="its files are gone")


async def test_purges_that_come_at_once_do_not_overtake_each_other(node: OneNode) -> None:
    partition, streams = node.partition("logs"), node.engine.streams
    await publish(partition, 6)
    await asyncio.gather(*(streams.purge("logs", 0, before) for before in (6, 5, 4, 3, 2, 1)))
    assert partition.start_offset == 6


@pytest.mark.parametrize(
    ("stream", "partition", "before", "code"),
    [
        ("logs", 0, 4, "OUT_OF_RANGE"),
        ("logs", 1, 1, "UNKNOWN_PARTITION"),
        ("none", 0, 1, "UNKNOWN_STREAM"),
        ("__cursors", 0, 0, "RESERVED_NAME"),
    ],
)
async def test_what_cannot_be_purged_is_refused(
    node: OneNode, stream: str, partition: int, before: int, code: str
) -> None:
    await publish(node.partition("logs"), 3)
    if stream == "__cursors":
        await node.engine.cursors.ready()
    with pytest.raises(RefusedError) as refused:
        await node.engine.streams.purge(stream, partition, before)
    assert refused.value.code == code
    assert node.partition("logs").start_offset == 0


def log_of(directory: Path, epochs: list[tuple[int, int]], end: int) -> tuple[CommitLog, EpochFile]:
    directory.mkdir()
    log = CommitLog.open(directory, LogConfig())
    log.append(make_frames(0, [b"x"] * end))
    file = EpochFile(directory / "epochs")
    for epoch, start in epochs:
        file.begin(epoch, start)
    return log, file


def test_records_of_later_epochs_were_not_purged(tmp_path: Path) -> None:
    """A power loss has cost 3 to 9; the next leader gave those offsets to other records."""
    log, epochs = log_of(tmp_path / "log", [(1, 0), (2, 3)], 7)
    ordered: list[int] = []
    purging = Purging(log, epochs, ordered.append)
    purging.set(PurgePoint(10, 1), -1)
    assert purging.start() == 3
    purging.committed(6)
    assert ordered == [3]
    purging.set(PurgePoint(5, 2), 6)
    assert (purging.start(), ordered) == (5, [3, 5])
    purging.set(PurgePoint(10, 1), 6)
    assert purging.start() == 5, "what was said before that is older"


def test_files_go_no_further_than_what_is_known_to_be_committed(tmp_path: Path) -> None:
    log, epochs = log_of(tmp_path / "log", [(1, 0)], 8)
    ordered: list[int] = []
    purging = Purging(log, epochs, ordered.append)
    purging.set(PurgePoint(6, 1), 2)
    assert (purging.start(), ordered) == (6, [3])
    for high_watermark in (2, 4, 7, 9):
        purging.committed(high_watermark)
    assert ordered == [3, 5, 6]


def test_what_is_purged_after_a_loss_goes_though_more_had_gone_before(tmp_path: Path) -> None:
    log, epochs = log_of(tmp_path / "log", [(1, 0)], 10)
    ordered: list[int] = []
    purging = Purging(log, epochs, ordered.append)
    purging.set(PurgePoint(9, 1), 9)
    log.truncate_to(3)
    epochs.truncate_to(3)
    epochs.begin(2, 3)
    log.append(make_frames(3, [b"y"] * 5))
    purging.set(PurgePoint(6, 2), 7)
    assert (purging.start(), ordered) == (6, [9, 6])


def test_a_purge_point_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    assert PurgePoint.load(tmp_path) == PurgePoint()
    Checkpoint(tmp_path / PURGED_NAME).save({"before": 7, "epoch": 3})
    assert PurgePoint.load(tmp_path) == PurgePoint(7, 3)
    (tmp_path / "purged").write_bytes(b"damaged")
    with pytest.raises(CorruptError):
        PurgePoint.load(tmp_path)


def test_the_metadata_keeps_what_a_leader_has_purged() -> None:
    cluster = Cluster("a", "b", "c")
    incarnation = cluster.create("s", ("a", "b", "c"), ("b", "c", "a"))

    def purge(before: int, epoch: int = 1, partition: int = 1) -> str:
        return cluster.code(
            PurgePartition(
                stream="s", incarnation=incarnation, partition=partition,
                leader_epoch=epoch, before=before,
            )
        )  # fmt: skip

    def purged() -> tuple[int, int]:
        found = cluster.partition("s", 1)
        return found.purged, found.purge_epoch

    version = cluster.partition("s", 1).version
    assert (purge(5), purged()) == ("", (5, 1))
    assert cluster.partition("s", 1).version == version + 1, "its replicas are to see it"
    assert (purge(3), purged()) == ("", (5, 1))
    assert cluster.partition("s", 1).version == version + 1
    assert (purge(9, epoch=2), purge(9, partition=2)) == ("STALE_EPOCH", "UNKNOWN_PARTITION")
    cluster.apply(cluster.election(None, "a", "b", "c", number=1))
    cluster.apply(cluster.election("a", "a", "b", "c", number=1))
    epoch = cluster.partition("s", 1).leader_epoch
    assert (purge(9), purge(4, epoch), purged()) == ("STALE_EPOCH", "", (4, epoch))
    assert cluster.partition("s", 0).purged == 0
    restored = ClusterState.restore(cluster.state.snapshot())
    assert restored.streams["s"].partitions[1].purged == 4

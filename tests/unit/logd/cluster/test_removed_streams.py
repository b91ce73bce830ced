"""What a node keeps of a stream that is deleted, in memory and on disk."""

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from penstock.logd.cluster.directories import ReplicaDirectories
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.metadata.streams import StreamConfig
from tests.support.one_node import one_node
from tests.support.waiting import wait_until_async
from tests.unit.logd.cluster.test_node_replicas import RECORD

LOGS = StreamConfig(name="logs", subject="t.>")


def test_a_deleted_stream_is_freed_though_its_node_began_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with one_node(tmp_path, LOGS):
            pass
        async with one_node(tmp_path) as node:
            await wait_until_async(lambda: gc.get_freeze_count() > 0)
            partition = weakref.ref(node.partition("logs"))
            await node.engine.streams.delete("logs")

            def is_freed() -> bool:
                gc.collect()
                return partition() is None

            await wait_until_async(is_freed)

    try:
        asyncio.run(main())
    finally:
        gc.unfreeze()


async def test_data_that_could_not_be_removed_is_removed_when_the_disk_lets_it(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path, LOGS) as node:
        (directory,) = (tmp_path / "streams").glob("logs-*")
        obstacle = tmp_path / "trash" / f"{directory.name}-0"
        obstacle.touch()  # no directory can have the name of a file
        with capture_logs() as logs:
            await node.engine.streams.delete("logs")
            await wait_until_async(
                lambda: "replica_removal_failed" in [one["event"] for one in logs]
            )
        with pytest.raises(RefusedError, match="its data is not yet gone"):
            await node.create(LOGS)
        obstacle.unlink()
        await wait_until_async(lambda: not directory.exists(), what="the data is gone")
        await node.create(LOGS)


def test_a_log_that_0_1_0_marked_as_made_is_not_made_again_and_goes_with_its_mark(
    tmp_path: Path,
) -> None:
    directories = ReplicaDirectories(tmp_path)
    parent = tmp_path / "streams" / f"{RECORD.config.name}-{RECORD.incarnation}"
    parent.mkdir()
    (parent / "held-1").touch()
    with pytest.raises(CorruptError, match="lost its data directory"):
        directories.prepare(RECORD, 1)
    assert directories.prepare(RECORD, 0) == parent / "0", "the mark is of the other partition"
    (parent / "1").mkdir()
    assert directories.prepare(RECORD, 1) == parent / "1"
    directories.remove(RECORD, 0)
    directories.remove(RECORD, 1)
    assert not parent.exists()


def test_partitions_of_a_stream_are_removed_at_the_same_time(tmp_path: Path) -> None:
    partitions = range(8)
    directories = ReplicaDirectories(tmp_path)
    with ThreadPoolExecutor(len(partitions)) as threads:
        for number in range(30):
            stream = structs.replace(RECORD, incarnation=str(number))
            for partition in partitions:
                directories.prepare(stream, partition)
            list(threads.map(partial(directories.remove, stream), partitions))
    assert list((tmp_path / "streams").iterdir()) == []

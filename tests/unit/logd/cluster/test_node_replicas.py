"""A node's replicas as the state changes: what it gave back of their leaderships, and for how long.

The log and its files are real; the cluster is a state that the test writes.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.cluster.replica import ReplicaRunner
from penstock.logd.cluster.replica_manager import (
    FailedLogReopener,
    NatsReachability,
    ReplicaManager,
)
from penstock.logd.errors import NotOpenError, RefusedError, UnavailableError
from penstock.logd.format.batch import Record
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.records import PartitionKey as Place
from penstock.logd.metadata.records import PartitionRecord, ReplicationOptions, StreamRecord
from penstock.logd.metadata.streams import StreamConfig, StreamState
from penstock.logd.replication.events import Diverged, Fetch, Frames, NodeId
from penstock.logd.storage import CommitLog, LogConfig
from tests.support.failing_disk import FailingDisk
from tests.support.frames import make_batch_frame
from tests.support.one_node import one_node
from tests.support.partition_context import QuietLink, make_context
from tests.support.waiting import wait_until_async

PLACE = Place("logs", 0)
HERE = NodeId("n")  # as in `make_context`
RECORD = StreamRecord(
    config=StreamConfig(name="logs", subject="t.>"),
    incarnation="i-1",
    state=StreamState.OPEN,
    options=ReplicationOptions(),
    partitions=(
        PartitionRecord(
            replicas=(HERE,), isr=(HERE,), leader=None, leader_epoch=3, last_leader=HERE
        ),
    ),
)


class Cluster:
    """What a node's replicas use of `ClusterNode`: a state, and nobody behind it."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamRecord] = {}
        self.group = SimpleNamespace(state=self, insist=self._insist)
        self.lease = SimpleNamespace(until_ns=0)
        self.controlling = SimpleNamespace(look=lambda: None, lease=self.lease)
        self.replication = SimpleNamespace(
            touch=lambda _: None,
            forget=lambda _node, _key: None,
            keep_written=lambda _key, _frames: None,
        )

    async def _insist(self, command: object) -> None:
        """The state hears of it, some time."""


class ListeningLink(QuietLink):
    """Knows what is subscribed to now."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    @override
    def subscribe(self, subject: str, queue: str = "") -> bytes:
        self.subjects.append(subject)
        return super().subscribe(subject, queue)

    @override
    def unsubscribe(self, sid: bytes) -> None:
        self.subjects.remove(sid.decode())


class ReportedReplicas(ReplicaManager):
    """Notes which replicas can be found each time that one has something to report."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.found: list[list[ReplicaRunner]] = []

    @override
    def report_changed(self, replica: ReplicaRunner) -> None:
        self.found.append(self.each())
        super().report_changed(replica)


@asynccontextmanager
async def node_with(
    directory: Path, *records: StreamRecord, kind: type[ReplicaManager] = ReplicaManager
) -> AsyncIterator[Any]:
    clock, cluster = SystemClock(), Cluster()
    directory.mkdir(exist_ok=True)
    link = ListeningLink()
    node: Any = kind(
        directory,
        link,
        lambda _: make_context(),
        clock=clock,
        reachability=NatsReachability(lambda: True, clock),
    )
    node.link = link
    node.attach(cluster)
    node.ready = True
    become(node, *records)
    try:
        yield node
    finally:
        await node.close()


def become(node: Any, *records: StreamRecord) -> None:
    node.cluster.streams = {record.config.name: record for record in records}
    node.on_restored()


async def opened(node: Any, *, besides: ReplicaRunner | None = None) -> Any:
    return await wait_until_async(
        lambda: (found := node.at(PLACE)) is not besides and found, what="a replica is open"
    )


async def test_what_a_node_resigned_from_is_forgotten_with_the_stream(tmp_path: Path) -> None:
    async with node_with(tmp_path, RECORD) as node:
        replica = await opened(node)
        node.resignations[replica.key] = 3
        become(node)
        await wait_until_async(lambda: node.at(PLACE) is None, what="the replica is closed")
        assert node.resignations == {}


async def test_a_replica_is_found_only_once_it_has_its_partition(tmp_path: Path) -> None:
    """A thread that answers a probe asks each for its partition at any moment."""
    directory = tmp_path / "streams/logs-i-1/0"
    directory.mkdir(parents=True)
    log = CommitLog.open(directory, LogConfig())
    log.append([make_batch_frame(0, [Record("t.a", b"v", 1)])[:2]])
    log.close()
    (segment,), (index,) = directory.glob("*.log"), directory.glob("*.index")
    data = segment.read_bytes()
    segment.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    index.unlink()
    async with node_with(tmp_path, RECORD, kind=ReportedReplicas) as node:
        replica = await opened(node)
        assert replica.log.damaged() == [(0, 1)]  # which is reported as it gets its partition
        assert node.found[0] == []
        assert node.found[-1] == [replica]


async def test_it_is_forgotten_with_a_stream_that_another_of_that_name_follows(
    tmp_path: Path,
) -> None:
    async with node_with(tmp_path, RECORD) as node:
        replica = await opened(node)
        node.resignations[replica.key] = 3
        become(node, structs.replace(RECORD, incarnation="i-2"))
        other = await opened(node, besides=replica)
        assert other.key.incarnation == "i-2"
        assert node.resignations == {}
        assert not other.report().resigned


async def test_it_is_known_to_the_replica_that_is_opened_again(tmp_path: Path) -> None:
    async with node_with(tmp_path, RECORD) as node:
        replica = await opened(node)
        node.resignations[replica.key] = 3
        become(node, structs.replace(RECORD, config=replace(RECORD.config, max_batch_rows=7)))
        again = await opened(node, besides=replica)
        assert again.key == replica.key
        assert node.resignations == {again.key: 3}
        assert again.report().resigned, "of the epoch that it is in"


def led(*others: str, observers: tuple[str, ...] = ()) -> StreamRecord:
    """The stream, led here, with a replica on other nodes, too."""
    (partition,) = RECORD.partitions
    replicas = (HERE, *map(NodeId, others))
    led_here = structs.replace(
        partition,
        replicas=replicas,
        observers=tuple(map(NodeId, observers)),
        isr=replicas,
        leader=HERE,
        leader_epoch=4,
    )
    return structs.replace(RECORD, partitions=(led_here,))


async def leading(node: Any) -> Any:
    node.cluster.lease.until_ns = node.clock.monotonic_ns() + 10**12
    replica = await opened(node)
    node.on_lease(held=True)
    return await wait_until_async(lambda: replica.leading and replica, what="it leads")


async def test_what_is_not_durable_is_told_only_where_others_copy_it(tmp_path: Path) -> None:
    async with node_with(tmp_path, led()) as node:
        replica = await leading(node)
        assert not replica.partition.writer.reports_written
        become(node, led(observers=("o",)))
        assert replica.partition.writer.reports_written
        become(node, led())
        assert not replica.partition.writer.reports_written


async def test_a_failed_log_is_answered_for_where_nobody_else_can_lead(tmp_path: Path) -> None:
    async with node_with(tmp_path / "alone", led()) as node:
        replica = await leading(node)
        replica.partition.fail("the disk failed")
        assert replica.partition.publish_queue.refuses
        assert not replica.leading


async def test_a_failed_log_is_left_to_the_others_where_there_are_any(tmp_path: Path) -> None:
    async with node_with(tmp_path / "others", led("b")) as node:
        replica = await leading(node)
        replica.partition.fail("the disk failed")
        assert not replica.partition.publish_queue.refuses


@pytest.mark.parametrize(("others", "stands_in"), [((), True), (("b",), False)])
async def test_publishers_are_refused_by_what_could_not_be_opened_if_no_other_node_has_it(
    tmp_path: Path, others: tuple[str, ...], stands_in: bool
) -> None:
    directory = tmp_path / "streams" / "logs-i-1"
    directory.mkdir(parents=True)
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "logs-i-1-0").touch()  # its log was made, and is missing
    async with node_with(tmp_path, led(*others)) as node:
        await wait_until_async(lambda: PLACE in node.problems, what="it is not opened")
        assert [one.label for one in node.offline_partitions()] == (["logs"] if stands_in else [])
        with pytest.raises(NotOpenError):
            await node.reopen(PLACE)
        assert node.link.subjects == (["t.>"] if stands_in else []), "once, not for each try"
        (directory / "0").mkdir()
        await node.reopen(PLACE)
        assert node.offline_partitions() == []
        assert node.link.subjects == []


async def test_a_replica_is_opened_again_though_the_caller_has_gone(tmp_path: Path) -> None:
    async with node_with(tmp_path, led()) as node:
        replica = await leading(node)
        replica.partition.publish_queue.skipped = 7
        replica.partition.fail("the disk failed")
        asking = asyncio.create_task(node.reopen(PLACE))
        await asyncio.sleep(0)  # it begins
        asking.cancel()  # as a connection that ends cancels what it has asked for
        await asyncio.wait({asking})
        again = await opened(node, besides=replica)
        assert not again.partition.failure
        assert again.partition.publish_queue.skipped == 7, "it goes on with the counts"


async def test_a_log_that_is_refused_when_it_is_opened_again_is_left_to_the_operator() -> None:
    class Refusing:
        tries = 0

        async def reopen(self, place: Place) -> None:
            self.tries += 1
            raise RefusedError("TOO_MANY_STREAMS", f"{place}: too few open files")

    replicas = Refusing()
    disk = SimpleNamespace(available_bytes=lambda _: 1 << 40)
    failed: Any = SimpleNamespace(place=PLACE, log=SimpleNamespace(disk=disk, directory="/x"))
    reopener = FailedLogReopener(replicas, wait_s=0)
    assert await reopener.look([failed]) == 0
    assert await reopener.look([failed]) == 0
    assert replicas.tries == 2


async def test_a_record_that_the_next_leader_replaces_is_not_taken_for_committed(
    tmp_path: Path,
) -> None:
    """Cursors, audit events and backups are stored so: their callers wait for the commit."""
    sent: list[Fetch] = []
    async with node_with(tmp_path, led("b")) as node:
        node.cluster.replication.send_fetch = lambda _node, _key, fetch: sent.append(fetch)
        replica = await leading(node)
        last = replica.partition.store([Message(b"t.a", b"", b"", b"lost")])
        waiting = asyncio.create_task(replica.partition.wait_committed(last))
        await wait_until_async(lambda: replica.log.synced_offset == last + 1)
        become(node, led_by_another("b"))
        fetch = await next_of(sent)
        answer: dict[str, Any] = {
            "boot": fetch.boot,
            "incarnation": fetch.incarnation,
            "leader_epoch": fetch.leader_epoch,
            "log_start": 0,
        }
        replica.take(Diverged(**answer, number=fetch.number, epoch=3, end_offset=0), [], alone=True)
        fetch = await next_of(sent)
        frames = [make_batch_frame(0, [Record("t.a", b"another", 1)], epoch=5)[:2]]
        kept = Frames(**answer, number=fetch.number, offset=0, upto=1, high_watermark=0)
        replica.take(kept, frames, alone=True)
        await wait_until_async(lambda: replica.high_watermark == last, what="it is committed")
        with pytest.raises(UnavailableError, match="led here"):
            await waiting


async def next_of(sent: list[Fetch]) -> Fetch:
    await wait_until_async(lambda: sent, what="it fetches")
    return sent.pop()


def led_by_another(other: str) -> StreamRecord:
    """The stream of `led`, after another node was elected."""
    record = led(other)
    (partition,) = record.partitions
    node = NodeId(other)
    now = structs.replace(partition, leader=node, last_leader=node, leader_epoch=5, version=9)
    return structs.replace(record, partitions=(now,))


async def test_a_disk_that_does_not_say_what_is_free_ends_no_node(tmp_path: Path) -> None:
    """A replica that could not be opened for want of space is opened once it does."""
    async with one_node(tmp_path, RECORD.config):
        pass
    disk, streams = FailingDisk(), tmp_path / "streams"
    (mark,) = streams.glob("*/0/synced")
    mark.unlink()  # so that its log is written to when it is opened
    asked: list[str] = []

    def note(operation: str, _: Path) -> None:
        if operation == "available_bytes":
            asked.append(operation)

    with ExitStack() as full:
        full.enter_context(disk.failing(errno.ENOSPC, under=streams))
        full.enter_context(disk.before(note))
        full.enter_context(disk.fails("available_bytes"))
        async with one_node(tmp_path, context=make_context(disk=disk)) as node:

            def is_open() -> bool:
                with suppress(NotOpenError, RefusedError):
                    return bool(node.partition("logs"))
                return False

            await wait_until_async(lambda: len(asked) > 1, what="it is asked again")
            full.close()
            await wait_until_async(is_open, what="it is open")

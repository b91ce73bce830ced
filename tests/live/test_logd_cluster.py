"""Nodes of a cluster agree on its metadata: real sockets, real disks, nodes that go and return."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import pytest

from penstock.base.clock import BootClock
from penstock.logd.cluster.node import ClusterNode, ClusterSettings
from penstock.logd.controller.liveness import PartitionReport
from penstock.logd.errors import CorruptError, HaltCause, RefusedError, UnavailableError
from penstock.logd.metadata.commands import Command, CreateStream, Placement
from penstock.logd.metadata.records import Addresses, PartitionRecord, ReplicationOptions
from penstock.logd.metadata.state import Refused, Result
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import Done
from penstock.logd.replication.events import NodeId
from penstock.logd.replication.session import PartitionId
from tests.support.processes import free_port
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live

NAMES = ("a", "b", "c")


@dataclass
class Held:
    """A node's replicas: nothing but what the test looks at."""

    lease: bool = False

    def find(self, key: PartitionId) -> None:
        return None

    def reports(self, *, full: bool) -> tuple[PartitionReport, ...]:
        return ()

    def unreachable(self) -> bool:
        return False

    def on_lease(self, *, held: bool) -> None:
        self.lease = held

    def on_applied(self, command: Command, result: Result) -> None:
        pass

    def on_restored(self) -> None:
        pass


class Cluster:
    """Three nodes on loopback ports; a stopped one leaves its directory behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.addresses = dict(zip(NAMES, _free_addresses(len(NAMES)), strict=True))
        self.nodes: dict[str, ClusterNode] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.boots = 0
        self.held: dict[str, Held] = {}

    def start(self, *names: str) -> None:
        for name in names:
            self.boots += 1
            settings = ClusterSettings(
                cluster="test", node=NodeId(name), directory=self.directory / name,
                initial_members=self.addresses, listen=self.addresses[name],
                advertised=Addresses(peer=""), boot=f"{self.boots:016x}",
            )  # fmt: skip
            node = self.nodes[name] = ClusterNode(
                settings, self.held.setdefault(name, Held()), random.Random(), BootClock()
            )
            node.listen()
            self.tasks[name] = asyncio.create_task(node.run())

    async def stop(self, *names: str) -> None:
        for name in names:
            task = self.tasks.pop(name)
            del self.nodes[name]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def registered(self, count: int = len(NAMES)) -> None:
        await wait_until_async(
            lambda: all(len(node.group.state.nodes) == count for node in self.nodes.values())
        )

    async def leader(self) -> str:
        def leading() -> list[str]:
            return [name for name, node in self.nodes.items() if node.member.leads]

        return (await wait_until_async(leading))[0]

    def partition(self, watcher: str) -> PartitionRecord:
        return self.nodes[watcher].group.state.streams["one"].partitions[0]

    async def agreed(self) -> None:
        """All are at one index, with one state."""

        def digests() -> set[tuple[int, str]]:
            states = [node.group.state for node in self.nodes.values()]
            return {(state.index, state.digest()) for state in states}

        await wait_until_async(lambda: len(digests()) == 1)


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    made = Cluster(directory)
    made.start(*NAMES)
    try:
        yield made
    finally:
        await made.stop(*list(made.tasks))


def create(name: str) -> CreateStream:
    return CreateStream(
        config=StreamConfig(name=name, subject=f"{name}.>"),
        options=ReplicationOptions(replication_factor=3),
        placements=(Placement(replicas=NAMES, isr=NAMES),),
        nonce="0123456789abcdef",
    )


async def test_any_node_changes_the_state_and_all_see_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.registered()
        for name in NAMES:
            result = await it.nodes[name].group.change(create(f"s-{name}"), timeout_s=30)
            assert isinstance(result, Done)
        for name in NAMES:
            state = await it.nodes[name].group.read(timeout_s=30)
            assert sorted(state.streams) == ["s-a", "s-b", "s-c"]
        refused = await it.nodes["b"].group.change(
            CreateStream(
                config=StreamConfig(name="s-a", subject="other.>"),
                options=ReplicationOptions(replication_factor=3),
                placements=(Placement(replicas=NAMES, isr=NAMES),), nonce="00",
            ),
            timeout_s=30,
        )  # fmt: skip
        assert isinstance(refused, Refused)
        assert refused.code == "STREAM_DIFFERS"
        await it.agreed()


async def test_the_state_outlives_its_leader_and_a_return_and_all_of_them(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.registered()
        gone = await it.leader()
        await it.stop(gone)
        left = next(iter(it.nodes.values()))
        assert isinstance(await left.group.change(create("one"), timeout_s=60), Done)
        it.start(gone)
        await wait_until_async(lambda: "one" in it.nodes[gone].group.state.streams)
        await it.agreed()
        await it.stop(*NAMES)
        it.start(*NAMES)
        state = await it.nodes["a"].group.read(timeout_s=60)
        assert list(state.streams) == ["one"]
        await it.registered()
        await it.agreed()


async def test_the_controller_gives_leaderships_away_when_a_node_is_gone(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.registered()
        await wait_until_async(lambda: all(held.lease for held in it.held.values()))
        assert isinstance(await it.nodes["a"].group.change(create("one"), timeout_s=30), Done)

        def led_by(watcher: str) -> str | None:
            stream = it.nodes[watcher].group.state.streams.get("one")
            return stream.partitions[0].leader if stream else None

        await wait_until_async(lambda: led_by("c") is not None)
        gone, epoch = str(led_by("c")), it.partition("c").leader_epoch
        await it.stop(gone)
        left = next(iter(it.nodes))
        await wait_until_async(lambda: led_by(left) not in (None, gone))
        assert it.partition(left).leader_epoch > epoch
        it.held[gone].lease = False
        it.start(gone)
        await wait_until_async(lambda: it.held[gone].lease)


async def test_a_node_that_is_cut_off_loses_its_lease(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.registered()
        await wait_until_async(lambda: all(held.lease for held in it.held.values()))
        await it.stop("b", "c")
        await wait_until_async(lambda: not it.held["a"].lease)
        assert not it.nodes["a"].controlling.leads
        it.start("b")
        await wait_until_async(lambda: it.held["a"].lease)


async def test_without_a_majority_nothing_changes_and_that_is_said(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.registered()
        await it.stop("b", "c")
        with pytest.raises(Exception, match=r"not changed within|nobody knows"):
            await it.nodes["a"].group.change(create("one"), timeout_s=2)
        it.start("b")
        assert isinstance(await it.nodes["b"].group.change(create("two"), timeout_s=60), Done)


async def test_a_directory_of_another_node_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.registered()
        await it.stop("a", "b")
        (tmp_path / "a").rename(tmp_path / "was-a")
        (tmp_path / "b").rename(tmp_path / "a")
        with pytest.raises(RefusedError, match="it is node 'b'"):
            it.start("a")
        log = next((tmp_path / "was-a" / "raft").glob("*.wal"))
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "was-a").rename(tmp_path / "a")
        path = tmp_path / "a" / "raft" / log.name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptError):
            it.start("a")


@pytest.mark.parametrize("lost", [".", "raft", "node"])
async def test_an_initial_member_that_lost_its_disk_makes_no_majority(
    tmp_path: Path, lost: str
) -> None:
    """Whether all of its directory, only its log, or only the id of its directory is lost."""
    async with cluster(tmp_path) as it:
        await it.registered()

        def noted() -> bool:
            memberships = [node.member.membership for node in it.nodes.values()]
            return all(len(membership.disks) == len(NAMES) for membership in memberships)

        await wait_until_async(noted)
        await it.stop(*NAMES)
        path = tmp_path / "c" / lost
        rmtree(path) if path.is_dir() else path.unlink()
        it.start("b", "c")
        with pytest.raises(UnavailableError, match=r"not changed within|nobody knows"):
            await it.nodes["b"].group.change(create("one"), timeout_s=3)
        assert not it.nodes["b"].member.leads
        assert not it.nodes["c"].member.leads
        it.start("a")
        assert isinstance(await it.nodes["a"].group.change(create("two"), timeout_s=60), Done)
        refused = await wait_until_async(lambda: it.nodes["c"].member.halted)
        assert refused is not None
        assert refused.cause is HaltCause.DATA_LOST
        assert refused.reason.startswith("data lost: the cluster knows it by directory id ")


def _free_addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{free_port()}" for _ in range(count)]

"""Nodes in one process that replicate over real sockets: real cores, real logs, real connections.

What a daemon does around a replica is done here in its simplest form: a thread writes, a timer
ticks, and views come from the test.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.base.clock import BootClock
from penstock.logd.cluster.metadata_group import Mesh
from penstock.logd.cluster.replication import (
    RANGE_API,
    Frame,
    Hosted,
    ReplicaFetchSettings,
    Replication,
)
from penstock.logd.net.channel import Channel
from penstock.logd.net.peer_identity import Identity
from penstock.logd.net.peer_server import PeerServer
from penstock.logd.net.peer_tls import PeerTls
from penstock.logd.partition.acks import LoopDispatcher
from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import Answer, LeaderAndIsr, NodeId, Span
from penstock.logd.replication.log_state import Epochs, LogState
from penstock.logd.replication.replica import Replica
from penstock.logd.replication.session import PartitionId
from penstock.logd.security.tls import CertificateFiles
from penstock.logd.storage import CommitLog, LogConfig
from tests.support.frames import make_frame

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
LEASE_NS = 3_600_000_000_000
CLOCK = BootClock()


def view(
    leader: NodeId = A, *, replicas: Sequence[NodeId] = (A, B), epoch: int = 1
) -> LeaderAndIsr:
    """All of them in sync."""
    return LeaderAndIsr(
        incarnation="i",
        version=epoch,
        leader_epoch=epoch,
        leader=leader,
        isr=frozenset(replicas),
        replicas=tuple(replicas),
        min_isr=len(replicas),
    )


class Held:
    """A partition's replica on a node.

    Attributes:
        log: Real.
        said: Every effect of its core.
        events: Every event that came from outside.
    """

    def __init__(self, node: "Node", key: PartitionId, directory: Path) -> None:
        self.key = key
        self.log = CommitLog.open(directory, LogConfig(max_segment_bytes=64 * 1024 * 1024))
        self.said: list[fx.Effect] = []
        self.events: list[ev.Event] = []
        self.taken = 0
        self.ranges: list[tuple[str, int, int, list[Frame]]] = []
        end = self.log.end_offset
        epochs = Epochs()
        if end:
            epochs.begin(1, 0)
        state = LogState.opened(start=0, end=end, epochs=epochs, high_watermark=-1)
        self.replica = Replica(node.name, key.incarnation, state, boot=f"{node.name}1")
        self._node = node
        self._frames: list[Frame] = []
        self._writer = ThreadPoolExecutor(1)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def high_watermark(self) -> int:
        return self.replica.high_watermark

    def lead_or_follow(self, seen: LeaderAndIsr) -> None:
        self.handle(ev.LeaseRenewed(CLOCK.monotonic_ns() + LEASE_NS))
        self.handle(ev.LeaderAndIsrChanged(seen))

    def publish(self, *bodies: bytes) -> None:
        """Write a frame of one record for each body."""
        base = self.replica.log.submitted
        epoch = self.replica.leader_epoch
        frames = [make_frame(base + n, body, epoch=epoch) for n, body in enumerate(bodies)]
        self.handle(ev.Submitted(base + len(bodies)))
        self._append(frames)

    def handle(self, event: ev.Event) -> None:
        self.events.append(event)
        for effect in self.replica.handle(event, CLOCK.monotonic_ns()):
            self.said.append(effect)
            self._do(effect)
        self._schedule()

    def block_writes(self, until: threading.Event) -> None:
        """Let the writer wait before it does what comes next."""
        self._writer.submit(until.wait)

    def answer_for(self, node: str) -> Answer | None:
        return self.replica.answer_for(NodeId(node))

    def take(self, answer: Answer, frames: list[Frame], *, alone: bool) -> None:
        del alone
        self._frames = frames
        self.taken += len(frames)
        self.handle(ev.AnswerCame(answer, _spans(frames)))

    def dedup_snapshot(self, leader_epoch: int) -> None:
        raise AssertionError(leader_epoch)

    def take_range(self, node: str, first: int, upto: int, frames: list[Frame]) -> None:
        self.ranges.append((node, first, upto, frames))
        self.handle(ev.RangeCame(NodeId(node), first, upto, _spans(frames)))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._writer.shutdown()
        self.log.close()

    def _do(self, effect: fx.Effect) -> None:
        replication, key = self._node.replication, self.key
        cuts = self.replica.log.cuts
        match effect:
            case fx.BeginEpoch(epoch):
                self._write(lambda: None, lambda: ev.EpochSaved(epoch))
            case fx.AppendFetched():
                self._append(self._frames)
            case fx.Truncate(upto, cuts):
                self._write(
                    lambda: self.log.truncate_to(upto),
                    lambda: ev.Truncated(self.log.end_offset, cuts),
                )
            case fx.HighWatermark():
                replication.high_watermark_risen(key)
            case fx.SendFetch(node, fetch):
                replication.send_fetch(node, key, fetch)
            case fx.SendAnswer(node, answer):
                replication.send_answer(node, key, answer)
            case fx.AskRange(node, first, upto):
                replication.ask_range(node, key, first, upto)
            case fx.SendRange(node, first, upto):
                replication.send_range(node, key, first, upto)
            case _:
                pass

    def _append(self, frames: list[Frame]) -> None:
        cuts, upto = self.replica.log.cuts, frames[-1][0].next_offset
        self._write(lambda: self.log.append(frames), lambda: ev.Written(upto, cuts))
        self._write(self.log.sync, lambda: ev.Synced(upto, cuts))

    def _write(self, work: Callable[[], object], event: Callable[[], ev.Event]) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            work()
            loop.call_soon_threadsafe(self._wrote, event())

        self._writer.submit(run)

    def _wrote(self, event: ev.Event) -> None:
        self.handle(event)
        self._node.replication.touch(self.key)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_ns = CLOCK.monotonic_ns()
        due_ns = self.replica.next_deadline_ns(now_ns)
        if due_ns is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(due_ns - now_ns, 0) / 1e9, self._tick)

    def _tick(self) -> None:
        self.handle(ev.Ticked())


@dataclass
class Node:
    """One node's connections, and its replicas."""

    name: NodeId
    directory: Path
    tls: CertificateFiles | None = None
    settings: ReplicaFetchSettings = field(default_factory=ReplicaFetchSettings)
    held: dict[PartitionId, Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        me = Identity("test", self.name)
        tls = PeerTls.of(self.tls) if self.tls else None
        self.mesh = Mesh(me, rng=random.Random(1), tls=tls)
        self.find: dict[PartitionId, Hosted] = {}
        self.replication = Replication(
            me,
            self.find.get,
            self.mesh,
            LoopDispatcher(),
            clock=CLOCK,
            settings=self.settings,
            tls=tls,
        )
        self._server = PeerServer(me, self, tls)
        self.address = self._server.listener.listen("127.0.0.1:0")
        self._running = asyncio.create_task(self._server.listener.run())

    def hold(self, number: int = 0) -> Held:
        key = PartitionId("i", number)
        self.held[key] = Held(self, key, self.directory / f"{self.name}{number}")
        self.find[key] = self.held[key]
        return self.held[key]

    def on_raft(self, node: str, message: bytes) -> None:
        raise AssertionError(node)

    async def answer(self, node: str, api: str, body: bytes) -> bytes:
        assert api == RANGE_API
        return await self.replication.answer_range(node, body)

    def answer_at_once(self, node: str, api: str, body: bytes) -> bytes | None:
        return None

    async def replicate(self, node: str, channel: Channel) -> None:
        await self.replication.serve(node, channel)

    async def close(self) -> None:
        await self.replication.close()
        await self.mesh.close()
        self._running.cancel()
        await asyncio.wait([self._running])
        for held in self.held.values():
            held.close()


def meet(*nodes: Node, addresses: dict[str, str] | None = None) -> None:
    """Tell each node where all are; some may be reached elsewhere."""
    known = {node.name: node.address for node in nodes} | (addresses or {})
    for node in nodes:
        node.mesh.update(known)
        node.replication.update(known)


@asynccontextmanager
async def running(
    directory: Path,
    *names: NodeId,
    tls: CertificateFiles | None = None,
    settings: ReplicaFetchSettings | None = None,
) -> AsyncIterator[list[Node]]:
    """Nodes that know each other."""
    nodes = [Node(name, directory, tls, settings or ReplicaFetchSettings()) for name in names]
    meet(*nodes)
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.close()


def _spans(frames: list[Frame]) -> tuple[Span, ...]:
    headers = (header for header, _ in frames)
    return tuple(Span(h.base_offset, h.next_offset, h.leader_epoch) for h in headers)

"""Replication between nodes: what the replicas of this node say to those of others, and hear.

For each node that something is fetched from there is one connection, dialled from here
(`fetching.Fetcher`); for each node that fetches from here there is one that it dialled
(`feeding.Feeder`). Damaged ranges are asked for with requests (`ranges.Ranges`).
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from penstock.base.clock import Clock
from penstock.logd.cluster.metadata_group import Mesh
from penstock.logd.cluster.replication.dedup_copies import DedupCopies
from penstock.logd.cluster.replication.fetcher import Fetcher
from penstock.logd.cluster.replication.ranges import Ranges
from penstock.logd.cluster.replication.sender import (
    FetchCounts,
    Find,
    Frame,
    ReplicaFetchCounts,
    ReplicaFetchServer,
    ReplicaFetchSession,
    ReplicaFetchSettings,
)
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.limits import REPLICATION_RESPONSE_BYTES_MAX
from penstock.logd.net.channel import Channel
from penstock.logd.net.peer_identity import Identity
from penstock.logd.net.peer_tls import PeerTls
from penstock.logd.partition.acks import LoopDispatcher
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.replication.events import Answer, Fetch, NodeId
from penstock.logd.replication.session import CatchUpPace, PartitionId

_READERS: Final = 4
"""Threads that read frames which may not lie in the page cache."""

_log = structlog.get_logger()


class Replication:
    """Replication of one node. Used on the event loop.

    Args:
        me: This node.
        find: Returns the replicas here.
        mesh: Carries requests for ranges.
        dispatcher: Knows when the turn of the event loop ends.
        clock: Its monotonic time limits catch-up; its dates number sessions.
        settings: Limits of frames sent and received.
        tls: TLS between nodes.

    Attributes:
        fed: Counters by follower's node.
    """

    def __init__(  # noqa: PLR0913 - among whom, through what, and how
        self,
        me: Identity,
        find: Find,
        mesh: Mesh,
        dispatcher: LoopDispatcher,
        *,
        clock: Clock,
        settings: ReplicaFetchSettings,
        tls: PeerTls | None = None,
    ) -> None:
        assert 0 < settings.response_bytes_max <= REPLICATION_RESPONSE_BYTES_MAX
        self.fed: dict[str, ReplicaFetchCounts] = {}
        self._me = me
        self._find = find
        self._clock = clock
        self._tls = tls
        self._rng = random.Random()  # noqa: S311 - jitter
        self._executor = ThreadPoolExecutor(_READERS, thread_name_prefix="feeding")
        self._feeding = ReplicaFetchSession(
            find=find,
            dispatcher=dispatcher,
            clock=clock,
            settings=settings,
            pace=CatchUpPace(settings.max_catch_up_bytes_per_s),
            executor=self._executor,
        )
        self._ranges = Ranges(find, mesh, self._executor)
        self._dedup_copies = DedupCopies(find, mesh, self._executor, clock)
        self._addresses: dict[str, str] = {}
        self._fetchers: dict[str, tuple[Fetcher, asyncio.Task[None]]] = {}
        self._feeders: dict[str, tuple[ReplicaFetchServer, asyncio.Task[None]]] = {}

    @property
    def feeding(self) -> list[str]:
        """The nodes that are fed now."""
        return list(self._feeders)

    @property
    def fetched(self) -> dict[str, FetchCounts]:
        """Counters by leader's node."""
        return {node: fetcher.counts for node, (fetcher, _) in self._fetchers.items()}

    def problems(self) -> dict[str, str]:
        """Why nothing can be fetched, by node from which something is to be."""
        found = {node: fetcher.problem for node, (fetcher, _) in self._fetchers.items()}
        return {node: problem for node, problem in found.items() if problem}

    def update(self, addresses: Mapping[str, str]) -> None:
        """Take the peer addresses of the nodes; to one that is not named there is no connection."""
        self._addresses = dict(addresses)
        for node, (fetcher, _) in self._fetchers.items():
            fetcher.move(addresses.get(node, ""))
        for node, (_, task) in self._feeders.items():
            if node not in addresses:
                task.cancel()

    # As a follower.

    def send_fetch(self, node: str, key: PartitionId, fetch: Fetch) -> None:
        """Carry `SendFetch` to the leader's node."""
        found = self._fetchers.get(node)
        if found is None:
            found = self._begin_fetching(node)
        found[0].fetch(key, fetch)

    def forget(self, node: str, key: PartitionId) -> None:
        """The partition is not fetched from that node any more."""
        found = self._fetchers.get(node)
        if found is not None:
            found[0].forget(key)

    # As a leader.

    def send_answer(self, node: str, key: PartitionId, answer: Answer) -> None:
        """Carry `SendAnswer` to the follower's node; without a connection it asks again."""
        found = self._feeders.get(node)
        if found is not None:
            found[0].answer(key, answer)

    def touch(self, key: PartitionId) -> None:
        """A partition's log has grown."""
        for feeder, _ in self._feeders.values():
            feeder.touch(key)

    def keep_written(self, key: PartitionId, frames: Sequence[Frame]) -> None:
        """Frames that a leader has just written are what its followers fetch next."""
        if frames and self._feeders:
            self._feeding.shared.keep_written(key, frames)

    def high_watermark_risen(self, key: PartitionId) -> None:
        """A partition's high watermark has risen; its log has not grown."""
        for feeder, _ in self._feeders.values():
            feeder.high_watermark_risen(key)

    async def serve(self, node: str, channel: Channel) -> None:
        """Feed a node over a connection that it dialled, until that ends.

        Raises:
            CorruptError: The other node does not keep to the protocol.
        """
        if node not in self._addresses:
            raise CorruptError(f"node {node} wants to fetch, and is not known here")
        counts = self.fed.setdefault(node, ReplicaFetchCounts())
        counts.sessions += 1
        before = self._feeders.get(node)
        feeder = ReplicaFetchServer(NodeId(node), channel, self._feeding, counts)
        task = asyncio.create_task(feeder.run(), name=f"feeding {node}")
        self._feeders[node] = feeder, task
        if before is not None:  # it has dialled again: that connection is dead
            before[1].cancel()
        try:
            await asyncio.wait([task])
        finally:
            if self._feeders.get(node) == (feeder, task):
                del self._feeders[node]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        _explain(node, task, counts)

    # Ranges.

    def ask_range(self, node: str, key: PartitionId, first: int, upto: int) -> None:
        """Carry `AskRange`; what comes goes to `Hosted.take_range`."""
        self._ranges.ask(node, key, first, upto)

    def send_range(self, node: str, key: PartitionId, first: int, upto: int) -> None:
        """Carry `SendRange`."""
        self._ranges.tell(node, key, first, upto)

    async def answer_range(self, node: str, body: bytes) -> bytes:
        """Answer a node's request `RANGE_API`.

        Raises:
            CorruptError: It is none.
            OSError: The disk failed.
        """
        return await self._ranges.answer(node, body)

    # Dedup state.

    async def fetch_dedup(self, node: str, key: PartitionId, leader_epoch: int) -> ProducerSnapshot:
        """Fetch the leader's dedup state of committed records.

        Raises:
            LogdError: It is not available now.
        """
        return await self._dedup_copies.fetch(node, key, leader_epoch)

    async def answer_dedup(self, node: str, body: bytes) -> bytes:
        """Answer a node's request `DEDUP_API`.

        Raises:
            CorruptError: It is none.
            RefusedError: It is to ask again, or another node.
        """
        return await self._dedup_copies.answer(node, body)

    async def close(self) -> None:
        """End every connection."""
        await self._ranges.close()
        tasks = [task for _, task in self._fetchers.values()]
        tasks += [task for _, task in self._feeders.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin_fetching(self, node: str) -> tuple[Fetcher, asyncio.Task[None]]:
        fetcher = Fetcher(
            self._me,
            node,
            self._find,
            self._feeding.dispatcher,
            clock=self._clock,
            rng=self._rng,
            tls=self._tls,
            settings=self._feeding.settings,
        )
        fetcher.move(self._addresses.get(node, ""))
        task = asyncio.create_task(fetcher.run(), name=f"fetching from {node}")
        self._fetchers[node] = fetcher, task
        return fetcher, task


def _explain(node: str, task: asyncio.Task[None], counts: ReplicaFetchCounts) -> None:
    """Say why a feeder has ended, unless that is usual.

    Raises:
        CorruptError: The other node does not keep to the protocol.
    """
    error = None if task.cancelled() else task.exception()
    match error:
        case None | EOFError():
            return
        case CorruptError() | RefusedError():
            counts.broken += 1
            raise CorruptError(f"node {node} fetches: {error}")
        case OSError():
            counts.broken += 1
            reason = str(error) or "it takes nothing"
            _log.warning("fetch_session_interrupted", role="leader", peer=node, reason=reason)
        case _:
            counts.broken += 1
            _log.error("fetch_session_failed", role="leader", peer=node, exc_info=error)

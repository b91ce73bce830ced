"""Cursors of a cluster's consumers: kept by whichever node leads their stream."""

import asyncio
from typing import Final

import structlog

from penstock.logd.cluster.controller_client import ControllerClient, make_internal
from penstock.logd.cluster.replica import ReplicaRunner
from penstock.logd.cluster.replica_manager import ReplicaManager
from penstock.logd.errors import (
    LogdError,
    NotOpenError,
    RefusedError,
    UnavailableError,
    not_here,
)
from penstock.logd.metadata.records import Group, PartitionKey
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.cursors import CURSORS_STREAM, CursorStore, Extent
from penstock.logd.partition.partition import Partition

_MAKE_S: Final = 10.0
_SETTLE_S: Final = 10.0
"""Seconds a new leader may take until everything that leaders before it stored is committed."""

_BEGIN_S: Final = 2.0
"""Seconds a node may take to lead what the cluster has just made it lead."""

_LOOK_S: Final = 0.005

_AGAIN_S: Final = 1.0
"""Seconds until cursors are tried again to be deleted."""

_log = structlog.get_logger()

_PLACE: Final = PartitionKey(CURSORS_STREAM.name, 0)


class ClusterCursors:
    """Cursors of consumers. Used on the event loop.

    Args:
        replicas: The node's replicas.
        decisions: The client of the controller.
        max_cursors: Maximum number of cursors.
    """

    def __init__(
        self, replicas: ReplicaManager, decisions: ControllerClient, *, max_cursors: int
    ) -> None:
        self._replicas = replicas
        self._decisions = decisions
        self._max_cursors = max_cursors
        self._store: CursorStore | None = None
        self._led: tuple[ReplicaRunner, int] | None = None
        self._starting = asyncio.Lock()
        self._commits_before = 0

    def __len__(self) -> int:
        """Committed cursors, where they are kept here."""
        return 0 if self._store is None else len(self._store)

    @property
    def commits(self) -> int:
        """Changes of cursors that were committed here."""
        return self._commits_before + (0 if self._store is None else self._store.commits)

    async def ready(self) -> CursorStore:
        """Return the cursors that are kept here; create their stream on first use.

        Raises:
            NotOpenError: Only this node has them, and cannot open or write them.
            RefusedError: `NOT_HERE`: another node keeps them.
            UnavailableError: No node keeps them now.
        """
        cluster = self._replicas.cluster
        cluster.check_takes_part()
        if CURSORS_STREAM.name not in cluster.group.state.streams:
            await make_internal(cluster, self._decisions, CURSORS_STREAM, timeout_s=_MAKE_S)
        await self._begun()
        found, replica = cluster.group.state.partition(_PLACE), self._replicas.at(_PLACE)
        if found is not None and found[1].replicas == (cluster.name,):
            self._check_usable(replica)
        if found is None or replica is None or not replica.leading:
            leader, nodes = (None, ()) if found is None else (found[1].leader, found[1].replicas)
            raise not_here(CURSORS_STREAM.name, 0, leader, nodes)
        async with self._starting:
            return await self._of(replica)

    def _check_usable(self, replica: ReplicaRunner | None) -> None:
        name = CURSORS_STREAM.name
        if problem := self._replicas.problems.get(_PLACE):
            message = f"stream {name!r}: not opened: {problem}; see to that, then start logd again"
            raise NotOpenError(message, cause=problem.cause)
        if replica is not None and (failure := replica.partition.failure):
            message = f"stream {name!r} takes no messages: {failure}"
            raise NotOpenError(message, cause="UNAVAILABLE")

    async def _begun(self) -> None:
        """Wait a moment if this node has just been made the leader."""
        until = asyncio.get_running_loop().time() + _BEGIN_S
        while asyncio.get_running_loop().time() < until:
            found = self._replicas.cluster.group.state.partition(_PLACE)
            replica = self._replicas.at(_PLACE)
            mine = found is not None and found[1].leader == self._replicas.node
            if not mine or _PLACE in self._replicas.problems:
                return
            if replica is not None and (replica.leading or replica.partition.failure):
                return
            await asyncio.sleep(_LOOK_S)

    async def run(self) -> None:
        """Delete the cursors of streams that have been deleted, until cancelled.

        It is done where they are kept; a node that begins to keep them does so then.
        """
        deleted = self._replicas.deleted
        while True:
            await deleted.wait()
            deleted.clear()
            try:
                replica = self._replicas.at(_PLACE)
                if replica is not None and replica.leading:
                    async with self._starting:
                        store = await self._of(replica)
                    await store.forget_stale()
            except (LogdError, OSError) as error:  # another node keeps them, or the disk failed
                _log.info("cursor_deletion_failed", reason=str(error))
                await asyncio.sleep(_AGAIN_S)
                deleted.set()

    async def _of(self, replica: ReplicaRunner) -> CursorStore:
        """The cursors under this leadership: read again when that begins."""
        if self._store is not None and self._led == (replica, replica.epoch):
            return self._store
        if self._store is not None:
            self._commits_before += self._store.commits
            self._store = None
        epoch, partition = replica.epoch, replica.partition
        try:
            async with asyncio.timeout(_SETTLE_S):
                await partition.wait_committed(partition.log.end_offset - 1)
        except TimeoutError:
            raise UnavailableError("cursors: what was stored last is not committed yet") from None
        store = CursorStore(
            _LedHere(self._replicas), max_cursors=self._max_cursors, groups=self._group
        )
        await store.start()
        if not replica.leading or replica.epoch != epoch:
            raise UnavailableError("cursors: another node has begun to keep them")
        self._store, self._led = store, (replica, epoch)
        return store

    def _group(self, name: str) -> Group | None:
        return self._replicas.cluster.group.state.groups.get(name)


class _LedHere:
    """Cursor streams on the node that leads them; see `penstock.logd.partition.cursors`."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def partition(self, stream: str) -> Partition:
        replica = self._replicas.at(PartitionKey(stream, 0))
        if replica is None:
            raise UnavailableError(f"stream {stream!r} is not here any more")
        return replica.partition

    def extent(self, stream: str, number: int) -> Extent:
        """Return a partition's offsets, which only the leader's node knows."""
        incarnation = self.incarnation(stream, number)
        if incarnation is None:
            known = self._replicas.cluster.group.state.knows(stream)
            code = "UNKNOWN_PARTITION" if known else "UNKNOWN_STREAM"
            raise RefusedError(code, f"there is no partition {number} of {stream!r}")
        replica = self._replicas.at(PartitionKey(stream, number))
        if replica is None or not replica.leading:
            return Extent(incarnation)
        # A new leader does not know at first that all it has is committed, and readers do.
        return Extent(incarnation, replica.partition.start_offset, replica.log.end_offset)

    def incarnation(self, stream: str, number: int) -> str | None:
        found = self._replicas.cluster.group.state.partition(PartitionKey(stream, number))
        return None if found is None else found[0].incarnation

    async def create(self, config: StreamConfig) -> tuple[Partition, bool]:
        """Return the cursor stream, which exists."""
        return self.partition(config.name), False

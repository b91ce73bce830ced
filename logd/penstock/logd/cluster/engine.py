"""A node's part of a cluster's streams, run."""

import asyncio
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import structlog
from prometheus_client.core import Metric

from penstock.base.clock import Clock
from penstock.base.sockets import connections_within
from penstock.logd.activity import Record
from penstock.logd.cluster.access import ClusterAccess
from penstock.logd.cluster.activity import ClusterActivity, Watcher
from penstock.logd.cluster.adoption import check_adopted
from penstock.logd.cluster.config import ClusterSection
from penstock.logd.cluster.cursors import ClusterCursors
from penstock.logd.cluster.decisions import Decisions
from penstock.logd.cluster.groups import ClusterGroups
from penstock.logd.cluster.hearing import Hearing
from penstock.logd.cluster.node import ClusterNode, ClusterSettings
from penstock.logd.cluster.replicas import NodeReplicas
from penstock.logd.cluster.streams import ClusterStreams
from penstock.logd.cluster.telemetry import cluster_metrics, describe_node
from penstock.logd.config import ConfiguredStream, LogdConfig
from penstock.logd.core.cluster.records import Addresses
from penstock.logd.core.node import DATA_LOST, REJOIN, NodeId
from penstock.logd.descriptors import Descriptors
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.limits import (
    PEER_CONNECTIONS_PER_NODE,
    PEER_OPEN_FILES_PART,
    PEER_STRANGERS_MAX,
)
from penstock.logd.listening import Link, Listening
from penstock.logd.partition import Partition
from penstock.logd.peers.server import PeerServer
from penstock.logd.peers.tls import PeerTls
from penstock.logd.surroundings import StreamLookup, Surroundings
from penstock.logd.unopened import Unopened

_RETIRE_S: Final = 2.0
"""Seconds others have to take over what a node leads that is being stopped."""

_HAND_OVER_S: Final = 1.0
"""Seconds another node has to become the controller."""

_AGAIN_S: Final = 0.5

_LATER: Final = ("NOT_ENOUGH_NODES", "TOO_MANY_STREAMS")
"""Refusals after which a stream of the configuration is tried again."""

_log = structlog.get_logger()


class ClusterEngine:
    """As `penstock.logd.engine.Engine`.

    Args:
        config: With a section `cluster`; its data directory exists and is locked.
        link: Subscriptions are made on it.
        make_surroundings: Given the lookup of streams by subject, what partitions share.
        clock: Its monotonic time goes on while the machine sleeps.
        hearing: Whether publishers reach this node.
        tls: Between nodes; None: plain connections.

    Attributes:
        streams: What readers and operators see.
        cursors: Of the consumers.
        groups: Of the consumers.
        access: Rules and quotas.
        activity: Where what happens is written.
        streams_max: Streams there may be.

    Raises:
        CorruptError: The metadata is damaged: the node must not take part.
        RefusedError: The directory is another node's.
        OSError: The disk failed.
    """

    def __init__(
        self,
        config: LogdConfig,
        link: Link,
        make_surroundings: Callable[[StreamLookup], Surroundings],
        clock: Clock,
        hearing: Hearing,
        tls: PeerTls | None = None,
    ) -> None:
        section = config.cluster
        assert section is not None
        self._section = section
        self.streams_max = config.streams_max
        self._replicas = NodeReplicas(
            config.data_dir,
            link,
            make_surroundings,
            clock=clock,
            hearing=hearing,
            settings=section.replication(),
            descriptors=_descriptors(config, section),
        )
        rng = random.Random()  # noqa: S311 - jitter, and ids that are told apart
        settings = _settings(config, section, tls)
        self._node = ClusterNode(settings, self._replicas, rng, clock, section.feeding())
        self._replicas.attach(self._node)
        decisions = Decisions(self._node, self._replicas.check_files)
        self.streams = ClusterStreams(self._replicas, decisions)
        self.cursors = ClusterCursors(self._replicas, decisions, cursors_max=config.cursors_max)
        self.groups = ClusterGroups(self._node, decisions)
        self.access = ClusterAccess(self._replicas)
        stream = config.activity_section.stream()
        self.activity = ClusterActivity(self._replicas, decisions, stream)
        self._configured: Sequence[ConfiguredStream] = ()
        self._waiting = ""

    @property
    def endpoint(self) -> PeerServer:
        """Where other nodes dial this one."""
        return self._node.endpoint

    @property
    def listening(self) -> Listening:
        """As `Engine`."""
        return self._replicas.listening

    @property
    def revived(self) -> int:
        """As `Engine`."""
        return self._replicas.revived

    def partitions(self) -> list[Partition]:
        """As `Engine`."""
        return self._replicas.partitions()

    def unopened(self) -> list[Unopened]:
        """As `Engine`; what is not open here is a problem of a replica, and no stream's."""
        return []

    def reasons(self) -> Sequence[str]:
        """As `Engine`."""
        found = [
            f"stream {place.stream}, partition {place.partition}: {problem}"
            for place, problem in sorted(self._replicas.problems.items())
        ]
        if halted := self._node.member.halted:
            found.append(
                f"the cluster refuses this node: {halted}. {REJOIN}"
                if halted.startswith(DATA_LOST)
                else f"this node takes no part until it is started again: {halted}"
            )
        elif stalled := self._node.member.stalled:
            found.append(f"no space for the cluster's metadata, which is tried again: {stalled}")
        elif not self._node.member.membership.members:
            found.append("this node waits for the cluster to let it in")
        elif self._node.group.leader is None:
            found.append("no node leads the cluster: a majority cannot be reached")
        if problem := self._replicas.rules_adoption.problem:
            found.append(problem)
        for stream, problem in sorted(self._replicas.adoption.problems.items()):
            found.append(f"stream {stream} of the lone logd is not in the cluster: {problem}")
        if self._waiting:
            found.append(self._waiting)
        return found

    def info(self) -> dict[str, Any]:
        """As `Engine`."""
        return {"cluster": describe_node(self._node, self._replicas.hosted())}

    def metrics(self) -> Iterable[Metric]:
        """As `Engine`."""
        return cluster_metrics(self._node, self._replicas.hosted())

    async def open(
        self, configured: Sequence[ConfiguredStream], addresses: Mapping[str, str]
    ) -> None:
        """As `Engine`; the rest is done as the node runs."""
        self._configured = configured
        section, other = self._section, self._section.advertise
        self._node.advertised = Addresses(
            peer=other.peer or section.founders.get(self._node.name, section.peer),
            fetch=other.fetch or addresses["fetch"],
            admin=other.admin or addresses["admin"],
            grpc="" if "grpc" not in addresses else other.grpc or addresses["grpc"],
        )
        self._node.listen()

    def watch(self, record: Record) -> None:
        """As `Engine`."""
        self._node.watch = Watcher(self._node, record).on_applied

    async def run(self) -> None:
        """As `Engine`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node.run())
            tasks.create_task(self._replicas.run())
            tasks.create_task(self.cursors.run())
            tasks.create_task(self._make_configured())

    async def retire(self) -> None:
        """As `Engine`."""
        await self._replicas.step_down(_RETIRE_S)
        await self._node.hand_over(_HAND_OVER_S)

    async def close(self) -> list[str]:
        """As `Engine`."""
        return await self._replicas.close()

    def draining(self) -> list[str]:
        """As `Engine`."""
        return self._replicas.draining()

    async def _make_configured(self) -> None:
        """Have the streams of the configuration made that the cluster has not."""
        for settings in self._configured:
            while True:
                try:
                    await self._make(settings)
                    break
                except UnavailableError as error:
                    self._waiting = f"stream {settings.name} is not made yet: {error}"
                await asyncio.sleep(_AGAIN_S)
        self._waiting = ""

    async def _make(self, settings: ConfiguredStream) -> None:
        """Have a stream made, if the cluster has none of its name.

        Raises:
            UnavailableError: Not yet. How many replicas a stream gets that does not say is seen
                only when every founder has come once; and a node may bring one of its name.
        """
        state = await self._node.group.read(timeout_s=10)
        if settings.name in state.streams:
            return
        replication = settings.replication()
        absent = sorted(self._section.founders.keys() - state.nodes.keys())
        if absent and replication.replication_factor in (None, "all"):
            raise UnavailableError(f"no word yet of {', '.join(absent)}")
        check_adopted(state)
        try:
            await self.streams.create(settings.stream_config(), replication)
        except RefusedError as error:
            if error.code in _LATER:
                raise UnavailableError(str(error)) from None
            _log.error("configured stream not made", stream=settings.name, reason=str(error))


def _descriptors(config: LogdConfig, section: ClusterSection) -> Descriptors:
    """The limit of open files; nodes that join beside the founders have theirs of the rest."""
    others = PEER_CONNECTIONS_PER_NODE * max(len(section.founders) - 1, 0)
    unknown = connections_within(PEER_STRANGERS_MAX, part=PEER_OPEN_FILES_PART)
    return Descriptors.raised(config.connections() + others + unknown)


def _settings(config: LogdConfig, section: ClusterSection, tls: PeerTls | None) -> ClusterSettings:
    return ClusterSettings(
        cluster=section.name,
        node=NodeId(config.node),
        directory=config.data_dir / "cluster",
        founders=section.founders,
        listen=section.peer,
        advertised=Addresses(peer=""),
        rack=section.rack,
        boot=secrets.token_hex(8),
        tls=tls,
        timing=section.timing(),
    )

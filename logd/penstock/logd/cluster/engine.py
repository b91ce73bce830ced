"""A node's part of a cluster's streams, run, and what `/status` and Prometheus say of it.

What a node says of its part in a cluster, for Prometheus and `/status`.

The admin thread calls these; it goes over copies of what grows.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.base.sockets import connections_within
from penstock.logd.activity import Record
from penstock.logd.cluster.activity import ClusterActivity, Watcher
from penstock.logd.cluster.config import LONE_CLUSTER, ClusterSection
from penstock.logd.cluster.controller_client import ControllerClient
from penstock.logd.cluster.cursors import ClusterCursors
from penstock.logd.cluster.import_standalone import check_imported
from penstock.logd.cluster.node import ClusterNode, ClusterSettings
from penstock.logd.cluster.replica import ReplicaRunner
from penstock.logd.cluster.replica_manager import NatsReachability, ReplicaManager
from penstock.logd.cluster.streams import ClusterStreams
from penstock.logd.config import LogdConfig
from penstock.logd.controller.group_messages import MemberAnswer, MemberBeat
from penstock.logd.controller.liveness import NS_PER_MS
from penstock.logd.directories import Descriptors
from penstock.logd.errors import (
    REJOIN,
    CorruptError,
    HaltCause,
    NotReadyError,
    RefusedError,
    UnavailableError,
)
from penstock.logd.limits import (
    PEER_CONNECTIONS_PER_NODE,
    PEER_OPEN_FILES_PART,
    PEER_UNAUTHENTICATED_MAX,
)
from penstock.logd.metadata.access import AccessCommand, AccessTable
from penstock.logd.metadata.codec import Document
from penstock.logd.metadata.commands import AlterStream
from penstock.logd.metadata.records import Addresses, Group, StreamRecord
from penstock.logd.metadata.state import ClusterState, Refused
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import Done
from penstock.logd.metrics import LabeledSamples, family, labeled_family, value_of
from penstock.logd.nats.protocol import NatsRefusedError
from penstock.logd.net.peer_server import PeerServer
from penstock.logd.net.peer_tls import PeerTls
from penstock.logd.partition.context import PartitionContext, StreamLookup
from penstock.logd.partition.partition import OfflinePartition, Partition
from penstock.logd.partition.subscriptions import Link, SubscriptionManager
from penstock.logd.raft import RaftConfig
from penstock.logd.replication.events import NodeId
from penstock.logd.stream_options import ConfiguredStream

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_CHANGE_S: Final = 10.0


class ClusterAccess:
    """Rules and quotas of a cluster. Used on the event loop.

    Args:
        replicas: The node's replicas.
    """

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    @property
    def table(self) -> AccessTable:
        """The rules and quotas in force; only this node's state changes them.

        Raises:
            NotReadyError: This node does not know them yet.
        """
        if not self._replicas.ready:
            raise NotReadyError("this node does not know yet who may do what")
        return self._replicas.cluster.group.state.access

    async def change(self, command: AccessCommand) -> bool:
        """Have a command applied, durably; whether it changed anything.

        On return this node follows it, and the others a moment later.

        Raises:
            RefusedError: As `penstock.logd.metadata.access.apply_access`.
            UnavailableError: Not in time; it may still be done.
        """
        self._replicas.cluster.check_takes_part(change=True)
        group = self._replicas.cluster.group
        result = await group.change(command, timeout_s=_CHANGE_S)
        if isinstance(result, Refused):
            raise RefusedError(result.code, result.message)
        assert isinstance(result, Done), result
        await group.read(timeout_s=_CHANGE_S)
        return result.changed


_BEAT_S: Final = 2.0
"""Seconds in which the coordinator must be found: who asks sends another heartbeat soon."""

_LEAVE_S: Final = 10.0


class GroupFigures(Struct, frozen=True, kw_only=True):
    """Figures of consumer groups for metrics.

    Attributes:
        groups: Number of groups with members, as this node knows them.
        members: Number of members of all groups.
        counts: Counters of this node as their coordinator.
    """

    groups: int = 0
    members: int = 0
    counts: Mapping[str, int] = msgspec.field(default_factory=Counter)


class ClusterGroups:
    """Consumer groups of a cluster. Called on the event loop.

    Args:
        node: This one.
        decisions: The way to the coordinator.
    """

    def __init__(self, node: ClusterNode, decisions: ControllerClient) -> None:
        self._node = node
        self._decisions = decisions

    async def beat(self, beat: MemberBeat) -> MemberAnswer:
        """Tell the coordinator that a member is there; its answer.

        Raises:
            RefusedError: `UNAVAILABLE`: it gives none now.
            UnavailableError: It cannot be reached in time.
        """
        self._node.check_takes_part(change=True)
        return await self._decisions.beat(beat, timeout_s=_BEAT_S)

    async def leave(self, group: str, member: str) -> None:
        """Tell the coordinator that a member wants to be none.

        Raises:
            UnavailableError: It cannot be reached in time.
        """
        self._node.check_takes_part(change=True)
        await self._decisions.leave(group, member, timeout_s=_LEAVE_S)

    def describe(self, group: str | None = None) -> list[Document]:
        """One group, or all by name.

        Raises:
            RefusedError: `UNKNOWN_GROUP`.
        """
        self._node.check_takes_part()
        found = self._node.group.state.groups
        if group is None:
            return [_describe(found[name]) for name in sorted(found)]
        if group not in found:
            raise RefusedError("UNKNOWN_GROUP", f"group {group!r} has no members", group=group)
        return [_describe(found[group])]

    def figures(self) -> GroupFigures:
        groups = list(self._node.group.state.groups.values())
        counts = self._node.controlling.coordinating.coordinator.counts
        return GroupFigures(
            groups=len(groups),
            members=sum(len(group.members) for group in groups),
            counts=dict(counts),
        )


def _describe(group: Group) -> Document:
    return {
        "group": group.name,
        "epoch": group.epoch,
        "members": [
            {"member": member.id, "streams": member.streams, "session_ms": member.session_ms}
            for member in group.members
        ],
        "partitions": [
            {
                "stream": share.partition.stream,
                "incarnation": share.partition.incarnation,
                "partition": share.partition.partition,
                "member": share.owner,
                "wanted": share.wanted,
                "epoch": share.epoch,
            }
            for share in group.shares
        ],
    }


def describe_node(node: ClusterNode, replicas: list[ReplicaRunner]) -> dict[str, Any]:
    """The entry `cluster` of `/status`."""
    return {
        "name": node.cluster,
        "controller": node.group.leader,
        "term": node.member.term,
        "applied_index": node.group.state.index,
        "lease": node.controlling.leads,
        "leads": sum(replica.leading for replica in replicas),
        "replicas": len(replicas),
        "unclean_elections": _unclean_elections(node, replicas),
        "unreachable": sorted(link.peer for link in node.mesh.links() if not link.up),
    }


def _unclean_elections(node: ClusterNode, replicas: list[ReplicaRunner]) -> dict[str, int]:
    """Return the number of unclean elections, by label of the partitions here that had any."""
    found = ((replica, node.group.state.partition(replica.place)) for replica in replicas)
    counts = {
        replica.partition.label: known[1].unclean_elections for replica, known in found if known
    }
    return {label: count for label, count in counts.items() if count}


def under_replicated(replicas: Iterable[ReplicaRunner], state: ClusterState) -> set[Partition]:
    """The partitions of replicas that have fewer replicas in sync than they are to have."""
    return {
        replica.partition
        for replica in replicas
        if (found := state.partition(replica.place)) and len(found[1].isr) < len(found[1].replicas)
    }


def cluster_metrics(node: ClusterNode, replicas: list[ReplicaRunner]) -> Iterable["Metric"]:
    yield from _node_metrics(node)
    yield from _peer_metrics(node)
    yield from _replica_metrics(node, replicas)


def _node_metrics(node: ClusterNode) -> Iterable["Metric"]:
    yield value_of("cluster_controller", node.controlling.controller.decides)
    yield value_of("cluster_lease", node.controlling.leads)
    yield value_of("cluster_term", node.member.term)
    yield value_of("cluster_applied_index", node.group.state.index)
    decided = dict(node.controlling.controller.counts)
    yield family(
        "cluster_decisions", [((kind.replace(" ", "_"),), count) for kind, count in decided.items()]
    )


def _peer_metrics(node: ClusterNode) -> Iterable["Metric"]:
    links, fed, fetched = node.mesh.links(), dict(node.replication.fed), node.replication.fetched
    yield family("cluster_peer_connected", [((link.peer,), link.up) for link in links])
    dropped = [((link.peer,), link.counts.dropped) for link in links]
    yield family("cluster_messages_dropped", dropped)
    sent = [((peer,), counts.frames_bytes) for peer, counts in fed.items()]
    yield family("cluster_replicated_bytes_sent", sent)
    received = [((peer,), counts.frames_bytes) for peer, counts in fetched.items()]
    yield family("cluster_replicated_bytes_received", received)
    broken = [((peer,), counts.broken) for peer, counts in fetched.items()]
    yield family("cluster_fetch_sessions_broken", broken)


def _replica_metrics(node: ClusterNode, replicas: list[ReplicaRunner]) -> Iterable["Metric"]:
    labeled = [({"stream": replica.partition.label}, replica) for replica in replicas]

    def of_each(value: Callable[[ReplicaRunner], float]) -> LabeledSamples:
        return [(labels, value(replica)) for labels, replica in labeled]

    yield labeled_family("cluster_leads", of_each(lambda it: it.leading))
    yield labeled_family("cluster_leader_epoch", of_each(lambda it: it.epoch))
    ignored = of_each(lambda it: it.partition.publish_queue.ignored)
    yield labeled_family("cluster_messages_ignored", ignored)
    undecided = of_each(lambda it: it.partition.publish_queue.undecided)
    yield labeled_family("cluster_records_undecided", undecided)
    known = [
        (labels, *found)
        for labels, replica in labeled
        if (found := node.group.state.partition(replica.place)) is not None
    ]
    yield labeled_family("cluster_replicas", [(at, len(it.replicas)) for at, _, it in known])
    yield labeled_family("cluster_in_sync_replicas", [(at, len(it.isr)) for at, _, it in known])
    yield labeled_family("cluster_min_in_sync_replicas", [(at, it.min_isr) for at, it, _ in known])
    unclean = [(at, it.unclean_elections) for at, _, it in known]
    yield labeled_family("cluster_unclean_elections", unclean)
    findings = [
        ((replica.partition.label, finding.name.lower()), count)
        for replica in replicas
        for finding, count in dict(replica.findings).items()
    ]
    yield family("cluster_findings", findings)


_RETIRE_S: Final = 2.0
"""Seconds others have to take over what a node leads that is being stopped."""

_HAND_OVER_S: Final = 1.0
"""Seconds another node has to become the controller."""

_AGAIN_S: Final = 0.5
_STATE_S: Final = 10.0
"""Seconds one try may take to read the cluster's state."""

_MADE_AT_ONCE: Final = 64
"""Streams of its configuration that a node alone makes together: their commands share syncs."""

_SETTLED_S: Final = 0.005
"""Seconds between two looks at whether what is there is open and on its subject."""

_LATER: Final = ("NOT_ENOUGH_NODES", "TOO_MANY_STREAMS")
"""Refusals after which a stream of the configuration is tried again."""

_log = structlog.get_logger()


class ClusterEngine:
    """Keeps a node's part of a cluster's streams; without `cluster` it is a cluster of one.

    Used on the event loop: `open`, `run` until cancelled, `close`.

    Args:
        config: Configuration of the daemon; its data directory exists and is locked.
        link: Subscriptions are made on it.
        make_context: Given the lookup of streams by subject, what partitions share.
        clock: Its monotonic time goes on while the machine sleeps.
        reachability: Whether publishers reach this node.
        tls: Between nodes; None: plain connections.

    Attributes:
        streams: Streams for readers and operators.
        cursors: The consumers' cursors.
        groups: The consumer groups.
        access: Rules and quotas.
        activity: The activity stream.
        max_streams: Streams there may be.

    Raises:
        CorruptError: The metadata is damaged: the node must not take part.
        RefusedError: The directory is another node's.
        OSError: The disk failed.
    """

    def __init__(
        self,
        config: LogdConfig,
        link: Link,
        make_context: Callable[[StreamLookup], PartitionContext],
        clock: Clock,
        reachability: NatsReachability,
        tls: PeerTls | None = None,
    ) -> None:
        self._section = section = config.cluster_section
        self._alone = config.cluster is None
        if self._alone:
            _check_streams_known(config.data_dir)
        self.max_streams = config.max_streams
        self._replicas = ReplicaManager(
            config.data_dir,
            link,
            make_context,
            clock=clock,
            reachability=reachability,
            settings=section.replication(),
            descriptors=_descriptors(config, section),
        )
        rng = random.Random()  # noqa: S311 - jitter, and ids that are distinguished
        settings = _settings(config, section, tls)
        self._node = ClusterNode(
            settings, self._replicas, rng, clock, section.feeding(), self._replicas.dispatcher
        )
        self._check_members(config)
        self._replicas.attach(self._node)
        decisions = ControllerClient(self._node, self._replicas.check_files)
        self.streams = ClusterStreams(self._replicas, decisions)
        self.cursors = ClusterCursors(self._replicas, decisions, max_cursors=config.max_cursors)
        self.groups = ClusterGroups(self._node, decisions)
        self.access = ClusterAccess(self._replicas)
        stream = config.activity_section.stream()
        self.activity = ClusterActivity(self._replicas, decisions, stream)
        self._configured: Sequence[ConfiguredStream] = ()
        self._waiting = ""
        self._made = asyncio.Event()
        self._unmade: RefusedError | None = None

    def _check_members(self, config: LogdConfig) -> None:
        """Check that the section `cluster` fits the nodes that the directory knows of.

        Raises:
            RefusedError: `CLUSTERED`: there are others, and no section. `OTHER_INITIAL_MEMBERS`:
                the node was alone, and others named as initial members with it would found a
                second cluster.
        """
        others = sorted(self._node.member.membership.members - {self._node.name})
        if self._alone and others:
            message = f"{config.data_dir} is that of a node in a cluster with {', '.join(others)}"
            raise RefusedError("CLUSTERED", message)
        named = sorted(self._section.initial_members.keys() - {self._node.name})
        grows = (
            self._section.name == LONE_CLUSTER and self._node.name in self._section.initial_members
        )
        if grows and not others and named:
            message = f"{config.data_dir} is that of a node that was alone; {', '.join(named)}"
            raise RefusedError(
                "OTHER_INITIAL_MEMBERS", f"{message} cannot have founded its cluster"
            )

    @property
    def endpoint(self) -> PeerServer:
        """Listener for other nodes."""
        return self._node.endpoint

    @property
    def subscription_manager(self) -> SubscriptionManager:
        """Manager of the subscriptions of this node's partitions."""
        return self._replicas.subscription_manager

    @property
    def revived(self) -> int:
        """Logs opened again since the start."""
        return self._replicas.revived

    def partitions(self) -> list[Partition]:
        """Every open partition, by stream and number."""
        return self._replicas.partitions()

    def each_partition(self) -> list[Partition]:
        """Every open partition, as they come: where most of thousands are passed over."""
        return [replica.partition for replica in self._replicas.each()]

    def offline_partition(self) -> list[OfflinePartition]:
        """The partitions that could not be opened and no other node has."""
        return self._replicas.offline_partitions()

    def reasons(self) -> Sequence[str]:
        """Why it is not as well as it should be."""
        offline = {(one.name, one.number) for one in self._replicas.offline_partitions()}
        found = [
            f"stream {place.stream}, partition {place.partition}: {problem}"
            for place, problem in sorted(self._replicas.problems.items())
            if (place.stream, place.partition) not in offline  # which says it itself
        ]
        if halted := self._node.member.halted:
            found.append(
                f"the cluster refuses this node: {halted.reason}. {REJOIN}"
                if halted.cause is HaltCause.DATA_LOST
                else f"this node takes no part until it is started again: {halted.reason}"
            )
        elif stalled := self._node.member.stalled:
            found.append(f"no space for the cluster's metadata, which is tried again: {stalled}")
        elif not self._node.member.membership.members:
            found.append("this node waits for the cluster to let it in")
        elif self._node.group.leader is None:
            found.append("no node leads the cluster: a majority cannot be reached")
        if self._alone and self._made.is_set() and not self._replicas.is_settled():
            found.append("a stream is being opened")
        if refusal := self._replicas.space.refusal:
            found.append(f"publishers are refused: {refusal.description}")
        if problem := self._replicas.rules_import.problem:
            found.append(problem)
        for stream, problem in sorted(self._replicas.streams_import.problems.items()):
            found.append(f"stream {stream} of before is not in the cluster: {problem}")
        if self._waiting:
            found.append(self._waiting)
        return found

    def info(self) -> dict[str, Any]:
        """Further entries of `/status`."""
        return {"cluster": describe_node(self._node, self._replicas.hosted())}

    def metrics(self, partitions: Collection[Partition]) -> Iterable["Metric"]:
        """Further metrics, and those of some partitions."""
        shown = set(partitions)
        hosted = [replica for replica in self._replicas.hosted() if replica.partition in shown]
        return cluster_metrics(self._node, hosted)

    def under_replicated(self) -> set[Partition]:
        """The open partitions with fewer replicas in sync than they are to have."""
        return under_replicated(self._replicas.each(), self._node.group.state)

    async def open(
        self, configured: Sequence[ConfiguredStream], addresses: Mapping[str, str]
    ) -> None:
        """Begin to listen for other nodes; the rest is done as the node runs.

        Args:
            configured: Streams of the configuration file.
            addresses: Addresses at which this node listens: `fetch` and `admin`.

        Raises:
            UnavailableError: It cannot be listened on.
        """
        self._configured = configured
        section, other = self._section, self._section.advertise
        self._node.advertised = Addresses(
            peer=other.peer or section.initial_members.get(self._node.name, section.peer),
            fetch=other.fetch or addresses["fetch"],
            admin=other.admin or addresses["admin"],
            grpc="" if "grpc" not in addresses else other.grpc or addresses["grpc"],
        )
        self._node.listen()

    async def started(self) -> None:
        """Wait until a node alone takes messages for everything it has; others are not waited for.

        Raises:
            RefusedError: A configured stream differs in what cannot be changed, or cannot be made.
            UnavailableError: The metadata cannot be written.
        """
        while self._alone and not (
            self._made.is_set() and self._node.controlling.leads and self._replicas.is_settled()
        ):
            if self._unmade is not None:
                raise self._unmade
            if halted := self._node.member.halted:
                raise UnavailableError(halted.reason)
            if stalled := self._node.member.stalled:
                raise UnavailableError(stalled)
            await asyncio.sleep(_SETTLED_S)

    def watch(self, record: Record) -> None:
        """Have what becomes of nodes and partitions recorded; a node alone always leads."""
        if not self._alone:
            self._node.watch = Watcher(self._node, record).on_applied

    async def run(self) -> None:
        """Do what is to be done all the time."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node.run())
            tasks.create_task(self._replicas.run())
            tasks.create_task(self.cursors.run())
            tasks.create_task(self._make_configured())

    async def retire(self) -> None:
        """Give away what others can do, before `close`."""
        await self._replicas.step_down(_RETIRE_S)
        await self._node.hand_over(_HAND_OVER_S)

    async def close(self) -> list[str]:
        """Commit what was accepted and close; streams of which something could not be synced."""
        return await self._replicas.close()

    def draining(self) -> list[str]:
        """Streams that `close` still waits for."""
        return self._replicas.draining()

    async def _make_configured(self) -> None:
        """Have the streams of the configuration made that the cluster has not."""
        while True:
            if not self._alone or self._node.controlling.leads:
                break
            await asyncio.sleep(_SETTLED_S)
        room = asyncio.Semaphore(_MADE_AT_ONCE if self._alone else 1)
        missing = await self._not_made()
        async with asyncio.TaskGroup() as tasks:
            for settings in missing:
                tasks.create_task(self._make_in_time(settings, room))
        self._waiting = ""
        if self._unmade is None:
            self._made.set()

    async def _not_made(self) -> Sequence[ConfiguredStream]:
        """The streams of the configuration that the state has not, or has with other options."""
        try:
            state = await self._node.group.read(timeout_s=_STATE_S)
            check_imported(state)
        except UnavailableError:
            return self._configured
        return [one for one in self._configured if not self._is_made(state, one)]

    def _is_made(self, state: ClusterState, settings: ConfiguredStream) -> bool:
        found = state.streams.get(settings.name)
        if found is None or not found.is_open:
            return False
        return not self._alone or found.config == settings.stream_config()

    async def _make_in_time(self, settings: ConfiguredStream, room: asyncio.Semaphore) -> None:
        """Have one of them made, however long that takes."""
        async with room:
            while self._unmade is None:
                try:
                    await self._make(settings)
                except UnavailableError as error:
                    self._waiting = f"stream {settings.name} is not made yet: {error}"
                except RefusedError as error:  # of a node alone: it does not go on without it
                    self._unmade = error
                else:
                    return
                await asyncio.sleep(_AGAIN_S)

    async def _make(self, settings: ConfiguredStream) -> None:
        """Have a stream made, if the cluster has none of its name.

        Raises:
            UnavailableError: Not yet. How many replicas a stream gets that does not say is seen
                only when every initial member has come once; and a node may bring one of its name.
        """
        state = await self._node.group.read(timeout_s=_STATE_S)
        check_imported(state)
        if (found := state.streams.get(settings.name)) is not None and found.is_open:
            if self._alone and found.config != settings.stream_config():
                await self._follow_file(found, settings.stream_config())
            return
        replication = settings.replication()
        absent = sorted(self._section.initial_members.keys() - state.nodes.keys())
        if absent and replication.replication_factor in (None, "all"):
            raise UnavailableError(f"no word yet of {', '.join(absent)}")
        try:
            await self.streams.create(settings.stream_config(), replication)
        except NatsRefusedError as error:
            message = f"{settings.name}: the NATS server refuses the subject: {error}"
            if self._alone:
                raise RefusedError("NATS_REFUSED", message, stream=settings.name) from None
            raise UnavailableError(message) from None
        except RefusedError as error:
            if self._alone:
                raise
            if error.code in _LATER:
                raise UnavailableError(str(error)) from None
            _log.error("stream_creation_failed", stream=settings.name, reason=str(error))

    async def _follow_file(self, found: StreamRecord, config: StreamConfig) -> None:
        """Give a stream the options of the configuration's file, where no other node has one."""
        command = AlterStream(incarnation=found.incarnation, config=config, options=found.options)
        result = await self._node.group.insist(command)
        if isinstance(result, Refused):
            raise RefusedError(result.code, result.message)


def _check_streams_known(data_dir: Path) -> None:
    """Check that there is something that says which streams a node alone has.

    Raises:
        CorruptError: There is not, and there are streams.
    """
    raft, metadata, streams = (data_dir / name for name in ("cluster/raft", "metadata", "streams"))
    if metadata.exists() or (raft.is_dir() and any(raft.iterdir())) or not streams.is_dir():
        return
    if present := sorted(path.name for path in streams.iterdir()):
        message = f"the metadata is missing, but there are streams: {', '.join(present[:5])}"
        raise CorruptError(message, where=str(raft))


def _descriptors(config: LogdConfig, section: ClusterSection) -> Descriptors:
    """The limit of open files; nodes that join later have theirs of the rest."""
    if config.cluster is None:  # no other node can come
        return Descriptors.raised(config.connections())
    others = PEER_CONNECTIONS_PER_NODE * max(len(section.initial_members) - 1, 0)
    unknown = connections_within(PEER_UNAUTHENTICATED_MAX, part=PEER_OPEN_FILES_PART)
    return Descriptors.raised(config.connections() + others + unknown)


def _alone(section: ClusterSection, node: NodeId) -> RaftConfig:
    """Return the Raft settings of a group of one, which waits for no heartbeat."""
    return RaftConfig(
        node=node,
        group=section.name,
        heartbeat_ns=section.lease_ms * NS_PER_MS // 3,
        election_timeout_min_ns=section.lease_ms * NS_PER_MS,
        election_timeout_max_ns=2 * section.lease_ms * NS_PER_MS,
    )


def _settings(config: LogdConfig, section: ClusterSection, tls: PeerTls | None) -> ClusterSettings:
    return ClusterSettings(
        cluster=section.name,
        node=NodeId(config.node),
        directory=config.data_dir / "cluster",
        initial_members=section.initial_members,
        listen=None if config.cluster is None else section.peer,
        advertised=Addresses(peer=""),
        rack=section.rack,
        boot=secrets.token_hex(8),
        tls=tls,
        timing=section.timing(),
        raft=None if config.cluster else _alone(section, NodeId(config.node)),
    )

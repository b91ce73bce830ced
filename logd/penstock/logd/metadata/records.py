"""Records of a cluster's state: nodes, streams, their partitions, consumer groups.

Every record is immutable; a change puts a new one in its place.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from annotated_types import Ge, Le
from msgspec import Struct

from penstock.logd.errors import RefusedError
from penstock.logd.limits import REPLICAS_MAX
from penstock.logd.metadata.option import Change, Option
from penstock.logd.metadata.streams import StreamConfig, StreamState

NodeId: TypeAlias = str
"""A name that the operator gives a node: 1 to 64 of A-Z a-z 0-9 _ -."""

_NODE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class NodeState(StrEnum):
    """State of a node."""

    ACTIVE = "active"
    DRAINING = "draining"
    """It gives away its leaderships and replicas, and gets no new ones."""
    REMOVED = "removed"
    """It has none, and is refused if it comes back with the same data."""


class Addresses(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses of a node, each as `host:port`; empty: it has none."""

    peer: str
    fetch: str = ""
    admin: str = ""
    grpc: str = ""


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member of the cluster.

    Attributes:
        rack: Failure domain of the node; empty: only itself.
        storage: Id of its data directory. Another one means that its data is lost.
        boot: Id of its process. Another one means that it has been started again.
        deposed_at: Index of the last command that took a leadership from it. Before it has applied
            that, it may believe that it leads, and gets no lease.
        adopting: Whether it has streams from before that are still to be taken over: what others
            make meanwhile could have their names. 0.1.0 gave the field its name, and reads it.
    """

    id: NodeId
    addresses: Addresses
    rack: str = ""
    storage: str
    boot: str
    state: NodeState = NodeState.ACTIVE
    deposed_at: int = 0
    adopting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """Replication of a stream: each field is an option, declared here and nowhere else.

    Attributes:
        replication_factor: Replicas of each partition; 0: one on every active node. Users set
            `ReplicationSettings.replication_factor`.
    """

    replication_factor: int = 1
    min_isr: Annotated[
        int | None,
        Ge(1),
        Le(REPLICAS_MAX),
        Option(
            "Replicas in sync below which nothing is stored (`NOT_ENOUGH_REPLICAS`)."
            " Without it: a majority of the replicas.",
            liftbridge="minIsr",
        ),
    ] = None
    unclean_election: Annotated[
        bool,
        Option("Whether a replica may lead that lacks acked records, when no other is left."),
    ] = False
    queue_group: Annotated[
        str | None,
        Option("NATS queue group with which it shares its subject.", liftbridge="group"),
    ] = None
    read_only: Annotated[
        bool,
        Option("Whether publishers are refused (`READ_ONLY`).", change=Change.MODE),
    ] = False
    paused: Annotated[
        bool,
        Option(
            "Whether it rests until a message comes for it or somebody resumes it.",
            change=Change.MODE,
        ),
    ] = False
    held: Annotated[
        bool,
        Option(
            "Whether a pause takes it off its subject, so that nothing ends it but a resume.",
            change=Change.MODE,
        ),
    ] = False

    @property
    def listens(self) -> bool:
        """True if its leaders are subscribed to its subject."""
        return not (self.paused and self.held)


class Joined(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node that was added to a partition's holders, empty, with this version of it."""

    node: NodeId
    version: int


class PartitionRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The replicas and the leader of a partition.

    Attributes:
        replicas: Replicas in the order in which they should lead.
        observers: Nodes that hold a copy and never count.
        isr: Replicas that have every committed record, in the order of their names.
        leader: One of `isr`, or None while no node may lead.
        leader_epoch: Rises with every change of the leader, to None too.
        version: Rises with every change of anything here.
        last_leader: The last leader; it must be fenced before another one leads.
        successor: The node a leader was deposed for, while no node leads.
        target: Replicas that a move ends with; None while there is none.
        former: Nodes that may hold data of it, which is to be removed.
        joined: Time since when replicas hold it that did not from the beginning.
        unclean_elections: Number of leaders that lacked acked records.
        unclean_epoch: The leader epoch of the last of them; 0: there was none.
        purged: Records below this offset were purged, as far as leaders up to `purge_epoch` have
            ordered them.
        purge_epoch: The leader epoch of that purge; 0: never.
    """

    replicas: tuple[NodeId, ...]
    observers: tuple[NodeId, ...] = ()
    isr: tuple[NodeId, ...]
    leader: NodeId | None
    leader_epoch: int = 1
    version: int = 1
    last_leader: NodeId | None
    successor: NodeId | None = None
    target: tuple[NodeId, ...] | None = None
    former: tuple[NodeId, ...] = ()
    joined: tuple[Joined, ...] = ()
    unclean_elections: int = 0
    unclean_epoch: int = 0
    purged: int = 0
    purge_epoch: int = 0

    @property
    def holders(self) -> set[NodeId]:
        """Every node that may hold data of it."""
        return {*self.replicas, *self.observers, *self.former}


class StreamRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream of the cluster; partition n is at place n.

    Attributes:
        incarnation: Differs from that of any other stream there ever was.
        creator: Principal to whose quota it counts; empty: none.
    """

    config: StreamConfig
    incarnation: str
    state: StreamState
    options: ReplicationOptions
    partitions: tuple[PartitionRecord, ...]
    creator: str = ""

    @property
    def is_open(self) -> bool:
        return self.state is StreamState.OPEN

    @property
    def min_isr(self) -> int:
        """Replicas in sync below which nothing is stored."""
        if self.options.min_isr is not None:
            return self.options.min_isr
        count = self.options.replication_factor or len(self.partitions[0].replicas)
        return count // 2 + 1


class PartitionKey(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """Partition of the stream of that name."""

    stream: str
    partition: int


class GroupPartition(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A partition as a consumer group knows it: of one incarnation of its stream."""

    stream: str
    incarnation: str
    partition: int


class GroupMember(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A consumer in a group.

    Attributes:
        streams: Names of those it wants to read.
        session_ms: Without a heartbeat for so long it is fenced.
    """

    id: str
    streams: tuple[str, ...]
    session_ms: int


class Share(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reader of a partition within a group.

    Attributes:
        wanted: The member that is to read it; empty: none.
        owner: The member that may be reading it; None: none.
        epoch: The group's epoch when it was granted to `owner`; its commits carry it.
    """

    partition: GroupPartition
    wanted: str
    owner: str | None = None
    epoch: int = 0


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A consumer group with at least one member.

    Attributes:
        epoch: Index of the command that last changed it, so that it rises even when a group is
            forgotten and comes again.
        shares: In the order of their partitions.
    """

    name: str
    epoch: int
    members: tuple[GroupMember, ...]
    shares: tuple[Share, ...]


def check_node_id(node: NodeId) -> None:
    """Check a node's name; it becomes part of paths and of addresses of messages.

    Raises:
        RefusedError: `BAD_NODE`.
    """
    if not _NODE_ID.fullmatch(node):
        raise RefusedError("BAD_NODE", f"node {node[:80]!r}: 1 to 64 of A-Z a-z 0-9 _ -")

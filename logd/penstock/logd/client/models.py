"""Answers of logd, in the form that the client's callers get."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple, TypeVar

from penstock.logd.errors import DATA_LOST, HaltCause
from penstock.logd.format.record_checksums import RecordChecksum
from penstock.logd.format.rows import Frame

Info = TypeVar("Info", "PartitionInfo", "NodeInfo", "GroupMemberInfo", "GroupPartitionInfo")

_STANDING: Final = (
    "start_offset",
    "high_watermark",
    "end_offset",
    "epoch",
    "size_bytes",
    "damaged_offsets",
)


class OffsetRange(NamedTuple):
    """Records that can be read: `start` inclusive, `end` exclusive (high watermark plus one)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """The offsets of one partition, and its replicas.

    Attributes:
        start_offset: The first record that can be read.
        high_watermark: The last record that can be read; -1 when there is none.
        end_offset: The next offset to be written.
        epoch: The leader epoch.
        size_bytes: Bytes of its frames on disk.
        leader: The node that orders its records; None: no node may, at present.
        leader_epoch: Rises with each change of the leader.
        replicas: The nodes that have it; the first one leads if it can.
        isr: The replicas that have every record that can be read.
        observers: Further nodes with a copy.
        target: The nodes that the current move ends with; None: there is none.
        unclean_elections: Number of elected replicas that lacked acked records.
        damaged_offsets: Number of offsets known to be damaged at its leader.
    """

    partition: int
    start_offset: int
    high_watermark: int
    end_offset: int
    epoch: int
    size_bytes: int
    leader: str | None = None
    leader_epoch: int = 0
    replicas: tuple[str, ...] = ()
    isr: tuple[str, ...] = ()
    observers: tuple[str, ...] = ()
    target: tuple[str, ...] | None = None
    unclean_elections: int = 0
    damaged_offsets: int = 0

    @property
    def is_known(self) -> bool:
        """True if a node with the partition was asked; if not, its own facts are -1."""
        return self.start_offset >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """The result of an operator's election.

    Attributes:
        leader: The elected node.
        end_offset: The end of its log; None: unknown.
        known_end: The last reported end of the longest log that was in sync; None: no report.
        unclean_elections: Unclean elections of the partition so far.
    """

    leader: str
    end_offset: int | None
    known_end: int | None
    unclean_elections: int

    @property
    def lost_max(self) -> int | None:
        """Maximum number of lost records; None: unknown."""
        if self.end_offset is None or self.known_end is None:
            return None
        return max(0, self.known_end - self.end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """One stream.

    Attributes:
        incarnation: Differs between a stream and a later one of the same name.
        partitions: At least one; without leader while no log of it can be opened.
        options: The stream's options by name.
        problem: Why it takes no writes; empty while it does.
    """

    name: str
    subject: str
    incarnation: str
    partitions: tuple[PartitionInfo, ...]
    options: dict[str, Any]
    problem: str = ""

    def state_of(self, part: PartitionInfo) -> str:
        """The worst that can be said of one of its partitions, in a word."""
        if self.problem:
            return "failed"
        if part.leader is None and part.replicas:
            return "leaderless"
        if part.damaged_offsets > 0:
            return "damaged"
        if len(part.isr) < len(part.replicas):
            return "degraded"
        if self.options.get("paused"):
            return "held" if self.options.get("held") else "paused"
        return "read-only" if self.options.get("read_only") else "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node of a cluster.

    Attributes:
        fetch: Address of its fetch endpoint.
        admin: Address of its `/metrics` and `/status`.
        rack: Failure domain of the node; empty: only itself.
        state: `active`, `draining` or `removed`.
        live: Whether the controller hears from it.
        problem: Why it takes no part though its process runs; empty: it does.
        problem_cause: The cause of that; None: there is no problem.
    """

    node: str
    fetch: str
    admin: str
    rack: str = ""
    state: str = "active"
    live: bool = True
    problem: str = ""
    problem_cause: HaltCause | None = None

    @property
    def standing(self) -> str:
        """State of the node, or that the cluster refuses it, or that it has halted."""
        match self.problem_cause:
            case None:
                return self.state
            case HaltCause.DATA_LOST:
                return f"refused: {DATA_LOST}"
            case _:
                return "halted"

    @property
    def is_member(self) -> bool:
        """True unless it has been removed."""
        return self.state != "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The nodes of a cluster.

    Attributes:
        name: The cluster's name; None: a single node.
        controller: The controller; None: there is none at present.
        node: The node that answered.
        nodes: All nodes by name, removed ones too.
    """

    name: str | None
    controller: str | None
    node: str
    nodes: tuple[NodeInfo, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """Streams as one node sees them.

    Attributes:
        node: The node that answered.
    """

    node: str
    streams: list[StreamInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The answer of one fetch.

    Attributes:
        frames: Whole frames, their CRCs checked; the first may begin before the offset asked for.
        range: Readable offsets of the partition.
        high_watermark: The last record that can be read; -1 when there is none.
        next_offset: Offset after the last frame.
        epoch: The leader epoch of the server.
        incarnation: Incarnation of the stream.
        log_epoch: The last leader epoch in the log that was read; None: the server does not say.
    """

    frames: list[Frame]
    range: OffsetRange
    high_watermark: int
    next_offset: int
    epoch: int
    incarnation: str
    log_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRange:
    """A node's records in a range of a partition's offsets.

    Attributes:
        start_offset: The first record that can be read at the node.
        high_watermark: The last record that it knows to be committed; -1: none.
        first: First offset of the range that was read.
        next_offset: End of that range, exclusive.
        size_bytes: Bytes of the frames that were read.
        checksum: Checksum of the records and their offsets; empty: there are none.
        damaged: Ranges [first, upto) whose frames are damaged.
        missing: Ranges [first, upto) without a frame.
        checksums: Checksum of each record, if requested.
    """

    start_offset: int
    high_watermark: int
    first: int
    next_offset: int
    records: int
    size_bytes: int
    checksum: str
    damaged: tuple[tuple[int, int], ...]
    missing: tuple[tuple[int, int], ...]
    checksums: list[RecordChecksum]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A consumer's position in a partition.

    Attributes:
        offset: The next record to be read.
        incarnation: The incarnation of the stream it was committed for.
        current: Whether that stream still exists; if not, the offset is meaningless.
        epoch: The epoch in which the group granted the partition to the committing member; 0: it
            is no group's.
    """

    consumer: str
    stream: str
    partition: int
    offset: int
    incarnation: str
    current: bool = True
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemberInfo:
    """A member of a consumer group.

    Attributes:
        streams: Names of those it wants to read.
        session_ms: Milliseconds without a heartbeat after which, and a tenth more, it is fenced.
    """

    member: str
    streams: tuple[str, ...]
    session_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartitionInfo:
    """The reader of a partition within a group.

    Attributes:
        member: The member that may be reading it; None: none.
        wanted: The member that is to read it; another than `member` until that one releases it.
        epoch: The epoch of the grant to `member`.
    """

    stream: str
    incarnation: str
    partition: int
    member: str | None
    wanted: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A consumer group with at least one member.

    Attributes:
        epoch: Rises with every change.
    """

    group: str
    epoch: int
    members: tuple[GroupMemberInfo, ...]
    partitions: tuple[GroupPartitionInfo, ...]


def cluster_info(document: dict[str, Any]) -> ClusterInfo:
    """A cluster's description as the protocol carries it."""
    return ClusterInfo(
        name=document.get("cluster"),
        controller=document.get("controller"),
        node=document.get("node", ""),
        nodes=tuple(_node_info(item) for item in document.get("nodes", ())),
    )


def _node_info(document: dict[str, Any]) -> NodeInfo:
    problem = document.get("problem", "")
    cause = HaltCause.of(document.get("problem_cause"), problem) if problem else None
    return _known(NodeInfo, document | {"problem_cause": cause})


def group_info(document: dict[str, Any]) -> GroupInfo:
    """A consumer group's description as the protocol carries it."""
    members = [item | {"streams": tuple(item["streams"])} for item in document["members"]]
    return GroupInfo(
        group=document["group"],
        epoch=document["epoch"],
        members=tuple(_known(GroupMemberInfo, item) for item in members),
        partitions=tuple(_known(GroupPartitionInfo, item) for item in document["partitions"]),
    )


def leaders_elsewhere(described: Described) -> list[str]:
    """The nodes to ask where the partitions stand that the node which described them leads not."""
    streams = described.streams
    leaders = {part.leader for stream in streams for part in stream.partitions}
    return sorted(leader for leader in leaders if leader not in (None, described.node))


def merge(described: Described, others: Sequence[Described]) -> list[StreamInfo]:
    """Streams, each partition standing where its leader says, if that was asked; all problems."""
    found = {
        (other.node, stream.name, stream.incarnation, part.partition): part
        for other in others
        for stream in other.streams
        for part in stream.partitions
        if part.is_known
    }

    def standing(stream: StreamInfo, part: PartitionInfo) -> PartitionInfo:
        there = found.get((part.leader or "", stream.name, stream.incarnation, part.partition))
        if there is None:
            return part
        return replace(part, **{name: getattr(there, name) for name in _STANDING})

    def problem(stream: StreamInfo) -> str:
        problems = [
            f"{other.node}: {found.problem}"
            for other in others
            for found in other.streams
            if found.name == stream.name and found.problem
        ]
        return "; ".join([stream.problem, *problems] if stream.problem else problems)

    return [
        replace(
            stream,
            partitions=tuple(standing(stream, part) for part in stream.partitions),
            problem=problem(stream),
        )
        for stream in described.streams
    ]


def stream_info(document: dict[str, Any]) -> StreamInfo:
    """A stream's description as the protocol carries it."""
    return StreamInfo(
        name=document["name"],
        subject=document["subject"],
        incarnation=document["incarnation"],
        partitions=tuple(_partition_info(item) for item in document["partitions"]),
        options=document["options"],
        problem=document.get("problem", ""),
    )


def _partition_info(document: dict[str, Any]) -> PartitionInfo:
    names = {name: tuple(document.get(name, ())) for name in ("replicas", "isr", "observers")}
    standing = {name: _number_of(document, name) for name in _STANDING}
    target = document.get("target")
    target = None if target is None else tuple(target)
    return _known(PartitionInfo, document | names | standing | {"target": target})


def _number_of(document: dict[str, Any], name: str) -> int:
    value = document.get(name)  # an earlier logd does not say which offsets are damaged
    return -1 if value is None else int(value)


def _known(kind: type[Info], document: dict[str, Any]) -> Info:
    """Read the known fields of a document; later versions of logd may send more."""
    known = {item.name for item in fields(kind)}
    return kind(**{key: value for key, value in document.items() if key in known})

"""Models of logd's answers: what a node sends, what the client returns, what the reference lists.

`penstock.logd.api.operations` names the model of each operation. A response's header is such a
model as JSON, with the `id` of its request; a reader ignores keys that it does not know, which a
later logd may send.

Clients and executors of Spark import this module: it needs nothing of a daemon's, nor pydantic.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.logd.errors import DATA_LOST, GroupError, HaltCause
from penstock.logd.security.acl import AclRule, Action, Effect
from penstock.logd.security.quotas import Quota


class Nothing(Struct, frozen=True):
    """An answer without anything in it."""


# Reading.


class Standing(Struct, frozen=True, kw_only=True):
    """Offsets of a partition for its readers."""

    stream: str
    partition: int
    incarnation: str
    start_offset: Annotated[int, Meta(description="of the first record that can be read")]
    high_watermark: Annotated[int, Meta(description="of the last one; -1: none")]
    end_offset: Annotated[int, Meta(description="of the next record that is written")]
    epoch: Annotated[int, Meta(description="of the leader")]


class FetchedRange(Standing, frozen=True, kw_only=True):
    """Offsets after a fetch."""

    next_offset: Annotated[int, Meta(description="where to go on")]
    log_epoch: Annotated[int | None, Meta(description="the last one in the log that was read")] = (
        None
    )


class FoundOffset(Standing, frozen=True, kw_only=True):
    """The offset that was asked for."""

    offset: int


class HeldRange(Struct, frozen=True, kw_only=True):
    """A node's records in a range of a partition's offsets."""

    incarnation: str
    start_offset: Annotated[int, Meta(description="the first record that can be read there")]
    high_watermark: Annotated[int, Meta(description="the last committed record; -1: none")]
    first: Annotated[int, Meta(description="where the range begins that was read")]
    next_offset: Annotated[int, Meta(description="where it ends, exclusive")]
    records: int
    bytes: Annotated[int, Meta(description="of the frames that were read")]
    checksum: Annotated[str, Meta(description="of offsets and records; empty: of none")]
    damaged: Annotated[
        tuple[tuple[int, int], ...], Meta(description="ranges of offsets: first, upto")
    ]
    missing: Annotated[
        tuple[tuple[int, int], ...], Meta(description="ranges that no frame stands for")
    ]


class IdRanges(Struct, frozen=True, kw_only=True):
    """Ranges of a partition's offsets that may hold records with an id."""

    incarnation: str
    ranges: Annotated[
        tuple[tuple[int, int], ...],
        Meta(description="of offsets: first, upto; no other has such a record"),
    ]


# Streams.


class PartitionInfo(Struct, frozen=True, kw_only=True):
    """A partition. Its offsets and size are those at one node, -1 where that has no replica."""

    partition: int
    start_offset: Annotated[int, Meta(description="the first record that can be read")]
    high_watermark: Annotated[int, Meta(description="the last record that can be read; -1: none")]
    end_offset: Annotated[int, Meta(description="of the next record that is written")]
    epoch: Annotated[int, Meta(description="of the leader that wrote last")]
    size_bytes: Annotated[int, Meta(description="of its frames on disk")]
    damaged_offsets: Annotated[int, Meta(description="that are known to be damaged")] = 0
    leader: Annotated[str | None, Meta(description="orders its records; null: none may now")] = None
    leader_epoch: Annotated[int, Meta(description="rises with each change of the leader")] = 0
    replicas: Annotated[tuple[str, ...], Meta(description="the first one leads if it can")] = ()
    isr: Annotated[
        tuple[str, ...], Meta(description="the replicas with every record that can be read")
    ] = ()
    observers: Annotated[tuple[str, ...], Meta(description="further nodes with a copy")] = ()
    target: Annotated[
        tuple[str, ...] | None, Meta(description="replicas after the move; null: there is none")
    ] = None
    unclean_elections: Annotated[int, Meta(description="of replicas without acked records")] = 0
    refusal: Annotated[
        str, Meta(description="why its leader refuses all publishers; empty: it takes them")
    ] = ""

    @property
    def is_known(self) -> bool:
        """True if a node with the partition was asked; if not, its own facts are -1."""
        return self.start_offset >= 0


class StreamInfo(Struct, frozen=True, kw_only=True):
    """A stream."""

    name: str
    subject: str
    incarnation: Annotated[str, Meta(description="differs from that of a later one so named")]
    partitions: tuple[PartitionInfo, ...]
    options: dict[str, Any]
    problem: Annotated[str, Meta(description="why it takes no writes; empty while it does")] = ""

    def state_of(self, part: PartitionInfo) -> str:
        """The worst that can be said of one of its partitions, in a word."""
        option = self.options.get
        worst_first = (
            ("failed", self.problem),
            ("leaderless", part.leader is None and part.replicas),
            ("damaged", part.damaged_offsets > 0),
            ("refusing", self.refusal_of(part)),
            ("degraded", len(part.isr) < len(part.replicas)),
            ("held", option("paused") and option("held")),
            ("paused", option("paused")),
            ("read-only", option("read_only")),
        )
        return next((state for state, holds in worst_first if holds), "ok")

    def refusal_of(self, part: PartitionInfo) -> str:
        """Why a partition refuses publishers whose records it is to take; empty: it does not."""
        is_chosen = self.options.get("paused") or self.options.get("read_only")
        return "" if is_chosen else part.refusal


class StreamList(Struct, frozen=True):
    """Streams as one node sees them."""

    node: Annotated[str, Meta(description="that answers")]
    streams: list[StreamInfo]


class StreamNames(Struct, frozen=True):
    """Names of streams."""

    streams: list[str]


class OneStream(Struct, frozen=True, kw_only=True):
    """A stream as it is now."""

    stream: StreamInfo


class CreatedStream(OneStream, frozen=True, kw_only=True):
    """A stream that is new, or was there."""

    created: bool


class StartOffset(Struct, frozen=True):
    """The first offset that readers have left."""

    start_offset: int


class NextOffset(Struct, frozen=True):
    """Progress of a restore."""

    next_offset: Annotated[int, Meta(description="of the frame that is wanted next")]


# Cursors.


class Cursor(Struct, frozen=True, kw_only=True):
    """A consumer's committed position in a partition."""

    consumer: str
    stream: str
    partition: int
    offset: Annotated[int, Meta(description="of the next record that is wanted")]
    incarnation: Annotated[str, Meta(description="of the stream it was committed for")]
    current: Annotated[
        bool, Meta(description="that stream still exists; else the offset means nothing")
    ] = True
    epoch: Annotated[
        int, Meta(description="of the group's grant to the member; 0: it is no group's")
    ] = 0


class CursorList(Struct, frozen=True, kw_only=True):
    """Cursors."""

    cursors: list[Cursor]


class CursorPage(CursorList, frozen=True, kw_only=True):
    """Some cursors of many."""

    more: bool


class Deleted(Struct, frozen=True):
    """Result of a deletion: whether the object existed."""

    deleted: bool


# Nodes.


class NodeInfo(Struct, frozen=True, kw_only=True):
    """A node of a cluster. Its addresses are those of its endpoints."""

    node: str
    fetch: str
    admin: str
    grpc: str = ""
    rack: Annotated[str, Meta(description="its failure domain; empty: only itself")] = ""
    state: Literal["active", "draining", "removed"] = "active"
    live: Annotated[bool, Meta(description="the node that answers hears from it")] = True
    problem: Annotated[str, Meta(description="why it takes no part though its process runs")] = ""
    problem_cause: Annotated[
        HaltCause | None, Meta(description="the code of that; null: it takes part")
    ] = None

    @property
    def cause(self) -> HaltCause | None:
        """Why it takes no part; None: it does. A node of 0.1.0 says that in the problem only."""
        if not self.problem:
            return None
        return self.problem_cause or HaltCause.of(None, self.problem)

    @property
    def standing(self) -> str:
        """State of the node, or that the cluster refuses it, or that it has halted."""
        match self.cause:
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


class ClusterInfo(Struct, frozen=True, kw_only=True):
    """The nodes of a cluster."""

    cluster: Annotated[str | None, Meta(description="its name; null: a node alone")] = None
    controller: Annotated[str | None, Meta(description="null: there is none at present")] = None
    node: Annotated[str, Meta(description="that answers")] = ""
    nodes: tuple[NodeInfo, ...] = ()


class Elected(Struct, frozen=True, kw_only=True):
    """Result of an operator's election."""

    leader: str
    end_offset: Annotated[int | None, Meta(description="where its log ends; null: not known")]
    known_end: Annotated[
        int | None, Meta(description="where the logs in sync ended at their last heartbeat")
    ]
    unclean_elections: Annotated[int, Meta(description="of the partition so far")]

    @property
    def lost_max(self) -> int | None:
        """Maximum number of lost records; None: unknown."""
        if self.end_offset is None or self.known_end is None:
            return None
        return max(0, self.known_end - self.end_offset)


class Moves(Struct, frozen=True):
    """Number of moves that have begun."""

    moves: int


class Controller(Struct, frozen=True):
    """Node that is the controller now."""

    controller: str


class IngestGap(Struct, frozen=True, kw_only=True):
    """A time in which messages were missed."""

    streams: list[str]
    stream_count: int
    reason: str
    detail: str
    start: str
    end: str | None
    seconds: float
    messages: Annotated[int | None, Meta(description="that were missed; null: not known")]


class DamagedRange(Struct, frozen=True, kw_only=True):
    """Offsets that cannot be read."""

    stream: str
    partition: int
    first: int
    upto: Annotated[int, Meta(description="exclusive")]


class GapList(Struct, frozen=True, kw_only=True):
    """Gaps of a node's ingestion, and the damaged ranges of its logs."""

    node: str
    lasting: list[IngestGap]
    ended: list[IngestGap]
    damaged: list[DamagedRange]


# Consumer groups.


class Grant(Struct, frozen=True, kw_only=True):
    """A partition that a member is to read."""

    stream: str
    incarnation: str
    partition: int
    epoch: Annotated[int, Meta(description="its commits carry it")]


class CoordinatorAnswer(Struct, frozen=True, kw_only=True):
    """Answer of the coordinator to a member's heartbeat."""

    group: str
    member: str
    sequence: int
    epoch: int
    granted: tuple[Grant, ...]
    error: GroupError
    message: str


class HeartbeatAnswer(Struct, frozen=True):
    """An answer to a heartbeat."""

    answer: CoordinatorAnswer


class GroupMemberInfo(Struct, frozen=True, kw_only=True):
    """A member of a consumer group."""

    member: str
    streams: Annotated[tuple[str, ...], Meta(description="that it wants to read")]
    session_ms: Annotated[int, Meta(description="without a heartbeat until it is fenced")]


class GroupPartitionInfo(Struct, frozen=True, kw_only=True):
    """The reader of a partition within a group."""

    stream: str
    incarnation: str
    partition: int
    member: Annotated[str | None, Meta(description="that may be reading it; null: none")]
    wanted: Annotated[str, Meta(description="the member that is to read it next")]
    epoch: Annotated[int, Meta(description="of the grant to `member`")]


class GroupInfo(Struct, frozen=True, kw_only=True):
    """A consumer group with at least one member."""

    group: str
    epoch: Annotated[int, Meta(description="rises with every change")]
    members: tuple[GroupMemberInfo, ...]
    partitions: tuple[GroupPartitionInfo, ...]


class GroupList(Struct, frozen=True):
    """Consumer groups."""

    groups: list[GroupInfo]


# Rules and quotas.


class StoredRule(Struct, frozen=True, kw_only=True):
    """A rule with the id that the rest of it determines."""

    id: str
    effect: Effect
    principal: str
    action: Action
    resource: str

    def rule(self) -> AclRule:
        return AclRule(
            principal=self.principal,
            effect=self.effect,
            action=self.action,
            resource=self.resource,
        )


class RulePage(Struct, frozen=True, kw_only=True):
    """Some rules of many."""

    version: Annotated[int, Meta(description="of all rules and quotas; a change may name it")]
    enabled: Annotated[bool, Meta(description="they are followed")]
    superusers: Annotated[list[str], Meta(description="principals that need no rule")]
    grants: Annotated[list[str], Meta(description="rules of the configuration, as texts")] = []
    rules: list[StoredRule]
    more: Annotated[bool, Meta(description="there are more after the last of these")]


class Changed(Struct, frozen=True, kw_only=True):
    """Result of a change of rules or quotas, and their version since."""

    changed: bool
    version: int


class AddedRules(Changed, frozen=True, kw_only=True):
    """Rules with their ids."""

    rules: list[StoredRule]


class Verdict(Struct, frozen=True, kw_only=True):
    """A decision of the rules."""

    principal: Annotated[str, Meta(description="empty: the caller itself")] = ""
    allowed: bool
    reason: str
    rule: Annotated[StoredRule | None, Meta(description="that decided; null: none did")]
    enabled: Annotated[
        bool, Meta(description="rules are in force; if not, everything is allowed")
    ] = True


class Verdicts(Struct, frozen=True):
    """Decisions of the rules on every principal that they name."""

    enabled: bool
    principals: list[Verdict]


class QuotaList(Struct, frozen=True):
    """Quotas."""

    version: int
    quotas: list[Quota]


class Identity(Struct, frozen=True, kw_only=True):
    """Identity of a connection."""

    principal: str
    method: str
    groups: list[str]
    expires_ns: Annotated[int | None, Meta(description="Unix; null: never")]

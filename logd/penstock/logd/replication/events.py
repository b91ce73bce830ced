"""The events, effects and messages of a replica.

What changes the log is for its one writer, which keeps the order: `BeginEpoch`, `AppendFetched`,
`Truncate`, `Reset`, `DeleteBefore`, `Patch`, `SaveHighWatermark`.

What replicas of one partition say to each other.

A follower pulls: it says where its log ends and which epoch its last record is of, and the leader
answers with frames from there, or says how far back the two logs may agree. There is no separate
question about epochs (KIP-595's form of KIP-101 and KIP-279).

What can happen to a replica.

What is about the log says how often that had been cut when it happened (`cuts`): reports that come
late, from before a truncation, are about records that are gone.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, Literal, NamedTuple, NewType, TypeAlias

from msgspec import Struct, field

from penstock.logd.intake.dedup import DedupMark

NodeId = NewType("NodeId", str)
"""Given by the operator: 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`."""


class Span(NamedTuple):
    """One frame without its bytes: records in [base_offset, next_offset) of one epoch."""

    base_offset: int
    next_offset: int
    epoch: int


class Fetch(Struct, frozen=True, kw_only=True):
    """A follower's state, and its fetch of what follows.

    Attributes:
        node: The follower.
        boot: Id of its process, different with each start.
        number: Rises while the process lives; an older one that comes later is not looked at.
        leader_epoch: The one it follows.
        version: Version of the view that it follows: it tells apart what was sent by a replica that
            was removed since, and by its successor.
        offset: The end of its log; what it wants comes next.
        last_epoch: Epoch of its last record; 0 when its log holds none.
        synced: Everything below is durable there.
        whole: No range of its log is damaged.
        wants: False: only a report of `synced`; the last fetch stands.
        known: The high watermark that an answer has told since it follows this leader (KIP-1166):
            one with nothing else need not be sent. None: no answer has come yet.
        settled: Its log holds no record, and everything before `offset` was committed: no unclean
            election has come between.
        dedup: Its dedup state of what was stored, ids and sequences; the node adds it as the
            fetch leaves. None: a node of an earlier version, that does not say.
    """

    node: NodeId
    boot: str
    number: int
    incarnation: str
    leader_epoch: int
    offset: int
    last_epoch: int
    synced: int
    whole: bool = True
    wants: bool = True
    known: int | None = None
    settled: bool = False
    version: int = 0
    dedup: DedupMark | None = None


class Frames(Struct, frozen=True, kw_only=True):
    """The two logs agree below `offset`; what follows there, and what is committed.

    Attributes:
        boot, number: Those of the fetch that this answers.
        offset: Offset of the first frame, or below: within one that compaction has made.
        upto: The leader's log end; as sent, the bytes decide how much of it there is.
        catching_up: The follower is outside the ISR: what it is sent has a budget.
        dedup_differs: The follower's dedup state is not the leader's, of what was stored below
            the follower's offset: it is to ask for the leader's dedup state.
    """

    boot: str
    number: int
    incarnation: str
    leader_epoch: int
    offset: int
    upto: int
    high_watermark: int
    log_start: int
    catching_up: bool = False
    dedup_differs: bool = False


class Diverged(Struct, frozen=True, kw_only=True):
    """The follower's log holds what the leader's does not.

    Attributes:
        epoch: The largest of the leader's log that is not above the follower's last.
        end_offset: End of that epoch at the leader, exclusive.
    """

    boot: str
    number: int
    incarnation: str
    leader_epoch: int
    epoch: int
    end_offset: int
    log_start: int


class OutOfRange(Struct, frozen=True, kw_only=True):
    """The follower's log ends below the start of the leader's, or is empty and begins elsewhere."""

    boot: str
    number: int
    incarnation: str
    leader_epoch: int
    log_start: int


class Refusal(Enum):
    """Why a fetch is not served."""

    OLDER_EPOCH = "the follower is behind: it follows an older epoch"
    NEWER_EPOCH = "the leader is behind: it does not know the epoch yet"
    NOT_LEADER = "this node does not lead the partition"
    NOT_REPLICA = "the follower has no replica of the partition"
    INCARNATION = "it is another stream of the same name"


class Refused(Struct, frozen=True, kw_only=True):
    """The fetch is not served. `leader_epoch` is the last one that the node knows."""

    boot: str
    number: int
    incarnation: str
    leader_epoch: int
    reason: Refusal


Answer = Frames | Diverged | OutOfRange | Refused


# For publishers and readers.


class Lead(Struct, frozen=True):
    """Subscribe, and take writes under this epoch from this offset on."""

    epoch: int
    next_offset: int


class StopReason(Enum):
    """Why a leader stops."""

    LEASE_ENDED = "its lease has ended"
    DEPOSED = "another node leads"
    RESIGNED = "it has resigned"
    STORAGE_FAILED = "its storage failed"


class Stop(Struct, frozen=True):
    """Unsubscribe, take no writes and send no acks, from now on.

    What waits for an ack is kept after `LEASE_ENDED`, for the same epoch may go on. After all else
    it is dropped: it is not known here whether it will be committed.
    """

    reason: StopReason


class Refusing(Enum):
    """Why a leader takes no writes though it stays subscribed."""

    NOTHING = "it takes writes"
    NOT_ENOUGH_REPLICAS = "fewer replicas than the stream's minimum are in sync"
    READ_ONLY = "the stream is read-only"


class Refuse(Struct, frozen=True):
    """Answer what is published with a nack, or (`NOTHING`) take it again."""

    reason: Refusing


class HighWatermark(Struct, frozen=True):
    """Everything up to and including `offset` is committed: readers may see it.

    A leader's acks of policy `all`, and of policy `leader`, are due up to there.
    """

    offset: int


class LeaderDurable(Struct, frozen=True):
    """Everything below `upto` is durable here: acks of policy `leader` are due below it."""

    upto: int


class InheritedAcks(Struct, frozen=True):
    """Records in [first, upto) came from the leaders before, and their acks were not seen sent.

    Their reply subjects are in them; their acks wait for the high watermark like any other.
    """

    first: int
    upto: int


# For the log.


class BeginEpoch(Struct, frozen=True):
    """Note that an epoch begins, durably before anything of it is appended: `EpochSaved`.

    Where others follow it is durable before `EpochSaved`.
    """

    epoch: int
    start_offset: int


class AppendFetched(Struct, frozen=True):
    """Append these frames of the answer that was handed in, and sync them by policy."""

    spans: tuple[Span, ...]


class Truncate(Struct, frozen=True):
    """Remove every frame with records at or above `upto`, and epochs that began above."""

    upto: int
    cuts: int


class Reset(Struct, frozen=True):
    """Remove everything; the log is to begin at `start`."""

    start: int
    cuts: int


class DeleteBefore(Struct, frozen=True):
    """Remove what the leader's retention has removed, as far as whole segments allow."""

    offset: int


class Patch(Struct, frozen=True):
    """Put these frames, as they came, in the place of the damaged range [first, upto).

    Void, and not reported, if the log has been cut since: `cuts` of them had been when it was said;
    or if retention has taken the range, or its beginning; or if the log cannot: that is retried.
    """

    first: int
    upto: int
    spans: tuple[Span, ...]
    cuts: int


class SaveHighWatermark(Struct, frozen=True):
    """Write both down durably before what follows: an unclean election has changed what counts.

    With a higher one of before, the next process would take this log for one that lacks records.
    """

    offset: int
    agreed_epoch: int


# For other nodes.


class SendFetch(Struct, frozen=True):
    """Tell the leader."""

    node: NodeId
    fetch: Fetch


class SendAnswer(Struct, frozen=True):
    """Tell the follower; `Frames` with the frames from its offset on, as many as there is room."""

    node: NodeId
    answer: Answer


class AskDedup(Struct, frozen=True):
    """Fetch the leader's dedup state of what was stored, if that is not under way already.

    When it has come, all below its offset is in this log, and it has been written down here:
    `DedupSaved`.
    """

    node: NodeId


class AskRange(Struct, frozen=True):
    """Ask a peer for the frames of a damaged range."""

    node: NodeId
    first: int
    upto: int


class SendRange(Struct, frozen=True):
    """Send a peer the frames that hold [first, upto), or the first of them.

    An empty range: there is none to be had.
    """

    node: NodeId
    first: int
    upto: int


# For the controller.


class ProposeIsr(Struct, frozen=True):
    """Propose another ISR; it is to be applied only if epoch, version and incarnation still hold.

    An ISR equal to the present one raises the version all the same: it takes earlier ones back.
    """

    number: int
    incarnation: str
    leader_epoch: int
    version: int
    isr: frozenset[NodeId]


class ReleaseLeadership(Struct, frozen=True):
    """This node leads no more under this epoch, or never will: elect again."""

    epoch: int
    reason: str


class RefreshMetadata(Struct, frozen=True):
    """Another node knows more than this node's metadata says."""


Ineligible: TypeAlias = Literal["", "failed", "hole", "diverged"]
"""Why a replica cannot lead: its disk failed, records are missing from its middle, or it lacks what
was committed; empty: it can."""


class Electable(Struct, frozen=True):
    """Eligibility of this replica as leader, and the reason for people."""

    ineligible: Ineligible = ""
    reason: str = ""


# For the operator.


class Finding(Enum):
    """Finding for an operator, each with a counter."""

    DIVERGED = "the leader's log lacks records that were committed here"
    COMMITTED_LOST = "the log ends below what was committed"
    UNCLEAN_LOSS = "an unclean election has cost committed records"
    SKIPPED = "the leader had deleted records before this replica had them"
    MISFIT = "frames came that do not follow the log"
    HOLE = "records cannot be read"
    HOLE_TAKEN = "an unclean election has taken for committed what cannot be read"


class Tell(Struct, frozen=True):
    """Log and count it; it is about records in [first, upto)."""

    finding: Finding
    first: int
    upto: int


Effect = (
    Lead | Stop | Refuse | HighWatermark | LeaderDurable | InheritedAcks
    | BeginEpoch | AppendFetched | Truncate | Reset | DeleteBefore | Patch | SaveHighWatermark
    | SendFetch | SendAnswer | AskDedup | AskRange | SendRange
    | ProposeIsr | ReleaseLeadership | RefreshMetadata | Electable | Tell
)  # fmt: skip


class LeaderAndIsr(Struct, frozen=True, kw_only=True):
    """One partition as the replicated metadata has it. It changes only as a whole.

    Attributes:
        incarnation: Incarnation of the stream; one that was recreated under its old name has
            another.
        version: Rises with every change of anything here.
        leader_epoch: Rises with every election.
        leader: None: no node may lead.
        isr: The in-sync replicas; the leader is one of them.
        replicas: In the order of preference; the ISR is taken from them.
        observers: Replicas that stay outside the ISR by choice.
        min_isr: In-sync replicas without which nothing is committed.
        joined: The version with which a node was added to the holders, empty; 0 for all others.
        unclean_epoch: The last epoch whose leader was not taken from the ISR; 0: there was none.
    """

    incarnation: str
    version: int
    leader_epoch: int
    leader: NodeId | None
    isr: frozenset[NodeId]
    replicas: tuple[NodeId, ...]
    observers: frozenset[NodeId] = frozenset()
    min_isr: int = 1
    read_only: bool = False
    unclean_epoch: int = 0
    joined: Mapping[NodeId, int] = field(default_factory=dict)

    def holds(self, node: NodeId) -> bool:
        return node in self.replicas or node in self.observers

    def holds_since(self, node: NodeId) -> int:
        """The version with which a node that has a replica got it."""
        return self.joined.get(node, 0)


# From the controller.


class LeaderAndIsrChanged(Struct, frozen=True):
    """The metadata says so now. Views are handed in as they are applied, in order."""

    view: LeaderAndIsr


class LeaseRenewed(Struct, frozen=True):
    """The node may lead until then, by its own monotonic clock.

    It is handed in only when everything that the controller had committed as it answered has been
    applied here: or a deposed leader would go on under a new lease, not knowing.
    """

    until_ns: int


class NodeLost(Struct, frozen=True):
    """The controller takes a node for dead: it need not be waited for."""

    node: NodeId


class StepDown(Struct, frozen=True):
    """Lead no more under this epoch: another node is to take over, or this one is shut down."""


class Outcome(Enum):
    """Result of a proposal."""

    COMMITTED = "committed"
    STALE = "the partition has changed since"
    DEPOSED = "another epoch, or another incarnation"
    REFUSED = "a member is not fit"
    LOST = "not known"


class IsrAnswered(Struct, frozen=True):
    """An answer to `ProposeIsr` of that epoch and number."""

    leader_epoch: int
    number: int
    outcome: Outcome


# From the log.


class Submitted(Struct, frozen=True):
    """The leader has handed records to the log's writer; they will end at `upto`."""

    upto: int


class Written(Struct, frozen=True):
    """Everything below `upto` can be read from the log."""

    upto: int
    cuts: int = 0


class Synced(Struct, frozen=True):
    """Everything below `upto` is as durable as the stream's policy asks, and can be read."""

    upto: int
    cuts: int = 0


class EpochSaved(Struct, frozen=True):
    """`BeginEpoch` is durable."""

    epoch: int


class Truncated(Struct, frozen=True):
    """`Truncate` is done; the log ends at `upto`, at most where it was asked to.

    All that is left is durable: what was written before may have been synced while the cut was
    waited for, and its `Synced` is of the log as it was before.
    """

    upto: int
    cuts: int


class WasReset(Struct, frozen=True):
    """`Reset` is done and durable: the log is empty and begins at `start`."""

    start: int
    cuts: int


class LogStartMoved(Struct, frozen=True):
    """Retention: `start` is the first offset that is kept."""

    start: int


class StorageFailed(Struct, frozen=True):
    """The log takes no writes until it is opened again."""

    reason: str


class RangeCorrupt(Struct, frozen=True):
    """Records in [first, upto) cannot be read."""

    first: int
    upto: int


class RangePatched(Struct, frozen=True):
    """`Patch` is done and durable; records in [first, upto) can be read again."""

    first: int
    upto: int
    cuts: int


# From other replicas.


class FetchCame(Struct, frozen=True):
    """A follower asks, or reports.

    Attributes:
        dedup_agrees: Whether its dedup state is this node's of the same records, and
            a start would find it again there; None: not known, or not said.
    """

    fetch: Fetch
    dedup_agrees: bool | None = None


class AnswerCame(Struct, frozen=True):
    """The leader answers. `spans` are the frames that came with it, whole and checked."""

    answer: Answer
    spans: tuple[Span, ...] = ()


class AnswerLost(Struct, frozen=True):
    """The connection is gone, or no answer came: ask again."""


class DedupSaved(Struct, frozen=True):
    """The leader's dedup state is durable here too (`AskDedup`)."""


class RangeAsked(Struct, frozen=True):
    """Another replica wants the frames of a range that it lost."""

    node: NodeId
    first: int
    upto: int


class RangeCame(Struct, frozen=True):
    """Frames for a damaged range, or for its beginning; none: that peer cannot help."""

    node: NodeId
    first: int
    upto: int
    spans: tuple[Span, ...] = ()


class Ticked(Struct, frozen=True):
    """`next_deadline_ns` has come."""


Event = (
    LeaderAndIsrChanged | LeaseRenewed | NodeLost | StepDown | IsrAnswered
    | Submitted | Written | Synced | EpochSaved | Truncated | WasReset | LogStartMoved
    | StorageFailed | RangeCorrupt | RangePatched
    | FetchCame | AnswerCame | AnswerLost | DedupSaved | RangeAsked | RangeCame | Ticked
)  # fmt: skip


_MS: Final = 1_000_000


class ReplicationSettings(Struct, frozen=True, kw_only=True):
    """Replication settings of one cluster.

    Attributes:
        replica_lag_ns: Nanoseconds that a member of the ISR may lack records before it has to
            leave.
        retry_ns: Delay before an ISR is proposed again, or a leader that refused is asked again.
        patch_retry_ns: Delay before a damaged range is requested again that should have been
            filled: the log does not report that it could not.
        dedup_retry_ns: Delay before the leader's dedup state is requested again.
    """

    replica_lag_ns: int = 1500 * _MS
    retry_ns: int = 50 * _MS
    patch_retry_ns: int = 10_000 * _MS
    dedup_retry_ns: int = 1000 * _MS

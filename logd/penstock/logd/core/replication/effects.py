"""What a replica wants done, in order.

What changes the log is for its one writer, which keeps the order: `BeginEpoch`, `AppendFetched`,
`Truncate`, `Reset`, `DeleteBefore`, `Patch`, `SaveHighWatermark`.
"""

from dataclasses import dataclass
from enum import Enum

from penstock.logd.core.node import NodeId
from penstock.logd.core.replication.messages import Answer, Fetch, Span

# For publishers and readers.


@dataclass(frozen=True, slots=True)
class Lead:
    """Subscribe, and take writes under this epoch from this offset on."""

    epoch: int
    next_offset: int


class StopReason(Enum):
    """Why a leader stops."""

    LEASE_ENDED = "its lease has ended"
    DEPOSED = "another node leads"
    RESIGNED = "it has resigned"
    STORAGE_FAILED = "its storage failed"


@dataclass(frozen=True, slots=True)
class Stop:
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


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer what is published with a nack, or (`NOTHING`) take it again."""

    reason: Refusing


@dataclass(frozen=True, slots=True)
class HighWatermark:
    """Everything up to and including `offset` is committed: readers may see it.

    A leader's acks of policy `all`, and of policy `leader`, are due up to there.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class LeaderDurable:
    """Everything below `upto` is durable here: acks of policy `leader` are due below it."""

    upto: int


@dataclass(frozen=True, slots=True)
class Inherited:
    """Records in [first, upto) came from the leaders before, and their acks were not seen sent.

    Their reply subjects are in them; their acks wait for the high watermark like any other.
    """

    first: int
    upto: int


# For the log.


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Note durably that an epoch begins, before anything of it is appended: `EpochSaved`."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append these frames of the answer that was handed in, and sync them by policy."""

    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Remove every frame with records at or above `upto`, and epochs that began above."""

    upto: int
    cuts: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Remove everything; the log is to begin at `start`."""

    start: int
    cuts: int


@dataclass(frozen=True, slots=True)
class DeleteBefore:
    """Remove what the leader's retention has removed, as far as whole segments allow."""

    offset: int


@dataclass(frozen=True, slots=True)
class Patch:
    """Put these frames, as they came, in the place of the damaged range [first, upto).

    Void, and not reported, if the log has been cut since: `cuts` of them had been when it was said;
    or if retention has taken the range, or its beginning; or if the log cannot: that is retried.
    """

    first: int
    upto: int
    spans: tuple[Span, ...]
    cuts: int


@dataclass(frozen=True, slots=True)
class SaveHighWatermark:
    """Write both down durably before what follows: an unclean election has changed what counts.

    With a higher one of before, the next process would take this log for one that lacks records.
    """

    offset: int
    agreed_epoch: int


# For other nodes.


@dataclass(frozen=True, slots=True)
class SendFetch:
    """Tell the leader."""

    node: NodeId
    fetch: Fetch


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """Tell the follower; `Frames` with the frames from its offset on, as many as there is room."""

    node: NodeId
    answer: Answer


@dataclass(frozen=True, slots=True)
class AskDedup:
    """Ask the leader for what it remembers of what was stored, if that is not under way already.

    When it has come, all below its offset is in this log, and it has been written down here:
    `DedupSaved`.
    """

    node: NodeId


@dataclass(frozen=True, slots=True)
class AskRange:
    """Ask a peer for the frames of a damaged range."""

    node: NodeId
    first: int
    upto: int


@dataclass(frozen=True, slots=True)
class SendRange:
    """Send a peer the frames that hold [first, upto), or the first of them.

    An empty range: there is none to be had.
    """

    node: NodeId
    first: int
    upto: int


# For the controller.


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Propose another ISR; it is to be applied only if epoch, version and incarnation still hold.

    An ISR equal to the present one raises the version all the same: it takes earlier ones back.
    """

    number: int
    incarnation: str
    leader_epoch: int
    version: int
    isr: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class Resign:
    """This node leads no more under this epoch, or never will: elect again."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class RefreshMetadata:
    """Somebody knows more than this node's metadata says."""


@dataclass(frozen=True, slots=True)
class Electable:
    """Whether this replica may be elected: it has no hole and lost nothing committed."""

    electable: bool
    reason: str = ""


# For the operator.


class Finding(Enum):
    """What an operator is told, each with a counter."""

    DIVERGED = "the leader's log lacks records that were committed here"
    COMMITTED_LOST = "the log ends below what was committed"
    UNCLEAN_LOSS = "an unclean election has cost committed records"
    SKIPPED = "the leader had deleted records before this replica had them"
    MISFIT = "frames came that do not follow the log"
    HOLE = "records cannot be read"
    HOLE_TAKEN = "an unclean election has taken for committed what cannot be read"


@dataclass(frozen=True, slots=True)
class Tell:
    """Log and count it; it is about records in [first, upto)."""

    finding: Finding
    first: int
    upto: int


Effect = (
    Lead | Stop | Refuse | HighWatermark | LeaderDurable | Inherited
    | BeginEpoch | AppendFetched | Truncate | Reset | DeleteBefore | Patch | SaveHighWatermark
    | SendFetch | SendAnswer | AskDedup | AskRange | SendRange
    | ProposeIsr | Resign | RefreshMetadata | Electable | Tell
)  # fmt: skip

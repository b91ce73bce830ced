"""What can happen to a replica.

What is about the log says how often that had been cut when it happened (`cuts`): reports that come
late, from before a truncation, are about records that are gone.
"""

from dataclasses import dataclass
from enum import Enum

from penstock.logd.core.node import NodeId
from penstock.logd.core.replication.messages import Answer, Fetch, Span
from penstock.logd.core.replication.view import View

# From the controller.


@dataclass(frozen=True, slots=True)
class Viewed:
    """The metadata says so now. Views are handed in as they are applied, in order."""

    view: View


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The node may lead until then, by its own monotonic clock.

    It is handed in only when everything that the controller had committed as it answered has been
    applied here: or a deposed leader would go on under a new lease, not knowing.
    """

    until_ns: int


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The controller takes a node for dead: it need not be waited for."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class StepDown:
    """Lead no more under this epoch: another node is to take over, or this one is shut down."""


class Outcome(Enum):
    """What became of a proposal."""

    COMMITTED = "committed"
    STALE = "the partition has changed since"
    DEPOSED = "another epoch, or another incarnation"
    REFUSED = "a member is not fit"
    LOST = "not known"


@dataclass(frozen=True, slots=True)
class IsrAnswered:
    """An answer to `ProposeIsr` of that epoch and number."""

    leader_epoch: int
    number: int
    outcome: Outcome


# From the log.


@dataclass(frozen=True, slots=True)
class Submitted:
    """The leader has handed records to the log's writer; they will end at `upto`."""

    upto: int


@dataclass(frozen=True, slots=True)
class Written:
    """Everything below `upto` can be read from the log."""

    upto: int
    cuts: int = 0


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything below `upto` is as durable as the stream's policy asks, and can be read."""

    upto: int
    cuts: int = 0


@dataclass(frozen=True, slots=True)
class EpochSaved:
    """`BeginEpoch` is durable."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """`Truncate` is done; the log ends at `upto`, at most where it was asked to.

    All that is left is durable: what was written before may have been synced while the cut was
    waited for, and its `Synced` is of the log as it was before.
    """

    upto: int
    cuts: int


@dataclass(frozen=True, slots=True)
class WasReset:
    """`Reset` is done and durable: the log is empty and begins at `start`."""

    start: int
    cuts: int


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """Retention: `start` is the first offset that is kept."""

    start: int


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """The log takes no writes until it is opened again."""

    reason: str


@dataclass(frozen=True, slots=True)
class RangeCorrupt:
    """Records in [first, upto) cannot be read."""

    first: int
    upto: int


@dataclass(frozen=True, slots=True)
class RangePatched:
    """`Patch` is done and durable; records in [first, upto) can be read again."""

    first: int
    upto: int
    cuts: int


# From other replicas.


@dataclass(frozen=True, slots=True)
class FetchCame:
    """A follower asks, or reports.

    Attributes:
        dedup_agrees: Whether what it remembers is what this node remembers of the same records, and
            a start would find it again there; None: not known, or not said.
    """

    fetch: Fetch
    dedup_agrees: bool | None = None


@dataclass(frozen=True, slots=True)
class AnswerCame:
    """The leader answers. `spans` are the frames that came with it, whole and checked."""

    answer: Answer
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerLost:
    """The connection is gone, or no answer came: ask again."""


@dataclass(frozen=True, slots=True)
class DedupSaved:
    """What the leader remembers is remembered here too, durably (`AskDedup`)."""


@dataclass(frozen=True, slots=True)
class RangeAsked:
    """Another replica wants the frames of a range that it lost."""

    node: NodeId
    first: int
    upto: int


@dataclass(frozen=True, slots=True)
class RangeCame:
    """Frames for a damaged range, or for its beginning; none: that peer cannot help."""

    node: NodeId
    first: int
    upto: int
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Ticked:
    """`next_deadline_ns` has come."""


Event = (
    Viewed | LeaseRenewed | NodeLost | StepDown | IsrAnswered
    | Submitted | Written | Synced | EpochSaved | Truncated | WasReset | LogStartMoved
    | StorageFailed | RangeCorrupt | RangePatched
    | FetchCame | AnswerCame | AnswerLost | DedupSaved | RangeAsked | RangeCame | Ticked
)  # fmt: skip

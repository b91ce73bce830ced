"""What replicas of one partition say to each other.

A follower pulls: it says where its log ends and which epoch its last record is of, and the leader
answers with frames from there, or says how far back the two logs may agree. There is no separate
question about epochs (KIP-595's form of KIP-101 and KIP-279).
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.logd.core.dedup import DedupMark
from penstock.logd.core.node import NodeId


class Span(NamedTuple):
    """One frame without its bytes: records in [base_offset, next_offset) of one epoch."""

    base_offset: int
    next_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A follower's state, and its wish for what follows.

    Attributes:
        node: The follower.
        boot: Of its process, different with each start.
        number: Rises while the process lives; an older one that comes later is not looked at.
        leader_epoch: The one it follows.
        version: Of the view that it follows: what a replica said that was removed since, and whose
            node got another one, is told apart by it.
        offset: The end of its log; what it wants comes next.
        last_epoch: Of its last record; 0 when its log holds none.
        synced: Everything below is durable there.
        whole: No range of its log is damaged.
        wants: False: only a report of `synced`; the last wish stands.
        known: The high watermark that an answer has told since it follows this leader (KIP-1166):
            one with nothing else need not be sent. None: no answer has come yet.
        settled: Its log holds no record, and everything before `offset` was committed: no unclean
            election has come between.
        dedup: What it remembers of what was stored, ids and sequences; the node adds it as the
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """The two logs agree below `offset`; what follows there, and what is committed.

    Attributes:
        boot, number: Of the fetch that this answers.
        offset: Where the frames begin, or below: in the midst of one that compaction has made.
        upto: The leader's log end; as sent, the bytes decide how much of it there is.
        catching_up: The follower is outside the ISR: what it is sent has a budget.
        dedup_differs: The follower does not remember what the leader does, of what was stored below
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """The follower's log holds what the leader's does not.

    Attributes:
        epoch: The largest of the leader's log that is not above the follower's last.
        end_offset: Where that epoch ends there, exclusive.
    """

    boot: str
    number: int
    incarnation: str
    leader_epoch: int
    epoch: int
    end_offset: int
    log_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The fetch is not served. `leader_epoch` is the last one that the node knows."""

    boot: str
    number: int
    incarnation: str
    leader_epoch: int
    reason: Refusal


Answer = Frames | Diverged | OutOfRange | Refused

"""What members say to each other.

Every message names its group, sender, recipient and the sender's term. Any of them may be lost,
repeated, delayed or overtaken by another; none may be changed on the way.
"""

from dataclasses import dataclass

from penstock.logd.core.node import NodeId
from penstock.logd.core.raft.entries import Entry
from penstock.logd.core.raft.membership import Membership


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a vote in the message's term.

    Attributes:
        pre: It only asks whether it would get one; the message's term is then the one after its
            own (dissertation 9.6).
        transfer: The leader told it to; the lease of followers does not hold then (3.10).
        last_index, last_term: Of its log's last entry.
    """

    pre: bool
    transfer: bool
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """The answer. For a granted pre-vote the message's term is the one that was asked for."""

    pre: bool
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Entries that follow on entry `previous_index`, which is of `previous_term`; maybe none.

    Attributes:
        commit: The leader's commit index.
    """

    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """The log is the leader's up to and including `index`, durably."""

    index: int


@dataclass(frozen=True, slots=True)
class AppendRejection:
    """Entry `previous_index` is missing or of another term.

    Attributes:
        hint_index, hint_term: The last entry, at or before `previous_index`, that may be the
            leader's too.
    """

    previous_index: int
    hint_index: int
    hint_term: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The leader lives.

    Attributes:
        commit: Its commit index, but not beyond what the recipient has acknowledged.
        round: Number of this heartbeat in its term; the answer repeats it.
    """

    commit: int
    round: int


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """At the time of heartbeat `round` the sender knew of no later term; 0: it knows of one."""

    round: int


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A part of the snapshot of the first `index` entries, from byte `offset` of `total_bytes`."""

    index: int
    index_term: int
    membership: Membership
    total_bytes: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotResponse:
    """The first `offset` bytes of the snapshot of `index` have come."""

    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A follower asks for a read index.

    Attributes:
        number: Chosen by the follower; the answer repeats it.
    """

    number: int


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """A state that has `index` applied shows everything committed before the request was made."""

    number: int
    index: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader tells the recipient to become its successor, at once."""


Body = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | AppendRejection
    | Heartbeat
    | HeartbeatResponse
    | SnapshotChunk
    | SnapshotResponse
    | ReadRequest
    | ReadResponse
    | TimeoutNow
)

LeaderBody = AppendRequest | Heartbeat | SnapshotChunk
"""What only the leader of the message's term sends."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        group: The group's identity; a message of another group is never acted on.
        disk: The sender's directory id; empty: it has none.
        recipient_disk: The recipient's as the sender's membership notes it; empty: it does not.
    """

    group: str
    sender: NodeId
    recipient: NodeId
    term: int
    body: Body
    disk: str = ""
    recipient_disk: str = ""

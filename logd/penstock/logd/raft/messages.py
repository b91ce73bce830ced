"""Messages between Raft members, and the events and effects of one.

Every message names its group, sender, recipient and the sender's term. Any of them may be lost,
repeated, delayed or overtaken by another; none may be changed on the way.

What goes into a member (`Event`) and what comes out (`Effect`).

The order of effects is the order to act in: `Persist` first, then `Send`, then the rest. Acting on
`Persist` may take its time: sends and everything else go on meanwhile, and what must not leave
before it is durable is only sent after `Persisted`.
"""

from enum import IntEnum
from typing import Final

from msgspec import Struct

from penstock.logd.errors import DATA_LOST, HaltCause, LogdError, UnavailableError
from penstock.logd.raft.membership import Membership, MembershipChange
from penstock.logd.replication.events import NodeId

FOUNDING_ENTRIES: Final = 1
"""Entries that the initial members of a group begin with."""

ENTRY_OVERHEAD_BYTES: Final = 32
"""Bytes that an entry counts beside its data, so that many empty ones are bounded too."""


class EntryKind(IntEnum):
    """Purpose of an entry; the numbers are part of the formats on disk and wire."""

    COMMAND = 0
    """Opaque bytes for the state machine."""

    NOOP = 1
    """The first entry of a leader's term: it commits what earlier terms left."""

    MEMBERSHIP = 2
    """A whole new membership, in force from where it stands in the log."""


class Entry(Struct, frozen=True):
    """One entry of the log. Index and term begin at 1."""

    index: int
    term: int
    kind: EntryKind
    data: bytes = b""

    @property
    def size(self) -> int:
        """Bytes it counts in every bound."""
        return len(self.data) + ENTRY_OVERHEAD_BYTES


class HardState(Struct, frozen=True):
    """State that must be durable before a vote, an ack or a vote request of `term` leaves.

    Attributes:
        vote: The candidate that this member voted for in `term`.
    """

    term: int = 0
    vote: NodeId | None = None


class Snapshot(Struct, frozen=True):
    """The state machine after entry `index`, and the membership in force there."""

    index: int
    term: int
    membership: Membership
    data: bytes


class Recovered(Struct, frozen=True):
    """State on a member's disk at its start.

    Attributes:
        snapshot: None while nothing was compacted.
        entries: Entries after the snapshot, without gaps.
    """

    hard_state: HardState = HardState()
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()


def initial_state(membership: Membership) -> Recovered:
    """Return the first state of each founding member of a new group.

    All of them begin with the same first entry, so that it counts as replicated. A node that joins
    later starts with nothing (`Recovered()`) and gets this entry from the leader.
    """
    founding = Entry(1, 1, EntryKind.MEMBERSHIP, membership.encode())
    return Recovered(HardState(term=1), None, (founding,))


class VoteRequest(Struct, frozen=True):
    """A candidate asks for a vote in the message's term.

    Attributes:
        pre: It only asks whether it would get one; the message's term is then the one after its
            own (dissertation 9.6).
        transfer: The leader asked it to; the lease of followers does not hold then (3.10).
        last_index, last_term: Those of its log's last entry.
    """

    pre: bool
    transfer: bool
    last_index: int
    last_term: int


class VoteResponse(Struct, frozen=True):
    """The answer. For a granted pre-vote the message's term is the one that was asked for."""

    pre: bool
    granted: bool


class AppendRequest(Struct, frozen=True):
    """Entries that follow on entry `previous_index`, which is of `previous_term`; maybe none.

    Attributes:
        commit: The leader's commit index.
    """

    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendResponse(Struct, frozen=True):
    """The log is the leader's up to and including `index`, durably."""

    index: int


class AppendRejection(Struct, frozen=True):
    """Entry `previous_index` is missing or of another term.

    Attributes:
        hint_index, hint_term: The last entry, at or before `previous_index`, that may be the
            leader's too.
    """

    previous_index: int
    hint_index: int
    hint_term: int


class Heartbeat(Struct, frozen=True):
    """The leader lives.

    Attributes:
        commit: Its commit index, but not beyond what the recipient has acknowledged.
        round: Number of this heartbeat in its term; the answer repeats it.
    """

    commit: int
    round: int


class HeartbeatResponse(Struct, frozen=True):
    """Answer that the sender knew of no later term at heartbeat `round`; 0: it knows of one."""

    round: int


class SnapshotChunk(Struct, frozen=True):
    """A part of the snapshot of the first `index` entries, from byte `offset` of `total_bytes`."""

    index: int
    index_term: int
    membership: Membership
    total_bytes: int
    offset: int
    data: bytes


class SnapshotResponse(Struct, frozen=True):
    """The first `offset` bytes of the snapshot of `index` have come."""

    index: int
    offset: int


class ReadRequest(Struct, frozen=True):
    """A follower asks for a read index.

    Attributes:
        number: Chosen by the follower; the answer repeats it.
    """

    number: int


class ReadResponse(Struct, frozen=True):
    """A state that has `index` applied shows everything committed before the request was made."""

    number: int
    index: int


class TimeoutNow(Struct, frozen=True):
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
"""Messages that only the leader of the message's term sends."""


class Message(Struct, frozen=True):
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


MILLISECOND: Final = 1_000_000


class RaftConfig(Struct, frozen=True, kw_only=True):
    """One member's settings. Times in nanoseconds; all members should have the same.

    Attributes:
        node: This member. A name is used for one life: a member that lost its disk returns under
            another one, because its votes and acks are forgotten and must not be repeated.
        disk: Id of the directory that holds its state, made with it, of letters and digits; empty:
            the group's members have none, and a lost disk is not noticed.
        group: The group's identity, made when it is founded.
        election_timeout_min_ns, election_timeout_max_ns: A follower waits a random time between
            them for its leader; it refuses others its vote for the least of them.
        heartbeat_ns: Between two heartbeats.
        clock_drift: Fraction by which another clock may run faster than the leader's.
        append_bytes_max: Maximum bytes of the entries in one message; one larger entry goes alone.
        inflight_messages_max, inflight_bytes_max: Sent to a follower and not yet answered.
        entry_bytes_max: Maximum bytes of one proposal's data.
        uncommitted_bytes_max: Maximum bytes of proposals that are not committed.
        apply_bytes_max: Maximum bytes of the entries in one `Apply`.
        reads_max: Reads that wait, each of this member's and those forwarded to it.
        snapshot_chunk_bytes: Bytes of a snapshot in one message; one message at a time is in flight
            to a follower.
        snapshot_bytes_max: Maximum bytes of a snapshot; a larger one is not accepted from a leader.
        snapshot_entries, snapshot_log_bytes: Applied since the last snapshot before one is wanted;
            as many bytes at least as that snapshot has. A start applies what came after it: with
            thousands of streams each start adds a megabyte of elections.
        entries_kept: Left in memory behind a snapshot, for followers that are a little behind.
        promotion_lag_max: Entries that a learner may lack when it is promoted.
    """

    node: NodeId
    group: str
    disk: str = ""
    election_timeout_min_ns: int = 400 * MILLISECOND
    election_timeout_max_ns: int = 800 * MILLISECOND
    heartbeat_ns: int = 100 * MILLISECOND
    clock_drift: float = 0.1
    append_bytes_max: int = 256 * 1024
    inflight_messages_max: int = 64
    inflight_bytes_max: int = 4 * 1024 * 1024
    entry_bytes_max: int = 1024 * 1024
    uncommitted_bytes_max: int = 16 * 1024 * 1024
    apply_bytes_max: int = 1024 * 1024
    reads_max: int = 1024
    snapshot_chunk_bytes: int = 256 * 1024
    snapshot_bytes_max: int = 256 * 1024 * 1024
    snapshot_entries: int = 10_000
    snapshot_log_bytes: int = 1024 * 1024
    entries_kept: int = 1000
    promotion_lag_max: int = 1000

    def __post_init__(self) -> None:
        """Settings that contradict each other are a bug of the caller."""
        assert 0 < self.heartbeat_ns < self.election_timeout_min_ns <= self.election_timeout_max_ns
        assert min(self.append_bytes_max, self.snapshot_chunk_bytes, self.apply_bytes_max) > 0
        assert min(self.inflight_messages_max, self.inflight_bytes_max) > 0
        assert 0 <= self.clock_drift < 1


class NotLeaderError(UnavailableError):
    """Another member leads, or none; ask that one.

    Attributes:
        leader: None when this member knows of none.
    """

    def __init__(self, leader: NodeId | None) -> None:
        self.leader = leader
        super().__init__(f"this node does not lead; {leader or 'no node'} does")


class BusyError(UnavailableError):
    """A bound is reached, or something else must end first; the same will be done later."""


class HaltedError(UnavailableError):
    """This member takes no part until an operator has acted."""


class Started(Struct, frozen=True):
    """The first event: it sets the clock."""


class Woke(Struct, frozen=True):
    """`next_deadline_ns` has come; any other event does as well."""


class Received(Struct, frozen=True):
    """A message came. Its sender is who it says: the transport has made sure."""

    message: Message


class Persisted(Struct, frozen=True):
    """Every `Persist` up to this number is durable."""

    number: int


class Halt(Struct, frozen=True):
    """Halt of a member, which takes no further part.

    Attributes:
        reason: A sentence for the operator.
    """

    cause: HaltCause
    reason: str


def data_lost(reason: str) -> Halt:
    """The halt of a member whose disk lacks what it has acknowledged."""
    return Halt(HaltCause.DATA_LOST, f"{DATA_LOST}: {reason}")


class MustHalt(Struct, frozen=True):
    """This member can take no further part: what is durable is unknown, for example."""

    halt: Halt


class Propose(Struct, frozen=True):
    """Append a command. Answered by `Accepted` or `Refused` with the same tag."""

    tag: int
    data: bytes


class ChangeMembership(Struct, frozen=True):
    """Append a membership. Answered by `Accepted` or `Refused` with the same tag."""

    tag: int
    change: MembershipChange


class TransferLeadership(Struct, frozen=True):
    """Hand the leadership to a voter. Answered by `LeaderChanged`, or `Refused` with the tag."""

    tag: int
    target: NodeId


class Read(Struct, frozen=True):
    """Ask for a linearizable read. Answered by `ReadReady` or `Refused` with the same tag."""

    tag: int


class SnapshotTaken(Struct, frozen=True):
    """The state machine was written down as it was after entry `index`, which was applied."""

    index: int
    data: bytes


Event = (
    Started
    | Woke
    | Received
    | Persisted
    | MustHalt
    | Propose
    | ChangeMembership
    | TransferLeadership
    | Read
    | SnapshotTaken
)


class Persist(Struct, frozen=True):
    """Make all of this durable, in order, then answer `Persisted(number)`.

    Attributes:
        number: Number of the step, from 1, one more each time.
        hard_state: None: unchanged.
        snapshot: None: none new.
        installed: The snapshot came from the leader and replaces the log: no entry that is stored
            stays, neither before nor after its index.
        entries: Without gaps; stored entries at and after the first of them go. They stand after
            the snapshot.
    """

    number: int
    hard_state: HardState | None
    snapshot: Snapshot | None
    installed: bool
    entries: tuple[Entry, ...]


class Send(Struct, frozen=True):
    """Give a message to the transport; it may be lost."""

    message: Message


class Restore(Struct, frozen=True):
    """Replace the state machine's state."""

    snapshot: Snapshot


class Apply(Struct, frozen=True):
    """Committed entries, in order, each once: commands for the state machine, and the others."""

    entries: tuple[Entry, ...]


class Accepted(Struct, frozen=True):
    """The proposal became entry `index` of `term`; it is committed if `Apply` shows it there.

    When `Apply` or `Restore` passes `index` with another term, it is lost for good.
    """

    tag: int
    index: int
    term: int


class Refused(Struct, frozen=True):
    """Refusal; the error's class says who must act. `NotLeaderError` names the leader."""

    tag: int
    error: LogdError


class ReadReady(Struct, frozen=True):
    """The state machine, with every `Apply` so far, may answer the read."""

    tag: int


class LeaderChanged(Struct, frozen=True):
    """Leader of a term, as far as this member knows; itself included."""

    term: int
    leader: NodeId | None


class MembershipChanged(Struct, frozen=True):
    """The membership in force, or its state, changed.

    Attributes:
        index: The entry that it stands in.
        committed: False: it may still go again.
    """

    index: int
    membership: Membership
    committed: bool


class SnapshotWanted(Struct, frozen=True):
    """The log since the last snapshot is long: take one of what is applied, when convenient."""


class Ignored(Struct, frozen=True):
    """A message was not acted on because its sender, or what it says, is not ours; count it."""

    sender: NodeId
    reason: str


class Halted(Struct, frozen=True):
    """This member takes no further part until an operator has acted."""

    halt: Halt


Effect = (
    Persist
    | Send
    | Restore
    | Apply
    | Accepted
    | Refused
    | ReadReady
    | LeaderChanged
    | MembershipChanged
    | SnapshotWanted
    | Ignored
    | Halted
)

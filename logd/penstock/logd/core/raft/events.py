"""What goes into a member (`Event`) and what comes out (`Effect`).

The order of effects is the order to act in: `Persist` first, then `Send`, then the rest. Acting on
`Persist` may take its time: sends and everything else go on meanwhile, and what must not leave
before it is durable is only sent after `Persisted`.
"""

from dataclasses import dataclass

from penstock.logd.core.node import NodeId
from penstock.logd.core.raft.entries import Entry, HardState, Snapshot
from penstock.logd.core.raft.membership import Membership, MembershipChange
from penstock.logd.core.raft.messages import Message
from penstock.logd.errors import LogdError


@dataclass(frozen=True, slots=True)
class Started:
    """The first event: it sets the clock."""


@dataclass(frozen=True, slots=True)
class Woke:
    """`next_deadline_ns` has come; any other event does as well."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message came. Its sender is who it says: the transport has made sure."""

    message: Message


@dataclass(frozen=True, slots=True)
class Persisted:
    """Every `Persist` up to this number is durable."""

    number: int


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """What is durable is unknown or not what was promised: this member takes no further part."""

    reason: str


@dataclass(frozen=True, slots=True)
class Propose:
    """Append a command. Answered by `Accepted` or `Refused` with the same tag."""

    tag: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ChangeMembership:
    """Append a membership. Answered by `Accepted` or `Refused` with the same tag."""

    tag: int
    change: MembershipChange


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Hand the leadership to a voter. Answered by `LeaderChanged`, or `Refused` with the tag."""

    tag: int
    target: NodeId


@dataclass(frozen=True, slots=True)
class Read:
    """Ask for a linearizable read. Answered by `ReadReady` or `Refused` with the same tag."""

    tag: int


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The state machine was written down as it was after entry `index`, which was applied."""

    index: int
    data: bytes


Event = (
    Started
    | Woke
    | Received
    | Persisted
    | StorageFailed
    | Propose
    | ChangeMembership
    | TransferLeadership
    | Read
    | SnapshotTaken
)


@dataclass(frozen=True, slots=True)
class Persist:
    """Make all of this durable, in order, then answer `Persisted(number)`.

    Attributes:
        number: From 1, one more each time.
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


@dataclass(frozen=True, slots=True)
class Send:
    """Give a message to the transport; it may be lost."""

    message: Message


@dataclass(frozen=True, slots=True)
class Restore:
    """Replace the state machine's state."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Apply:
    """Committed entries, in order, each once: commands for the state machine, and the others."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The proposal became entry `index` of `term`; it is committed if `Apply` shows it there.

    When `Apply` or `Restore` passes `index` with another term, it is lost for good.
    """

    tag: int
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Not done, and why; the error's class says who must act. `NotLeaderError` names the leader."""

    tag: int
    error: LogdError


@dataclass(frozen=True, slots=True)
class ReadReady:
    """The state machine, with every `Apply` so far, may answer the read."""

    tag: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Who leads, as far as this member knows; itself included."""

    term: int
    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """The membership in force, or its state, changed.

    Attributes:
        index: The entry that it stands in.
        committed: False: it may still go again.
    """

    index: int
    membership: Membership
    committed: bool


@dataclass(frozen=True, slots=True)
class SnapshotWanted:
    """The log since the last snapshot is long: take one of what is applied, when convenient."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message was not acted on because its sender, or what it says, is not ours; count it."""

    sender: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class Halted:
    """This member takes no further part until an operator has acted."""

    reason: str


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

"""What happens to the controller, and what it wants done."""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.logd.core.cluster.commands import Command
from penstock.logd.core.cluster.heartbeats import Heartbeat, HeartbeatAnswer, HeartbeatRefusal
from penstock.logd.core.cluster.records import NodeId, PartitionKey
from penstock.logd.core.cluster.state import ClusterState, Result


@dataclass(frozen=True, slots=True)
class BecameController:
    """This node leads the metadata group and has applied everything from before its election.

    Attributes:
        state: What commands are applied to from now on.
        elected_ns: When it was elected, by the monotonic clock; no one answered heartbeats in an
            earlier term after that.
    """

    state: ClusterState
    elected_ns: int


@dataclass(frozen=True, slots=True)
class LostController:
    """This node leads the metadata group no more.

    Told before `BecameController` of another term, too: what an earlier term knew of heartbeats is
    not to be acted on.
    """


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A node's heartbeat.

    Attributes:
        raft_lease_until_ns: Until then no other node can be elected, by this node's clock.
    """

    heartbeat: Heartbeat
    raft_lease_until_ns: int


@dataclass(frozen=True, slots=True)
class CommandApplied:
    """A command was applied to the state.

    Attributes:
        proposal: Number of the proposal it came from, if it was this controller's.
    """

    command: Command
    result: Result
    proposal: int | None = None


@dataclass(frozen=True, slots=True)
class ProposalDropped:
    """A proposal is over: it was applied, or is not in the log and never will be.

    Not needed where `CommandApplied` names the proposal.
    """

    proposal: int


@dataclass(frozen=True, slots=True)
class UncleanElectionAsked:
    """An operator wants a leader at any price."""

    key: PartitionKey


@dataclass(frozen=True, slots=True)
class RebalanceAsked:
    """An operator wants leaderships evened out now."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `next_deadline_ns` named has come."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Propose a command; `CommandApplied` with its number, or `ProposalDropped`, follows."""

    proposal: int
    command: Command


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a node's heartbeat."""

    node: NodeId
    answer: HeartbeatAnswer | HeartbeatRefusal


ControllerEvent: TypeAlias = (
    BecameController
    | LostController
    | HeartbeatReceived
    | CommandApplied
    | ProposalDropped
    | UncleanElectionAsked
    | RebalanceAsked
    | Tick
)
ControllerEffect: TypeAlias = Propose | Answer

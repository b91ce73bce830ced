"""What happens to the coordinator of consumer groups, and what it wants done."""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.logd.core.cluster.commands import Command, PutGroup
from penstock.logd.core.cluster.group_messages import MemberAnswer, MemberBeat
from penstock.logd.core.cluster.state import ClusterState, Result


@dataclass(frozen=True, slots=True)
class BecameCoordinator:
    """As `BecameController`."""

    state: ClusterState
    elected_ns: int


@dataclass(frozen=True, slots=True)
class LostCoordinator:
    """This node coordinates nothing any more; told as `LostController`."""


@dataclass(frozen=True, slots=True)
class BeatReceived:
    """A member's heartbeat; `raft_lease_until_ns` as in `HeartbeatReceived`."""

    beat: MemberBeat
    raft_lease_until_ns: int


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member has stopped reading and wants to be none."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class CommandApplied:
    """A command was applied; `proposal` is its number if it was proposed here."""

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
class Tick:
    """The time that `next_deadline_ns` named has come."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Propose a command; `CommandApplied` with its number or `ProposalDropped` follows."""

    proposal: int
    command: PutGroup


@dataclass(frozen=True, slots=True)
class AnswerMember:
    """Answer the heartbeat that was received last."""

    answer: MemberAnswer


GroupEvent: TypeAlias = (
    BecameCoordinator
    | LostCoordinator
    | BeatReceived
    | MemberLeft
    | CommandApplied
    | ProposalDropped
    | Tick
)
GroupEffect: TypeAlias = Propose | AnswerMember

"""Who belongs to the group, and how that changes: one member at a time.

After Ongaro's dissertation, section 4: a membership is in force as soon as it stands in the log,
committed or not, and goes again with its entry. Two majorities of memberships that differ by one
voter always share a member; the leader holds further changes back until the last is committed, and
until an entry of its own term is (his correction of 2015).

Encoded as ASCII, `voters=a,b,c learners=d`, names sorted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from penstock.logd.core.node import NodeId
from penstock.logd.errors import CorruptError, RefusedError

VOTERS_MAX: Final = 5
"""Two may fail; each further one only makes a commit wait for more disks. Others are learners."""

MEMBERS_MAX: Final = 256
"""The leader sends each of them a heartbeat ten times a second."""


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Let a node have the log; it neither votes nor counts."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Promote:
    """Make a learner that has caught up a voter."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Demote:
    """Make a voter a learner."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a member out of the group."""

    node: NodeId


MembershipChange = AddLearner | Promote | Demote | Remove


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a group; no node is in both sets."""

    voters: frozenset[NodeId] = frozenset()
    learners: frozenset[NodeId] = frozenset()

    @property
    def members(self) -> frozenset[NodeId]:
        """Voters and learners."""
        return self.voters | self.learners

    def changed(self, change: MembershipChange) -> "Membership":
        """The membership after a change.

        Raises:
            RefusedError: `MEMBER` or `NOT_MEMBER`: the change does not fit; `LAST_VOTER`,
                `VOTERS_MAX`, `MEMBERS_MAX`: the membership would be of no use, or too large.
        """
        node = change.node
        match change:
            case AddLearner():
                _require(node not in self.members, "MEMBER", node, "is a member already")
                changed = Membership(self.voters, self.learners | {node})
            case Promote():
                _require(node in self.learners, "NOT_MEMBER", node, "is no learner")
                changed = Membership(self.voters | {node}, self.learners - {node})
            case Demote():
                _require(node in self.voters, "NOT_MEMBER", node, "is no voter")
                changed = Membership(self.voters - {node}, self.learners | {node})
            case Remove():
                _require(node in self.members, "NOT_MEMBER", node, "is no member")
                changed = Membership(self.voters - {node}, self.learners - {node})
            case _:
                assert_never(change)
        _require(bool(changed.voters), "LAST_VOTER", node, "is the last voter")
        fits = len(changed.voters) <= VOTERS_MAX or isinstance(change, Remove | Demote)
        _require(fits, "VOTERS_MAX", node, f"would be voter {len(changed.voters)} of {VOTERS_MAX}")
        fits = len(changed.members) <= MEMBERS_MAX or len(changed.members) <= len(self.members)
        _require(fits, "MEMBERS_MAX", node, f"would be one of more than {MEMBERS_MAX} members")
        return changed

    def encode(self) -> bytes:
        """The bytes of a membership entry."""
        voters, learners = (",".join(sorted(part)) for part in (self.voters, self.learners))
        return f"voters={voters} learners={learners}".encode()

    @classmethod
    def decode(cls, data: bytes) -> "Membership":
        """The membership that `encode` wrote.

        Raises:
            CorruptError: It did not write these bytes.
        """
        voters, blank, learners = data.decode("ascii", "replace").partition(" ")
        if not (blank and voters.startswith("voters=") and learners.startswith("learners=")):
            raise CorruptError(f"no membership: {data[:80]!r}")
        membership = cls(_names(voters[7:]), _names(learners[9:]))
        if membership.encode() != data:
            raise CorruptError(f"no membership: {data[:80]!r}")
        return membership


class MembershipHistory:
    """The memberships of a log that may still be needed: those after its compacted part.

    Args:
        index: Of the last compacted entry; 0 when there is none.
        membership: In force there.
    """

    def __init__(self, index: int, membership: Membership) -> None:
        self._history = [(index, membership)]

    @property
    def current(self) -> Membership:
        """The membership in force: the last in the log."""
        return self._history[-1][1]

    @property
    def index(self) -> int:
        """Where in the log the current membership stands."""
        return self._history[-1][0]

    def at(self, index: int) -> Membership:
        """The membership in force after entry `index`, which is not compacted."""
        return next(m for first, m in reversed(self._history) if first <= index)

    def may_be_voter(self, node: NodeId, committed: int) -> bool:
        """Whether the node is a voter of the committed membership or one after it.

        One whose removal stands in its log, but is not committed, may be the only one that can
        win (dissertation 4.2.2): the others may lack that entry, and need its vote.
        """
        for index, membership in reversed(self._history):
            if node in membership.voters:
                return True
            if index <= committed:
                return False
        return False

    def only_voter_ever(self, node: NodeId) -> bool:
        """Whether nobody else can lead: no membership here, which may go again, has other voters.

        The first one here is committed. When the last alone has no others, their removal may not
        be committed, and their leader still rely on the node to wait.
        """
        alone = frozenset({node})
        return self.current.voters == alone and all(
            not membership.voters or membership.voters == alone for _, membership in self._history
        )

    def add(self, index: int, membership: Membership) -> None:
        """Note a membership entry that was appended."""
        assert index > self.index
        self._history.append((index, membership))

    def truncate(self, index: int) -> bool:
        """Forget what stood at `index` and after it; whether the current membership changed."""
        count = len(self._history)
        while len(self._history) > 1 and self.index >= index:
            self._history.pop()
        return len(self._history) < count

    def compact(self, index: int) -> None:
        """Forget what is not in force any more at `index`."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            del self._history[0]


def _names(text: str) -> frozenset[NodeId]:
    return frozenset(NodeId(name) for name in text.split(",") if name)


def founders(names: Iterable[str]) -> Membership:
    """A membership of voters only."""
    return Membership(frozenset(NodeId(name) for name in names))


def _require(condition: object, code: str, node: NodeId, what: str) -> None:
    if not condition:
        raise RefusedError(code, f"node {node} {what}", node=node)

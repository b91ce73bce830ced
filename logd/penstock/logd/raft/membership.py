"""Membership of the group, and how it changes: one member at a time.

After Ongaro's dissertation, section 4: a membership is in force as soon as it stands in the log,
committed or not, and goes again with its entry. Two majorities of memberships that differ by one
voter always share a member; the leader holds further changes back until the last is committed, and
until an entry of the leader's term is (his correction of 2015).

A membership also notes the directory id of each member's disk, once it is known. A name whose disk
is another one has lost what it promised: nothing that it says counts. Where ids are noted, those of
a majority of the voters are, and a voter without a noted id neither votes nor acknowledges: a
majority that counts is one of known disks, so the next one shares a disk with it.

Encoded as ASCII, `voters=a,b,c learners=d`, names sorted; with ids ` disks=a:0f3e,b:77aa` follows.
"""

from collections.abc import Iterable, Mapping
from typing import Final, assert_never

from msgspec import Struct

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.replication.events import NodeId

VOTERS_MAX: Final = 5
"""Two may fail; each further one only makes a commit wait for more disks. Others are learners."""

MEMBERS_MAX: Final = 256
"""The leader sends each of them a heartbeat ten times a second."""


class AddLearner(Struct, frozen=True):
    """Let a node have the log; it neither votes nor counts."""

    node: NodeId


class Promote(Struct, frozen=True):
    """Make a learner that has caught up a voter."""

    node: NodeId


class Demote(Struct, frozen=True):
    """Make a voter a learner."""

    node: NodeId


class Remove(Struct, frozen=True):
    """Take a member out of the group."""

    node: NodeId


class NoteDisks(Struct, frozen=True):
    """Note the directory ids of members that have none noted, each once for a membership.

    Attributes:
        disks: Pairs of name and directory id, sorted.
    """

    disks: tuple[tuple[NodeId, str], ...]


MembershipChange = AddLearner | Promote | Demote | Remove | NoteDisks


class Membership(Struct, frozen=True):
    """The members of a group; no node is in both sets.

    Attributes:
        disks: Directory ids of members, sorted by name; none before they are known.
    """

    voters: frozenset[NodeId] = frozenset()
    learners: frozenset[NodeId] = frozenset()
    disks: tuple[tuple[NodeId, str], ...] = ()

    @property
    def members(self) -> frozenset[NodeId]:
        """Voters and learners."""
        return self.voters | self.learners

    def disk_of(self, node: NodeId) -> str:
        """The noted directory id of a member; empty: none is."""
        return next((disk for name, disk in self.disks if name == node), "")

    def counts(self, voter: NodeId) -> bool:
        """Return whether a voter's votes and acks count: its disk is known, or none is."""
        return not self.disks or bool(self.disk_of(voter))

    @property
    def is_counted(self) -> bool:
        """True if a majority of the voters counts."""
        return 2 * sum(map(self.counts, self.voters)) > len(self.voters)

    def noting(self, disks: Mapping[NodeId, str]) -> "Membership":
        """The membership with these ids of its members noted; what is noted already stays."""
        noted = {name: disk for name, disk in disks.items() if name in self.members and disk}
        merged = tuple(sorted((noted | dict(self.disks)).items()))
        return Membership(self.voters, self.learners, merged)

    def changed(self, change: MembershipChange) -> "Membership":
        """The membership after a change.

        Raises:
            RefusedError: `MEMBER` or `NOT_MEMBER`: the change does not fit; `LAST_VOTER`,
                `VOTERS_MAX`, `MEMBERS_MAX`, `UNKNOWN_DISKS`: the membership would be of no use,
                or too large.
        """
        if isinstance(change, NoteDisks):
            noting = self.noting(dict(change.disks))
            _require_counted(noting)
            return noting
        node = change.node
        match change:
            case AddLearner():
                _require(node not in self.members, "MEMBER", node, "is a member already")
                changed = self._with(self.voters, self.learners | {node})
            case Promote():
                _require(node in self.learners, "NOT_MEMBER", node, "is no learner")
                changed = self._with(self.voters | {node}, self.learners - {node})
            case Demote():
                _require(node in self.voters, "NOT_MEMBER", node, "is no voter")
                changed = self._with(self.voters - {node}, self.learners | {node})
            case Remove():
                _require(node in self.members, "NOT_MEMBER", node, "is no member")
                changed = self._with(self.voters - {node}, self.learners - {node})
            case _:
                assert_never(change)
        _require(bool(changed.voters), "LAST_VOTER", node, "is the last voter")
        fits = len(changed.voters) <= VOTERS_MAX or isinstance(change, Remove | Demote)
        _require(fits, "VOTERS_MAX", node, f"would be voter {len(changed.voters)} of {VOTERS_MAX}")
        fits = len(changed.members) <= MEMBERS_MAX or len(changed.members) <= len(self.members)
        _require(fits, "MEMBERS_MAX", node, f"would be one of more than {MEMBERS_MAX} members")
        _require_counted(changed)
        return changed

    def _with(self, voters: frozenset[NodeId], learners: frozenset[NodeId]) -> "Membership":
        disks = tuple((name, disk) for name, disk in self.disks if name in voters | learners)
        return Membership(voters, learners, disks)

    def encode(self) -> bytes:
        """The bytes of a membership entry."""
        voters, learners = (",".join(sorted(part)) for part in (self.voters, self.learners))
        disks = ",".join(f"{name}:{disk}" for name, disk in self.disks)
        return f"voters={voters} learners={learners}{disks and ' disks='}{disks}".encode()

    @classmethod
    def decode(cls, data: bytes) -> "Membership":
        """The membership that `encode` wrote.

        Raises:
            CorruptError: It did not write these bytes.
        """
        voters, blank, learners = data.decode("ascii", "replace").partition(" ")
        if not (blank and voters.startswith("voters=") and learners.startswith("learners=")):
            raise CorruptError(f"no membership: {data[:80]!r}")
        learners, _, disks = learners.partition(" disks=")
        pairs = (pair.partition(":") for pair in disks.split(",") if pair)
        noted = tuple((NodeId(name), disk) for name, _, disk in pairs)
        membership = cls(_names(voters[7:]), _names(learners[9:]), noted)
        if membership.encode() != data:
            raise CorruptError(f"no membership: {data[:80]!r}")
        return membership


class MembershipHistory:
    """The memberships of a log that may still be needed: those after its compacted part.

    Args:
        index: Index of the last compacted entry; 0 when there is none.
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
        """Index of the entry with the current membership."""
        return self._history[-1][0]

    def since(self, index: int) -> list[int]:
        """Return the indexes of membership changes after entry `index`."""
        return [first for first, _ in self._history if first > index]

    def at(self, index: int) -> Membership:
        """The membership in force after entry `index`, which is not compacted."""
        return next(m for first, m in reversed(self._history) if first <= index)

    def may_be_voter(self, node: NodeId, committed: int) -> bool:
        """Return whether the node is a voter of the committed membership or one after it.

        One whose removal stands in its log, but is not committed, may be the only one that can win
        (dissertation 4.2.2): the others may lack that entry, and need its vote. One whose disk is
        not noted there waits until it is: the note may be of another disk.
        """
        for index, membership in reversed(self._history):
            if node in membership.voters:
                return membership.counts(node)
            if index <= committed:
                return False
        return False

    def only_voter_ever(self, node: NodeId) -> bool:
        """Return whether no other node can lead: no membership here has other voters.

        The first one here is committed. When the last alone has no others, their removal may not be
        committed, and their leader still rely on the node to wait.
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


def membership_of(names: Iterable[str]) -> Membership:
    """A membership of voters only."""
    return Membership(frozenset(NodeId(name) for name in names))


def _require(condition: object, code: str, node: NodeId, what: str) -> None:
    if not condition:
        raise RefusedError(code, f"node {node} {what}", node=node)


def _require_counted(membership: Membership) -> None:
    if not membership.is_counted:
        names = ", ".join(sorted(n for n in membership.voters if not membership.counts(n)))
        message = f"the disks of too many voters are not noted: {names}"
        raise RefusedError("UNKNOWN_DISKS", message)

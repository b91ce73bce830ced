"""What Raft keeps: entries of the log, term and vote, snapshots."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from penstock.logd.core.node import NodeId
from penstock.logd.core.raft.membership import Membership

FOUNDING_ENTRIES: Final = 1
"""Entries that the founders of a group begin with."""

ENTRY_OVERHEAD_BYTES: Final = 32
"""What an entry counts beside its data, so that many empty ones are bounded too."""


class EntryKind(IntEnum):
    """What an entry is for; the numbers are part of the formats on disk and wire."""

    COMMAND = 0
    """Opaque bytes for the state machine."""

    NOOP = 1
    """The first entry of a leader's term: it commits what earlier terms left."""

    MEMBERSHIP = 2
    """A whole new membership, in force from where it stands in the log."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log. Index and term begin at 1."""

    index: int
    term: int
    kind: EntryKind
    data: bytes = b""

    @property
    def size(self) -> int:
        """Bytes it counts in every bound."""
        return len(self.data) + ENTRY_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be durable before a vote, an ack or a vote request of `term` leaves.

    Attributes:
        vote: Whom this member voted for in `term`.
    """

    term: int = 0
    vote: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine after entry `index`, and the membership in force there."""

    index: int
    term: int
    membership: Membership
    data: bytes


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a member finds on its disk when it starts.

    Attributes:
        snapshot: None while nothing was compacted.
        entries: Those after the snapshot, without gaps.
    """

    hard_state: HardState = HardState()
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()


def founding_state(membership: Membership) -> Recovered:
    """What each founding member of a new group starts with.

    All of them begin with the same first entry, so that it counts as replicated. Who joins later
    starts with nothing (`Recovered()`) and gets this entry from the leader.
    """
    founding = Entry(1, 1, EntryKind.MEMBERSHIP, membership.encode())
    return Recovered(HardState(term=1), None, (founding,))

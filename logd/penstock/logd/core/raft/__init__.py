"""Raft as a pure core: one member of a replicated log that survives the loss of a minority.

`Raft` is the member, `events` what goes in and comes out, `messages` what members say to each
other. Formats on disk and wire are elsewhere (`penstock.logd.consensus`).
"""

from penstock.logd.core.raft.config import RaftConfig
from penstock.logd.core.raft.entries import (
    Entry,
    EntryKind,
    HardState,
    Recovered,
    Snapshot,
    founding_state,
)
from penstock.logd.core.raft.errors import BusyError, HaltedError, NotLeaderError
from penstock.logd.core.raft.events import (
    Accepted,
    Apply,
    ChangeMembership,
    Effect,
    Event,
    Halted,
    Ignored,
    LeaderChanged,
    MembershipChanged,
    Persist,
    Persisted,
    Propose,
    Read,
    ReadReady,
    Received,
    Refused,
    Restore,
    Send,
    SnapshotTaken,
    SnapshotWanted,
    Started,
    StorageFailed,
    TransferLeadership,
    Woke,
)
from penstock.logd.core.raft.member import Raft
from penstock.logd.core.raft.membership import (
    AddLearner,
    Demote,
    Membership,
    MembershipChange,
    Promote,
    Remove,
    founders,
)
from penstock.logd.core.raft.messages import Message

__all__ = [
    "Accepted",
    "AddLearner",
    "Apply",
    "BusyError",
    "ChangeMembership",
    "Demote",
    "Effect",
    "Entry",
    "EntryKind",
    "Event",
    "Halted",
    "HaltedError",
    "HardState",
    "Ignored",
    "LeaderChanged",
    "Membership",
    "MembershipChange",
    "MembershipChanged",
    "Message",
    "NotLeaderError",
    "Persist",
    "Persisted",
    "Promote",
    "Propose",
    "Raft",
    "RaftConfig",
    "Read",
    "ReadReady",
    "Received",
    "Recovered",
    "Refused",
    "Remove",
    "Restore",
    "Send",
    "Snapshot",
    "SnapshotTaken",
    "SnapshotWanted",
    "Started",
    "StorageFailed",
    "TransferLeadership",
    "Woke",
    "founders",
    "founding_state",
]

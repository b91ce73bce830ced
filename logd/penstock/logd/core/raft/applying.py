"""What the state machine gets, in order and once, and the snapshots it gives back."""

from typing import TYPE_CHECKING

from penstock.logd.core.raft.entries import Entry, EntryKind, Snapshot
from penstock.logd.core.raft.events import (
    Apply,
    MembershipChanged,
    ReadReady,
    Restore,
    SnapshotWanted,
)
from penstock.logd.core.raft.membership import Membership, MembershipHistory

if TYPE_CHECKING:
    from penstock.logd.core.raft.member import Raft


class Applier:
    """Between a member's log and its state machine.

    Args:
        raft: The member.
    """

    def __init__(self, raft: "Raft") -> None:
        self._raft = raft
        self._unwritten: tuple[Snapshot, bool] | None = None
        self._restoring: Snapshot | None = None
        self._wanted = False
        self._bytes = 0

    def install(self, snapshot: Snapshot) -> None:
        """Replace the log by a leader's snapshot; the state follows when it is durable."""
        raft = self._raft
        raft.log.restore(snapshot)
        raft.memberships = MembershipHistory(snapshot.index, snapshot.membership)
        raft.outbox.emit(MembershipChanged(snapshot.index, snapshot.membership, committed=True))
        self._unwritten = snapshot, True
        self._restoring = snapshot
        self._wanted = False
        self._bytes = 0

    def take(self, index: int, data: bytes) -> None:
        """Keep a snapshot of the state after entry `index`, unless a later one is there."""
        raft, log = self._raft, self._raft.log
        if log.snapshot is not None and index <= log.snapshot.index:
            return
        assert index <= log.applied, f"entry {index} is not applied (up to {log.applied})"
        term = log.term_at(index)
        assert term is not None
        snapshot = Snapshot(index, term, raft.memberships.at(index), data)
        self._unwritten = snapshot, False
        self._wanted = False
        self._bytes = sum(log.entry(later).size for later in range(index + 1, log.applied + 1))
        log.keep_snapshot(snapshot, raft.config.entries_kept)
        raft.memberships.compact(log.base_index)

    def take_unwritten(self) -> tuple[Snapshot | None, bool]:
        """What is to be written: a snapshot, and whether it came from the leader."""
        unwritten, self._unwritten = self._unwritten, None
        return unwritten or (None, False)

    @property
    def has_unwritten(self) -> bool:
        """Whether a snapshot is to be written."""
        return self._unwritten is not None

    def run(self) -> None:
        """Hand out what is committed and durable here, and the reads that it lets through."""
        raft, log = self._raft, self._raft.log
        if self._restoring is not None:
            if log.persisted < self._restoring.index:
                return
            log.applied = self._restoring.index
            raft.outbox.emit(Restore(self._restoring))
            self._restoring = None
        while entries := log.next_to_apply(raft.config.apply_bytes_max):
            self._apply(entries)
        for tag in raft.reads.ready(log.applied):
            raft.outbox.emit(ReadReady(tag))

    def _apply(self, entries: list[Entry]) -> None:
        raft, log = self._raft, self._raft.log
        log.applied = entries[-1].index
        raft.outbox.emit(Apply(tuple(entries)))
        for entry in entries:
            self._bytes += entry.size
            if entry.kind is EntryKind.MEMBERSHIP:
                membership = Membership.decode(entry.data)
                raft.outbox.emit(MembershipChanged(entry.index, membership, committed=True))
        since = log.applied - (log.snapshot.index if log.snapshot else 0)
        config = raft.config
        long = since >= config.snapshot_entries or self._bytes >= config.snapshot_log_bytes
        if long and not self._wanted:
            self._wanted = True
            raft.outbox.emit(SnapshotWanted())

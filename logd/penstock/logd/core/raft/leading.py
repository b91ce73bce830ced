"""The leader: it takes proposals, has them replicated, commits, and knows when it must stop."""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.logd.core.node import NodeId
from penstock.logd.core.raft.entries import ENTRY_OVERHEAD_BYTES, FOUNDING_ENTRIES, Entry, EntryKind
from penstock.logd.core.raft.errors import BusyError
from penstock.logd.core.raft.events import Accepted, ChangeMembership, Propose, Refused
from penstock.logd.core.raft.membership import NoteDisks, Promote
from penstock.logd.core.raft.messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadRequest,
    ReadResponse,
    SnapshotChunk,
    SnapshotResponse,
)
from penstock.logd.core.raft.outbox import Needs
from penstock.logd.core.raft.progress import ProgressState
from penstock.logd.core.raft.quorum import reached_by_majority
from penstock.logd.core.raft.reads import LeaderReads, ReadOrigin
from penstock.logd.core.raft.replicating import Replicator
from penstock.logd.core.raft.transfer import Transfer
from penstock.logd.errors import LogdError, RefusedError

if TYPE_CHECKING:
    from penstock.logd.core.raft.member import Raft


class Leader:
    """The role of the member that was elected for its term.

    Args:
        raft: The member; its term and vote are durable.

    Attributes:
        first_index: Of its term's first entry. Until that is committed, it knows neither what
            is (Raft 5.4.2) nor may it change the membership.
    """

    def __init__(self, raft: "Raft") -> None:
        self._raft = raft
        self.leader: NodeId | None = raft.config.node
        self.replicator = Replicator(raft)
        self.transfer: Transfer | None = None
        self._reads = LeaderReads()
        self._rounds: dict[int, int] = {}
        self._heartbeat_ns = 0
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._uncommitted_bytes = 0
        self.first_index = raft.log.last_index + 1

    def begin(self, voted: Mapping[NodeId, str]) -> None:
        """Announce the term, and commit in it what earlier ones left.

        The first leader of a group begins with an entry that notes the disks of those that voted
        for it: whatever is committed later has them before it in the log.

        Args:
            voted: Their directory ids.
        """
        noting = self._raft.memberships.current.noting(voted)
        if self.first_index == FOUNDING_ENTRIES + 1 and noting.disks and noting.is_counted:
            self._append(EntryKind.MEMBERSHIP, noting.encode())
        self._append(EntryKind.NOOP, b"")
        self.send_heartbeats()

    def next_deadline_ns(self) -> int:
        """When `expire` has something to do."""
        deadline = min(self._heartbeat_ns, self._quorum_ns() + self._patience_ns)
        return min(deadline, self.transfer.deadline_ns) if self.transfer else deadline

    def expire(self) -> None:
        """Look at the clock: a majority must have answered lately, the others must hear of it."""
        raft = self._raft
        if raft.now_ns >= self._quorum_ns() + self._patience_ns:
            raft.become_follower(raft.term, None)  # check-quorum (dissertation 6.2)
            return
        if self.transfer and raft.now_ns >= self.transfer.deadline_ns:
            self._give_transfer_up(self.transfer)
        if raft.role is self and raft.now_ns >= self._heartbeat_ns:
            self.send_heartbeats()

    def lease_end_ns(self) -> int:
        """Until when nobody else can have been elected, on this member's clock.

        The majority that answered promised no vote for the least election timeout from when the
        heartbeat came, which was after it was sent. A handover breaks that promise, so there is
        no lease once it has begun.
        """
        config = self._raft.config
        if self.transfer or self._raft.log.committed < self.first_index:
            return 0
        return self._quorum_ns() + int(config.election_timeout_min_ns * (1 - config.clock_drift))

    def step(self, message: Message) -> None:
        """Take a message of the current term."""
        node = message.sender
        match message.body:
            case AppendRequest() | Heartbeat() | SnapshotChunk():
                raise AssertionError(f"term {message.term} has a second leader: {node}")
            case ReadRequest(number):
                self._add_read(ReadOrigin(node, number))
            case _ if node not in self.replicator.progress:
                pass  # a delayed answer of one that was removed
            case AppendResponse():
                if self.replicator.acknowledged(node, message.body):
                    self._commit()
                    if self._raft.role is self:
                        self._continue(node)
            case AppendRejection():
                self.replicator.rejected(node, message.body)
            case HeartbeatResponse(round_number):
                self._heard(node, round_number)
            case SnapshotResponse():
                self.replicator.chunk_arrived(node, message.body)
            case _:
                pass  # answers to what it asked in another role

    def persisted(self) -> None:
        """Count itself for what is durable here."""
        raft = self._raft
        progress = self.replicator.progress.get(raft.config.node)
        if progress is not None:
            progress.match = max(progress.match, raft.log.persisted)
            self._commit()

    def propose(self, event: Propose) -> None:
        """Append a command, within bounds."""
        config = self._raft.config
        size = len(event.data) + ENTRY_OVERHEAD_BYTES
        error: LogdError
        if len(event.data) > config.entry_bytes_max:
            text = f"{len(event.data)} bytes exceed entry_bytes_max, {config.entry_bytes_max}"
            error = RefusedError("TOO_LARGE", text, bytes=len(event.data))
        elif self.transfer:
            error = BusyError(f"the leadership is being handed to {self.transfer.target}")
        elif self._uncommitted and self._uncommitted_bytes + size > config.uncommitted_bytes_max:
            error = BusyError(f"{self._uncommitted_bytes} bytes wait to be committed")
        else:
            self._append(EntryKind.COMMAND, event.data)
            self._accept(event.tag)
            return
        self._raft.outbox.emit(Refused(event.tag, error))

    def change_membership(self, event: ChangeMembership) -> None:
        """Append a membership, if no other one is under way."""
        raft = self._raft
        try:
            self._check_change(event)
            membership = raft.memberships.current.changed(event.change)
        except LogdError as error:
            raft.outbox.emit(Refused(event.tag, error))
            return
        self._append(EntryKind.MEMBERSHIP, membership.encode())
        self._accept(event.tag)

    def begin_transfer(self, tag: int, target: NodeId) -> None:
        """Hand the leadership over as soon as the target has the whole log."""
        raft = self._raft
        if self.transfer:
            error: LogdError = BusyError(f"it is being handed to {self.transfer.target}")
        elif target not in raft.memberships.current.voters or target == raft.config.node:
            error = RefusedError("NOT_VOTER", f"node {target} is no other voter", node=target)
        else:
            self.transfer = Transfer(tag, target, raft.now_ns + self._patience_ns)
            self._continue(target)
            return
        raft.outbox.emit(Refused(tag, error))

    def read(self, tag: int) -> None:
        """Confirm the leadership for a read of its own."""
        raft = self._raft
        if raft.reads.is_full or not self._add_read(ReadOrigin(raft.config.node, tag)):
            raft.outbox.emit(Refused(tag, BusyError(f"{raft.config.reads_max} reads wait")))

    def end(self) -> None:
        """It does not lead any more: refuse what waits for that."""
        raft = self._raft
        for origin in self._reads.clear():
            if origin.node == raft.config.node:
                raft.outbox.emit(Refused(origin.number, BusyError("the leadership was lost")))

    def send_heartbeats(self) -> None:
        """Begin a round."""
        raft, replicator = self._raft, self.replicator
        replicator.round += 1
        self._heartbeat_ns = raft.now_ns + raft.config.heartbeat_ns
        self._rounds[replicator.round] = raft.now_ns
        while self._rounds[oldest := next(iter(self._rounds))] + self._patience_ns < raft.now_ns:
            del self._rounds[oldest]
        for node in sorted(replicator.progress):
            if node != raft.config.node:
                commit = min(raft.log.committed, replicator.progress[node].match)
                raft.send(node, Heartbeat(commit, replicator.round), Needs.NOTHING)
        if self.transfer and self.transfer.told:
            raft.send_timeout_now(self.transfer.target)
        self._confirm_reads()

    @property
    def _patience_ns(self) -> int:
        return self._raft.config.election_timeout_max_ns

    def _append(self, kind: EntryKind, data: bytes) -> None:
        raft = self._raft
        entry = Entry(raft.log.last_index + 1, raft.term, kind, data)
        self._uncommitted.append((entry.index, entry.size))
        self._uncommitted_bytes += entry.size
        raft.append((entry,))
        if kind is EntryKind.MEMBERSHIP:
            self.replicator.add_members()
        self.replicator.replicate_to_all()

    def _accept(self, tag: int) -> None:
        raft = self._raft
        raft.outbox.emit(Accepted(tag, raft.log.last_index, raft.term))

    def _check_change(self, event: ChangeMembership) -> None:
        raft = self._raft
        if self.transfer:
            raise BusyError(f"the leadership is being handed to {self.transfer.target}")
        if isinstance(event.change, NoteDisks):
            heard = raft.disks_heard | {raft.config.node: raft.config.disk}
            members = raft.memberships.current.members
            for name in sorted(name for name in members if heard.get(name) == ""):
                raise BusyError(f"node {name} has an earlier version, without directory ids")
        if raft.log.committed < max(self.first_index, raft.memberships.index):
            raise BusyError("an earlier change of the membership is not committed yet")
        if isinstance(event.change, Promote):
            progress = self.replicator.progress.get(event.change.node)
            lag = raft.log.last_index - progress.match if progress else 0
            if progress and (
                progress.state is not ProgressState.REPLICATE or lag > raft.config.promotion_lag_max
            ):
                raise BusyError(f"node {event.change.node} lacks {lag} entries")

    def _commit(self) -> None:
        """Commit what a majority has, if it is of this term (Raft 5.4.2)."""
        raft = self._raft
        index = self._reached(match=True)
        if not raft.log.matches(index, raft.term) or not raft.log.commit_to(index):
            return
        while self._uncommitted and self._uncommitted[0][0] <= index:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]
        self.replicator.replicate_to_all()
        if raft.memberships.index <= index:
            self.replicator.remove_members()
            if raft.config.node not in raft.memberships.current.voters:
                self._leave()

    def _leave(self) -> None:
        """Its own removal is committed: the best of the others should go on at once."""
        raft, progress = self._raft, self.replicator.progress
        best = max(sorted(raft.memberships.current.voters), key=lambda node: progress[node].match)
        raft.send_timeout_now(best)
        raft.become_follower(raft.term, None)

    def _continue(self, node: NodeId) -> None:
        """A member has more of the log: send on, and hand over if it was waited for."""
        raft, transfer = self._raft, self.transfer
        self.replicator.replicate(node)
        if transfer is None or transfer.target != node or transfer.told:
            return
        if self.replicator.progress[node].match == raft.log.last_index:
            transfer.told = True
            raft.send_timeout_now(node)

    def _give_transfer_up(self, transfer: Transfer) -> None:
        """The target is not there, or it was told and nothing followed.

        Once told, it may still stand at any time, past every lease: a leader that went on would
        have no lease for the rest of its term, so it ends that term instead.
        """
        raft = self._raft
        self.transfer = None
        error = BusyError(f"node {transfer.target} did not take over in time")
        raft.outbox.emit(Refused(transfer.tag, error))
        if transfer.told:
            raft.become_follower(raft.term, None)

    def _heard(self, node: NodeId, round_number: int) -> None:
        progress = self.replicator.progress[node]
        if round_number > progress.acked_round:
            progress.acked_round = round_number
            progress.heard_ns = max(progress.heard_ns, self._rounds.get(round_number, 0))
        self.replicator.heartbeat_answered(node)
        self._confirm_reads()

    def _add_read(self, origin: ReadOrigin) -> bool:
        """Have a read wait for a round that leaves after now; False: too many wait."""
        raft = self._raft
        if len(self._reads) >= raft.config.reads_max:
            return False
        first = not self._reads
        index = max(raft.log.committed, self.first_index)
        self._reads.add(index, self.replicator.round + 1, origin)
        if first:  # the others share the round after it
            self.send_heartbeats()
        return True

    def _confirm_reads(self) -> None:
        raft = self._raft
        confirmed = self._reads.confirmed(self._reached(match=False))
        for index, origin in confirmed:
            if origin.node == raft.config.node:
                raft.reads.confirm(origin.number, index, raft.now_ns)
            else:
                raft.send(origin.node, ReadResponse(origin.number, index), Needs.NOTHING)
        if confirmed and self._reads.last_round > self.replicator.round:
            self.send_heartbeats()

    def _reached(self, *, match: bool) -> int:
        """The entry (or heartbeat round) that a majority of the voters has."""
        me, progress = self._raft.config.node, self.replicator.progress
        membership = self._raft.memberships.current

        def reached(voter: NodeId) -> int:
            if not membership.counts(voter):
                return 0
            if match:
                return progress[voter].match
            return self.replicator.round if voter == me else progress[voter].acked_round

        return reached_by_majority(map(reached, membership.voters))

    def _quorum_ns(self) -> int:
        """When the last heartbeat was sent that a majority has answered."""
        raft, progress = self._raft, self.replicator.progress
        membership = raft.memberships.current

        def heard_ns(voter: NodeId) -> int:
            if not membership.counts(voter):
                return 0
            return raft.now_ns if voter == raft.config.node else progress[voter].heard_ns

        return reached_by_majority(map(heard_ns, membership.voters))

"""One member of a Raft group: `handle(event, now_ns) -> list[Effect]`, `next_deadline_ns()`.

Raft as in Ongaro's dissertation ("Consensus: Bridging Theory and Practice", 2014), built as etcd
builds it: this file holds what every role has and does, the roles are `Follower`, `Candidate` and
`Leader`. It does no I/O and reads no clock; durability comes back as `Persisted`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.logd.core.node import DATA_LOST, NodeId
from penstock.logd.core.raft.applying import Applier
from penstock.logd.core.raft.config import RaftConfig
from penstock.logd.core.raft.election import Candidate, answer_vote_request
from penstock.logd.core.raft.entries import Entry, EntryKind, HardState, Recovered
from penstock.logd.core.raft.errors import BusyError, HaltedError, NotLeaderError
from penstock.logd.core.raft.events import (
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
    Received,
    Refused,
    Restore,
    SnapshotTaken,
    Started,
    StorageFailed,
    TransferLeadership,
    Woke,
)
from penstock.logd.core.raft.following import Follower
from penstock.logd.core.raft.leading import Leader
from penstock.logd.core.raft.log import RaftLog
from penstock.logd.core.raft.membership import Membership, MembershipHistory
from penstock.logd.core.raft.messages import (
    AppendRequest,
    Body,
    Heartbeat,
    HeartbeatResponse,
    Message,
    SnapshotChunk,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from penstock.logd.core.raft.outbox import Needs, Outbox
from penstock.logd.core.raft.reads import Reads

if TYPE_CHECKING:
    from random import Random

Role = Follower | Candidate | Leader


class Raft:
    """One member, for one run of its process.

    Args:
        config: Its settings.
        recovered: What its disk holds, all of it durable.
        random: Spreads the election timeouts.

    Attributes:
        term, vote: Raft's hard state, as it is in memory.
        disks_heard: The directory id that each member has said last.
        heard_ns: When the leader was last heard, or the start. No other candidate gets a vote for
            the least election timeout after that, and the leader relies on it.
    """

    def __init__(self, config: RaftConfig, recovered: Recovered, random: "Random") -> None:
        self.config = config
        self.random = random
        self.now_ns = 0
        self.heard_ns = 0
        self.disks_heard: dict[NodeId, str] = {}
        self.term = recovered.hard_state.term
        self.vote = recovered.hard_state.vote
        self._written = recovered.hard_state
        snapshot = recovered.snapshot
        self.log = RaftLog(snapshot, recovered.entries)
        base = snapshot.membership if snapshot else Membership()
        self.memberships = MembershipHistory(self.log.base_index, base)
        for entry in recovered.entries:
            if entry.kind is EntryKind.MEMBERSHIP:
                self.memberships.add(entry.index, Membership.decode(entry.data))
        self.outbox = Outbox()
        self.reads = Reads(
            number=random.getrandbits(62),
            reads_max=config.reads_max,
            timeout_ns=config.election_timeout_max_ns,
        )
        self.halted = ""
        self.applier = Applier(self)
        self.role: Role = Follower(self, None)

    # What the shell calls.

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take an event; what follows from it, in the order to act in.

        Args:
            event: What happened.
            now_ns: A monotonic clock; going back counts as standing still.
        """
        if self.halted:
            return self._refuse_halted(event)
        self.now_ns = max(self.now_ns, now_ns)
        if not isinstance(event, Started):
            self.role.expire()
            for tag in self.reads.expired(self.now_ns):
                self.outbox.emit(Refused(tag, BusyError("the leader did not answer in time")))
        self._dispatch(event)
        return self._effects()

    def next_deadline_ns(self) -> int | None:
        """When `handle` must be called though nothing happened; None: never."""
        if self.halted:
            return None
        deadline = self.role.next_deadline_ns()
        reads = self.reads.deadline_ns()
        return deadline if reads is None else min(deadline, reads)

    @property
    def leader(self) -> NodeId | None:
        """Who leads, as far as this member knows."""
        return self.role.leader

    @property
    def lease_end_ns(self) -> int:
        """Until when this member is surely the only leader; 0 when it does not lead."""
        return self.role.lease_end_ns() if isinstance(self.role, Leader) else 0

    # What the roles call.

    @property
    def may_campaign(self) -> bool:
        """Whether this member could be elected: a voter, as far as its log says."""
        return self.memberships.may_be_voter(self.config.node, self.log.committed)

    @property
    def hard_state_is_durable(self) -> bool:
        """Whether a crash now would bring back the same term and vote."""
        return self._hard_state() == self._written and self.outbox.hard_state_is_durable

    def send(self, recipient: NodeId, body: Body, needs: Needs, *, term: int | None = None) -> None:
        """Send a message, in the current term unless another is given."""
        message_term = self.term if term is None else term
        me, noted = self.config, self.memberships.current.disk_of(recipient)
        message = Message(me.group, me.node, recipient, message_term, body, me.disk, noted)
        self.outbox.send(message, needs)

    def send_timeout_now(self, target: NodeId) -> None:
        """Tell a voter to become the successor."""
        self.send(target, TimeoutNow(), Needs.NOTHING)

    def ignore(self, sender: NodeId, reason: str) -> None:
        """Note that a message was not acted on."""
        self.outbox.emit(Ignored(sender, reason))

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries; a membership among them is in force at once."""
        self.log.append(entries)
        for entry in entries:
            if entry.kind is EntryKind.MEMBERSHIP:
                membership = Membership.decode(entry.data)
                self.memberships.add(entry.index, membership)
                self.outbox.emit(MembershipChanged(entry.index, membership, committed=False))

    def truncate(self, index: int) -> None:
        """Remove what conflicts with the leader's log, with the memberships in it."""
        self.log.truncate(index)
        if self.memberships.truncate(index):
            at, current = self.memberships.index, self.memberships.current
            committed = at <= self.log.committed
            self.outbox.emit(MembershipChanged(at, current, committed=committed))

    def grant_vote(self, candidate: NodeId) -> None:
        """Vote, and give the candidate time to win."""
        self.vote = candidate
        if isinstance(self.role, Follower):
            self.role.wait()

    def refuse_asked_reads(self) -> None:
        """The leader that reads were asked of is not followed any more."""
        for tag in self.reads.give_up_asked():
            self.outbox.emit(Refused(tag, NotLeaderError(self.role.leader)))

    def become_follower(self, term: int, leader: NodeId | None) -> None:
        """Follow, in this or a later term."""
        before = self.role
        self._begin_term(term, None)
        self._leave_role()
        self.role = Follower(self, leader)
        if (before.leader, leader) != (None, None):
            self.outbox.emit(LeaderChanged(self.term, leader))

    def campaign(self, *, pre: bool, transfer: bool) -> None:
        """Stand for election, or first ask whether that has a chance."""
        assert self.may_campaign
        if self.role.leader is not None:
            self.outbox.emit(LeaderChanged(self.term, None))
        self._leave_role()
        if not pre:
            self._begin_term(self.term + 1, self.config.node)
        candidate = Candidate(self, pre=pre, transfer=transfer)
        self.role = candidate
        candidate.vote_for_itself()

    def become_leader(self) -> None:
        """Lead: a majority voted for this member."""
        assert self.hard_state_is_durable
        voted = self.role.disks if isinstance(self.role, Candidate) else {}
        leader = Leader(self)
        self.role = leader
        self.outbox.emit(LeaderChanged(self.term, self.config.node))
        leader.begin(voted)
        leader.persisted()

    def halt(self, reason: str) -> None:
        """Take no further part."""
        self._leave_role()
        self.role = Follower(self, None)
        self.halted = reason
        self.outbox.drop_messages()
        self.outbox.emit(Halted(reason))

    # Parts of `handle`.

    def _dispatch(self, event: Event) -> None:
        match event:
            case Started():
                self._start()
            case Woke():
                pass
            case Received(message):
                self._receive(message)
            case Persisted(number):
                self.outbox.mark_persisted(number)
                self.log.mark_persisted(number)
                self.role.persisted()
            case StorageFailed(reason):
                self.halt(reason)
            case SnapshotTaken(index, data):
                self.applier.take(index, data)
            case Read(tag):
                self.role.read(tag)
            case Propose() | ChangeMembership() | TransferLeadership():
                self._ask_leader(event)

    def _ask_leader(self, event: Propose | ChangeMembership | TransferLeadership) -> None:
        if not isinstance(self.role, Leader):
            self.role.propose(event.tag)
            return
        match event:
            case Propose():
                self.role.propose(event)
            case ChangeMembership():
                self.role.change_membership(event)
            case TransferLeadership(tag, target):
                self.role.begin_transfer(tag, target)

    def _start(self) -> None:
        """Set the clock; the last life may have heard a leader a moment ago."""
        self.heard_ns = self.now_ns
        self.role = Follower(self, None)
        if self.log.snapshot is not None:
            self.outbox.emit(Restore(self.log.snapshot))
        at, current = self.memberships.index, self.memberships.current
        self.outbox.emit(MembershipChanged(at, current, committed=at <= self.log.committed))
        noted = current.disk_of(self.config.node)
        if noted and noted != self.config.disk:
            self._halt_on_lost_disk(noted)

    def _receive(self, message: Message) -> None:
        """Compare terms first (Raft 5.1), with what pre-vote and check-quorum add."""
        if message.group != self.config.group or message.recipient != self.config.node:
            self.ignore(message.sender, f"for {message.recipient} of group {message.group}")
            return
        if not self._is_of_known_disks(message):
            return
        body = message.body
        if isinstance(body, VoteRequest) and message.term >= self.term:
            if not body.transfer and self._in_lease():
                return  # in its own term too: the leader that relies on it may be of an earlier one
            if message.term > self.term and not body.pre:
                self.become_follower(message.term, None)
        elif message.term > self.term:
            if not (isinstance(body, VoteResponse) and body.pre and body.granted):
                from_leader = isinstance(body, AppendRequest | Heartbeat | SnapshotChunk)
                self.become_follower(message.term, message.sender if from_leader else None)
        elif message.term < self.term:
            self._answer_old_term(message)
            return
        if isinstance(body, VoteRequest):
            answer_vote_request(self, message, body)
        else:
            self.role.step(message)

    def _is_of_known_disks(self, message: Message) -> bool:
        """Whether sender and recipient have the disks that the group's membership notes for them.

        Whatever the message is: a vote or an acknowledgement on a lost disk is forgotten. A leader
        knows of each member that was noted, so what it says of this one's disk is final.
        """
        sender, said = message.sender, message.disk
        noted = self.memberships.current.disk_of(sender)
        if noted and said != noted:
            self.ignore(sender, f"{DATA_LOST}: its directory id is {said!r}, not {noted!r}")
            return False
        wanted = message.recipient_disk
        if wanted and wanted != self.config.disk:
            from_leader = isinstance(message.body, AppendRequest | Heartbeat | SnapshotChunk)
            if from_leader and message.term >= self.term:
                self._halt_on_lost_disk(wanted)
            else:
                self.ignore(sender, f"{DATA_LOST}: it is for a node with directory id {wanted!r}")
            return False
        self.disks_heard[sender] = said
        return True

    def _halt_on_lost_disk(self, noted: str) -> None:
        own = self.config.disk
        ids = f"directory id {noted}, and its own is {own or 'none'}"
        self.halt(f"{DATA_LOST}: the cluster knows it by {ids}")

    def _answer_old_term(self, message: Message) -> None:
        """Tell an old leader or candidate of the later term; anything else is too late."""
        match message.body:
            case AppendRequest() | Heartbeat() | SnapshotChunk():
                self.send(message.sender, HeartbeatResponse(0), Needs.HARD_STATE)
            case VoteRequest(pre):
                self.send(message.sender, VoteResponse(pre, granted=False), Needs.HARD_STATE)
            case _:
                pass

    def _in_lease(self) -> bool:
        """Whether a leader may rely on this member not voting (dissertation 4.2.3, 6.4.1)."""
        if isinstance(self.role, Leader):
            return True
        return self.now_ns < self.heard_ns + self.config.election_timeout_min_ns

    def _begin_term(self, term: int, vote: NodeId | None) -> None:
        assert term >= self.term
        if term > self.term:
            self.term = term
            self.vote = vote
            self.outbox.drop_held()

    def _leave_role(self) -> None:
        self.refuse_asked_reads()
        if isinstance(self.role, Leader):
            self.role.end()

    def _hard_state(self) -> HardState:
        return HardState(self.term, self.vote)

    def _effects(self) -> list[Effect]:
        if self.halted:
            return self.outbox.flush(None)
        self.applier.run()
        return self.outbox.flush(self._to_persist())

    def _to_persist(self) -> Persist | None:
        hard_state: HardState | None = self._hard_state()
        if hard_state == self._written:
            hard_state = None
        log = self.log
        if hard_state is None and not self.applier.has_unwritten and log.written == log.last_index:
            return None
        self._written = self._hard_state()
        number = self.outbox.number + 1
        snapshot, installed = self.applier.take_unwritten()
        return Persist(number, hard_state, snapshot, installed, log.take_unwritten(number))

    def _refuse_halted(self, event: Event) -> list[Effect]:
        match event:
            case Propose(tag) | ChangeMembership(tag) | TransferLeadership(tag) | Read(tag):
                return [Refused(tag, HaltedError(f"this node takes no part: {self.halted}"))]
            case _:
                return []

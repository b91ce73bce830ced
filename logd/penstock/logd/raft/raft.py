"""One member of a Raft group: `handle(event, now_ns) -> list[Effect]`, `next_deadline_ns()`.

Raft as in Ongaro's dissertation ("Consensus: Bridging Theory and Practice", 2014), built as etcd
builds it: this file holds what every role has and does, the roles are `Follower`, `Candidate` and
`Leader`. It does no I/O and reads no clock; durability comes back as `Persisted`.

Effects on their way out, and the messages that wait for the disk.

A message can depend on the term and vote being durable (a vote, a vote request, the answer to a
heartbeat), on everything before it (an acknowledgement of entries), or on nothing: a leader's
messages may overtake its own disk, for it counts itself only when its entries are durable, and its
term was before it led.

Elections: standing for one, and answering who does.

A candidate first asks whether it would be elected (pre-vote, dissertation 9.6), which changes
nothing anywhere; only then it takes a new term. Its own vote counts once it is durable, and the
requests leave no earlier. Both kinds are repeated until they are answered or the time is up.

Linearizable reads without writing to the log: ReadIndex (dissertation 6.4).

The leader notes its commit index, but at least the first entry of its term, and waits until a
majority has answered a heartbeat that left after the read came: then it was still the leader when
the read came, and nothing committed before is behind that index. The read is done on a state that
has the index applied. A follower asks the leader for the index and reads its own state.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.logd.errors import DATA_LOST, LogdError, RefusedError
from penstock.logd.raft.log import RaftLog
from penstock.logd.raft.membership import Membership, MembershipHistory, NoteDisks, Promote
from penstock.logd.raft.messages import (
    ENTRY_OVERHEAD_BYTES,
    FOUNDING_ENTRIES,
    Accepted,
    AppendRejection,
    AppendRequest,
    AppendResponse,
    Apply,
    Body,
    BusyError,
    ChangeMembership,
    Effect,
    Entry,
    EntryKind,
    Event,
    Halt,
    Halted,
    HaltedError,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Ignored,
    LeaderBody,
    LeaderChanged,
    MembershipChanged,
    Message,
    MustHalt,
    NotLeaderError,
    Persist,
    Persisted,
    Propose,
    RaftConfig,
    Read,
    ReadReady,
    ReadRequest,
    ReadResponse,
    Received,
    Recovered,
    Refused,
    Restore,
    Send,
    Snapshot,
    SnapshotChunk,
    SnapshotResponse,
    SnapshotTaken,
    SnapshotWanted,
    Started,
    TimeoutNow,
    TransferLeadership,
    VoteRequest,
    VoteResponse,
    Woke,
    data_lost,
)
from penstock.logd.raft.progress import Inflights, Progress, ProgressState
from penstock.logd.replication.events import NodeId

if TYPE_CHECKING:
    from random import Random


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
        """Return the unwritten snapshot, and whether it came from the leader."""
        unwritten, self._unwritten = self._unwritten, None
        return unwritten or (None, False)

    @property
    def has_unwritten(self) -> bool:
        """True if a snapshot has to be written."""
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
        last, config = log.snapshot, raft.config
        since = log.applied - (last.index if last else 0)
        log_bytes_max = max(config.snapshot_log_bytes, len(last.data) if last else 0)
        long = since >= config.snapshot_entries or self._bytes >= log_bytes_max
        if long and not self._wanted:
            self._wanted = True
            raft.outbox.emit(SnapshotWanted())


class Needs(Enum):
    """State that must be durable before a message leaves."""

    NOTHING = "nothing"
    HARD_STATE = "term and vote"
    EVERYTHING = "everything"


class Outbox:
    """The effects of one call of `handle`, and what is held back across calls.

    Attributes:
        number: Number of the last `Persist`.
        hard_state_number: Number of the last one with term and vote.
        persisted: The last one that is durable.
    """

    def __init__(self) -> None:
        self.number = 0
        self.hard_state_number = 0
        self.persisted = 0
        self._messages: list[tuple[Needs, Message]] = []
        self._held: deque[tuple[int, Message]] = deque()
        self._later: list[Effect] = []

    @property
    def hard_state_is_durable(self) -> bool:
        """True if the last written term and vote are durable."""
        return self.hard_state_number <= self.persisted

    def send(self, message: Message, needs: Needs) -> None:
        """Send a message as soon as what it needs is durable."""
        self._messages.append((needs, message))

    def emit(self, effect: Effect) -> None:
        """Put out an effect behind all persisting and sending of this call."""
        self._later.append(effect)

    def mark_persisted(self, number: int) -> None:
        """Every `Persist` up to `number` is durable."""
        assert number <= self.number, f"step {number} was never given"
        self.persisted = max(self.persisted, number)

    def drop_held(self) -> None:
        """A new term begins: answers in the old one are of no use any more."""
        self._held.clear()

    def drop_messages(self) -> None:
        """Nothing that was to be sent leaves any more."""
        self._messages.clear()
        self._held.clear()

    def flush(self, persist: Persist | None) -> list[Effect]:
        """Everything of this call, in order.

        Args:
            persist: State that this call makes durable; its number is the next one.
        """
        effects: list[Effect] = []
        if persist is not None:
            effects.append(persist)
            self.number = persist.number
            if persist.hard_state is not None:
                self.hard_state_number = persist.number
        while self._held and self._held[0][0] <= self.persisted:
            effects.append(Send(self._held.popleft()[1]))
        for needs, message in self._messages:
            gate = self._gate(needs)
            if gate <= self.persisted:
                effects.append(Send(message))
            else:
                self._hold(gate, message)
        effects.extend(self._later)
        self._messages, self._later = [], []
        return effects

    def _gate(self, needs: Needs) -> int:
        match needs:
            case Needs.NOTHING:
                return 0
            case Needs.HARD_STATE:
                return self.hard_state_number
            case Needs.EVERYTHING:
                return self.number

    def _hold(self, gate: int, message: Message) -> None:
        position = len(self._held)
        while position and self._held[position - 1][0] > gate:
            position -= 1
        self._held.insert(position, (gate, message))


class Verdict(Enum):
    """The state of a vote."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voters: int) -> int:
    """The least number of voters that is more than half of them."""
    return voters // 2 + 1


def reached_by_majority(values: Iterable[int]) -> int:
    """The largest value that a majority of the voters has reached; one value for each, any order.

    After etcd's MajorityConfig.CommittedIndex: it is in the middle of the sorted values, or, when
    their number is even, the lower of the two there.
    """
    ordered = sorted(values)
    assert ordered, "no voters"
    return ordered[len(ordered) - majority(len(ordered))]


def verdict(voters: Collection[NodeId], votes: Mapping[NodeId, bool]) -> Verdict:
    """Return the result of the votes so far; only those of voters count."""
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    needed = majority(len(voters))
    if granted >= needed:
        return Verdict.WON
    return Verdict.LOST if len(voters) - refused < needed else Verdict.PENDING


class Candidate:
    """The role of a member that asks for votes.

    Args:
        raft: The member; for a real election its term is the new one already.
        pre: It only asks whether it would get them.
        transfer: The leader asked it to stand.

    Attributes:
        disks: Directory ids of those that voted for it.
    """

    leader: NodeId | None = None

    def __init__(self, raft: "Raft", *, pre: bool, transfer: bool) -> None:
        self._raft = raft
        self.pre = pre
        self._transfer = transfer
        self._votes: dict[NodeId, bool] = {}
        self.disks = {raft.config.node: raft.config.disk}
        config = raft.config
        wait_ns = raft.random.randint(
            config.election_timeout_min_ns, config.election_timeout_max_ns
        )
        self._deadline_ns = raft.now_ns + wait_ns
        self._repeat_ns = raft.now_ns + config.heartbeat_ns
        self._ask()

    def next_deadline_ns(self) -> int:
        """Return when `expire` has something to do."""
        return min(self._deadline_ns, self._repeat_ns)

    def expire(self) -> None:
        """Look at the clock: ask again, and after a while begin again."""
        raft = self._raft
        if raft.now_ns >= self._deadline_ns:
            if raft.may_campaign:
                raft.campaign(pre=True, transfer=False)
            else:
                raft.become_follower(raft.term, None)
        elif raft.now_ns >= self._repeat_ns:
            self._repeat_ns = raft.now_ns + raft.config.heartbeat_ns
            self._ask()

    def step(self, message: Message) -> None:
        """Take a message of the current term, or the granted pre-vote of the next."""
        raft = self._raft
        match message.body:
            case AppendRequest() | Heartbeat() | SnapshotChunk():
                raft.become_follower(raft.term, message.sender)
                raft.role.step(message)
            case VoteResponse(pre, granted) if pre == self.pre:
                if message.term == raft.term + 1 if pre and granted else message.term == raft.term:
                    if granted:
                        self.disks.setdefault(message.sender, message.disk)
                    self._count(message.sender, granted=granted)
            case _:
                pass  # answers to what it asked in another role

    def propose(self, tag: int) -> None:
        """Refuse a proposal, for only a leader takes those."""
        self._raft.outbox.emit(Refused(tag, NotLeaderError(None)))

    def read(self, tag: int) -> None:
        """No node can be asked."""
        self._raft.outbox.emit(Refused(tag, NotLeaderError(None)))

    def persisted(self) -> None:
        """Vote for itself, for the own vote counts when it is durable."""
        if not self.pre:
            self.vote_for_itself()

    def vote_for_itself(self) -> None:
        """Count the own vote, unless a crash could still take it back."""
        raft = self._raft
        if self.pre or raft.hard_state_is_durable:
            self._count(raft.config.node, granted=True)

    def _ask(self) -> None:
        raft = self._raft
        request = VoteRequest(self.pre, self._transfer, raft.log.last_index, raft.log.last_term)
        for voter in sorted(raft.memberships.current.voters - self._votes.keys()):
            if voter != raft.config.node:
                if self.pre:
                    raft.send(voter, request, Needs.HARD_STATE, term=raft.term + 1)
                else:
                    raft.send(voter, request, Needs.HARD_STATE)

    def _count(self, voter: NodeId, *, granted: bool) -> None:
        raft = self._raft
        if granted and not raft.memberships.current.counts(voter):
            return  # nobody knows which disk the vote is on
        self._votes.setdefault(voter, granted)
        match verdict(raft.memberships.current.voters, self._votes):
            case Verdict.WON if self.pre:
                raft.campaign(pre=False, transfer=self._transfer)
            case Verdict.WON if raft.hard_state_is_durable:
                raft.become_leader()
            case Verdict.LOST:
                raft.become_follower(raft.term, None)
            case _:
                pass


def answer_vote_request(raft: "Raft", message: Message, request: VoteRequest) -> None:
    """Grant a vote, or refuse it (Raft 5.2, 5.4.1).

    A learner votes too: it may have been promoted by an entry that has not reached it, and a
    candidate counts only whom it knows as a voter. One with an empty log does not: it has never
    belonged to the group, or has lost everything.
    """
    unbound = raft.vote is None and raft.role.leader is None
    later = request.pre and message.term > raft.term  # the question binds no node
    free = raft.vote == message.sender or unbound or later
    up_to_date = raft.log.is_up_to_date(request.last_index, request.last_term)
    granted = free and up_to_date and raft.log.last_index > 0
    if granted and not request.pre:
        raft.grant_vote(message.sender)
    term = message.term if request.pre and granted else raft.term
    raft.send(message.sender, VoteResponse(request.pre, granted), Needs.HARD_STATE, term=term)


class Follower:
    """The role of a member that neither leads nor wants to.

    Args:
        raft: The member.
        leader: The leader; None: unknown yet.

    Attributes:
        deadline_ns: Time at which it gives the leader up.
    """

    def __init__(self, raft: "Raft", leader: NodeId | None) -> None:
        self._raft = raft
        self.leader = leader
        self.deadline_ns = 0
        self._incoming: _Incoming | None = None
        self.wait()

    def wait(self) -> None:
        """Begin to wait for the leader again, for a random time so that not all give up at once."""
        raft = self._raft
        config = raft.config
        if raft.memberships.only_voter_ever(config.node):
            self.deadline_ns = raft.now_ns  # there is no node to wait for
            return
        wait_ns = raft.random.randint(
            config.election_timeout_min_ns, config.election_timeout_max_ns
        )
        self.deadline_ns = raft.now_ns + wait_ns

    def next_deadline_ns(self) -> int:
        """Return when `expire` has something to do."""
        return self.deadline_ns

    def expire(self) -> None:
        """Look at the clock: without a leader for long, stand for election."""
        raft = self._raft
        if raft.now_ns < self.deadline_ns:
            return
        if raft.may_campaign:
            raft.campaign(pre=True, transfer=False)
            return
        if self.leader is not None:
            self.leader = None
            raft.outbox.emit(LeaderChanged(raft.term, None))
            raft.refuse_asked_reads()
        self.wait()

    def step(self, message: Message) -> None:
        """Take a message of the current term."""
        raft = self._raft
        match message.body:
            case AppendRequest() | Heartbeat() | SnapshotChunk():
                self._note_leader(message.sender)
                self._take(message.sender, message.body)
            case TimeoutNow() if message.sender == self.leader and raft.may_campaign:
                raft.campaign(pre=False, transfer=True)
            case ReadResponse(number, index) if message.sender == self.leader:
                raft.reads.answer(number, index)
            case _:
                pass  # answers to what it asked in another role

    def propose(self, tag: int) -> None:
        """Refuse a proposal, for only the leader takes those."""
        self._raft.outbox.emit(Refused(tag, NotLeaderError(self.leader)))

    def read(self, tag: int) -> None:
        """Ask the leader for a read index."""
        raft = self._raft
        if self.leader is None:
            raft.outbox.emit(Refused(tag, NotLeaderError(None)))
        elif raft.reads.is_full:
            raft.outbox.emit(Refused(tag, BusyError(f"{raft.config.reads_max} reads wait")))
        else:
            number = raft.reads.ask(tag, raft.now_ns)
            raft.send(self.leader, ReadRequest(number), Needs.NOTHING)

    def persisted(self) -> None:
        """Something became durable: nothing to do but what the outbox does."""

    def _note_leader(self, leader: NodeId) -> None:
        raft = self._raft
        if self.leader is None:
            self.leader = leader
            raft.outbox.emit(LeaderChanged(raft.term, leader))
        assert self.leader == leader, f"term {raft.term} has leaders {self.leader} and {leader}"
        raft.last_contact_ns = raft.now_ns
        self.wait()

    def _take(self, leader: NodeId, body: LeaderBody) -> None:
        raft = self._raft
        match body:
            case AppendRequest():
                self._append(leader, body)
            case Heartbeat(commit, round_number):
                if commit > raft.log.last_index:
                    raft.halt(
                        data_lost(
                            f"entries of the metadata up to {commit} were acknowledged, which its"
                            " disk lacks"
                        )
                    )
                    return
                raft.log.commit_to(commit)
                raft.send(leader, HeartbeatResponse(round_number), Needs.HARD_STATE)
            case SnapshotChunk():
                self._take_chunk(leader, body)

    def _append(self, leader: NodeId, body: AppendRequest) -> None:
        """Take entries if they follow on what is here (Raft 5.3)."""
        raft, log = self._raft, self._raft.log
        if body.previous_index < log.committed:  # also what a snapshot covers meanwhile
            raft.send(leader, AppendResponse(log.committed), Needs.EVERYTHING)
            return
        if not log.matches(body.previous_index, body.previous_term):
            hint = log.last_possible_match(body.previous_index, body.previous_term)
            rejection = AppendRejection(body.previous_index, hint, log.term_at(hint) or 0)
            raft.send(leader, rejection, Needs.HARD_STATE)
            return
        conflict = log.first_conflict(body.entries)
        if conflict is not None:
            if conflict.index <= log.last_index:
                raft.truncate(conflict.index)
            raft.append(body.entries[conflict.index - body.previous_index - 1 :])
        last = body.previous_index + len(body.entries)
        log.commit_to(min(body.commit, last))
        raft.send(leader, AppendResponse(last), Needs.EVERYTHING)

    def _take_chunk(self, leader: NodeId, chunk: SnapshotChunk) -> None:
        """Take a part of a snapshot; the whole one replaces the log if it is newer."""
        raft, log = self._raft, self._raft.log
        if chunk.index <= log.committed or log.matches(chunk.index, chunk.index_term):
            self._incoming = None
            log.commit_to(chunk.index)
            raft.send(leader, AppendResponse(log.committed), Needs.EVERYTHING)
            return
        if chunk.total_bytes > raft.config.snapshot_bytes_max:
            raft.ignore(leader, f"snapshot of {chunk.total_bytes} bytes exceeds snapshot_bytes_max")
            return
        incoming = self._incoming
        if incoming is None or not incoming.belongs(chunk):
            incoming = self._incoming = _Incoming(chunk)
        if not incoming.take(chunk):
            raft.send(leader, SnapshotResponse(chunk.index, incoming.offset), Needs.HARD_STATE)
            return
        self._incoming = None
        raft.applier.install(incoming.snapshot())
        raft.send(leader, AppendResponse(chunk.index), Needs.EVERYTHING)


class _Incoming:
    """A snapshot that is coming, part by part."""

    def __init__(self, chunk: SnapshotChunk) -> None:
        self._first = chunk
        self._data = bytearray()

    @property
    def offset(self) -> int:
        """Bytes that have come."""
        return len(self._data)

    def belongs(self, chunk: SnapshotChunk) -> bool:
        first = self._first
        one = (first.index, first.index_term, first.total_bytes)
        return one == (chunk.index, chunk.index_term, chunk.total_bytes)

    def take(self, chunk: SnapshotChunk) -> bool:
        """Add a chunk if it is the next one; whether the snapshot is whole then."""
        if chunk.offset == self.offset and self.offset + len(chunk.data) <= chunk.total_bytes:
            self._data += chunk.data
        return self.offset == self._first.total_bytes

    def snapshot(self) -> Snapshot:
        """The whole one."""
        first = self._first
        return Snapshot(first.index, first.index_term, first.membership, bytes(self._data))


class ReadOrigin(Struct, frozen=True):
    """Requester of a read index.

    Attributes:
        node: The member; the read may be the leader's own.
        number: The tag of an own read, else the request's number.
    """

    node: NodeId
    number: int


class LeaderReads:
    """Reads that wait for a round of heartbeats, in the order they came."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, ReadOrigin]] = deque()

    def __len__(self) -> int:
        """Return the number of waiting reads."""
        return len(self._waiting)

    @property
    def last_round(self) -> int:
        """The last round that one waits for; 0 when none does."""
        return self._waiting[-1][1] if self._waiting else 0

    def add(self, index: int, round_number: int, origin: ReadOrigin) -> None:
        """A read came; `round_number` is the first round that leaves after it."""
        assert round_number >= self.last_round
        self._waiting.append((index, round_number, origin))

    def confirmed(self, round_number: int) -> list[tuple[int, ReadOrigin]]:
        """Take out the reads, with their index, that a majority's answers to a round confirm."""
        taken = []
        while self._waiting and self._waiting[0][1] <= round_number:
            index, _, origin = self._waiting.popleft()
            taken.append((index, origin))
        return taken

    def clear(self) -> list[ReadOrigin]:
        """Take out all; the leadership ends."""
        origins = [origin for _, _, origin in self._waiting]
        self._waiting.clear()
        return origins


class _Waiting(Struct, frozen=True):
    tag: int
    deadline_ns: int


class Reads:
    """A member's own reads: asked of the leader, or waiting until their index is applied.

    Args:
        number: First number of requests. It must differ between processes (a random one does), or a
            delayed answer to an earlier process would be taken for one to this.
        reads_max: Maximum waiting reads.
        timeout_ns: Maximum nanoseconds of a wait.
    """

    def __init__(self, *, number: int, reads_max: int, timeout_ns: int) -> None:
        self._number = number
        self._reads_max = reads_max
        self._timeout_ns = timeout_ns
        self._asked: dict[int, _Waiting] = {}
        self._applying: list[tuple[int, _Waiting]] = []

    @property
    def is_full(self) -> bool:
        """True if another read must be refused."""
        return len(self._asked) + len(self._applying) >= self._reads_max

    def ask(self, tag: int, now_ns: int) -> int:
        """Note a read that the leader is asked about; the request's number."""
        self._number += 1
        self._asked[self._number] = _Waiting(tag, now_ns + self._timeout_ns)
        return self._number

    def answer(self, number: int, index: int) -> bool:
        """The leader gave the index of a request; whether anybody still waited for it."""
        waiting = self._asked.pop(number, None)
        if waiting is not None:
            self._applying.append((index, waiting))
        return waiting is not None

    def confirm(self, tag: int, index: int, now_ns: int) -> None:
        """The leader's own read is confirmed."""
        self._applying.append((index, _Waiting(tag, now_ns + self._timeout_ns)))

    def ready(self, applied: int) -> list[int]:
        """Take out the tags of reads that the state may answer now."""
        if not self._applying:
            return []
        tags = [waiting.tag for index, waiting in self._applying if index <= applied]
        self._applying = [entry for entry in self._applying if entry[0] > applied]
        return tags

    def expired(self, now_ns: int) -> list[int]:
        """Take out the tags of reads that have waited too long."""
        if not self._asked and not self._applying:
            return []
        asked = {n: w for n, w in self._asked.items() if w.deadline_ns <= now_ns}
        applying = [waiting for _, waiting in self._applying if waiting.deadline_ns <= now_ns]
        if asked:
            self._asked = {n: w for n, w in self._asked.items() if n not in asked}
        if applying:
            self._applying = [e for e in self._applying if e[1].deadline_ns > now_ns]
        return [waiting.tag for waiting in (*asked.values(), *applying)]

    def give_up_asked(self) -> list[int]:
        """Take out the tags of reads whose leader will not answer any more."""
        tags = [waiting.tag for waiting in self._asked.values()]
        self._asked.clear()
        return tags

    def deadline_ns(self) -> int | None:
        """Return when the first read times out; None: none waits."""
        if not self._asked and not self._applying:
            return None
        waiting = [*self._asked.values(), *(waiting for _, waiting in self._applying)]
        return min((w.deadline_ns for w in waiting), default=None)


class Replicator:
    """A leader's view of all members' logs, its own among them.

    Args:
        raft: The member.

    Attributes:
        progress: Progress of every member, and of those whose removal is not committed.
        round: Number of the last heartbeat.
    """

    def __init__(self, raft: "Raft") -> None:
        self._raft = raft
        self.progress: dict[NodeId, Progress] = {}
        self.round = 0
        self.add_members()

    def add_members(self) -> None:
        """Begin to send to the members of the membership in force that are new."""
        raft = self._raft
        for node in sorted(raft.memberships.current.members - self.progress.keys()):
            config = raft.config
            inflights = Inflights(config.inflight_messages_max, config.inflight_bytes_max)
            self.progress[node] = Progress(raft.log.last_index + 1, raft.now_ns, inflights)

    def remove_members(self) -> None:
        """Their removal is committed: tell the removed, once, and forget them."""
        raft = self._raft
        for node in sorted(self.progress.keys() - raft.memberships.current.members):
            if node != raft.config.node:
                self.replicate(node)
            del self.progress[node]

    def replicate_to_all(self) -> None:
        """Send every other member what it may have and has not."""
        for node in sorted(self.progress):
            if node != self._raft.config.node:
                self.replicate(node)

    def replicate(self, node: NodeId, *, even_empty: bool = False) -> None:
        """Send a member what it may have and has not, as far as its flow control goes.

        Args:
            node: Another member.
            even_empty: Send an append without entries when there is nothing else: its answer says
                whether what was sent before has arrived.
        """
        progress, log = self.progress[node], self._raft.log
        if progress.next <= log.base_index and progress.state is not ProgressState.SNAPSHOT:
            assert log.snapshot is not None
            progress.begin_snapshot(log.snapshot)
            self._send_chunk(node, progress)
            return
        if even_empty and progress.state is ProgressState.REPLICATE and progress.is_paused:
            self._append(node, progress, 0)
            return
        while not progress.is_paused:
            if progress.next > log.last_index and not even_empty:
                knows = progress.commit_sent >= log.committed
                if knows and progress.state is ProgressState.REPLICATE:
                    return
            self._append(node, progress, self._raft.config.append_bytes_max)
            even_empty = False

    def acknowledged(self, node: NodeId, response: AppendResponse) -> bool:
        """A member has the log up to an index; whether that is news."""
        return self.progress[node].acknowledge(response.index)

    def rejected(self, node: NodeId, rejection: AppendRejection) -> None:
        """A member's log is another one than supposed: look for where they agree."""
        possible = self._raft.log.last_possible_match(rejection.hint_index, rejection.hint_term)
        if self.progress[node].reject(rejection.previous_index, possible):
            self.replicate(node)

    def chunk_arrived(self, node: NodeId, response: SnapshotResponse) -> None:
        """A member has so much of a snapshot: send the next part."""
        progress = self.progress[node]
        snapshot = progress.snapshot
        if snapshot is None or snapshot.index != response.index:
            return
        if response.offset != progress.snapshot_offset and response.offset < len(snapshot.data):
            progress.snapshot_offset = response.offset  # back to 0 if it has started again
            self._send_chunk(node, progress)

    def heartbeat_answered(self, node: NodeId) -> None:
        """A member lives: what it has not answered may be lost, so say something again."""
        progress = self.progress[node]
        progress.resume()
        if progress.state is ProgressState.SNAPSHOT:
            if progress.acked_round > progress.chunk_round:
                self._send_chunk(node, progress)
        elif progress.match < self._raft.log.last_index or progress.state is ProgressState.PROBE:
            self.replicate(node, even_empty=True)

    def _append(self, node: NodeId, progress: Progress, bytes_max: int) -> None:
        raft, log = self._raft, self._raft.log
        previous = progress.next - 1
        entries = tuple(log.entries_from(progress.next, bytes_max)) if bytes_max else ()
        previous_term = log.term_at(previous)
        assert previous_term is not None, f"entry {previous} is compacted"
        request = AppendRequest(previous, previous_term, entries, log.committed)
        raft.send(node, request, Needs.NOTHING)
        progress.sent(entries, log.committed)

    def _send_chunk(self, node: NodeId, progress: Progress) -> None:
        raft, snapshot = self._raft, progress.snapshot
        assert snapshot is not None
        offset = progress.snapshot_offset
        chunk = SnapshotChunk(
            index=snapshot.index,
            index_term=snapshot.term,
            membership=snapshot.membership,
            total_bytes=len(snapshot.data),
            offset=offset,
            data=snapshot.data[offset : offset + raft.config.snapshot_chunk_bytes],
        )
        raft.send(node, chunk, Needs.NOTHING)
        progress.chunk_round = self.round


class Transfer(Struct):
    """One handover; the leader takes no proposals meanwhile.

    Attributes:
        tag: Tag of the event that requested it.
        target: The node that is to lead.
        deadline_ns: Time at which the leader gives it up.
        asked: The target has the whole log and was asked to stand for election.
    """

    tag: int
    target: NodeId
    deadline_ns: int
    asked: bool = False


class Leader:
    """The role of the member that was elected for its term.

    Args:
        raft: The member; its term and vote are durable.

    Attributes:
        first_index: Index of its term's first entry. Until that is committed, it knows neither what
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
        """Return when `expire` has something to do."""
        deadline = min(self._heartbeat_ns, self._quorum_ns() + self._quorum_timeout_ns)
        return min(deadline, self.transfer.deadline_ns) if self.transfer else deadline

    def expire(self) -> None:
        """Look at the clock: a majority must have answered lately, the others must hear of it."""
        raft = self._raft
        if raft.now_ns >= self._quorum_ns() + self._quorum_timeout_ns:
            raft.become_follower(raft.term, None)  # check-quorum (dissertation 6.2)
            return
        if self.transfer and raft.now_ns >= self.transfer.deadline_ns:
            self._give_transfer_up(self.transfer)
        if raft.role is self and raft.now_ns >= self._heartbeat_ns:
            self.send_heartbeats()

    def lease_end_ns(self) -> int:
        """Return until when no other node can have been elected, on this member's clock.

        The majority that answered promised no vote for the least election timeout from when the
        heartbeat came, which was after it was sent. A handover breaks that promise, so there is no
        lease once it has begun.
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
                self._confirm_round(node, round_number)
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
            self.transfer = Transfer(tag, target, raft.now_ns + self._quorum_timeout_ns)
            self._continue(target)
            return
        raft.outbox.emit(Refused(tag, error))

    def read(self, tag: int) -> None:
        """Confirm the leadership for its own read."""
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
        while (
            self._rounds[oldest := next(iter(self._rounds))] + self._quorum_timeout_ns < raft.now_ns
        ):
            del self._rounds[oldest]
        for node in sorted(replicator.progress):
            if node != raft.config.node:
                commit = min(raft.log.committed, replicator.progress[node].match)
                raft.send(node, Heartbeat(commit, replicator.round), Needs.NOTHING)
        if self.transfer and self.transfer.asked:
            raft.send_timeout_now(self.transfer.target)
        self._confirm_reads()

    @property
    def _quorum_timeout_ns(self) -> int:
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
            reported = raft.reported_disks | {raft.config.node: raft.config.disk}
            members = raft.memberships.current.members
            for name in sorted(name for name in members if reported.get(name) == ""):
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
        """Leave after the own removal is committed, and let the best of the others lead at once."""
        raft, progress = self._raft, self.replicator.progress
        best = max(sorted(raft.memberships.current.voters), key=lambda node: progress[node].match)
        raft.send_timeout_now(best)
        raft.become_follower(raft.term, None)

    def _continue(self, node: NodeId) -> None:
        """A member has more of the log: send on, and hand over if it was waited for."""
        raft, transfer = self._raft, self.transfer
        self.replicator.replicate(node)
        if transfer is None or transfer.target != node or transfer.asked:
            return
        if self.replicator.progress[node].match == raft.log.last_index:
            transfer.asked = True
            raft.send_timeout_now(node)

    def _give_transfer_up(self, transfer: Transfer) -> None:
        """The target is not there, or it was told and nothing followed.

        Once asked, it may still stand at any time, past every lease: a leader that went on would
        have no lease for the rest of its term, so it ends that term instead.
        """
        raft = self._raft
        self.transfer = None
        error = BusyError(f"node {transfer.target} did not take over in time")
        raft.outbox.emit(Refused(transfer.tag, error))
        if transfer.asked:
            raft.become_follower(raft.term, None)

    def _confirm_round(self, node: NodeId, round_number: int) -> None:
        progress = self.replicator.progress[node]
        if round_number > progress.acked_round:
            progress.acked_round = round_number
            progress.last_contact_ns = max(
                progress.last_contact_ns, self._rounds.get(round_number, 0)
            )
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
        """Return when the last heartbeat was sent that a majority has answered."""
        raft, progress = self._raft, self.replicator.progress
        membership = raft.memberships.current

        def last_contact_ns(voter: NodeId) -> int:
            if not membership.counts(voter):
                return 0
            return raft.now_ns if voter == raft.config.node else progress[voter].last_contact_ns

        return reached_by_majority(map(last_contact_ns, membership.voters))


Role = Follower | Candidate | Leader


class Raft:
    """One member, for one run of its process.

    Args:
        config: Its settings.
        recovered: State of its disk, all of it durable.
        random: Spreads the election timeouts.

    Attributes:
        term, vote: Raft's hard state, as it is in memory.
        reported_disks: The directory id that each member has said last.
        last_contact_ns: Last message of the leader, or the start. No other candidate gets a vote
            for the least election timeout after that, and the leader relies on it.
    """

    def __init__(self, config: RaftConfig, recovered: Recovered, random: "Random") -> None:
        self.config = config
        self.random = random
        self.now_ns = 0
        self.last_contact_ns = 0
        self.reported_disks: dict[NodeId, str] = {}
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
        self.halted: Halt | None = None
        self.applier = Applier(self)
        self.role: Role = Follower(self, None)

    # What the shell calls.

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take an event; what follows from it, in the order to act in.

        Args:
            event: The event.
            now_ns: A monotonic clock; going back counts as standing still.
        """
        if self.halted:
            return self._refuse_halted(event, self.halted)
        self.now_ns = max(self.now_ns, now_ns)
        if not isinstance(event, Started):
            self.role.expire()
            for tag in self.reads.expired(self.now_ns):
                self.outbox.emit(Refused(tag, BusyError("the leader did not answer in time")))
        self._dispatch(event)
        return self._effects()

    def next_deadline_ns(self) -> int | None:
        """Return when `handle` must be called without an event; None: never."""
        if self.halted:
            return None
        deadline = self.role.next_deadline_ns()
        reads = self.reads.deadline_ns()
        return deadline if reads is None else min(deadline, reads)

    @property
    def leader(self) -> NodeId | None:
        """Leader, as far as this member knows; None: unknown."""
        return self.role.leader

    @property
    def lease_end_ns(self) -> int:
        """Monotonic time until which it is certainly the only leader; 0 when it does not lead."""
        return self.role.lease_end_ns() if isinstance(self.role, Leader) else 0

    # What the roles call.

    @property
    def may_campaign(self) -> bool:
        """True if this member could be elected: it is a voter, by its log."""
        return self.memberships.may_be_voter(self.config.node, self.log.committed)

    @property
    def hard_state_is_durable(self) -> bool:
        """True if a crash now would bring back the same term and vote."""
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

    def halt(self, halt: Halt) -> None:
        """Take no further part."""
        self._leave_role()
        self.role = Follower(self, None)
        self.halted = halt
        self.outbox.drop_messages()
        self.outbox.emit(Halted(halt))

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
            case MustHalt(halt):
                self.halt(halt)
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
        """Set the clock; an earlier process may have had a leader a moment ago."""
        self.last_contact_ns = self.now_ns
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
        """Return whether sender and recipient have the disks that the group's membership notes.

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
        self.reported_disks[sender] = said
        return True

    def _halt_on_lost_disk(self, noted: str) -> None:
        own = self.config.disk
        ids = f"directory id {noted}, and its own is {own or 'none'}"
        self.halt(data_lost(f"the cluster knows it by {ids}"))

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
        """Return whether a leader may rely on this member not voting (thesis 4.2.3, 6.4.1)."""
        if isinstance(self.role, Leader):
            return True
        return self.now_ns < self.last_contact_ns + self.config.election_timeout_min_ns

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

    def _refuse_halted(self, event: Event, halt: Halt) -> list[Effect]:
        match event:
            case Propose(tag) | ChangeMembership(tag) | TransferLeadership(tag) | Read(tag):
                return [Refused(tag, HaltedError(f"this node takes no part: {halt.reason}"))]
            case _:
                return []

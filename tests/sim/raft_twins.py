"""Raft members that break one rule each. The simulation must catch every one of them.

What a twin is, and why it may replace what it names: `tests.sim.twins`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.logd.raft import node
from penstock.logd.raft.log import RaftLog
from penstock.logd.raft.membership import Membership, MembershipHistory
from penstock.logd.raft.messages import (
    AppendRejection,
    AppendRequest,
    AppendResponse,
    ChangeMembership,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    Message,
    Persist,
    SnapshotChunk,
    VoteRequest,
    VoteResponse,
)
from penstock.logd.raft.progress import Progress
from penstock.logd.raft.raft import (
    Candidate,
    Follower,
    Leader,
    LeaderReads,
    Needs,
    Outbox,
    Raft,
    ReadOrigin,
    Replicator,
    answer_vote_request,
)
from penstock.logd.replication.events import NodeId
from tests.sim.twins import Mutation

Twin = Callable[[Mutation], None]
TWINS: dict[str, Twin] = {}
LOSING_TWINS: dict[str, Twin] = {}
"""Those that only a group shows whose voters lose their disks."""


def twin(function: Twin) -> Twin:
    """Add a twin to the list, by its name."""
    TWINS[function.__name__] = function
    return function


def losing_twin(function: Twin) -> Twin:
    """Add a twin to the list of those, by its name."""
    LOSING_TWINS[function.__name__] = function
    return function


@twin
def vote_not_persisted(code: Mutation) -> None:
    """Votes leave before they are durable."""
    gate = Outbox._gate
    code.replace(Outbox, "_gate", lambda o, n: 0 if n is Needs.HARD_STATE else gate(o, n))


@twin
def own_vote_not_persisted(code: Mutation) -> None:
    """A candidate counts a vote for itself that a crash can take back."""
    code.replace(Raft, "hard_state_is_durable", property(lambda _: True))


@twin
def entries_not_persisted(code: Mutation) -> None:
    """Entries are acknowledged before they are durable."""
    gate = Outbox._gate
    code.replace(Outbox, "_gate", lambda o, n: 0 if n is Needs.EVERYTHING else gate(o, n))


@twin
def own_entries_not_persisted(code: Mutation) -> None:
    """The leader counts itself for what it has only begun to write."""

    def append(raft: Raft, entries: Sequence[Entry]) -> None:
        raft_append(raft, entries)
        if isinstance(raft.role, Leader) and raft.config.node in raft.role.replicator.progress:
            raft.role.replicator.progress[raft.config.node].match = raft.log.last_index

    raft_append = Raft.append
    code.replace(Raft, "append", append)


@twin
def old_term_committed_by_counting(code: Mutation) -> None:
    """An entry of an earlier term is committed as soon as a majority has it (Raft, figure 8)."""

    def commit(leader: Leader) -> None:
        with Mutation() as inner:
            inner.replace(RaftLog, "matches", lambda *_: True)
            really(leader)

    really = Leader._commit
    code.replace(Leader, "_commit", commit)


@twin
def truncation_without_conflict(code: Mutation) -> None:
    """A delayed append takes away what followed it."""

    def first_conflict(log: RaftLog, entries: Sequence[Entry]) -> Entry | None:
        return next((e for e in entries if e.index > log.committed), None)

    code.replace(RaftLog, "first_conflict", first_conflict)


@twin
def old_terms_answers_taken(code: Mutation) -> None:
    """Answers given to an earlier leadership or candidacy count for this one."""

    def answer(raft: Raft, message: Message) -> None:
        late = VoteResponse | AppendResponse | AppendRejection | HeartbeatResponse
        if isinstance(message.body, late) and not isinstance(raft.role, Follower):
            same_term = Message(
                message.group, message.sender, message.recipient, raft.term, message.body
            )
            raft.role.step(same_term)
        else:
            answer_old_term(raft, message)

    answer_old_term = Raft._answer_old_term
    code.replace(Raft, "_answer_old_term", answer)


@twin
def reads_without_quorum(code: Mutation) -> None:
    """The leader believes that it still leads."""

    def confirmed(reads: LeaderReads, _: int) -> list[tuple[int, ReadOrigin]]:
        return every(reads, 1 << 62)

    every = LeaderReads.confirmed
    code.replace(LeaderReads, "confirmed", confirmed)


@twin
def reads_before_own_term_committed(code: Mutation) -> None:
    """A new leader's commit index may be older than what its predecessor acknowledged."""

    def add(reads: LeaderReads, _: int, round_number: int, origin: ReadOrigin) -> None:
        [leader] = [r for r in LEADERS if r._reads is reads]
        really(reads, leader._raft.log.committed, round_number, origin)

    LEADERS: list[Leader] = []  # noqa: N806 - one list for this twin
    begin, really = Leader.begin, LeaderReads.add

    def remember(leader: Leader, voted: Mapping[NodeId, str]) -> None:
        LEADERS.append(leader)
        begin(leader, voted)

    code.replace(Leader, "begin", remember)
    code.replace(LeaderReads, "add", add)


@twin
def snapshot_over_newer_entries(code: Mutation) -> None:
    """A snapshot replaces the log, whatever that holds already."""

    def restore(log: RaftLog, snapshot: Any) -> None:
        log.committed = min(log.committed, snapshot.index - 1)
        really(log, snapshot)

    def take_chunk(follower: Follower, leader: NodeId, chunk: SnapshotChunk) -> None:
        with Mutation() as inner:
            inner.replace(RaftLog, "matches", lambda *_: False)
            log = follower._raft.log
            committed, log.committed = log.committed, 0
            take(follower, leader, chunk)
            log.committed = max(log.committed, committed if log.last_index >= committed else 0)

    really, take = RaftLog.restore, Follower._take_chunk
    code.replace(RaftLog, "restore", restore)
    code.replace(Follower, "_take_chunk", take_chunk)


@twin
def two_changes_at_once(code: Mutation) -> None:
    """The membership changes again before the last change is committed."""

    def check(_leader: Leader, _event: ChangeMembership) -> None:
        pass

    code.replace(Leader, "_check_change", check)


@twin
def change_before_own_term_committed(code: Mutation) -> None:
    """A change is begun beside one of an earlier leader that may still win (Ongaro, 2015)."""

    def check(leader: Leader, event: ChangeMembership) -> None:
        first_index = leader.first_index
        raft = leader._raft
        leader.first_index = 0
        index = raft.memberships.index
        try:
            if raft.log.term_at(index) in (raft.term, None):
                really(leader, event)
        finally:
            leader.first_index = first_index

    really = Leader._check_change
    code.replace(Leader, "_check_change", check)


@twin
def pre_vote_bumps_term(code: Mutation) -> None:
    """The question alone makes others take the term that it names."""

    def answer(raft: Raft, message: Message, request: VoteRequest) -> None:
        if request.pre and message.term > raft.term:
            raft.become_follower(message.term, None)
        answer_vote_request(raft, message, request)

    code.replace("penstock.logd.raft.raft", "answer_vote_request", answer)


@twin
def two_votes_in_a_term(code: Mutation) -> None:
    """A member votes for every candidate that asks."""

    def answer(raft: Raft, message: Message, request: VoteRequest) -> None:
        if not request.pre:
            raft.vote = message.sender
        answer_vote_request(raft, message, request)

    code.replace("penstock.logd.raft.raft", "answer_vote_request", answer)


@twin
def votes_for_shorter_logs(code: Mutation) -> None:
    """A candidate may lack what is committed."""
    code.replace(RaftLog, "is_up_to_date", lambda *_: True)


@twin
def votes_within_lease(code: Mutation) -> None:
    """A follower that hears its leader votes for another one."""
    code.replace(Raft, "_in_lease", lambda _: False)


@twin
def lease_ends_with_the_term(code: Mutation) -> None:
    """A promise given to the leader of an earlier term binds only against yet later terms."""

    def receive(raft: Raft, message: Message) -> None:
        body = message.body
        if isinstance(body, VoteRequest) and message.term == raft.term:
            with Mutation() as inner:
                inner.replace(Raft, "_in_lease", lambda _: False)
                really(raft, message)
        else:
            really(raft, message)

    really = Raft._receive
    code.replace(Raft, "_receive", receive)


@twin
def lease_forgotten_at_start(code: Mutation) -> None:
    """After a restart a member votes at once, though it may just have heard a leader."""

    def start(raft: Raft) -> None:
        really(raft)
        raft.last_contact_ns = -(1 << 62)

    really = Raft._start
    code.replace(Raft, "_start", start)


@twin
def lease_kept_during_handover(code: Mutation) -> None:
    """A leader relies on promises that it has itself told others to break."""

    def lease_end_ns(leader: Leader) -> int:
        transfer, leader.transfer = leader.transfer, None
        try:
            return really(leader)
        finally:
            leader.transfer = transfer

    really = Leader.lease_end_ns
    code.replace(Leader, "lease_end_ns", lease_end_ns)


@twin
def learners_counted(code: Mutation) -> None:
    """A learner's acknowledgement commits."""

    def reached(leader: Leader, *, match: bool) -> int:
        if not match:
            return really(leader, match=match)
        members = leader._raft.memberships.current.members
        values = sorted(leader.replicator.progress[member].match for member in members)
        voters = len(leader._raft.memberships.current.voters)
        return values[-(voters // 2 + 1)]

    really = Leader._reached
    code.replace(Leader, "_reached", reached)


@twin
def removed_never_stands(code: Mutation) -> None:
    """Who has its own removal in its log does not stand, though only it may be able to win."""

    def may_be_voter(history: MembershipHistory, node: NodeId, _committed: int) -> bool:
        return node in history.current.voters

    code.replace(MembershipHistory, "may_be_voter", may_be_voter)


@twin
def sole_voter_does_not_wait(code: Mutation) -> None:
    """Who is the only voter left stands at once, though the others' removal is not committed."""

    def only_voter_ever(history: MembershipHistory, node: NodeId) -> bool:
        return history.current.voters == {node}

    code.replace(MembershipHistory, "only_voter_ever", only_voter_ever)


@twin
def rejections_without_probe(code: Mutation) -> None:
    """The leader never goes back to look for where the logs agree."""
    code.replace(Progress, "reject", lambda *_: False)


@twin
def lost_appends_never_repeated(code: Mutation) -> None:
    """An append whose answer is lost is waited for, for ever."""
    code.replace(Replicator, "heartbeat_answered", lambda *_: None)


@twin
def uncommitted_membership_kept(code: Mutation) -> None:
    """A membership stays in force when its entry has gone."""
    code.replace(MembershipHistory, "truncate", lambda *_: False)
    add = MembershipHistory.add

    def force(history: MembershipHistory, index: int, membership: Membership) -> None:
        add(history, max(index, history.index + 1), membership)

    code.replace(MembershipHistory, "add", force)


@twin
def candidate_counts_twice(code: Mutation) -> None:
    """Two answers of one voter are two votes."""

    def count(candidate: Candidate, voter: NodeId, *, granted: bool) -> None:
        again = voter in candidate._votes and granted and candidate._votes[voter]
        really(candidate, voter, granted=granted)
        others = sorted(candidate._raft.memberships.current.voters - candidate._votes.keys())
        if again and others and candidate._raft.role is candidate:
            really(candidate, others[0], granted=True)

    really = Candidate._count
    code.replace(Candidate, "_count", count)


@twin
def merged_steps_forget_votes(code: Mutation) -> None:
    """Of steps that are made durable together, only the last one's hard state is written."""
    really = node.merge_steps

    def merge_steps(steps: Iterable[Persist]) -> list[Persist]:
        *earlier, last = steps
        *merged, together = really([*earlier, last])
        return [*merged, replace(together, hard_state=last.hard_state)]

    code.replace(node, "merge_steps", merge_steps)


@twin
def merged_steps_pile_up(code: Mutation) -> None:
    """Entries that take the place of others are written behind them."""
    code.replace(node, "_replaced", lambda entries, later: (*entries, *later))


@losing_twin
def disks_not_compared(code: Mutation) -> None:
    """A node with a member's name is that member, whatever its disk is."""
    code.replace(Raft, "_is_of_known_disks", lambda *_: True)


def _compare_all_but(code: Mutation, *bodies: type[object]) -> None:
    """Compare no disks on these messages."""
    really = Raft._is_of_known_disks

    def is_known(raft: Raft, message: Message) -> bool:
        return isinstance(message.body, bodies) or really(raft, message)

    code.replace(Raft, "_is_of_known_disks", is_known)


@losing_twin
def lost_disks_vote(code: Mutation) -> None:
    """A vote counts on whatever disk it is, and every candidate gets it."""
    _compare_all_but(code, VoteRequest, VoteResponse)


@losing_twin
def lost_disks_acknowledge(code: Mutation) -> None:
    """A member takes entries on whatever disk it has, and its acknowledgement counts."""
    _compare_all_but(code, AppendRequest, AppendResponse, AppendRejection, Heartbeat)


@losing_twin
def unknown_disks_count(code: Mutation) -> None:
    """A voter whose disk is not noted yet counts beside those whose disks are."""
    code.replace(Membership, "counts", lambda *_: True)

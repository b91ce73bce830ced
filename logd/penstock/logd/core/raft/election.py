"""Elections: standing for one, and answering who does.

A candidate first asks whether it would be elected (pre-vote, dissertation 9.6), which changes
nothing anywhere; only then it takes a new term. Its own vote counts once it is durable, and the
requests leave no earlier. Both kinds are repeated until they are answered or the time is up.
"""

from typing import TYPE_CHECKING

from penstock.logd.core.node import NodeId
from penstock.logd.core.raft.errors import NotLeaderError
from penstock.logd.core.raft.events import Refused
from penstock.logd.core.raft.messages import (
    AppendRequest,
    Heartbeat,
    Message,
    SnapshotChunk,
    VoteRequest,
    VoteResponse,
)
from penstock.logd.core.raft.outbox import Needs
from penstock.logd.core.raft.quorum import Verdict, verdict

if TYPE_CHECKING:
    from penstock.logd.core.raft.member import Raft


class Candidate:
    """The role of a member that asks for votes.

    Args:
        raft: The member; for a real election its term is the new one already.
        pre: It only asks whether it would get them.
        transfer: The leader told it to stand.

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
        """When `expire` has something to do."""
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
        """Only a leader takes proposals."""
        self._raft.outbox.emit(Refused(tag, NotLeaderError(None)))

    def read(self, tag: int) -> None:
        """Nobody can be asked."""
        self._raft.outbox.emit(Refused(tag, NotLeaderError(None)))

    def persisted(self) -> None:
        """Its own vote counts when it is durable."""
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
    later = request.pre and message.term > raft.term  # the question binds nobody
    free = raft.vote == message.sender or unbound or later
    up_to_date = raft.log.is_up_to_date(request.last_index, request.last_term)
    granted = free and up_to_date and raft.log.last_index > 0
    if granted and not request.pre:
        raft.grant_vote(message.sender)
    term = message.term if request.pre and granted else raft.term
    raft.send(message.sender, VoteResponse(request.pre, granted), Needs.HARD_STATE, term=term)

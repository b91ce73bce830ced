"""Raft members that break one rule each. The simulation must catch every one of them.

A twin is a function that puts the broken behaviour in place with pytest's monkeypatch.
"""

from collections.abc import Callable, Sequence

import pytest

from penstock.logd.core.raft.election import answer_vote_request
from penstock.logd.core.raft.entries import Entry
from penstock.logd.core.raft.leading import Leader
from penstock.logd.core.raft.log import RaftLog
from penstock.logd.core.raft.member import Raft
from penstock.logd.core.raft.messages import (
    Message,
    VoteRequest,
)
from penstock.logd.core.raft.outbox import Needs, Outbox
from penstock.logd.core.raft.reads import LeaderReads, ReadOrigin

Twin = Callable[[pytest.MonkeyPatch], None]
TWINS: dict[str, Twin] = {}


def twin(function: Twin) -> Twin:
    """Add a twin to the list, by its name."""
    TWINS[function.__name__] = function
    return function


@twin
def vote_not_persisted(patch: pytest.MonkeyPatch) -> None:
    """Votes leave before they are durable."""
    gate = Outbox._gate
    patch.setattr(Outbox, "_gate", lambda o, n: 0 if n is Needs.HARD_STATE else gate(o, n))


@twin
def own_vote_not_persisted(patch: pytest.MonkeyPatch) -> None:
    """A candidate counts a vote for itself that a crash can take back."""
    patch.setattr(Raft, "hard_state_is_durable", property(lambda _: True))


@twin
def entries_not_persisted(patch: pytest.MonkeyPatch) -> None:
    """Entries are acknowledged before they are durable."""
    gate = Outbox._gate
    patch.setattr(Outbox, "_gate", lambda o, n: 0 if n is Needs.EVERYTHING else gate(o, n))


@twin
def own_entries_not_persisted(patch: pytest.MonkeyPatch) -> None:
    """The leader counts itself for what it has only begun to write."""

    def append(raft: Raft, entries: Sequence[Entry]) -> None:
        raft_append(raft, entries)
        if isinstance(raft.role, Leader) and raft.config.node in raft.role.replicator.progress:
            raft.role.replicator.progress[raft.config.node].match = raft.log.last_index

    raft_append = Raft.append
    patch.setattr(Raft, "append", append)


@twin
def truncation_without_conflict(patch: pytest.MonkeyPatch) -> None:
    """A delayed append takes away what followed it."""

    def first_conflict(log: RaftLog, entries: Sequence[Entry]) -> Entry | None:
        return next((e for e in entries if e.index > log.committed), None)

    patch.setattr(RaftLog, "first_conflict", first_conflict)


@twin
def reads_before_own_term_committed(patch: pytest.MonkeyPatch) -> None:
    """A new leader's commit index may be older than what its predecessor acknowledged."""

    def add(reads: LeaderReads, _: int, round_number: int, origin: ReadOrigin) -> None:
        [leader] = [r for r in LEADERS if r._reads is reads]
        really(reads, leader._raft.log.committed, round_number, origin)

    LEADERS: list[Leader] = []  # noqa: N806 - one list for this twin
    begin, really = Leader.begin, LeaderReads.add

    def remember(leader: Leader) -> None:
        LEADERS.append(leader)
        begin(leader)

    patch.setattr(Leader, "begin", remember)
    patch.setattr(LeaderReads, "add", add)


@twin
def pre_vote_bumps_term(patch: pytest.MonkeyPatch) -> None:
    """The question alone makes others take the term that it names."""

    def answer(raft: Raft, message: Message, request: VoteRequest) -> None:
        if request.pre and message.term > raft.term:
            raft.become_follower(message.term, None)
        answer_vote_request(raft, message, request)

    patch.setattr("penstock.logd.core.raft.member.answer_vote_request", answer)


@twin
def votes_for_shorter_logs(patch: pytest.MonkeyPatch) -> None:
    """A candidate may lack what is committed."""
    patch.setattr(RaftLog, "is_up_to_date", lambda *_: True)


@twin
def learners_counted(patch: pytest.MonkeyPatch) -> None:
    """A learner's acknowledgement commits."""

    def reached(leader: Leader, *, match: bool) -> int:
        if not match:
            return really(leader, match=match)
        members = leader._raft.memberships.current.members
        values = sorted(leader.replicator.progress[member].match for member in members)
        voters = len(leader._raft.memberships.current.voters)
        return values[-(voters // 2 + 1)]

    really = Leader._reached
    patch.setattr(Leader, "_reached", reached)


@twin
def rejections_without_probe(patch: pytest.MonkeyPatch) -> None:
    """The leader never goes back to look for where the logs agree."""
    patch.setattr("penstock.logd.core.raft.progress.Progress.reject", lambda *_: False)


@twin
def lost_appends_never_repeated(patch: pytest.MonkeyPatch) -> None:
    """An append whose answer is lost is waited for, for ever."""
    patch.setattr(
        "penstock.logd.core.raft.replicating.Replicator.heartbeat_answered", lambda *_: None
    )

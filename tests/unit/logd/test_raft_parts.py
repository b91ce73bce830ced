"""The small parts of Raft against dumb models of themselves."""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from typing_extensions import override

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.raft import (
    Entry,
    EntryKind,
    Membership,
    Raft,
    RaftConfig,
    Recovered,
    Snapshot,
    Started,
    Woke,
    membership_of,
)
from penstock.logd.raft.log import RaftLog
from penstock.logd.raft.membership import (
    MEMBERS_MAX,
    AddLearner,
    Demote,
    MembershipChange,
    MembershipHistory,
    NoteDisks,
    Promote,
    Remove,
)
from penstock.logd.raft.progress import Inflights, Progress, ProgressState
from penstock.logd.raft.raft import Verdict, majority, reached_by_majority, verdict
from penstock.logd.replication.events import NodeId

NAMES = [NodeId(name) for name in "abcdefg"]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=7))
def test_majority_reaches_what_counting_says(values: list[int]) -> None:
    counted = max(value for value in values if sum(v >= value for v in values) > len(values) // 2)
    assert reached_by_majority(values) == counted


@given(
    st.sets(st.sampled_from(NAMES), min_size=1),
    st.dictionaries(st.sampled_from(NAMES), st.booleans()),
)
def test_verdict_is_what_all_ways_to_vote_agree_on(
    voters: set[NodeId], votes: dict[NodeId, bool]
) -> None:
    granted = sum(votes.get(voter, False) for voter in voters)
    open_votes = sum(voter not in votes for voter in voters)
    outcomes = {granted + more >= majority(len(voters)) for more in range(open_votes + 1)}
    expected = (
        Verdict.PENDING if len(outcomes) == 2 else Verdict.WON if True in outcomes else Verdict.LOST
    )
    assert verdict(voters, votes) is expected


memberships = st.builds(
    lambda voters, learners, disks: Membership(
        frozenset(voters), frozenset(learners - voters)
    ).noting(disks),
    st.sets(st.sampled_from(NAMES), max_size=5),
    st.sets(st.sampled_from(NAMES)),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["0f", "77", "a3"])),
)


@given(memberships)
def test_membership_survives_its_encoding(membership: Membership) -> None:
    assert Membership.decode(membership.encode()) == membership


@given(st.binary(max_size=60))
def test_membership_is_decoded_or_refused(data: bytes) -> None:
    with contextlib.suppress(CorruptError):
        assert Membership.decode(data).encode() == data


@given(memberships, st.sampled_from([AddLearner, Promote, Demote, Remove]), st.sampled_from(NAMES))
def test_changes_move_one_node_or_none(
    membership: Membership, kind: type[AddLearner | Promote | Demote | Remove], node: NodeId
) -> None:
    try:
        changed: Membership | None = membership.changed(kind(node))
    except RefusedError as error:
        codes = {"MEMBER", "NOT_MEMBER", "LAST_VOTER", "VOTERS_MAX", "UNKNOWN_DISKS"}
        known = error.code in codes
        changed = None
    else:
        known = True
    assert known
    if changed is None:
        return
    assert len(changed.voters ^ membership.voters) + len(
        changed.learners ^ membership.learners
    ) in (1, 2)
    assert changed.voters ^ membership.voters <= {node}
    assert changed.learners ^ membership.learners <= {node}
    assert not changed.voters & changed.learners
    assert changed.voters
    assert changed.is_counted
    kept = [(name, disk) for name, disk in membership.disks if name in changed.members]
    assert list(changed.disks) == kept


A, B, C, D = NAMES[:4]
TWO_AND_ONE = Membership(frozenset({A, B}), frozenset({C}), ((A, "0f"), (B, "77"), (C, "a3")))
FULL = Membership(
    frozenset({A}), frozenset(NodeId(f"n{number}") for number in range(MEMBERS_MAX - 1))
)


@pytest.mark.parametrize(
    ("before", "change", "code"),
    [
        (TWO_AND_ONE, AddLearner(B), "MEMBER"),
        (TWO_AND_ONE, AddLearner(C), "MEMBER"),
        (TWO_AND_ONE, Promote(B), "NOT_MEMBER"),
        (TWO_AND_ONE, Promote(D), "NOT_MEMBER"),
        (TWO_AND_ONE, Demote(C), "NOT_MEMBER"),
        (TWO_AND_ONE, Remove(D), "NOT_MEMBER"),
        (membership_of("a"), Demote(A), "LAST_VOTER"),
        (membership_of("a"), Remove(A), "LAST_VOTER"),
        (Membership(frozenset(NAMES[:5]), frozenset({NAMES[5]})), Promote(NAMES[5]), "VOTERS_MAX"),
        (FULL, AddLearner(B), "MEMBERS_MAX"),
        (membership_of("ab"), NoteDisks(((A, "0f"),)), "UNKNOWN_DISKS"),
        (membership_of("a").noting({A: "0f"}).changed(AddLearner(B)), Promote(B), "UNKNOWN_DISKS"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(
    before: Membership, change: MembershipChange, code: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        before.changed(change)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("before", "change", "voters", "learners", "disks"),
    [
        (TWO_AND_ONE, AddLearner(D), {A, B}, {C, D}, {A, B, C}),
        (TWO_AND_ONE, Promote(C), {A, B, C}, set(), {A, B, C}),
        (TWO_AND_ONE, Demote(A), {B}, {A, C}, {A, B, C}),
        (TWO_AND_ONE, Remove(A), {B}, {C}, {B, C}),
        (TWO_AND_ONE, Remove(C), {A, B}, set(), {A, B}),
        (membership_of("abc"), NoteDisks(((A, "0f"), (B, "77"))), {A, B, C}, set(), {A, B}),
        (FULL.changed(Remove(NodeId("n0"))), AddLearner(B), {A}, {*FULL.learners, B} - {"n0"}, ()),
    ],
)
def test_a_change_moves_its_node_and_keeps_the_disks_of_members(
    before: Membership,
    change: MembershipChange,
    voters: set[NodeId],
    learners: set[NodeId],
    disks: Collection[NodeId],
) -> None:
    after = before.changed(change)
    assert (set(after.voters), set(after.learners)) == (voters, learners)
    assert [name for name, _ in after.disks] == sorted(disks)


def test_the_disks_that_are_missing_are_named() -> None:
    with pytest.raises(RefusedError, match=r"are not noted: b, c$"):
        membership_of("abc").changed(NoteDisks(((A, "0f"),)))


def test_a_membership_of_an_earlier_version_has_no_disks() -> None:
    assert Membership.decode(b"voters=a,b learners=c").encode() == b"voters=a,b learners=c"
    noted = membership_of("ab").noting({NodeId("a"): "0f3e", NodeId("b"): "77aa", NodeId("x"): "0"})
    assert noted.encode() == b"voters=a,b learners= disks=a:0f3e,b:77aa"


def test_history_goes_back_to_the_membership_before() -> None:
    history = MembershipHistory(0, membership_of("a"))
    history.add(3, membership_of("ab"))
    history.add(7, membership_of("abc"))
    assert history.at(6) == membership_of("ab")
    assert history.truncate(7)
    assert (history.index, history.current) == (3, membership_of("ab"))
    assert not history.truncate(4)
    history.compact(5)
    assert history.at(5) == membership_of("ab")
    assert not history.truncate(4)
    assert not history.truncate(0), "the oldest membership is committed and stays"
    assert history.current == membership_of("ab")


def test_the_only_voter_of_every_membership_here_is_known() -> None:
    history = MembershipHistory(0, membership_of("a"))
    assert history.only_voter_ever(A)
    assert not history.only_voter_ever(B)
    history.add(3, membership_of("ab"))
    assert not history.only_voter_ever(A)
    history.add(4, membership_of("a"))
    assert not history.only_voter_ever(A), "the removal of b may not be committed"
    history.compact(4)
    assert history.only_voter_ever(A)


@dataclass
class DumbLog:
    """A list of all entries ever, and what is true of each."""

    entries: list[Entry] = field(default_factory=list)
    durable: list[bool] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    """The step each was written in; 0: none yet."""


class LogMachine(RuleBasedStateMachine):
    """`RaftLog` beside a list: appended, cut, written, persisted, committed, compacted."""

    def __init__(self) -> None:
        super().__init__()
        self.log = RaftLog(None, ())
        self.model = DumbLog()
        self.number = 0
        self.term = 1

    @rule(count=st.integers(1, 4), bump=st.booleans())
    def append(self, count: int, bump: bool) -> None:
        self.term += bump
        new = [
            Entry(len(self.model.entries) + n, self.term, EntryKind.COMMAND, b"x" * n)
            for n in range(1, count + 1)
        ]
        assert self.log.first_conflict(new) == new[0]
        self.log.append(new)
        self.model.entries += new
        self.model.durable += [False] * count
        self.model.written += [0] * count

    @precondition(lambda self: self.log.last_index > self.log.committed)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.log.committed + 1, self.log.last_index))
        self.log.truncate(index)
        for part in (self.model.entries, self.model.durable, self.model.written):
            del part[index - 1 :]
        self.term += 1

    @rule()
    def write(self) -> None:
        self.number += 1
        taken = self.log.take_unwritten(self.number)
        fresh = [
            e for e, step in zip(self.model.entries, self.model.written, strict=True) if not step
        ]
        assert list(taken) == fresh
        self.model.written = [step or self.number for step in self.model.written]

    @rule(data=st.data())
    def persist(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.number))
        self.log.mark_persisted(number)
        self.model.durable = [
            durable or 0 < step <= number
            for durable, step in zip(self.model.durable, self.model.written, strict=True)
        ]

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.log.last_index))
        before = self.log.committed
        assert self.log.commit_to(index) == (index > before)

    @rule(bytes_max=st.integers(1, 120))
    def apply(self, bytes_max: int) -> None:
        batch = self.log.next_to_apply(bytes_max)
        for entry in batch:
            assert entry == self.model.entries[self.log.applied]
            self.log.applied += 1
        assert self.log.applied <= min(self.log.committed, self.log.persisted)
        assert len(batch) <= 1 or sum(entry.size for entry in batch) <= bytes_max
        assert batch or self.log.applied == min(self.log.committed, self.log.persisted)

    @precondition(lambda self: self.log.applied > self.log.base_index)
    @rule(data=st.data(), kept=st.integers(0, 3))
    def compact(self, data: st.DataObject, kept: int) -> None:
        index = data.draw(st.integers(self.log.base_index + 1, self.log.applied))
        term = self.model.entries[index - 1].term
        self.log.keep_snapshot(Snapshot(index, term, Membership(), b""), kept)
        assert self.log.base_index <= index

    @invariant()
    def same(self) -> None:
        log, model = self.log, self.model
        assert log.last_index == len(model.entries)
        assert log.last_term == (model.entries[-1].term if model.entries else 0)
        rest = log.entries_from(log.base_index + 1, 1 << 30)
        assert rest == model.entries[log.base_index :]
        not_durable = model.durable.index(False) if False in model.durable else len(model.durable)
        assert log.persisted == not_durable
        for index in range(log.base_index, log.last_index + 2):
            known = 1 <= index <= len(model.entries)
            expected = model.entries[index - 1].term if known else 0 if index == 0 else None
            assert log.term_at(index) == expected


STATEFUL = settings(max_examples=40, stateful_step_count=30)
TestLog = LogMachine.TestCase
TestLog.settings = STATEFUL


def test_a_log_begins_again_behind_a_snapshot() -> None:
    log = RaftLog(None, [Entry(n, 1, EntryKind.NOOP) for n in range(1, 6)])
    snapshot = Snapshot(9, 2, Membership(), b"state")
    log.restore(snapshot)
    assert log.snapshot is snapshot
    assert (log.base_index, log.last_index, log.last_term) == (9, 9, 2)
    assert (log.committed, log.written, log.applied, log.persisted) == (9, 9, 0, 0)
    log.append([Entry(10, 2, EntryKind.NOOP)])
    assert (log.term_at(9), log.term_at(10), log.term_at(8)) == (2, 2, None)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.integers(0, 14), st.integers(0, 30))
def test_last_possible_match_is_what_a_search_finds(
    bumps: list[int], index: int, term: int
) -> None:
    terms = [1 + sum(bumps[: n + 1]) for n in range(len(bumps))]
    log = RaftLog(None, [Entry(n, t, EntryKind.NOOP) for n, t in enumerate(terms, 1)])
    possible = [0, *(n for n, t in enumerate(terms, 1) if n <= index and t <= term)]
    assert log.last_possible_match(index, term) == max(possible)


@given(st.lists(st.tuples(st.sampled_from(["send", "ack"]), st.integers(1, 50)), max_size=60))
def test_inflights_are_a_bounded_queue(steps: list[tuple[str, int]]) -> None:
    inflights, model, last = Inflights(4, 60), [(0, 0)][:0], 0
    for kind, number in steps:
        if kind == "send" and not inflights.is_full:
            last += number
            inflights.add(last, number)
            model.append((last, number))
        elif kind == "ack":
            inflights.acknowledge(number)
            model = [entry for entry in model if entry[0] > number]
        assert (len(inflights), inflights.bytes) == (len(model), sum(size for _, size in model))
        assert inflights.is_full == (len(model) >= 4 or inflights.bytes >= 60)


class ProgressMachine(RuleBasedStateMachine):
    """A leader's view beside the follower it is about; answers come late, twice, or never.

    The model is the follower's log: how much of it is the leader's. The view may lag behind it,
    and never claim more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last = 10
        self.real = 0
        self.progress = Progress(self.last + 1, 0, Inflights(3, 1000))
        self.answers: list[tuple[str, int, int]] = []

    @rule(count=st.integers(1, 3))
    def propose(self, count: int) -> None:
        self.last += count

    @precondition(lambda self: not self.progress.is_paused)
    @rule(arrives=st.booleans(), count=st.integers(0, 3))
    def send(self, arrives: bool, count: int) -> None:
        previous = self.progress.next - 1
        upto = min(self.last, previous + count)
        entries = [Entry(n, 1, EntryKind.NOOP) for n in range(previous + 1, upto + 1)]
        self.progress.sent(entries, 0)
        if arrives and self.real >= previous:
            self.real = max(self.real, upto)
            self.answers.append(("ok", upto, 0))
        elif arrives:
            self.answers.append(("no", previous, self.real))

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), again=st.booleans())
    def answer(self, data: st.DataObject, again: bool) -> None:
        number = data.draw(st.integers(0, len(self.answers) - 1))
        kind, index, hint = self.answers[number] if again else self.answers.pop(number)
        if kind == "ok":
            self.progress.acknowledge(index)
        else:
            self.progress.reject(index, hint)

    @rule()
    def heartbeat(self) -> None:
        self.progress.resume()

    @invariant()
    def never_claims_more_than_is_there(self) -> None:
        progress = self.progress
        assert progress.match <= self.real
        assert progress.match < progress.next <= self.last + 1
        assert len(progress.inflights) == 0 or progress.state is ProgressState.REPLICATE

    @override
    def teardown(self) -> None:
        """With answers that arrive, all of the log does."""
        progress = self.progress
        for _ in range(3 * self.last + 10):
            progress.resume()
            previous = progress.next - 1
            if self.real < previous:
                progress.reject(previous, self.real)
                continue
            if not progress.is_paused:
                upto = min(self.last, previous + 3)
                progress.sent(
                    [Entry(n, 1, EntryKind.NOOP) for n in range(previous + 1, upto + 1)], 0
                )
                self.real = max(self.real, upto)
            progress.acknowledge(self.real)
        assert self.progress.match == self.last


TestProgress = ProgressMachine.TestCase
TestProgress.settings = STATEFUL


def test_a_member_that_may_not_be_elected_waits_again_while_nobody_leads() -> None:
    """Its shell sleeps until the deadline: one that has passed would keep it busy for ever."""
    raft = Raft(RaftConfig(node=NodeId("a"), group="g"), Recovered(), Random(1))
    raft.handle(Started(), 0)
    for _ in range(3):
        due_ns = raft.next_deadline_ns()
        assert due_ns is not None
        assert raft.handle(Woke(), due_ns) == []
        again_ns = raft.next_deadline_ns()
        assert again_ns is not None
        assert again_ns > due_ns

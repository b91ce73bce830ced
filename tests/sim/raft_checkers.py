"""What must hold of a Raft group, whatever happens: the true history and who contradicts it.

Each check has a name that its failure begins with; the first five are those of the Raft paper
(figure 3). All see only events, effects, durable state and `Raft`'s public attributes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.logd.raft import (
    Accepted,
    Apply,
    ChangeMembership,
    Effect,
    Entry,
    EntryKind,
    Event,
    Membership,
    Message,
    Persist,
    Raft,
    Received,
    Restore,
    Send,
    Snapshot,
    Started,
)
from penstock.logd.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    SnapshotChunk,
    VoteRequest,
    VoteResponse,
)
from penstock.logd.raft.raft import Leader, majority
from penstock.logd.replication.events import NodeId
from tests.sim.raft_storage import SimStorage

Chain = int
"""A hash over all commands up to an entry: the whole state in one number."""


class Member(Protocol):
    """What checkers see of a simulated node."""

    name: NodeId
    raft: Raft
    applied: int
    chain: Chain
    promised_ns: int

    @property
    def storage(self) -> SimStorage: ...

    def clock_ns(self) -> int: ...


def next_chain(chain: Chain, entry: Entry) -> Chain:
    return hash((chain, entry.index, entry.term, entry.data))


@dataclass
class Before:
    """A member as it was before an event."""

    term: int
    vote: NodeId | None
    leading: bool
    last_index: int
    committed: int

    @classmethod
    def of(cls, raft: Raft) -> "Before":
        leading = isinstance(raft.role, Leader)
        return cls(raft.term, raft.vote, leading, raft.log.last_index, raft.log.committed)


@dataclass
class Checkers:
    """The history of one group.

    Attributes:
        nodes: Those that run.
        storages: Of all nodes, running or not.
        read_snapshot: Up to which entry a snapshot goes, and the chain up to there.
    """

    nodes: Mapping[NodeId, Member]
    storages: Callable[[], Mapping[NodeId, SimStorage]]
    read_snapshot: Callable[[Snapshot], tuple[int, Chain]] = field(
        default=lambda snapshot: snapshot_state(snapshot.data)
    )
    leaders: dict[int, NodeId] = field(default_factory=dict)
    votes: dict[tuple[NodeId, int], NodeId] = field(default_factory=dict)
    acks: dict[tuple[NodeId, int], int] = field(default_factory=dict)
    entries: dict[tuple[int, int], tuple[Entry, int]] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    chains: dict[int, tuple[Entry, Chain]] = field(default_factory=dict)
    commit: int = 0

    def check(self, node: Member, before: Before, event: Event, effects: list[Effect]) -> None:
        """Look at what one event did to one member."""
        raft = node.raft
        self._check_lease_promise(node, before, event, effects)
        assert raft.term >= before.term, "terms: a term went back"
        if isinstance(raft.role, Leader):
            self._check_leader(node, before)
            self._check_rules_of_leaders(raft, before, event, effects)
        for effect in effects:
            match effect:
                case Persist():
                    self._check_entries(raft, effect.entries)
                    if effect.installed and effect.snapshot is not None:
                        newer = effect.snapshot.index > before.committed
                        assert newer, "snapshots: one took the place of newer entries"
                case Send(message):
                    self._check_promise(node, message.recipient, message.term, message.body)
                case Apply(entries):
                    self._check_applied(node, entries)
                case Restore(snapshot):
                    index, chain = self.read_snapshot(snapshot)
                    known = self.chains.get(index)
                    assert index == snapshot.index
                    assert known is None or known[1] == chain, "state-machine safety: snapshot"
                    node.applied, node.chain = index, chain
                case _:
                    pass
        self._check_commit(node)

    def _check_lease_promise(
        self, node: Member, before: Before, event: Event, effects: list[Effect]
    ) -> None:
        """Who hears a leader, or has just started, votes for no other for a while."""
        raft = node.raft
        promise_ns = node.clock_ns() + raft.config.election_timeout_min_ns
        if isinstance(event, Started):
            node.promised_ns = promise_ns
        if not isinstance(event, Received):
            return
        message, body = event.message, event.message.body
        if isinstance(body, AppendRequest | Heartbeat | SnapshotChunk):
            if message.term >= before.term and raft.term == message.term:
                node.promised_ns = promise_ns
        elif isinstance(body, VoteRequest):
            if body.pre:
                same = (raft.term, raft.vote) == (before.term, before.vote)
                # The only voter's own timeout may pass in the same call: it then stands at once.
                stands = (raft.term, raft.vote) == (before.term + 1, node.name)
                assert same or stands, "pre-vote: the question changed term or vote"
            if not body.transfer and node.clock_ns() < node.promised_ns:
                granted = [e for e in effects if isinstance(e, Send) and _grants(e, message)]
                assert granted == [], "lease: a vote that was promised not to be given"

    def _check_rules_of_leaders(
        self, raft: Raft, before: Before, event: Event, effects: list[Effect]
    ) -> None:
        log = raft.log
        if isinstance(event, Received) and isinstance(raft.role, Leader):
            sender = event.message.sender
            progress = raft.role.replicator.progress.get(sender)
            acked = self.acks.get((sender, raft.term), 0)
            assert progress is None or progress.match <= acked, "acks: counted, never given"
        if log.committed > before.committed:
            own = log.term_at(log.committed) == raft.term
            assert own, "commit: an entry of an earlier term, by counting"
        if isinstance(event, ChangeMembership) and any(isinstance(e, Accepted) for e in effects):
            own = log.term_at(before.committed) == raft.term
            assert own, "membership: changed before anything of the own term was committed"
            open_changes = raft.memberships.since(before.committed)
            assert len(open_changes) <= 1, f"membership: {open_changes} are open"

    def _check_leader(self, node: Member, before: Before) -> None:
        raft = node.raft
        leader = self.leaders.setdefault(raft.term, node.name)
        assert leader == node.name, f"election safety: {leader} and {node.name} in {raft.term}"
        if before.leading and before.term == raft.term:
            assert raft.log.last_index >= before.last_index, "leader append-only"
            return
        durable = node.storage.hard_state
        assert (durable.term, durable.vote) == (raft.term, node.name), "votes: own not durable"
        voters = raft.memberships.current.voters
        granted = [
            v for v in voters if self.votes.get((v, raft.term)) == node.name or v == node.name
        ]
        assert len(granted) >= majority(len(voters)), f"votes: elected by {granted}"
        log = raft.log
        for index in range(log.base_index + 1, self.commit + 1):
            has = log.term_at(index) == self.committed[index]
            assert has, f"leader completeness: {node.name} lacks {index} in term {raft.term}"
        self._check_leases(node)

    def _check_leases(self, elected: Member) -> None:
        for other in self.nodes.values():
            if other is not elected and other.raft.lease_end_ns > other.clock_ns():
                assert False, f"lease: {elected.name} elected while {other.name} has it"  # noqa: B011, PT015

    def _check_entries(self, raft: Raft, entries: Iterable[Entry]) -> None:
        for entry in entries:
            previous = raft.log.term_at(entry.index - 1)
            assert previous is not None
            known = self.entries.setdefault((entry.index, entry.term), (entry, previous))
            assert known == (entry, previous), f"log matching: {known} and {entry, previous}"
        log = raft.log
        for index in range(log.last_index, log.base_index, -1):
            entry = log.entry(index)
            if entry.kind is EntryKind.MEMBERSHIP:
                in_force = raft.memberships.current == Membership.decode(entry.data)
                assert in_force, "membership: not the last one of the log is in force"
                break

    def _check_promise(self, node: Member, to: NodeId, term: int, body: object) -> None:
        """What was said to others is durable."""
        match body:
            case VoteResponse(pre=False, granted=True):
                vote = self.votes.setdefault((node.name, term), to)
                assert vote == to, f"votes: {node.name} voted for {vote} and {to} in {term}"
                state = node.storage.hard_state
                assert (state.term, state.vote) == (term, to), "votes: granted, not durable"
            case AppendResponse(index):
                known = self.acks.get((node.name, term), 0)
                self.acks[node.name, term] = max(known, index)
                if index <= node.raft.log.base_index:
                    return
                term_here = node.raft.log.term_at(index)
                durable = node.storage.term_at(index)
                assert durable in (term_here, -1), (
                    f"acks: {index} of {term_here} is {durable} on disk"
                )
            case _:
                pass

    def _check_commit(self, node: Member) -> None:
        """What is committed stays so, and a majority has it on its disks."""
        log = node.raft.log
        if log.committed <= self.commit:
            return
        for index in range(max(self.commit, log.base_index) + 1, log.committed + 1):
            term = log.term_at(index)
            assert term is not None
            self.committed[index] = term
            self._check_majority(node, index, term)
        assert self.commit >= log.base_index, "commit: a snapshot of what nobody committed"
        self.commit = log.committed

    def _check_majority(self, node: Member, index: int, term: int) -> None:
        voters = node.raft.memberships.current.voters
        storages = self.storages()
        have = [v for v in voters if storages[v].term_at(index) in (term, -1)]
        assert len(have) >= majority(len(voters)), f"commit: {index} is durable on {have} only"

    def _check_applied(self, node: Member, entries: Iterable[Entry]) -> None:
        for entry in entries:
            assert entry.index == node.applied + 1, "state-machine safety: order"
            node.applied = entry.index
            node.chain = next_chain(node.chain, entry)
            known = self.chains.setdefault(entry.index, (entry, node.chain))
            assert known == (entry, node.chain), f"state-machine safety: {known[0]} and {entry}"


def snapshot_data(index: int, chain: Chain) -> bytes:
    """A state as bytes, in several chunks."""
    return f"{index} {chain} ".encode().ljust(180, b".")


def snapshot_state(data: bytes) -> tuple[int, Chain]:
    index, chain, _ = data.split(b" ", 2)
    return int(index), int(chain)


def _grants(effect: Send, request: Message) -> bool:
    body = effect.message.body
    return (
        isinstance(body, VoteResponse)
        and body.granted
        and (effect.message.recipient, effect.message.term) == (request.sender, request.term)
    )


@dataclass
class Histories:
    """Writes and reads as clients saw them; a log makes it simple to say whether they fit.

    A write takes effect at its index, a read sees the state after some index. They are
    linearizable when no operation takes effect before one that ended before it began.
    """

    position_min: int = 0
    began: dict[int, int] = field(default_factory=dict)
    writes: int = 0
    reads: int = 0

    def begin(self, tag: int) -> None:
        self.began[tag] = self.position_min

    def written(self, tag: int, index: int) -> None:
        assert index > self.began.pop(tag), "linearizability: a write before what it followed"
        self.position_min = max(self.position_min, index)
        self.writes += 1

    def read(self, tag: int, index: int) -> None:
        begun = self.began.pop(tag)
        assert index >= begun, f"linearizability: read {index}, which was {begun} before"
        self.position_min = max(self.position_min, index)
        self.reads += 1

    def failed(self, tag: int) -> None:
        self.began.pop(tag, None)

"""A Raft group under one seed: bad network, bad disks, bad clocks, crashes, changes of members.

The world runs some seconds of faults, heals everything, and then demands progress. The checkers
look at every event (`tests.sim.raft_checkers`). `marks` counts how often each rare branch ran.
"""

import heapq
from typing import TYPE_CHECKING

from penstock.logd.raft import (
    AddLearner,
    ChangeMembership,
    Demote,
    Membership,
    MembershipChange,
    Promote,
    Propose,
    Read,
    Recovered,
    Remove,
    TransferLeadership,
    initial_state,
    membership_of,
)
from penstock.logd.raft.messages import MILLISECOND
from penstock.logd.raft.raft import Leader
from tests.sim.raft_group import MakeStorage, RaftGroup
from tests.sim.raft_node import Node
from tests.sim.raft_storage import ModelStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.logd.replication.events import NodeId

HEALED_MS_MAX = 3_000
"""Within so long after the last fault the group must have made progress."""


class RaftWorld(RaftGroup):
    """One run. Call `run`."""

    def run(self, faults_ms: int = 900) -> None:
        """Faults for a while, then none, then look whether it works again."""
        first = [next(self._names) for _ in range(self.random.choice((1, 2, 3, 3, 3, 4, 5)))]
        self.membership = membership_of(first)
        for name in first:
            self.storages[name] = self._make_storage(initial_state(self.membership))
            self.start(name)
        self.at(0, self.act)
        self.run_until(faults_ms * MILLISECOND)
        self.heal()

    # What happens.

    def act(self) -> None:
        """One thing happens now, the next one soon."""
        actions: list[tuple[Callable[[], None], float]] = [
            (self.propose, 40),
            (self.read, 15),
            (self.change, self._changes),
            (self.transfer, 1),
            (self.fail, self._badness),
            (self.revive, self._badness),
            (self.disturb, self._badness),
            (self.pause, self._badness / 2),
            (self.isolate_leader, self._badness / 2),
        ]
        [action] = self.random.choices(
            [action for action, _ in actions], [weight for _, weight in actions]
        )
        action()
        self.at(int(self.random.expovariate(1) * 8 * MILLISECOND), self.act)

    def anyone(self) -> Node | None:
        """A node that runs, mostly one that believes that it leads."""
        nodes = [self.nodes[name] for name in sorted(self.nodes)]
        leading = self.leading()
        if leading and self.random.random() < 0.8:
            return self.random.choice(leading)
        return self.random.choice(nodes) if nodes and self.random.random() < 0.5 else None

    def leading(self) -> list[Node]:
        """Nodes that believe that they lead."""
        nodes = [self.nodes[name] for name in sorted(self.nodes)]
        return [node for node in nodes if isinstance(node.raft.role, Leader)]

    def next_tag(self) -> int:
        self._tag += 1
        return self._tag

    def propose(self) -> None:
        node = self.anyone()
        for _ in range(self.random.choice((1, 1, 1, 1, 1, 1, 2, 12)) if node else 0):
            assert node is not None
            tag = self.next_tag()
            self.histories.begin(tag)
            data = b"%d" % tag if self.random.random() < 0.97 else bytes(101)
            self.tell(node, Propose(tag, data))

    def read(self) -> None:
        node = self.anyone()
        for _ in range(self.random.choice((1, 1, 1, 1, 1, 6)) if node else 0):
            assert node is not None
            tag = self.next_tag()
            self.histories.begin(tag)
            node.reads.add(tag)
            self.tell(node, Read(tag))

    def change(self) -> None:
        node = self.anyone()
        if node is not None:
            change = self.some_change(node.raft.memberships.current)
            if change is not None:
                tag = self.next_tag()
                self.histories.begin(tag)
                self.tell(node, ChangeMembership(tag, change))

    def some_change(self, now: Membership) -> MembershipChange | None:
        random = self.random
        kind = random.choice((AddLearner, Promote, Promote, Promote, Demote, Remove))
        if kind is AddLearner:
            if len(now.members) >= 6 or (name := next(self._names, None)) is None:
                return None
            self.storages[name] = self._make_storage(Recovered())
            self.start(name)
            return AddLearner(name)
        some: Sequence[NodeId] = sorted(now.learners if kind is Promote else now.members)
        return kind(random.choice(some)) if some else None

    def transfer(self) -> None:
        node = self.anyone()
        if node is not None:
            members = sorted(node.raft.memberships.current.members) or [node.name]
            target = self.random.choice(members)
            self.tell(node, TransferLeadership(self.next_tag(), target))

    def fail(self) -> None:
        """Some node loses its power, sometimes all do; it may come back soon, or stay away."""
        names = sorted(self.nodes)
        if names and self.random.random() > 0.1:
            writing = [name for name in names if self.nodes[name].batch]
            names = [self.random.choice(writing or names)]
        for name in names:
            self.crash(name)
            if self.random.random() < 0.6:
                self.at(self.random.randrange(60) * MILLISECOND, self.start, name)

    def revive(self) -> None:
        for name in sorted(self.storages):
            if self.random.random() < 0.7:
                self.start(name)

    def disturb(self) -> None:
        """The network or the disks become worse or better."""
        match self.random.randrange(6):
            case 0:
                self.network.draw()
            case 1 | 2 | 3:
                self.network.partition(sorted(self.storages))
            case 4:
                self.network.heal()
            case _:
                self._disk_ms = self.random.choice((0.1, 1.0, 10.0, 30.0, 100.0))

    def pause(self) -> None:
        if self.nodes:
            node = self.nodes[self.random.choice(sorted(self.nodes))]
            node.paused_until_ns = self.clock[0] + self.random.randrange(300) * MILLISECOND

    def isolate_leader(self) -> None:
        """Cut a leader off all others or off one; clients of either side go on."""
        leading = self.leading()
        if not leading:
            return
        leader = self.random.choice(leading).name
        others = [name for name in sorted(self.storages) if name != leader]
        if others and self.random.random() < 0.4:
            others = [self.random.choice(others)]
        for name in others:
            self.network.cut |= {(leader, name), (name, leader)}
        for delay_ms in range(80, 400, 10):
            self.at(delay_ms * MILLISECOND, self.use_leaders)

    def use_leaders(self) -> None:
        """Where two believe that they lead, write to one and read from the other."""
        leading = self.leading()
        if len(leading) > 1:
            self.marks["two leaders"] += 1
            for node in leading:
                tag = self.next_tag()
                self.histories.begin(tag)
                self.tell(node, Propose(tag, b"%d" % tag))
            for node in leading:
                tag = self.next_tag()
                self.histories.begin(tag)
                node.reads.add(tag)
                self.tell(node, Read(tag))

    # Afterwards.

    def heal(self) -> None:
        """All faults end: a proposal must commit, everyone must have it, a read must see it."""
        self._events = [e for e in self._events if e[2] != self.act]
        heapq.heapify(self._events)
        self.network.heal()
        self._disk_ms = 1.0
        for name in sorted(self.storages):
            self.start(name)
        end_ns = self.clock[0] + HEALED_MS_MAX * MILLISECOND
        before = self.histories.writes
        self.at(0, self.probe, before, end_ns)
        assert self.run_until(end_ns, lambda: self.histories.writes > before), "liveness: no write"
        goal = self.checkers.commit
        assert self.run_until(end_ns, lambda: self.converged(goal)), "liveness: not all caught up"
        reads = self.histories.reads
        self.at(0, self.probe_reads, reads)
        assert self.run_until(end_ns, lambda: self.histories.reads > reads), "liveness: no read"

    def probe(self, before: int, end_ns: int) -> None:
        if self.histories.writes > before or self.clock[0] > end_ns:
            return
        for name in sorted(self.nodes):
            if isinstance(self.nodes[name].raft.role, Leader):
                tag = self.next_tag()
                self.histories.begin(tag)
                self.tell(self.nodes[name], Propose(tag, b"%d" % tag))
        self.at(20 * MILLISECOND, self.probe, before, end_ns)

    def probe_reads(self, before: int) -> None:
        if self.histories.reads > before:
            return
        for name in sorted(self.membership.members):
            tag = self.next_tag()
            self.histories.begin(tag)
            self.nodes[name].reads.add(tag)
            self.tell(self.nodes[name], Read(tag))
        self.at(100 * MILLISECOND, self.probe_reads, before)

    def converged(self, goal: int) -> bool:
        return all(self.nodes[name].applied >= goal for name in self.membership.members)


def run_seed(seed: int, make_storage: MakeStorage = ModelStorage.of) -> RaftWorld:
    """Run one seed; the error says which."""
    world = RaftWorld(seed, make_storage)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world

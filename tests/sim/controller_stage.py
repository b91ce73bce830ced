"""What `controller_world` plays on: time, messages, and a metadata group as Raft promises it."""

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from penstock.logd.controller.controller import (
    BecameController,
    CommandApplied,
    ControllerEvent,
    LostController,
)
from penstock.logd.controller.liveness import BeatNow, LeaseEvent
from penstock.logd.metadata.commands import Command, CreateStream
from penstock.logd.metadata.state import ClusterState, Result
from penstock.logd.metadata.tables import Done
from tests.sim.controller_node import (
    FAULTS_NS,
    MS,
    RAFT_LEASE_NS,
    TIMING,
    Entry,
    LogKey,
    SimNode,
)


class Stage(ABC):
    """The queue of what is to happen, and the log of the metadata group.

    Attributes:
        timing: Of the controllers and the leases.
        slow_messages, slow_commits, slow_applies, late_learners, handovers: How often each of
            these faults is picked.
        repeats, missed_fetches: These, too.
        reached: Rare things that happened.
    """

    timing = TIMING
    slow_messages = 0.03
    slow_commits = 0.05
    slow_applies = 0.05
    late_learners = 0.3
    handovers = 0.01
    repeats = 0.1
    missed_fetches = 0.2

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0
        self.queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.events = 0
        names = "abcde"[: self.random.choice((3, 4, 4, 5))]
        self.nodes = {name: SimNode(name, self.random, self.timing) for name in names}
        self.log: list[tuple[int, Command, tuple[str, int] | None]] = []
        self.committed = 0
        self.term = 0
        self.raft_leader: SimNode | None = None
        self.no_election_before = 0
        self.calm_until = 0
        self.serial = 0
        self.acked: dict[LogKey, list[Entry]] = {}
        self.led_ns: dict[LogKey, int] = {}
        self.begun: set[tuple[LogKey, int]] = set()
        self.reference = ClusterState()
        self.digests: dict[int, str] = {}
        self.incarnations: set[str] = set()
        self.reached: Counter[str] = Counter()

    def at(self, delay: int, action: Callable[..., None], *args: Any) -> None:
        self.events += 1
        heapq.heappush(self.queue, (self.now + delay, self.events, action, args))

    def on(self, node: SimNode, boots: int, action: Callable[..., None], *args: Any) -> None:
        """Do something in a process, when it runs; never, if it is another one by then."""
        if not node.up or node.boots != boots:
            return
        if self.now < node.paused_until:
            delay = node.paused_until - self.now + self.random.randrange(1 * MS)
            self.at(delay, self.on, node, boots, action, *args)
            return
        action(*args)

    def send(self, sender: SimNode, to: SimNode, action: Callable[..., None], *args: Any) -> None:
        """Deliver, or lose, a message."""
        faulty = self.now < FAULTS_NS
        if sender is not to and not (sender.is_heard and to.hears):
            return
        if faulty and sender is not to and self.random.random() < 0.03:
            return
        delay = self.random.randrange(1 * MS, 10 * MS)
        if faulty and self.random.random() < self.slow_messages:
            delay += self.random.randrange(500 * MS)
        self.at(delay, self.on, to, to.boots, action, to, *args)

    @abstractmethod
    def control(self, node: SimNode, event: ControllerEvent) -> None:
        """Tell a node's controller something."""

    @abstractmethod
    def use_lease(self, node: SimNode, event: LeaseEvent) -> None:
        """Tell a node's lease something."""

    @abstractmethod
    def check_one_leader(self) -> None:
        """Look whether two nodes believe that they lead the same."""

    # The metadata group.

    def is_well(self, node: SimNode) -> bool:
        return node.up and self.now >= node.paused_until and node.hears and node.is_heard

    def raft_tick(self) -> None:
        self.at(80 * MS, self.raft_tick)
        leader = self.raft_leader
        if leader is not None and self.is_well(leader):
            leader.raft_until = leader.clock(self.now) + RAFT_LEASE_NS
            self.no_election_before = self.now + RAFT_LEASE_NS * 110 // 100
            if self.now < FAULTS_NS and self.random.random() < self.handovers:
                self.reached["controller handed over"] += 1
                self.raft_leader, self.no_election_before = None, self.now
                leader.raft_until = 0
                self.control(leader, LostController())
                self.elect()
            return
        if self.now >= self.no_election_before:
            self.elect()

    def elect(self) -> None:
        well = [node for node in self.nodes.values() if self.is_well(node)]
        if len(well) * 2 <= len(self.nodes):
            return
        self.reached["controllers"] += 1
        self.term += 1
        leader = self.random.choice(well)
        kept = self.random.randint(self.committed, len(self.log))
        self.reached["proposals lost"] += len(self.log) - kept
        del self.log[kept:]
        self.control(leader, LostController())  # of an earlier term
        self.raft_leader = leader
        leader.raft_until = leader.clock(self.now) + RAFT_LEASE_NS
        self.no_election_before = self.now + RAFT_LEASE_NS * 110 // 100
        for node in self.nodes.values():
            late = self.now < FAULTS_NS and self.random.random() < self.late_learners
            self.at(self.random.randrange((600 if late else 60) * MS), self.learn, node, leader)
        delay = self.random.randrange(5 * MS, 60 * MS)
        elected_ns = leader.clock(self.now)
        self.at(
            delay, self.on, leader, leader.boots, self.take_office, leader, elected_ns, self.term
        )

    def learn(self, node: SimNode, leader: SimNode) -> None:
        if self.raft_leader is leader:
            node.known = leader.name

    def take_office(self, leader: SimNode, elected_ns: int, term: int) -> None:
        if term == self.term:
            self.commit(len(self.log), term)
            self.catch_up(leader, self.committed)
            self.control(leader, BecameController(leader.state, elected_ns))

    def propose(self, node: SimNode, command: Command, proposal: int | None = None) -> None:
        if self.raft_leader is not node:
            return  # it has been replaced and does not know
        origin = None if proposal is None else (node.name + str(node.boots), proposal)
        self.log.append((self.term, command, origin))
        delay = self.random.randrange(2 * MS, 15 * MS)
        if self.now < FAULTS_NS and self.random.random() < self.slow_commits:
            delay += self.random.randrange(300 * MS)
        self.at(delay, self.commit, len(self.log), self.term)

    def commit(self, length: int, term: int) -> None:
        leader = self.raft_leader
        if term != self.term or leader is None or not self.is_well(leader):
            if term == self.term:
                self.at(50 * MS, self.commit, length, term)
            return
        while self.committed < length:
            _, command, _ = self.log[self.committed]
            self.committed += 1
            self.note(command, self.reference.apply(self.committed, command))
        for node in self.nodes.values():
            delay = self.random.randrange(1 * MS, 10 * MS)
            if self.now < FAULTS_NS and self.random.random() < self.slow_applies:
                delay += self.random.randrange(400 * MS)
            self.at(delay, self.on, node, node.boots, self.catch_up, node, self.committed)

    def note(self, command: Command, result: Result) -> None:
        if isinstance(command, CreateStream) and isinstance(result, Done) and result.changed:
            assert result.incarnation not in self.incarnations, "an incarnation comes twice"
            self.incarnations.add(result.incarnation)
            self.reached["streams"] += 1
        if self.committed % 32 == 0:
            self.digests[self.committed] = self.reference.digest()

    def catch_up(self, node: SimNode, index: int) -> None:
        if not node.hears:
            return
        while node.applied < index:
            _, command, origin = self.log[node.applied]
            led = {key for key, _, one in node.state.partitions() if one.leader == node.name}
            node.applied += 1
            result = node.state.apply(node.applied, command)
            expected = self.digests.get(node.applied)
            assert expected is None or expected == node.state.digest(), "states differ"
            mine = origin is not None and origin[0] == node.name + str(node.boots)
            proposal = origin[1] if origin is not None and mine else None
            self.control(node, CommandApplied(command, result, proposal))
            leads = {key for key, _, one in node.state.partitions() if one.leader == node.name}
            if led - leads:
                self.use_lease(node, BeatNow())
            if leads - led:
                self.check_one_leader()
        if self.random.random() < 0.01:
            node.snapshot = (node.applied, node.state.snapshot())

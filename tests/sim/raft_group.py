"""The nodes of a simulated Raft group, and how time passes for them.

What happens to them is drawn by `tests.sim.raft_world`; the checkers look at every event.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from penstock.logd.raft import (
    Accepted,
    Apply,
    Effect,
    Event,
    Halted,
    Ignored,
    LeaderChanged,
    Membership,
    MembershipChanged,
    Persist,
    Persisted,
    ReadReady,
    Received,
    Recovered,
    Refused,
    Restore,
    Send,
    SnapshotTaken,
    SnapshotWanted,
    Started,
    Woke,
)
from penstock.logd.raft import node as raft_node
from penstock.logd.raft.messages import MILLISECOND
from penstock.logd.replication.events import NodeId
from tests.sim.raft_checkers import Before, Checkers, Histories, snapshot_data
from tests.sim.raft_network import Network
from tests.sim.raft_node import Node, Write
from tests.sim.raft_storage import ModelStorage, SimStorage

SECOND = 1000 * MILLISECOND
MakeStorage = Callable[[Recovered], SimStorage]


class RaftGroup:
    """Nodes, their disks and clocks, and the network between them.

    Args:
        seed: Picks everything.
        make_storage: A node's disk, from what it holds at first.
    """

    def __init__(self, seed: int, make_storage: MakeStorage = ModelStorage.of) -> None:
        self.random = Random(seed)
        self.clock = [0]
        self.network = Network(self.random)
        self.nodes: dict[NodeId, Node] = {}
        self.storages: dict[NodeId, SimStorage] = {}
        self.disks: dict[NodeId, str] = {}
        self.checkers = Checkers(self.nodes, lambda: self.storages)
        self.histories = Histories()
        self.marks: Counter[str] = Counter()
        self.membership = Membership()
        self.membership_index = 0
        self._make_storage = make_storage
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._tag = 0
        self._names = iter([NodeId(f"n{n}") for n in range(1, 9)])
        self._disk_ms = self.random.choice((0.5, 3.0, 15.0))
        self._badness = self.random.choice((0.5, 1.5, 3.0))
        self._changes = self.random.choice((1, 5, 20))

    # Time.

    def at(self, delay_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        entry = (self.clock[0] + delay_ns, self._sequence, action, arguments)
        heapq.heappush(self._events, entry)

    def run_until(self, end_ns: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen up to a time; whether it was done before."""
        events = self._events
        while events and events[0][0] <= end_ns:
            now_ns, _, action, arguments = heapq.heappop(events)
            self.clock[0] = now_ns
            action(*arguments)
            if done():
                return True
        self.clock[0] = end_ns
        return done()

    # Nodes.

    def start(self, name: NodeId) -> None:
        if name in self.nodes:
            return
        random = self.random
        rate = random.uniform(0.96, 1.04)
        node = Node(
            name, self.storages[name], self.clock, Random(random.getrandbits(32)), rate,
            random.randrange(10 * SECOND), disk=self.disks.get(name, ""),
        )  # fmt: skip
        self.nodes[name] = node
        self.tell(node, Started())

    def crash(self, name: NodeId) -> None:
        node = self.nodes.pop(name, None)
        if node is None:
            return
        self.marks["crash"] += 1
        if node.batch:
            self.marks["crash while writing"] += 1
        node.up = False
        node.storage.crash(list(node.batch), self.random)
        for tag in (*(write.tag for write in node.writes.values()), *node.reads):
            self.histories.failed(tag)

    def tell(self, node: Node, event: Event) -> None:
        """Give a node an event, as soon as it is not paused, and do what follows from it."""
        if not node.up:
            return
        if node.paused_until_ns > self.clock[0]:
            self.at(node.paused_until_ns - self.clock[0], self.tell, node, event)
            return
        before = Before.of(node.raft)
        effects = node.raft.handle(event, node.clock_ns())
        self.checkers.check(node, before, event, effects)
        self.marks.update(type(effect).__name__ for effect in effects)
        for effect in effects:
            self.act_on(node, effect)
        deadline = node.raft.next_deadline_ns()
        if deadline is not None:
            wakes_ns = node.world_ns(deadline)
            if node.wakes_ns <= self.clock[0] or wakes_ns < node.wakes_ns:
                node.wakes_ns = wakes_ns
                self.at(max(0, wakes_ns - self.clock[0]), self.wake, node, wakes_ns)

    def wake(self, node: Node, wakes_ns: int) -> None:
        if node.wakes_ns == wakes_ns:
            self.tell(node, Woke())

    def act_on(self, node: Node, effect: Effect) -> None:
        match effect:
            case Persist():
                node.writing.append(effect)
                self.write(node)
            case Send(message):
                for delay_ns in self.network.delays_ns(message.sender, message.recipient):
                    self.at(delay_ns, self.arrive, message.recipient, Received(message))
            case Apply() | Restore() | SnapshotWanted():
                self.change_state(node, effect)
            case Accepted() | Refused() | ReadReady():
                self.answer(node, effect)
            case MembershipChanged(index, membership, committed=True):
                if index >= self.membership_index:
                    self.membership, self.membership_index = membership, index
            case _:
                known = LeaderChanged | MembershipChanged | Ignored | Halted
                assert isinstance(effect, known), effect
                assert self.disks or not isinstance(effect, Ignored | Halted), effect

    def change_state(self, node: Node, effect: Apply | Restore | SnapshotWanted) -> None:
        match effect:
            case Apply(entries):
                for entry in entries:
                    write = node.writes.pop(entry.index, None)
                    if write is not None and write.term == entry.term:
                        self.histories.written(write.tag, write.index)
            case Restore(snapshot):
                for index in [index for index in node.writes if index <= snapshot.index]:
                    self.histories.failed(node.writes.pop(index).tag)
            case SnapshotWanted():
                state = SnapshotTaken(node.applied, snapshot_data(node.applied, node.chain))
                self.at(self.random.randrange(40 * MILLISECOND), self.tell, node, state)

    def answer(self, node: Node, effect: Accepted | Refused | ReadReady) -> None:
        match effect:
            case Accepted(tag, index, term):
                node.writes[index] = Write(tag, index, term)
            case Refused(tag, error):
                self.marks[f"refused {type(error).__name__}"] += 1
                node.reads.discard(tag)
                self.histories.failed(tag)
            case ReadReady(tag):
                node.reads.remove(tag)
                self.histories.read(tag, node.applied)

    def arrive(self, name: NodeId, event: Received) -> None:
        node = self.nodes.get(name)
        if node is not None:
            self.tell(node, event)

    def write(self, node: Node) -> None:
        """The disk takes one thing after another; what waits meanwhile is merged."""
        if node.writing and not node.batch:
            if len(node.writing) > 1:
                self.marks["merged"] += 1
            node.batch.extend(raft_node.merge_steps(node.writing))
            node.writing.clear()
            self.sync(node)

    def sync(self, node: Node) -> None:
        delay_ms = self.random.random() ** 2 * self._disk_ms
        self.at(int(delay_ms * MILLISECOND) + 1, self.written, node)

    def written(self, node: Node) -> None:
        if not node.up:
            return
        effect = node.batch.popleft()
        node.storage.persist(effect)
        if node.batch:
            self.sync(node)
            return
        self.write(node)
        self.tell(node, Persisted(effect.number))

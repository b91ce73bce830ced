"""Three to five replicas of one partition in a bad world; one seed picks everything.

The network delays, drops, repeats, reorders and cuts one way. Disks lose what is not synced, fail,
and are slow. Processes die, with or without their machine, and are stopped so that their timers
come late. Clocks run apart. Publishers repeat what is not acked. After a while all that ends, and
the world must come to rest with every message acked and all replicas equal.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from typing_extensions import override

from penstock.logd.replication.events import Finding, NodeId, StepDown
from tests.sim.replication_controller import Controller
from tests.sim.replication_history import History, Message
from tests.sim.replication_node import Node
from tests.sim.stage import MS, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

TROUBLE_NS: Final = 900 * MS
CALM_NS: Final = 1500 * MS
TICK_NS: Final = 10 * MS
CLIENTS: Final = 3
LOSSES: Final = {Finding.DIVERGED, Finding.UNCLEAN_LOSS, Finding.HOLE_TAKEN}


class ReplicationWorld(Stage):
    """One run. Call `run`.

    Args:
        seed: Picks everything.
        spite: Chance that an election or a change of the ISR is answered with trouble.
        retaining: Retention deletes much, so that who was away finds the beginning gone.

    Attributes:
        disk_failure: Chance of each write and sync.
    """

    def __init__(self, seed: int, *, spite: float = 0.4, retaining: bool = False) -> None:
        super().__init__(seed)
        self.retaining = retaining
        random = self.random
        self.spite = spite
        self.history = History()
        self.unclean = seed % 10 == 9
        self.moving = seed % 20 in (6, 11, 13, 18)
        self.disk_failure = 0.0
        self.rotten: set[int] = set()
        self.rotting = random.choice((1, 1, 4))
        names = [NodeId(f"n{n}") for n in range(random.choice((3, 3, 3, 4, 5)))]
        observers = random.choice((0, 0, 1)) if len(names) > 3 else 0
        self.nodes: dict[NodeId, Node] = {name: Node(self, name) for name in names}
        self.controller = Controller(self, names, observers)
        self.waiting = [Message(client, 0, self._policy()) for client in range(CLIENTS)]
        self.acked = [0] * CLIENTS

    def run(self) -> None:
        """Trouble, then calm, then a look at everything."""
        self.at(0, lambda: self.controller.change(self.controller.view))
        for node in self.nodes.values():
            self.every(TICK_NS, partial(node.do, node.tick))
        self.every(TICK_NS, self.controller.look)
        self.every(8 * MS, self.publish)
        self.every(25 * MS, self.trouble)
        self.play_until(TROUBLE_NS)
        self.be_calm()
        deadline_ns = TROUBLE_NS + CALM_NS
        while (why := self.not_at_rest()) and self.now_ns < deadline_ns:
            self.play_until(self.now_ns + 50 * MS)
        assert not why, f"no rest: {why}"
        self.history.check_end()

    def not_at_rest(self) -> str:
        view = self.controller.view
        if view.isr != frozenset(view.replicas) or self.controller.target is not None:
            return f"the ISR is {sorted(view.isr)}, {view.replicas} to {self.controller.target}"
        if any(count < self.waiting[client].number for client, count in enumerate(self.acked)):
            return "a publisher waits"
        return self.history.converged(self.holders())

    def holders(self) -> list[Node]:
        """The nodes that have a replica."""
        return [node for name, node in self.nodes.items() if self.controller.view.holds(name)]

    # The network.

    @override
    def _deliver(self, target: str, action: Callable[[Any], None]) -> None:
        delay_ns = self.delay_ns()
        if target == "controller":
            self.at(delay_ns, lambda: action(self.controller))
        else:
            node = self.nodes[NodeId(target)]
            self.at(delay_ns, lambda: node.do(lambda: action(node)))

    def delays(self) -> list[int]:
        """How late each copy of a proposal is: there may be two, far apart."""
        if self.calm:
            return [0]
        copies = 2 if self.random.random() < self.spite / 2 else 1
        return [self.random.choice((0, 0, 30, 120)) * MS for _ in range(copies)]

    # Publishers.

    def _policy(self) -> str:
        return "leader" if self.random.random() < 0.3 else "all"

    def publish(self) -> None:
        """Each publisher sends what is not acked again, or something new."""
        for client, acked in enumerate(self.acked):
            if acked >= self.waiting[client].number:
                if self.calm:
                    continue
                self.waiting[client] = Message(client, acked + 1, self._policy())
            message = self.waiting[client]
            self.history.published.add(message)
            for node in self.nodes:
                if self.random.random() >= self.drop:
                    publish = partial(self.nodes[node].published, message)
                    self.at(self.random.randrange(3 * MS), partial(self.nodes[node].do, publish))

    def ack(self, node: Node, offset: int, message: Message, policy: str) -> None:
        """A node answers a publisher; the answer may be lost."""
        self.history.acks(node, offset, message, policy)
        self.mark(f"acked {policy}")
        if self.calm or self.random.random() >= self.drop:
            self.acked[message.client] = max(self.acked[message.client], message.number)

    # Trouble.

    def trouble(self) -> None:
        """Something bad, mostly to the leader."""
        if self.calm:
            return
        random = self.random
        names = list(self.nodes)
        leader = self.controller.view.leader
        victim = leader if leader and random.random() < 0.5 else random.choice(names)
        node = self.nodes[victim]
        kinds = (self.kill, self.kill, self.stop, self.isolate, self.slow_down, self.break_disk,
                 self.rot, self.step_down, self.black_out, self.retain, self.alter)  # fmt: skip
        if self.moving and random.random() < 0.2:
            self.move()
            return
        retain = 30 if self.retaining else 2
        random.choices(kinds, (4, 4, 5, 6, 3, 1, self.rotting, 2, 1, retain, 1))[0](node)

    def aim(self, leader: NodeId, added: frozenset[NodeId] = frozenset()) -> None:
        """Trouble at the worst moment: as an election or a change of the ISR takes effect."""
        if self.calm or self.random.random() >= self.spite:
            return
        for name in added:
            self.nodes[name].slow = 40
            self.at(80 * MS, partial(setattr, self.nodes[name], "slow", 1))
            if self.retaining:  # what it has of the leader may not be on its disk yet
                self.at(self.random.randrange(20 * MS), partial(self.kill, self.nodes[name]))
        trouble = self.random.choice((self.kill, self.kill, self.stop, self.step_down))
        self.at(self.random.randrange(40 * MS), partial(trouble, self.nodes[leader]))

    def kill(self, node: Node, *, power: bool | None = None) -> None:
        if not node.running:
            return
        node.die(power=self.random.random() < 0.6 if power is None else power)
        life = node.life
        self.at(
            self.random.choice((5, 30, 120)) * MS,
            lambda: node.start_up() if node.life == life else None,
        )

    def black_out(self, node: Node) -> None:
        self.mark("black out")
        for each in self.nodes.values():
            if each is node or self.random.random() < 0.8:
                self.kill(each, power=True)

    def stop(self, node: Node) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if not node.running or node.paused:
            return
        node.paused, life = True, node.life
        self.at(
            self.random.choice((10, 50, 150)) * MS,
            lambda: node.resume() if node.life == life else None,
        )

    def isolate(self, node: Node) -> None:
        """Cut some of its links, one way or both."""
        others: list[str] = ["controller", *(name for name in self.nodes if name != node.name)]
        others = self.random.choice((others, others[:1], others[1:], [self.random.choice(others)]))
        self.block(node.name, others)

    def slow_down(self, node: Node) -> None:
        node.slow = self.random.choice((5, 40))
        self.at(self.random.choice((30, 150)) * MS, partial(setattr, node, "slow", 1))

    def break_disk(self, node: Node) -> None:
        if node.running and not node.paused:
            node.fail()

    def rot(self, node: Node) -> None:
        """A sector of what is durable cannot be read any more, with one record or two."""
        disk = node.disk
        if not node.running or not disk.certain() or self.moving:
            return  # who has the record may be moved away
        end = disk.start + disk.certain()
        offset = self.random.randrange(disk.start, end)
        sector = range(offset, min(offset + 1 + self.now_ns // MS % 2, end))
        rotten = [at for at in sector if self.may_rot(node, at)]
        for at in rotten:
            self.rotten.add(at)
            disk.rot(at)
        if rotten:
            self.mark("rot")
            node.will_notice(rotten[0])

    def may_rot(self, node: Node, offset: int) -> bool:
        """Once: somebody has it, unless an operator may take a loss."""
        record = node.disk.records[offset - node.disk.start]
        if record is None or (offset in self.rotten and not self.unclean):
            return False
        return self.unclean or sum(n.disk.keeps(offset, record) for n in self.nodes.values()) > 1

    def step_down(self, node: Node) -> None:
        node.do(lambda: node.take(StepDown()))

    def retain(self, node: Node) -> None:
        if node.leading:
            upto = self.random.randint(0, node.high_watermark + 1)
            node.do(lambda: node.writer.delete_before(upto))

    def move(self) -> None:
        """Replicas are to be elsewhere, or an observer comes or goes."""
        random, controller = self.random, self.controller
        view = controller.view
        free = [
            node for node in self.nodes if not view.holds(node) and node not in controller.former
        ]
        if random.random() < 0.3:
            observers = (
                view.observers - {*random.sample(sorted(view.observers), 1)}
                if view.observers
                else frozenset(free[:1])
            )
            controller.former |= view.observers - observers
            self.mark("observers changed")
            controller.change(replace(view, observers=observers))
        elif controller.target is None:
            controller.target = tuple(random.sample(list(self.nodes), len(view.replicas)))

    def alter(self, _: Node) -> None:
        """The stream's options change."""
        view = self.controller.view
        most = len(view.replicas) // 2 + 1
        read_only, min_isr = self.random.random() < 0.3, self.random.randint(1, most)
        self.controller.change(replace(view, read_only=read_only, min_isr=min_isr))

    def operate(self) -> None:
        """An operator sees a leader with a hole that nobody can fill."""
        leader = self.controller.view.leader
        if leader is None or not self.nodes[leader].holes():
            return
        node = self.nodes[leader]
        node.do(lambda: node.writer.delete_before(node.high_watermark + 1))
        if node.holes():  # it is the last record
            self.controller.elect_unclean()

    def be_calm(self) -> None:
        self.calm, self.slowest_ms, self.disk_failure = True, 2, 0.0
        self.controller.change(replace(self.controller.view, read_only=False))
        if self.unclean:
            self.every(100 * MS, self.operate)
        self.blocked = set()
        for node in self.nodes.values():
            node.slow = 1
            if node.paused:
                node.resume()
            if not node.running:
                node.start_up()

    # What is seen.

    def told(self, finding: Finding) -> None:
        self.mark(f"told {finding.name.lower()}")
        if finding in LOSSES:
            assert self.history.lossy, finding
        assert finding not in (Finding.MISFIT, Finding.COMMITTED_LOST), finding  # disks are honest

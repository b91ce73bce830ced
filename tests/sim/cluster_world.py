"""The whole cluster under one seed: Raft, state, controller, leases, replicas, intake with ids.

Every core is the real one, and so are the bytes of commands and snapshots; one network, one clock
for each machine, and disks that lose what is not synced are under all of them. Processes die,
alone, with their machine or all at once, are stopped and cut off. Operators move, drain, alter,
pause, delete and create again. Publishers repeat what is not acked. Then the trouble ends, and
everything must come to rest: moved, in sync, led, every message acked, every node with the same
state.

What is checked as it happens: the rules of Raft and that metadata are linearizable
(`raft_checkers`), I1 to I6 of each incarnation of a partition (`replication_history`), that the ISR
has what is committed, that nobody leads beside another, and that a move takes nothing away before
its replacement is in sync (`cluster_watch`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from penstock.logd import raft as on
from penstock.logd.replication.events import NodeId, StepDown
from tests.sim.cluster_operator import Operator
from tests.sim.cluster_server import Server
from tests.sim.cluster_watch import Watch
from tests.sim.raft_checkers import Chain, Checkers, Histories
from tests.sim.raft_storage import ModelStorage
from tests.sim.stage import MS, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.logd.metadata.records import PartitionKey
    from penstock.logd.metadata.state import ClusterState, Result
    from tests.sim.cluster_scene import Scene

TROUBLE_NS: Final = 900 * MS
CALM_NS: Final = 3000 * MS
TICK_NS: Final = 7 * MS
STRAYING: Final = 0.02
STRAYED_NS: Final = 250 * MS
"""A few messages outlive leaders, and the streams that they are about."""


class ClusterWorld(Stage):
    """One run. Call `run`.

    Args:
        seed: Picks everything.

    Attributes:
        servers: The machines.
        members: Nodes that found the group.
        churning: Streams come and go all the time.
        disk_ms: How long a sync of the metadata takes at most.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        random = self.random
        self.churning = seed % 10 == 7
        self.has_disk_ids = seed % 5 < 3  # the others' Raft is of a release that has none
        self.disk_ms = random.choice((1, 1, 3, 12))
        names = [NodeId(f"n{n}") for n in range(1, random.choice((3, 4, 4, 4, 5)) + 1)]
        founding = names[: max(3, len(names) - random.choice((0, 1)))]
        self.members = founding
        first = on.initial_state(on.membership_of(founding))
        self.servers = {
            name: Server(self, name, ModelStorage.of(first if name in founding else on.Recovered()))
            for name in names
        }
        self.running: dict[NodeId, Server] = {}
        self.checkers = Checkers(
            self.running,
            lambda: {name: server.storage for name, server in self.servers.items()},
            self.chain_of,
        )
        self.histories = Histories()
        self.watch = Watch(self)
        self.operator = Operator(self)
        self._tag = 0

    def run(self) -> None:
        """Trouble, then calm, then a look at everything."""
        for name, server in self.servers.items():
            late_ms = 0 if name in self.members else 250
            self.at(late_ms * MS, partial(self.start, server))
            self.every(TICK_NS, partial(server.do, server.tick))
        self.every(10 * MS, self.watch.look)
        self.every(70 * MS, self.operator.operate)
        self.play_until(150 * MS)
        self.every(45 * MS, self.trouble)
        self.play_until(TROUBLE_NS)
        self.be_calm()
        deadline_ns = TROUBLE_NS + CALM_NS
        while (why := self.watch.not_at_rest()) and self.now_ns < deadline_ns:
            self.play_until(self.now_ns + 25 * MS)
        assert not why, f"no rest: {why}"
        self.watch.check_end()

    def start(self, server: Server) -> None:
        self.running[server.name] = server
        server.start()

    @override
    def _deliver(self, target: str, action: Callable[[Any], None]) -> None:
        server = self.servers[NodeId(target)]
        delay_ns = self.delay_ns()
        if not self.calm and self.random.random() < STRAYING:
            delay_ns = self.random.randrange(STRAYED_NS)
        self.at(delay_ns, lambda: server.do(lambda: action(server)))

    # For the machines.

    def next_tag(self) -> int:
        self._tag += 1
        self.histories.begin(self._tag)
        return self._tag

    def chain_of(self, snapshot: on.Snapshot) -> tuple[int, Chain]:
        return snapshot.index, self.checkers.chains[snapshot.index][1]

    def compare_state(self, index: int, state: ClusterState) -> None:
        self.watch.compare(index, state)

    def was_applied(self, entry: on.Entry, state: ClusterState, result: Result | None) -> None:
        self.watch.was_applied(entry, state, result)

    def scene(self, place: PartitionKey, incarnation: str) -> Scene:
        return self.watch.scene(place, incarnation)

    # Trouble.

    def victim(self) -> Server:
        """Mostly who leads something."""
        random = self.random
        leaders = [s for s in self.running.values() if s.running and s.raft.leader == s.name]
        leading = [s for s in self.running.values() if any(n.leading for n in s.places.values())]
        some = random.choice((leaders, leading, []))
        return random.choice(some or list(self.servers.values()))

    def trouble(self) -> None:
        if self.calm:
            return
        kinds = (self.kill, self.stop, self.pause, self.isolate, self.slow_down, self.break_disk,
                 self.step_down, self.black_out, self.retain)  # fmt: skip
        self.random.choices(kinds, (6, 2, 5, 6, 3, 1, 2, 1, 2))[0](self.victim())

    def kill(self, server: Server, *, power: bool | None = None) -> None:
        if not server.running:
            return
        self.mark("killed")
        server.die(power=self.random.random() < 0.6 if power is None else power)
        self.start_later(server)

    def start_later(self, server: Server) -> None:
        del self.running[server.name]
        delay_ns = self.random.choice((5, 40, 200)) * MS
        self.at(delay_ns, lambda: None if server.running else self.start(server))

    def stop(self, server: Server) -> None:
        if not server.running or server.paused:
            return
        server.stop()
        life = server.life

        def ended() -> None:
            if server.life == life:
                self.at(10 * MS, ended)
            elif not server.running and server.name in self.running:
                self.start_later(server)

        self.at(60 * MS, ended)

    def black_out(self, server: Server) -> None:
        self.mark("black out")
        for each in self.servers.values():
            if each is server or self.random.random() < 0.8:
                self.kill(each, power=True)

    def pause(self, server: Server) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if not server.running or server.paused:
            return
        self.mark("paused")
        server.pause()
        life = server.life
        self.at(
            self.random.choice((20, 90, 200)) * MS,
            lambda: server.resume() if server.life == life else None,
        )

    def isolate(self, server: Server) -> None:
        """Cut some of its links, one way or both."""
        others: list[str] = [name for name in self.servers if name != server.name]
        others = self.random.choice((others, others, [self.random.choice(others)]))
        self.mark("cut off")
        self.block(server.name, others)

    def slow_down(self, server: Server) -> None:
        for node in server.places.values():
            node.slow = 20
            self.at(self.random.choice((30, 150)) * MS, partial(setattr, node, "slow", 1))

    def break_disk(self, server: Server) -> None:
        for node in list(server.places.values())[:1]:
            node.do(node.fail)

    def step_down(self, server: Server) -> None:
        for node in list(server.places.values())[:1]:
            node.do(partial(node.take, StepDown()))

    def retain(self, _: Server) -> None:
        for server in self.running.values():
            for node in list(server.places.values()):
                if node.leading:
                    upto = self.random.randint(0, node.high_watermark + 1)
                    node.do(partial(node.writer.delete_before, upto))

    def be_calm(self) -> None:
        self.calm, self.slowest_ms, self.disk_ms = True, 2, 1
        self.blocked = set()
        for server in self.servers.values():
            for node in server.places.values():
                node.slow = 1
            server.resume()
            if not server.running:
                self.start(server)

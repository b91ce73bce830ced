"""One incarnation of a partition in `cluster_world`: its replicas, publishers and true history."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.logd.replication.events import Finding, NodeId
from tests.sim.replication_history import History, Message
from tests.sim.stage import MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from penstock.logd.metadata.records import PartitionKey, PartitionRecord
    from tests.sim.cluster_replica import HostedNode
    from tests.sim.cluster_world import ClusterWorld

CLIENTS: Final = 2
PUBLISHED_NS: Final = 14 * MS


class Scene:
    """As `tests.sim.replication_surroundings.World`.

    Attributes:
        over: The stream is deleted.
        nodes: Every replica there ever was on a machine.
    """

    def __init__(self, world: ClusterWorld, place: PartitionKey, incarnation: str) -> None:
        self.world, self.place, self.incarnation = world, place, incarnation
        self.history = History()
        self.nodes: dict[NodeId, HostedNode] = {}
        self.over = False
        self.waiting = [Message(client, 0, "all") for client in range(CLIENTS)]
        self.acked = [0] * CLIENTS
        world.at(0, self.publish)

    # For its replicas.

    @property
    def random(self) -> Random:
        return self.world.random

    @property
    def now_ns(self) -> int:
        return self.world.now_ns

    @property
    def calm(self) -> bool:
        return self.world.calm

    @property
    def disk_failure(self) -> float:
        return 0.0

    def mark(self, what: str) -> None:
        self.world.mark(what)

    def at(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.world.at(delay_ns, action)

    def send(self, source: str, target: str, action: Callable[[Any], None]) -> None:
        """To whatever replica of that place there is, be it of another incarnation."""
        self.world.send(source, target, lambda server: server.bring(self.place, action))

    def delays(self) -> list[int]:
        return [0]

    def told(self, finding: Finding) -> None:
        self.mark(f"told {finding.name.lower()}")
        allowed = {Finding.SKIPPED}
        assert finding in allowed, finding  # disks are honest, and elections clean

    # Publishers.

    def publish(self) -> None:
        """Each publisher sends what is not acked again, or something new."""
        if self.over:
            return
        random = self.random
        self.at(random.randrange(PUBLISHED_NS // 2, PUBLISHED_NS * 3 // 2), self.publish)
        for client, acked in enumerate(self.acked):
            if acked >= self.waiting[client].number:
                if self.calm:
                    continue
                policy = "leader" if random.random() < 0.3 else "all"
                self.waiting[client] = Message(client, acked + 1, policy)
            message = self.waiting[client]
            self.history.published.add(message)
            for name, node in self.nodes.items():
                if node.running and (self.calm or random.random() >= self.world.drop):
                    server = self.world.servers[name]
                    hears = partial(server.hears, self.place, self.incarnation, message)
                    self.at(random.randrange(3 * MS), partial(server.do, hears))

    def ack(self, node: HostedNode, offset: int, message: Message, policy: str) -> None:
        """A node answers a publisher; the answer may be lost."""
        self.history.acks(node, offset, message, policy)
        server = node.server
        leased = server.lease.is_valid(server.clock_ns())
        assert policy == "all" or leased, f"{node.name} acks without a lease"
        self.mark(f"acked {policy}")
        if self.calm or self.random.random() >= self.world.drop:
            self.acked[message.client] = max(self.acked[message.client], message.number)

    # What must hold.

    def check_in_sync(self, partition: PartitionRecord) -> None:
        """A replica in the ISR has all that is committed, safe from any crash."""
        end = len(self.history.committed)
        for name in partition.isr if end else ():
            node = self.nodes.get(NodeId(name))
            has = 0 if node is None else node.disk.start + node.disk.certain()
            assert has >= end, f"{name} is in the ISR with {has} of {end}"

    def not_at_rest(self, partition: PartitionRecord) -> str:
        """Why it is not as it should be yet; empty if it is."""
        if any(count < self.waiting[client].number for client, count in enumerate(self.acked)):
            return f"{self.place}: a publisher waits: {partition}"
        holders = [
            self.nodes.get(NodeId(name)) for name in (*partition.replicas, *partition.observers)
        ]
        nodes = [node for node in holders if node is not None and node.running]
        if len(nodes) < len(holders):
            return f"{self.place}: a replica is not open"
        return self.history.converged(nodes)

    def check_end(self) -> None:
        self.history.check_end()

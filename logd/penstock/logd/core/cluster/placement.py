"""Where new replicas go: racks first, then load, then leaderships, then names."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from penstock.logd.core.cluster.commands import CreateStream, Placement
from penstock.logd.core.cluster.records import (
    Node,
    NodeId,
    NodeState,
    Partition,
    ReplicationOptions,
)
from penstock.logd.core.cluster.state import ClusterState
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.errors import RefusedError


@dataclass(slots=True)
class Load:
    """What nodes have, replicas on their way included.

    Attributes:
        replicas: By node.
        preferred: Partitions of which a node is the first replica.
    """

    replicas: Counter[NodeId] = field(default_factory=Counter)
    preferred: Counter[NodeId] = field(default_factory=Counter)

    @classmethod
    def of(cls, state: ClusterState) -> "Load":
        """The load of every node."""
        load = cls()
        for _, _, partition in state.partitions():
            load.add(partition.target or partition.replicas)
        return load

    def add(self, replicas: Iterable[NodeId]) -> None:
        """Count a partition."""
        nodes = list(replicas)
        self.replicas.update(nodes)
        self.preferred.update(nodes[:1])


def place_stream(
    state: ClusterState,
    live: Collection[NodeId],
    config: StreamConfig,
    options: ReplicationOptions,
    *,
    partitions: int,
    nonce: str,
) -> CreateStream:
    """The command that creates a stream, with places for its partitions.

    Nodes that are not live get replicas only if there are not enough others; they are out of the
    ISR at first.

    Args:
        state: The cluster.
        live: Nodes that are there.
        config: What the stream is.
        options: How it is replicated.
        partitions: How many.
        nonce: Random hexadecimal digits.

    Raises:
        RefusedError: `NOT_ENOUGH_NODES`.
    """
    active = _active(state)
    count = options.replication_factor or len(active)
    if not active or len(active) < count:
        message = f"{count} replicas need as many active nodes, and there are {len(active)}"
        raise RefusedError("NOT_ENOUGH_NODES", message, nodes=len(active))
    if not {node.id for node in active} & set(live):
        raise RefusedError("NOT_ENOUGH_NODES", "no active node is there", nodes=0)
    load = Load.of(state)
    placements = []
    for _ in range(partitions):
        chosen = choose(active, load, live, count)
        replicas = _leader_first(chosen, load, live)
        load.add(replicas)
        isr = tuple(node for node in replicas if node in live)
        placements.append(Placement(replicas=replicas, isr=isr))
    return CreateStream(config=config, options=options, placements=tuple(placements), nonce=nonce)


def choose(
    nodes: Collection[Node],
    load: Load,
    live: Collection[NodeId],
    count: int,
    kept: tuple[Node, ...] = (),
) -> list[NodeId]:
    """Nodes for `count` replicas, those in `kept` among them.

    Each next one is live if possible, in the rack with the fewest of the others, and has the least
    load. A node without a rack is a rack of its own.
    """
    chosen = [*kept]
    while len(chosen) < count:
        racks = Counter(_rack(node) for node in chosen)
        left = [node for node in nodes if node not in chosen]
        chosen.append(
            min(
                left,
                key=lambda node: (
                    node.id not in live,
                    racks[_rack(node)],
                    load.replicas[node.id],
                    load.preferred[node.id],
                    node.id,
                ),
            )
        )
    return [node.id for node in chosen]


def new_target(
    state: ClusterState, partition: Partition, live: Collection[NodeId], count: int, load: Load
) -> tuple[NodeId, ...] | None:
    """Replicas for a partition that has too few, too many, or some on nodes that are to be empty.

    Returns:
        As many of the present ones as possible, in their order, then new ones; None when there are
        too few nodes.
    """
    active = _active(state)
    if len(active) < count:
        return None
    present = [
        state.nodes[node]
        for node in partition.replicas
        if state.nodes[node].state is NodeState.ACTIVE
    ]
    while len(present) > count:
        present.remove(_surplus(present, partition, load))
    free = [node for node in active if node.id not in partition.former or node in present]
    if len(free) < count:
        return None
    return tuple(choose(free, load, live, count, tuple(present)))


def _surplus(present: list[Node], partition: Partition, load: Load) -> Node:
    """The replica that is missed least."""
    racks = Counter(_rack(node) for node in present)
    return max(
        present,
        key=lambda node: (
            node.id != partition.leader,
            node.id not in partition.isr,
            racks[_rack(node)],
            load.replicas[node.id],
            node.id,
        ),
    )


def _leader_first(chosen: list[NodeId], load: Load, live: Collection[NodeId]) -> tuple[NodeId, ...]:
    first = min(chosen, key=lambda node: (node not in live, load.preferred[node], node))
    return (first, *(node for node in chosen if node != first))


def _active(state: ClusterState) -> list[Node]:
    return [state.nodes[node] for node in state.active()]


def _rack(node: Node) -> str:
    return f"rack {node.rack}" if node.rack else f"node {node.id}"

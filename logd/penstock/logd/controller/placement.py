"""Placement of new replicas, and the next step of replicas and leaderships that move.

Replicas and leaderships on their way: what the next step is, from the state alone.

A partition whose replicas are not where they should be gets a target. Then, one command at a time:

    a target node has no replica, and none is surplus   add one
    the added one is not in sync                        wait
    it is in sync, and the leader is surplus            hand its leadership over
    it is in sync                                       remove a surplus one
    replicas and target differ in order only            take the target's order, which ends the move

Observers on nodes that are to have nothing are dropped before.

So there are never fewer replicas than there are to be, and a controller can go on from the state.
Draining a node, a replication factor that was changed, and a new node for a stream that is on every
node are all partitions with a new target; `move` sets one by hand.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec
from msgspec import Struct

from penstock.logd.errors import RefusedError
from penstock.logd.metadata.commands import (
    ChangeObservers,
    ChangeReplicas,
    CreateStream,
    Election,
    Placement,
    SetTarget,
)
from penstock.logd.metadata.records import (
    Node,
    NodeId,
    NodeState,
    PartitionKey,
    PartitionRecord,
    ReplicationOptions,
    StreamRecord,
)
from penstock.logd.metadata.state import ClusterState
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import basis_of


class Load(Struct):
    """The load of nodes, replicas on their way included.

    Attributes:
        replicas: Number of replicas by node.
        preferred: Partitions of which a node is the first replica.
    """

    replicas: Counter[NodeId] = msgspec.field(default_factory=Counter)
    preferred: Counter[NodeId] = msgspec.field(default_factory=Counter)

    @classmethod
    def of(cls, state: ClusterState) -> "Load":
        """The load of every node."""
        load = cls()
        replicas, preferred = load.replicas, load.preferred
        for _, _, partition in state.partitions():
            nodes = partition.target or partition.replicas
            for node in nodes:  # a counter's `update` takes six times as long for so few
                replicas[node] += 1
            for node in nodes[:1]:
                preferred[node] += 1
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
        config: Configuration of the stream.
        options: Replication of the stream.
        partitions: Number of partitions.
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
    load = Load.of(state) if len(active) > 1 else Load()  # there is nothing to choose
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
    load. A node without a rack counts as a rack.
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
    state: ClusterState,
    partition: PartitionRecord,
    live: Collection[NodeId],
    count: int,
    load: Load,
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


def _surplus(present: list[Node], partition: PartitionRecord, load: Load) -> Node:
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


class Fitness(Protocol):
    """Source of whether a replica is eligible as leader."""

    def is_fit(self, node: NodeId, key: PartitionKey, stream: StreamRecord) -> bool:
        """Return whether the replica's node is live and has reported no reason against it."""


class Step(Struct, frozen=True):
    """The next command of a move."""

    key: PartitionKey
    command: SetTarget | ChangeReplicas | ChangeObservers


class Plan(Struct, frozen=True):
    """The steps that can be done now.

    Attributes:
        handovers: Depositions in favour of another node.
        moving: Whether any move is pending.
    """

    steps: tuple[Step, ...]
    handovers: tuple[Election, ...]
    moving: bool


def plan_moves(
    state: ClusterState, live: Collection[NodeId], fitness: Fitness, moves_max: int
) -> Plan:
    """The next step of each move, and the beginning of new ones up to `moves_max` at a time."""
    load: Load | None = None
    steps: list[Step] = []
    handovers: list[Election] = []
    partitions = list(state.partitions())
    moving = sum(partition.target is not None for _, _, partition in partitions)
    active = set(state.active())
    for key, stream, partition in partitions:
        count = stream.options.replication_factor or len(active)
        if not active.issuperset(partition.observers):
            steps.append(_fewer_observers(key, stream, partition, active))
            continue
        if _is_settled(partition, active, count):
            continue
        election = _off_draining(state, fitness, key, stream, partition)
        if election is not None:
            handovers.append(election)
        elif not _is_possible(partition.target, active, count):
            load = load or Load.of(state)
            target = new_target(state, partition, live, count, load)
            if target == partition.target or (partition.target is None and moving >= moves_max):
                continue
            moving += partition.target is None
            load.add(set(target or ()) - set(partition.replicas))
            basis = basis_of(key, stream, partition)
            steps.append(Step(key, SetTarget(basis=basis, target=target)))
        else:
            _next_step(fitness, key, stream, partition, steps, handovers)
    return Plan(tuple(steps), tuple(handovers), moving > 0)


def plan_transfers(
    state: ClusterState, live: Collection[NodeId], fitness: Fitness, transfers_max: int
) -> list[Election]:
    """Handovers after which leaderships are spread more evenly; none when they cannot be.

    A leadership goes from a node that leads to one that leads at least two fewer, or, where none of
    its partitions can go there, along others: each hands one on. Each plan lessens the sum of the
    squares of what nodes lead, so planning ends.
    """
    able = {node for node in state.active() if node in live}
    leads: dict[NodeId, int] = dict.fromkeys(sorted(able), 0)
    free: dict[PartitionKey, tuple[StreamRecord, PartitionRecord]] = {}
    under_way = 0
    for key, stream, partition in state.partitions():
        if partition.leader is None and partition.successor in able:
            under_way += 1
            leads[partition.successor] += 1
        if partition.leader in able:
            leads[partition.leader] += 1
            free[key] = (stream, partition)
    handovers: list[Election] = []
    while under_way + len(handovers) < transfers_max:
        path = _path(free, leads, fitness)
        if not path:
            break
        for key, node in path:
            stream, partition = free.pop(key)
            assert partition.leader is not None
            leads[partition.leader] -= 1
            leads[node] += 1
            handovers.append(_handover(key, stream, partition, node))
    return handovers


def _path(
    free: dict[PartitionKey, tuple[StreamRecord, PartitionRecord]],
    leads: dict[NodeId, int],
    fitness: Fitness,
) -> list[tuple[PartitionKey, NodeId]]:
    """The shortest way from a node that leads most to one that leads at least two fewer."""
    ways: dict[NodeId, list[tuple[PartitionKey, NodeId]]] = {}
    for key, (stream, partition) in sorted(free.items()):
        for node in partition.isr:
            if node != partition.leader and node in leads and fitness.is_fit(node, key, stream):
                ways.setdefault(partition.leader or "", []).append((key, node))
    for start in sorted(leads, key=lambda node: (-leads[node], node)):
        came: dict[NodeId, list[tuple[PartitionKey, NodeId]]] = {start: []}
        queue = deque([start])
        while queue:
            at = queue.popleft()
            if leads[at] <= leads[start] - 2:
                return came[at]
            for key, node in ways.get(at, ()):
                if node not in came:
                    came[node] = [*came[at], (key, node)]
                    queue.append(node)
    return []


def _is_settled(partition: PartitionRecord, active: set[NodeId], count: int) -> bool:
    replicas = partition.replicas
    return partition.target is None and len(replicas) == count and active.issuperset(replicas)


def _is_possible(target: tuple[NodeId, ...] | None, active: set[NodeId], count: int) -> bool:
    """Return whether the target is reachable and of the wanted size, which may have changed."""
    return target is not None and len(target) == count and active.issuperset(target)


def _off_draining(
    state: ClusterState,
    fitness: Fitness,
    key: PartitionKey,
    stream: StreamRecord,
    partition: PartitionRecord,
) -> Election | None:
    """A draining node's leadership goes first, where another can have it now."""
    leader = partition.leader
    if leader is None or state.nodes[leader].state is NodeState.ACTIVE:
        return None
    able = [
        node
        for node in partition.replicas
        if node in partition.isr
        and state.nodes[node].state is NodeState.ACTIVE
        and fitness.is_fit(node, key, stream)
    ]
    return _handover(key, stream, partition, able[0]) if able else None


def _next_step(
    fitness: Fitness,
    key: PartitionKey,
    stream: StreamRecord,
    partition: PartitionRecord,
    steps: list[Step],
    handovers: list[Election],
) -> None:
    target = partition.target
    assert target is not None
    replicas = partition.replicas
    missing = [node for node in target if node not in replicas]
    surplus = [node for node in replicas if node not in target]
    if missing and len(replicas) <= len(target):
        if missing[0] not in partition.former:
            steps.append(_step(key, stream, partition, (*replicas, missing[0])))
        return
    if not surplus:
        steps.append(_step(key, stream, partition, target))
        return
    synced = [node for node in target if node in partition.isr]
    if len(synced) < len(target) - len(missing):
        return  # what was added is still behind
    going = min(surplus, key=lambda node: (node == partition.leader, node in partition.isr))
    if going != partition.leader:
        left = tuple(node for node in replicas if node != going)
        steps.append(_step(key, stream, partition, left))
        return
    able = [node for node in synced if fitness.is_fit(node, key, stream)]
    if able:
        handovers.append(_handover(key, stream, partition, able[0]))


def _step(
    key: PartitionKey,
    stream: StreamRecord,
    partition: PartitionRecord,
    replicas: tuple[NodeId, ...],
) -> Step:
    basis = basis_of(key, stream, partition)
    in_target_order = partition.target or ()
    if set(replicas) == set(in_target_order):
        replicas = in_target_order
    return Step(key, ChangeReplicas(basis=basis, replicas=replicas))


def _fewer_observers(
    key: PartitionKey, stream: StreamRecord, partition: PartitionRecord, active: set[NodeId]
) -> Step:
    """Return the step that removes observers on inactive nodes, for which nothing waits."""
    left = tuple(node for node in partition.observers if node in active)
    return Step(key, ChangeObservers(basis=basis_of(key, stream, partition), observers=left))


def _handover(
    key: PartitionKey, stream: StreamRecord, partition: PartitionRecord, successor: NodeId
) -> Election:
    return Election(
        basis=basis_of(key, stream, partition),
        leader=None,
        isr=partition.isr,
        successor=successor,
    )

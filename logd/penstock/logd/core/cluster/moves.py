"""Replicas and leaderships on their way: what the next step is, from the state alone.

A partition whose replicas are not where they should be gets a target. Then, one command at a time:

    a target node has no replica, and none is surplus   add one
    the added one is not in sync                        wait
    it is in sync, and the leader is surplus            hand its leadership over
    it is in sync                                       remove a surplus one
    replicas and target differ in order only            take the target's order, which ends the move

Observers on nodes that are to have nothing are dropped before.

So there are never fewer replicas than there are to be, and whoever looks at the state can go on.
Draining a node, a replication factor that was changed, and a new node for a stream that is on every
node are all partitions with a new target; `move` sets one by hand.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from penstock.logd.core.cluster.commands import (
    ChangeObservers,
    ChangeReplicas,
    Election,
    SetTarget,
)
from penstock.logd.core.cluster.placement import Load, new_target
from penstock.logd.core.cluster.records import (
    NodeId,
    NodeState,
    Partition,
    PartitionKey,
    StreamRecord,
)
from penstock.logd.core.cluster.state import ClusterState
from penstock.logd.core.cluster.tables import basis_of


class Fitness(Protocol):
    """Who knows whether a replica could lead."""

    def is_fit(self, node: NodeId, key: PartitionKey, stream: StreamRecord) -> bool:
        """Whether its node is there, and nothing is known against it."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next command of a move."""

    key: PartitionKey
    command: SetTarget | ChangeReplicas | ChangeObservers


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be done now.

    Attributes:
        handovers: Depositions in favour of another node.
        moving: Whether any move is under way.
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
    moving = sum(partition.target is not None for _, _, partition in state.partitions())
    active = set(state.active())
    for key, stream, partition in state.partitions():
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
    free: dict[PartitionKey, tuple[StreamRecord, Partition]] = {}
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
    free: dict[PartitionKey, tuple[StreamRecord, Partition]],
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


def _is_settled(partition: Partition, active: set[NodeId], count: int) -> bool:
    replicas = partition.replicas
    return partition.target is None and len(replicas) == count and active.issuperset(replicas)


def _is_possible(target: tuple[NodeId, ...] | None, active: set[NodeId], count: int) -> bool:
    """Whether there is a target, and it can be reached: the wanted number may have changed."""
    return target is not None and len(target) == count and active.issuperset(target)


def _off_draining(
    state: ClusterState,
    fitness: Fitness,
    key: PartitionKey,
    stream: StreamRecord,
    partition: Partition,
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
    partition: Partition,
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
    key: PartitionKey, stream: StreamRecord, partition: Partition, replicas: tuple[NodeId, ...]
) -> Step:
    basis = basis_of(key, stream, partition)
    in_target_order = partition.target or ()
    if set(replicas) == set(in_target_order):
        replicas = in_target_order
    return Step(key, ChangeReplicas(basis=basis, replicas=replicas))


def _fewer_observers(
    key: PartitionKey, stream: StreamRecord, partition: Partition, active: set[NodeId]
) -> Step:
    """What nothing waits for need not be anywhere else before it goes."""
    left = tuple(node for node in partition.observers if node in active)
    return Step(key, ChangeObservers(basis=basis_of(key, stream, partition), observers=left))


def _handover(
    key: PartitionKey, stream: StreamRecord, partition: Partition, successor: NodeId
) -> Election:
    return Election(
        basis=basis_of(key, stream, partition),
        leader=None,
        isr=partition.isr,
        successor=successor,
    )

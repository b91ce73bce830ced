"""What commands about nodes do to the tables."""

from dataclasses import replace

from penstock.logd.core.cluster.commands import Drain, RegisterNode, RemoveNode
from penstock.logd.core.cluster.records import (
    Node,
    NodeId,
    NodeState,
    Partition,
    PartitionKey,
    check_node_id,
)
from penstock.logd.core.cluster.stream_rules import drop_data
from penstock.logd.core.cluster.tables import Done, Tables
from penstock.logd.errors import RefusedError
from penstock.logd.limits import ADDRESS_LENGTH_MAX, NODES_MAX


def register_node(tables: Tables, index: int, command: RegisterNode) -> Done:
    """Give a node its place, or take in that it was started again."""
    _check_registration(tables, command)
    before = tables.nodes.get(command.node)
    node = Node(
        id=command.node,
        addresses=command.addresses,
        rack=command.rack,
        storage=command.storage,
        boot=command.boot,
        state=NodeState.ACTIVE if before is None else before.state,
        deposed_at=0 if before is None else before.deposed_at,
        adopting=command.adopting,
    )
    if before == node:
        return Done(changed=False)
    lost = before is not None and before.storage != node.storage
    if node.state is NodeState.REMOVED:
        node = replace(node, state=NodeState.ACTIVE)
    tables.nodes[node.id] = node
    if before is None or (before.boot == node.boot and not lost):
        return Done()
    changed = _depose_everywhere(tables, index, node.id, lost=lost)
    if lost:
        drop_data(tables, node.id)
    return Done(partitions=changed)


def drain(tables: Tables, index: int, command: Drain) -> Done:
    """Change what a node is there for."""
    del index
    node = tables.member(command.node)
    state = NodeState.ACTIVE if command.undo else NodeState.DRAINING
    tables.nodes[node.id] = replace(node, state=state)
    return Done(changed=node.state is not state)


def remove_node(tables: Tables, index: int, command: RemoveNode) -> Done:
    """End a membership."""
    del index
    node = tables.nodes.get(command.node)
    if node is not None and node.state is NodeState.REMOVED:
        return Done(changed=False)
    node = tables.member(command.node)
    if node.state is not NodeState.DRAINING:
        raise RefusedError("NOT_DRAINED", f"node {node.id} is {node.state}; drain it first")
    for key, _, partition in tables.walk():
        if node.id in (*partition.replicas, *partition.observers, *(partition.target or ())):
            raise RefusedError(
                "NOT_DRAINED",
                f"node {node.id} still has partition {key.partition} of {key.stream}",
                stream=key.stream,
                partition=key.partition,
            )
    tables.nodes[node.id] = replace(node, state=NodeState.REMOVED)
    drop_data(tables, node.id)
    return Done()


def _check_registration(tables: Tables, command: RegisterNode) -> None:
    check_node_id(command.node)
    for text in (command.storage, command.boot):
        if not 1 <= len(text) <= 64:
            raise RefusedError("BAD_NODE", "ids of storage and boot have 1 to 64 characters")
    addresses = command.addresses
    for text in (addresses.peer, addresses.fetch, addresses.admin, command.rack):
        if len(text) > ADDRESS_LENGTH_MAX:
            message = f"addresses and racks have at most {ADDRESS_LENGTH_MAX} characters"
            raise RefusedError("BAD_NODE", message)
    before = tables.nodes.get(command.node)
    if before is None and len(tables.nodes) >= NODES_MAX:
        raise RefusedError("TOO_MANY_NODES", f"there are or were {NODES_MAX} nodes")
    removed = before is not None and before.state is NodeState.REMOVED
    if before is not None and removed and before.storage == command.storage:
        message = f"node {command.node} was removed"
        raise RefusedError("NODE_REMOVED", message)


def _depose_everywhere(
    tables: Tables, index: int, node: NodeId, *, lost: bool
) -> tuple[PartitionKey, ...]:
    """End what a node that was started again led; with its data lost, its part in ISRs, too."""
    changed = []
    for key, _, partition in list(tables.walk()):
        now = _without(partition, node, lost=lost)
        if now is not partition:
            if partition.leader == node:
                tables.depose(index, partition)
            tables.put(key, now)
            changed.append(key)
    return tuple(sorted(changed))  # a node that began with a snapshot walks in another order


def _without(partition: Partition, node: NodeId, *, lost: bool) -> Partition:
    leads = partition.leader == node
    drops = lost and node in partition.isr
    if not leads and not drops:
        return partition
    return replace(
        partition,
        leader=None if leads else partition.leader,
        leader_epoch=partition.leader_epoch + leads,
        successor=None if leads else partition.successor,
        isr=tuple(member for member in partition.isr if not (drops and member == node)),
        version=partition.version + 1,
    )

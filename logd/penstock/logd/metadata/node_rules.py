"""Commands about nodes, and the membership of the metadata group.

Who belongs to the metadata group, made to follow who is registered: one small step at a time.

A node that is registered becomes a learner, becomes a voter once it has caught up and lives,
as long as there are fewer than five, and leaves when it is removed. The directory id that it
registered is noted in the membership before it is a voter. Nothing else takes a member out: an
initial member that has not registered yet, or a dead node, is waited for. A leader that is being
drained or was removed hands the leadership over first.
"""

from collections.abc import Collection, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.logd.errors import RefusedError
from penstock.logd.limits import (
    ADDRESS_LENGTH_MAX,
    GROUP_MEMBERS_MAX,
    GROUP_PARTITIONS_MAX,
    GROUPS_MAX,
    NODES_MAX,
)
from penstock.logd.metadata.commands import Drain, NewShare, PutGroup, RegisterNode, RemoveNode
from penstock.logd.metadata.cursors import check_consumer
from penstock.logd.metadata.records import (
    Group,
    GroupPartition,
    Node,
    NodeId,
    NodeState,
    PartitionKey,
    PartitionRecord,
    Share,
    check_node_id,
)
from penstock.logd.metadata.stream_rules import drop_data
from penstock.logd.metadata.tables import Done, Tables
from penstock.logd.raft.membership import (
    VOTERS_MAX,
    AddLearner,
    Membership,
    MembershipChange,
    NoteDisks,
    Promote,
    Remove,
)
from penstock.logd.replication.events import NodeId as Member


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


def _without(partition: PartitionRecord, node: NodeId, *, lost: bool) -> PartitionRecord:
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


def put_group(tables: Tables, index: int, command: PutGroup) -> Done:
    """Give a group its members and shares, in a new epoch.

    A partition passes from one member to another only when the first has let go of it, or is no
    member any more.
    """
    before = tables.groups.get(command.group)
    epoch = 0 if before is None else before.epoch
    if epoch != command.based_on:
        message = f"group {command.group[:80]} is in epoch {epoch}, not {command.based_on}"
        raise RefusedError("STALE_EPOCH", message, epoch=epoch)
    _check_form(tables, command, new=before is None)
    held = {} if before is None else {share.partition: share for share in before.shares}
    _check_handovers(command, held)
    if not command.members:
        tables.groups.pop(command.group, None)
        return Done(changed=before is not None)
    tables.groups[command.group] = Group(
        name=command.group,
        epoch=index,
        members=tuple(sorted(command.members, key=lambda member: member.id)),
        shares=tuple(
            _granted(share, held.get(share.partition), index)
            for share in sorted(command.shares, key=lambda share: share.partition)
        ),
    )
    return Done()


def _check_form(tables: Tables, command: PutGroup, *, new: bool) -> None:
    check_consumer(command.group)
    members = [member.id for member in command.members]
    partitions = [share.partition for share in command.shares]
    if new and len(tables.groups) >= GROUPS_MAX:
        raise RefusedError("TOO_MANY_GROUPS", f"there are {GROUPS_MAX} groups already")
    if len(members) > GROUP_MEMBERS_MAX:
        message = f"group {command.group}: at most {GROUP_MEMBERS_MAX} members"
        raise RefusedError("TOO_MANY_MEMBERS", message)
    if len(partitions) > GROUP_PARTITIONS_MAX:
        message = f"group {command.group}: at most {GROUP_PARTITIONS_MAX} partitions"
        raise RefusedError("TOO_MANY_PARTITIONS", message)
    if len(set(members)) != len(members) or len(set(partitions)) != len(partitions):
        raise RefusedError("BAD_GROUP", f"group {command.group}: something is named twice")
    for member in members:
        check_consumer(member)
    for share in command.shares:
        if {share.wanted, share.owner} - {*members, None, ""} or share.owner == "":
            message = f"group {command.group}: {share.partition} goes to one who is no member"
            raise RefusedError("BAD_GROUP", message)


def _check_handovers(command: PutGroup, held: dict[GroupPartition, Share]) -> None:
    members = {member.id for member in command.members}
    released = {(item.partition, item.member, item.epoch) for item in command.released}
    owners = {share.partition: share.owner for share in command.shares}
    for partition, before in held.items():
        if before.owner not in members or owners.get(partition) == before.owner:
            continue
        if (partition, before.owner, before.epoch) not in released:
            message = f"group {command.group}: {before.owner} has not let go of {partition}"
            raise RefusedError("NOT_RELEASED", message)


def _granted(share: NewShare, before: Share | None, index: int) -> Share:
    kept = before is not None and before.owner == share.owner
    return Share(
        partition=share.partition,
        wanted=share.wanted,
        owner=share.owner,
        epoch=before.epoch if before is not None and kept else index,
    )


class HandOver(Struct, frozen=True):
    """Let another voter lead the group."""

    to: Member


Step: TypeAlias = MembershipChange | HandOver


def next_step(
    group: Membership, nodes: Mapping[NodeId, Node], live: Collection[NodeId], me: NodeId
) -> Step | None:
    """The next step on the node that leads the group; None: everything is as it should be.

    Args:
        group: Its members now.
        nodes: All that are or were registered.
        live: Those that send heartbeats.
        me: The node that leads.
    """
    active = {name for name, node in nodes.items() if node.state is NodeState.ACTIVE}
    removed = {name for name, node in nodes.items() if node.state is NodeState.REMOVED}
    candidates = sorted(group.voters & active & set(live) - {me})
    if me in nodes and me not in active and candidates:
        return HandOver(Member(candidates[0]))
    for name in sorted(group.members & removed):
        if group.voters != {name}:
            return Remove(Member(name))
    unknown = sorted(nodes.keys() - removed - group.members)
    if unknown:
        return AddLearner(Member(unknown[0]))
    registered = {Member(name): node.storage for name, node in nodes.items() if name not in removed}
    noting = group.noting(registered)
    if noting != group and noting.is_counted:
        return NoteDisks(noting.disks)
    ready = sorted(group.learners & active & set(live))
    if ready and len(group.voters) < VOTERS_MAX:
        return Promote(Member(ready[0]))
    return None

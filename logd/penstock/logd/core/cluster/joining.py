"""Who belongs to the metadata group, made to follow who is registered: one small step at a time.

A node that is registered is let in as a learner, becomes a voter once it has caught up and lives,
as long as there are fewer than five, and leaves when it is removed. The directory id that it
registered is noted in the membership before it is a voter. Nothing else takes a member
out: a founder that has not registered yet, or a dead node, is waited for. A leader that is being
drained or was removed hands the leadership over first.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.logd.core.cluster.records import Node, NodeId, NodeState
from penstock.logd.core.node import NodeId as Member
from penstock.logd.core.raft.membership import (
    VOTERS_MAX,
    AddLearner,
    Membership,
    MembershipChange,
    NoteDisks,
    Promote,
    Remove,
)


@dataclass(frozen=True, slots=True)
class HandOver:
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
    heirs = sorted(group.voters & active & set(live) - {me})
    if me in nodes and me not in active and heirs:
        return HandOver(Member(heirs[0]))
    for name in sorted(group.members & removed):
        if group.voters != {name}:
            return Remove(Member(name))
    strangers = sorted(nodes.keys() - removed - group.members)
    if strangers:
        return AddLearner(Member(strangers[0]))
    registered = {Member(name): node.storage for name, node in nodes.items() if name not in removed}
    noting = group.noting(registered)
    if noting != group and noting.is_counted:
        return NoteDisks(noting.disks)
    ready = sorted(group.learners & active & set(live))
    if ready and len(group.voters) < VOTERS_MAX:
        return Promote(Member(ready[0]))
    return None

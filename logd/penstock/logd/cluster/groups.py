"""Consumer groups of a cluster: shown from the state, coordinated where the controller is."""

from typing import Final

from penstock.logd.cluster.decisions import Decisions
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.core.cluster.group_messages import MemberAnswer, MemberBeat
from penstock.logd.core.cluster.records import Group
from penstock.logd.errors import RefusedError
from penstock.logd.fetch.groups import GroupFigures
from penstock.logd.fetch.wire import Document

_BEAT_S: Final = 2.0
"""Seconds in which the coordinator must be found: who asks sends another heartbeat soon."""

_LEAVE_S: Final = 10.0


class ClusterGroups:
    """As `penstock.logd.fetch.groups.Groups`.

    Args:
        node: This one.
        decisions: The way to the coordinator.
    """

    def __init__(self, node: ClusterNode, decisions: Decisions) -> None:
        self._node = node
        self._decisions = decisions

    async def beat(self, beat: MemberBeat) -> MemberAnswer:
        """As `Groups`."""
        self._node.check_takes_part(change=True)
        return await self._decisions.beat(beat, timeout_s=_BEAT_S)

    async def leave(self, group: str, member: str) -> None:
        """As `Groups`."""
        self._node.check_takes_part(change=True)
        await self._decisions.leave(group, member, timeout_s=_LEAVE_S)

    def describe(self, group: str | None = None) -> list[Document]:
        """As `Groups`."""
        self._node.check_takes_part()
        found = self._node.group.state.groups
        if group is None:
            return [_describe(found[name]) for name in sorted(found)]
        if group not in found:
            raise RefusedError("UNKNOWN_GROUP", f"group {group!r} has no members", group=group)
        return [_describe(found[group])]

    def figures(self) -> GroupFigures:
        """As `Groups`."""
        groups = list(self._node.group.state.groups.values())
        counts = self._node.controlling.coordinating.coordinator.counts
        return GroupFigures(
            groups=len(groups),
            members=sum(len(group.members) for group in groups),
            counts=dict(counts),
        )


def _describe(group: Group) -> Document:
    return {
        "group": group.name,
        "epoch": group.epoch,
        "members": [
            {"member": member.id, "streams": member.streams, "session_ms": member.session_ms}
            for member in group.members
        ],
        "partitions": [
            {
                "stream": share.partition.stream,
                "incarnation": share.partition.incarnation,
                "partition": share.partition.partition,
                "member": share.owner,
                "wanted": share.wanted,
                "epoch": share.epoch,
            }
            for share in group.shares
        ],
    }

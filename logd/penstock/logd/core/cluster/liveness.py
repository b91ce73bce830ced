"""Which nodes are there, by their heartbeats, and which may still hold a lease.

A controller that is new has answered nobody, but the one before may have, up to the moment in which
the new one was elected: it counts for every node from there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from penstock.logd.core.cluster.heartbeats import Heartbeat, PartitionReport, Timing
from penstock.logd.core.cluster.records import Node, NodeId, PartitionKey


class Standing(Enum):
    """What is known of a node."""

    UNKNOWN = "unknown"
    """Nothing yet: the controller is new."""
    LIVE = "live"
    DEAD = "dead"
    """Not heard for so long that its lease has ended for certain."""


@dataclass(slots=True)
class _Seen:
    boot: str
    since_ns: int
    answered_ns: int
    standing: Standing = Standing.UNKNOWN
    sequence: int = 0
    applied_index: int = -1
    reported: bool = False
    deaf: bool = False
    reports: dict[PartitionKey, PartitionReport] = field(default_factory=dict)


class Liveness:
    """The controller's knowledge of the nodes. It is lost with the controller."""

    def __init__(self, timing: Timing) -> None:
        self._wait_ns = timing.lease_wait_ns
        self._seen: dict[NodeId, _Seen] = {}

    def reset(self, nodes: Iterable[Node], elected_ns: int) -> None:
        """Know nothing, but that leases may run that were given before `elected_ns`."""
        self._seen = {}
        for node in nodes:
            self.meet(node, elected_ns)

    def meet(self, node: Node, now_ns: int) -> None:
        """Take in a node that was registered, for the first time or for a new process."""
        seen = self._seen.get(node.id)
        if seen is None:
            self._seen[node.id] = _Seen(node.boot, now_ns, self._first_answer_ns(now_ns))
        elif seen.boot != node.boot:
            self._seen[node.id] = _Seen(node.boot, now_ns, seen.answered_ns, seen.standing)

    def hear(self, heartbeat: Heartbeat, now_ns: int) -> set[PartitionKey] | None:
        """Take in a heartbeat of a registered process.

        Returns:
            The partitions of which it says something new that matters to who leads them; None: it
            is older than one that was heard before.
        """
        seen = self._seen[heartbeat.node]
        if heartbeat.sequence <= seen.sequence:
            return None
        seen.sequence = heartbeat.sequence
        seen.since_ns = now_ns
        seen.applied_index = max(seen.applied_index, heartbeat.applied_index)
        seen.reported = seen.reported or heartbeat.full
        if heartbeat.full:
            reported = {report.key for report in heartbeat.reports}
            for key in seen.reports.keys() - reported:
                del seen.reports[key]
        changed = {report.key for report in heartbeat.reports if _matters(seen, report)}
        if heartbeat.deaf is not seen.deaf:
            seen.deaf = heartbeat.deaf
            changed |= seen.reports.keys()
        seen.reports.update((report.key, report) for report in heartbeat.reports)
        return changed

    def answer(self, node: NodeId, now_ns: int) -> None:
        """Take in that a node gets a lease now."""
        self._seen[node].answered_ns = now_ns

    def turn(self, now_ns: int) -> list[NodeId]:
        """The nodes whose standing is another one from now on."""
        changed = []
        for node, seen in self._seen.items():
            standing = self._standing(seen, now_ns)
            if standing is not seen.standing:
                seen.standing = standing
                changed.append(node)
        return changed

    def standing(self, node: NodeId) -> Standing:
        """What was known of a node at the last `turn`."""
        seen = self._seen.get(node)
        return Standing.UNKNOWN if seen is None else seen.standing

    def is_whole(self) -> bool:
        """Whether of each node it is known if it is there."""
        return all(seen.standing is not Standing.UNKNOWN for seen in self._seen.values())

    def live(self) -> set[NodeId]:
        """The nodes that are there."""
        return {node for node, seen in self._seen.items() if seen.standing is Standing.LIVE}

    def is_deaf(self, node: NodeId) -> bool:
        """Whether publishers do not reach a node, as it last said."""
        seen = self._seen.get(node)
        return seen is not None and seen.deaf

    def is_fenced(self, node: Node, now_ns: int) -> bool:
        """Whether a node cannot believe any more that it leads what it has lost.

        It has applied that, or its lease has ended.
        """
        seen = self._seen[node.id]
        return seen.applied_index >= node.deposed_at or now_ns >= self.lease_end_ns(node.id)

    def lease_end_ns(self, node: NodeId) -> int:
        """When a node's lease has ended for certain."""
        return self._seen[node].answered_ns + self._wait_ns

    def wants_full(self, node: NodeId) -> bool:
        """Whether it has not yet reported all its partitions to this controller."""
        return not self._seen[node].reported

    def report(self, node: NodeId, key: PartitionKey, incarnation: str) -> PartitionReport | None:
        """What a node last said of a partition."""
        seen = self._seen.get(node)
        found = None if seen is None else seen.reports.get(key)
        return found if found is not None and found.incarnation == incarnation else None

    def next_deadline_ns(self) -> int | None:
        """When a node that is not heard is dead."""
        waits = [
            seen.since_ns + self._wait_ns
            for seen in self._seen.values()
            if seen.standing is not Standing.DEAD
        ]
        return min(waits, default=None)

    def _first_answer_ns(self, now_ns: int) -> int:
        """What counts as the last answer to a node that this controller has not answered yet."""
        return now_ns

    def _standing(self, seen: _Seen, now_ns: int) -> Standing:
        if now_ns >= max(seen.since_ns, seen.answered_ns) + self._wait_ns:
            return Standing.DEAD
        return seen.standing if seen.sequence == 0 else Standing.LIVE


def _matters(seen: _Seen, report: PartitionReport) -> bool:
    """Whether a report says that a replica's fitness changed.

    What comes anew may have been there before, unfit: a log that failed is not reported while it
    is opened again.
    """
    before = seen.reports.get(report.key)
    if before is None or before.incarnation != report.incarnation:
        return True
    told = (before.unfit, before.resigned, before.resigned and before.leader_epoch)
    return told != (report.unfit, report.resigned, report.resigned and report.leader_epoch)

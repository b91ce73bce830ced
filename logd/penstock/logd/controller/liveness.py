"""Liveness of nodes by their heartbeats, and the lease under which a node leads.

A new controller has answered no node, but the one before may have, up to the moment in which the
new one was elected: it counts for every node from there.

A node's lease on what it leads: while it holds, no other node leads that.

The node sends heartbeats; an answer renews the lease until `lease_ms` after the heartbeat was
*sent*, by the node's monotonic clock. The controller counts from when it answered, which is later,
and a tenth longer, so the lease ends here before anyone acts on its end there. When it ends, the
node stops acking and unsubscribes.

The clock must go on while the machine is suspended (`CLOCK_BOOTTIME`). What happens between a look
at the clock and what is then done is not covered by a lease, nor by any other clock; records acked
with the policy `all` do not depend on it.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from penstock.logd.metadata.records import Node, NodeId, PartitionKey
from penstock.logd.replication.events import Ineligible

NS_PER_MS: Final = 1_000_000

END_UNKNOWN: Final = -1
"""The end of a log that is not open."""

Reason: TypeAlias = Literal["not_controller", "register", "late", "behind", "no_raft_lease"]
"""Why a heartbeat gets no lease: asked of a node that does not decide; the process is not the one
that is registered; a later one of the process came before; it has not applied that it lost a
leadership, or is losing one; the controller may itself have been replaced."""


class Timing(Struct, frozen=True, kw_only=True):
    """Durations; the same on every node of a cluster.

    Attributes:
        heartbeat_interval_ms: Milliseconds between two heartbeats of a node.
        lease_ms: Length of a lease, from the sending of an answered heartbeat.
        drift_percent: Percent by which one node's monotonic clock may run faster than another's.
        unclean_wait_ms: Milliseconds without a live replica that has every acked record, after
            which a stream that allows it gets a leader without.
        plan_interval_ms: Milliseconds between two looks for moves.
        rebalance_after_ms: Milliseconds without a change of the nodes, after which leaderships are
            balanced.
        moves_max: Maximum partitions whose replicas move at a time.
        transfers_max: Maximum leaderships transferred at a time.
    """

    heartbeat_interval_ms: int = 150
    lease_ms: int = 600
    drift_percent: int = 10
    unclean_wait_ms: int = 30_000
    plan_interval_ms: int = 1000
    rebalance_after_ms: int = 30_000
    moves_max: int = 4
    transfers_max: int = 8

    @property
    def lease_wait_ns(self) -> int:
        """Nanoseconds after its last answer for which a controller assumes a running lease."""
        return self.lease_ms * NS_PER_MS * (100 + self.drift_percent) // 100


class PartitionReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """State of a node's replica.

    Attributes:
        leader_epoch: The epoch it knows.
        last_epoch: The epoch of the last frame in its log; 0: the log is empty.
        end_offset: The next offset to be written; `END_UNKNOWN` of a log that is not open.
        unfit: Why it cannot lead; empty: it can. Nodes of 0.1.0 read it by that name.
        resigned: It leads in no epoch up to `leader_epoch`, even if it is eligible again: what
            it wrote last may be lost.
        forgetful: It has lost ids or sequences of stored records, and not recovered them yet: it
            would store repeats. Another replica is to lead, if there is one.
    """

    key: PartitionKey
    incarnation: str
    leader_epoch: int
    last_epoch: int
    end_offset: int
    unfit: Ineligible = ""
    resigned: bool = False
    forgetful: bool = False


class Heartbeat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node is there.

    Attributes:
        sequence: Rises with every heartbeat of one process.
        applied_index: It has applied the log of the metadata group up to there.
        reports: Reports of partitions that changed since the last heartbeat; with `full`, of all.
        deaf: Whether it has no connection to NATS, so that publishers do not reach it.
    """

    node: NodeId
    storage: str
    boot: str
    sequence: int
    applied_index: int
    reports: tuple[PartitionReport, ...] = ()
    full: bool = False
    deaf: bool = False


class HeartbeatAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lease from the time the heartbeat was sent.

    Attributes:
        send_full: The next heartbeat is to report every partition.
    """

    boot: str
    sequence: int
    lease_ms: int
    send_full: bool = False


class HeartbeatRefusal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No lease."""

    boot: str
    sequence: int
    reason: Reason
    send_full: bool = False


class Standing(Enum):
    """Liveness of a node."""

    UNKNOWN = "unknown"
    """Nothing yet: the controller is new."""
    LIVE = "live"
    DEAD = "dead"
    """No heartbeat for so long that its lease has ended for certain."""


class _Seen(Struct):
    boot: str
    since_ns: int
    answered_ns: int
    standing: Standing = Standing.UNKNOWN
    sequence: int = 0
    applied_index: int = -1
    reported: bool = False
    unreachable: bool = False
    reports: dict[PartitionKey, PartitionReport] = msgspec.field(default_factory=dict)


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
            is older than one that came before.
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
        if heartbeat.deaf is not seen.unreachable:
            seen.unreachable = heartbeat.deaf
            changed |= seen.reports.keys()
        seen.reports.update((report.key, report) for report in heartbeat.reports)
        return changed

    def answer(self, node: NodeId, now_ns: int) -> None:
        """Take in that a node gets a lease now."""
        self._seen[node].answered_ns = now_ns

    def turn(self, now_ns: int, *, may_declare_dead: bool) -> list[NodeId]:
        """The nodes whose standing is another one from now on.

        Args:
            now_ns: Monotonic.
            may_declare_dead: Whether a silent node may be called dead; False when it may be this
                node that does not receive.
        """
        changed = []
        for node, seen in self._seen.items():
            standing = self._standing(seen, now_ns)
            if standing is Standing.DEAD and not may_declare_dead:
                continue
            if standing is not seen.standing:
                seen.standing = standing
                changed.append(node)
        return changed

    def standing(self, node: NodeId) -> Standing:
        """Return the liveness of a node at the last `turn`."""
        seen = self._seen.get(node)
        return Standing.UNKNOWN if seen is None else seen.standing

    def is_whole(self) -> bool:
        """Return whether the liveness of every node is known."""
        return all(seen.standing is not Standing.UNKNOWN for seen in self._seen.values())

    def live(self) -> set[NodeId]:
        """The nodes that are there."""
        return {node for node, seen in self._seen.items() if seen.standing is Standing.LIVE}

    def is_unreachable(self, node: NodeId) -> bool:
        """Return whether publishers cannot reach a node, by its last report."""
        seen = self._seen.get(node)
        return seen is not None and seen.unreachable

    def is_fenced(self, node: Node, now_ns: int) -> bool:
        """Return whether a node knows that it no longer leads what it has lost.

        It has applied the deposition, or its lease has ended.
        """
        seen = self._seen[node.id]
        return seen.applied_index >= node.deposed_at or now_ns >= self.lease_end_ns(node.id)

    def lease_end_ns(self, node: NodeId) -> int:
        """Return when a node's lease has ended for certain, monotonic."""
        return self._seen[node].answered_ns + self._wait_ns

    def wants_full(self, node: NodeId) -> bool:
        """Return whether the node has yet to report all its partitions to this controller."""
        return not self._seen[node].reported

    def report(self, node: NodeId, key: PartitionKey, incarnation: str) -> PartitionReport | None:
        """Return a node's last report of a partition; None: there is none."""
        seen = self._seen.get(node)
        found = None if seen is None else seen.reports.get(key)
        return found if found is not None and found.incarnation == incarnation else None

    def next_deadline_ns(self) -> int | None:
        """Return when the next node without a heartbeat counts as dead; None: no node is live."""
        waits = [
            seen.since_ns + self._wait_ns
            for seen in self._seen.values()
            if seen.standing is not Standing.DEAD
        ]
        return min(waits, default=None)

    def _first_answer_ns(self, now_ns: int) -> int:
        """Return the assumed time of the last answer to a node that was not answered yet."""
        return now_ns

    def _standing(self, seen: _Seen, now_ns: int) -> Standing:
        if now_ns >= max(seen.since_ns, seen.answered_ns) + self._wait_ns:
            return Standing.DEAD
        return seen.standing if seen.sequence == 0 else Standing.LIVE


def _matters(seen: _Seen, report: PartitionReport) -> bool:
    """Return whether a report changes a replica's eligibility.

    A replica that reappears may have been ineligible before: a log that failed is not reported
    while it is reopened.
    """
    before = seen.reports.get(report.key)
    if before is None or before.incarnation != report.incarnation:
        return True
    reported = (before.unfit, before.resigned, before.resigned and before.leader_epoch)
    return reported != (report.unfit, report.resigned, report.resigned and report.leader_epoch)


UNANSWERED_MAX: Final = 64
"""Heartbeats whose sending time is known; older ones have no lease left to give."""


class Tick(Struct, frozen=True):
    """The time that `next_deadline_ns` named has come."""


class BeatNow(Struct, frozen=True):
    """There is something that the controller should know at once.

    It lost a leadership, a log failed or is whole again, or there is a new controller.
    """


class Answered(Struct, frozen=True):
    """The controller answered a heartbeat of this process."""

    sequence: int
    lease_ms: int


class SendHeartbeat(Struct, frozen=True):
    """Send a heartbeat with this sequence to the controller, if one is known."""

    sequence: int


class LeaseBegun(Struct, frozen=True):
    """The lease has begun: this node leads what the applied state assigns to it."""


class LeaseEnded(Struct, frozen=True):
    """It leads nothing until the lease begins again."""


LeaseEvent: TypeAlias = Tick | BeatNow | Answered
LeaseEffect: TypeAlias = SendHeartbeat | LeaseBegun | LeaseEnded


class NodeLease:
    """One process's side; a new process begins without a lease."""

    def __init__(self, timing: Timing) -> None:
        self._interval_ns = timing.heartbeat_interval_ms * NS_PER_MS
        self._sent_ns: dict[int, int] = {}
        self._sequence = 0
        self._beat_ns = 0
        self._until_ns = 0
        self._held = False

    def is_valid(self, now_ns: int) -> bool:
        """Return whether this node leads; a leader checks it before each ack."""
        return self._held and now_ns < self._until_ns

    @property
    def until_ns(self) -> int:
        """End of the lease, monotonic; 0 without a lease."""
        return self._until_ns if self._held else 0

    def next_deadline_ns(self) -> int:
        """Return when `Tick` is due, monotonic."""
        return min(self._beat_ns, self._until_ns) if self._held else self._beat_ns

    def handle(self, event: LeaseEvent, now_ns: int) -> list[LeaseEffect]:
        """Take in what happened; what is to be done."""
        effects: list[LeaseEffect] = []
        if self._held and now_ns >= self._until_ns:
            self._held = False
            effects.append(LeaseEnded())
        if isinstance(event, Answered):
            return effects + self._renew(event, now_ns)
        if isinstance(event, BeatNow) or now_ns >= self._beat_ns:
            effects.append(self._beat(now_ns))
        return effects

    def _beat(self, now_ns: int) -> SendHeartbeat:
        self._sequence += 1
        self._sent_ns[self._sequence] = now_ns
        if len(self._sent_ns) > UNANSWERED_MAX:
            del self._sent_ns[next(iter(self._sent_ns))]
        self._beat_ns = now_ns + self._interval_ns
        return SendHeartbeat(self._sequence)

    def _renew(self, answer: Answered, now_ns: int) -> list[LeaseEffect]:
        sent_ns = self._sent_ns.pop(answer.sequence, None)
        if sent_ns is None:
            return []
        for sequence in [older for older in self._sent_ns if older < answer.sequence]:
            del self._sent_ns[sequence]
        until_ns = self._end_ns(sent_ns, answer.lease_ms * NS_PER_MS, now_ns)
        self._until_ns = max(self._until_ns, until_ns)
        if self._held or now_ns >= self._until_ns:
            return []
        self._held = True
        return [LeaseBegun()]

    def _end_ns(self, sent_ns: int, lease_ns: int, now_ns: int) -> int:
        del now_ns
        return sent_ns + lease_ns

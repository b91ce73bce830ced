"""Elections of partition leaders, decided from the state and the nodes' reports.

- A leader is replaced when its node is dead, which is said only after its lease has ended, or when
  it says that it has resigned. With no replica to replace it, a dead leader is deposed and a
  resigned one stays what it is called, though the partition has no replica to lead it.
- A leader that publishers do not reach is deposed for one that they do.
- The next leader is of the ISR, is there and is fit: the one a leadership was handed over to, else
  one that publishers reach, else one that is not draining, else one that has lost no dedup state,
  else the one with the longest log that is known of, else the first of the replicas in their order.
- Where no node leads, the one who led last must be fenced first.
- Dead replicas leave the ISR with an election, and also while a leader is there: acks need not wait
  until the leader finds that they lag. As many stay as the stream's minimum needs: nothing is
  committed without it, so that they have everything committed and may be elected (KIP-966).
- With no replica left that has every acked record, the partition waits for one. Only a stream that
  allows it gets, after a time, a leader that lacks records: one of the ISR that lacks no more than
  a damaged range, before a whole log from outside, before one that is not even that.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

from msgspec import Struct

from penstock.logd.controller.liveness import (
    END_UNKNOWN,
    NS_PER_MS,
    Liveness,
    Standing,
    Timing,
)
from penstock.logd.metadata.commands import Basis, Election, IsrChange, Unclean
from penstock.logd.metadata.records import (
    NodeId,
    NodeState,
    PartitionKey,
    PartitionRecord,
    StreamRecord,
)
from penstock.logd.metadata.state import ClusterState, Refused
from penstock.logd.metadata.tables import basis_of
from penstock.logd.replication.events import Ineligible


class Wait(Struct, frozen=True):
    """Nothing can be done before a time, or before a heartbeat of `node`."""

    until_ns: int
    node: NodeId | None = None


Verdict: TypeAlias = Election | IsrChange | Wait | None


class Elections:
    """Decides for one partition at a time.

    Notes since when partitions have no replica to lead them.
    """

    def __init__(self, state: ClusterState, liveness: Liveness, timing: Timing) -> None:
        self._state = state
        self._liveness = liveness
        self._unclean_wait_ns = timing.unclean_wait_ms * NS_PER_MS
        self._orphaned_ns: dict[PartitionKey, int] = {}

    def decide(self, key: PartitionKey, now_ns: int) -> Verdict:
        """Return what a partition needs now; None: nothing, until a node's state changes."""
        found = self._state.partition(key)
        if found is None:
            self._orphaned_ns.pop(key, None)
            return None
        case = _Case(key, *found)
        verdict = self._decide(case, now_ns)
        if isinstance(verdict, Election) or self._is_led(case):
            self._orphaned_ns.pop(key, None)
        return verdict

    def force(self, key: PartitionKey, now_ns: int) -> Election | None:
        """An operator's election of what is there, whatever it lacks; None: not now."""
        found = self._state.partition(key)
        if found is None or self.objection(key, now_ns) is not None:
            return None
        return self._unclean(_Case(key, *found), "operator")

    def objection(self, key: PartitionKey, now_ns: int) -> Refused | None:
        """Why an operator's election is not held now: nothing need be lost, or no node is there."""
        found = self._state.partition(key)
        if found is None:
            name = f"partition {key.partition} of stream {key.stream!r}"
            return Refused(code="UNKNOWN_PARTITION", message=f"there is no {name}")
        case = _Case(key, *found)
        name, leader = f"{key.stream}/{key.partition}", case.partition.leader
        if self._is_led(case):
            dead = leader is None or self._liveness.standing(leader) is not Standing.LIVE
            message = f"{name} is led by {leader}"
            return Refused(code="NOT_YET" if dead else "HAS_LEADER", message=message)
        if last := self._unfenced(case, now_ns):
            return Refused(code="NOT_YET", message=f"{last} may still lead {name}")
        if chosen := self._choose(case):
            message = f"{chosen} has every acked record of {name} and is about to lead it"
            return Refused(code="IN_SYNC_ALIVE", message=message)
        if self._unclean(case, "operator") is None:
            nodes = ", ".join(case.partition.replicas)
            message = f"no replica of {name} is there that could write: {nodes}"
            return Refused(code="NO_REPLICA", message=message)
        return None

    def known_end(self, key: PartitionKey, nodes: Iterable[NodeId]) -> int | None:
        """Return the last reported end of the longest log of these nodes; None: unknown."""
        found = self._state.partition(key)
        reports = [
            self._liveness.report(node, key, found[0].incarnation) for node in nodes if found
        ]
        ends = [report.end_offset for report in reports if report]
        return max((end for end in ends if end != END_UNKNOWN), default=None)

    def is_fit(self, node: NodeId, key: PartitionKey, stream: StreamRecord) -> bool:
        """Return whether a replica's node is live and has reported no reason against it."""
        if self._liveness.standing(node) is not Standing.LIVE:
            return False
        report = self._liveness.report(node, key, stream.incarnation)
        return report is None or not report.unfit

    def _decide(self, case: "_Case", now_ns: int) -> Verdict:
        leader = case.partition.leader
        if leader is None:
            return self._fill(case, now_ns)
        if self._liveness.standing(leader) is Standing.DEAD:
            return self._replace_dead(case)
        if self._has_resigned(leader, case):
            chosen = self._choose(case)
            return self._orphan(case, now_ns) if chosen is None else self._elect(case, chosen)
        if self._liveness.is_unreachable(leader):
            successor, isr = self._choose(case), case.partition.isr
            if successor is not None and not self._liveness.is_unreachable(successor):
                return Election(basis=case.basis(), leader=None, isr=isr, successor=successor)
        alive = self._remaining(case, case.partition.isr)
        if alive != case.partition.isr:
            return IsrChange(basis=case.basis(), isr=alive)
        return None

    def _fill(self, case: "_Case", now_ns: int) -> Verdict:
        last = self._unfenced(case, now_ns)
        if last is not None:
            return Wait(self._liveness.lease_end_ns(last), last)
        chosen = self._choose(case)
        if chosen is not None:
            return self._elect(case, chosen)
        return self._orphan(case, now_ns)

    def _orphan(self, case: "_Case", now_ns: int) -> Verdict:
        since_ns = self._orphaned_ns.setdefault(case.key, now_ns)
        if not case.stream.options.unclean_election:
            return None
        if now_ns < since_ns + self._unclean_wait_ns:
            return Wait(since_ns + self._unclean_wait_ns)
        return self._unclean(case, "option")

    def _unclean(self, case: "_Case", why: Unclean) -> Election | None:
        partition = case.partition
        with_holes = tuple(
            n for n in self._eligible(partition) if self._why_ineligible(n, case) == "hole"
        )
        chosen = (
            self._highest(case, with_holes)
            or self._best(case, partition.replicas)
            or self._highest(case, partition.replicas)
        )
        if chosen is None:
            return None
        return Election(basis=case.basis(), leader=chosen, isr=(chosen,), unclean=why)

    def _replace_dead(self, case: "_Case") -> Verdict:
        chosen = self._choose(case)
        if chosen is not None:
            return self._elect(case, chosen)
        standings = {self._liveness.standing(node) for node in case.partition.isr}
        if Standing.UNKNOWN in standings:
            return None
        return Election(basis=case.basis(), leader=None, isr=case.partition.isr)

    def _elect(self, case: "_Case", chosen: NodeId) -> Election:
        isr = case.partition.isr
        fit = tuple(node for node in isr if node == chosen or not self._why_ineligible(node, case))
        return Election(basis=case.basis(), leader=chosen, isr=self._remaining(case, fit))

    def _choose(self, case: "_Case") -> NodeId | None:
        return self._best(case, self._eligible(case.partition))

    def _eligible(self, partition: PartitionRecord) -> tuple[NodeId, ...]:
        """Return the replicas that have every acked record."""
        return tuple(node for node in partition.replicas if node in partition.isr)

    def _best(self, case: "_Case", nodes: tuple[NodeId, ...]) -> NodeId | None:
        fit = [node for node in nodes if self.is_fit(node, case.key, case.stream)]
        return self._highest(case, tuple(fit))

    def _highest(self, case: "_Case", nodes: tuple[NodeId, ...]) -> NodeId | None:
        """The one to prefer of those that are there and can write."""
        able = [
            node
            for node in nodes
            if self._liveness.standing(node) is Standing.LIVE
            and self._why_ineligible(node, case) != "failed"
        ]
        return max(able, key=lambda node: self._rank(node, case), default=None)

    def _rank(self, node: NodeId, case: "_Case") -> tuple[Any, ...]:
        report = self._liveness.report(node, case.key, case.stream.incarnation)
        log = (0, 0) if report is None else (report.last_epoch, report.end_offset)
        return (
            node == case.partition.successor,
            not self._liveness.is_unreachable(node),
            self._state.nodes[node].state is NodeState.ACTIVE,
            report is None or not report.forgetful,
            log,
            -case.partition.replicas.index(node),
        )

    def _has_resigned(self, leader: NodeId, case: "_Case") -> bool:
        report = self._liveness.report(leader, case.key, case.stream.incarnation)
        return (
            report is not None
            and report.resigned
            and report.leader_epoch >= case.partition.leader_epoch
        )

    def _unfenced(self, case: "_Case", now_ns: int) -> NodeId | None:
        """Return the last leader if no node leads and its lease may last; else None."""
        last = case.partition.last_leader
        if case.partition.leader is not None or last is None:
            return None
        return None if self._liveness.is_fenced(self._state.nodes[last], now_ns) else last

    def _is_led(self, case: "_Case") -> bool:
        leader = case.partition.leader
        return leader is not None and not self._has_resigned(leader, case)

    def _why_ineligible(self, node: NodeId, case: "_Case") -> Ineligible:
        report = self._liveness.report(node, case.key, case.stream.incarnation)
        return "" if report is None else report.unfit

    def _remaining(self, case: "_Case", nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        """Members of an ISR without the dead that the stream's minimum does not need."""
        dead = [node for node in nodes if self._liveness.standing(node) is Standing.DEAD]
        dead.sort(key=lambda node: self._rank(node, case), reverse=True)
        needed = max(0, case.stream.min_isr - (len(nodes) - len(dead)))
        return tuple(node for node in nodes if node not in dead[needed:])


class _Case(Struct, frozen=True):
    key: PartitionKey
    stream: StreamRecord
    partition: PartitionRecord

    def basis(self) -> Basis:
        return basis_of(self.key, self.stream, self.partition)

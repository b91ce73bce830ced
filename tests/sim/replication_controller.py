"""A model of the controller: one linearizable object that grants leases, elects and changes ISRs.

Its clock runs true. It validates everything when it applies it, and gives a leadership away only
when the lease that it granted last must be over on any clock, or when the leader has resigned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.logd.replication.events import (
    IsrAnswered,
    LeaderAndIsr,
    LeaderAndIsrChanged,
    NodeLost,
    Outcome,
    StepDown,
)

if TYPE_CHECKING:
    from penstock.logd.replication.events import Event, NodeId, ProposeIsr
    from tests.sim.replication_world import ReplicationWorld

MS: Final = 1_000_000
LEASE_NS: Final = 40 * MS
LEASE_OVER_NS: Final = LEASE_NS * 11 // 10
"""Clocks run at most 4 % wrong, two of them against each other less than 10 %."""


class Controller:
    """Of one partition."""

    def __init__(self, world: ReplicationWorld, replicas: list[NodeId], observers: int) -> None:
        self.world = world
        spare = 1 if world.moving and len(replicas) > 3 else 0
        replicas, self.spare = replicas[: len(replicas) - spare], replicas[len(replicas) - spare :]
        self.target: tuple[NodeId, ...] | None = None
        self.former: set[NodeId] = set()
        voting = replicas[: len(replicas) - observers]
        self.view = LeaderAndIsr(
            incarnation="i",
            version=1,
            leader_epoch=1,
            leader=voting[0],
            isr=frozenset(voting),
            replicas=tuple(voting),
            observers=frozenset(replicas[len(voting) :]),
            min_isr=world.random.randint(1, len(voting) // 2 + 1),
        )
        everybody = [*replicas, *self.spare]
        self.answered_ns = dict.fromkeys(everybody, 0)
        self.electable = dict.fromkeys(everybody, True)
        self.lost: set[NodeId] = set()

    def heartbeat(self, node: NodeId, sent_ns: int, life: int, *, electable: bool) -> None:
        """Answer with a lease and the view; note that the node lives."""
        world = self.world
        self.answered_ns[node] = world.now_ns
        self.electable[node] = electable
        self.lost.discard(node)
        view = self.view
        until_ns = sent_ns + LEASE_NS
        world.send("controller", node, lambda n: n.leased(until_ns, view, life))

    def lives(self, node: NodeId) -> bool:
        """Whether it has been heard of within a lease."""
        return self.world.now_ns - self.answered_ns[node] <= LEASE_OVER_NS

    def look(self) -> None:
        """Elect where the leader is lost; tell the leader of others that are."""
        view = self.view
        for node in (*view.replicas, *view.observers):
            if not self.lives(node) and node not in self.lost:
                self.lost.add(node)
                if view.leader is not None and self.world.random.random() < 0.7:
                    self.tell(view.leader, NodeLost(node))
        if view.leader is None or not self.lives(view.leader):
            self.elect()
        elif not self.electable[view.leader] and len(view.isr) > 1:
            self.tell(view.leader, StepDown())
        if self.target is not None:
            self.move(self.target)

    def move(self, target: tuple[NodeId, ...]) -> None:
        """The next step towards these replicas (`penstock.logd.controller.placement`)."""
        view, mark = self.view, self.world.mark
        missing = [node for node in target if node not in view.replicas]
        surplus = [node for node in view.replicas if node not in target]
        if missing and len(view.replicas) <= len(target):
            if missing[0] not in self.former:
                mark("replica added")
                replicas = (*view.replicas, missing[0])
                self.change(replace(view, replicas=replicas, observers=view.observers - {*missing}))
        elif not surplus:
            mark("moved")
            self.target = None
            self.change(replace(view, replicas=target))
        elif len(view.isr.intersection(target)) >= len(target) - len(missing):
            going = min(surplus, key=lambda node: node == view.leader)
            if going == view.leader:
                self.tell(going, StepDown())
            elif going not in view.isr or len(view.isr) > view.min_isr:
                mark("replica removed")
                self.former.add(going)
                left = tuple(node for node in view.replicas if node != going)
                self.change(replace(view, replicas=left, isr=view.isr - {going}))

    def gone(self, node: NodeId) -> None:
        """A node has no data any more that it was to remove."""
        if not self.view.holds(node):
            self.former.discard(node)

    def elect(self) -> None:
        """A live, fit member of the ISR becomes leader, or nobody."""
        view = self.view
        fit = [n for n in view.replicas if n in view.isr and self.lives(n) and self.electable[n]]
        haste = self.world.unclean and not self.world.calm and self.world.random.random() < 0.1
        if fit and not haste:
            leader = self.world.random.choice(fit)
            self.change(replace(view, leader=leader, leader_epoch=view.leader_epoch + 1))
            self.world.aim(leader)
        elif haste or (self.world.unclean and self.world.random.random() < 0.2):
            self.elect_unclean()
        elif view.leader is not None:
            self.change(replace(view, leader=None))

    def elect_unclean(self) -> None:
        """Somebody asked for it: any live replica leads with what it has."""
        view = self.view
        alive = [n for n in view.replicas if self.lives(n) and self.world.nodes[n].running]
        if alive:
            leader, epoch = self.world.random.choice(alive), view.leader_epoch + 1
            self.world.mark("unclean election")
            self.change(
                replace(
                    view,
                    leader=leader,
                    leader_epoch=epoch,
                    isr=frozenset({leader}),
                    unclean_epoch=epoch,
                )
            )
            self.world.aim(leader)

    def resigned(self, node: NodeId, epoch: int) -> None:
        """A leader, or one that was to be it, does not lead under this epoch."""
        if (node, epoch) == (self.view.leader, self.view.leader_epoch):
            self.world.mark("resigned")
            self.elect()

    def proposed(self, node: NodeId, proposal: ProposeIsr) -> None:
        """Apply a change of the ISR if it still fits, and answer."""
        outcome = self.judge(proposal)
        if outcome is Outcome.COMMITTED:
            self.world.mark(f"isr {len(self.view.isr)} -> {len(proposal.isr)}")
            if proposal.isr == self.view.isr:
                self.world.mark("addition taken back")
            added = proposal.isr - self.view.isr
            self.change(replace(self.view, isr=proposal.isr))
            self.world.aim(node, added)
        elif outcome is not Outcome.LOST:
            self.world.mark(f"proposal {outcome.name.lower()}")
        self.tell(node, IsrAnswered(proposal.leader_epoch, proposal.number, outcome))

    def tell(self, node: NodeId, event: Event) -> None:
        self.world.send("controller", node, lambda n: n.take(event))

    def judge(self, proposal: ProposeIsr) -> Outcome:
        view = self.view
        if (proposal.incarnation, proposal.leader_epoch) != (view.incarnation, view.leader_epoch):
            return Outcome.DEPOSED
        if proposal.version != view.version:
            return Outcome.STALE
        unfit = any(not self.lives(node) for node in proposal.isr - view.isr)
        if unfit or (not self.world.calm and self.world.random.random() < self.world.spite / 2):
            return Outcome.REFUSED
        return Outcome.COMMITTED

    def change(self, view: LeaderAndIsr) -> None:
        """One entry of the metadata log: everybody hears of it sooner or later."""
        self.view = replace(view, version=self.view.version + 1)
        if view.leader_epoch == view.unclean_epoch and view.leader is not None:
            self.world.history.unclean(self.world.nodes[view.leader], view.leader_epoch)
        now = self.view
        for node in self.answered_ns:
            if self.world.calm or self.world.random.random() < 0.5:  # else heartbeats bring it
                self.tell(node, LeaderAndIsrChanged(now))

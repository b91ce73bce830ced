"""A node's heartbeats, its lease and, where it leads the group, the controller; all real cores."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from penstock.logd import raft as on
from penstock.logd.controller import controller as ask
from penstock.logd.controller import liveness as leasing
from penstock.logd.controller.controller import Controller
from penstock.logd.controller.liveness import (
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRefusal,
    PartitionReport,
    Timing,
)
from penstock.logd.metadata.commands import ChangeIsr, Command, RegisterNode
from penstock.logd.metadata.node_rules import HandOver, next_step
from penstock.logd.metadata.records import Addresses
from tests.sim.cluster_member import ASKED_NS, Fate, GroupMember
from tests.sim.stage import MS

if TYPE_CHECKING:
    from penstock.logd.metadata.state import Refused, Result
    from penstock.logd.replication.events import NodeId
    from tests.sim.cluster_member import Answer

TIMING: Final = Timing(
    heartbeat_interval_ms=25,
    lease_ms=100,
    plan_interval_ms=40,
    rebalance_after_ms=400,
    moves_max=2,
    transfers_max=2,
)
LOOK_NS: Final = 40 * MS
"""Between two looks at who is to belong to the group."""


class Office(GroupMember):
    """The part of a process that keeps its lease, and decides if it is to."""

    def begin_office(self) -> None:
        self.lease = leasing.NodeLease(TIMING)
        self.controller = Controller(TIMING)
        self.full = True
        self.unanswered: dict[int, bool] = {}
        self.numbers: dict[int, Command] = {}
        self.elected_ns: int | None = None
        self.registering = False
        self.looked_ns = 0

    @property
    def boot(self) -> str:
        return f"boot-{self.life}"

    # The controller.

    @override
    def on_leader(self, leader: NodeId | None) -> None:
        if leader == self.name:
            self.world.mark("controller elected")
            self.elected_ns = self.clock_ns()
            self.take_over(self.elected_ns)
        else:
            self.elected_ns = None
            self.numbers.clear()
            self.decide(ask.LostController())
        if leader is not None:
            self.beat(leasing.BeatNow())

    def take_over(self, elected_ns: int) -> None:
        """Be the controller once everything from before the election is applied."""

        def known(ready: bool) -> None:
            if self.elected_ns != elected_ns:
                return
            if ready:
                self.decide(ask.BecameController(self.state, elected_ns))
            else:
                self.later(10 * MS, lambda: self.take_over(elected_ns))

        if self.elected_ns == elected_ns:
            self.read(known)

    def decide(self, event: ask.ControllerEvent) -> HeartbeatAnswer | HeartbeatRefusal | None:
        answer = None
        for effect in self.controller.handle(event, self.clock_ns()):
            if isinstance(effect, ask.Answer):
                answer = effect.answer
            else:
                self.reconcile(effect)
        return answer

    def reconcile(self, effect: ask.Propose) -> None:
        number = effect.proposal
        self.numbers[number] = effect.command

        def answered(answer: Answer) -> None:
            if answer is Fate.AGAIN and self.numbers.pop(number, None) is not None:
                self.decide(ask.ProposalDropped(number))

        # A proposal is not answered in the midst of a decision.
        self.later(0, lambda: self.propose(effect.command, answered))

    @override
    def admit(self, command: ChangeIsr, number: int) -> Refused | None:
        return self.controller.admit(command.changes[number])

    @override
    def on_applied(self, command: Command, result: Result) -> None:
        number = next((n for n, found in self.numbers.items() if found == command), None)
        if number is not None:
            del self.numbers[number]
        self.decide(ask.CommandApplied(command, result, number))

    @override
    def on_restored(self) -> None:
        self.decide(ask.LostController())

    # Heartbeats.

    def beat(self, event: leasing.LeaseEvent) -> None:
        for effect in self.lease.handle(event, self.clock_ns()):
            match effect:
                case leasing.SendHeartbeat(sequence):
                    self.send_heartbeat(sequence)
                case leasing.LeaseBegun():
                    self.world.mark("lease begun")
                    self.on_lease(held=True)
                case leasing.LeaseEnded():
                    self.world.mark("lease ended")
                    self.on_lease(held=False)

    def send_heartbeat(self, sequence: int) -> None:
        leader, full = self.raft.leader, self.full
        if leader is None:
            return
        self.full = False
        heartbeat = Heartbeat(
            node=self.name,
            storage=self.raft.config.disk or "disk",
            boot=self.boot,
            sequence=sequence,
            applied_index=self.state.index,
            reports=self.reports(full=full),
            full=full,
        )
        self.unanswered[sequence] = full or bool(heartbeat.reports)
        self.later(ASKED_NS, lambda: self.miss(sequence))
        name, life = self.name, self.life
        if leader == name:
            self.later(0, lambda: self.hear(heartbeat, name, life))
        else:
            self.world.send(name, leader, lambda m: m.hear(heartbeat, name, life))

    def miss(self, sequence: int) -> None:
        """What it reported may not have come."""
        self.full = self.unanswered.pop(sequence, False) or self.full

    def hear(self, heartbeat: Heartbeat, sender: NodeId, life: int) -> None:
        answer = self.decide(ask.HeartbeatReceived(heartbeat, self.raft.lease_end_ns))
        assert answer is not None
        if sender == self.name:
            self.take_heartbeat_answer(answer, life)
        else:
            self.world.send(self.name, sender, lambda m: m.take_heartbeat_answer(answer, life))

    def take_heartbeat_answer(self, answer: HeartbeatAnswer | HeartbeatRefusal, life: int) -> None:
        self.full = self.full or answer.send_full
        if life != self.life:
            return
        self.unanswered.pop(answer.sequence, None)
        if isinstance(answer, HeartbeatAnswer):
            self.beat(leasing.Answered(answer.sequence, answer.lease_ms))
        else:
            self.world.mark(f"heartbeat refused: {answer.reason}")
            if answer.reason == "register":
                self.register()

    def register(self) -> None:
        """Tell where it is, and which process."""
        if self.registering:
            return
        self.registering = True

        def registered(result: Result | None) -> None:
            del result
            self.registering = False
            self.beat(leasing.BeatNow())

        command = RegisterNode(
            node=self.name,
            addresses=Addresses(peer=f"{self.name}:1"),
            storage=self.raft.config.disk or "disk",
            boot=self.boot,
        )
        self.change(command, registered, within_ms=None)

    # Timers.

    def tick(self) -> None:
        """Whatever is due."""
        now_ns = self.clock_ns()
        due_ns = self.raft.next_deadline_ns()
        if due_ns is not None and due_ns <= now_ns:
            self.tell(on.Woke())
        if self.lease.next_deadline_ns() <= now_ns:
            self.beat(leasing.Tick())
        due_ns = self.controller.next_deadline_ns()
        if due_ns is not None and due_ns <= now_ns:
            self.decide(ask.Tick(self.raft.lease_end_ns))
        if self.controller.decides and now_ns - self.looked_ns > LOOK_NS:
            self.looked_ns = now_ns
            self.look_at_members()

    def look_at_members(self) -> None:
        """One step towards a group of those that are registered."""
        members = self.raft.memberships.current
        step = next_step(members, self.state.nodes, self.controller.live(), self.name)
        if isinstance(step, HandOver):
            self.world.mark("group handed over")
            self.tell(on.TransferLeadership(self.world.next_tag(), step.to))
        elif step is not None:
            self.world.mark(f"members: {type(step).__name__}")
            self.tell(on.ChangeMembership(self.world.next_tag(), step))

    # What replicas do.

    @abstractmethod
    def on_lease(self, *, held: bool) -> None:
        """It has begun, or ended."""

    @abstractmethod
    def reports(self, *, full: bool) -> tuple[PartitionReport, ...]:
        """Where the replicas stand that have changed, or all."""

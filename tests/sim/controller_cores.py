"""The nodes of `controller_world` run: their cores, with messages between them."""

from typing_extensions import override

from penstock.logd.controller.controller import (
    ControllerEffect,
    ControllerEvent,
    HeartbeatReceived,
    Propose,
    Tick,
)
from penstock.logd.controller.liveness import (
    Answered,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRefusal,
    LeaseEffect,
    LeaseEvent,
    PartitionReport,
    SendHeartbeat,
)
from penstock.logd.controller.liveness import Tick as LeaseTick
from penstock.logd.metadata.commands import ChangeIsr, Command, DataGone, RegisterNode
from penstock.logd.metadata.records import Addresses
from tests.sim.controller_node import (
    FAULTS_NS,
    MS,
    LogKey,
    SimNode,
)
from tests.sim.controller_stage import Stage


class Cores(Stage):
    """Controllers, leases and what else a daemon does for them."""

    def wake(self, node: SimNode, boots: int) -> None:
        self.on(node, boots, self.work, node)

    def work(self, node: SimNode) -> None:
        clock = node.clock(self.now)
        node.timer = 0
        if clock >= node.lease.next_deadline_ns():
            self.use_lease(node, LeaseTick())
        deadline = node.controller.next_deadline_ns()
        if deadline is not None and clock >= deadline:
            self.control(node, Tick(node.raft_until))
        self.set_timer(node)

    def set_timer(self, node: SimNode) -> None:
        controls = node.controller.next_deadline_ns()
        deadline = node.lease.next_deadline_ns()
        deadline = deadline if controls is None else min(deadline, controls)
        when = max(self.now + 1, node.true_time(deadline))
        if not node.timer or when < node.timer:
            node.timer = when
            self.at(when - self.now, self.wake, node, node.boots)

    @override
    def use_lease(self, node: SimNode, event: LeaseEvent) -> None:
        effects: list[LeaseEffect] = node.lease.handle(event, node.clock(self.now))
        for effect in effects:
            if isinstance(effect, SendHeartbeat):
                self.beat(node, effect.sequence)
            else:
                self.check_one_leader()
        self.set_timer(node)

    def beat(self, node: SimNode, sequence: int) -> None:
        heartbeat = Heartbeat(
            node=node.name,
            storage=node.storage,
            boot=node.boot,
            sequence=sequence,
            applied_index=node.applied,
            reports=self.reports(node),
            full=node.full,
        )
        self.send(node, self.nodes[node.known], self.heartbeat_arrives, heartbeat, node)

    def reports(self, node: SimNode) -> tuple[PartitionReport, ...]:
        found = []
        for key, stream, partition in node.state.partitions():
            log = (key.stream, stream.incarnation, key.partition)
            if node.name not in partition.replicas:
                continue
            entries = node.logs.get(log, [])
            resigned = node.resigned.get(log, 0)
            found.append(
                PartitionReport(
                    key=key,
                    incarnation=stream.incarnation,
                    leader_epoch=resigned or partition.leader_epoch,
                    last_epoch=entries[-1][0] if entries else 0,
                    end_offset=len(entries),
                    unfit="failed" if log in node.failed else "",
                    resigned=bool(resigned),
                )
            )
        return tuple(found)

    def heartbeat_arrives(self, node: SimNode, heartbeat: Heartbeat, sender: SimNode) -> None:
        event = HeartbeatReceived(heartbeat, node.raft_until)
        self.control(node, event, answer_to=sender)

    @override
    def control(
        self, node: SimNode, event: ControllerEvent, answer_to: SimNode | None = None
    ) -> None:
        effects: list[ControllerEffect] = node.controller.handle(event, node.clock(self.now))
        for effect in effects:
            if isinstance(effect, Propose):
                self.propose(node, effect.command, effect.proposal)
            elif answer_to is not None:
                self.send(node, answer_to, self.answer_arrives, effect.answer)
        self.set_timer(node)

    def answer_arrives(self, node: SimNode, answer: HeartbeatAnswer | HeartbeatRefusal) -> None:
        if answer.boot != node.boot:
            return
        node.full = answer.send_full
        if isinstance(answer, HeartbeatAnswer):
            self.use_lease(node, Answered(answer.sequence, answer.lease_ms))
        else:
            self.reached[f"refused {answer.reason}"] += 1

    def forward(self, node: SimNode, command: Command) -> None:
        if self.raft_leader is not None:
            self.send(node, self.raft_leader, self.request_arrives, command)
            if self.now < FAULTS_NS and self.random.random() < self.repeats:  # it asks again
                late = self.random.randrange(1500 * MS)
                self.at(late, self.send, node, self.raft_leader, self.request_arrives, command)

    def request_arrives(self, node: SimNode, command: Command) -> None:
        if isinstance(command, ChangeIsr) and node.controller.admit(command.changes[0]) is not None:
            self.reached["expansion not admitted"] += 1
            return
        self.propose(node, command)

    def node_tick(self) -> None:
        """Nodes register, and say that data is gone which was to be removed."""
        self.at(110 * MS, self.node_tick)
        for node in self.nodes.values():
            if node.up and self.now >= node.paused_until:
                self.catch_up(node, self.committed)
                self.keep_house(node)

    def keep_house(self, node: SimNode) -> None:
        known = node.state.nodes.get(node.name)
        if known is None or (known.boot, known.storage) != (node.boot, node.storage):
            address = Addresses(peer=f"{node.name}:1")
            register = RegisterNode(
                node=node.name, addresses=address, storage=node.storage, boot=node.boot
            )
            self.forward(node, register)
        for name, stream in list(node.state.streams.items()):
            for number, partition in enumerate(stream.partitions):
                deleted = not stream.is_open and node.name in partition.holders
                if deleted or node.name in partition.former:
                    node.logs.pop((name, stream.incarnation, number), None)
                    gone = DataGone(
                        node=node.name,
                        stream=name,
                        incarnation=stream.incarnation,
                        partitions=(number,),
                    )
                    self.forward(node, gone)

    @override
    def check_one_leader(self) -> None:
        leaders: dict[LogKey, str] = {}
        for node in self.nodes.values():
            for log, _ in node.believes(self.now):
                other = leaders.setdefault(log, node.name)
                assert other == node.name, f"{other} and {node.name} both lead {log}"

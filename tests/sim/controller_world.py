"""The controller, the nodes' leases and the state, over a model of the metadata group and of logs.

One seed picks everything: clocks that run at different rates, lost and late messages, nodes that
pause, crash, are cut off one way or both, lose their disk or have a log fail, changes of the
controller with proposals that survive or do not, streams that come and go, nodes that are drained.

The metadata group is modelled as what Raft promises: one order of commands, a leader that holds a
lease while nobody else can be elected, proposals that are lost only with their leader. Replication
is modelled as what the replicas do, without its messages. Only the checks know the true time:

- no two nodes believe at one moment that they lead a partition with a valid lease;
- what was acked is a prefix of the log of a new leader, and of every replica in sync;
- nodes that have applied the same commands have the same state; no incarnation comes twice;
- when faults stop, every partition with a replica in sync is led within `RECOVERY_NS`, and a
  drained node is empty in the end.
"""

import heapq

from penstock.logd.controller.controller import LostController, RebalanceAsked
from penstock.logd.controller.liveness import BeatNow
from penstock.logd.controller.placement import place_stream
from penstock.logd.metadata.commands import DeleteStream, Drain
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.state import ClusterState
from penstock.logd.metadata.streams import StreamConfig
from tests.sim.controller_logs import Logs
from tests.sim.controller_node import (
    CALM_NS,
    FAULTS_NS,
    MS,
    RECOVERY_NS,
    SimNode,
)


class ControllerWorld(Logs):
    """One run. Call `run`."""

    def run(self) -> None:
        for node in self.nodes.values():
            self.at(self.random.randrange(50 * MS), self.wake, node, node.boots)
        self.at(0, self.raft_tick)
        self.at(100 * MS, self.node_tick)
        self.at(500 * MS, self.data_tick)
        self.at(300 * MS, self.fault)
        self.at(FAULTS_NS, self.heal)
        self.at(FAULTS_NS + RECOVERY_NS, self.check_led)
        self.at(400 * MS, self.operate)
        while self.now < FAULTS_NS + CALM_NS:
            self.now, _, action, args = heapq.heappop(self.queue)
            action(*args)
        self.check_end()

    # Faults and operators.

    def fault(self) -> None:
        self.at(self.random.randrange(150 * MS, 700 * MS), self.fault)
        if not self.calm_until <= self.now < FAULTS_NS:
            return
        node = self.random.choice([*self.nodes.values()])
        kind = self.random.choice(("pause", "pause", "crash", "cut", "cut", "log", "log", "wipe"))
        if self.random.random() < 0.3 and self.raft_leader is not None:
            node = self.raft_leader
        length = self.random.choice((100, 400, 700, 900, 1500)) * MS
        length = int(length * self.random.uniform(0.8, 1.2))
        if kind == "pause":
            node.paused_until = max(node.paused_until, self.now + length)
        elif kind == "crash" and node.up:
            self.crash(node, length)
        elif kind == "cut":
            node.hears = self.random.random() < 0.5
            node.is_heard = node.hears and self.random.random() < 0.5
            self.at(length, self.join, node)
        elif kind == "log":
            self.fail_log(node, length)
        elif kind == "wipe" and all(self.is_well(one) for one in self.nodes.values()):
            self.wipe(node)
        self.reached[kind] += 1

    def heal(self) -> None:
        for node in self.nodes.values():
            node.paused_until = min(node.paused_until, self.now)
            self.join(node)
            self.restart(node, node.boots)
            node.failed.clear()

    def crash(self, node: SimNode, length: int) -> None:
        node.up = False
        if self.raft_leader is node:
            node.raft_until = 0
        self.at(length, self.restart, node, node.boots)

    def restart(self, node: SimNode, boots: int) -> None:
        if node.up or node.boots != boots:
            return
        applied, snapshot = node.snapshot
        state = ClusterState.restore(snapshot) if snapshot else ClusterState()
        if self.raft_leader is node:
            self.raft_leader = None
        node.up = True
        node.start(state, applied)
        self.wake(node, node.boots)

    def join(self, node: SimNode) -> None:
        was_cut = not (node.hears and node.is_heard)
        node.hears = node.is_heard = True
        if was_cut:
            self.at(0, self.on, node, node.boots, self.lose_office, node)

    def lose_office(self, node: SimNode) -> None:
        if self.raft_leader is not node:
            self.control(node, LostController())

    def fail_log(self, node: SimNode, length: int) -> None:
        if not node.up:
            return
        led = dict(node.believes(self.now))
        for key, stream, partition in node.state.partitions():
            log = (key.stream, stream.incarnation, key.partition)
            if node.name not in partition.replicas or self.random.random() < 0.6:
                continue
            node.failed.add(log)
            self.at(length, node.failed.discard, log)
            if log in led:
                node.resigned[log] = partition.leader_epoch
                self.reached["leader's log failed"] += 1
        self.use_lease(node, BeatNow())

    def wipe(self, node: SimNode) -> None:
        """One disk is lost, while the other nodes are well and stay so for a time."""
        whole = all(len(one.isr) >= 2 for _, _, one in self.reference.partitions())
        if not whole or self.calm_until or len(self.log) > self.committed:
            return
        self.calm_until = self.now + 2500 * MS
        node.logs.clear()
        node.storage = "disk-2"
        node.snapshot = (0, b"")
        self.crash(node, 100 * MS)
        self.reached["disk lost"] += 1

    def operate(self) -> None:
        """Streams come and go; a node is drained, or not any more."""
        self.at(self.random.randrange(100 * MS, 600 * MS), self.operate)
        leader = self.raft_leader
        if leader is None or not self.is_well(leader) or self.now > FAULTS_NS:
            return
        live = leader.controller.live()
        for name in ("s", "t"):
            present = leader.state.streams.get(name)
            active = len(leader.state.active())
            if present is None and len(live) >= 2 and active >= 2:
                self.create(leader, name, live, min(active, self.random.choice((2, 3))))
            elif present and present.is_open and name == "t" and self.random.random() < 0.3:
                self.propose(leader, DeleteStream(stream=name, incarnation=present.incarnation))
        if self.random.random() < 0.2:
            self.control(leader, RebalanceAsked())
        if self.random.random() < 0.15:
            name = self.random.choice([*self.nodes])
            undo = any(node.state == "draining" for node in leader.state.nodes.values())
            self.propose(leader, Drain(node=name, undo=undo))

    def create(self, leader: SimNode, name: str, live: set[str], factor: int) -> None:
        command = place_stream(
            leader.state,
            live,
            StreamConfig(name=name, subject=f"{name}.>"),
            ReplicationOptions(replication_factor=factor, min_isr=self.random.choice((None, 1))),
            partitions=self.random.choice((1, 2)),
            nonce="ab",
        )
        self.propose(leader, command)

    # What must hold.

    def check_led(self) -> None:
        """Every partition that can be led is, or was a moment ago and is being handed over."""
        for key, stream, partition in self.reference.partitions():
            led_ns = self.led_ns.get((key.stream, stream.incarnation, key.partition), 0)
            assert led_ns > self.now - 400 * MS or not partition.isr, f"{key} not led: {partition}"

    def check_end(self) -> None:
        self.check_led()
        for key, stream, partition in self.reference.partitions():
            log = (key.stream, stream.incarnation, key.partition)
            acked = self.acked.get(log, [])
            for name in partition.isr:
                entries = self.nodes[name].logs.get(log, [])
                assert entries[: len(acked)] == acked, f"{name} is in sync and lacks acked records"
            active = self.reference.active()
            if partition.isr and len(active) >= stream.options.replication_factor:
                assert set(partition.replicas) <= set(active), f"{key} is not moved: {partition}"
                self.reached["drained"] += len(active) < len(self.nodes)
        for node in self.nodes.values():
            if node.applied == self.committed:
                assert node.state.digest() == self.reference.digest(), "states differ"

"""A consumer group's members and its coordinators, over a model of the metadata group.

One seed picks everything: clocks that run at different rates, lost, late and repeated messages,
members that join, leave, pause, die and take their time to let go, coordinators that pause and are
replaced, streams that come and go. The true time is known to the checks only:

- no two members read a partition at one moment;
- the committed position never goes back, nor does its epoch;
- when faults stop, the members read everything they want, evenly.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final

from penstock.logd.controller.group_messages import (
    Answered,
    Ended,
    GroupPosition,
    LetGo,
    MemberAnswer,
    MemberBeat,
    MemberEffect,
    MemberEvent,
    Revoke,
    SendBeat,
    Tick,
    admit_commit,
)
from penstock.logd.controller.groups import (
    BeatReceived,
    BecameCoordinator,
    GroupCommandApplied,
    GroupEvent,
    LostCoordinator,
    MemberLeft,
    ProposeGroup,
)
from penstock.logd.controller.groups import Tick as CoordinatorTick
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.metadata.commands import Command, DataGone, DeleteStream
from penstock.logd.metadata.records import GroupPartition
from tests.sim.groups_machines import (
    END_NS,
    FAULTS_NS,
    MS,
    ONE,
    RAFT_LEASE_NS,
    Client,
    Machine,
    Node,
)
from tests.support.cluster_state import create, register

KINDS: Final = ("pause", "pause", "join", "leave", "die", "node", "node", "stream")


class GroupsWorld:
    """One run. Call `run`.

    Attributes:
        drift_percent: What coordinators add to sessions.
        kinds: Of faults.
        faults_at_most_ns: Until the next fault.
        stray_beats: How often a heartbeat goes to one that need not be the coordinator.
        reached: Rare things that happened.
    """

    drift_percent = 10
    kinds: tuple[str, ...] = KINDS
    faults_at_most_ns = 800 * MS
    stray_beats = 0.2

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0
        self.queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.events = 0
        self.log: list[tuple[Command, tuple[Node, int, int] | None]] = []
        self.term = 0
        self.leader: Node | None = None
        self.no_election_before = 0
        self.nodes = [Node(self.random, self.drift_percent) for _ in range(3)]
        self.clients: list[Client] = []
        self.names = 0
        self.positions: dict[GroupPartition, GroupPosition] = {}
        self.reached: Counter[str] = Counter()
        for command in (register("n"), create("s", *[("n",)] * 5, options=ONE)):
            self.log.append((command, None))

    def at(self, delay: int, action: Callable[..., None], *args: Any) -> None:
        self.events += 1
        heapq.heappush(self.queue, (self.now + delay, self.events, action, args))

    def run(self) -> None:
        self.at(0, self.raft_tick)
        for _ in range(3):
            self.join()
        self.at(50 * MS, self.read)
        self.at(400 * MS, self.fault)
        while self.now < END_NS:
            self.now, _, action, args = heapq.heappop(self.queue)
            action(*args)
        self.check_end()

    def on(self, machine: Machine, action: Callable[..., None], *args: Any) -> None:
        if not machine.up:
            return
        if self.now < machine.paused_until:
            delay = machine.paused_until - self.now + self.random.randrange(MS)
            self.at(delay, self.on, machine, action, *args)
            return
        action(*args)

    def send(self, to: Machine, action: Callable[..., None], *args: Any) -> None:
        for _ in range(2 if self.now < FAULTS_NS and self.random.random() < 0.05 else 1):
            if self.now < FAULTS_NS and self.random.random() < 0.05:
                continue
            delay = self.random.randrange(1 * MS, 10 * MS)
            if self.now < FAULTS_NS and self.random.random() < 0.05:
                delay += self.random.randrange(1500 * MS)
            self.at(delay, self.on, to, action, to, *args)

    # The metadata group.

    def is_well(self, node: Node) -> bool:
        return self.now >= node.paused_until

    def raft_tick(self) -> None:
        self.at(100 * MS, self.raft_tick)
        leader = self.leader
        if leader is not None and self.is_well(leader):
            leader.raft_until = leader.clock(self.now) + RAFT_LEASE_NS
            self.no_election_before = self.now + RAFT_LEASE_NS * 110 // 100
        elif self.now >= self.no_election_before:
            well = [node for node in self.nodes if self.is_well(node)]
            if well:
                self.elect(self.random.choice(well))

    def elect(self, node: Node) -> None:
        self.reached["coordinators"] += 1
        self.term += 1
        self.coordinate(node, LostCoordinator())  # of an earlier term
        self.leader = node
        node.raft_until = node.clock(self.now) + RAFT_LEASE_NS
        self.no_election_before = self.now + RAFT_LEASE_NS * 110 // 100
        elected_ns = node.clock(self.now)
        delay = self.random.randrange(50 * MS)
        self.at(delay, self.on, node, self.take_office, node, elected_ns, self.term)

    def take_office(self, node: Node, elected_ns: int, term: int) -> None:
        if term == self.term:
            self.apply(node, len(self.log))
            self.coordinate(node, BecameCoordinator(node.state, elected_ns))

    def propose(self, node: Node, command: Command, proposal: int, term: int) -> None:
        """Commits after a while, unless its leader is replaced before."""
        if term != self.term or node is not self.leader:
            self.reached["proposals lost"] += 1
            return
        self.log.append((command, (node, term, proposal)))
        for one in self.nodes:
            slow = self.now < FAULTS_NS and self.random.random() < 0.1
            delay = self.random.randrange((400 if slow else 10) * MS)
            self.at(delay, self.on, one, self.apply, one, len(self.log))

    def apply(self, node: Node, index: int) -> None:
        while node.applied < index:
            command, origin = self.log[node.applied]
            node.applied += 1
            result = node.state.apply(node.applied, command)
            mine = origin is not None and origin[0] is node and origin[1] == self.term
            proposal = origin[2] if origin is not None and mine else None
            self.coordinate(node, GroupCommandApplied(command, result, proposal))

    def coordinate(self, node: Node, event: GroupEvent, answer_to: Client | None = None) -> None:
        for effect in node.core.handle(event, node.clock(self.now)):
            if isinstance(effect, ProposeGroup):
                delay = self.random.randrange(2 * MS, 20 * MS)
                self.at(
                    delay,
                    self.on,
                    node,
                    self.propose,
                    node,
                    effect.command,
                    effect.proposal,
                    self.term,
                )
            elif answer_to is not None:
                self.send(answer_to, self.answer_arrives, effect.answer)
        deadline = node.core.next_deadline_ns()
        if deadline is not None:
            when = max(self.now + 1, node.true_time(deadline))
            if not node.timer or when < node.timer:
                node.timer = when
                self.at(when - self.now, self.on, node, self.tick_node, node)

    def tick_node(self, node: Node) -> None:
        node.timer = 0
        self.coordinate(node, CoordinatorTick())

    # Members.

    def join(self) -> None:
        self.names += 1
        streams = self.random.choice((("s",), ("s",), ("s", "t"), ("t", "s")))
        client = Client(self.random, f"m{self.names}", streams)
        self.clients.append(client)
        self.at(self.random.randrange(100 * MS), self.on, client, self.tick, client)

    def tick(self, client: Client) -> None:
        client.timer = 0
        self.use(client, Tick())

    def use(self, client: Client, event: MemberEvent) -> None:
        effects: list[MemberEffect] = client.core.handle(event, client.clock(self.now))
        for effect in effects:
            if isinstance(effect, SendBeat):
                strays = self.now < FAULTS_NS and self.random.random() < self.stray_beats
                node = None if strays else self.leader
                self.send(
                    node or self.random.choice(self.nodes), self.beat_arrives, effect.beat, client
                )
            elif isinstance(effect, Revoke):
                self.reached["revoked"] += 1
                delay = self.random.choice((0, 20, 300, 1500)) * MS
                self.at(delay, self.on, client, self.let_go, client, effect.partition)
            elif isinstance(effect, Ended):
                self.reached["members fenced"] += 1
                client.up = False
                self.join()
        self.check_one_reader()
        deadline = client.core.next_deadline_ns()
        if client.up and deadline is not None:
            when = max(self.now + 1, client.true_time(deadline))
            if not client.timer or when < client.timer:
                client.timer = when
                self.at(when - self.now, self.on, client, self.tick, client)

    def let_go(self, client: Client, partition: GroupPartition) -> None:
        self.commit(client, partition)
        self.use(client, LetGo(partition))

    def beat_arrives(self, node: Node, beat: MemberBeat, client: Client) -> None:
        self.coordinate(node, BeatReceived(beat, node.raft_until), answer_to=client)

    def answer_arrives(self, client: Client, answer: MemberAnswer) -> None:
        self.use(client, Answered(answer))

    def read(self) -> None:
        """A reader goes on from its position, and commits now and then."""
        self.at(70 * MS, self.read)
        self.check_one_reader()
        for client in self.clients:
            if not client.up or self.now < client.paused_until:
                continue
            reading = client.core.reading(client.clock(self.now))
            client.offsets = {
                partition: client.offsets.get(partition, self.position(partition)) + 1
                for partition in reading
            }
            for partition in reading:
                if self.random.random() < 0.3:
                    self.commit(client, partition)

    def position(self, partition: GroupPartition) -> int:
        found = self.positions.get(partition)
        return 0 if found is None else found.offset

    def commit(self, client: Client, partition: GroupPartition) -> None:
        epoch = client.core.reading(client.clock(self.now)).get(partition)
        if epoch is not None and partition in client.offsets:
            position = GroupPosition(offset=client.offsets[partition], epoch=epoch)
            node = self.random.choice(self.nodes)
            self.send(node, self.commit_arrives, client.name, partition, position)

    def commit_arrives(
        self, node: Node, member: str, partition: GroupPartition, position: GroupPosition
    ) -> None:
        before = self.positions.get(partition)
        group = node.state.groups.get("g")
        try:
            now = admit_commit(group, before, member=member, partition=partition, commit=position)
        except RefusedError as error:
            self.reached[error.code] += 1
            return
        except UnavailableError:
            self.reached["grant not known"] += 1
            return
        if before is not None:
            assert now.offset >= before.offset, f"{partition} went back to {now.offset}"
            assert now.epoch >= before.epoch, f"{partition} went back to epoch {now.epoch}"
        self.positions[partition] = now

    # Faults.

    def fault(self) -> None:
        self.at(self.random.randrange(100 * MS, self.faults_at_most_ns), self.fault)
        if self.now >= FAULTS_NS:
            for machine in (*self.clients, *self.nodes):
                machine.paused_until = min(machine.paused_until, self.now)
            return
        length = int(
            self.random.choice((200, 700, 1200, 2500)) * MS * self.random.uniform(0.8, 1.2)
        )
        living = [client for client in self.clients if client.up]
        kind = self.random.choice(self.kinds)
        if kind == "pause" and living:
            self.random.choice(living).paused_until = self.now + length
        elif kind == "join" and len(living) < 5:
            self.join()
        elif kind in ("leave", "die") and len(living) > 1:
            self.stop(self.random.choice(living), politely=kind == "leave")
        elif kind == "node":
            self.replace_coordinator(length)
        elif kind == "stream" and self.leader is not None:
            self.change_stream()
        self.reached[kind] += 1

    def stop(self, client: Client, *, politely: bool) -> None:
        client.up = False
        if politely:
            for node in self.nodes:
                self.send(node, self.coordinate, MemberLeft("g", client.name))

    def replace_coordinator(self, length: int) -> None:
        old = self.leader
        if old is None:
            return
        old.paused_until = self.now + length
        self.at(length + self.random.randrange(300 * MS), self.find_out, old)

    def find_out(self, node: Node) -> None:
        if self.leader is not node:
            self.on(node, self.coordinate, node, LostCoordinator())

    def change_stream(self) -> None:
        reference = max(self.nodes, key=lambda node: node.applied).state
        found = reference.streams.get("t")
        command: Command
        if found is None:
            command = create("t", *[("n",)] * self.random.choice((1, 3)), options=ONE)
        elif found.is_open:
            command = DeleteStream(stream="t", incarnation=found.incarnation)
        else:
            numbers = tuple(range(len(found.partitions)))
            command = DataGone(
                node="n", stream="t", incarnation=found.incarnation, partitions=numbers
            )
        assert self.leader is not None
        self.propose(self.leader, command, 0, self.term)

    # What must hold.

    def check_one_reader(self) -> None:
        readers: dict[GroupPartition, str] = {}
        for client in self.clients:
            if client.up:
                for partition in client.core.reading(client.clock(self.now)):
                    other = readers.setdefault(partition, client.name)
                    assert other == client.name, f"{other} and {client.name} read {partition}"

    def check_end(self) -> None:
        state = max(self.nodes, key=lambda node: node.applied).state
        living = [client for client in self.clients if client.up]
        loads: dict[str, Counter[str]] = {}
        read = set()
        for client in living:
            reading = client.core.reading(client.clock(self.now))
            read |= set(reading)
            loads[client.name] = Counter(partition.stream for partition in reading)
        wanted = {stream for client in living for stream in client.streams}
        for name, stream in state.streams.items():
            if name in wanted and stream.is_open:
                for number in range(len(stream.partitions)):
                    partition = GroupPartition(name, stream.incarnation, number)
                    assert partition in read, f"nobody reads {partition}"
        totals = [sum(load.values()) for load in loads.values()]
        if all("t" in client.streams for client in living) or "t" not in state.streams:
            assert max(totals) - min(totals) <= 1, f"uneven: {loads}"

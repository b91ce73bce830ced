"""A machine of `cluster_world`: its process, and the replicas that the state has it hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from penstock.logd import raft as on
from penstock.logd.cluster.replica import streams_of, view_of
from penstock.logd.metadata.commands import Command, DataGone, WakeStream
from penstock.logd.metadata.records import PartitionKey, PartitionRecord, StreamRecord
from penstock.logd.replication.events import StepDown, Ticked
from tests.sim.cluster_office import Office
from tests.sim.cluster_replica import REOPENED_NS, HostedNode
from tests.sim.stage import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.logd.controller.liveness import PartitionReport
    from penstock.logd.metadata.state import Result
    from penstock.logd.replication.events import NodeId
    from tests.sim.cluster_world import ClusterWorld
    from tests.sim.raft_storage import ModelStorage
    from tests.sim.replication_history import Message


class Server(Office):
    """One machine. What it stores outlives its processes.

    Attributes:
        places: The replicas that are open.
        ready: The state is as it was when the process started, or later.
        resignations: Of each partition the last epoch that the process has resigned from.
    """

    def __init__(self, world: ClusterWorld, name: NodeId, storage: ModelStorage) -> None:
        super().__init__(world, name, storage)
        self.places: dict[PartitionKey, HostedNode] = {}
        self.reconciler: set[PartitionKey] = set()
        self.ready = False
        self.resignations: dict[tuple[PartitionKey, str], int] = {}

    # Its life.

    def start(self) -> None:
        if self.running:
            return
        self.life += 1
        self.running, self.paused, self.inbox = True, False, []
        self.places, self.reconciler, self.ready = {}, set(), False
        self.resignations = {}
        self.begin_office()
        self.begin_group()
        self.register()
        self.later(0, self.catch_up)

    def die(self, *, power: bool) -> None:
        if not self.running:
            return
        self.life += 1
        self.running, self.paused, self.inbox = False, False, []
        self.end_group()
        for node in self.places.values():
            node.die(power=power)
        self.places = {}

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True
        for node in self.places.values():
            node.paused = True

    def resume(self) -> None:
        """SIGCONT: what has come meanwhile is taken, in any order among the parts."""
        if not self.paused:
            return
        self.paused = False
        life, waiting = self.life, self.inbox
        self.inbox = []
        self.world.random.shuffle(waiting)
        for node in list(self.places.values()):
            node.resume()
        for action in waiting:
            if self.life == life:
                self.do(action)

    def stop(self) -> None:
        """SIGTERM: hand everything over, for a moment, and end."""
        self.world.mark("stopped in order")
        for node in list(self.places.values()):
            node.take(StepDown())
        voters = sorted(self.raft.memberships.current.voters - {self.name})
        if self.raft.leader == self.name and voters:
            heir = self.world.random.choice(voters)
            self.tell(on.TransferLeadership(self.world.next_tag(), heir))
        self.later(60 * MS, lambda: self.die(power=False))

    def catch_up(self) -> None:
        """Replicas are opened once the state is known that was committed at the start."""

        def known(ready: bool) -> None:
            if not ready:
                self.later(20 * MS, self.catch_up)
                return
            self.ready = True
            self.look_at(set(self.state.streams))

        self.read(known)

    @override
    def tick(self) -> None:
        super().tick()
        for node in list(self.places.values()):
            node.tick()

    # As the state says.

    @override
    def on_applied(self, command: Command, result: Result) -> None:
        super().on_applied(command, result)
        if self.ready:
            self.look_at(streams_of(command, result))

    @override
    def on_restored(self) -> None:
        super().on_restored()
        if self.ready:
            self.look_at({*self.state.streams, *(place.stream for place in self.places)})

    def look_at(self, names: set[str]) -> None:
        """Streams whose records may have changed."""
        for name in sorted(names):
            record = self.state.streams.get(name)
            for number in range(0 if record is None else len(record.partitions)):
                self.touch(PartitionKey(name, number))
        for place in [place for place in self.places if place.stream in names]:
            if self.record(place) is None:
                self.touch(place)

    def touch(self, place: PartitionKey) -> None:
        record, node = self.record(place), self.places.get(place)
        if record is not None and node is not None and node.incarnation == record[0].incarnation:
            node.view(view_of(*record))
        if not self.is_as_wanted(place) and place not in self.reconciler:
            self.reconciler.add(place)
            self.later(self.world.random.randrange(8 * MS), lambda: self.settle(place))

    def record(self, place: PartitionKey) -> tuple[StreamRecord, PartitionRecord] | None:
        stream = self.state.streams.get(place.stream)
        if stream is None or place.partition >= len(stream.partitions):
            return None
        return stream, stream.partitions[place.partition]

    def is_as_wanted(self, place: PartitionKey) -> bool:
        record, node = self.record(place), self.places.get(place)
        if record is None:
            return node is None
        stream, partition = record
        if not self.is_to_hold(stream, partition):
            return node is None and self.name not in partition.former and stream.is_open
        return (
            node is not None
            and node.incarnation == stream.incarnation
            and node.config == stream.config
        )

    def is_to_hold(self, stream: StreamRecord, partition: PartitionRecord) -> bool:
        return stream.is_open and self.name in (*partition.replicas, *partition.observers)

    def settle(self, place: PartitionKey) -> None:
        """Close, open and remove until it is as wanted."""
        self.reconciler.discard(place)
        record, node = self.record(place), self.places.get(place)
        holds = record is not None and self.is_to_hold(*record)
        if node is not None and not self.is_as_wanted(place):
            self.world.mark("replica closed")
            del self.places[place]
            node.close()
        if record is None:
            return
        stream, partition = record
        if holds:
            self.open(place, stream, partition)
        elif self.name in partition.holders or not stream.is_open:
            self.remove(place, stream)

    def open(self, place: PartitionKey, stream: StreamRecord, partition: PartitionRecord) -> None:
        if place in self.places:
            return
        scene = self.world.scene(place, stream.incarnation)
        node = scene.nodes.get(self.name)
        if node is None:
            node = scene.nodes[self.name] = HostedNode(scene, self, stream.config)
        else:
            node.config, node.gone = stream.config, False
            node.start_up()
        self.places[place] = node
        node.view(view_of(stream, partition))

    def reopen(self, node: HostedNode) -> None:
        """A log that failed is opened again."""
        place = node.world.place
        if self.places.get(place) is node:
            del self.places[place]
            self.later(REOPENED_NS, lambda: self.touch(place))

    def remove(self, place: PartitionKey, stream: StreamRecord) -> None:
        node = self.world.scene(place, stream.incarnation).nodes.get(self.name)
        if node is not None and not node.gone:
            node.remove()
        gone = DataGone(
            node=self.name,
            stream=place.stream,
            incarnation=stream.incarnation,
            partitions=(place.partition,),
        )
        self.change(gone, within_ms=None)

    # As the office's.

    @override
    def on_lease(self, *, held: bool) -> None:
        for node in list(self.places.values()):
            if held:
                node.take(Ticked())
            else:
                node.fence()

    @override
    def reports(self, *, full: bool) -> tuple[PartitionReport, ...]:
        found = []
        for place, node in self.places.items():
            if full or node.stirred:
                node.stirred = False
                found.append(node.report(place))
        return tuple(found)

    # What comes for replicas.

    def bring(self, place: PartitionKey, action: Callable[[Any], None]) -> None:
        """Something of another replica for the one at a place, of whatever incarnation."""
        node = self.places.get(place)
        if node is not None:
            node.do(lambda: action(node))

    def hears(self, place: PartitionKey, incarnation: str, message: Message) -> None:
        """A message on the subject; it wakes a stream that is paused, unless that is held."""
        node, record = self.places.get(place), self.record(place)
        if node is None or node.incarnation != incarnation or record is None:
            return
        options = record[0].options
        if not options.paused:
            node.published(message)
        elif options.listens and node.leading:
            self.world.mark("woken")
            self.change(WakeStream(stream=place.stream, incarnation=incarnation), within_ms=200)

"""What operators ask of the cluster in `cluster_world`, of any node, by what that node knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from penstock.logd.controller.controller import RebalanceAsked
from penstock.logd.controller.placement import place_stream
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.commands import (
    AlterStream,
    ChangeObservers,
    Command,
    DeleteStream,
    Drain,
    SetStreamMode,
    SetTarget,
)
from penstock.logd.metadata.records import (
    NodeState,
    PartitionKey,
    PartitionRecord,
    ReplicationOptions,
    StreamRecord,
)
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import basis_of
from tests.sim.stage import MS

if TYPE_CHECKING:
    from tests.sim.cluster_server import Server
    from tests.sim.cluster_world import ClusterWorld

NAME: Final = "s"


class Operator:
    """Draws commands; in the end undoes what would keep the cluster from coming to rest."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.weights = (2, 1, 1, 1, 1, 10, 0, 10) if world.churning else (8, 3, 3, 3, 2, 1, 1, 2)
        self.asked: list[Command] = []

    def operate(self) -> None:
        random = self.world.random
        standing = [s for s in self.world.running.values() if s.running and not s.paused]
        if not standing:
            return
        server = random.choice(standing)
        stream = server.state.streams.get(NAME)
        if self.world.calm:
            self.undo(server, stream)
        if stream is None:
            self.create()
        elif self.world.calm:
            return
        elif stream.is_open:
            number = random.randrange(len(stream.partitions))
            key, partition = PartitionKey(NAME, number), stream.partitions[number]
            kinds = (self.move, self.observe, self.drain, self.alter, self.mode, self.delete,
                     self.rebalance, self.repeat)  # fmt: skip
            kind = random.choices(kinds, self.weights)[0]
            command = kind(server, stream, key, partition)
            if command is not None:
                self.asked.append(command)
                server.change(command, within_ms=200)

    def create(self) -> None:
        """The controller knows where replicas can be."""
        random = self.world.random
        config = StreamConfig(name=NAME, subject="s.>")
        options = ReplicationOptions(
            replication_factor=random.choice((2, 3, 3)), min_isr=random.choice((None, None, 1))
        )
        for server in self.world.running.values():
            if server.running and not server.paused and server.controller.knows_nodes():
                live = server.controller.live()
                partitions = random.choice((1, 1, 2))
                try:
                    command = place_stream(
                        server.state, live, config, options, partitions=partitions, nonce="ab"
                    )
                except RefusedError:
                    return
                server.change(command, within_ms=200)
                return

    def undo(self, server: Server, stream: StreamRecord | None) -> None:
        """Nothing is drained, paused or read-only in the end."""
        for node in server.state.nodes.values():
            if node.state is NodeState.DRAINING:
                server.change(Drain(node=node.id, undo=True), within_ms=200)
        if stream is None or not stream.is_open:
            return
        if stream.options.paused or stream.options.read_only:
            mode = SetStreamMode(
                stream=NAME, incarnation=stream.incarnation, paused=False, read_only=False
            )
            server.change(mode, within_ms=200)

    # Commands.

    def move(
        self, server: Server, stream: StreamRecord, key: PartitionKey, partition: PartitionRecord
    ) -> Command | None:
        random = self.world.random
        active, count = server.state.active(), stream.options.replication_factor
        if len(active) < count:
            return None
        target: tuple[str, ...] | None = tuple(random.sample(active, count))
        if partition.target is not None and random.random() < 0.3:
            target = None
        return SetTarget(basis=basis_of(key, stream, partition), target=target)

    def observe(
        self, server: Server, stream: StreamRecord, key: PartitionKey, partition: PartitionRecord
    ) -> Command | None:
        random = self.world.random
        free = [node for node in server.state.active() if node not in partition.replicas]
        wanted = random.sample(free, random.randint(0, min(1, len(free))))
        return ChangeObservers(basis=basis_of(key, stream, partition), observers=tuple(wanted))

    def drain(
        self, server: Server, stream: StreamRecord, key: PartitionKey, partition: PartitionRecord
    ) -> Command | None:
        del stream, key, partition
        draining = [n.id for n in server.state.nodes.values() if n.state is NodeState.DRAINING]
        if draining:
            return Drain(node=draining[0], undo=True)
        return Drain(node=self.world.random.choice([*self.world.servers]))

    def alter(
        self, server: Server, stream: StreamRecord, key: PartitionKey, partition: PartitionRecord
    ) -> Command | None:
        del server, key, partition
        random, options, config = self.world.random, stream.options, stream.config
        if random.random() < 0.3:
            config = replace(config, max_dedup_entries=random.randrange(1000, 2000))
        else:
            factor = random.choice((2, 3, options.replication_factor))
            least = random.choice((None, 1, factor // 2 + 1))
            options = replace(options, replication_factor=factor, min_isr=least)
        return AlterStream(incarnation=stream.incarnation, config=config, options=options)

    def mode(
        self, server: Server, stream: StreamRecord, key: PartitionKey, partition: PartitionRecord
    ) -> Command | None:
        del key, partition
        mode = SetStreamMode(stream=NAME, incarnation=stream.incarnation)
        if self.world.random.random() < 0.5:
            held = self.world.random.random() < 0.5
            begun = structs.replace(mode, paused=True, held=held)
            ended = structs.replace(mode, paused=False)
        else:
            begun = structs.replace(mode, read_only=True)
            ended = structs.replace(mode, read_only=False)
        server.later(80 * MS, lambda: server.change(ended, within_ms=200))
        return begun

    def delete(
        self, server: Server, stream: StreamRecord, key: PartitionKey, partition: PartitionRecord
    ) -> Command | None:
        del server, key, partition
        return DeleteStream(stream=NAME, incarnation=stream.incarnation)

    def repeat(
        self, server: Server, stream: StreamRecord, key: PartitionKey, partition: PartitionRecord
    ) -> Command | None:
        """Something that was asked before, of a stream that was deleted since if there was one."""
        del server, key, partition
        stale = [c for c in self.asked if _incarnation_of(c) not in ("", stream.incarnation)]
        return self.world.random.choice(stale or self.asked) if self.asked else None

    def rebalance(
        self, server: Server, stream: StreamRecord, key: PartitionKey, partition: PartitionRecord
    ) -> None:
        del stream, key, partition
        server.decide(RebalanceAsked())


def _incarnation_of(command: Command) -> str:
    """Of the stream that it is about; empty: of none."""
    match command:
        case SetTarget(basis=basis) | ChangeObservers(basis=basis):
            return basis.incarnation
        case AlterStream() | SetStreamMode() | DeleteStream():
            return command.incarnation
        case _:
            return ""

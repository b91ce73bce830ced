"""What truly is in `cluster_world`: the state as committed, and what must hold of all together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.logd.metadata.commands import (
    ChangeIsr,
    ChangeObservers,
    ChangeReplicas,
    Command,
    DeleteStream,
    ElectLeaders,
    SetTarget,
    decode_command,
)
from penstock.logd.metadata.records import PartitionKey, PartitionRecord, StreamRecord
from penstock.logd.metadata.state import ClusterState
from tests.sim.cluster_scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.logd import raft as on
    from penstock.logd.metadata.state import Result
    from tests.sim.cluster_world import ClusterWorld

COMPARED: Final = 8
"""States are compared at each so many entries."""

Known = dict[PartitionKey, tuple[StreamRecord, PartitionRecord]]


class Watch:
    """Sees every command as the first node applies it.

    Attributes:
        state: As committed.
    """

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.state = ClusterState()
        self.applied = 0
        self.known: Known = {}
        self.scenes: dict[tuple[PartitionKey, str], Scene] = {}
        self.digests: dict[int, str] = {}
        self.incarnations: list[str] = []

    def scene(self, place: PartitionKey, incarnation: str) -> Scene:
        key = place, incarnation
        if key not in self.scenes:
            self.scenes[key] = Scene(self.world, place, incarnation)
        return self.scenes[key]

    # The state.

    def was_applied(self, entry: on.Entry, state: ClusterState, result: Result | None) -> None:
        """A node has applied a command; what was committed is what the first one has applied."""
        if entry.index <= self.applied:
            if entry.index in self.digests:
                self.compare(entry.index, state)
            return
        self.applied = entry.index
        command = decode_command(entry.data)
        found = self.state.apply(entry.index, command)
        assert found == result, f"{command}: {found} and {result}"
        if entry.index % COMPARED == 0:
            self.digests[entry.index] = self.state.digest()
        self.look_at(command)

    def compare(self, index: int, state: ClusterState) -> None:
        """All nodes have the same state at the same place."""
        digest = self.digests.setdefault(index, state.digest())
        assert digest == state.digest(), f"states differ at {index}"

    def look_at(self, command: Command) -> None:
        """What a command has done to the streams."""
        self.check_incarnation(command)
        now: Known = {
            key: (stream, partition) for key, stream, partition in self.state.partitions()
        }
        for key, (stream, partition) in now.items():
            before = self.known.get(key)
            if before is None or before[0].incarnation != stream.incarnation:
                self.created(key, stream)
            elif before[1] is not partition or before[0].options != stream.options:
                self.changed(before, (stream, partition), command)
            if before is None or before[1] is not partition:
                self.scene(key, stream.incarnation).check_in_sync(partition)
        for key, (stream, _) in self.known.items():
            if key not in now:
                self.world.mark("stream deleted")
                self.scene(key, stream.incarnation).over = True
        self.known = now

    def check_incarnation(self, command: Command) -> None:
        """What is about a stream that was deleted does nothing to one of its name."""
        match command:
            case DeleteStream(stream=name, incarnation=incarnation):
                meant = {(PartitionKey(name, 0), incarnation)}
            case ChangeIsr(changes=parts) | ElectLeaders(elections=parts):
                bases = [part.basis for part in parts]
                meant = {(PartitionKey(b.stream, b.partition), b.incarnation) for b in bases}
            case SetTarget(basis=b) | ChangeReplicas(basis=b) | ChangeObservers(basis=b):
                meant = {(PartitionKey(b.stream, b.partition), b.incarnation)}
            case _:
                return
        for key, incarnation in meant:
            before, now = self.known.get(key), self.state.partition(key)
            if before is not None and before[0].incarnation != incarnation:
                untouched = now is not None and now[1] is before[1]
                assert untouched, f"{command} is about an earlier stream"
                self.world.mark("stale incarnation refused")

    def created(self, key: PartitionKey, stream: StreamRecord) -> None:
        if key.partition == 0:
            assert stream.incarnation not in self.incarnations, "an incarnation comes twice"
            self.incarnations.append(stream.incarnation)
            self.world.mark("stream created again" if self.incarnations[1:] else "stream created")
        self.scene(key, stream.incarnation)

    def changed(
        self,
        before: tuple[StreamRecord, PartitionRecord],
        now: tuple[StreamRecord, PartitionRecord],
        command: Command,
    ) -> None:
        mark = self.world.mark
        (old_stream, old), (stream, new) = before, now
        self.moved(old, new, command)
        if old.leader is not None and new.leader is None and new.successor is not None:
            mark("handed over from a surplus replica" if old.target else "handed over")
        if new.leader is not None and new.leader != old.leader:
            mark("elected as successor" if new.leader == old.successor else "elected")
        for what, ours, theirs in (
            ("observer added", new.observers, old.observers),
            ("observer removed", old.observers, new.observers),
        ):
            if set(ours) - set(theirs):
                mark(what)
        if len(old.isr) != len(new.isr):
            mark("isr grew" if len(new.isr) > len(old.isr) else "isr shrank")
        for name in ("paused", "read_only", "replication_factor", "min_isr"):
            if getattr(old_stream.options, name) != getattr(stream.options, name):
                mark(f"{name} altered")

    def moved(self, old: PartitionRecord, new: PartitionRecord, command: Command) -> None:
        mark = self.world.mark
        if old.target is None and new.target is not None:
            mark("move begun")
        if old.target is not None and new.target is None:
            mark("move ended" if new.replicas == old.target else "move given up")
        added = set(new.replicas) - set(old.replicas)
        if added:
            mark("replica added")
            assert not added & set(new.isr), f"{added} in the ISR as it is added"
        if set(old.replicas) - set(new.replicas):
            mark("replica removed")
            self.check_removal(old, new, command)

    def check_removal(self, old: PartitionRecord, new: PartitionRecord, command: Command) -> None:
        """A replica goes only when those that are to be there are in sync."""
        assert isinstance(command, ChangeReplicas), command
        assert old.target is not None
        wanted = set(old.target) & set(new.replicas)
        assert wanted <= set(new.isr), f"a replica goes before {wanted} are in sync: {new}"
        assert len(new.replicas) >= len(old.target), f"fewer replicas than there are to be: {new}"

    # All together.

    def look(self) -> None:
        """Nobody leads beside another."""
        for scene in self.scenes.values():
            leading = [
                name
                for name, node in scene.nodes.items()
                if node.running
                and node.leading
                and node.server.running
                and node.server.lease.is_valid(node.server.clock_ns())
                and self.believes(node.server.state, scene, name)
            ]
            assert len(leading) < 2, f"{leading} lead {scene.place}"

    def believes(self, state: ClusterState, scene: Scene, name: str) -> bool:
        found = state.partition(scene.place)
        return (
            found is not None
            and found[0].incarnation == scene.incarnation
            and found[1].leader == name
        )

    def not_at_rest(self) -> str:
        """Why all is not as it should be in the end yet; empty if it is."""
        state = self.state
        streams = list(state.streams.values())
        if not streams or not all(stream.is_open for stream in streams):
            return f"streams: {[(s.config.name, s.state) for s in streams]}"
        active = set(state.active())
        for key, stream, partition in self.partitions():
            count = stream.options.replication_factor
            settled = (
                partition.leader is not None
                and set(partition.isr) == set(partition.replicas) <= active
                and partition.target is None
                and not partition.former
                and len(partition.replicas) == count
            )
            if not settled:
                return f"{key}, of {count}: {partition}"
            why = self.scene(key, stream.incarnation).not_at_rest(partition)
            if why:
                return f"{why}: {key}"
        behind = [s.name for s in self.world.servers.values() if s.state.index != state.index]
        return f"{behind} lack commands" if behind else ""

    def partitions(self) -> Iterator[tuple[PartitionKey, StreamRecord, PartitionRecord]]:
        return self.state.partitions()

    def check_end(self) -> None:
        for key, stream, _ in self.partitions():
            self.scene(key, stream.incarnation).check_end()
        digests = {server.state.digest() for server in self.world.servers.values()}
        assert digests == {self.state.digest()}, "states differ"
        for (place, incarnation), scene in self.scenes.items():
            found = self.known.get(place)
            here = found is not None and found[0].incarnation == incarnation
            holders = found[1].holders if found is not None and here else set()
            for name, node in scene.nodes.items():
                assert name in holders or node.gone, f"{name} still has data of {place}"

"""`cluster_world` in which operators also purge: what is gone was purged, and what was purged is.

Purges are drawn by dice of their own. The leader is asked, as in `penstock.logd.cluster.streams`:
only what it knows to be committed, and no less than was purged before. Each replica then says by
the daemon's own `Purging` what its readers no longer find and which records' files may go. Checked
at every look:

- nothing is hidden or ordered to go that no purge has named, by the record and not by its offset;
- nothing goes that the replica does not know to be committed;
- what the cluster says was purged never becomes less;

and in the end, that every replica hides all of it and has ordered to go what it knows to be
committed of it.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, cast

from typing_extensions import override

from penstock.logd.metadata.commands import PurgePartition
from penstock.logd.metadata.state import Refused
from penstock.logd.partition.purge import PurgePoint, Purging
from tests.sim.cluster_world import ClusterWorld
from tests.sim.stage import MS

if TYPE_CHECKING:
    from penstock.logd import raft as on
    from penstock.logd.metadata.records import PartitionRecord
    from penstock.logd.metadata.state import ClusterState, Result
    from penstock.logd.storage import CommitLog, EpochFile
    from tests.sim.cluster_replica import HostedNode
    from tests.sim.cluster_scene import Scene

PURGED_NS: Final = 35 * MS


class NodeLog:
    """What `Purging` asks of a log and of its epochs."""

    def __init__(self, node: HostedNode) -> None:
        self.node = node

    @property
    def start_offset(self) -> int:
        return self.node.disk.start

    @property
    def end_offset(self) -> int:
        return self.node.disk.end

    def end_of(self, epoch: int, end_offset: int) -> int:
        return self.node.disk.epochs.end_offset_for(epoch, end_offset)[1]


class PurgingWorld(ClusterWorld):
    """One run. Call `run`.

    Attributes:
        named: What purges have named: the record of each offset, by place and incarnation.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.dice = Random(f"purge {seed}")
        self.named: dict[Scene, dict[int, object]] = {}
        self.before: dict[Scene, int] = {}
        self.every(PURGED_NS, self.purge)
        self.every(10 * MS, self.look_at_purges)

    @override
    def run(self) -> None:
        super().run()
        for key, stream, partition in self.watch.partitions():
            scene = self.watch.scene(key, stream.incarnation)
            for name in (*partition.replicas, *partition.observers):
                node = next(one for one in scene.nodes.values() if one.name == name)
                start, gone = self.seen_at(node, partition)
                wanted = max(node.disk.start, partition.purged)  # a new replica may begin later
                assert start == wanted, f"{name} keeps {start}"
                known = node.replica.log.high_watermark + 1  # it may still learn of the last ones
                due = min(wanted, known) if partition.purged else 0
                assert gone == due, f"{name} has files up to {gone}"

    def purge(self) -> None:
        """The leader is asked, as long as there is trouble."""
        leading = [
            (scene, node)
            for scene in self.watch.scenes.values()
            if not scene.over
            for node in scene.nodes.values()
            if node.running and node.leading and not node.paused and node.server.running
        ]
        if self.calm or not leading:
            return
        scene, node = self.dice.choice(leading)
        found = node.server.state.partition(scene.place)
        if found is None or found[0].incarnation != scene.incarnation:
            return
        end = node.replica.log.high_watermark + 1
        start, _ = self.seen_at(node, found[1])
        before = max(self.dice.randint(0, end), start)
        command = PurgePartition(
            stream=scene.place.stream,
            incarnation=scene.incarnation,
            partition=scene.place.partition,
            leader_epoch=node.leading,
            before=before,
        )
        committed = scene.history.committed
        self.named.setdefault(scene, {}).update(enumerate(committed[:before]))
        assert before <= len(committed), f"{node.name} takes {before} for committed"
        node.server.change(command, self.answered)

    def answered(self, result: Result | None) -> None:
        code = result.code if isinstance(result, Refused) else "done" if result else "lost"
        self.mark(f"purge {code}")

    @override
    def was_applied(self, entry: on.Entry, state: ClusterState, result: Result | None) -> None:
        super().was_applied(entry, state, result)
        for key, stream, partition in self.watch.partitions():
            scene = self.watch.scene(key, stream.incarnation)
            before = self.before.get(scene, 0)
            assert partition.purged >= before, f"{key}: from {before} back to {partition.purged}"
            self.before[scene] = partition.purged

    def look_at_purges(self) -> None:
        for scene in self.watch.scenes.values():
            for node in scene.nodes.values():
                found = node.server.state.partition(scene.place)
                if node.running and found is not None and found[0].incarnation == scene.incarnation:
                    self.check(scene, node, found[1])

    def check(self, scene: Scene, node: HostedNode, partition: PartitionRecord) -> None:
        """What a replica hides, and has go, was purged."""
        start, gone = self.seen_at(node, partition)
        disk, named = node.disk, self.named.get(scene, {})
        known = node.replica.log.high_watermark + 1
        assert gone <= known, f"{node.name} has {gone} go and knows {known} to be committed"
        hidden = min(
            start, known
        )  # beyond it readers find nothing in any case, as in `PartitionRecord`
        for offset in range(disk.start, min(max(hidden, gone), disk.end)):
            record = disk.records[offset - disk.start]
            if record is not None:
                assert named.get(offset) == record, f"{node.name} loses {offset}: {record}"
        if hidden > disk.start:
            self.mark("records hidden")

    def seen_at(self, node: HostedNode, partition: PartitionRecord) -> tuple[int, int]:
        """The first offset that readers find, and up to where files may go."""
        log, ordered = NodeLog(node), [0]
        point = PurgePoint(partition.purged, partition.purge_epoch)
        purging = Purging(cast("CommitLog", log), cast("EpochFile", log), ordered.append)
        purging.set(point, node.replica.log.high_watermark)
        return purging.start(), ordered[-1]

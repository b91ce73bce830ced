"""What one simulated node has stored, and the threads that write it.

Appends, syncs and cuts run in lanes of their own, so that only the core keeps them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.log_state import Epochs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.replication_history import Message, Record
    from tests.sim.replication_node import Node

MS: Final = 1_000_000

LogEffect = fx.BeginEpoch | fx.AppendFetched | fx.Truncate | fx.Reset | fx.DeleteBefore | fx.Patch


class Snapshot(NamedTuple):
    """What a replica knows of everything below an offset, as a producer snapshot holds it."""

    offset: int
    ids: dict[Message, int]
    checksum: int


class Disk:
    """What one node has stored.

    Attributes:
        records: From `start` on; None: it cannot be read any more.
        durable: How many of them survive a crash for certain.
        epochs: The epoch file; its changes are atomic.
        checkpoint: High watermark and agreed epoch, as last written down.
        rotten: What was where nothing can be read any more, by offset.
        snapshot: Of the ids, as last written down; None: never, or the log was cut deeper.
    """

    def __init__(self) -> None:
        self.start = 0
        self.records: list[Record | None] = []
        self.durable = 0
        self.epochs = Epochs()
        self.checkpoint = (-1, 0)
        self.rotten: dict[int, Record] = {}
        self.snapshot: Snapshot | None = None

    def certain(self) -> int:
        """How many records no crash takes."""
        return min(self.durable, len(self.records))

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def keeps(self, offset: int, record: Record | None) -> bool:
        """Whether no crash takes a record from it."""
        certain = self.start <= offset < self.start + self.certain()
        return certain and self.records[offset - self.start] == record

    def rot(self, offset: int) -> None:
        record = self.records[offset - self.start]
        assert record is not None
        self.rotten[offset] = record
        self.records[offset - self.start] = None

    def written(self, offset: int) -> Record:
        """What was written there, be it readable or not."""
        return self.records[offset - self.start] or self.rotten[offset]

    def holes(self) -> list[int]:
        """Offsets of what cannot be read."""
        kept = [at for at in self.rotten if self.start <= at < self.end]
        return [at for at in kept if self.records[at - self.start] is None]


class Writer:
    """Of one process.

    Attributes:
        fetched: The records that came with the last answer.
        patch: Those that came for a damaged range.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.disk = node.disk
        self.random = node.world.random
        self.fetched: list[Record] = []
        self.patch: list[Record] = []
        self.syncing = False
        self.lane_ns = 0
        self.cuts = 0

    def execute(self, effect: LogEffect) -> None:
        """What cuts does not wait for what is being appended: that is the core's part."""
        match effect:
            case fx.AppendFetched(spans):
                for at, record in enumerate(self.fetched, spans[0].base_offset):
                    self.node.stores(record.message, at)
                self.append(self.fetched[: len(spans)])
            case fx.Truncate() | fx.Reset():
                self.beside(self.random.randrange(3 * MS), lambda: self.cut(effect))
            case _:
                patch = self.patch
                self.in_lane(lambda: self.change(effect, patch))

    def beside(self, delay_ns: int, action: Callable[[], None]) -> None:
        """The kernel acts after a delay, whether the process is stopped or not."""
        node, life = self.node, self.node.life
        node.world.at(delay_ns * node.slow, lambda: action() if node.life == life else None)

    def in_lane(self, action: Callable[[], None]) -> None:
        """Act when what was given before is done; sometimes it fails."""
        node = self.node
        if self.random.random() < node.world.disk_failure:
            action = node.fail_soon
        due_ns = node.world.now_ns + self.random.randrange(2 * MS) * node.slow
        self.lane_ns = max(self.lane_ns + 1, due_ns)
        life = node.life
        node.world.at(
            self.lane_ns - node.world.now_ns, lambda: action() if node.life == life else None
        )

    def tell(self, event: ev.Event) -> None:
        self.node.do(lambda: self.node.take(event), in_order=True)

    def append(self, records: list[Record]) -> None:
        records = list(records)
        self.in_lane(lambda: self.appended(records))

    def appended(self, records: list[Record]) -> None:
        self.disk.records += records
        self.tell(ev.Written(self.disk.end, self.cuts))
        self.sync_soon()

    def sync_soon(self) -> None:
        """Sync what there is; what comes meanwhile is synced together next."""
        if not self.syncing:
            self.syncing = True
            upto, cuts = self.disk.end, self.cuts
            self.beside(self.random.randrange(MS // 2, 4 * MS), lambda: self.synced(upto, cuts))

    def synced(self, upto: int, cuts: int) -> None:
        self.syncing = False
        if self.random.random() < self.node.world.disk_failure:
            self.node.fail_soon()
            return
        if cuts == self.cuts:
            self.disk.durable = max(self.disk.durable, upto - self.disk.start)
        self.tell(ev.Synced(upto, cuts))
        if len(self.disk.records) > self.disk.durable:
            self.sync_soon()

    def cut(self, effect: fx.Truncate | fx.Reset) -> None:
        disk, mark = self.disk, self.node.world.mark
        self.cuts = effect.cuts
        match effect:
            case fx.Truncate(upto, cuts):
                mark("truncated" if upto < disk.end else "empty epoch forgotten")
                self.shorten(max(upto - disk.start, 0))
                disk.durable = len(disk.records)  # the writer syncs what it wrote before it cuts
                disk.epochs.truncate_to(upto)
                self.tell(ev.Truncated(upto, cuts))
            case fx.Reset(start, cuts):
                mark("reset")
                self.shorten(0)
                disk.start = start
                disk.snapshot = None
                disk.epochs.clear()
                self.node.rebuild()
                self.tell(ev.WasReset(start, cuts))

    def shorten(self, length: int) -> None:
        disk = self.disk
        del disk.records[length:]
        disk.durable = min(disk.durable, length)
        end = disk.start + length
        disk.rotten = {at: record for at, record in disk.rotten.items() if at < end}
        self.node.noticed = {at for at in self.node.noticed if at < end}
        if disk.snapshot is not None and disk.snapshot.offset > end:
            disk.snapshot = None
        self.node.rebuild()

    def change(self, effect: LogEffect, patch: list[Record]) -> None:
        disk = self.disk
        match effect:
            case fx.BeginEpoch(epoch, start_offset):
                disk.epochs.begin(epoch, start_offset)
                self.tell(ev.EpochSaved(epoch))
            case fx.DeleteBefore(offset):
                self.delete_before(offset)
            case fx.Patch(first, upto, _, cuts) if cuts == self.cuts and disk.start <= first:
                if not self.node.world.calm and self.random.random() < 0.3:
                    self.node.world.mark("hole not filled")
                    return
                self.node.world.mark("hole filled")
                disk.records[first - disk.start : upto - disk.start] = patch
                self.node.noticed.difference_update(range(first, upto))
                self.tell(ev.RangePatched(first, upto, cuts))
            case _:
                assert isinstance(effect, fx.Patch), effect

    def delete_before(self, offset: int) -> None:
        """Retention, or what a follower does after its leader's."""
        disk = self.disk
        count = min(offset - disk.start, disk.durable - 1)
        if count > 0:
            self.node.save_snapshot()
            del disk.records[:count]
            disk.start += count
            disk.durable -= count
            self.node.world.mark("deleted")
            self.tell(ev.LogStartMoved(disk.start))

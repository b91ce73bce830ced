"""One node of the simulated world: a replica core and the shell around it, with its flaws."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.logd.intake.dedup import DedupChecksum, DedupMark
from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import Answer, Fetch, Frames, ReplicationSettings, Span
from penstock.logd.replication.leader import Leader
from penstock.logd.replication.log_state import Epochs, LogState
from penstock.logd.replication.replica import Replica
from tests.sim.replication_controller import Controller
from tests.sim.replication_disk import Disk, Snapshot, Writer
from tests.sim.replication_history import Message, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.logd.replication.events import LeaderAndIsr, NodeId
    from tests.sim.replication_surroundings import World

MS: Final = 1_000_000
SETTINGS: Final = ReplicationSettings(
    replica_lag_ns=60 * MS, retry_ns=10 * MS, patch_retry_ns=50 * MS, dedup_retry_ns=30 * MS
)
FRAMES_MAX: Final = 6
PATIENCE_NS: Final = 20 * MS


class Node:
    """A process that lives and dies, and its disk.

    Attributes:
        leading: The epoch it takes writes under; 0: none.
        high_watermark: As this process has told readers.
        life: Counts starts; what belongs to an earlier one is gone.
        noticed: Damaged offsets that this process knows of.
    """

    def __init__(self, world: World, name: NodeId, incarnation: str = "i") -> None:
        self.world = world
        self.name = name
        self.incarnation = incarnation
        self.disk = Disk()
        self.life = 0
        self.running = False
        self.paused = False
        self.inbox: list[Callable[[], None]] = []
        self.reports: list[Callable[[], None]] = []
        self.rate = 1 + world.random.uniform(-0.04, 0.04)
        self.slow = 1
        self.start_up()

    # The process.

    def start_up(self) -> None:
        """Recover the log and begin to play."""
        self.life += 1
        self.dice = Random(f"{self.name}{self.life}")  # leaves the world's own as it is
        self.running, self.paused, self.inbox, self.reports = True, False, [], []
        self.leading, self.refusing = 0, fx.Refusing.NOTHING
        self.acks: list[tuple[int, Message]] = []
        self.told: dict[NodeId, tuple[int, int, int]] = {}
        self.asked_ns = 0
        self.noticed: set[int] = set()
        self.writer, self.last_led = Writer(self), 0
        self.electable = True
        disk = self.disk
        log = LogState.opened(
            start=disk.start,
            end=disk.end,
            epochs=Epochs(disk.epochs.entries),
            high_watermark=disk.checkpoint[0],
            agreed_epoch=disk.checkpoint[1],
        )
        disk.epochs = Epochs(log.epochs.entries)
        self.rebuild()
        self.high_watermark, self.checked = log.high_watermark, 0
        boot = f"{self.name}{self.life}"
        self.replica = Replica(
            self.name, self.incarnation, log,
            boot=boot, settings=SETTINGS, resigned_epoch=self.gave_back(),
        )  # fmt: skip
        for offset in disk.holes():
            self.will_notice(offset)

    def gave_back(self) -> int:
        """The last epoch that this process has resigned from before it opened this log."""
        return 0

    # What it remembers: of records that are not in the log any more, too.

    def rebuild(self) -> None:
        """Remember what the log has, on top of what was written down."""
        disk = self.disk
        if disk.snapshot is not None and disk.snapshot.offset > disk.end:
            disk.snapshot = None
        saved = disk.snapshot
        base = disk.start if saved is None else saved.offset
        self.checksum = DedupChecksum()
        self.checksum.begin(base, 0 if saved is None else saved.checksum)
        ids = {} if saved is None else dict(saved.ids)
        for offset in range(disk.start, disk.end):
            message = disk.written(offset).message
            ids[message] = offset
            self.checksum.add(repr(message).encode(), offset)
        self.checksum.end()
        self.floor, self.applied = base, disk.end
        self.unsaved = False
        self.copied: Snapshot | None = None
        self.remember(ids)

    def remember(self, ids: dict[Message, int]) -> None:
        """What it knows to be stored, and where."""
        self.ids = ids

    def stores(self, message: Message, offset: int) -> None:
        """A record is handed to the log's writer."""
        self.ids[message] = offset
        self.checksum.add(repr(message).encode(), offset)
        self.applied = offset + 1

    def snapshot(self) -> Snapshot:
        """What it remembers of committed records."""
        end = min(max(self.replica.high_watermark + 1, self.floor), self.applied)
        checksum = self.checksum.at(end)
        assert checksum is not None
        return Snapshot(end, {m: at for m, at in self.ids.items() if at < end}, checksum)

    def save_snapshot(self) -> None:
        """Durably; at least up to what retention is about to delete."""
        self.disk.snapshot = self.snapshot()

    def dedup_mark(self) -> DedupMark:
        return DedupMark(self.applied, self.checksum.total, saved=not self.unsaved)

    def agrees(self, mark: DedupMark) -> bool | None:
        """As `penstock.logd.partition.partition.Partition.dedup_agrees`."""
        checksum = self.checksum.at(mark.offset) if mark.offset <= self.applied else None
        if checksum is None or (checksum == mark.checksum and not mark.saved):
            return None
        return checksum == mark.checksum

    def fetched(self, fetch: Fetch) -> None:
        agrees = None if fetch.dedup is None else self.agrees(fetch.dedup)
        if agrees is False:
            self.world.mark("forgetful")
        self.take(ev.FetchCame(fetch, agrees))

    def dedup_asked(self, node: NodeId, epoch: int) -> None:
        """A follower wants what this leader remembers."""
        if isinstance(self.replica.state, Leader) and self.replica.leader_epoch == epoch:
            snapshot, name = self.snapshot(), self.name
            self.world.send(name, node, lambda n: n.dedup_came(name, epoch, snapshot))

    def dedup_came(self, node: NodeId, epoch: int, snapshot: Snapshot) -> None:
        """It waits until all that it speaks of is in the log, and known to be committed."""
        view = self.replica.view
        if view is not None and (view.leader, view.leader_epoch) == (node, epoch):
            self.copied = snapshot
            self.install_copy()

    def install_copy(self) -> None:
        copied = self.copied
        if copied is None or self.replica.high_watermark < copied.offset - 1:
            return
        if self.replica.log.cutting or not self.checksum.correct(copied.offset, copied.checksum):
            return
        self.copied, self.unsaved = None, True
        self.floor = max(self.floor, copied.offset)
        ids = dict(copied.ids)
        ids.update((m, at) for m, at in self.ids.items() if at >= ids.get(m, 0))
        self.remember(ids)
        self.world.mark("dedup state copied")
        checksum = self.checksum

        def saved() -> None:
            if self.checksum is checksum:  # else the log was cut
                self.save_snapshot()
                self.unsaved = False
                self.take(ev.DedupSaved())

        self.later(self.dice.choice((1, 6, 40)) * MS, saved)

    def die(self, *, power: bool) -> None:
        """The process ends; with its machine, what was not durable may be lost, from any point."""
        self.life += 1
        self.running, self.paused, self.leading = False, False, 0
        self.inbox, self.reports = [], []
        disk, random = self.disk, self.world.random
        if power and len(disk.records) > disk.durable:
            self.world.mark("unsynced lost")
            del disk.records[random.randint(disk.durable, len(disk.records)) :]
        disk.durable = len(disk.records)

    def clock(self) -> int:
        return int(self.world.now_ns * self.rate)

    def do(self, action: Callable[[], None], *, in_order: bool = False) -> None:
        """Act now; when the process is resumed, if it is stopped; never, if it is dead."""
        if self.paused:
            (self.reports if in_order else self.inbox).append(action)
        elif self.running:
            action()

    def later(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Act after a delay, unless this process is gone by then."""
        life = self.life
        self.world.at(delay_ns, lambda: self.do(action) if self.life == life else None)

    def resume(self) -> None:
        """What has come meanwhile is taken in any order, what the writer reports in its own."""
        random, inbox, reports = self.world.random, self.inbox, self.reports
        self.paused, self.inbox, self.reports = False, [], []
        random.shuffle(inbox)
        life = self.life
        while (inbox or reports) and self.life == life:
            turn = reports if reports and (not inbox or random.random() < 0.5) else inbox
            self.do(turn.pop(0))

    def take(self, event: ev.Event) -> None:
        """Let the core decide, and do what it says."""
        for effect in self.replica.handle(event, self.clock()):
            self.execute(effect)
        if self.noticed:
            self.world.history.knows_of_holes(self)
        if self.world.history.lossy:
            self.world.history.shows(self)
        if isinstance(self.replica.state, Leader):
            self.push()

    def will_notice(self, offset: int) -> None:
        """Somebody reads what cannot be read, now or later."""
        delay_ns = self.world.random.choice((0, 0, 20, 60)) * MS
        self.later(delay_ns, partial(self.notice, offset))

    def notice(self, offset: int) -> None:
        unnoticed = set(self.disk.holes()) - self.noticed
        upto = offset
        while upto in unnoticed:
            upto += 1
        if offset < upto:
            self.noticed.update(range(offset, upto))
            self.take(ev.RangeCorrupt(offset, upto))

    def holes(self) -> set[int]:
        """Those that this process knows of."""
        return self.noticed.intersection(self.disk.holes()) if self.noticed else set()

    # What comes from outside.

    def tick(self) -> None:
        """Heartbeat, timers, and asking again for what got no answer."""
        now_ns = self.clock()
        deadline_ns = self.replica.next_deadline_ns(now_ns)
        if deadline_ns is not None and deadline_ns <= now_ns:
            self.take(ev.Ticked())
        if now_ns - self.asked_ns > PATIENCE_NS:
            self.asked_ns = now_ns
            self.take(ev.AnswerLost())
        if self.world.random.random() < 0.1:
            log = self.replica.log
            self.disk.checkpoint = (log.high_watermark, log.agreed_epoch)
        if self.dice.random() < 0.02 and not self.replica.log.busy:
            self.save_snapshot()
        electable, name, life = self.electable, self.name, self.life
        self.world.send(
            name, "controller", lambda c: c.heartbeat(name, now_ns, life, electable=electable)
        )

    def leased(self, until_ns: int, view: LeaderAndIsr, life: int) -> None:
        """The answer to a heartbeat; one to another process's is nothing."""
        if life != self.life:
            return
        self.take(ev.LeaderAndIsrChanged(view))
        self.take(ev.LeaseRenewed(until_ns))
        if not view.holds(self.name):
            self.remove_data()

    def remove_data(self) -> None:
        """It was moved away, and may come back: then with nothing."""
        name = self.name
        if self.disk.end:
            self.die(power=False)
            self.disk = Disk()
            self.start_up()
        self.world.send(name, "controller", lambda c: c.gone(name))

    def answer_came(self, answer: Answer, records: list[Record]) -> None:
        self.writer.fetched = records
        spans = (
            tuple(
                Span(answer.offset + n, answer.offset + n + 1, record.epoch)
                for n, record in enumerate(records)
            )
            if isinstance(answer, Frames)
            else ()
        )
        self.take(ev.AnswerCame(answer, spans))

    def published(self, message: Message) -> None:
        """NATS delivers to everybody who is subscribed."""
        if not self.leading or self.refusing is not fx.Refusing.NOTHING:
            if self.leading:
                self.world.mark(f"refused {self.refusing.name}")
            return
        known = self.ids.get(message)
        if known is not None:
            self.world.mark("duplicate")
            if known <= self.high_watermark:
                self.world.ack(self, known, message, "all")
            else:
                self.acks.append((known, message))
            return
        assert self.replica.view is not None
        assert not self.replica.view.read_only, "a record is taken though the stream is read-only"
        offset, epoch = self.next_offset, self.leading
        self.next_offset += 1
        self.stores(message, offset)
        self.acks.append((offset, message))
        self.take(ev.Submitted(self.next_offset))
        self.writer.append([Record(epoch, message)])

    # What the core wants done.

    def execute(self, effect: fx.Effect) -> None:
        match effect:
            case (
                fx.BeginEpoch() | fx.AppendFetched() | fx.Truncate() | fx.Reset()
                | fx.DeleteBefore() | fx.Patch()
            ):  # fmt: skip
                self.writer.execute(effect)
            case fx.SendFetch() | fx.SendAnswer() | fx.AskRange() | fx.SendRange() | fx.AskDedup():
                self.send(effect)
            case fx.SaveHighWatermark(offset, agreed_epoch):
                self.disk.checkpoint = (offset, agreed_epoch)
                self.high_watermark = min(self.high_watermark, offset)
            case (
                fx.ProposeIsr()
                | fx.ReleaseLeadership()
                | fx.Electable()
                | fx.RefreshMetadata()
                | fx.Tell()
            ):
                self.tell(effect)
            case fx.HighWatermark(offset):
                self.world.history.commits(self, offset)
                self.release("all", offset + 1)
                self.install_copy()
            case fx.LeaderDurable(upto):
                self.release("leader", upto)
            case _:
                self.serve(effect)

    def send(
        self,
        effect: fx.SendFetch | fx.SendAnswer | fx.AskRange | fx.SendRange | fx.AskDedup,
    ) -> None:
        """What is for other replicas."""
        name = self.name
        match effect:
            case fx.SendFetch(node, fetch):
                if fetch.wants:
                    self.asked_ns = self.clock()
                told = replace(fetch, dedup=self.dedup_mark())
                self.world.send(name, node, lambda n: n.fetched(told))
            case fx.AskDedup(node):
                epoch = self.replica.leader_epoch
                self.world.send(name, node, lambda n: n.dedup_asked(name, epoch))
            case fx.SendAnswer(node, answer):
                self.send_answer(node, answer)
            case fx.AskRange(node, first, upto):
                self.world.send(name, node, lambda n: n.take(ev.RangeAsked(name, first, upto)))
            case fx.SendRange(node, first, upto):
                self.send_range(node, first, upto)

    def tell(
        self,
        effect: fx.ProposeIsr | fx.ReleaseLeadership | fx.Electable | fx.RefreshMetadata | fx.Tell,
    ) -> None:
        """What is for the controller, or for an operator."""
        match effect:
            case fx.ProposeIsr():
                self.propose(effect)
            case fx.ReleaseLeadership(epoch):
                self.resign(epoch)
            case fx.Electable():
                self.can_lead(effect)
            case fx.Tell(finding):
                self.world.told(finding)
            case fx.RefreshMetadata():
                pass  # heartbeats bring it

    def propose(self, proposal: fx.ProposeIsr) -> None:
        """It is forwarded, and in a queue for the metadata log."""
        name = self.name
        propose = partial(Controller.proposed, node=name, proposal=proposal)
        for late_ns in self.world.delays():
            self.world.at(late_ns, partial(self.world.send, name, "controller", propose))

    def resign(self, epoch: int) -> None:
        name = self.name
        self.world.send(name, "controller", lambda c: c.resigned(name, epoch))

    def can_lead(self, effect: fx.Electable) -> None:
        self.electable = not effect.ineligible

    def serve(self, effect: fx.Lead | fx.Stop | fx.Refuse | fx.InheritedAcks) -> None:
        """What is for publishers."""
        match effect:
            case fx.Lead(epoch, next_offset):
                self.world.history.leads(self, epoch)
                assert next_offset == self.disk.end or epoch == self.last_led
                self.leading, self.next_offset, self.refusing = (
                    epoch,
                    next_offset,
                    fx.Refusing.NOTHING,
                )
                self.last_led = epoch
            case fx.Stop(reason):
                self.world.mark(f"stopped {reason.name.lower()}")
                self.leading = 0
                if reason is not fx.StopReason.LEASE_ENDED:
                    self.acks.clear()
            case fx.Refuse(reason):
                self.refusing = reason
            case fx.InheritedAcks(first, upto):
                self.world.mark("inherited")
                records = self.disk.records[first - self.disk.start : upto - self.disk.start]
                self.acks += [
                    (first + n, r.message) for n, r in enumerate(records) if r is not None
                ]

    def release(self, policy: str, upto: int) -> None:
        """Send the acks that are due."""
        if not self.leading:
            return
        due = [a for a in self.acks if a[0] < upto and policy in ("all", a[1].policy)]
        if due:
            self.acks = [a for a in self.acks if a not in due]
            for offset, message in due:
                self.world.ack(self, offset, message, policy)

    def send_answer(self, node: NodeId, answer: Answer) -> None:
        records: list[Record] = []
        if isinstance(answer, Frames):
            first = answer.offset - self.disk.start
            if first < 0:
                return  # deleted this moment; the core will hear of it
            for at, record in enumerate(self.disk.records[first : first + FRAMES_MAX], first):
                if record is None:
                    self.later(0, partial(self.notice, self.disk.start + at))
                    break
                records.append(record)
            records = records[: answer.upto - answer.offset]
            self.told[node] = (answer.number, answer.upto, answer.high_watermark)
        self.world.send(self.name, node, lambda n: n.answer_came(answer, records))

    def push(self) -> None:
        """Answer open wishes that there is news for, as a session does."""
        for node in self.world.nodes:
            answer = self.replica.answer_for(node)
            if isinstance(answer, Frames):
                news = (answer.number, answer.upto, answer.high_watermark)
                if self.told.get(node) != news:
                    self.send_answer(node, answer)

    def send_range(self, node: NodeId, first: int, upto: int) -> None:
        records = self.disk.records[first - self.disk.start : upto - self.disk.start]
        name = self.name
        for at, record in enumerate(records, first):
            if record is None:
                self.later(0, partial(self.notice, at))
        self.world.send(name, node, lambda n: n.range_came(name, first, upto, records))

    def range_came(self, node: NodeId, first: int, upto: int, records: list[Record | None]) -> None:
        """What of it was sound, or as much as one message holds."""
        patch = []
        for record in records[: 1 if self.world.now_ns // MS % 3 == 0 else None]:
            if record is None:
                break
            patch.append(record)
        if 0 < len(patch) < upto - first:
            self.world.mark("hole filled in part")
        self.writer.patch = patch
        spans = tuple(Span(at, at + 1, record.epoch) for at, record in enumerate(patch, first))
        self.take(ev.RangeCame(node, first, first + len(patch) if patch else upto, spans))

    def fail(self) -> None:
        """EIO or ENOSPC: the log takes nothing; later it is opened again, as after a crash."""
        self.world.mark("disk failed")
        self.take(ev.StorageFailed("disk"))
        self.later(30 * MS, self.restart)

    def fail_soon(self) -> None:
        self.do(self.fail)

    def restart(self) -> None:
        self.die(power=True)
        self.start_up()

"""The replicas of one partition in `cluster_world`: core, disk and intake, hosted by machines.

What is in a log, who wrote it and what was acked is checked for each incarnation of a stream by a
history of its own; replicas of two incarnations hear each other all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from penstock.logd.cluster.replica import REFUSALS
from penstock.logd.cluster.replica_manager import to_outcome
from penstock.logd.controller.liveness import BeatNow, PartitionReport
from penstock.logd.format.headers import format_headers
from penstock.logd.intake.intake import Arrived, Declined, Intake, Led
from penstock.logd.intake.turn import Ack, AckLater, AckRun, Append, MessageRun, PendingAck, Refuse
from penstock.logd.intake.turn import Message as Published
from penstock.logd.metadata.commands import Basis, ChangeIsr, IsrChange
from penstock.logd.metadata.state import Each
from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from tests.sim.replication_disk import Disk
from tests.sim.replication_history import Message, Record
from tests.sim.replication_node import PATIENCE_NS, Node
from tests.sim.stage import MS

if TYPE_CHECKING:
    from penstock.logd.metadata.records import PartitionKey
    from penstock.logd.metadata.state import Result
    from penstock.logd.metadata.streams import StreamConfig
    from penstock.logd.replication.events import Ineligible, LeaderAndIsr, NodeId
    from tests.sim.cluster_scene import Scene
    from tests.sim.cluster_server import Server

ROOM: Final = 1 << 30
REOPENED_NS: Final = 30 * MS


class Ids(dict[Message, int]):
    """Offsets by message, as the intake that is fed with them remembers them."""

    intake: Intake

    @override
    def __setitem__(self, message: Message, offset: int) -> None:
        super().__setitem__(message, offset)
        self.intake.dedup.message_ids.record(message_id(message), offset, 0)


class HostedNode(Node):
    """A replica that a server opens and closes; its disk is the machine's.

    Attributes:
        server: Whose.
        config: The stream's, as it was opened.
        gone: Its data was removed.
    """

    world: Scene

    def __init__(self, scene: Scene, server: Server, config: StreamConfig) -> None:
        self.server = server
        self.config = config
        self.gone = False
        super().__init__(scene, server.name, scene.incarnation)

    # Its life.

    @override
    def start_up(self) -> None:
        self.pending: list[Ack] = []
        self.pending_here: list[Ack] = []
        self.lease_told_ns = 0
        self.resigned_epoch = self.gave_back()
        self.ineligible: Ineligible = ""
        self.isr: frozenset[NodeId] = frozenset()
        self.epoch = 0
        self.stirred = True
        super().start_up()
        self.paused = self.server.paused

    def close(self) -> None:
        """It is played no more; what was written stays."""
        self.die(power=False)

    def remove(self) -> None:
        """Its data goes."""
        self.world.mark("data removed")
        self.disk, self.gone = Disk(), True

    @override
    def clock(self) -> int:
        return self.server.clock_ns()

    @override
    def restart(self) -> None:
        """After a failure of the disk the machine goes on; the log is opened again."""
        self.die(power=True)
        self.server.reopen(self)

    @override
    def gave_back(self) -> int:
        return self.server.resignations.get((self.world.place, self.incarnation), 0)

    @override
    def remember(self, ids: dict[Message, int]) -> None:
        """The intake is fed with it again."""
        config = self.config
        self.intake = Intake(config, next_offset=0, epoch=0, streams_for=lambda _: ())
        self.ids = known = Ids()
        known.intake = self.intake
        for message, offset in sorted(ids.items(), key=lambda item: item[1]):
            known[message] = offset

    # As the shell of the daemon.

    def view(self, view: LeaderAndIsr) -> None:
        """What the state says; the controller takes a replica that left the ISR for dead."""
        if view.leader == self.name and view.leader_epoch == self.epoch:
            for node in sorted(self.isr - view.isr):
                self.take(ev.NodeLost(node))
        self.isr = view.isr
        self.epoch = max(self.epoch, view.leader_epoch)
        self.take(ev.LeaderAndIsrChanged(view))

    @override
    def take(self, event: ev.Event) -> None:
        """With the lease as it is by now; of its end the node tells at once (`fence`)."""
        until_ns = self.server.lease.until_ns
        if until_ns > self.lease_told_ns:
            self.lease_told_ns = until_ns
            if not self.replica.renew(until_ns):
                super().take(ev.LeaseRenewed(until_ns))
        super().take(event)
        self.stirred = True

    def fence(self) -> None:
        """The lease has ended, if there is another by now or not."""
        super().take(ev.Ticked())

    @override
    def tick(self) -> None:
        now_ns = self.clock()
        due_ns = self.replica.next_deadline_ns(now_ns)
        if due_ns is not None and due_ns <= now_ns:
            self.take(ev.Ticked())
        if now_ns - self.asked_ns > PATIENCE_NS:
            self.asked_ns = now_ns
            self.take(ev.AnswerLost())
        if self.world.random.random() < 0.05:
            log = self.replica.log
            self.disk.checkpoint = (log.high_watermark, log.agreed_epoch)

    def report(self, place: PartitionKey) -> PartitionReport:
        log, epoch = self.replica.log, self.replica.leader_epoch
        return PartitionReport(
            key=place,
            incarnation=self.incarnation,
            leader_epoch=epoch,
            last_epoch=log.last_epoch,
            end_offset=log.written,
            unfit=self.ineligible,
            resigned=self.resigned_epoch >= epoch > 0,
        )

    @override
    def propose(self, proposal: fx.ProposeIsr) -> None:
        place, life = self.world.place, self.life
        basis = Basis(
            stream=place.stream,
            partition=place.partition,
            incarnation=proposal.incarnation,
            leader_epoch=proposal.leader_epoch,
            version=proposal.version,
        )

        def answered(result: Result | None) -> None:
            outcome = ev.Outcome.LOST
            if result is not None:
                outcome = to_outcome(result.results[0] if isinstance(result, Each) else result)
            self.world.mark(f"isr proposal {outcome.name.lower()}")
            event = ev.IsrAnswered(proposal.leader_epoch, proposal.number, outcome)
            self.do(lambda: self.take(event) if self.life == life else None)

        change = IsrChange(basis=basis, isr=tuple(sorted(proposal.isr)))
        self.server.change(ChangeIsr(changes=(change,)), answered)

    @override
    def resign(self, epoch: int) -> None:
        if epoch > self.resigned_epoch:
            self.world.mark("resigned")
            self.resigned_epoch = epoch
            self.server.resignations[self.world.place, self.incarnation] = epoch
            self.server.beat(BeatNow())

    @override
    def can_lead(self, effect: fx.Electable) -> None:
        self.ineligible = effect.ineligible
        self.server.beat(BeatNow())

    # For publishers.

    @override
    def published(self, message: Message) -> None:
        """NATS delivers to everybody who is subscribed."""
        if not self.leading:
            return
        arrived = Arrived([as_published(message)], ROOM)
        for effect in self.intake.handle(arrived, 0):
            match effect:
                case Append(items):
                    epoch = self.intake.epoch
                    for run in items:
                        assert isinstance(run, MessageRun), run
                        assert self.replica.view is not None
                        assert not self.replica.view.read_only, "taken though it is read-only"
                        self.stores(message, run.base_offset)
                        self.take(ev.Submitted(run.next_offset))
                        self.writer.append([Record(epoch, message)])
                case AckLater(acks):
                    for ack in acks:
                        if isinstance(ack, PendingAck) and ack.duplicate:
                            self.world.mark("duplicate")
                        (self.pending_here if ack.here else self.pending).append(ack)
                case Refuse(ack=refused):
                    assert refused.nack is not None
                    self.world.mark(f"refused {refused.nack.name}")
        self.send_acks(self.pending, self.high_watermark, "all")

    @override
    def serve(self, effect: fx.Lead | fx.Stop | fx.Refuse | fx.InheritedAcks) -> None:
        super().serve(effect)
        self.acks.clear()  # the base class's; those here are of the real intake
        match effect:
            case fx.Lead(epoch, next_offset):
                self.world.mark("led")
                self.intake.handle(Declined(None), 0)
                self.intake.handle(Led(epoch, next_offset), 0)
            case fx.Stop(reason):
                if reason is not fx.StopReason.LEASE_ENDED:
                    self.pending.clear()
                    self.pending_here.clear()
            case fx.Refuse(reason):
                self.intake.handle(Declined(REFUSALS[reason]), 0)
            case fx.InheritedAcks(first, upto):
                records = self.disk.records[first - self.disk.start : upto - self.disk.start]
                older = [
                    PendingAck(at, reply_of(record.message), at)
                    for at, record in enumerate(records, first)
                    if record is not None
                ]
                self.pending[:0] = older

    @override
    def release(self, policy: str, upto: int) -> None:
        if policy == "all":
            self.send_acks(self.pending, upto - 1, policy)
        self.send_acks(self.pending_here, upto - 1, policy)

    def send_acks(self, pending: list[Ack], upto: int, policy: str) -> None:
        if not self.leading:
            return
        while pending and pending[0].release <= upto:
            ack = pending.pop(0)
            if isinstance(ack, AckRun):
                (reply,), offset = ack.replies, ack.base_offset
            else:
                reply, offset = ack.reply, ack.offset
            self.world.ack(self, offset, message_of(reply), policy)


def message_id(message: Message) -> bytes:
    return b"%d-%d" % (message.client, message.number)


def reply_of(message: Message) -> bytes:
    return b"%d.%d.%b" % (message.client, message.number, message.policy.encode())


def message_of(reply: bytes) -> Message:
    client, number, policy = reply.split(b".")
    return Message(int(client), int(number), policy.decode())


def as_published(message: Message) -> Published:
    """As it comes from NATS: with an id, and its own ack policy."""
    pairs: tuple[tuple[str, bytes], ...] = (("Nats-Msg-Id", message_id(message)),)
    if message.policy == "leader":
        pairs += (("Penstock-Ack-Policy", b"leader"),)
    return Published(b"s", reply_of(message), format_headers(pairs), b"m")

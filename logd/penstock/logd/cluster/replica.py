"""One partition's replica on this node: its core is run, and what that wants is done.

The core (`penstock.logd.replication.replica`) says what it must be told. Everything comes to
`handle`, on the event loop; what changes the log goes to its one writer, whose reports come back
as events, in order.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

import structlog
from msgspec import Struct
from msgspec.structs import replace

from penstock.base.clock import Clock
from penstock.logd.cluster.replication import Frame, Replication
from penstock.logd.controller.liveness import PartitionReport
from penstock.logd.errors import CorruptError, LogdError
from penstock.logd.format.acks import Nack
from penstock.logd.intake.dedup import DedupMark
from penstock.logd.intake.options import Refusal
from penstock.logd.intake.turn import OFFSET_MAX
from penstock.logd.metadata.commands import (
    ChangeIsr,
    Command,
    ElectLeaders,
    RegisterNode,
    RemoveNode,
)
from penstock.logd.metadata.records import PartitionKey as Place
from penstock.logd.metadata.records import PartitionRecord, StreamRecord
from penstock.logd.metadata.state import Each, Result
from penstock.logd.metadata.tables import Done
from penstock.logd.partition.log_writer import (
    Cut,
    Durable,
    EpochBegun,
    LogResult,
    Note,
    Patch,
    Patched,
    StartMoved,
    WasReset,
    Written,
)
from penstock.logd.partition.partition import Partition
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.publish_queue import inherited_acks
from penstock.logd.replication import events as do
from penstock.logd.replication import events as on
from penstock.logd.replication.events import (
    Answer,
    Ineligible,
    LeaderAndIsr,
    NodeId,
    ProposeIsr,
    Refusing,
    ReplicationSettings,
    Span,
)
from penstock.logd.replication.leader import Leader
from penstock.logd.replication.log_state import Epochs, LogState
from penstock.logd.replication.replica import Replica
from penstock.logd.replication.session import PartitionId
from penstock.logd.storage import CommitLog, EpochFile, ReplicaFile


class ReplicaContext(Protocol):
    """The node, as its replicas need it."""

    @property
    def node(self) -> NodeId:
        """Name of this node."""

    @property
    def clock(self) -> Clock:
        """Clock whose monotonic time goes on while the machine sleeps."""

    @property
    def settings(self) -> ReplicationSettings: ...

    @property
    def replication(self) -> Replication:
        """The way to other replicas."""

    @property
    def resignations(self) -> dict[PartitionId, int]:
        """The last epoch of each partition whose leadership this process released."""

    def lease_until_ns(self) -> int:
        """Return the end of the node's lease, monotonic; in the past: it may not lead."""

    def report_changed(self, replica: "ReplicaRunner") -> None:
        """Mark a replica whose report may have changed."""

    def on_lead(self, replica: "ReplicaRunner") -> None:
        """It takes messages from now on, or takes them again: bring them."""

    def on_stop(self, replica: "ReplicaRunner") -> None:
        """It takes no more."""

    def propose_isr(self, replica: "ReplicaRunner", proposal: ProposeIsr) -> None:
        """Ask the controller; `IsrAnswered` is due."""

    def look(self) -> None:
        """Have the next heartbeat sent at once."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside, until the node is closed."""


class Identified(Struct, frozen=True):
    """The partition of a replica.

    Attributes:
        alone: Whether it is the only replica: everything in its log is committed when it opens.
    """

    place: Place
    key: PartitionId
    alone: bool = False


REFUSALS: Final = {
    Refusing.NOTHING: None,
    Refusing.NOT_ENOUGH_REPLICAS: Refusal(
        Nack.NOT_ENOUGH_REPLICAS, "fewer replicas than the stream's minimum are in sync"
    ),
    Refusing.READ_ONLY: Refusal(Nack.READ_ONLY, "the stream is read-only"),
}
"""Refusal of everything that is published, by the reason; None: nothing is refused."""


_LogChange = (
    do.BeginEpoch | do.AppendFetched | do.Truncate | do.Reset | do.DeleteBefore
    | do.Patch | do.SaveHighWatermark
)  # fmt: skip

_COPIED_S: Final = 30.0
"""Seconds that records have to come which a copy of the leader's dedup state speaks of."""

_log = structlog.get_logger()


class ReplicaRunner:
    """A replica; see `Role` of `penstock.logd.partition.partition` and `Hosted` of replication.

    It is made on a worker as the log has been recovered; from `attach` on it is used on the event
    loop.

    Args:
        identified: The partition.
        host: The node.
        log: The recovered log.
        epochs: The log's epochs; they are truncated to fit it.

    Attributes:
        place, key, log, epochs: The arguments.
        epoch: The leader epoch it knows; 0 before the first.
        high_watermark: Offset of the last record that is committed and held here.
        leading: Whether it accepts messages.
        followed: Whether other nodes are to have a copy.
        subscribed: Whether its subscription is confirmed; the host sets it.
        has_led: Whether it ever led.
        led_ns: Time when a leader, itself or another, was last known to lead; the host's clock.
        findings: Count of each finding.

    Raises:
        CorruptError: A file of the replica's is damaged.
        OSError: The disk failed.
    """

    def __init__(
        self, identified: Identified, host: ReplicaContext, log: CommitLog, epochs: EpochFile
    ) -> None:
        self.place, self.key = identified.place, identified.key
        self.log = log
        self.epochs = epochs
        self.leading = self.subscribed = self.has_led = self._takes = False
        self.findings: Counter[do.Finding] = Counter()
        self.led_ns = host.clock.monotonic_ns()
        self._host = host
        high_watermark, agreed_epoch = ReplicaFile(log.directory).load()
        if identified.alone:
            _check_whole(log, epochs)
            high_watermark = log.end_offset - 1
        epochs.recover(log.end_offset)
        self._noted = (high_watermark, agreed_epoch)
        state = LogState.opened(
            start=log.start_offset,
            end=log.end_offset,
            epochs=Epochs(epochs.entries),
            high_watermark=high_watermark,
            agreed_epoch=agreed_epoch,
        )
        # Numbers of fetches start again with each opening, which distinguishes them like processes.
        resigned = host.resignations.get(self.key, 0)
        self._replica = Replica(
            host.node, self.key.incarnation, state,
            boot=secrets.token_hex(8), settings=host.settings, resigned_epoch=resigned,
        )  # fmt: skip
        self.epoch = 0
        self.high_watermark = self._replica.high_watermark
        self._partition: Partition | None = None
        self._fetched: list[Frame] = []
        self._fetched_alone = False
        self._patching: list[Frame] = []
        self._follows: NodeId | None = None
        self._rebuilding = self._copying = False
        self._ineligible: Ineligible = ""
        self._isr: frozenset[NodeId] = frozenset()
        self.followed = not identified.alone
        self._lease_told_ns = self._armed_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def partition(self) -> Partition:
        assert self._partition is not None
        return self._partition

    def attach(self, partition: Partition) -> None:
        """The partition is open, and has this role."""
        self._partition = partition
        partition.follow()
        for first, upto in self.log.damaged():
            self.handle(on.RangeCorrupt(first, upto))

    def detach(self) -> None:
        """Nothing happens to it any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._forget_leader()

    def view(self, view: LeaderAndIsr) -> None:
        """Take what the controller has decided."""
        follows = view.leader if view.leader != self._host.node else None
        if self._follows not in (None, follows):
            self._forget_leader()
        if view.leader == self._host.node and view.leader_epoch == self.epoch:
            for node in sorted(self._isr - view.isr):  # the controller takes them for dead
                self.handle(on.NodeLost(node))
        self._isr = view.isr
        self.followed = bool({*view.replicas, *view.observers} - {self._host.node})
        self.partition.publish_queue.alone = view.replicas == (self._host.node,)
        if self.leading:
            self.partition.writer.reports_written = self.followed
        self.epoch = max(self.epoch, view.leader_epoch)
        self.handle(on.LeaderAndIsrChanged(view))

    @property
    def subscription_manager(self) -> bool:
        """True if messages are delivered to it."""
        return self.leading and self.subscribed

    def tick(self) -> None:
        """The lease has begun, or something is due."""
        self.handle(on.Ticked())

    def fence(self) -> None:
        """The lease has ended, if there is another by now or not."""
        self._run(on.Ticked(), ())

    def report(self) -> PartitionReport:
        """Return the report to the controller."""
        log, epoch = self._replica.log, self._replica.leader_epoch
        return PartitionReport(
            key=self.place,
            incarnation=self.key.incarnation,
            leader_epoch=epoch,
            last_epoch=log.last_epoch,
            end_offset=log.written,
            unfit=self._ineligible,
            resigned=self._host.resignations.get(self.key, 0) >= epoch > 0,
            forgetful=self._partition is not None and self._partition.is_forgetful,
        )

    def look(self) -> None:
        """Note damage that readers have met, and have what is known written down if it changed."""
        for first, upto in self.log.damaged():
            self.handle(on.RangeCorrupt(first, upto))
        self.note()

    def note(self) -> None:
        """Have what it knows written down, if that is something else than before.

        Where no node follows all of the log is committed as it is opened.
        """
        if not self.followed:
            return
        known = (self._replica.log.high_watermark, self._replica.log.agreed_epoch)
        if known != self._noted and not self.partition.failure:
            self._noted = known
            self.partition.writer.submit(Note(*known))

    # As `Role`.

    def settle(self, result: LogResult, now_ns: int) -> bool:
        """Handle the writer's result; True: it committed alone, and the caller reports that."""
        match result:
            case Durable(upto, cuts):
                if not self.followed and self._commit_alone(upto, cuts, now_ns):
                    return True
                self.handle(on.Synced(upto, cuts))
            case Written():
                self._settle_written(result, now_ns)
            case EpochBegun(epoch):
                self.handle(on.EpochSaved(epoch))
            case Cut(end_offset, cuts):
                self._host.spawn(self._rebuild_dedup(on.Truncated(end_offset, cuts)))
            case WasReset(start, cuts):
                self._host.spawn(self._rebuild_dedup(on.WasReset(start, cuts)))
            case Patched(first, upto, cuts):
                self.handle(on.RangePatched(first, upto, cuts))
            case StartMoved(start):
                self.handle(on.LogStartMoved(start))
            case _:
                raise AssertionError(result)
        # They have something to fetch; without a lease it is served, too. What is written is told
        # before it is durable, and what that commits is separate news.
        if self.followed and self._follows is None and not isinstance(result, Durable):
            self._host.replication.touch(self.key)
        return False

    def _settle_written(self, written: Written, now_ns: int) -> None:
        if self.leading:
            self._host.replication.keep_written(self.key, written.frames)
        if self._replica.note_written(written.upto, written.cuts, now_ns):
            self._arm(now_ns)
        else:
            self.handle(on.Written(written.upto, written.cuts))

    def failed(self, reason: str, now_ns: int) -> None:
        del now_ns
        self.handle(on.StorageFailed(reason))

    def submitted(self, upto: int) -> None:
        """The leader has handed records to the writer that end there."""
        self._replica.note_submitted(upto)  # as an event it would cost as much as parsing

    # As `Hosted`.

    def handle(self, event: on.Event) -> None:
        """Run the core, and execute its effects."""
        if isinstance(event, on.FetchCame) and event.fetch.dedup is not None:
            agrees = self.partition.dedup_agrees(event.fetch.dedup)
            event = replace(event, dedup_agrees=agrees)
        self._run(event, self._renew_lease())

    def _run(self, event: on.Event, before: Sequence[do.Effect]) -> None:
        now_ns = self._host.clock.monotonic_ns()
        effects = [*before, *self._replica.handle(event, now_ns)]
        for effect in effects:
            self._do(effect)
        if self._takes:  # all that it is to know before it takes anything has been done
            self._takes = False
            self._host.on_lead(self)
        self.high_watermark = self._replica.high_watermark
        if effects or not isinstance(event, on.Ticked):
            self._host.report_changed(self)
        self._arm(now_ns)

    def answer_for(self, node: str) -> Answer | None:
        return self._replica.answer_for(NodeId(node))

    def take(self, answer: Answer, frames: list[Frame], *, alone: bool) -> None:
        self._fetched, self._fetched_alone = frames, alone
        self.led_ns = self._host.clock.monotonic_ns()
        self.handle(on.AnswerCame(answer, _spans(frames)))
        self._fetched = []

    def dedup_snapshot(self, leader_epoch: int) -> ProducerSnapshot | None:
        leads = self.epoch == leader_epoch and isinstance(self._replica.state, Leader)
        return self.partition.dedup_snapshot() if leads else None

    def take_range(self, node: str, first: int, upto: int, frames: list[Frame]) -> None:
        self._patching = frames
        self.handle(on.RangeCame(NodeId(node), first, upto, _spans(frames)))
        self._patching = []

    def _commit_alone(self, upto: int, cuts: int, now_ns: int) -> bool:
        """Commit what is durable where no node follows: a message alone waits for no more."""
        if now_ns >= self._host.lease_until_ns():
            return False
        if not self._replica.commit_alone(upto, cuts):
            return False
        self.high_watermark = self._replica.high_watermark
        return True

    def _renew_lease(self) -> Sequence[do.Effect]:
        """Tell of a longer lease, if there is one. Of its end the node tells at once: `fence`."""
        until_ns = self._host.lease_until_ns()
        if until_ns <= self._lease_told_ns:
            return ()
        self._lease_told_ns = until_ns
        if self._replica.renew(until_ns):
            return ()
        return self._replica.handle(on.LeaseRenewed(until_ns), self._host.clock.monotonic_ns())

    def _do(self, effect: do.Effect) -> None:
        match effect:
            case do.HighWatermark(offset):
                self.high_watermark = offset
                self.partition.commit(offset)
                if self.leading and self.followed:
                    self._host.replication.high_watermark_risen(self.key)
            case do.LeaderDurable(upto):
                self.partition.publish_queue.durable_here(upto)
            case do.SendFetch() | do.SendAnswer() | do.AskRange() | do.SendRange():
                self._send(effect)
            case do.AskDedup(node):
                self._ask_dedup(node)
            case do.ProposeIsr():
                self._host.propose_isr(self, effect)
            case do.RefreshMetadata():
                pass  # the metadata group tells this node as soon as it can
            case do.ReleaseLeadership() | do.Electable() | do.Tell():
                self._notify(effect)
            case do.Lead() | do.Stop() | do.Refuse() | do.InheritedAcks():
                self._lead(effect)
            case _:
                self._change_log(effect)

    def _send(self, effect: do.SendFetch | do.SendAnswer | do.AskRange | do.SendRange) -> None:
        replication, key = self._host.replication, self.key
        match effect:
            case do.SendFetch(node, fetch):
                self._follows = node
                replication.send_fetch(node, key, replace(fetch, dedup=self._dedup_mark()))
            case do.SendAnswer(node, answer):
                replication.send_answer(node, key, answer)
            case do.AskRange(node, first, upto):
                replication.ask_range(node, key, first, upto)
            case do.SendRange(node, first, upto):
                replication.send_range(node, key, first, upto)

    def _lead(self, effect: do.Lead | do.Stop | do.Refuse | do.InheritedAcks) -> None:
        partition, name = self.partition, self.place.stream
        match effect:
            case do.Lead(epoch, next_offset):
                self.leading = True
                away_ns = self._host.clock.monotonic_ns() - self.led_ns
                partition.lead(epoch, next_offset, away_ns, followed=self.followed)
                self._takes = True
            case do.Stop(reason):
                _log.info("leadership_lost", stream=name, partition=self.place.partition,
                          epoch=self.epoch, reason=reason.value)  # fmt: skip
                self.leading, self.subscribed, self.has_led = False, False, True
                self.led_ns = self._host.clock.monotonic_ns()
                partition.follow(pausing=reason is do.StopReason.LEASE_ENDED)
                self._host.on_stop(self)
            case do.Refuse(reason):
                partition.publish_queue.decline(REFUSALS[reason])
                self._takes = True
            case do.InheritedAcks(first, upto):
                self._host.spawn(self._answer_inherited(first, upto, self.epoch))

    def _change_log(self, effect: _LogChange) -> None:
        partition = self.partition
        match effect:
            case do.AppendFetched():
                partition.append_fetched(self._fetched, alone=self._fetched_alone)
            case do.SaveHighWatermark(offset, agreed_epoch):
                partition.writer.submit(Note(offset, agreed_epoch, durable=True))
            case do.Patch(first, upto, _, cuts):
                partition.writer.submit(Patch(first, upto, tuple(self._patching), cuts))
            case do.BeginEpoch():
                if self.followed or not partition.writer.begin_epoch_here(effect):
                    partition.writer.submit(effect)
            case do.Truncate() | do.Reset() | do.DeleteBefore():
                partition.writer.submit(effect)

    def _notify(self, effect: do.ReleaseLeadership | do.Electable | do.Tell) -> None:
        where = {"stream": self.place.stream, "partition": self.place.partition}
        match effect:
            case do.ReleaseLeadership(epoch, reason):
                if epoch > self._host.resignations.get(self.key, 0):  # it says so again and again
                    self._host.resignations[self.key] = epoch
                    _log.warning("leadership_released", **where, epoch=epoch, reason=reason)
                    self._host.look()
            case do.Electable(ineligible, reason):
                self._ineligible = ineligible
                if ineligible:
                    _log.warning("replica_ineligible", **where, reason=reason)
                else:
                    _log.warning("replica_eligible", **where, reason=reason)
                self._host.look()
            case do.Tell(finding, first, upto):
                self.findings[finding] += 1
                found = {"finding": finding.name.lower(), "meaning": finding.value}
                _log.error("replica_finding", **where, **found, first=first, upto=upto)

    async def _rebuild_dedup(self, event: on.Truncated | on.WasReset) -> None:
        self._rebuilding = True
        try:
            await self.partition.remember_anew()
        except (LogdError, OSError) as error:
            self.partition.fail(f"what it stored cannot be read: {error}")
            return
        finally:
            self._rebuilding = False
        self.handle(event)

    # The leader's dedup state.

    def dedup_saved(self) -> None:
        self.handle(on.DedupSaved())

    def _dedup_mark(self) -> DedupMark:
        if self._rebuilding:
            return DedupMark(OFFSET_MAX, 0, saved=False)
        return self.partition.dedup_mark()

    def _ask_dedup(self, leader: NodeId) -> None:
        if not self._copying:
            self._copying = True
            self._host.spawn(self._copy_dedup(leader))

    async def _copy_dedup(self, leader: NodeId) -> None:
        """Fetch the leader's dedup state; if that fails now, the core asks again."""
        partition, checksum = self.partition, self.partition.intake.dedup.checksum
        checksum.kept_from = self.high_watermark + 1
        where = {"stream": self.place.stream, "partition": self.place.partition, "peer": leader}
        try:
            memory = await self._host.replication.fetch_dedup(leader, self.key, self.epoch)
            async with asyncio.timeout(_COPIED_S):
                await partition.wait_until(memory.offset - 1)
            if partition.closed or self._follows != leader or self._rebuilding:
                return
            if await partition.install_dedup(memory):
                _log.info("dedup_state_copied", **where, offset=memory.offset,
                          ids=len(memory.ids[0]), producers=len(memory.producers[0]))  # fmt: skip
        except (LogdError, TimeoutError) as error:
            reason = str(error) or f"records up to it did not come within {_COPIED_S:g} s"
            _log.info("dedup_state_copy_failed", **where, reason=reason)
        finally:
            checksum.kept_from = None
            self._copying = False

    async def _answer_inherited(self, first: int, upto: int, epoch: int) -> None:
        config = self.partition.stream.config
        acks = await asyncio.to_thread(inherited_acks, self.log, first, upto, config)
        if self.leading and self.epoch == epoch:
            self.partition.publish_queue.inherited(acks)

    def _forget_leader(self) -> None:
        if self._follows is not None:
            self._host.replication.forget(self._follows, self.key)
            self._follows = None

    def _arm(self, now_ns: int) -> None:
        """Wake when something is due; a timer that would come earlier stays.

        At the end of the lease the node ticks all its replicas.
        """
        due_ns = self._replica.next_deadline_ns(now_ns, lease=False)
        if due_ns is None or (self._timer is not None and self._armed_ns <= due_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ns = due_ns
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(due_ns - now_ns, 0) / 1e9, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.tick()


def _check_whole(log: CommitLog, epochs: EpochFile) -> None:
    """Check that the only copy of a partition has lost nothing that it surely had.

    Raises:
        CorruptError: The log ends below the beginning of an epoch.
    """
    for number, begun in epochs.entries[-1:]:
        if begun > log.end_offset:  # what lay below was durable when the epoch began
            message = f"epoch {number} began at offset {begun}, the log ends at {log.end_offset}"
            raise CorruptError(f"{message}: records have been lost", where=str(log.directory))


def _spans(frames: list[Frame]) -> tuple[Span, ...]:
    return tuple(Span(h.base_offset, h.next_offset, h.leader_epoch) for h, _ in frames)


def view_of(stream: StreamRecord, partition: PartitionRecord) -> LeaderAndIsr:
    """The view of one partition."""
    return LeaderAndIsr(
        incarnation=stream.incarnation,
        version=partition.version,
        leader_epoch=partition.leader_epoch,
        leader=None if partition.leader is None else NodeId(partition.leader),
        isr=frozenset(map(NodeId, partition.isr)),
        replicas=tuple(map(NodeId, partition.replicas)),
        observers=frozenset(map(NodeId, partition.observers)),
        min_isr=stream.min_isr,
        read_only=stream.options.read_only,
        unclean_epoch=partition.unclean_epoch,
        joined={NodeId(one.node): one.version for one in partition.joined},
    )


def streams_of(command: Command, result: Result) -> set[str]:
    """Names of the streams whose records a command may have changed."""
    match command:
        case ChangeIsr():
            return {change.basis.stream for change in command.changes}
        case ElectLeaders():
            return {election.basis.stream for election in command.elections}
        case RegisterNode() | RemoveNode():
            pass
        case _ if hasattr(command, "stream"):
            return {command.stream}
        case _ if hasattr(command, "config"):
            return {command.config.name}
        case _ if hasattr(command, "basis"):
            return {command.basis.stream}
        case _:
            pass
    parts = result.results if isinstance(result, Each) else (result,)
    return {key.stream for part in parts if isinstance(part, Done) for key in part.partitions}

"""The controller and the group coordinator of one node: give the pure cores clock, log and network.

Every node sends heartbeats to the one that leads the metadata group, and holds its lease by the
answers. On that node the controller decides who leads which partition, and proposes it.

The coordinator of consumer groups on one node: gives the pure core its clock and its log.

It runs beside the controller, where the metadata group is led, and learns of the same terms and
commands.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, assert_never

import structlog
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.logd.cluster.metadata_group import MetadataGroup
from penstock.logd.controller.controller import (
    Answer,
    BecameController,
    CommandApplied,
    Controller,
    ControllerEvent,
    HeartbeatReceived,
    LostController,
    ProposalDropped,
    Propose,
    RebalanceAsked,
    UncleanElectionAsked,
)
from penstock.logd.controller.controller import Tick as ControllerTick
from penstock.logd.controller.group_messages import MemberAnswer, MemberBeat
from penstock.logd.controller.groups import (
    AnswerMember,
    BeatReceived,
    BecameCoordinator,
    GroupCommandApplied,
    GroupCoordinator,
    GroupEvent,
    GroupProposalDropped,
    LostCoordinator,
    MemberLeft,
    ProposeGroup,
    Tick,
)
from penstock.logd.controller.liveness import (
    NS_PER_MS,
    Answered,
    BeatNow,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRefusal,
    LeaseBegun,
    LeaseEnded,
    LeaseEvent,
    NodeLease,
    PartitionReport,
    SendHeartbeat,
    Timing,
)
from penstock.logd.controller.liveness import Tick as LeaseTick
from penstock.logd.errors import LogdError, RefusedError, UnavailableError
from penstock.logd.metadata.codec import read_as, read_document, write_document
from penstock.logd.metadata.commands import Command, PutGroup, encode_command
from penstock.logd.metadata.records import PartitionKey
from penstock.logd.metadata.state import Refused, Result
from penstock.logd.raft import BusyError, NotLeaderError
from penstock.logd.raft.node import LostError
from penstock.logd.replication.events import NodeId

_AGAIN_S: Final = 0.05
"""Seconds until a change may be proposed again that the metadata group did not take."""

_log = structlog.get_logger()


class GroupCoordinatorService:
    """Used on the event loop.

    Args:
        group: The state, and the way into its log.
        drift_percent: Percent by which a member's monotonic clock may run slower.
        clock: Its monotonic time goes on while the machine sleeps.

    Attributes:
        coordinator: Decides; idle where the metadata group is not led.
    """

    def __init__(self, group: MetadataGroup, drift_percent: int, clock: Clock) -> None:
        self.coordinator = GroupCoordinator(drift_percent=drift_percent)
        self._group = group
        self._clock = clock
        self._proposed: dict[int, PutGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def close(self) -> None:
        """Decide nothing any more."""
        self._closed = True
        self._arm()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self, elected_ns: int) -> None:
        """This node decides from now on; everything from before its election is applied."""
        self._decide(BecameCoordinator(self._group.state, elected_ns))

    def end(self) -> None:
        """A term is over; told before the next one begins, too."""
        self._proposed.clear()
        self._decide(LostCoordinator())

    def on_applied(self, command: Command, result: Result) -> None:
        """A command was applied to the state."""
        number = next((n for n, found in self._proposed.items() if found == command), None)
        if number is not None:
            del self._proposed[number]
        self._decide(GroupCommandApplied(command, result, number))

    def hear(self, beat: MemberBeat) -> MemberAnswer:
        """Answer a member's heartbeat.

        Raises:
            UnavailableError: It gets no answer now.
        """
        answer = self._decide(BeatReceived(beat, self._group.member.lease_end_ns))
        if answer is None:
            raise UnavailableError("the coordinator gives no answer now")
        return answer

    def leave(self, group: str, member: str) -> None:
        """A member has stopped reading and wants to be none."""
        self._decide(MemberLeft(group, member))

    def _decide(self, event: GroupEvent) -> MemberAnswer | None:
        """Hand an event to the coordinator; the answer, if it was a heartbeat."""
        answer = None
        for effect in self.coordinator.handle(event, self._clock.monotonic_ns()):
            match effect:
                case ProposeGroup(number, command):
                    self._proposed[number] = command
                    self._spawn(self._propose(number, command))
                case AnswerMember(given):
                    answer = given
                case _:
                    assert_never(effect)
        self._arm()
        return answer

    async def _propose(self, number: int, command: PutGroup) -> None:
        try:
            await self._group.member.propose(encode_command(command))
        except (NotLeaderError, LostError, BusyError, RefusedError) as error:
            _log.warning("group_proposal_dropped", group=command.group, reason=str(error))
            await asyncio.sleep(_AGAIN_S)
            if self._proposed.pop(number, None) is not None:
                self._decide(GroupProposalDropped(number))
        except UnavailableError as error:  # nobody knows: a new coordinator will see
            _log.warning("group_proposal_unanswered", group=command.group, reason=str(error))

    def _arm(self) -> None:
        """Wake when the coordinator is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self.coordinator.next_deadline_ns()
        if not self._closed and due_ns is not None:
            delay_s = max(0, due_ns - self._clock.monotonic_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._decide, Tick())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


HEARTBEAT: Final = "heartbeat"
"""The request with which a node says that it is there."""

_ANSWER_PARTS: Final = {"lease": HeartbeatAnswer, "refused": HeartbeatRefusal}


class Standing(Protocol):
    """State that a node reports in its heartbeats."""

    def reports(self, *, full: bool) -> tuple[PartitionReport, ...]:
        """Return the states of replicas: those that changed since the last report, or all."""
        ...

    def unreachable(self) -> bool: ...

    def on_lease(self, *, held: bool) -> None:
        """The lease has begun, or has ended."""
        ...

    def on_unregistered(self) -> None:
        """The controller does not know this process: register again."""
        ...


class Process(Struct, frozen=True, kw_only=True):
    """Identity of this process."""

    node: NodeId
    storage: str
    boot: str


class _Unanswered(Struct, frozen=True):
    """A heartbeat under way."""

    heartbeat: Heartbeat
    ns: int
    forget: Callable[[], None]


class ControllerService:
    """One node's heartbeats and, where it leads the metadata group, the controller.

    Args:
        me: This process.
        timing: The same on every node.
        group: The state, and the way to the node that leads it.
        standing: State that this node reports.
        clock: Its monotonic time goes on while the machine sleeps.

    Attributes:
        controller, lease: The cores.
        coordinating: The coordinator of consumer groups, beside the controller.
    """

    def __init__(
        self,
        me: Process,
        timing: Timing,
        group: MetadataGroup,
        standing: Standing,
        clock: Clock,
    ) -> None:
        self.controller = Controller(timing)
        self.lease = NodeLease(timing)
        self.coordinating = GroupCoordinatorService(group, timing.drift_percent, clock)
        self._me = me
        self._lease_ns = timing.lease_ms * NS_PER_MS
        self._group = group
        self._standing = standing
        self._clock = clock
        self._full = True
        self._proposed: dict[int, Command] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered: dict[int, _Unanswered] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._elected_ns: int | None = None
        self._closed = self._looking = False

    @property
    def leads(self) -> bool:
        """True while this node's lease holds."""
        return self.lease.is_valid(self._clock.monotonic_ns())

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._beat(LeaseTick())

    async def close(self) -> None:
        """Send no more heartbeats and decide nothing."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for sent in self._unanswered.values():
            sent.forget()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.coordinating.close()

    def on_leader(self, leader: NodeId | None) -> None:
        """Another node leads the metadata group, as far as this one knows."""
        self.coordinating.end()
        if leader == self._me.node:
            self._elected_ns = self._clock.monotonic_ns()
            self._spawn(self._take_over(self._elected_ns))
        else:
            self._elected_ns = None
            self._proposed.clear()
            self._decide(LostController())
        if leader is not None:
            self.look()

    def on_applied(self, command: Command, result: Result) -> None:
        """A command was applied to the state."""
        number = next((n for n, found in self._proposed.items() if found == command), None)
        if number is not None:
            del self._proposed[number]
        self._decide(CommandApplied(command, result, number))
        self.coordinating.on_applied(command, result)
        if self._group.leader == self._me.node:  # it costs no message to say what is applied here
            self.look()

    def on_restored(self) -> None:
        """The whole state is another one; only a node that does not lead is told so."""
        self._decide(LostController())
        self.coordinating.end()

    def answer(self, body: bytes) -> bytes:
        """Answer another node's heartbeat."""
        where = "heartbeat"
        heartbeat = read_as(Heartbeat, read_document(body, where=where), where=where)
        return _encode_answer(self._receive_heartbeat(heartbeat))

    def look(self) -> None:
        """Something that heartbeats tell has changed in a way that cannot wait."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._beat_now)

    def rebalance(self) -> None:
        """Even out leaderships and replicas now, if this node decides."""
        self._decide(RebalanceAsked())

    def force(self, key: PartitionKey) -> Refused | None:
        """Elect what is there, whatever it lacks; a refusal: why not, or not now."""
        objection = self.controller.objection(key, self._clock.monotonic_ns())
        if objection is None:
            self._decide(UncleanElectionAsked(key))
        return objection

    async def _take_over(self, elected_ns: int) -> None:
        """Be the controller once everything from before the election is applied."""
        while self._elected_ns == elected_ns:
            try:
                await self._group.member.read()
            except UnavailableError:
                await asyncio.sleep(self._lease_ns / 1e10)
                continue
            if self._elected_ns == elected_ns:
                _log.info("controller_elected", node=self._me.node)
                self._decide(BecameController(self._group.state, elected_ns))
                self.coordinating.begin(elected_ns)
            return

    def _receive_heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer | HeartbeatRefusal:
        event = HeartbeatReceived(heartbeat, self._group.member.lease_end_ns)
        found = self._decide(event)
        assert found is not None, "the controller answers every heartbeat"
        return found

    def _decide(self, event: ControllerEvent) -> HeartbeatAnswer | HeartbeatRefusal | None:
        """Hand an event to the controller; the answer, if it was a heartbeat."""
        answer = None
        for effect in self.controller.handle(event, self._clock.monotonic_ns()):
            match effect:
                case Propose(number, command):
                    self._proposed[number] = command
                    self._spawn(self._propose(number, command))
                case Answer(_, given):
                    answer = given
                case _:
                    assert_never(effect)
        self._arm()
        return answer

    async def _propose(self, number: int, command: Command) -> None:
        try:
            await self._group.member.propose(encode_command(command))
        except (NotLeaderError, LostError, BusyError) as error:
            _log.info("proposal_dropped", command=type(command).__name__, reason=str(error))
            if self._proposed.pop(number, None) is not None:
                self._decide(ProposalDropped(number))
        except LogdError as error:  # nobody knows: a new controller will see
            _log.warning("proposal_unanswered", command=type(command).__name__, reason=str(error))

    def _beat_now(self) -> None:
        self._looking = False
        if not self._closed:
            self._beat(BeatNow())

    def _beat(self, event: LeaseEvent) -> None:
        """Hand an event to the lease, and do what follows."""
        for effect in self.lease.handle(event, self._clock.monotonic_ns()):
            match effect:
                case SendHeartbeat(sequence):
                    self._send(self._heartbeat(sequence))
                case LeaseBegun():
                    self._standing.on_lease(held=True)
                case LeaseEnded():
                    self._standing.on_lease(held=False)
                case _:
                    assert_never(effect)
        self._arm()

    def _heartbeat(self, sequence: int) -> Heartbeat:
        full, self._full = self._full, False
        return Heartbeat(
            node=self._me.node,
            storage=self._me.storage,
            boot=self._me.boot,
            sequence=sequence,
            applied_index=self._group.state.index,
            reports=self._standing.reports(full=full),
            full=full,
            deaf=self._standing.unreachable(),
        )

    def _send(self, heartbeat: Heartbeat) -> None:
        """Send it at once: of an event loop that is busy each turn costs a part of the lease."""
        leader, now_ns = self._group.leader, self._clock.monotonic_ns()
        for sequence, sent in list(self._unanswered.items()):
            if now_ns - sent.ns >= self._lease_ns:  # there is no lease left in it
                del self._unanswered[sequence]
                sent.forget()
                self._note_unanswered(sent.heartbeat, "no answer in time")
        if leader is None:
            self._note_unanswered(heartbeat, "no node leads the metadata group")
        elif leader == self._me.node:
            self._take_answer(self._receive_heartbeat(heartbeat))
        else:
            then = partial(self._answered, heartbeat)
            try:
                forget = self._group.mesh.call(leader, HEARTBEAT, write_document(heartbeat), then)
            except LogdError as error:
                self._note_unanswered(heartbeat, str(error))
            else:
                self._unanswered[heartbeat.sequence] = _Unanswered(heartbeat, now_ns, forget)

    def _answered(self, heartbeat: Heartbeat, answer: bytes | LogdError) -> None:
        self._unanswered.pop(heartbeat.sequence, None)
        if self._closed:
            return
        try:
            if isinstance(answer, LogdError):
                raise answer
            found = _decode_answer(answer)
        except LogdError as error:
            self._note_unanswered(heartbeat, str(error))
        else:
            self._take_answer(found)

    def _note_unanswered(self, heartbeat: Heartbeat, reason: str) -> None:
        """Have the reports of an unanswered heartbeat sent again."""
        self._full = self._full or heartbeat.full or bool(heartbeat.reports)
        _log.debug("heartbeat_failed", sequence=heartbeat.sequence, reason=reason)

    def _take_answer(self, answer: HeartbeatAnswer | HeartbeatRefusal) -> None:
        self._full = self._full or answer.send_full
        if answer.boot != self._me.boot:
            return
        match answer:
            case HeartbeatAnswer():
                self._beat(Answered(answer.sequence, answer.lease_ms))
            case HeartbeatRefusal(reason="register"):
                self._standing.on_unregistered()
            case HeartbeatRefusal():
                pass

    def _arm(self) -> None:
        """Wake when the next of both is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        due = [self.lease.next_deadline_ns()]
        decide_ns = self.controller.next_deadline_ns()
        if decide_ns is not None:
            due.append(decide_ns)
        delay_s = max(0, min(due) - self._clock.monotonic_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self.lease.next_deadline_ns() <= now_ns:
            self._beat(LeaseTick())
        decide_ns = self.controller.next_deadline_ns()
        if decide_ns is not None and decide_ns <= now_ns:
            self._decide(ControllerTick(self._group.member.lease_end_ns))
        self._arm()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _encode_answer(answer: HeartbeatAnswer | HeartbeatRefusal) -> bytes:
    name = "lease" if isinstance(answer, HeartbeatAnswer) else "refused"
    return write_document({name: answer})


def _decode_answer(data: bytes) -> HeartbeatAnswer | HeartbeatRefusal:
    where = "answer to a heartbeat"
    document = read_document(data, where=where)
    for name, kind in _ANSWER_PARTS.items():
        if name in document:
            found: HeartbeatAnswer | HeartbeatRefusal = read_as(kind, document[name], where=where)
            return found
    raise UnavailableError(f"{where}: of a kind that this node does not know")

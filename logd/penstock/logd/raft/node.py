"""One node's part in a Raft group, running: gives the pure core its clock, disk and network.

Everything is decided by `penstock.logd.raft.Raft`, on the event loop. What it wants durable is
written by one thread, in order; what piles up while one sync runs is synced together next.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, assert_never

import msgspec
import structlog
from msgspec import Struct

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock
from penstock.logd.errors import HaltCause, LogdError, UnavailableError
from penstock.logd.raft import (
    Accepted,
    Apply,
    ChangeMembership,
    Effect,
    Entry,
    EntryKind,
    Event,
    Halt,
    Halted,
    Ignored,
    LeaderChanged,
    Membership,
    MembershipChange,
    MembershipChanged,
    Message,
    MustHalt,
    Persist,
    Persisted,
    Propose,
    Raft,
    Read,
    ReadReady,
    Received,
    Refused,
    Restore,
    Send,
    Snapshot,
    SnapshotTaken,
    SnapshotWanted,
    Started,
    TransferLeadership,
    Woke,
)
from penstock.logd.replication.events import NodeId


def merge_steps(steps: Iterable[Persist]) -> list[Persist]:
    """Merge steps into as few as leave the same state; each snapshot begins a new one.

    Args:
        steps: Steps in order, at least one.

    Returns:
        Steps to be made durable in order; the last one's number stands for all.
    """
    merged: list[Persist] = []
    for step in steps:
        if not merged or step.snapshot is not None:
            merged.append(step)
            continue
        last = merged[-1]
        merged[-1] = Persist(
            number=step.number,
            hard_state=step.hard_state or last.hard_state,
            snapshot=last.snapshot,
            installed=last.installed,
            entries=_replaced(last.entries, step.entries),
        )
    return merged


def _replaced(entries: tuple[Entry, ...], later: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Replace the entries at and after the first of the later ones."""
    if not later:
        return entries
    first = later[0].index
    return (*(entry for entry in entries if entry.index < first), *later)


class OutOfSpaceError(OSError):
    """There was no space, and nothing was promised: the same may be made durable again, later."""


class Storage(Protocol):
    """A member's disk."""

    def persist(self, effect: Persist) -> None:
        """Make all of it durable; called on a thread.

        Raises:
            OutOfSpaceError: It may be called again with the same.
            OSError: It is unknown what is durable.
        """
        ...


class StateMachine(Protocol):
    """State machine of the group. Called on the event loop, in the order of the log."""

    def apply(self, index: int, command: bytes) -> Any:
        """Apply a committed command; what it returns goes to the proposer here.

        Raises:
            LogdError: It is not understood; the member takes no further part.
        """
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state.

        Raises:
            LogdError: It is not understood.
        """
        ...

    def snapshot(self) -> bytes:
        """The state as it is."""
        ...


class Hooks(Struct):
    """Told on the event loop, while the core is not to be called.

    Attributes:
        send: Takes a message to another member; it may be lost.
        on_leader: Told the term and who leads, as far as known.
        on_membership: Told the members in force, committed or not.
        on_stalled: Told that the disk has no space; the member goes on when it has some.
    """

    send: Callable[[Message], None]
    on_leader: Callable[[int, NodeId | None], None] = lambda _term, _leader: None
    on_membership: Callable[[Membership, bool], None] = lambda _membership, _committed: None
    on_stalled: Callable[[], None] = lambda: None


_SPACE_WAIT_MIN_S: Final = 0.5
_SPACE_WAIT_MAX_S: Final = 8.0
"""Seconds between two tries to write where there was no space; they double."""

_log = structlog.get_logger()


class LostError(UnavailableError):
    """Another leader took over before the proposal was committed: it was not done and never is."""


class MemberCounts(Struct):
    """Counters of a member.

    Attributes:
        syncs: Writes made durable.
        ignored: Messages that were not for it.
    """

    applied: int = 0
    syncs: int = 0
    ignored: int = 0


class _Proposed(Struct):
    term: int
    answer: asyncio.Future[Any]


class _Asked(Struct):
    """Unanswered requests to the core by tag, and proposals by index."""

    answers: dict[int, asyncio.Future[Any]] = msgspec.field(default_factory=dict)
    proposed: dict[int, _Proposed] = msgspec.field(default_factory=dict)
    last_tag: int = 0

    def new(self) -> tuple[int, asyncio.Future[Any]]:
        self.last_tag += 1
        answer = self.answers[self.last_tag] = asyncio.get_running_loop().create_future()
        return self.last_tag, answer


class Member:
    """Takes part in a group as long as it runs. Used on the event loop.

    Args:
        raft: The core.
        storage: Storage from which `raft` was recovered.
        machine: The state; it is as it was made.
        hooks: The network, and who wants to know.
        clock: Monotonic.

    Attributes:
        counts: Counters for telemetry.
        halted: Why it takes no part any more; None while it does.
        stalled: Why nothing can be made durable now; it is tried again and again.
    """

    def __init__(
        self, raft: Raft, storage: Storage, machine: StateMachine, hooks: Hooks, clock: Clock
    ) -> None:
        self.counts = MemberCounts()
        self.halted: Halt | None = None
        self.stalled = ""
        self._raft = raft
        self._storage = storage
        self._machine = machine
        self._hooks = hooks
        self._clock = clock
        self._asked = _Asked()
        self._events: deque[Event] = deque()
        self._stepping = False
        self._unwritten: list[Persist] = []
        self._wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._applied = 0

    @property
    def leader(self) -> NodeId | None:
        """Leader, as far as this member knows; None: unknown."""
        return self._raft.leader

    @property
    def leads(self) -> bool:
        """True while this member is certainly the only leader."""
        return self.lease_end_ns > self._clock.monotonic_ns()

    @property
    def lease_end_ns(self) -> int:
        """Monotonic time until which it is certainly the only leader; 0 when it does not lead."""
        return self._raft.lease_end_ns

    @property
    def term(self) -> int:
        """Raft's term."""
        return self._raft.term

    @property
    def membership(self) -> Membership:
        """The members in force, as far as this one knows; none before a leader let it in."""
        return self._raft.memberships.current

    async def run(self) -> None:
        """Take part until cancelled; then those that wait get an error.

        When it returns the storage is not used any more.
        """
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="raft log") as writer:
                self._step(Started())
                while True:
                    await self._wanted.wait()
                    self._wanted.clear()
                    batch, self._unwritten = self._unwritten, []
                    await self._write(batch, writer)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._give_up(UnavailableError("the node stops"))

    def receive(self, message: Message) -> None:
        """Take a message of another member."""
        self._step(Received(message))

    def halt(self, halt: Halt) -> None:
        """Take no part from now on, until the process is started again."""
        self._step(MustHalt(halt))

    async def propose(self, command: bytes) -> Any:
        """Have a command applied; what the state machine returned here.

        Raises:
            NotLeaderError: Another member leads, or none; ask there.
            BusyError: Later.
            LostError: It was not done, and never will be.
            UnavailableError: It is unknown whether it is done.
        """
        tag, answer = self._asked.new()
        self._step(Propose(tag, command))
        return await answer

    async def change(self, change: MembershipChange) -> None:
        """Have the group's members changed.

        Raises:
            NotLeaderError, BusyError, LostError, UnavailableError: As `propose`.
            RefusedError: It cannot be done.
        """
        tag, answer = self._asked.new()
        self._step(ChangeMembership(tag, change))
        await answer

    async def read(self) -> None:
        """Wait until the state shows everything that was committed when this was called.

        Raises:
            NotLeaderError, BusyError: Not now.
        """
        tag, answer = self._asked.new()
        self._step(Read(tag))
        await answer

    async def transfer(self, target: NodeId) -> None:
        """Begin to hand the leadership over; `on_leader` tells when that is done.

        Raises:
            NotLeaderError, BusyError: Not now.
            RefusedError: The target cannot lead.
        """
        tag, answer = self._asked.new()
        self._step(TransferLeadership(tag, target))
        if answer.done():
            await answer
        self._asked.answers.pop(tag, None)

    async def _write(self, batch: list[Persist], writer: ThreadPoolExecutor) -> None:
        try:
            for effect in merge_steps(batch):
                await self._persist(effect, writer)
                self.counts.syncs += 1
        except (OSError, LogdError) as error:
            reason = f"the metadata's log cannot be written: {error}"
            self._step(MustHalt(Halt(HaltCause.STORAGE_FAILED, reason)))
            return
        self._step(Persisted(batch[-1].number))

    async def _persist(self, effect: Persist, writer: ThreadPoolExecutor) -> None:
        """Make a step durable, however long the disk has no space for it."""
        backoff = Backoff(_SPACE_WAIT_MIN_S, _SPACE_WAIT_MAX_S)
        while True:
            try:
                write = self._storage.persist
                await asyncio.get_running_loop().run_in_executor(writer, write, effect)
            except OutOfSpaceError as error:
                if not self.stalled:
                    _log.error("metadata_writes_stalled", reason=str(error))
                    self.stalled = str(error)
                reason = f"node {self._raft.config.node} has no space for the metadata: {error}"
                self._give_up(UnavailableError(f"{reason}; nobody knows whether it is done"))
                self._hooks.on_stalled()
                await asyncio.sleep(backoff.next_wait())
                continue
            if self.stalled:
                _log.info("metadata_writes_resumed")
                self.stalled = ""
            return

    def _step(self, event: Event) -> None:
        """Hand an event to the core and do what follows, one event after the other."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                now_ns = self._clock.monotonic_ns()
                for effect in self._raft.handle(self._events.popleft(), now_ns):
                    self._execute(effect)
        finally:
            self._stepping = False
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ns = self._raft.next_deadline_ns()
        if deadline_ns is not None:
            delay_s = max(0, deadline_ns - self._clock.monotonic_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._step, Woke())

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Persist():
                self._unwritten.append(effect)
                self._wanted.set()
            case Send(message):
                self._hooks.send(message)
            case Restore(snapshot):
                self._change_or_halt(lambda: self._restore(snapshot))
            case Apply(entries):
                self._change_or_halt(lambda: self._apply(entries))
            case Accepted(tag, index, term):
                self._accept(tag, index, term)
            case Refused(tag, error):
                _fail(self._asked.answers.pop(tag, None), error)
            case ReadReady(tag):
                _answer(self._asked.answers.pop(tag, None), None)
            case _:
                self._note(effect)

    def _note(
        self, effect: LeaderChanged | MembershipChanged | SnapshotWanted | Ignored | Halted
    ) -> None:
        match effect:
            case LeaderChanged(term, leader):
                self._hooks.on_leader(term, leader)
            case MembershipChanged(_, membership, committed):
                self._hooks.on_membership(membership, committed)
            case SnapshotWanted():
                self._events.append(SnapshotTaken(self._applied, self._machine.snapshot()))
            case Ignored(sender, reason):
                self.counts.ignored += 1
                _log.warning("raft_message_ignored", peer=sender, reason=reason)
            case Halted(halt):
                self._halt(halt)
            case _:
                assert_never(effect)

    def _change_or_halt(self, change: Callable[[], None]) -> None:
        """A node that does not understand what the others have done must not guess."""
        if self.halted:
            return
        try:
            change()
        except LogdError as error:
            self.halted = Halt(HaltCause.NOT_UNDERSTOOD, f"the metadata is not understood: {error}")
            self._events.append(MustHalt(self.halted))

    def _restore(self, snapshot: Snapshot) -> None:
        self._machine.restore(snapshot)
        self._applied = snapshot.index
        for index in [index for index in self._asked.proposed if index <= snapshot.index]:
            message = "the outcome went by in a snapshot: nobody knows whether it is done"
            _fail(self._asked.proposed.pop(index).answer, UnavailableError(message))

    def _apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            result = None
            if entry.kind is EntryKind.COMMAND:
                result = self._machine.apply(entry.index, entry.data)
            self._applied = entry.index
            self.counts.applied += 1
            proposed = self._asked.proposed.pop(entry.index, None)
            if proposed is None:
                continue
            if proposed.term == entry.term:
                _answer(proposed.answer, result)
            else:
                _fail(proposed.answer, _lost())

    def _accept(self, tag: int, index: int, term: int) -> None:
        answer = self._asked.answers.pop(tag)
        before = self._asked.proposed.get(index)
        if before is not None:  # of an earlier term: what is there now is another entry
            _fail(before.answer, _lost())
        self._asked.proposed[index] = _Proposed(term, answer)

    def _halt(self, halt: Halt) -> None:
        self.halted = halt
        _log.error(
            "metadata_member_halted",
            node=self._raft.config.node,
            cause=str(halt.cause),
            reason=halt.reason,
        )
        self._give_up(UnavailableError(f"this node takes no part in the metadata: {halt.reason}"))

    def _give_up(self, error: UnavailableError) -> None:
        waiting = [*self._asked.answers.values()]
        waiting += [proposed.answer for proposed in self._asked.proposed.values()]
        self._asked.answers.clear()
        self._asked.proposed.clear()
        for answer in waiting:
            _fail(answer, error)


def _lost() -> LostError:
    return LostError("another leader took over before it was committed; it is not done")


def _answer(waiting: "asyncio.Future[Any] | None", result: Any) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(result)


def _fail(waiting: "asyncio.Future[Any] | None", error: Exception) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_exception(error)
        waiting.exception()  # the caller may have gone

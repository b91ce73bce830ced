"""A node's part in the metadata group of `cluster_world`: the Raft core, its disk, what is asked.

The state machine is the real one; commands and snapshots go as bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.logd import raft as on
from penstock.logd.cluster.metadata_group import ClusterMachine
from penstock.logd.metadata.commands import ChangeIsr, Command, encode_command
from penstock.logd.metadata.state import ClusterState, Each, Result
from penstock.logd.raft import node
from penstock.logd.raft.messages import RaftConfig
from tests.sim.raft_checkers import Before
from tests.sim.stage import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.logd.metadata.state import Refused
    from penstock.logd.replication.events import NodeId
    from tests.sim.cluster_world import ClusterWorld
    from tests.sim.raft_storage import ModelStorage

ASKED_NS: Final = 60 * MS
"""After so long what was asked of another node is asked again."""


class Fate(Enum):
    """What became of a command that has no result."""

    AGAIN = "it is surely not done"
    UNKNOWN = "nobody knows"


Answer = Result | Fate


def raft_config(node: NodeId, *, disk: str) -> RaftConfig:
    """A fifth of the default times, and few entries between two snapshots."""
    return RaftConfig(
        node=node,
        group="sim",
        disk=disk,
        election_timeout_min_ns=80 * MS,
        election_timeout_max_ns=160 * MS,
        heartbeat_ns=20 * MS,
        append_bytes_max=2000,
        snapshot_chunk_bytes=2000,
        snapshot_entries=40,
        entries_kept=5,
    )


@dataclass(eq=False)
class Asked:
    """A command that any leader is to apply.

    Attributes:
        until_ns: When it is given up; None: never.
    """

    command: Command
    done: Callable[[Result | None], None]
    until_ns: int | None
    tries: int = 0
    over: bool = False


class GroupMember(ABC):
    """Of one machine; a crash ends what runs, and only `storage` stays.

    Attributes:
        rate: How fast its clock runs.
        life: Counts starts and ends; what belongs to an earlier one is gone.
        applied, chain, promised_ns: As the checkers of the group want them.
    """

    def __init__(self, world: ClusterWorld, name: NodeId, storage: ModelStorage) -> None:
        self.world, self.name, self.storage = world, name, storage
        self.rate = 1 + world.random.uniform(-0.04, 0.04)
        self.offset_ns = world.random.randrange(10**12)
        self.life = 0
        self.running = self.paused = False
        self.inbox: list[Callable[[], None]] = []

    def begin_group(self) -> None:
        """The process starts with what its disk holds."""
        seed = self.world.random.getrandbits(32)
        disk = f"disk{self.name}" if self.world.has_disk_ids else ""
        config = raft_config(self.name, disk=disk)
        self.raft = on.Raft(config, self.storage.recover(), Random(seed))
        self.machine = ClusterMachine(self.on_applied, self.on_restored)
        self.applied = self.chain = self.promised_ns = 0
        self.writing: deque[on.Persist] = deque()
        self.batch: deque[on.Persist] = deque()
        self.replies: dict[int, Callable[[Answer], None]] = {}
        self.proposed: dict[int, tuple[int, int]] = {}
        self.reading: dict[int, Callable[[bool], None]] = {}
        self._events: deque[on.Event] = deque()
        self._stepping = False
        self.tell(on.Started())

    def end_group(self) -> None:
        """The process ends; the disk finishes, tears or loses what it was given."""
        self.storage.crash(list(self.batch), self.world.random)
        for tag in (*self.replies, *self.reading):
            self.world.histories.failed(tag)

    @property
    def state(self) -> ClusterState:
        return self.machine.state

    # Time.

    def clock_ns(self) -> int:
        return self.offset_ns + int(self.world.now_ns * self.rate)

    def do(self, action: Callable[[], None]) -> None:
        """Act now; when the process is resumed, if it is stopped; never, if it is dead."""
        if self.paused:
            self.inbox.append(action)
        elif self.running:
            action()

    def later(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Act after a delay, unless this process is gone by then."""
        life = self.life
        self.world.at(delay_ns, lambda: self.do(action) if self.life == life else None)

    # What a shell does for the core.

    def tell(self, event: on.Event) -> None:
        """One event after the other."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                happened = self._events.popleft()
                before = Before.of(self.raft)
                effects = self.raft.handle(happened, self.clock_ns())
                self.world.checkers.check(self, before, happened, effects)
                for effect in effects:
                    self.act_on(effect)
        finally:
            self._stepping = False

    def act_on(self, effect: on.Effect) -> None:
        match effect:
            case on.Persist():
                self.writing.append(effect)
                self.write()
            case on.Send(message):
                received = on.Received(message)
                self.world.send(self.name, message.recipient, lambda m: m.tell(received))
            case on.Apply(entries):
                for entry in entries:
                    self.apply(entry)
            case on.Restore(snapshot):
                self.restore(snapshot)
            case on.SnapshotWanted():
                self.world.mark("snapshot taken")
                taken = on.SnapshotTaken(self.applied, self.machine.snapshot())
                self.later(self.world.random.randrange(20 * MS), lambda: self.tell(taken))
            case on.LeaderChanged(_, leader):
                self.on_leader(leader)
            case on.Accepted() | on.Refused() | on.ReadReady():
                self.answer(effect)
            case _:
                assert isinstance(effect, on.MembershipChanged | on.Ignored), effect

    def apply(self, entry: on.Entry) -> None:
        # The checkers know all entries of one effect already; the machine goes one by one.
        result: Result | None = None
        if entry.kind is on.EntryKind.COMMAND:
            result = self.machine.apply(entry.index, entry.data)
            self.world.was_applied(entry, self.state, result)
        term, tag = self.proposed.pop(entry.index, (0, 0))
        if tag:
            if term == entry.term:
                self.world.histories.written(tag, entry.index)
                self.reply(tag, result if result is not None else Fate.UNKNOWN)
            else:
                self.fail(tag, Fate.AGAIN)

    def restore(self, snapshot: on.Snapshot) -> None:
        self.world.mark("state restored")
        self.machine.restore(snapshot)
        self.world.compare_state(snapshot.index, self.state)
        for index in [index for index in self.proposed if index <= snapshot.index]:
            self.fail(self.proposed.pop(index)[1], Fate.UNKNOWN)

    def answer(self, effect: on.Accepted | on.Refused | on.ReadReady) -> None:
        match effect:
            case on.Accepted(tag, index, term):
                before = self.proposed.get(index)
                self.proposed[index] = (term, tag)
                if before is not None:
                    self.fail(before[1], Fate.AGAIN)
            case on.Refused(tag, error):
                self.world.mark(f"refused {type(error).__name__}")
                if tag in self.reading:
                    self.world.histories.failed(tag)
                    self.reading.pop(tag)(False)
                elif tag in self.replies:
                    self.fail(tag, Fate.AGAIN)
            case on.ReadReady(tag):
                self.world.histories.read(tag, self.applied)
                self.reading.pop(tag)(True)

    def fail(self, tag: int, fate: Fate) -> None:
        self.world.histories.failed(tag)
        self.reply(tag, fate)

    def reply(self, tag: int, answer: Answer) -> None:
        if tag in self.replies:
            self.replies.pop(tag)(answer)

    def write(self) -> None:
        """The disk takes one thing after another; what waits meanwhile is merged."""
        if self.writing and not self.batch:
            self.batch.extend(node.merge_steps(self.writing))
            self.writing.clear()
            self.sync()

    def sync(self) -> None:
        life = self.life
        delay_ns = self.world.random.randrange(MS // 10, self.world.disk_ms * MS)
        self.world.at(delay_ns, lambda: self.written() if self.life == life else None)

    def written(self) -> None:
        effect = self.batch.popleft()
        self.storage.persist(effect)
        if self.batch:
            self.sync()
            return
        self.write()
        self.do(lambda: self.tell(on.Persisted(effect.number)))

    # What is asked.

    def propose(self, command: Command, reply: Callable[[Answer], None]) -> None:
        """Have a command applied, if this member leads."""
        if isinstance(command, ChangeIsr):
            refused = [self.admit(command, number) for number in range(len(command.changes))]
            if any(refused):
                self.world.mark("expansion not admitted")
                reply(Each(results=tuple(one for one in refused if one is not None)))
                return
        tag = self.world.next_tag()
        self.replies[tag] = reply
        self.tell(on.Propose(tag, encode_command(command)))

    def read(self, reply: Callable[[bool], None]) -> None:
        """Have all that was committed before be applied here first."""
        tag = self.world.next_tag()
        self.reading[tag] = reply
        self.tell(on.Read(tag))

    def change(
        self,
        command: Command,
        done: Callable[[Result | None], None] = lambda _: None,
        *,
        within_ms: int | None = 500,
    ) -> None:
        """Have any leader apply a command; it may be done twice, or nobody may know."""
        until_ns = None if within_ms is None else self.clock_ns() + within_ms * MS
        self.attempt(Asked(command, done, until_ns))

    def attempt(self, asked: Asked) -> None:
        if asked.over:
            return
        if asked.until_ns is not None and self.clock_ns() >= asked.until_ns:
            asked.over = True
            asked.done(None)
            return
        asked.tries += 1
        life, number = self.life, asked.tries

        def answered(answer: Answer) -> None:
            if self.life == life:
                self.take_answer(asked, answer, number)

        leader = self.raft.leader
        if leader == self.name:
            self.propose(asked.command, answered)
            return
        # Who knows no leader yet, for it has not joined, asks anybody.
        name, to = self.name, leader or self.world.random.choice(sorted(self.world.members))
        self.world.send(
            name,
            to,
            lambda m: m.propose(
                asked.command,
                lambda answer: m.world.send(to, name, lambda _: answered(answer)),
            ),
        )
        self.later(ASKED_NS, lambda: self.attempt(asked) if asked.tries == number else None)

    def take_answer(self, asked: Asked, answer: Answer, number: int) -> None:
        if asked.over:
            return
        if isinstance(answer, Fate):
            if asked.tries == number:
                wait_ns = self.world.random.randrange(10 * MS, 30 * MS)
                self.later(wait_ns, lambda: self.attempt(asked))
            return
        asked.over = True
        asked.done(answer)

    # What other parts of the node do.

    @abstractmethod
    def on_leader(self, leader: NodeId | None) -> None:
        """Another one leads the group."""

    @abstractmethod
    def on_applied(self, command: Command, result: Result) -> None:
        """A command was applied."""

    @abstractmethod
    def on_restored(self) -> None:
        """The whole state is another one."""

    @abstractmethod
    def admit(self, command: ChangeIsr, number: int) -> Refused | None:
        """Why the controller does not let a change through."""

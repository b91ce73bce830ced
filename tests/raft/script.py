"""Raft scenarios as text: commands, and below each what came of it.

A case file is read from top to bottom. Lines that begin with `#` are prose. A command is a line;
what it printed stands below `----`, up to an empty line:

    propose a hello
    ----
    a accepts it as 3 of term 2

    deliver a->b
    ----
    a -> b t2 AppendRequest after 2/2: 1 entries, commit 2

`pytest --rewrite-cases` writes what was printed in place of what was expected; commit such a change
only if you can explain it.

To run the cases against another implementation, give `run_case` a factory of objects that are like
`RaftUnderTest`. The rest is the vocabulary of `penstock.logd.raft.messages` and `messages`: an
adapter translates where the other one has its own. `test_cases.py` is the example.

Nothing happens by itself. The clock moves by `wait`, messages by `deliver`, disks by `persist`;
`settle` does the last two until nothing is left to do. Members of the cases always
draw the longest election timeout, 800 ms; promises not to vote end after 400 ms.

    start a b c [join=d,e]      members of a new group, and nodes that may join it; settings of
                                `RaftConfig` may follow, as in `snapshot_entries=4`
    wait a 400                  a's clock moves by so many ms, and a looks at it
    pass 400                    everybody's does
    fail a 150                  a's clock moves by so many ms, and its disk fails
    campaign a                  a's clock moves to its deadline
    elect a                     500 ms pass, a campaigns, all settles; prints nothing
    deliver [a->b] [AppendRequest]      messages that wait arrive: all, of a link, of a kind
    drop [a->b] [AppendRequest]         they are lost
    persist [a]                 what the disk was told becomes durable
    settle                      persist and deliver until nothing waits; prints no messages
    cut a                       nothing comes or goes; `join a` ends it
    crash a                     a stops; what was not persisted is lost
    wipe a                      its disk is emptied meanwhile
    restart a                   and starts again
    propose a text              also: read a, transfer a b, change a add|promote|demote|remove b
    snapshot a                  a's applied state is written down
    status                      a line for each member
    log a                       a's entries
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from penstock.logd.errors import HaltCause
from penstock.logd.raft import (
    Accepted,
    AddLearner,
    Apply,
    ChangeMembership,
    Demote,
    Effect,
    Entry,
    Event,
    Halt,
    Halted,
    Ignored,
    LeaderChanged,
    MembershipChanged,
    Message,
    MustHalt,
    Persist,
    Persisted,
    Promote,
    Propose,
    RaftConfig,
    Read,
    ReadReady,
    Received,
    Recovered,
    Refused,
    Remove,
    Restore,
    Send,
    SnapshotTaken,
    SnapshotWanted,
    Started,
    TransferLeadership,
    Woke,
    initial_state,
    membership_of,
)
from penstock.logd.raft.messages import MILLISECOND
from penstock.logd.replication.events import NodeId
from tests.raft.words import message_words, status_words
from tests.sim.raft_storage import ModelStorage

CHANGES: dict[str, type[AddLearner | Promote | Demote | Remove]] = {
    "add": AddLearner,
    "promote": Promote,
    "demote": Demote,
    "remove": Remove,
}
SETTLE_STEPS_MAX = 200


class RaftUnderTest(Protocol):
    """One member of a group, as the cases see it."""

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take an event; see `penstock.logd.raft.messages`."""
        ...

    def next_deadline_ns(self) -> int | None:
        """When the clock has something for it."""
        ...

    def status(self) -> dict[str, Any]:
        """`role`, `term`, `vote`, `leader`, `last` (index), `commit`, `voters`, `learners`."""
        ...

    def entries(self) -> Iterable[Entry]:
        """Those that are not compacted."""
        ...


MakeRaft = Callable[[RaftConfig, Recovered], RaftUnderTest]


@dataclass(eq=False)
class Member:
    """A member with its disk, its state machine (the commands applied) and its clock."""

    raft: RaftUnderTest
    storage: ModelStorage
    now_ns: int = 0
    writing: list[Persist] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    applied: int = 0


class RaftScript:
    """Runs the commands of one case.

    Args:
        make_raft: What is tested.
    """

    def __init__(self, make_raft: MakeRaft) -> None:
        self._make_raft = make_raft
        self._members: dict[NodeId, Member] = {}
        self._down: dict[NodeId, ModelStorage] = {}
        self._cut: set[NodeId] = set()
        self._waiting: list[Message] = []
        self._config = RaftConfig(node=NodeId(""), group="cases", snapshot_chunk_bytes=16)
        self._lines: list[str] = []

    def run(self, command: str) -> list[str]:
        """Run a command; what it printed."""
        verb, *words = command.split()
        self._lines = []
        getattr(self, f"_do_{verb}")(*words)
        return self._lines or ["nothing"]

    # Commands.

    def _do_start(self, *words: str) -> None:
        names = [word for word in words if "=" not in word]
        options: dict[str, str] = dict(word.split("=", 1) for word in words if "=" in word)
        joining = [name for name in options.pop("join", "").split(",") if name]
        numbers = {key: int(value) for key, value in options.items()}
        self._config = replace(self._config, **numbers)
        for name in names:
            self._start(NodeId(name), ModelStorage.of(initial_state(membership_of(names))))
        for name in joining:
            self._start(NodeId(name), ModelStorage())

    def _do_wait(self, name: str, milliseconds: str) -> None:
        self._members[NodeId(name)].now_ns += int(milliseconds) * MILLISECOND
        self._tell(NodeId(name), Woke())

    def _do_fail(self, name: str, milliseconds: str) -> None:
        self._members[NodeId(name)].now_ns += int(milliseconds) * MILLISECOND
        self._tell(NodeId(name), MustHalt(Halt(HaltCause.STORAGE_FAILED, "the disk failed")))

    def _do_campaign(self, name: str) -> None:
        member = self._members[NodeId(name)]
        deadline = member.raft.next_deadline_ns()
        assert deadline is not None
        member.now_ns = max(member.now_ns, deadline)
        self._tell(NodeId(name), Woke())

    def _do_deliver(self, *which: str) -> None:
        for message in self._take(which):
            lost = {message.sender, message.recipient} & self._cut
            there = message.recipient in self._members and not lost
            self._lines.append(message_words(message) + ("" if there else " (lost)"))
            if there:
                self._tell(message.recipient, Received(message))

    def _do_drop(self, *which: str) -> None:
        self._lines += [message_words(message) + " (dropped)" for message in self._take(which)]

    def _do_persist(self, *names: str) -> None:
        for name in names or sorted(self._members):
            member = self._members[NodeId(name)]
            writing, member.writing = member.writing, []
            for effect in writing:
                member.storage.persist(effect)
                self._tell(NodeId(name), Persisted(effect.number))

    def _do_pass(self, milliseconds: str) -> None:
        for name in sorted(self._members):
            self._do_wait(name, milliseconds)

    def _do_elect(self, name: str) -> None:
        self._do_pass("500")
        self._do_campaign(name)
        self._do_settle()
        self._lines = []

    def _do_settle(self) -> None:
        for _ in range(SETTLE_STEPS_MAX):
            if not self._waiting and not any(m.writing for m in self._members.values()):
                return
            self._do_persist()
            self._do_deliver()
            self._lines = [line for line in self._lines if " -> " not in line]
        self._lines.append(f"not settled after {SETTLE_STEPS_MAX} rounds")

    def _do_cut(self, name: str) -> None:
        self._cut.add(NodeId(name))

    def _do_join(self, name: str) -> None:
        self._cut.remove(NodeId(name))

    def _do_crash(self, name: str) -> None:
        self._down[NodeId(name)] = self._members.pop(NodeId(name)).storage

    def _do_wipe(self, name: str) -> None:
        self._down[NodeId(name)] = ModelStorage()

    def _do_restart(self, name: str) -> None:
        self._start(NodeId(name), self._down.pop(NodeId(name)))

    def _do_propose(self, name: str, *text: str) -> None:
        self._tell(NodeId(name), Propose(1, " ".join(text).encode()))

    def _do_read(self, name: str) -> None:
        self._tell(NodeId(name), Read(1))

    def _do_transfer(self, name: str, target: str) -> None:
        self._tell(NodeId(name), TransferLeadership(1, NodeId(target)))

    def _do_change(self, name: str, kind: str, node: str) -> None:
        self._tell(NodeId(name), ChangeMembership(1, CHANGES[kind](NodeId(node))))

    def _do_snapshot(self, name: str) -> None:
        member = self._members[NodeId(name)]
        self._tell(NodeId(name), SnapshotTaken(member.applied, "|".join(member.state).encode()))

    def _do_status(self) -> None:
        for name in sorted(self._members):
            member = self._members[name]
            self._lines.append(f"{name}: {status_words(member.raft.status(), member.applied)}")

    def _do_log(self, name: str) -> None:
        for entry in self._members[NodeId(name)].raft.entries():
            text = entry.data.decode() or entry.kind.name.lower()
            self._lines.append(f"{entry.index} of term {entry.term}: {text}")

    # Parts.

    def _start(self, name: NodeId, storage: ModelStorage) -> None:
        raft = self._make_raft(replace(self._config, node=name), storage.recover())
        self._members[name] = Member(raft, storage)
        self._tell(name, Started())

    def _take(self, which: Iterable[str]) -> list[Message]:
        """Messages that wait and are meant: `a->b`, `a->`, `->b`, or the name of a body."""
        taken = [message for message in self._waiting if _is_meant(message, which)]
        self._waiting = [message for message in self._waiting if message not in taken]
        return taken

    def _tell(self, name: NodeId, event: Event) -> None:
        member = self._members[name]
        for effect in member.raft.handle(event, member.now_ns):
            self._act(name, member, effect)

    def _act(self, name: NodeId, member: Member, effect: Effect) -> None:
        match effect:
            case Persist():
                member.writing.append(effect)
            case Send(message):
                self._waiting.append(message)
            case Apply(entries):
                for entry in entries:
                    member.applied = entry.index
                    text = entry.data.decode() or entry.kind.name.lower()
                    member.state.append(text)
                    self._lines.append(f"{name} applies {entry.index}: {text}")
            case Restore(snapshot):
                member.applied = snapshot.index
                member.state = snapshot.data.decode().split("|")
                self._lines.append(f"{name} restores the state after {snapshot.index}")
            case _:
                self._tell_of(name, effect)

    def _tell_of(self, name: NodeId, effect: Effect) -> None:
        match effect:
            case Accepted(_, index, term):
                text = f"accepts it as {index} of term {term}"
            case Refused(_, error):
                text = f"refuses: {error}"
            case ReadReady():
                text = "answers a read"
            case LeaderChanged(term, leader):
                text = f"follows {leader or 'nobody'} in term {term}"
                text = f"leads term {term}" if leader == name else text
            case MembershipChanged(_, membership, committed):
                text = f"{membership.encode().decode()}{'' if committed else ' (not committed)'}"
            case SnapshotWanted():
                text = "wants a snapshot"
            case Ignored(_, reason):
                text = f"ignores a message {reason}"
            case Halted(halt):
                text = f"halts: {halt.reason}"
            case _:
                raise AssertionError(effect)
        self._lines.append(f"{name} {text}")


def _is_meant(message: Message, which: Iterable[str]) -> bool:
    for word in which:
        sender, arrow, recipient = word.partition("->")
        if arrow and not (sender in ("", message.sender) and recipient in ("", message.recipient)):
            return False
        if not arrow and type(message.body).__name__ != word:
            return False
    return True


def run_case(path: Path, make_raft: MakeRaft) -> str:
    """A case's text with what its commands print now."""
    script = RaftScript(make_raft)
    out: list[str] = []
    skipping = False
    for line in path.read_text().splitlines():
        skipping = line == "----" or (skipping and line != "")
        if skipping:
            continue
        out.append(line)
        if line and not line.startswith("#"):
            out += ["----", *script.run(line)]
    return "\n".join(out) + "\n"

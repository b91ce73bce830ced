"""A Raft group whose voters lose their disks, and come back under their names as if they were new.

Each disk has an id, which the group notes. A lost one is a dead voter: fewer than a majority are
lost, and the others go on without them. What the lost disks held at the end stands for what was
acknowledged on them; nothing that a disk without it says may count.
"""

from typing_extensions import override

from penstock.logd.errors import HaltCause
from penstock.logd.raft import (
    ChangeMembership,
    EntryKind,
    Membership,
    NoteDisks,
    initial_state,
    membership_of,
)
from penstock.logd.raft.messages import MILLISECOND
from penstock.logd.raft.raft import Leader, majority
from penstock.logd.replication.events import NodeId
from tests.sim.raft_group import MakeStorage
from tests.sim.raft_storage import ModelStorage, SimStorage
from tests.sim.raft_world import RaftWorld


class LosingWorld(RaftWorld):
    """One run. Call `run`.

    Attributes:
        lost: The lost disks, by the name of their node.
        upgraded: Whether the group has a log from before disks had ids.
    """

    def __init__(self, seed: int, make_storage: MakeStorage = ModelStorage.of) -> None:
        super().__init__(seed, make_storage)
        self.lost: dict[NodeId, SimStorage] = {}
        self.upgraded = self.random.random() < 0.3
        self.registered: dict[NodeId, str] = {}
        self.checkers.storages = lambda: self.storages | self.lost
        self._changes = 0
        self._note_ms = self.random.choice((5, 50, 300))

    @override
    def run(self, faults_ms: int = 900) -> None:
        """Run a world of three to five initial members that lose disks."""
        first = [next(self._names) for _ in range(self.random.choice((3, 3, 4, 5)))]
        self.membership = membership_of(first)
        for name in first:
            self.storages[name] = self._make_storage(initial_state(self.membership))
            if not self.upgraded:
                self.disks[name] = f"{name}x0"
            self.start(name)
        if self.upgraded:
            self.at(0, self.act)
            self.run_until(200 * MILLISECOND)
            for name in first:
                self.crash(name)
                self.disks[name] = f"{name}x0"
                self.start(name)
        else:
            self.at(0, self.act)
        self.registered = dict(self.disks)
        self.at(self._note_ms * MILLISECOND, self.note)
        self.at(0, self.lose_sometimes)
        self.run_until(self.clock[0] + faults_ms * MILLISECOND)
        self._events = [e for e in self._events if e[2] != self.lose_sometimes]
        self.heal()

    def note(self) -> None:
        """The leader has the registered disks noted, as a node of a cluster does."""
        for name in sorted(self.nodes):
            raft = self.nodes[name].raft
            if not isinstance(raft.role, Leader):
                continue
            noting = raft.memberships.current.noting(self.registered)
            if noting != raft.memberships.current:
                tag = self.next_tag()
                self.histories.begin(tag)
                self.tell(self.nodes[name], ChangeMembership(tag, NoteDisks(noting.disks)))
        self.at(self._note_ms * MILLISECOND, self.note)

    def lose_sometimes(self) -> None:
        """A voter loses its disk, now and then, once every other one has a log with noted disks.

        Nobody can tell a disk that was lost before from one that never came.
        """
        self.at(self.random.randrange(150) * MILLISECOND, self.lose_sometimes)
        voters = sorted(self.membership.voters - self.lost.keys())
        leading = [node.name for node in self.leading() if node.name in voters]
        name = self.random.choice(leading if leading and self.random.random() < 0.5 else voters)
        others = self.membership.voters - {name}
        known = [o for o in others - self.lost.keys() if self.membership.disk_of(o)]
        if len(known) < majority(len(others) + 1) or not all(map(self.has_noted, others)):
            return
        self.marks["disk lost before it was noted"] += not self.membership.disk_of(name)
        self.marks["disk lost"] += 1
        self.marks["leader's disk lost"] += name in leading
        self.crash(name)
        self.lost[name] = self.storages[name]
        self.storages[name] = self._make_storage(
            initial_state(membership_of(self.membership.voters))
        )
        self.disks[name] = f"{name}x1"
        self.start(name)

    def has_noted(self, name: NodeId) -> bool:
        """Whether a voter's log notes disks, durably."""
        recovered = self.lost.get(name, self.storages[name]).recover()
        kept = [recovered.snapshot.membership] if recovered.snapshot else []
        entries = (e.data for e in recovered.entries if e.kind is EntryKind.MEMBERSHIP)
        return any(membership.disks for membership in (*kept, *map(Membership.decode, entries)))

    @override
    def converged(self, goal: int) -> bool:
        """Those that have their disks have everything; the others take no part, and know it."""
        apart = [self.nodes[name].raft.halted for name in self.lost]
        names = self.membership.members - self.lost.keys()
        assert {halt.cause for halt in apart if halt} <= {HaltCause.DATA_LOST}
        return all(apart) and all(self.nodes[name].applied >= goal for name in names)


def run_losing_seed(seed: int) -> LosingWorld:
    """Run one seed; the error says which."""
    world = LosingWorld(seed)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world

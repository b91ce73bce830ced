"""Members that run: proposals and outcomes, a disk that fails, a state that is not understood.

What the core decides is proven by simulation; here it gets real timers and a thread.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.errors import CorruptError, HaltCause, UnavailableError
from penstock.logd.raft import (
    AddLearner,
    BusyError,
    HaltedError,
    Message,
    NoteDisks,
    NotLeaderError,
    Persist,
    Raft,
    RaftConfig,
    Snapshot,
    initial_state,
    membership_of,
)
from penstock.logd.raft.node import Hooks, LostError, Member, OutOfSpaceError
from penstock.logd.replication.events import NodeId
from tests.sim.raft_storage import ModelStorage
from tests.support.waiting import wait_until_async

MS = 1_000_000
NAMES = [NodeId(name) for name in "abc"]


class Disk(ModelStorage):
    """Fails when the test says so."""

    broken = full = False

    @override
    def persist(self, effect: Persist) -> None:
        if self.full:
            raise OutOfSpaceError(28, "No space left on device")
        if self.broken:
            raise OSError(28, "No space left on device")
        super().persist(effect)


@dataclass
class Words:
    """The state: every word that was said."""

    said: list[str] = field(default_factory=list)

    def apply(self, index: int, command: bytes) -> str:
        if command == b"?":
            raise CorruptError("a question")
        self.said.append(command.decode())
        return f"{index}:{len(self.said)}"

    def restore(self, snapshot: Snapshot) -> None:
        self.said = snapshot.data.decode().split()

    def snapshot(self) -> bytes:
        return " ".join(self.said).encode()


class World:
    """Three members in one process; messages between them are lost when the test says so."""

    def __init__(self, disks: tuple[str, str, str] = ("", "", "")) -> None:
        self.cut: set[NodeId] = set()
        self.members: dict[NodeId, Member] = {}
        self.words = {name: Words() for name in NAMES}
        self.disks: dict[NodeId, Disk] = {}
        self.leaders: list[tuple[int, NodeId | None]] = []
        for number, name in enumerate(NAMES):
            config = RaftConfig(
                node=name, group="g", disk=disks[number], election_timeout_min_ns=300 * MS,
                election_timeout_max_ns=500 * MS, heartbeat_ns=50 * MS,
                snapshot_entries=20, entries_kept=5,
            )  # fmt: skip
            recovered = initial_state(membership_of(NAMES))
            disk = self.disks[name] = Disk(recovered.hard_state, None, [*recovered.entries])
            raft = Raft(config, recovered, random.Random(number))
            hooks = Hooks(self.send, lambda term, leader: self.leaders.append((term, leader)))
            self.members[name] = Member(raft, disk, self.words[name], hooks, SystemClock())

    def send(self, message: Message) -> None:
        recipient = self.members.get(message.recipient)
        if recipient is not None and not {message.sender, message.recipient} & self.cut:
            asyncio.get_running_loop().call_soon(recipient.receive, message)

    async def leader(self) -> Member:
        """The one that leads, once there is one that is not cut off."""

        def found() -> Iterator[Member]:
            return (m for name, m in self.members.items() if m.leads and name not in self.cut)

        await wait_until_async(lambda: any(found()))
        return next(found())

    async def say(self, word: str) -> str:
        """Propose to the leader, again when it is sure that nothing was done."""
        while True:
            try:
                return str(await (await self.leader()).propose(word.encode()))
            except (NotLeaderError, LostError):
                await asyncio.sleep(0)

    def name(self, member: Member) -> NodeId:
        return next(name for name, found in self.members.items() if found is member)


@asynccontextmanager
async def running(*disks: str) -> AsyncIterator[World]:
    world = World(disks) if len(disks) == 3 else World()
    tasks = [asyncio.create_task(member.run()) for member in world.members.values()]
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_is_proposed_is_applied_everywhere_in_one_order() -> None:
    async with running() as world:
        results = await asyncio.gather(*(world.say(f"w{n}") for n in range(100)))
        places = [int(result.split(":")[1]) for result in results]
        assert sorted(places) == list(range(1, 101))
        expected = [
            word for _, word in sorted(zip(places, (f"w{n}" for n in range(100)), strict=True))
        ]
        await wait_until_async(lambda: all(w.said == expected for w in world.words.values()))


async def test_a_follower_refuses_proposals_and_names_the_leader_but_reads() -> None:
    async with running() as world:
        await world.say("hello")
        leader = await world.leader()
        follower = next(m for m in world.members.values() if m is not leader)
        await wait_until_async(lambda: follower.leader == world.name(leader))
        with pytest.raises(NotLeaderError) as refused:
            await follower.propose(b"no")
        assert refused.value.leader == world.name(leader)
        await follower.read()
        assert world.words[world.name(follower)].said == ["hello"]


async def test_a_proposal_of_a_leader_that_is_cut_off_is_lost_when_it_returns() -> None:
    async with running() as world:
        old = await world.leader()
        world.cut = {world.name(old)}
        lost = asyncio.create_task(old.propose(b"lost"))
        new = await world.leader()
        assert new is not old
        await world.say("kept")
        world.cut = set()
        with pytest.raises(LostError):
            await lost
        await wait_until_async(lambda: world.words[world.name(old)].said == ["kept"])


async def test_one_that_was_away_for_long_is_brought_up_by_a_snapshot() -> None:
    async with running() as world:
        leader = await world.leader()
        away = next(name for name in NAMES if world.members[name] is not leader)
        world.cut = {away}
        for n in range(100):
            await world.say(f"w{n}")
        world.cut = set()
        await wait_until_async(lambda: len(world.words[away].said) == 100)
        assert world.disks[away].snapshot is not None


async def test_a_disk_that_fails_ends_one_members_part_and_nobody_elses() -> None:
    async with running() as world:
        leader = await world.leader()
        world.disks[world.name(leader)].broken = True
        with pytest.raises(UnavailableError, match="No space left"):
            await leader.propose(b"never")
        assert leader.halted is not None
        assert leader.halted.cause is HaltCause.STORAGE_FAILED
        assert "No space left" in leader.halted.reason
        with pytest.raises(HaltedError):
            await leader.propose(b"never")
        other = await world.leader()
        assert other is not leader
        await world.say("on")


async def test_a_disk_without_space_is_tried_again_and_who_waits_is_told() -> None:
    async with running() as world:
        leader = await world.leader()
        disk = world.disks[world.name(leader)]
        disk.full = True
        with pytest.raises(UnavailableError, match="nobody knows"):
            await leader.propose(b"maybe")
        assert "No space left" in leader.stalled
        disk.full = False
        await world.say("on")
        await wait_until_async(lambda: all("on" in words.said for words in world.words.values()))
        assert (leader.stalled, leader.halted) == ("", None)


async def test_a_command_that_is_not_understood_ends_the_part_of_who_does_not() -> None:
    async with running() as world:
        with pytest.raises(UnavailableError, match="a question"):
            await world.say("?")
        # A member that has it applies it, once one that has it leads and tells what is committed.
        # The last one may not have it: two that halted elect nobody.
        await wait_until_async(lambda: sum(bool(m.halted) for m in world.members.values()) >= 2)
        halted = [member.halted for member in world.members.values() if member.halted]
        assert {halt.cause for halt in halted} == {HaltCause.NOT_UNDERSTOOD}
        assert {halt.reason for halt in halted} == {"the metadata is not understood: a question"}


async def test_leadership_is_handed_over_and_members_are_added() -> None:
    async with running() as world:
        leader = await world.leader()
        target = next(name for name in NAMES if name != world.name(leader))
        await leader.transfer(target)
        await wait_until_async(lambda: world.members[target].leads)
        await world.members[target].change(AddLearner(NodeId("d")))
        with pytest.raises(NotLeaderError):
            await leader.transfer(target)


async def test_whoever_waits_when_the_node_stops_is_told() -> None:
    async with running() as world:
        leader = await world.leader()
        world.cut = {world.name(leader)}
        waiting = asyncio.create_task(leader.propose(b"w"))
        await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="stops"):
        await waiting


async def test_disks_are_noted_once_no_member_has_an_earlier_version() -> None:
    """Which could not read the entry; the first leader of a group notes those that voted for it."""
    note = NoteDisks(tuple(zip(NAMES, ("d0", "d1", "d2"), strict=True)))
    async with running("", "d1", "d2") as world:
        await world.say("one")
        await wait_until_async(lambda: all(words.said for words in world.words.values()))
        with pytest.raises(BusyError, match="has an earlier version"):
            await (await world.leader()).change(note)
    async with running("d0", "d1", "d2") as world:
        await world.say("one")
        leader = await world.leader()
        assert 2 <= len(leader.membership.disks) <= 3
        await leader.change(note)
        assert leader.membership.disks == note.disks

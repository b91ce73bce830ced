"""Consumer groups: coordinator and members, step by step; under faults they are simulated."""

import pytest

from penstock.logd.controller.group_messages import (
    GroupPosition,
    MemberAnswer,
    MemberBeat,
    admit_commit,
)
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
from penstock.logd.controller.liveness import NS_PER_MS
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.metadata.commands import DeleteStream
from penstock.logd.metadata.records import Group, GroupPartition, ReplicationOptions
from penstock.logd.metadata.state import Refused
from tests.support.cluster_state import Cluster, create

ALWAYS = 2**62
ONE = ReplicationOptions(replication_factor=1)


class Coordinated:
    """A coordinator whose proposals are applied at once, unless they are held. Milliseconds."""

    def __init__(self, partitions: int = 2) -> None:
        self.cluster = Cluster("n")
        self.incarnation = self.cluster.create("s", *[("n",)] * partitions, options=ONE)
        self.core = GroupCoordinator(drift_percent=10)
        self.now = 0
        self.sequence = 0
        self.holding = False
        self.held: list[ProposeGroup] = []
        self.tell(BecameCoordinator(self.cluster.state, 0))

    def tell(self, event: GroupEvent) -> MemberAnswer | None:
        answer = None
        for effect in self.core.handle(event, self.now * NS_PER_MS):
            if isinstance(effect, AnswerMember):
                answer = effect.answer
            elif self.holding:
                self.held.append(effect)
            else:
                self.apply(effect)
        return answer

    def apply(self, effect: ProposeGroup) -> None:
        result = self.cluster.apply(effect.command)
        self.tell(GroupCommandApplied(effect.command, result, effect.proposal))

    def beat(
        self,
        member: str,
        *held: int,
        epoch: int | None = None,
        joining: bool = False,
        streams: tuple[str, ...] = ("s",),
        session_ms: int = 1000,
        lease: int = ALWAYS,
    ) -> MemberAnswer | None:
        self.sequence += 1
        group = self.group
        beat = MemberBeat(
            group="g",
            member=member,
            streams=streams,
            session_ms=session_ms,
            sequence=self.sequence,
            joining=joining,
            epoch=(group.epoch if group else 0) if epoch is None else epoch,
            held=tuple(self.key(number) for number in held),
        )
        return self.tell(BeatReceived(beat, lease))

    def granted(self, member: str, *held: int, epoch: int | None = None) -> list[int]:
        answer = self.beat(member, *held, epoch=epoch)
        assert answer is not None
        assert answer.error == ""
        return [granted.partition.partition for granted in answer.granted]

    def key(self, number: int) -> GroupPartition:
        return GroupPartition("s", self.incarnation, number)

    @property
    def group(self) -> Group | None:
        return self.cluster.state.groups.get("g")


def test_a_member_joins_and_gets_everything() -> None:
    world = Coordinated()
    answer = world.beat("x", joining=True)
    assert answer is not None
    assert (answer.epoch, answer.granted, answer.error) == (0, (), "")
    assert world.granted("x") == [0, 1]


def test_what_goes_to_another_is_revoked_first() -> None:
    world = Coordinated()
    world.beat("x", joining=True)
    old = world.group
    assert old is not None
    world.beat("y", joining=True)
    assert world.granted("x", 0, 1, epoch=old.epoch) == [0]
    assert world.granted("y") == []
    assert world.granted("x", 0, epoch=old.epoch) == [0]  # does not know yet
    assert world.granted("y") == []
    world.beat("x", 0, 1)  # knows, and is not done
    assert world.granted("y") == []
    world.beat("x", 0)
    assert world.granted("y") == [1]


def test_a_release_is_of_no_use_in_a_later_epoch() -> None:
    """By then the partition may be read again by the one who let go of it."""
    world = Coordinated()
    world.beat("x", joining=True)
    world.beat("y", joining=True)
    world.holding = True
    world.tell(MemberLeft("g", "y"))
    world.beat("x", 0)  # lets go of what y was to have
    world.holding = False
    world.apply(world.held.pop())
    assert world.granted("x", 0) == [0, 1]
    world.beat("z", joining=True)
    assert world.granted("z") == []


def test_who_is_not_heard_is_fenced_and_what_it_read_goes_on() -> None:
    world = Coordinated()
    world.beat("x", joining=True)
    world.beat("y", joining=True)
    world.beat("x", 0)
    for now in (500, 1000, 1099):
        world.now = now
        world.tell(Tick())
        assert world.granted("y", 1) == [1]
    world.now = 1100
    assert world.core.next_deadline_ns() == 1100 * NS_PER_MS
    world.tell(Tick())
    assert world.granted("y", 1) == [0, 1]
    fenced = world.beat("x", 0)
    assert fenced is not None
    assert fenced.error == "FENCED"
    assert world.core.counts["fenced"] == 1


def test_one_who_is_being_fenced_is_not_answered() -> None:
    world = Coordinated()
    world.beat("x", joining=True)
    world.now, world.holding = 1100, True
    world.tell(Tick())
    (proposal,) = world.held
    assert world.beat("x", 0, 1) is None
    world.held.clear()
    world.tell(GroupProposalDropped(proposal.proposal))
    assert len(world.held) == 1  # it is still not heard
    assert world.beat("x", 0, 1) is None


def test_a_refused_change_is_not_proposed_again_at_once() -> None:
    world = Coordinated()
    world.holding = True
    world.beat("x", joining=True)
    (proposal,) = world.held
    world.held.clear()
    world.tell(GroupCommandApplied(proposal.command, Refused(code="NO", message=""), None))
    world.tell(GroupProposalDropped(proposal.proposal))
    world.tell(Tick())
    assert world.held == []
    assert world.core.next_deadline_ns() == 1000 * NS_PER_MS
    world.now = 1000
    world.tell(Tick())
    assert len(world.held) == 1
    assert world.core.counts["refused changes"] == 1


def test_who_leaves_is_no_member_at_once() -> None:
    world = Coordinated()
    world.beat("x", joining=True)
    world.beat("y", joining=True)
    world.tell(MemberLeft("g", "x"))
    assert world.granted("y") == [0, 1]
    world.tell(MemberLeft("g", "y"))
    assert world.group is None
    assert world.core.next_deadline_ns() is None


def test_a_new_coordinator_gives_a_full_session() -> None:
    world = Coordinated()
    world.beat("x", joining=True)
    world.tell(LostCoordinator())
    assert world.beat("x", 0, 1) is None
    world.now = 5000
    world.tell(BecameCoordinator(world.cluster.state, 5000 * NS_PER_MS))
    world.now = 6099
    world.tell(Tick())
    assert world.granted("x", 0, 1) == [0, 1]


def test_without_a_raft_lease_nobody_is_answered() -> None:
    world = Coordinated()
    assert world.beat("x", joining=True, lease=0) is None
    assert world.group is None


def test_streams_that_come_and_go_are_shared_out_and_let_go_of() -> None:
    world = Coordinated()
    world.beat("x", joining=True, streams=("s", "t"))
    command = create("t", ("n",), options=ONE)
    world.tell(GroupCommandApplied(command, world.cluster.apply(command)))
    answer = world.beat("x", 0, 1, streams=("s", "t"))
    assert answer is not None
    assert [granted.partition.stream for granted in answer.granted] == ["s", "s", "t"]
    delete = DeleteStream(stream="s", incarnation=world.incarnation)
    world.tell(GroupCommandApplied(delete, world.cluster.apply(delete)))
    answer = world.beat("x", 0, 1, streams=("s", "t"))
    assert answer is not None
    assert [granted.partition.stream for granted in answer.granted] == ["t"]
    assert world.group is not None
    assert [share.wanted for share in world.group.shares] == ["", "", "x"]
    world.beat("x", streams=("s", "t"))
    assert [share.partition.stream for share in world.group.shares] == ["t"]


def test_what_a_member_does_not_want_any_more_is_not_given_away_before_it_let_go() -> None:
    world = Coordinated()
    world.beat("x", joining=True)
    world.beat("x", 0, 1, streams=())
    world.beat("y", joining=True)
    assert world.granted("y") == []
    world.beat("x", streams=())
    assert world.granted("y") == [0, 1]


@pytest.mark.parametrize("session_ms", [999, 300_001])
def test_what_cannot_join_is_told(session_ms: int) -> None:
    world = Coordinated()
    for answer in (
        world.beat("x", joining=True, session_ms=session_ms),
        world.beat("x y", joining=True),
    ):
        assert answer is not None
        assert answer.error == "REFUSED"
        assert answer.message
    assert world.group is None


def test_a_group_that_would_be_too_large_is_refused() -> None:
    world = Coordinated(1024)
    for name in ("t", "u"):
        world.cluster.create(name, *[("n",)] * 1024, options=ONE)
    world.beat("x", joining=True, streams=("s", "t"))
    answer = world.beat("y", joining=True, streams=("u",))
    assert answer is not None
    assert (answer.error, "2048" in answer.message) == ("REFUSED", True)


# Positions.


def test_positions_never_go_back_and_carry_the_epoch() -> None:
    world = Coordinated(1)
    world.beat("x", joining=True)
    first = world.group
    assert first is not None

    def commit(member: str, offset: int, epoch: int, stored: GroupPosition | None) -> GroupPosition:
        return admit_commit(
            world.group,
            stored,
            member=member,
            partition=world.key(0),
            commit=GroupPosition(offset=offset, epoch=epoch),
        )

    stored = commit("x", 10, first.epoch, None)
    assert stored == GroupPosition(offset=10, epoch=first.epoch)
    with pytest.raises(RefusedError) as error:
        commit("x", 9, first.epoch, stored)
    assert error.value.code == "CURSOR_BEHIND"
    world.beat("y", joining=True)
    world.tell(MemberLeft("g", "x"))
    second = world.group
    assert second is not None
    with pytest.raises(RefusedError) as error:
        commit("x", 20, first.epoch, stored)
    assert error.value.code == "FENCED"
    taken = commit("y", 7, second.shares[0].epoch, stored)
    assert taken == GroupPosition(offset=10, epoch=second.shares[0].epoch)
    with pytest.raises(RefusedError):
        commit("x", 30, first.epoch, taken)
    with pytest.raises(UnavailableError):
        commit("y", 30, second.epoch + 1, taken)
    world.tell(MemberLeft("g", "y"))
    with pytest.raises(RefusedError):
        commit("y", 30, second.shares[0].epoch, taken)

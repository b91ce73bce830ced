"""The coordinator of consumer groups: runs where the controller runs.

- Members and who reads what are in the state and change by commands, each of which begins an epoch.
  Heartbeats are only noted here.
- A partition that is to go to another member is first left out of what its reader is answered. The
  reader finishes, lets go, and says so in a heartbeat that carries the epoch; then it is granted.
- A member that sends no heartbeat for its session, and the drift of the clocks, is fenced: it is no
  member any more and what it read goes to others at once. It has stopped by itself by then, for a
  member's session counts from the sending of what was answered. What it was in the middle of may
  still be done; its commits are refused.
- From the moment a command is proposed that fences a member, the member gets no answer.
- A new coordinator gives every member a full session from its election. It answers only while its
  lease as Raft leader holds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.logd.controller.group_messages import (
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    Assignment,
    MemberAnswer,
    MemberBeat,
)
from penstock.logd.controller.liveness import NS_PER_MS
from penstock.logd.errors import GroupError, RefusedError
from penstock.logd.limits import GROUP_MEMBERS_MAX, GROUP_PARTITIONS_MAX, GROUPS_MAX
from penstock.logd.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    NewShare,
    PutGroup,
    Release,
)
from penstock.logd.metadata.cursors import check_consumer
from penstock.logd.metadata.records import Group, GroupMember, GroupPartition, Share
from penstock.logd.metadata.state import ClusterState, Refused, Result


def assign(
    members: Iterable[GroupMember],
    partitions: Iterable[GroupPartition],
    previous: Mapping[GroupPartition, str],
) -> dict[GroupPartition, str]:
    """A member for every partition of whose stream a member wants to read.

    What `previous` says is kept where it can be. Between two members that want the same streams the
    counts differ by one at most; only what that takes changes hands.

    Args:
        members: Members of the group.
        partitions: Partitions of the streams that any of them wants.
        previous: Members that were to read them before.
    """
    wants = {member.id: frozenset(member.streams) for member in members}
    loads: dict[str, list[GroupPartition]] = {member: [] for member in sorted(wants)}
    left = []
    for partition in sorted(partitions):
        member = previous.get(partition, "")
        if partition.stream in wants.get(member, ()):
            loads[member].append(partition)
        else:
            left.append(partition)
    for partition in left:
        able = [member for member in loads if partition.stream in wants[member]]
        if able:
            loads[min(able, key=lambda member: len(loads[member]))].append(partition)
    while _even_out(loads, wants):
        continue
    return {partition: member for member, load in loads.items() for partition in load}


def _even_out(loads: dict[str, list[GroupPartition]], wants: Mapping[str, frozenset[str]]) -> bool:
    """Move a partition from a member to one that has at least two fewer; whether there was one."""
    by_load = sorted(loads, key=lambda member: len(loads[member]))
    for giver in reversed(by_load):
        for handler in by_load:
            if len(loads[giver]) - len(loads[handler]) < 2:
                break
            for partition in reversed(loads[giver]):
                if partition.stream in wants[handler]:
                    loads[giver].remove(partition)
                    loads[handler].append(partition)
                    return True
    return False


class BecameCoordinator(Struct, frozen=True):
    """This node became the coordinator, as in `BecameController`."""

    state: ClusterState
    elected_ns: int


class LostCoordinator(Struct, frozen=True):
    """This node coordinates nothing any more; told as `LostController`."""


class BeatReceived(Struct, frozen=True):
    """A member's heartbeat; `raft_lease_until_ns` as in `HeartbeatReceived`."""

    beat: MemberBeat
    raft_lease_until_ns: int


class MemberLeft(Struct, frozen=True):
    """A member has stopped reading and wants to be none."""

    group: str
    member: str


class GroupCommandApplied(Struct, frozen=True):
    """A command was applied; `proposal` is its number if it was proposed here."""

    command: Command
    result: Result
    proposal: int | None = None


class GroupProposalDropped(Struct, frozen=True):
    """A proposal is over: it was applied, or is not in the log and never will be.

    Not needed where `GroupCommandApplied` names the proposal.
    """

    proposal: int


class Tick(Struct, frozen=True):
    """The time that `next_deadline_ns` named has come."""


class ProposeGroup(Struct, frozen=True):
    """Propose a command; `GroupCommandApplied` or `GroupProposalDropped` follows."""

    proposal: int
    command: PutGroup


class AnswerMember(Struct, frozen=True):
    """Answer the heartbeat that was received last."""

    answer: MemberAnswer


GroupEvent: TypeAlias = (
    BecameCoordinator
    | LostCoordinator
    | BeatReceived
    | MemberLeft
    | GroupCommandApplied
    | GroupProposalDropped
    | Tick
)
GroupEffect: TypeAlias = ProposeGroup | AnswerMember


RETRY_NS: Final = 1000 * NS_PER_MS
"""Nanoseconds before a refused change is proposed again: the coordinator's view may be late."""


class _Watch(Struct):
    """The coordinator's state of a group.

    Attributes:
        last_beat_ns: Time of the last heartbeat of each member.
        joining: Members that are about to join.
        leaving: Members that have released everything.
        released: Partitions that members released and were not to read in `epoch`. In a later
            one they may be reading it again.
        epoch: The group's epoch at that time.
        retry_ns: Time before which no change is proposed: one was refused.
        proposal: The pending change.
        fencing: Members that the change removes.
    """

    last_beat_ns: dict[str, int] = msgspec.field(default_factory=dict)
    joining: dict[str, GroupMember] = msgspec.field(default_factory=dict)
    leaving: set[str] = msgspec.field(default_factory=set)
    released: dict[GroupPartition, Release] = msgspec.field(default_factory=dict)
    epoch: int = 0
    retry_ns: int = 0
    proposal: int | None = None
    fencing: frozenset[str] = frozenset()


class GroupCoordinator:
    """Present on every node, and idle where the metadata group is not led.

    Attributes:
        counts: Number of events by kind, for metrics.
    """

    def __init__(self, *, drift_percent: int) -> None:
        self._drift_percent = drift_percent
        self._state: ClusterState | None = None
        self._watches: dict[str, _Watch] = {}
        self._proposals = 0
        self._next_ns: int | None = None
        self.counts: Counter[str] = Counter()

    def next_deadline_ns(self) -> int | None:
        """Return when `Tick` is due, monotonic; None: this is not the coordinator."""
        return self._next_ns if self._state is not None else None

    def handle(self, event: GroupEvent, now_ns: int) -> list[GroupEffect]:
        """Take in what happened; what is to be done."""
        if isinstance(event, BecameCoordinator):
            return self._begin(event, now_ns)
        if isinstance(event, LostCoordinator):
            self._state = None
        return [] if self._state is None else self._follow(self._state, event, now_ns)

    def _follow(self, state: ClusterState, event: GroupEvent, now_ns: int) -> list[GroupEffect]:
        if isinstance(event, BeatReceived):
            return self._receive_heartbeat(state, event, now_ns)
        if isinstance(event, MemberLeft):
            self._watch(event.group).leaving.add(event.member)
            return self._decide(state, [event.group], now_ns)
        if isinstance(event, GroupCommandApplied):
            return self._take_in(state, event, now_ns)
        if isinstance(event, GroupProposalDropped):
            return self._settle(state, event.proposal, now_ns)
        due = self._next_ns is not None and now_ns >= self._next_ns
        return self._decide(state, [*self._watches], now_ns) if due else []

    def _begin(self, event: BecameCoordinator, now_ns: int) -> list[GroupEffect]:
        self._state = event.state
        since_ns = self._sessions_since(event, now_ns)
        self._watches = {
            group.name: _Watch(last_beat_ns={member.id: since_ns for member in group.members})
            for group in event.state.groups.values()
        }
        return self._decide(event.state, [*self._watches], now_ns)

    def _sessions_since(self, event: BecameCoordinator, now_ns: int) -> int:
        """Return the last time at which an earlier coordinator may have answered."""
        del now_ns
        return event.elected_ns

    def _watch(self, group: str) -> _Watch:
        return self._watches.setdefault(group, _Watch())

    # Members.

    def _receive_heartbeat(
        self, state: ClusterState, event: BeatReceived, now_ns: int
    ) -> list[GroupEffect]:
        beat = event.beat
        if not self._holds_raft_lease(event, now_ns):
            return []
        group = state.groups.get(beat.group)
        known = {} if group is None else {member.id: member for member in group.members}
        watch = self._watches.get(beat.group)
        if watch is not None and beat.member in watch.fencing | watch.leaving:
            return []
        if beat.member not in known:
            return self._join(state, beat, now_ns)
        watch = self._watch(beat.group)
        watch.last_beat_ns[beat.member] = now_ns
        wanted = GroupMember(id=beat.member, streams=beat.streams, session_ms=beat.session_ms)
        if known[beat.member] != wanted and not _cannot_join(beat):
            watch.joining[beat.member] = wanted
        assert group is not None
        self._release(group, watch, beat)
        effects = self._decide(state, [beat.group], now_ns)
        return [*effects, _answer(beat, epoch=group.epoch, granted=_granted(group, beat.member))]

    def _holds_raft_lease(self, event: BeatReceived, now_ns: int) -> bool:
        return now_ns < event.raft_lease_until_ns

    def _join(self, state: ClusterState, beat: MemberBeat, now_ns: int) -> list[GroupEffect]:
        if not beat.joining:
            self.counts["fenced beats"] += 1
            return [_answer(beat, error="FENCED", message="it is no member of the group")]
        message = _cannot_join(beat) or self._is_full(state, beat)
        if message:
            self.counts["refused joins"] += 1
            return [_answer(beat, error="REFUSED", message=message)]
        watch = self._watch(beat.group)
        watch.last_beat_ns[beat.member] = now_ns
        watch.joining[beat.member] = GroupMember(
            id=beat.member, streams=beat.streams, session_ms=beat.session_ms
        )
        return [*self._decide(state, [beat.group], now_ns), _answer(beat)]

    def _is_full(self, state: ClusterState, beat: MemberBeat) -> str:
        groups = state.groups.keys() | self._watches.keys()
        if beat.group not in groups and len(groups) >= GROUPS_MAX:
            return f"there are {GROUPS_MAX} groups already"
        group, watch = state.groups.get(beat.group), self._watches.get(beat.group, _Watch())
        members = {member.id for member in group.members} if group else set()
        if len(members | watch.joining.keys() | {beat.member}) > GROUP_MEMBERS_MAX:
            return f"the group has {GROUP_MEMBERS_MAX} members already"
        streams = set(beat.streams).union(*(one.streams for one in watch.joining.values()))
        streams = streams.union(*(member.streams for member in group.members) if group else ())
        if len(_partitions(state, streams)) > GROUP_PARTITIONS_MAX:
            return f"its streams have more than {GROUP_PARTITIONS_MAX} partitions"
        return ""

    def _release(self, group: Group, watch: _Watch, beat: MemberBeat) -> None:
        """Note what a member has let go of that is to go to another."""
        if beat.epoch != group.epoch:
            return  # it does not know yet
        if watch.epoch != group.epoch:
            watch.epoch, watch.released = group.epoch, {}
        held = set(beat.held)
        for share in group.shares:
            if share.owner == beat.member != share.wanted and share.partition not in held:
                watch.released[share.partition] = Release(
                    partition=share.partition, member=beat.member, epoch=share.epoch
                )

    # What was applied.

    def _take_in(
        self, state: ClusterState, event: GroupCommandApplied, now_ns: int
    ) -> list[GroupEffect]:
        effects: list[GroupEffect] = []
        if isinstance(event.command, PutGroup) and isinstance(event.result, Refused):
            self._hold_back(event.command.group, now_ns)
        if event.proposal is not None:
            effects += self._settle(state, event.proposal, now_ns)
        if isinstance(event.command, CreateStream | DeleteStream):
            effects += self._decide(state, [*self._watches], now_ns)
        return effects

    def _hold_back(self, group: str, now_ns: int) -> None:
        """Delay the next proposal for a group: it might be refused again."""
        self.counts["refused changes"] += 1
        if group in self._watches:
            self._watches[group].retry_ns = now_ns + RETRY_NS

    def _settle(self, state: ClusterState, proposal: int, now_ns: int) -> list[GroupEffect]:
        for name, watch in self._watches.items():
            if watch.proposal == proposal:
                watch.proposal, watch.fencing = None, frozenset()
                return self._decide(state, [name], now_ns)
        return []

    # Decisions.

    def _decide(self, state: ClusterState, names: Iterable[str], now_ns: int) -> list[GroupEffect]:
        effects: list[GroupEffect] = []
        for name in names:
            watch = self._watches.get(name)
            if watch is not None and watch.proposal is None and now_ns >= watch.retry_ns:
                command = self._change(state, name, watch, now_ns)
                if command is not None:
                    effects.append(self._propose(state, watch, command))
                elif name not in state.groups and not watch.joining:
                    del self._watches[name]
        self._next_ns = min(self._ends(state, now_ns), default=None)
        return effects

    def _propose(self, state: ClusterState, watch: _Watch, command: PutGroup) -> ProposeGroup:
        self._proposals += 1
        before = state.groups.get(command.group)
        present = {member.id for member in before.members} if before else set()
        watch.proposal = self._proposals
        watch.fencing = frozenset(present - {member.id for member in command.members})
        return ProposeGroup(self._proposals, command)

    def _change(
        self, state: ClusterState, name: str, watch: _Watch, now_ns: int
    ) -> PutGroup | None:
        """The command that a group needs now; None: none."""
        group = state.groups.get(name)
        if group is None or watch.epoch != group.epoch:
            watch.released = {}
        present = {member.id: member for member in group.members} if group else {}
        members = self._members(present, watch, now_ns)
        streams = {stream for member in members.values() for stream in member.streams}
        before = {share.partition: share for share in group.shares} if group else {}
        target = assign(
            members.values(),
            _partitions(state, streams),
            {partition: share.wanted for partition, share in before.items()},
        )
        # What no member wants any more is kept until its reader has let go of it.
        target = {**dict.fromkeys(before, ""), **target}
        shares = tuple(
            NewShare(partition=partition, wanted=wanted, owner=owner)
            for partition, wanted in sorted(target.items())
            if (owner := self._owner(before.get(partition), wanted, members, watch))
        )
        same = [(share.partition, share.wanted, share.owner) for share in shares] == [
            (share.partition, share.wanted, share.owner) for share in before.values()
        ]
        if members == present and same:
            return None
        return PutGroup(
            group=name,
            based_on=group.epoch if group else 0,
            members=tuple(members[id_] for id_ in sorted(members)),
            shares=shares,
            released=tuple(watch.released[key] for key in sorted(watch.released)),
        )

    def _members(
        self, present: dict[str, GroupMember], watch: _Watch, now_ns: int
    ) -> dict[str, GroupMember]:
        """Return the members from now on; forget completed joins and leaves."""
        watch.joining = {
            id_: member
            for id_, member in watch.joining.items()
            if present.get(id_) != member and id_ not in watch.leaving
        }
        watch.leaving &= present.keys()
        members = {**present, **watch.joining}
        for id_, member in list(members.items()):
            if id_ in watch.leaving:
                del members[id_]
            elif now_ns >= self._end_ns(watch, member):
                self.counts["fenced"] += id_ in present
                watch.joining.pop(id_, None)
                del members[id_]
        watch.last_beat_ns = {
            id_: watch.last_beat_ns[id_] for id_ in watch.last_beat_ns if id_ in members
        }
        return members

    def _owner(
        self,
        before: Share | None,
        wanted: str,
        members: dict[str, GroupMember],
        watch: _Watch,
    ) -> str:
        """Return the member that may be reading a partition from now on."""
        if before is None or before.owner is None or before.owner not in members:
            return wanted
        release = watch.released.get(before.partition)
        if release is not None and (release.member, release.epoch) == (before.owner, before.epoch):
            return wanted
        return before.owner

    def _end_ns(self, watch: _Watch, member: GroupMember) -> int:
        session_ns = member.session_ms * NS_PER_MS * (100 + self._drift_percent) // 100
        return watch.last_beat_ns.get(member.id, 0) + session_ns

    def _ends(self, state: ClusterState, now_ns: int) -> Iterable[int]:
        for name, watch in self._watches.items():
            group = state.groups.get(name)
            if now_ns < watch.retry_ns:
                yield watch.retry_ns
            elif watch.proposal is None:
                members = {one.id: one for one in group.members} if group else {}
                for member in {**members, **watch.joining}.values():
                    yield self._end_ns(watch, member)


def _partitions(state: ClusterState, streams: Iterable[str]) -> list[GroupPartition]:
    found = ((name, state.streams.get(name)) for name in streams)
    return [
        GroupPartition(name, stream.incarnation, number)
        for name, stream in found
        if stream is not None and stream.is_open
        for number in range(len(stream.partitions))
    ]


def _granted(group: Group, member: str) -> tuple[Assignment, ...]:
    return tuple(
        Assignment(share.partition, share.epoch)
        for share in group.shares
        if share.owner == member == share.wanted
    )


def _cannot_join(beat: MemberBeat) -> str:
    try:
        check_consumer(beat.group)
        check_consumer(beat.member)
    except RefusedError as error:
        return str(error)
    if not SESSION_MS_MIN <= beat.session_ms <= SESSION_MS_MAX:
        return f"session_ms {beat.session_ms}: {SESSION_MS_MIN} to {SESSION_MS_MAX}"
    return ""


def _answer(
    beat: MemberBeat,
    *,
    epoch: int = 0,
    granted: tuple[Assignment, ...] = (),
    error: GroupError = "",
    message: str = "",
) -> AnswerMember:
    answer = MemberAnswer(
        group=beat.group,
        member=beat.member,
        sequence=beat.sequence,
        epoch=epoch,
        granted=granted,
        error=error,
        message=message,
    )
    return AnswerMember(answer)

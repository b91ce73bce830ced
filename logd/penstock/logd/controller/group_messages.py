"""Messages of consumer groups, and a member's side: what it may read now, and until when.

Whether a member's commit of a position is taken, and what the position is then.

Positions carry the epoch in which the partition was granted to who commits. They never go back: a
member that was granted a partition later may commit less than one before it did, because that one
got further than its successor knew; then the position stays and takes on the epoch.

A member's side of a consumer group: what it may read now, and until when.

The session lasts until `session_ms` after the sending of the last heartbeat that was answered, by
the member's monotonic clock; the coordinator waits longer than that before it gives anything away.
What is to go to another member is finished and let go of first.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.logd.errors import GroupError, RefusedError, UnavailableError
from penstock.logd.metadata.records import Group, GroupPartition

_NS_PER_MS: Final = 1_000_000

SESSION_MS_MIN: Final = 1000
"""Milliseconds; a shorter session would end with every pause of a process."""

SESSION_MS_MAX: Final = 300_000
"""Milliseconds; what a dead member was reading waits that long for another."""


class MemberBeat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member is there. Sent several times a session.

    Attributes:
        member: Chosen at random for each membership.
        streams: Names of those it wants to read.
        session_ms: Without an answer for so long it reads nothing any more.
        sequence: Rises with each.
        joining: It has not been answered as a member yet.
        epoch: The group's epoch in the last answer; 0: there was none yet.
        held: Partitions that the member may be reading.
    """

    group: str
    member: str
    streams: tuple[str, ...]
    session_ms: int
    sequence: int
    joining: bool
    epoch: int
    held: tuple[GroupPartition, ...]


class Assignment(Struct, frozen=True, forbid_unknown_fields=True):
    """A partition that a member is to read; its commits carry the epoch."""

    partition: GroupPartition
    epoch: int


class MemberAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session lasts from the sending of that beat; these partitions and no others are read.

    Attributes:
        epoch: The group's epoch; 0: it is not a member yet.
    """

    group: str
    member: str
    sequence: int
    epoch: int
    granted: tuple[Assignment, ...] = ()
    error: GroupError = ""
    message: str = ""


class GroupPosition(Struct, frozen=True, kw_only=True):
    """The position of a group in a partition.

    Attributes:
        offset: The next record to be read.
        epoch: The epoch in which it was granted to the member that committed.
    """

    offset: int
    epoch: int


def admit_commit(
    group: Group | None,
    stored: GroupPosition | None,
    *,
    member: str,
    partition: GroupPartition,
    commit: GroupPosition,
) -> GroupPosition:
    """The position after a commit.

    Args:
        group: The group in the state of the node that stores positions, which may be behind.
        stored: The position there is.
        member: The member that commits.
        partition: The partition of the position.
        commit: The offset, with the epoch of the grant.

    Raises:
        RefusedError: `FENCED`: the partition was granted to another since; `CURSOR_BEHIND`.
        UnavailableError: This node does not know the grant yet.
    """
    if stored is not None and commit.epoch < stored.epoch:
        raise _fenced(member, partition)
    if group is None or commit.epoch > group.epoch:
        if group is None and stored is not None and commit.epoch <= stored.epoch:
            raise _fenced(member, partition)
        raise UnavailableError(f"epoch {commit.epoch} of the group is not known here yet")
    held = any(
        share.partition == partition and (share.owner, share.epoch) == (member, commit.epoch)
        for share in group.shares
    )
    if not held:
        raise _fenced(member, partition)
    if stored is None or commit.offset >= stored.offset:
        return commit
    if commit.epoch == stored.epoch:
        raise RefusedError(
            "CURSOR_BEHIND",
            f"{partition} is at {stored.offset} and does not go back to {commit.offset}",
            offset=stored.offset,
        )
    return GroupPosition(offset=stored.offset, epoch=commit.epoch)


def _fenced(member: str, partition: GroupPartition) -> RefusedError:
    return RefusedError("FENCED", f"{partition} is not {member[:80]}'s any more")


BEATS_PER_SESSION: Final = 5
"""Heartbeats sent in one session: four may be lost."""

UNANSWERED_MAX: Final = 16


class Tick(Struct, frozen=True):
    """The time that `next_deadline_ns` named has come."""


class Answered(Struct, frozen=True):
    """The coordinator has answered."""

    answer: MemberAnswer


class LetGo(Struct, frozen=True):
    """The reader has stopped reading a revoked partition and committed its position."""

    partition: GroupPartition


class SendBeat(Struct, frozen=True):
    """Send a heartbeat to the coordinator."""

    beat: MemberBeat


class Grant(Struct, frozen=True):
    """Read a partition from its committed position; commits carry the epoch."""

    partition: GroupPartition
    epoch: int


class Revoke(Struct, frozen=True):
    """Finish and commit what is being done with a partition, then tell by `LetGo`."""

    partition: GroupPartition


class Lost(Struct, frozen=True):
    """Stop reading at once: others may be reading these."""

    partitions: tuple[GroupPartition, ...]


class Ended(Struct, frozen=True):
    """The membership is over; join under a new id. Empty: fenced; else why joining is refused."""

    message: str


MemberEvent: TypeAlias = Tick | Answered | LetGo
MemberEffect: TypeAlias = SendBeat | Grant | Revoke | Lost | Ended


class Member:
    """One membership.

    Args:
        group: The group's name.
        member: An id that no other membership ever had.
        streams: Streams that the member wants to read.
        session_ms: `SESSION_MS_MIN` to `SESSION_MS_MAX`.
    """

    def __init__(
        self, group: str, member: str, streams: tuple[str, ...], *, session_ms: int
    ) -> None:
        self._group, self._member = group, member
        self._streams, self._session_ms = streams, session_ms
        self._session_ns = session_ms * _NS_PER_MS
        self._sent_ns: dict[int, int] = {}
        self._sequence = 0
        self._beat_ns = 0
        self._until_ns = 0
        self._epoch = 0
        self._held: dict[GroupPartition, int] = {}
        self._revoked: set[GroupPartition] = set()
        self._ended = False

    def reading(self, now_ns: int) -> Mapping[GroupPartition, int]:
        """Return the readable partitions, revoked ones too, with the epochs that commits carry."""
        return self._held if now_ns < self._until_ns else {}

    def next_deadline_ns(self) -> int | None:
        """Return when `Tick` is due, monotonic; None: the membership is over."""
        if self._ended:
            return None
        return min(self._beat_ns, self._until_ns) if self._held else self._beat_ns

    def handle(self, event: MemberEvent, now_ns: int) -> list[MemberEffect]:
        """Take in what happened; what is to be done."""
        if self._ended:
            return []
        effects: list[MemberEffect] = []
        if now_ns >= self._until_ns:
            effects += self._lose()
        if isinstance(event, Answered):
            return effects + self._answered(event.answer, now_ns)
        if isinstance(event, LetGo):
            if event.partition not in self._revoked:
                return effects
            self._revoked.discard(event.partition)
            self._held.pop(event.partition, None)
            self._beat_ns = now_ns
        if now_ns >= self._beat_ns:
            effects.append(self._beat(now_ns))
        return effects

    def _beat(self, now_ns: int) -> SendBeat:
        self._sequence += 1
        self._sent_ns[self._sequence] = now_ns
        if len(self._sent_ns) > UNANSWERED_MAX:
            del self._sent_ns[next(iter(self._sent_ns))]
        self._beat_ns = now_ns + self._session_ns // BEATS_PER_SESSION
        beat = MemberBeat(
            group=self._group,
            member=self._member,
            streams=self._streams,
            session_ms=self._session_ms,
            sequence=self._sequence,
            joining=self._epoch == 0,
            epoch=self._epoch,
            held=tuple(sorted(self._held)),
        )
        return SendBeat(beat)

    def _answered(self, answer: MemberAnswer, now_ns: int) -> list[MemberEffect]:
        sent_ns = self._sent_ns.pop(answer.sequence, None)
        if sent_ns is None or answer.member != self._member:
            return []
        if answer.error:
            self._ended = True
            fenced = answer.error == "FENCED"
            return [*self._lose(), Ended("" if fenced else answer.message)]
        until_ns = sent_ns + self._session_ns
        if answer.epoch < max(self._epoch, 1) or until_ns <= now_ns:
            return []  # from before what it knows, before it is a member, or too late
        self._until_ns = max(self._until_ns, until_ns)
        self._epoch = answer.epoch
        return self._follow({granted.partition: granted.epoch for granted in answer.granted})

    def _follow(self, granted: Mapping[GroupPartition, int]) -> list[MemberEffect]:
        effects: list[MemberEffect] = []
        for partition in sorted(self._held.keys() - granted.keys() - self._revoked):
            self._revoked.add(partition)
            effects.append(Revoke(partition))
        for partition in sorted(granted.keys() - self._held.keys()):
            self._held[partition] = granted[partition]
            effects.append(Grant(partition, granted[partition]))
        return effects

    def _lose(self) -> list[MemberEffect]:
        if not self._held:
            return []
        lost = tuple(sorted(self._held))
        self._held, self._revoked = {}, set()
        return [Lost(lost)]

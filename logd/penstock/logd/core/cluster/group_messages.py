"""What members of a consumer group and its coordinator tell each other."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.logd.core.cluster.records import GroupPartition

SESSION_MS_MIN: Final = 1000
"""Milliseconds; a shorter session would end with every pause of a process."""

SESSION_MS_MAX: Final = 300_000
"""Milliseconds; what a dead member was reading waits that long for another."""

GroupError: TypeAlias = Literal["", "FENCED", "REFUSED"]
"""`FENCED`: it is no member, or not any more; it may join under a new id. `REFUSED`: it cannot
join; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberBeat:
    """A member is there. Sent several times a session.

    Attributes:
        member: Chosen at random for each membership.
        streams: Names of those it wants to read.
        session_ms: Without an answer for so long it reads nothing any more.
        sequence: Rises with each.
        joining: It has not been answered as a member yet.
        epoch: Of the group, as it was last told; 0: not yet.
        held: What it may be reading.
    """

    group: str
    member: str
    streams: tuple[str, ...]
    session_ms: int
    sequence: int
    joining: bool
    epoch: int
    held: tuple[GroupPartition, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    """A partition that a member is to read; its commits carry the epoch."""

    partition: GroupPartition
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAnswer:
    """The session lasts from the sending of that beat; these partitions and no others are read.

    Attributes:
        epoch: Of the group; 0: it is not a member yet.
    """

    group: str
    member: str
    sequence: int
    epoch: int
    granted: tuple[Granted, ...] = ()
    error: GroupError = ""
    message: str = ""

"""What the api needs of consumer groups, and what each request about them does."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, NoReturn, Protocol

from pydantic import BaseModel, ConfigDict, Field

from penstock.logd.core.cluster.group_messages import MemberAnswer, MemberBeat
from penstock.logd.core.cluster.records import GroupPartition
from penstock.logd.core.cursors import check_consumer
from penstock.logd.core.metadata import check_stream_name
from penstock.logd.errors import RefusedError
from penstock.logd.fetch.stream_settings import parse
from penstock.logd.fetch.wire import Document
from penstock.logd.limits import GROUP_PARTITIONS_MAX, GROUP_STREAMS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """For metrics.

    Attributes:
        groups: Those with members, as this node knows them.
        members: Of all of them.
        counts: What this node did as their coordinator.
    """

    groups: int = 0
    members: int = 0
    counts: Mapping[str, int] = field(default_factory=Counter)


class Groups(Protocol):
    """Called on the event loop. A lone logd refuses everything with `NOT_CLUSTERED`."""

    async def beat(self, beat: MemberBeat) -> MemberAnswer:
        """Tell the coordinator that a member is there; its answer.

        Raises:
            RefusedError: `UNAVAILABLE`: it gives none now.
            UnavailableError: It cannot be reached in time.
        """

    async def leave(self, group: str, member: str) -> None:
        """Tell the coordinator that a member wants to be none.

        Raises:
            UnavailableError: It cannot be reached in time.
        """

    def describe(self, group: str | None = None) -> list[Document]:
        """One group, or all by name.

        Raises:
            RefusedError: `UNKNOWN_GROUP`.
        """

    def figures(self) -> GroupFigures:
        """How many there are; a lone logd has none."""


class LoneGroups:
    """As `Groups`, of a logd that is in no cluster."""

    def __init__(self, node: str) -> None:
        self._node = node

    async def beat(self, beat: MemberBeat) -> MemberAnswer:
        """Refused."""
        del beat
        self._refuse()

    async def leave(self, group: str, member: str) -> None:
        """Refused."""
        del group, member
        self._refuse()

    def describe(self, group: str | None = None) -> list[Document]:
        """Refused."""
        del group
        self._refuse()

    def figures(self) -> GroupFigures:
        """As `Groups`."""
        return GroupFigures()

    def _refuse(self) -> NoReturn:
        message = f"{self._node} is in no cluster: nobody coordinates consumer groups"
        raise RefusedError("NOT_CLUSTERED", message, node=self._node)


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    api: str
    id: int = 0


_Number = Annotated[int, Field(ge=0)]
_Numbers = Annotated[list[_Number], Field(max_length=GROUP_PARTITIONS_MAX)]


class _Held(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    stream: str
    incarnation: str
    partitions: _Numbers


class _Beat(_Request):
    group: str
    member: str
    streams: Annotated[list[str], Field(min_length=1, max_length=GROUP_STREAMS_MAX)]
    session_ms: int
    sequence: int
    joining: bool
    epoch: int
    held: Annotated[list[_Held], Field(max_length=GROUP_PARTITIONS_MAX)]


class _Leave(_Request):
    group: str
    member: str


class _List(_Request):
    group: str | None = None


class GroupApi:
    """Answers requests about consumer groups."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def beat(self, document: Document) -> Document:
        """A member's heartbeat."""
        request = parse(_Beat, document)
        check_consumer(request.group)
        check_consumer(request.member)
        for stream in request.streams:
            check_stream_name(stream)
        beat = MemberBeat(
            group=request.group,
            member=request.member,
            streams=tuple(request.streams),
            session_ms=request.session_ms,
            sequence=request.sequence,
            joining=request.joining,
            epoch=request.epoch,
            held=tuple(
                GroupPartition(held.stream, held.incarnation, number)
                for held in request.held
                for number in held.partitions
            ),
        )
        return {"answer": _describe(await self._groups.beat(beat))}

    async def leave(self, document: Document) -> Document:
        """A member's end."""
        request = parse(_Leave, document)
        await self._groups.leave(request.group, request.member)
        return {}

    async def show(self, document: Document) -> Document:
        """The groups there are."""
        return {"groups": self._groups.describe(parse(_List, document).group)}


def _describe(answer: MemberAnswer) -> Document:
    granted = [asdict(one.partition) | {"epoch": one.epoch} for one in answer.granted]
    return asdict(answer) | {"granted": granted}

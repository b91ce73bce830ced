"""Consumer groups of Liftbridge's clients, as members of logd's own groups.

A client joins, then asks for its assignments several times per timeout; each question is its
heartbeat. It has acted on an answer before it asks again, so what the last answer did not have, it
does not read any more: that is what its heartbeat to the coordinator says it holds. A node that has
given it no answer yet takes it to hold everything that it owns. So any node may be asked, and one
that is asked for the first time costs a round more.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

from penstock.logd.api.operations import Document
from penstock.logd.cluster.engine import ClusterGroups
from penstock.logd.cluster.streams import ClusterStreams
from penstock.logd.controller.group_messages import MemberAnswer, MemberBeat
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.publish import Context
from penstock.logd.limits import GROUP_STREAMS_MAX
from penstock.logd.metadata.cursors import check_consumer
from penstock.logd.metadata.records import GroupPartition
from penstock.logd.wire import logd_liftbridge_pb2 as wire

_JOIN_S: Final = 10.0
_AGAIN_S: Final = 0.05
_ANSWERS_MAX: Final = 10_000
"""Cached last answers; without one a member keeps for a round what it was to let go of."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """Last assignment that a member received here."""

    epoch: int
    granted: frozenset[GroupPartition]


class GroupService:
    """Answers members.

    Args:
        groups: The way to the coordinator.
        streams: Streams of the cluster.
        timeout_s: Seconds without a request after which a member leaves.
    """

    def __init__(self, groups: ClusterGroups, streams: ClusterStreams, *, timeout_s: float) -> None:
        self._groups = groups
        self._streams = streams
        self._timeout_s = timeout_s
        self._answered: OrderedDict[tuple[str, str], _Answered] = OrderedDict()
        self._sequence = 0

    async def join(
        self, request: wire.JoinConsumerGroupRequest, _: Context
    ) -> wire.JoinConsumerGroupResponse:
        """Make a consumer a member; on return it is one."""
        group, member = request.groupId, request.consumerId
        _check_names(group, member)
        streams = tuple(dict.fromkeys(request.streams))
        if not 1 <= len(streams) <= GROUP_STREAMS_MAX:
            text = f"streams: 1 to {GROUP_STREAMS_MAX} of them"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
        for stream in streams:
            self._streams.outline(stream)
        self._answered.pop((group, member), None)
        epoch = await self._until_member(group, member, streams)
        return wire.JoinConsumerGroupResponse(
            coordinator=self.coordinator(),
            epoch=epoch,
            consumerTimeout=int(self._timeout_s * 1e9),
            coordinatorTimeout=int(self._timeout_s * 1e9),
        )

    async def leave(
        self, request: wire.LeaveConsumerGroupRequest, _: Context
    ) -> wire.LeaveConsumerGroupResponse:
        """End a membership; what it read goes to others."""
        group, member = request.groupId, request.consumerId
        _check_names(group, member)
        self._described(group, member)
        await self._groups.leave(group, member)
        self._answered.pop((group, member), None)
        return wire.LeaveConsumerGroupResponse()

    async def assignments(
        self, request: wire.FetchConsumerGroupAssignmentsRequest, _: Context
    ) -> wire.FetchConsumerGroupAssignmentsResponse:
        """Return the partitions that a member may read now."""
        group, member = request.groupId, request.consumerId
        _check_names(group, member)
        document, described = self._described(group, member)
        before = self._answered.get((group, member))
        owned = {
            GroupPartition(share["stream"], share["incarnation"], share["partition"])
            for share in document["partitions"]
            if share["member"] == member
        }
        answer = await self._beat(
            group,
            member,
            tuple(described["streams"]),
            epoch=0 if before is None else before.epoch,
            held=owned if before is None else owned & before.granted,
        )
        granted = frozenset(one.partition for one in answer.granted)
        self._remember((group, member), _Answered(answer.epoch, granted))
        return wire.FetchConsumerGroupAssignmentsResponse(
            epoch=answer.epoch, assignments=_by_stream(granted)
        )

    async def report(
        self, request: wire.ReportConsumerGroupCoordinatorRequest, _: Context
    ) -> wire.ReportConsumerGroupCoordinatorResponse:
        """Nothing is to be done: the cluster replaces a coordinator that is gone by itself."""
        _check_names(request.groupId, request.consumerId)
        if not request.coordinator:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "coordinator: none is named")
        self._described(request.groupId, request.consumerId)
        return wire.ReportConsumerGroupCoordinatorResponse()

    def metadata(self, group: str, sees: Callable[[str], bool]) -> wire.ConsumerGroupMetadata:
        """A group, for a client that looks for its coordinator and sees one of its streams."""
        unknown = wire.ConsumerGroupMetadata(
            groupId=group, error=wire.ConsumerGroupMetadata.UNKNOWN_GROUP
        )
        try:
            (document,) = self._groups.describe(group)
        except RefusedError:
            return unknown
        streams = {stream for member in document["members"] for stream in member["streams"]}
        if streams and not any(map(sees, streams)):
            return unknown
        return wire.ConsumerGroupMetadata(
            groupId=group, coordinator=self.coordinator(), epoch=document["epoch"]
        )

    def coordinator(self) -> str:
        """The node to ask: any would do; this is one that others find, too."""
        cluster = self._streams.cluster()
        served = {node["node"] for node in cluster["nodes"] if node.get("grpc")}
        controller = cluster["controller"]
        return controller if controller in served else self._streams.node

    async def _until_member(self, group: str, member: str, streams: tuple[str, ...]) -> int:
        """Join; the epoch of the group with the member in it."""
        problem = "it is not written down yet"
        try:
            async with asyncio.timeout(_JOIN_S):
                while True:
                    try:
                        answer = await self._beat(group, member, streams, joining=True)
                    except UnavailableError as error:
                        problem = str(error)
                    else:
                        if answer.epoch and self._knows(group, member):
                            return answer.epoch
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            text = f"{member!r} is no member of {group!r} yet: {problem}"
            raise CallError(grpc.StatusCode.UNAVAILABLE, text) from None

    async def _beat(
        self,
        group: str,
        member: str,
        streams: tuple[str, ...],
        *,
        joining: bool = False,
        epoch: int = 0,
        held: "set[GroupPartition] | frozenset[GroupPartition]" = frozenset(),
    ) -> MemberAnswer:
        self._sequence += 1
        beat = MemberBeat(
            group=group,
            member=member,
            streams=streams,
            session_ms=int(self._timeout_s * 1000),
            sequence=self._sequence,
            joining=joining,
            epoch=epoch,
            held=tuple(sorted(held)),
        )
        answer = await self._groups.beat(beat)
        if answer.error:
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, answer.message)
        return answer

    def _knows(self, group: str, member: str) -> bool:
        """Return whether this node knows the membership, so that its next request may come here."""
        try:
            self._described(group, member)
        except (CallError, RefusedError):
            return False
        return True

    def _described(self, group: str, member: str) -> tuple[Document, Document]:
        """A group and one of its members, as the state has them."""
        (document,) = self._groups.describe(group)
        for found in document["members"]:
            if found["member"] == member:
                return document, found
        text = f"{member!r} is no member of {group!r}; join it again"
        raise CallError(grpc.StatusCode.FAILED_PRECONDITION, text)

    def _remember(self, key: tuple[str, str], answered: _Answered) -> None:
        self._answered[key] = answered
        self._answered.move_to_end(key)
        if len(self._answered) > _ANSWERS_MAX:
            self._answered.popitem(last=False)


def _check_names(group: str, member: str) -> None:
    check_consumer(group)
    check_consumer(member)


def _by_stream(granted: frozenset[GroupPartition]) -> list[wire.PartitionAssignment]:
    numbers: dict[str, list[int]] = {}
    for partition in sorted(granted):
        numbers.setdefault(partition.stream, []).append(partition.partition)
    return [
        wire.PartitionAssignment(stream=stream, partitions=found)
        for stream, found in numbers.items()
    ]

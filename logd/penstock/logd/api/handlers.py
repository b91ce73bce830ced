"""The handlers of operations: one for each row of the table, called after authorization.

`penstock.logd.api.operations` has the table, `penstock.logd.api.middleware` what stands before.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from msgspec import to_builtins

from penstock.logd.api import operations
from penstock.logd.api.id_search import IdSearch
from penstock.logd.api.operations import OPERATIONS, Document, Request, Responder
from penstock.logd.api.reading import FetchReading, partition_standing
from penstock.logd.api.server import Response, ResponseSlot
from penstock.logd.api.verification import Verification
from penstock.logd.cluster.cursors import ClusterCursors
from penstock.logd.cluster.engine import ClusterAccess, ClusterGroups
from penstock.logd.cluster.streams import ClusterStreams
from penstock.logd.controller.group_messages import MemberBeat
from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import check_filter
from penstock.logd.limits import ACL_RULES_PER_ANSWER_MAX
from penstock.logd.metadata.access import (
    AccessCommand,
    DeleteAcl,
    DeleteQuota,
    PutAcl,
    PutQuota,
)
from penstock.logd.metadata.cursors import CursorKey, check_consumer
from penstock.logd.metadata.records import GroupPartition
from penstock.logd.metadata.streams import check_stream_name
from penstock.logd.nats.protocol import NatsRefusedError
from penstock.logd.partition.cursors import Granted
from penstock.logd.security.acl import AclRule, Decision
from penstock.logd.security.authorizer import Authorizer
from penstock.logd.security.principal import Principal
from penstock.logd.stream_options import split_settings

_Answer = Document | Response
Asked = TypeVar("Asked", bound=Request)
_Handler = Callable[["Handlers", Any, ResponseSlot], Awaitable[_Answer]]

_HANDLERS: Final[dict[type[Request], _Handler]] = {}


def _handles(
    request: type[Asked],
) -> Callable[
    [Callable[["Handlers", Asked, ResponseSlot], Awaitable[_Answer]]],
    Callable[["Handlers", Asked, ResponseSlot], Awaitable[_Answer]],
]:
    """Have a method of `Handlers` handle the requests of a class."""

    def register(
        handler: Callable[["Handlers", Asked, ResponseSlot], Awaitable[_Answer]],
    ) -> Callable[["Handlers", Asked, ResponseSlot], Awaitable[_Answer]]:
        assert request not in _HANDLERS, request
        _HANDLERS[request] = handler
        return handler

    return register


class Handlers:
    """Handles requests about the streams of one node's cluster, its rules and quotas.

    Args:
        streams: The cluster's streams.
        cursors: The consumers' cursors.
        groups: The consumer groups.
        access: The rules and quotas.
        authorizer: Says what the rules come to.
        creator: Returns the principal to whose quota a new stream counts.
        gaps: Returns the daemon's ingest gaps, and the damaged ranges of its logs.
    """

    def __init__(  # noqa: PLR0913 - what operations are about
        self,
        streams: ClusterStreams,
        cursors: ClusterCursors,
        groups: ClusterGroups,
        access: ClusterAccess,
        authorizer: Authorizer,
        *,
        creator: Callable[[Principal], str] = lambda _: "",
        gaps: Callable[[], Document] = dict,
    ) -> None:
        self._streams = streams
        self._cursors = cursors
        self._groups = groups
        self._access = access
        self._authorizer = authorizer
        self._creator = creator
        self._report_gaps = gaps
        self._reading = FetchReading()
        self._verification = Verification()
        self._id_search = IdSearch()

    async def handle(self, request: Request, turn: ResponseSlot) -> Response:
        """Do what a request asks.

        Raises:
            RefusedError: It cannot be done.
            CorruptError: What it asks for is damaged on disk.
            UnavailableError: It cannot be done now, or it is unknown whether it was.
        """
        answer = await _HANDLERS[type(request)](self, request, turn)
        return answer if isinstance(answer, Response) else Response(answer)

    # Reading.

    @_handles(operations.Fetch)
    async def _fetch(self, request: operations.Fetch, turn: ResponseSlot) -> Response:
        partition = self._streams.partition(
            request.stream, request.partition, replica=request.replica
        )
        return await self._reading.fetch(partition, request, turn)

    @_handles(operations.Offsets)
    async def _offsets(self, request: operations.Offsets, _: ResponseSlot) -> Document:
        partition = self._streams.partition(request.stream, request.partition)
        end = partition.high_watermark + 1
        match request.at:
            case "earliest":
                offset = partition.start_offset
            case "latest":
                offset = end
            case timestamp_ns:
                found = await asyncio.to_thread(partition.log.offset_for_timestamp, timestamp_ns)
                offset = min(max(found, partition.start_offset), end)
        return partition_standing(partition) | {"offset": offset}

    # Streams.

    @_handles(operations.Streams)
    async def _list(self, request: operations.Streams, _: ResponseSlot) -> Document:
        found = self._streams.describe(request.stream, internal=request.internal)
        return {"node": self._streams.node, "streams": found}

    @_handles(operations.Match)
    async def _match(self, request: operations.Match, _: ResponseSlot) -> Document:
        check_filter(request.subject)
        return {"streams": sorted(self._streams.match(request.subject))}

    @_handles(operations.CreateStream)
    async def _create(self, request: operations.CreateStream, turn: ResponseSlot) -> Document:
        config, replication = split_settings(request.config)
        try:
            stream, created = await self._streams.create(
                config, replication, creator=self._creator(turn.caller)
            )
        except NatsRefusedError as error:
            message = f"the NATS server refuses the subject: {error}"
            raise RefusedError("NATS_REFUSED", message, subject=config.subject) from None
        return {"stream": stream, "created": created}

    @_handles(operations.DeleteStream)
    async def _delete(self, request: operations.DeleteStream, _: ResponseSlot) -> Document:
        await self._streams.delete(request.stream)
        return {}

    @_handles(operations.OpenStream)
    async def _open(self, request: operations.OpenStream, _: ResponseSlot) -> Document:
        return {"stream": await self._streams.open(request.stream)}

    @_handles(operations.AlterStream)
    async def _alter(self, request: operations.AlterStream, _: ResponseSlot) -> Document:
        return {"stream": await self._streams.alter(request.stream, request.options)}

    @_handles(operations.SetMode)
    async def _set_mode(self, request: operations.SetMode, _: ResponseSlot) -> Document:
        stream = await self._streams.set_mode(
            request.stream,
            paused=request.paused,
            read_only=request.read_only,
            held=request.held,
        )
        return {"stream": stream}

    @_handles(operations.Purge)
    async def _purge(self, request: operations.Purge, _: ResponseSlot) -> Document:
        start = await self._streams.purge(request.stream, request.partition, request.before)
        return {"start_offset": start}

    @_handles(operations.Restore)
    async def _restore(self, request: operations.Restore, turn: ResponseSlot) -> Document:
        partition = self._streams.partition(request.stream, request.partition)
        return {"next_offset": await partition.restore(turn.upload)}

    @_handles(operations.Verify)
    async def _verify(self, request: operations.Verify, _: ResponseSlot) -> Response:
        partition = self._streams.partition(request.stream, request.partition, replica=True)
        return await self._verification.verify(partition, request)

    @_handles(operations.FindIds)
    async def _find_ids(self, request: operations.FindIds, _: ResponseSlot) -> Document:
        partition = self._streams.partition(request.stream, request.partition)
        return await self._id_search.find(partition, request)

    # Cursors.

    @_handles(operations.SetCursor)
    async def _set_cursor(self, request: operations.SetCursor, _: ResponseSlot) -> Document:
        cursors = await self._cursors.ready()
        if request.member is None:
            wanted = [(item.key(), item.offset, item.incarnation) for item in request.cursors]
            return {"cursors": await cursors.commit(wanted, rewind=request.rewind)}
        if request.rewind or not all(item.incarnation for item in request.cursors):
            message = "a member of a group names the incarnation, and does not rewind"
            raise RefusedError("BAD_REQUEST", message, key="member")
        granted = [
            Granted(item.key(), item.offset, item.incarnation or "", item.epoch)
            for item in request.cursors
        ]
        return {"cursors": await cursors.commit_granted(request.member, granted)}

    @_handles(operations.GetCursor)
    async def _get_cursor(self, request: operations.GetCursor, _: ResponseSlot) -> Document:
        return {"cursors": (await self._cursors.ready()).get(request.key())}

    @_handles(operations.ListCursors)
    async def _list_cursors(self, request: operations.ListCursors, _: ResponseSlot) -> Document:
        found, more = (await self._cursors.ready()).page(
            consumer=request.consumer, stream=request.stream, after=_after(request.after)
        )
        return {"cursors": found, "more": more}

    @_handles(operations.DeleteCursor)
    async def _delete_cursor(self, request: operations.DeleteCursor, _: ResponseSlot) -> Document:
        return {"deleted": await (await self._cursors.ready()).delete(request.key())}

    # Nodes.

    @_handles(operations.Cluster)
    async def _cluster(self, _: operations.Cluster, __: ResponseSlot) -> Document:
        return self._streams.cluster() | {"node": self._streams.node}

    @_handles(operations.Drain)
    async def _drain(self, request: operations.Drain, _: ResponseSlot) -> Document:
        await self._streams.drain(request.node, undo=request.undo)
        return {}

    @_handles(operations.RemoveNode)
    async def _remove_node(self, request: operations.RemoveNode, _: ResponseSlot) -> Document:
        await self._streams.remove_node(request.node)
        return {}

    @_handles(operations.Move)
    async def _move(self, request: operations.Move, _: ResponseSlot) -> Document:
        replicas = None if request.replicas is None else tuple(request.replicas)
        await self._streams.move(request.stream, request.partition, replicas)
        return {}

    @_handles(operations.Observe)
    async def _observe(self, request: operations.Observe, _: ResponseSlot) -> Document:
        observers = tuple(request.observers)
        await self._streams.observe(request.stream, request.partition, observers)
        return {}

    @_handles(operations.Elect)
    async def _elect(self, request: operations.Elect, _: ResponseSlot) -> Document:
        if not request.lose_records:
            message = "lose_records: it must be true, for records may be lost"
            raise RefusedError("BAD_REQUEST", message, key="lose_records")
        return await self._streams.elect(request.stream, request.partition)

    @_handles(operations.Rebalance)
    async def _rebalance(self, _: operations.Rebalance, __: ResponseSlot) -> Document:
        return {"moves": await self._streams.rebalance()}

    @_handles(operations.StepDown)
    async def _step_down(self, request: operations.StepDown, _: ResponseSlot) -> Document:
        return {"controller": await self._streams.step_down(request.target)}

    @_handles(operations.Gaps)
    async def _gaps(self, _: operations.Gaps, __: ResponseSlot) -> Document:
        return {"node": self._streams.node} | self._report_gaps()

    # Consumer groups.

    @_handles(operations.GroupBeat)
    async def _beat(self, request: operations.GroupBeat, _: ResponseSlot) -> Document:
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
        answer = await self._groups.beat(beat)
        granted = [to_builtins(one.partition) | {"epoch": one.epoch} for one in answer.granted]
        return {"answer": to_builtins(answer) | {"granted": granted}}

    @_handles(operations.GroupLeave)
    async def _leave(self, request: operations.GroupLeave, _: ResponseSlot) -> Document:
        await self._groups.leave(request.group, request.member)
        return {}

    @_handles(operations.Groups)
    async def _list_groups(self, request: operations.Groups, _: ResponseSlot) -> Document:
        return {"groups": self._groups.describe(request.group)}

    # Rules and quotas.

    @_handles(operations.ListAcls)
    async def _list_acls(self, request: operations.ListAcls, _: ResponseSlot) -> Document:
        after = request.after
        table = self._access.table
        rules = sorted(table.rules.values())
        first = 0
        if after is not None:
            if after not in table.rules:
                message = f"rule {after[:80]!r} is no more: list them from the beginning"
                raise RefusedError("UNKNOWN_RULE", message)
            first = rules.index(table.rules[after]) + 1
        page = rules[first : first + ACL_RULES_PER_ANSWER_MAX]
        return {
            "version": table.version,
            "enabled": self._authorizer.enabled,
            "superusers": sorted(self._authorizer.acl.superusers),
            "grants": [rule.text for rule in self._authorizer.acl.grants],
            "rules": [_rule(rule) for rule in page],
            "more": first + len(page) < len(rules),
        }

    @_handles(operations.PutAcls)
    async def _put_acls(self, request: operations.PutAcls, _: ResponseSlot) -> Document:
        rules = tuple(request.rules)
        answer = await self._change(PutAcl(rules=rules, based_on=request.based_on))
        return answer | {"rules": [_rule(rule) for rule in rules]}

    @_handles(operations.DeleteAcls)
    async def _delete_acls(self, request: operations.DeleteAcls, _: ResponseSlot) -> Document:
        return await self._change(DeleteAcl(rules=tuple(request.rules), based_on=request.based_on))

    @_handles(operations.TestAcl)
    async def _test_acl(self, request: operations.TestAcl, turn: ResponseSlot) -> Document:
        target = self._authorizer.resource(request.resource)
        if request.principal is None:
            decision = self._authorizer.decide(turn.caller, request.action, target)
        else:
            groups = frozenset(request.groups)
            acl = self._authorizer.acl
            decision = acl.decide(request.principal, groups, request.action, target)
        return self._verdict(request.principal or "", decision)

    @_handles(operations.WhoCan)
    async def _who_can(self, request: operations.WhoCan, _: ResponseSlot) -> Document:
        target = self._authorizer.resource(request.resource)
        found = self._authorizer.acl.who_can(request.action, target)
        principals = [self._verdict(one, decision) for one, decision in found]
        return {"enabled": self._authorizer.enabled, "principals": principals}

    @_handles(operations.Quotas)
    async def _quotas(self, _: operations.Quotas, __: ResponseSlot) -> Document:
        table = self._access.table
        quotas = [to_builtins(quota) for _, quota in sorted(table.quotas.items())]
        return {"version": table.version, "quotas": quotas}

    @_handles(operations.PutQuota)
    async def _put_quota(self, request: operations.PutQuota, _: ResponseSlot) -> Document:
        return await self._change(PutQuota(quota=request.quota, based_on=request.based_on))

    @_handles(operations.DeleteQuota)
    async def _delete_quota(self, request: operations.DeleteQuota, _: ResponseSlot) -> Document:
        return await self._change(
            DeleteQuota(principal=request.principal, based_on=request.based_on)
        )

    def _verdict(self, principal: str, decision: Decision) -> Document:
        deciding = None if decision.granted else decision.rule
        return {
            "principal": principal,
            "allowed": decision.allowed,
            "reason": decision.reason,
            "rule": None if deciding is None else _rule(deciding),
            "enabled": self._authorizer.enabled,
        }

    async def _change(self, command: AccessCommand) -> Document:
        changed = await self._access.change(command)
        return {"changed": changed, "version": self._access.table.version}


assert _HANDLERS.keys() == {
    operation.request
    for operation in OPERATIONS.values()
    if operation.responder is not Responder.CONNECTION
}, "an operation has no handler"


def _after(key: list[str | int] | None) -> CursorKey | None:
    match key:
        case None:
            return None
        case [str(consumer), str(stream), int(partition)]:
            return CursorKey(consumer, stream, partition)
        case _:
            raise RefusedError("BAD_REQUEST", "after: [consumer, stream, partition]", key="after")


def _rule(rule: AclRule) -> Document:
    found: Document = to_builtins(rule)
    return {"id": rule.id} | found

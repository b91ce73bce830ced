"""Right, quota and audit record of each method.

A method is as the operation of logd's own that it maps to; one that maps to none is for
administrators.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from penstock.logd.activity import TakesDown
from penstock.logd.api import operations
from penstock.logd.api.operations import operation_of
from penstock.logd.api.permissions import AuthorizationRules
from penstock.logd.cluster.streams import StreamOutline
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.format.subjects import is_inbox
from penstock.logd.liftbridge.create_stream import settings_of
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.security.acl import Action, OnStream
from penstock.logd.security.authorizer import CLUSTER, Authorizer, result_of, stored_by
from penstock.logd.security.principal import Principal, current_caller
from penstock.logd.security.quotas import Flow
from penstock.logd.security.throttle import QuotaManager
from penstock.logd.wire import logd_liftbridge_pb2 as wire

PUBLISHING: Final = ("Publish", "PublishAsync", "PublishToSubject")
"""They ask for themselves, message by message."""

_OPEN: Final = ("FetchMetadata",)
"""Everybody may call it; the answer has what the caller may see."""


def _group(request: Any) -> operations.GroupLeave:
    return operations.GroupLeave(group=request.groupId, member="")


_REQUESTS: Final[dict[str, Callable[[Any], operations.Request]]] = {
    "CreateStream": lambda call: operations.CreateStream(config=settings_of(call)),
    "DeleteStream": lambda call: operations.DeleteStream(stream=call.name),
    "PauseStream": lambda call: operations.SetMode(stream=call.name),
    "SetStreamReadonly": lambda call: operations.SetMode(stream=call.name),
    "Subscribe": lambda call: operations.Fetch(stream=call.stream, offset=0),
    "FetchPartitionMetadata": lambda call: operations.Streams(stream=call.stream),
    "SetCursor": lambda call: operations.GetCursor(consumer="", stream=call.stream),
    "FetchCursor": lambda call: operations.GetCursor(consumer="", stream=call.stream),
    "JoinConsumerGroup": lambda call: operations.GroupBeat(
        group=call.groupId,
        member=call.consumerId,
        streams=list(call.streams),
        session_ms=0,
        sequence=0,
        joining=True,
        epoch=0,
        held=[],
    ),
    "LeaveConsumerGroup": _group,
    "FetchConsumerGroupAssignments": _group,
    "ReportConsumerGroupCoordinator": _group,
}
"""Operation of logd whose right and record apply to a method."""

Context: TypeAlias = Any
Call: TypeAlias = Callable[[Any, Context], Awaitable[Any]]


class CallAuthorization:
    """Stands around the methods. Used on the event loop.

    Args:
        authorizer: Decides.
        throttle: Holds up callers over their quota.
        permits: The rights of logd's own operations.
        activity: Records what was done, before the caller is answered.
        creator: Returns the principal to whose quota a new stream counts.
    """

    def __init__(
        self,
        authorizer: Authorizer,
        throttle: QuotaManager,
        permits: AuthorizationRules,
        activity: TakesDown,
        creator: Callable[[Principal], str],
    ) -> None:
        self.authorizer = authorizer
        self.creator = creator
        self._throttle = throttle
        self._permits = permits
        self._activity = activity

    def intercept(self, method: str, call: Call) -> Call:
        """A method that is called only by whom it may be."""

        async def permitted(request: Any, context: Context) -> Any:
            caller = current_caller()
            result = "interrupted"
            try:
                await self._throttle.take(caller, Flow.REQUESTS)
                self._check(method, request, caller)
                answer = await call(request, context)
                result = "ok"
            except RefusedError as error:
                result = result_of(error)
                raise
            except CallError as error:
                result = error.code.name
                raise
            except LogdError:
                result = "UNAVAILABLE"
                raise
            finally:
                if self._record(method, request, caller, result) and result != "interrupted":
                    await self._activity.kept()
            return answer

        return permitted

    async def publish(
        self, caller: Principal, outline: StreamOutline, number: int, request: wire.PublishRequest
    ) -> None:
        """Let a message through to a partition of a stream.

        Raises:
            RefusedError: `PERMISSION_DENIED`, `QUOTA_EXCEEDED`.
        """
        config = outline.stream.config
        subject = f"{config.subject}.{number}" if number else config.subject
        self.authorizer.check(caller, Action.PUBLISH, OnStream(config.name, (subject,)))
        if not outline.replication.listens:  # it would resume what an operator took off its subject
            self.authorizer.check(caller, Action.ALTER, stored_by(config, outline.partitions))
        self._check_inbox(caller, request.ackInbox)
        await self._throttle.take(caller, Flow.BYTES_IN, request.ByteSize())

    async def publish_to_subject(
        self, caller: Principal, request: wire.PublishToSubjectRequest
    ) -> None:
        """Let a message through to a subject.

        Raises:
            RefusedError: `PERMISSION_DENIED`, `QUOTA_EXCEEDED`.
        """
        self.authorizer.check(caller, Action.PUBLISH, self.authorizer.subject(request.subject))
        self._check_inbox(caller, request.ackInbox)
        await self._throttle.take(caller, Flow.BYTES_IN, request.ByteSize())

    def refused(self, method: str, request: Any, error: RefusedError) -> None:
        """Record what was denied of a call that goes on."""
        self._record(method, request, current_caller(), result_of(error))

    def unknown(self, caller: Principal, stream: str) -> None:
        """Refuse to say whether there is a stream, to whom may not publish to one of its name.

        Raises:
            RefusedError: `PERMISSION_DENIED`.
        """
        self.authorizer.check(caller, Action.PUBLISH, OnStream(stream))

    def read(self, caller: Principal, stream: str) -> None:
        """Ask again whether a caller may read a stream: rules change while it does.

        Raises:
            RefusedError: `PERMISSION_DENIED`.
        """
        if self.authorizer.enabled:
            self.authorizer.check(caller, Action.READ, self.authorizer.stream(stream))

    async def spend(self, caller: Principal, size: int) -> None:
        """Bytes are about to be sent to a caller; returns when its quota allows that."""
        await self._throttle.spend(caller, Flow.BYTES_OUT, size)

    def _check(self, method: str, request: Any, caller: Principal) -> None:
        if not self.authorizer.enabled or method in PUBLISHING or method in _OPEN:
            return
        if method not in _REQUESTS:
            self.authorizer.check(caller, Action.ADMIN, CLUSTER)
            return
        self._permits.check(_REQUESTS[method](request), caller)
        if method == "Subscribe":
            target = self.authorizer.stream(request.stream)
            if request.resume:
                self.authorizer.check(caller, Action.ALTER, target)
            if request.consumer.groupId:
                self.authorizer.check(caller, Action.CURSOR, target)

    def _check_inbox(self, caller: Principal, inbox: str) -> None:
        """Acks go to inboxes; else a client could have logd publish anywhere.

        Raises:
            RefusedError: `PERMISSION_DENIED`.
        """
        if inbox and not is_inbox(inbox) and self.authorizer.enabled:
            self.authorizer.check(caller, Action.PUBLISH, self.authorizer.subject(inbox))

    def _record(self, method: str, request: Any, caller: Principal, result: str) -> bool:
        """Record an event; whether it is to outlast the machine: anybody can cause denials."""
        asks = _REQUESTS.get(method)
        kind = "" if asks is None else operation_of(asks(request)).audit
        if result == "PERMISSION_DENIED":
            kind = "access.denied"
        if kind:
            stream = getattr(request, "name", "") or getattr(request, "stream", "")
            asked = {"api": method, "stream": stream, "subject": getattr(request, "subject", "")}
            self._activity.record(kind, caller, request=asked, result=result)
        return kind not in ("", "access.denied")

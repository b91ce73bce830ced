"""The steps before an operation's handler: quotas, authorization, the activity stream.

An operation that changes something is recorded with its caller and its result; so is a request that
was denied.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.logd.activity import TakesDown
from penstock.logd.api.handlers import Handlers
from penstock.logd.api.operations import (
    OPERATIONS,
    Document,
    ListCursors,
    Operation,
    downloads,
)
from penstock.logd.api.permissions import AuthorizationRules
from penstock.logd.api.server import Api, Response, ResponseSlot
from penstock.logd.errors import LogdError, NotReadyError, RefusedError
from penstock.logd.metadata.streams import is_internal
from penstock.logd.security.authorizer import Authorizer, result_of
from penstock.logd.security.principal import Principal
from penstock.logd.security.quotas import Flow
from penstock.logd.security.throttle import QuotaManager

if TYPE_CHECKING:
    from penstock.service.tracing.spans import Tracer


class GuardedApi:
    """Requests under authorization and quotas; see `penstock.logd.api.server.Api`.

    Args:
        handlers: Handle the permitted requests.
        authorizer: The version of its rules tells whether they have changed meanwhile.
        permits: The rights that operations need.
        throttle: The quotas.
        activity: Records the operation before the caller is answered.
    """

    def __init__(
        self,
        handlers: Handlers,
        *,
        authorizer: Authorizer,
        permits: AuthorizationRules,
        throttle: QuotaManager,
        activity: TakesDown,
    ) -> None:
        self._handlers = handlers
        self._authorizer = authorizer
        self._permits = permits
        self._throttle = throttle
        self._activity = activity

    def admit(self, request: Document, caller: Principal) -> None:
        """Refuse what the caller may not ask; `answer` checks an admitted request again."""
        try:
            self._permits.admit(request, caller)
        except RefusedError as error:
            self._record(request, caller, result_of(error))
            raise

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        """Check, handle and record a request.

        Raises:
            RefusedError: The handler's, `PERMISSION_DENIED` or `QUOTA_EXCEEDED`.
        """
        result = "interrupted"
        try:
            response = await self._admitted(request, turn)
            result = "ok"
        except RefusedError as error:
            result = result_of(error)
            raise
        except LogdError:
            result = "UNAVAILABLE"
            raise
        finally:
            if self._record(request, turn.caller, result) and result != "interrupted":
                await self._activity.kept()
        return response

    async def _admitted(self, document: Document, turn: ResponseSlot) -> Response:
        caller = turn.caller
        await self._throttle.take(caller, Flow.REQUESTS)
        if downloads(document):
            await self._throttle.take(caller, Flow.BYTES_OUT, 0)
        operation, request = self._permits.admit(document, caller)
        acl = self._rules()
        response = await self._handlers.handle(request, turn)
        if self._rules() is not acl and not operation.audit:  # it may have waited for a minute
            self._permits.check(request, caller)
        self._throttle.charge(caller, Flow.BYTES_OUT, response.payload_length)
        if isinstance(request, ListCursors):
            return await self._cursors(operation, request, response, turn)
        header = self._permits.show(operation, response.header, caller)
        return Response(header, response.ranges, response.payload)

    async def _cursors(
        self, operation: Operation, request: ListCursors, response: Response, turn: ResponseSlot
    ) -> Response:
        """A page with something in it that may be seen, or the last one."""
        while True:
            header = self._permits.show(operation, response.header, turn.caller)
            if header["cursors"] or not header["more"]:
                return Response(header)
            last = response.header["cursors"][-1]
            after = [last["consumer"], last["stream"], last["partition"]]
            response = await self._handlers.handle(replace(request, after=after), turn)

    def _rules(self) -> object:
        return self._authorizer.acl if self._authorizer.enabled else None

    def _record(self, request: Document, caller: Principal, result: str) -> bool:
        """Record an event; whether it is to outlast the machine: anybody can cause denials."""
        operation = OPERATIONS.get(request["api"])
        kind = "" if operation is None else operation.audit
        if result == "PERMISSION_DENIED":
            kind = "access.denied"
        if kind:
            asked = {key: value for key, value in request.items() if key != "id"}
            self._activity.record(kind, caller, request=asked, result=result)
        return kind not in ("", "access.denied")


Match = Callable[[str], Collection[str]]
"""Names of the streams that store a subject."""


class TracedApi:
    """Requests with spans; see `penstock.logd.api.server.Api`.

    A fetch from a stream that may hold Penstock's own spans makes none: before the records are read
    it is unknown whether there are others among them, and the reader of these spans reads again
    when there are more.

    Args:
        api: Answers the requests.
        tracer: Tracer of the spans.
        match: Returns which streams store a subject.
    """

    def __init__(self, api: Api, tracer: "Tracer", match: Match) -> None:
        self._api = api
        self._tracer = tracer
        self._match = match

    def admit(self, request: Document, caller: Principal) -> None:
        self._api.admit(request, caller)

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        operation = OPERATIONS.get(request["api"])
        if operation is not None and operation.audit:
            return await self._act(request, turn, operation.audit)
        if operation is not None and operation.downloads and self._is_traced(request):
            return await self._fetch(request, turn)
        return await self._api.answer(request, turn)

    async def _act(self, request: Document, turn: ResponseSlot, action: str) -> Response:
        span = self._tracer.start_rare(action, kind="SERVER")
        span.set_attribute("enduser.id", turn.caller.name)
        for key in ("stream", "node"):
            if isinstance(request.get(key), str):
                span.set_attribute(f"penstock.{key}", request[key])
        try:
            response = await self._api.answer(request, turn)
        except LogdError as error:
            self._tracer.end(span, error=_code(error))
            raise
        self._tracer.end(span)
        return response

    async def _fetch(self, request: Document, turn: ResponseSlot) -> Response:
        """Most fetches of a reader that is up to date bring nothing: of these nothing is said."""
        begun_ns = self._tracer.now_ns()
        try:
            response = await self._api.answer(request, turn)
        except LogdError as error:
            self._fetched(request, begun_ns, error=_code(error))
            raise
        if response.payload_length:
            self._fetched(request, begun_ns, size=response.payload_length)
        return response

    def _fetched(self, request: Document, begun_ns: int, *, size: int = 0, error: str = "") -> None:
        ago_ns = self._tracer.now_ns() - begun_ns
        span = self._tracer.start("fetch", kind="SERVER", ago_ns=ago_ns)
        if span is not None:
            attributes = {"penstock.stream": request["stream"], "penstock.bytes": size}
            self._tracer.end(span, error=error, attributes=attributes)

    def _is_traced(self, request: Document) -> bool:
        name = request.get("stream")
        if not isinstance(name, str) or is_internal(name) or request.get("replica") is True:
            return False
        try:
            return not any(name in self._match(own) for own in self._tracer.own_subjects)
        except NotReadyError:
            return False


def _code(error: LogdError) -> str:
    return error.code if isinstance(error, RefusedError) else "UNAVAILABLE"

"""The api behind its door: quotas, then permissions, then the request, then what may be seen of it.

What changes anything is recorded with who asked for it and what came of it; so is what was denied.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from penstock.logd.activity import TakesDown
from penstock.logd.api.permissions import AuthorizationRules
from penstock.logd.api.protocol import Document
from penstock.logd.api.server import Api, Response, ResponseSlot
from penstock.logd.errors import LogdError, NotReadyError, RefusedError
from penstock.logd.metadata.streams import is_internal
from penstock.logd.security.authorizer import Authorizer, result_of
from penstock.logd.security.principal import Principal
from penstock.logd.security.quotas import Flow
from penstock.logd.security.throttle import QuotaManager
from penstock.service.tracing import Tracer

ACTIONS: Final = {
    "create_stream": "stream.create",
    "delete_stream": "stream.delete",
    "open_stream": "stream.open",
    "alter_stream": "stream.alter",
    "set_mode": "stream.mode",
    "purge": "stream.purge",
    "drain": "node.drain",
    "remove_node": "node.remove",
    "move": "partition.move",
    "observe": "partition.observe",
    "elect": "partition.elect",
    "rebalance": "cluster.rebalance",
    "step_down": "cluster.step_down",
    "delete_cursor": "cursor.delete",
    "put_acls": "acl.add",
    "delete_acls": "acl.remove",
    "put_quota": "quota.set",
    "delete_quota": "quota.remove",
}
"""What each request that changes something is recorded as."""

Handler = Callable[[Document, Principal], Awaitable[Document]]


class GuardedApi:
    """As `penstock.logd.api.server.Api`.

    Args:
        api: Answers what is let through.
        own: Answers requests that `api` does not know.
        authorizer: Its rules' version tells whether they have changed meanwhile.
        permits: Who may ask what.
        throttle: How much of it.
        activity: Takes down what was done, before whoever asked is told.
    """

    def __init__(
        self,
        api: Api,
        own: dict[str, Handler],
        *,
        authorizer: Authorizer,
        permits: AuthorizationRules,
        throttle: QuotaManager,
        activity: TakesDown,
    ) -> None:
        self._api = api
        self._own = own
        self._authorizer = authorizer
        self._permits = permits
        self._throttle = throttle
        self._activity = activity

    def admit(self, request: Document, caller: Principal) -> None:
        """As `Api`; what is let through is asked about again when it is answered."""
        try:
            self._permits.check(request, caller)
        except RefusedError as error:
            self._take_down(request, caller, result_of(error))
            raise

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        """As `Api`.

        Raises:
            RefusedError: Also `PERMISSION_DENIED` and `QUOTA_EXCEEDED`.
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
            if self._take_down(request, turn.caller, result) and result != "interrupted":
                await self._activity.kept()
        return response

    async def _admitted(self, request: Document, turn: ResponseSlot) -> Response:
        caller, api = turn.caller, request["api"]
        await self._throttle.take(caller, Flow.REQUESTS)
        if api == "fetch":
            await self._throttle.take(caller, Flow.BYTES_OUT, 0)
        self._permits.check(request, caller)
        if api in self._own:
            return Response(await self._own[api](request, caller))
        acl = self._rules()
        response = await self._api.answer(request, turn)
        if self._rules() is not acl:  # it may have waited for a minute
            self._permits.check(request, caller)
        self._throttle.charge(caller, Flow.BYTES_OUT, response.payload_length)
        if api == "list_cursors":
            return await self._cursors(request, response, turn)
        header = self._permits.show(api, response.header, caller)
        return Response(header, response.ranges, response.payload)

    async def _cursors(self, request: Document, response: Response, turn: ResponseSlot) -> Response:
        """A page with something in it that may be seen, or the last one."""
        while True:
            header = self._permits.show("list_cursors", response.header, turn.caller)
            if header["cursors"] or not header["more"]:
                return Response(header)
            last = response.header["cursors"][-1]
            after = [last["consumer"], last["stream"], last["partition"]]
            response = await self._api.answer(request | {"after": after}, turn)

    def _rules(self) -> object:
        return self._authorizer.acl if self._authorizer.enabled else None

    def _take_down(self, request: Document, caller: Principal, result: str) -> bool:
        """Whether it is to outlast the machine; what was denied anybody can have written."""
        kind = ACTIONS.get(request["api"])
        if result == "PERMISSION_DENIED":
            kind = "access.denied"
        if kind is not None:
            asked = {key: value for key, value in request.items() if key != "id"}
            self._activity.record(kind, caller, request=asked, result=result)
        return kind not in (None, "access.denied")


Match = Callable[[str], Collection[str]]
"""Names of the streams that store a subject."""


class TracedApi:
    """As `penstock.logd.api.server.Api`.

    A fetch from a stream that may hold Penstock's own spans makes none: nobody knows before the
    records are looked at whether there are others among them, and whoever reads these spans reads
    again when there are more.

    Args:
        api: Answers.
        tracer: Has the spans.
        match: Tells which streams store what.
    """

    def __init__(self, api: Api, tracer: Tracer, match: Match) -> None:
        self._api = api
        self._tracer = tracer
        self._match = match

    def admit(self, request: Document, caller: Principal) -> None:
        """As `Api`."""
        self._api.admit(request, caller)

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        """As `Api`."""
        action = ACTIONS.get(request["api"])
        if action is not None:
            return await self._act(request, turn, action)
        if request["api"] == "fetch" and self._is_told(request):
            return await self._fetch(request, turn)
        return await self._api.answer(request, turn)

    async def _act(self, request: Document, turn: ResponseSlot, action: str) -> Response:
        span = self._tracer.start_rare(action, kind="SERVER")
        if span is None:
            return await self._api.answer(request, turn)
        span.attributes |= {"enduser.id": turn.caller.name}
        for key in ("stream", "node"):
            if isinstance(request.get(key), str):
                span.attributes[f"penstock.{key}"] = request[key]
        try:
            response = await self._api.answer(request, turn)
        except LogdError as error:
            span.end(error=_code(error))
            raise
        span.end()
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
            span.end(error=error, penstock__stream=request["stream"], penstock__bytes=size)

    def _is_told(self, request: Document) -> bool:
        name = request.get("stream")
        if not isinstance(name, str) or is_internal(name) or request.get("replica") is True:
            return False
        try:
            return not any(name in self._match(own) for own in self._tracer.own_subjects)
        except NotReadyError:
            return False


def _code(error: LogdError) -> str:
    return error.code if isinstance(error, RefusedError) else "UNAVAILABLE"

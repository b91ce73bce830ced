"""The api behind its door: quotas, then permissions, then the request, then what may be seen of it.

What changes anything is recorded with who asked for it and what came of it; so is what was denied.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from penstock.logd.access.guard import Guard, result_of
from penstock.logd.access.throttle import Throttle
from penstock.logd.activity import TakesDown
from penstock.logd.core.quotas import Flow
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.fetch.connection import Response, SendingTurn
from penstock.logd.fetch.permits import Permits
from penstock.logd.fetch.server import Api
from penstock.logd.fetch.wire import Document
from penstock.logd.security.principal import Principal

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
    """As `penstock.logd.fetch.server.Api`.

    Args:
        api: Answers what is let through.
        own: Answers requests that `api` does not know.
        guard: Its rules' version tells whether they have changed meanwhile.
        permits: Who may ask what.
        throttle: How much of it.
        activity: Takes down what was done, before whoever asked is told.
    """

    def __init__(
        self,
        api: Api,
        own: dict[str, Handler],
        *,
        guard: Guard,
        permits: Permits,
        throttle: Throttle,
        activity: TakesDown,
    ) -> None:
        self._api = api
        self._own = own
        self._guard = guard
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

    async def answer(self, request: Document, turn: SendingTurn) -> Response:
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

    async def _admitted(self, request: Document, turn: SendingTurn) -> Response:
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

    async def _cursors(self, request: Document, response: Response, turn: SendingTurn) -> Response:
        """A page with something in it that may be seen, or the last one."""
        while True:
            header = self._permits.show("list_cursors", response.header, turn.caller)
            if header["cursors"] or not header["more"]:
                return Response(header)
            last = response.header["cursors"][-1]
            after = [last["consumer"], last["stream"], last["partition"]]
            response = await self._api.answer(request | {"after": after}, turn)

    def _rules(self) -> object:
        return self._guard.acl if self._guard.enabled else None

    def _take_down(self, request: Document, caller: Principal, result: str) -> bool:
        """Whether it is to outlast the machine; what was denied anybody can have written."""
        kind = ACTIONS.get(request["api"])
        if result == "PERMISSION_DENIED":
            kind = "access.denied"
        if kind is not None:
            asked = {key: value for key, value in request.items() if key != "id"}
            self._activity.record(kind, caller, request=asked, result=result)
        return kind not in (None, "access.denied")

"""The api with spans: of fetches that bring something, and of requests that change something."""

from collections.abc import Callable, Collection

from penstock.logd.core.metadata import is_internal
from penstock.logd.errors import LogdError, NotReadyError, RefusedError
from penstock.logd.fetch.connection import Response, SendingTurn
from penstock.logd.fetch.guarded import ACTIONS
from penstock.logd.fetch.server import Api
from penstock.logd.fetch.wire import Document
from penstock.logd.security.principal import Principal
from penstock.service.tracing import Tracer

Match = Callable[[str], Collection[str]]
"""Names of the streams that store a subject."""


class TracedApi:
    """As `penstock.logd.fetch.server.Api`.

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

    async def answer(self, request: Document, turn: SendingTurn) -> Response:
        """As `Api`."""
        action = ACTIONS.get(request["api"])
        if action is not None:
            return await self._act(request, turn, action)
        if request["api"] == "fetch" and self._is_told(request):
            return await self._fetch(request, turn)
        return await self._api.answer(request, turn)

    async def _act(self, request: Document, turn: SendingTurn, action: str) -> Response:
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

    async def _fetch(self, request: Document, turn: SendingTurn) -> Response:
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

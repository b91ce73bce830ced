"""ASGI and WSGI middlewares: each request has a trace, a context and a record of how it went."""

import contextvars
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

from penstock.specs.request import Habits, Request, handling

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_SCOPE: Final = "http.server"
_FAILED: Final = 500


class AsgiMiddleware:
    """Around an ASGI application: ``app.add_middleware(AsgiMiddleware)`` in FastAPI and Starlette.

    Args:
        app: The application.
        baggage: Whether callers are believed who they act for: behind one's own gateway only.
        records: Whether a record says how each request went. Failed ones always have one.
    """

    def __init__(self, app: AsgiApp, *, baggage: bool = False, records: bool = True) -> None:
        self._app = app
        self._habits = Habits(baggage=baggage, records=records)

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Handle one connection; those that are not HTTP requests pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        request = _request(scope["method"], scope["path"])
        client = scope.get("client")

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                _answer(request, message["status"])
            await send(message)

        with handling(
            request,
            headers,
            self._habits,
            client_address=client[0] if client else None,
            user_agent_original=headers.get("user-agent"),
        ):
            try:
                await self._app(scope, receive, sent)
            finally:
                _name(request, scope)


class WsgiMiddleware:
    """Around a WSGI application: ``app.wsgi_app = WsgiMiddleware(app.wsgi_app)`` in Flask.

    The arguments are those of `AsgiMiddleware`.
    """

    def __init__(self, app: WsgiApp, *, baggage: bool = False, records: bool = True) -> None:
        self._app = app
        self._habits = Habits(baggage=baggage, records=records)

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Handle one request; it is over when its body was read."""
        request = _request(environ["REQUEST_METHOD"], environ.get("PATH_INFO", ""))

        def started(status: str, *rest: Any) -> Any:
            _answer(request, int(status[:3]))
            return start_response(status, *rest)

        headers = {
            key[5:].replace("_", "-").lower(): value
            for key, value in environ.items()
            if key.startswith("HTTP_")
        }
        around = handling(
            request,
            headers,
            self._habits,
            client_address=environ.get("REMOTE_ADDR"),
            user_agent_original=headers.get("user-agent"),
        )
        return InContext(around, lambda: self._app(environ, started))


class InContext:
    """An iterable that is made, read and closed within a context manager, in a context of its own.

    Its reader may do other things in between, which are not part of the request.
    """

    def __init__(self, around: Any, make: Callable[[], Iterable[Any]]) -> None:
        self._around = around
        self._is_over = False
        self._context = contextvars.copy_context()
        self._context.run(around.__enter__)
        self._iterable: Iterable[Any] = self._guarded(make)
        self._iterator: Iterator[Any] = self._guarded(iter, self._iterable)

    def __iter__(self) -> "InContext":
        """Itself: it can be read once."""
        return self

    def __next__(self) -> Any:
        """The next part."""
        try:
            return self._guarded(next, self._iterator)
        except StopIteration:
            self._end(None)
            raise

    def close(self) -> None:
        """End it, also when it was not read to its end."""
        close = getattr(self._iterable, "close", None)
        if close is not None:
            self._guarded(close)
        self._end(None)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return self._context.run(function, *args)
        except StopIteration:
            raise
        except BaseException as error:
            self._end(error)
            raise

    def _end(self, error: BaseException | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        kind = None if error is None else type(error)
        self._context.run(self._around.__exit__, kind, error, None)


def _request(method: str, path: str) -> Request:
    return Request(_SCOPE, method, {"http.request.method": method, "url.path": path})


def _answer(request: Request, status: int) -> None:
    request.status = status
    request.failed = status >= _FAILED
    request.attributes["http.response.status_code"] = status


def _name(request: Request, scope: Mapping[str, Any]) -> None:
    """After the framework's routing: the route's pattern, which holds no ids."""
    route = getattr(scope.get("route"), "path", None)
    if route:
        request.attributes["http.route"] = route
        request.name = f"{request.attributes['http.request.method']} {route}"

"""ASGI and WSGI middlewares: each request has a trace, a context and a record of how it went."""

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final, Generic, TypeVar

from penstock.specs.emit.emitter import PROCESS_EXIT
from penstock.specs.web.request import Request, ServerOptions, handling

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
App = TypeVar("App")

_SCOPE: Final = "http.server"
_FAILED: Final = 500
_DJANGO: Final = "penstock.django"
"""The key of what Django handles, in an environ or a scope: whether it does so."""


_is_watching = False


class _Middleware(Generic[App]):
    def __init__(
        self,
        app: App,
        *,
        baggage: bool = False,
        records: bool = True,
        tracer_provider: Any = None,
    ) -> None:
        self._app = app
        self._options = ServerOptions(
            baggage=baggage, records=records, tracer_provider=tracer_provider
        )


class AsgiMiddleware(_Middleware[AsgiApp]):
    """Around an ASGI application: ``app.add_middleware(AsgiMiddleware)`` in FastAPI and Starlette.

    Args:
        app: The application.
        baggage: Whether to bind what the caller's baggage says of user, account, request and
            session: behind a gateway of your own only.
        records: Whether a record says how each request went. Failed ones always have one.
        tracer_provider: Makes the spans; None for OpenTelemetry's global one.
    """

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Handle one connection; those that are not HTTP requests pass through.

        When the server shuts the application down, what was emitted is sent: servers such as
        uvicorn end by the signal that stopped them, without exit handlers.
        """
        if scope["type"] == "lifespan":
            await self._app(scope, receive, _flushing(send))
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        _watch_django()
        request = _request(scope["method"], scope["path"])
        request.complete = lambda it: _name(it, _asgi_route(scope))
        client = scope.get("client")

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                _answer(request, message["status"])
            await send(message)

        with handling(
            request,
            headers,
            self._options,
            client_address=client[0] if client else None,
            user_agent_original=headers.get("user-agent"),
        ):
            await self._app(scope, receive, sent)


class WsgiMiddleware(_Middleware[WsgiApp]):
    """Around a WSGI application: ``app.wsgi_app = WsgiMiddleware(app.wsgi_app)`` in Flask.

    In Django: ``application = WsgiMiddleware(get_wsgi_application())``. Spans are named after the
    routes of both.

    The arguments are those of `AsgiMiddleware`.
    """

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Handle one request; it is over when its body was read."""
        _watch_django()
        request = _request(environ["REQUEST_METHOD"], environ.get("PATH_INFO", ""))
        request.complete = lambda it: _name(it, _wsgi_route(environ))

        def started(status: str, *rest: Any) -> Any:
            _answer(request, int(status[:3]))
            _name(request, _flask_route(environ))  # which is forgotten before the request is over
            return start_response(status, *rest)

        headers = {
            key[5:].replace("_", "-").lower(): value
            for key, value in environ.items()
            if key.startswith("HTTP_")
        }
        block = handling(
            request,
            headers,
            self._options,
            client_address=environ.get("REMOTE_ADDR"),
            user_agent_original=headers.get("user-agent"),
        )
        return InContext(block, lambda: self._app(environ, started))


def _flushing(send: Callable[[Message], Awaitable[None]]) -> Callable[[Message], Awaitable[None]]:
    async def sent(message: Message) -> None:
        await send(message)
        if message["type"].startswith("lifespan.shutdown."):
            await asyncio.to_thread(PROCESS_EXIT.flush_all)

    return sent


class InContext:
    """An iterable that is made, read and closed within a context manager, in its own context.

    Its reader may do other things in between, which are not part of the request.
    """

    def __init__(self, block: Any, make: Callable[[], Iterable[Any]]) -> None:
        self._block = block
        self._is_over = False
        self._context = contextvars.copy_context()
        self._context.run(block.__enter__)
        self._iterable: Iterable[Any] = self._guarded(make)
        self._iterator: Iterator[Any] = self._guarded(iter, self._iterable)

    def __iter__(self) -> "InContext":
        return self

    def __next__(self) -> Any:
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
        self._context.run(self._block.__exit__, kind, error, None)


def _request(method: str, path: str) -> Request:
    return Request(_SCOPE, method, {"http.request.method": method, "url.path": path})


def _answer(request: Request, status: int) -> None:
    request.status = status
    request.failed = status >= _FAILED
    request.attributes["http.response.status_code"] = status


def _name(request: Request, route: str | None) -> None:
    """After the framework's routing: the route's pattern, which holds no ids."""
    if route:
        request.attributes["http.route"] = route
        request.name = f"{request.attributes['http.request.method']} {route}"


def _asgi_route(scope: Mapping[str, Any]) -> str | None:
    if scope.get(_DJANGO):
        return _django_route(scope["path"].removeprefix(scope.get("root_path", "")))
    return getattr(scope.get("route"), "path", None)


def _wsgi_route(environ: Mapping[str, Any]) -> str | None:
    if environ.get(_DJANGO):
        # PEP 3333: text is bytes, as Latin-1.
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        return _django_route(path or "/")
    return _flask_route(environ)


def _flask_route(environ: Mapping[str, Any]) -> str | None:
    rule = getattr(environ.get("werkzeug.request"), "url_rule", None)
    return getattr(rule, "rule", None)


def _watch_django() -> None:
    """Have Django, where it is loaded, mark the requests that it handles."""
    global _is_watching  # noqa: PLW0603 - once in a process
    signals: Any = None if _is_watching else sys.modules.get("django.core.signals")
    if signals is not None:
        _is_watching = True
        signals.request_started.connect(_mark, dispatch_uid=_DJANGO)


def _mark(environ: Any = None, scope: Any = None, **_: Any) -> None:
    """A receiver of Django's signal, which brings one or the other."""
    (scope if environ is None else environ)[_DJANGO] = True


def _django_route(path: str) -> str | None:
    """Django's own resolver is asked once more; its request, which knows it, is out of reach."""
    urls: Any = sys.modules["django.urls"]
    try:
        route: str = urls.resolve(path).route
    except urls.Resolver404:
        return None
    return route if route.startswith("^") else f"/{route}"

"""Requests that servers handle: trace, context, span, and a record of how each went."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI, HTTPException
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from penstock import specs
from penstock.specs.emit.context import bound, trace_fields
from penstock.specs.otel.exporter import PenstockSpanExporter
from penstock.specs.testing import Capture
from penstock.specs.web.grpc import AioGrpcInterceptor, GrpcInterceptor
from penstock.specs.web.middleware import WsgiMiddleware

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def make_app(**options: Any) -> FastAPI:
    app = FastAPI()

    @app.get("/orders/{number}")
    async def order(number: int) -> dict[str, int]:
        specs.log("shop").info("looked up", number=number)
        if number == 0:
            raise HTTPException(503)
        if number < 0:
            raise ArithmeticError("negative")
        return {"number": number}

    app.add_middleware(specs.AsgiMiddleware, **options)
    return app


async def get(app: FastAPI, path: str, **headers: str) -> int:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return (await client.get(path, headers=named)).status_code


def said(capture: Capture) -> list[dict[str, Any]]:
    """Log records but those of the client."""
    return [
        record for record in capture.of("log") if record.get("scope") not in ("httpx", "asyncio")
    ]


async def test_a_request_has_a_trace_a_context_and_a_record(specs_capture: Capture) -> None:
    await get(make_app(), "/orders/7", traceparent=PARENT, user_agent="test")
    looked, handled = said(specs_capture)
    assert looked["trace_id"] == handled["trace_id"] == TRACE
    assert looked["context"]["request.id"] == handled["context"]["request.id"]
    assert "user_agent.original" not in handled["context"], "it is dropped by its marker"
    duration = handled["attributes"].pop("duration_ms")
    assert duration > 0
    assert handled["attributes"] == {
        "http.request.method": "GET", "url.path": "/orders/7", "http.route": "/orders/{number}",
        "http.response.status_code": 200,
    }  # fmt: skip
    assert bound().context == {}
    assert trace_fields() == {}


async def test_faults_are_errors_and_exceptions_go_on(specs_capture: Capture) -> None:
    app = make_app(records=False)
    assert await get(app, "/orders/0") == 503
    assert await get(app, "/orders/-1") == 500
    assert await get(app, "/nowhere") == 404
    handled = [r for r in said(specs_capture) if r["body"] == "request handled"]
    assert [record["severity_text"] for record in handled] == ["ERROR", "ERROR"]
    assert handled[1]["attributes"]["exception.type"] == "ArithmeticError"


async def test_a_request_without_a_trace_gets_one(specs_capture: Capture) -> None:
    await get(make_app(), "/orders/1")
    traces = {record["trace_id"] for record in said(specs_capture)}
    assert len(traces) == 1


async def test_callers_are_believed_only_when_told_to(specs_capture: Capture) -> None:
    await get(make_app(), "/orders/1", baggage="user.id=u-1,request.id=r-1")
    await get(make_app(baggage=True), "/orders/1", baggage="user.id=u-1,request.id=r-1")
    strange, believed = [r for r in said(specs_capture) if r["body"] == "looked up"]
    assert "user.id" not in strange["context"]
    assert believed["context"]["user.id"] == "u-1"
    assert believed["context"]["request.parent_id"] == "r-1"


def environ(path: str) -> dict[str, Any]:
    return {"REQUEST_METHOD": "GET", "PATH_INFO": path, "HTTP_TRACEPARENT": PARENT}


def test_wsgi_request_lasts_until_its_body_was_read(specs_capture: Capture) -> None:
    def app(given: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [])

        def body() -> Iterator[bytes]:
            specs.log().info("streaming")
            yield b"a"
            yield b"b"

        return body()

    statuses: list[str] = []
    parts = WsgiMiddleware(app)(environ("/x"), lambda status, _: statuses.append(status))
    iterator = iter(parts)
    assert next(iterator) == b"a"
    assert trace_fields() == {}, "between the parts the server does other things"
    assert list(iterator) == [b"b"]
    parts.close()  # type: ignore[attr-defined]  # as every WSGI server does
    streaming, handled = said(specs_capture)
    assert streaming["trace_id"] == handled["trace_id"] == TRACE
    assert handled["attributes"]["http.response.status_code"] == 200
    assert statuses == ["200 OK"]


def test_wsgi_application_that_fails_is_recorded(specs_capture: Capture) -> None:
    def app(given: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        WsgiMiddleware(app)(environ("/x"), lambda *_: None)
    (handled,) = said(specs_capture)
    assert handled["severity_text"] == "ERROR"


class Context:
    """A gRPC call's, as far as the interceptors look at it."""

    def __init__(self, code: Any = None) -> None:
        self._code = code

    def code(self) -> Any:
        return self._code


class Details:
    """What grpcio tells of a call."""

    method = "/shop.Orders/Place"
    invocation_metadata = (("traceparent", PARENT), ("blob-bin", b"\x00"))


def call(behavior: Callable[[Any, Any], Any], context: Context) -> Any:
    handler: Any = grpc.unary_unary_rpc_method_handler(behavior)
    found = GrpcInterceptor().intercept_service(lambda _: handler, Details())
    return found.unary_unary(1, context)


def test_grpc_call_goes_on_with_its_callers_trace(specs_capture: Capture) -> None:
    def behavior(given: int, context: Any) -> int:
        specs.log().info("placing")
        return given + 1

    assert call(behavior, Context()) == 2
    placing, handled = said(specs_capture)
    assert placing["trace_id"] == handled["trace_id"] == TRACE
    assert handled["attributes"]["rpc.method"] == "Place"
    assert handled["attributes"]["rpc.grpc.status"] == "OK"


@pytest.mark.parametrize(
    ("code", "status", "severity"),
    [
        (grpc.StatusCode.NOT_FOUND, "NOT_FOUND", "INFO"),
        (grpc.StatusCode.INTERNAL, "INTERNAL", "ERROR"),
        (None, "UNKNOWN", "ERROR"),
    ],
)
def test_grpc_abort_is_an_answer_and_other_exceptions_are_not(
    specs_capture: Capture, code: Any, status: str, severity: str
) -> None:
    def behavior(given: int, context: Any) -> int:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        call(behavior, Context(code))
    (handled,) = said(specs_capture)
    assert (handled["attributes"]["rpc.grpc.status"], handled["severity_text"]) == (
        status, severity,
    )  # fmt: skip
    assert ("exception.type" in handled["attributes"]) == (code is None)


def test_grpc_stream_lasts_until_it_was_read(specs_capture: Capture) -> None:
    def behavior(given: int, context: Any) -> Iterator[int]:
        yield given
        specs.log().info("streaming")
        yield given + 1

    handler: Any = grpc.unary_stream_rpc_method_handler(behavior)
    found = GrpcInterceptor().intercept_service(lambda _: handler, Details())
    assert list(found.unary_stream(1, Context())) == [1, 2]
    assert [r["body"] for r in said(specs_capture)] == ["streaming", "request handled"]


def test_a_method_that_is_not_there_stays_so() -> None:
    assert GrpcInterceptor().intercept_service(lambda _: None, Details()) is None


async def test_asyncio_grpc_calls_and_streams(specs_capture: Capture) -> None:
    async def unary(given: int, context: Any) -> int:
        await asyncio.sleep(0)
        return given

    async def stream(given: int, context: Any) -> Any:
        yield given
        yield given

    def answering(handler: Any) -> Callable[[Any], Awaitable[Any]]:
        async def continuation(_: Any) -> Any:
            return handler

        return continuation

    interceptor = AioGrpcInterceptor()
    one = await interceptor.intercept_service(
        answering(grpc.unary_unary_rpc_method_handler(unary)), Details()
    )
    assert await one.unary_unary(3, Context(5)) == 3
    many = await interceptor.intercept_service(
        answering(grpc.unary_stream_rpc_method_handler(stream)), Details()
    )
    assert [answer async for answer in many.unary_stream(4, Context(0))] == [4, 4]
    found = [record["attributes"]["rpc.grpc.status"] for record in said(specs_capture)]
    assert found == ["NOT_FOUND", "OK"]


async def test_a_request_that_django_handles_is_named_after_its_route(
    specs_capture: Capture,
) -> None:
    """By ASGI; by WSGI it is in the table of frameworks."""
    asgi = django_site()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(PenstockSpanExporter(specs_capture.emitter)))
    app = specs.AsgiMiddleware(asgi, tracer_provider=provider)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/orders/7/", "/old/7", "/nowhere/"):
            await client.get(path, headers={"traceparent": PARENT})
    spans = specs_capture.of("span")
    assert [span["name"] for span in spans if span["span_kind"] == "SERVER"] == [
        "GET /orders/<int:number>/", "GET ^old/([0-9]+)$", "GET",
    ]  # fmt: skip
    handled = [record for record in said(specs_capture) if record["body"] == "request handled"]
    assert {record["trace_id"] for record in handled} == {TRACE}


def django_site() -> Any:
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpRequest, HttpResponse
    from django.urls import path, re_path

    def order(request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse("ok")

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=(), LOGGING_CONFIG=None)
        django.setup()
    settings.ROOT_URLCONF = (path("orders/<int:number>/", order), re_path("^old/([0-9]+)$", order))
    return get_asgi_application()

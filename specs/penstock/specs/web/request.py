"""One request that a server handles: its trace, its context, and one record of how it went.

The middlewares share this. With OpenTelemetry, its propagators read the headers and its tracer
makes the request's span; without, records of the request have the ids of its ``traceparent``. What
identifies people (address, user agent) is bound as context and treated by its markers.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from penstock.base import clock
from penstock.specs import ids
from penstock.specs.emit import process_sink
from penstock.specs.emit.context import bind, parse_traceparent, trace_fields, use_trace

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import TextMapPropagator

try:
    from opentelemetry import baggage as otel_baggage
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import (
        INVALID_SPAN,
        NonRecordingSpan,
        ProxyTracerProvider,
        SpanKind,
        StatusCode,
        get_current_span,
        get_tracer_provider,
        set_span_in_context,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:  # the extra `app` is not installed
    _has_api = False
else:
    _has_api = True

    class _HeaderGetter(Getter[Mapping[str, str]]):
        """Propagators may ask with capitals; the names of headers are lower-case."""

        @override
        def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
            value = carrier.get(key.lower())
            return None if value is None else [value]

        @override
        def keys(self, carrier: Mapping[str, str]) -> list[str]:
            return list(carrier)


_LOGGER: Final = logging.getLogger("penstock.specs")
_SCOPE: Final = "penstock.specs"
_BAGGAGE: Final = {
    "user.id": "user_id",
    "account.id": "account_id",
    "account.license": "account_license",
    "request.id": "request_parent_id",
    "session.id": "session_id",
}
"""W3C Baggage keys that are accepted, and the field that each is bound as."""


def _find_propagator() -> "Callable[[], TextMapPropagator]":
    """Return OpenTelemetry's propagator; W3C's where OTEL_PROPAGATORS cannot be honoured."""
    try:
        from opentelemetry.propagate import get_global_textmap
    except Exception as error:  # noqa: BLE001 - the application starts, whatever a variable says
        _LOGGER.warning("OTEL_PROPAGATORS is ignored, tracecontext is used: %r", error)
        return TraceContextTextMapPropagator
    return get_global_textmap


_propagator: Final = _find_propagator() if _has_api else None


@contextmanager
def caller_bound(headers: Mapping[str, str], *, baggage: bool) -> Iterator[None]:
    """Within the block the caller's trace is current, or a new one; and what its baggage says.

    A framework that traces the request itself has seen to the trace.

    Args:
        headers: Headers with lower-case names.
        baggage: Whether to believe what the caller says of user, account, request and session. Its
            request becomes ``request.parent_id``. Needs OpenTelemetry.
    """
    with ExitStack() as stack:
        if _propagator is not None:
            found = _extract(_propagator, headers)
            if not get_current_span().is_recording():
                _make_current(get_current_span(found), stack)
            if baggage:
                stack.enter_context(bind(**_said(found)))
        elif (trace := parse_traceparent(headers.get("traceparent", ""))) is not None:
            stack.enter_context(use_trace(trace))
        if not trace_fields():
            stack.enter_context(use_trace({"trace_id": ids.trace_id()}))
        yield


def _extract(propagator: "Callable[[], TextMapPropagator]", headers: Mapping[str, str]) -> Any:
    try:
        return propagator().extract(headers, Context(), _HeaderGetter())
    except Exception as error:  # noqa: BLE001 - others' code must not hurt the app
        _LOGGER.warning("the caller's trace is not read: %r", error)
        return Context()


def _make_current(caller: Any, stack: ExitStack) -> None:
    here = get_current_span()
    has_ended = not isinstance(here, NonRecordingSpan)  # what runs here has outlived it
    if caller.get_span_context().is_valid or has_ended:
        span = caller if caller.get_span_context().is_valid else INVALID_SPAN
        stack.callback(detach, attach(set_span_in_context(span)))


def _said(context: Any) -> dict[str, str]:
    said = otel_baggage.get_all(context)
    return {name: str(said[key]) for key, name in _BAGGAGE.items() if said.get(key)}


_INFO: Final = 9
_ERROR: Final = 17
_BODY: Final = "request handled"


@dataclass(slots=True)
class Request:
    """A request, before and after it is handled.

    Attributes:
        scope: The record's, as in ``http.server``.
        name: The span's: of low cardinality, hence without ids. May be set later.
        attributes: OpenTelemetry's, as in ``http.request.method``.
        status: The answer's status; None without an answer.
        failed: Whether that status is the server's fault.
        is_answered: Whether an exception is only how the handler gives its answer.
        complete: Called when it was handled, for what is known only then, such as its route.
    """

    scope: str
    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    status: int | str | None = None
    failed: bool = False
    is_answered: bool = False
    complete: Callable[["Request"], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The treatment of a server's requests.

    Attributes:
        baggage: Whether callers are believed who they act for: behind one's own gateway only.
        records: Whether a record says how each request went.
        tracer_provider: Makes the requests' spans; None for OpenTelemetry's global one.
    """

    baggage: bool = False
    records: bool = True
    tracer_provider: Any = None


@contextmanager
def handling(
    request: Request, headers: Mapping[str, str], options: ServerOptions, **context: Any
) -> Iterator[None]:
    """Handle a request within the block; what it raises is recorded and raised.

    Args:
        request: Filled in by the block.
        headers: Headers with lower-case names.
        options: The server's.
        context: Bound, as `bind` takes it.
    """
    begun_ns = clock.monotonic_ns()
    with ExitStack() as stack:
        stack.enter_context(caller_bound(headers, baggage=options.baggage))
        stack.enter_context(bind(request_id=ids.record_id(), **context))
        stack.enter_context(_server_span(request, options.tracer_provider))
        try:
            yield
        except Exception as error:
            request.failed = request.failed or not request.is_answered
            _complete(request)
            _record(request, begun_ns, options, None if request.is_answered else error)
            raise
        _complete(request)
        _record(request, begun_ns, options, None)


@contextmanager
def _server_span(request: "Request", tracer_provider: Any) -> Iterator[None]:
    """OpenTelemetry's span around the block, unless one is recorded: some frameworks do so.

    There is none where no tracer provider is set up. What is known of the request at its end is on
    it; what raised an exception has its status already. Exceptions are recorded by the log record,
    not as span events.
    """
    provider = tracer_provider
    if _has_api and provider is None:
        known = get_tracer_provider()
        provider = None if isinstance(known, ProxyTracerProvider) else known
    if provider is None or get_current_span().is_recording():
        yield
        return
    with provider.get_tracer(_SCOPE).start_as_current_span(
        request.name, kind=SpanKind.SERVER, attributes=request.attributes, record_exception=False
    ) as running:
        try:
            yield
        finally:
            running.update_name(request.name)
            running.set_attributes(request.attributes)
            if request.failed:
                running.set_status(StatusCode.ERROR)


def _complete(request: Request) -> None:
    if request.complete is not None:
        with suppress(Exception):  # a framework of another version: there is a name without it
            request.complete(request)


def _record(
    request: Request, begun_ns: int, options: ServerOptions, error: BaseException | None
) -> None:
    sink = process_sink.sink()
    if sink is None or not (options.records or request.failed):
        return
    fields = {
        **request.attributes,
        "duration_ms": round((clock.monotonic_ns() - begun_ns) / 1e6, 3),
    }
    severity = _ERROR if request.failed else _INFO
    sink.logs.write(_BODY, severity, fields, scope=request.scope, error=error)

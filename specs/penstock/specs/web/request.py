"""One request that a server handles: its trace, its context, a span, and one record of how it went.

The middlewares share this. What identifies people (address, user agent) is bound as context and
treated by its markers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.specs import clock, environment
from penstock.specs.emit import current
from penstock.specs.emit.context import bind
from penstock.specs.trace.propagation import continued, new_trace
from penstock.specs.trace.span import RunningSpan, span
from penstock.specs.trace.span_context import is_tracing

try:
    from opentelemetry.trace import (
        ProxyTracerProvider,
        SpanKind,
        StatusCode,
        get_tracer,
        get_tracer_provider,
    )
except ImportError:  # the extra `app` is not installed
    _has_api = False
else:
    _has_api = True

_SCOPE: Final = "penstock.specs"


class ServerSpan:
    """Filled in when the request was handled; nothing where the framework traces itself."""

    def __init__(self, running: Any = None) -> None:
        self._span = running

    def finish(self, name: str, attributes: Mapping[str, Any], *, failed: bool) -> None:
        """Say what is known now. What raised an exception has its status already."""
        if isinstance(self._span, RunningSpan):
            self._span.name = name
            self._span.set(attributes)
            if failed:
                self._span.fail()
        elif self._span is not None:
            self._span.update_name(name)
            self._span.set_attributes(attributes)
            if failed:
                self._span.set_status(StatusCode.ERROR)


@contextmanager
def server_span(name: str, attributes: Mapping[str, Any]) -> Iterator[ServerSpan]:
    """A span around the block, unless one is running: some frameworks trace themselves.

    Ours is left out where OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER say that spans are not wanted.

    Exceptions are recorded by the log record, not as span events.
    """
    if is_tracing():
        yield ServerSpan()
    elif _has_api and not isinstance(get_tracer_provider(), ProxyTracerProvider):
        with get_tracer(_SCOPE).start_as_current_span(
            name, kind=SpanKind.SERVER, attributes=attributes, record_exception=False
        ) as running:
            yield ServerSpan(running)
    elif environment.sdk_is_disabled() or not environment.is_exported("traces"):
        yield ServerSpan()
    else:
        with span(name, kind="SERVER", scope=_SCOPE, **attributes) as own:
            yield ServerSpan(own)


_INFO: Final = 9
_ERROR: Final = 17
_BODY: Final = "request handled"


@dataclass(slots=True)
class Request:
    """What is known of a request, before and after.

    Attributes:
        scope: The record's, as in ``http.server``.
        name: The span's: of low cardinality, hence without ids. May be set later.
        attributes: OpenTelemetry's, as in ``http.request.method``.
        status: Of the answer; None when there was none.
        failed: Whether that status is the server's fault.
        is_answered: What is raised is only how the handler gives its answer.
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
class Habits:
    """How a server treats requests.

    Attributes:
        baggage: Whether callers are believed who they act for: behind one's own gateway only.
        records: Whether a record says how each request went.
    """

    baggage: bool = False
    records: bool = True


@contextmanager
def handling(
    request: Request, headers: Mapping[str, str], habits: Habits, **context: Any
) -> Iterator[None]:
    """Handle a request within the block; what it raises is recorded and raised.

    Args:
        request: Filled in by the block.
        headers: With lower-case names.
        habits: The server's.
        context: Bound, as `bind` takes it.
    """
    begun_ns = clock.monotonic_ns()
    with ExitStack() as stack:
        # Where something is traced, another middleware has gone on with the caller's trace.
        is_first = not is_tracing()
        stack.enter_context(continued(headers, baggage=habits.baggage, trace=is_first))
        stack.enter_context(bind(request_id=clock.record_id(), **context))
        span = stack.enter_context(server_span(request.name, request.attributes))
        stack.enter_context(new_trace())
        try:
            yield
        except Exception as error:
            request.failed = request.failed or not request.is_answered
            _complete(request)
            _record(request, begun_ns, habits, None if request.is_answered else error)
            raise
        else:
            _complete(request)
            _record(request, begun_ns, habits, None)
        finally:
            span.finish(request.name, request.attributes, failed=request.failed)


def _complete(request: Request) -> None:
    if request.complete is not None:
        with suppress(Exception):  # a framework of another version: there is a name without it
            request.complete(request)


def _record(request: Request, begun_ns: int, habits: Habits, error: BaseException | None) -> None:
    sink = current.sink()
    if sink is None or not (habits.records or request.failed):
        return
    fields = {
        **request.attributes,
        "duration_ms": round((clock.monotonic_ns() - begun_ns) / 1e6, 3),
    }
    severity = _ERROR if request.failed else _INFO
    sink.logs.write(_BODY, severity, fields, scope=request.scope, error=error)

"""One request that a server handles: its trace, its context, a span, and one record of how it went.

The middlewares share this. What identifies people (address, user agent) is bound as context and
treated by its markers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.specs import clock, current
from penstock.specs.bound import bind
from penstock.specs.propagation import continued, new_trace
from penstock.specs.server_span import server_span
from penstock.specs.traces import is_tracing

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

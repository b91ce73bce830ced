"""The span of one handled request: OpenTelemetry's where that is set up, else one of ours."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from penstock.specs import environment
from penstock.specs.traces import is_tracing
from penstock.specs.tracing import RunningSpan, span

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

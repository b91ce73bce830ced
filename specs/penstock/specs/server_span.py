"""OpenTelemetry's span of one handled request, where OpenTelemetry is installed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

try:
    from opentelemetry.trace import SpanKind, StatusCode, get_current_span, get_tracer
except ImportError:  # the extra `app` is not installed
    _has_spans = False
else:
    _has_spans = True


class ServerSpan:
    """Filled in when the request was handled; without OpenTelemetry, nothing."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def finish(self, name: str, attributes: Mapping[str, Any], *, failed: bool) -> None:
        """Say what is known now. What raised an exception has its status already."""
        if self._span is not None:
            self._span.update_name(name)
            self._span.set_attributes(attributes)
            if failed:
                self._span.set_status(StatusCode.ERROR)


@contextmanager
def server_span(name: str, attributes: Mapping[str, Any]) -> Iterator[ServerSpan]:
    """A span around the block, unless one is running: some frameworks trace themselves.

    Exceptions are recorded by the log record, not as span events.
    """
    if not _has_spans or get_current_span().is_recording():
        yield ServerSpan()
        return
    tracer = get_tracer("penstock.specs")
    with tracer.start_as_current_span(
        name, kind=SpanKind.SERVER, attributes=attributes, record_exception=False
    ) as span:
        yield ServerSpan(span)

"""The ids of the span that is running, if OpenTelemetry is installed and there is one."""

from collections.abc import Callable
from typing import Any

_current_span: Callable[[], Any] | None
try:
    from opentelemetry.trace import get_current_span
except ImportError:  # the extra `app` is not installed: records carry no trace ids
    _current_span = None
else:
    _current_span = get_current_span


def trace_fields() -> dict[str, Any]:
    """``trace_id``, ``span_id`` and ``trace_flags`` of the current span, or nothing."""
    if _current_span is None:
        return {}
    span = _current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
        "trace_flags": int(span.trace_flags),
    }

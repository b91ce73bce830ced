"""The ids of the trace that is running: OpenTelemetry's current span, else one that was bound."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from penstock.specs.bound import bound

_current_context: Callable[[], Any] | None
try:
    from opentelemetry import context as otel_context
    from opentelemetry.context import attach, detach, get_current
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        TraceState,
        get_current_span,
        set_span_in_context,
    )
except ImportError:  # the extra `app` is not installed
    _current_context = None
else:
    # What `get_current` asks, two calls further down; every record needs it.
    _holder = getattr(otel_context._RUNTIME_CONTEXT, "_current_context", None)  # noqa: SLF001
    _current_context = _holder.get if isinstance(_holder, ContextVar) else get_current

_known: tuple[Any, Mapping[str, Any] | None] = (None, None)
"""OpenTelemetry's context that was looked at last, which cannot change, and its span's fields."""


def trace_fields() -> Mapping[str, Any]:
    """``trace_id``, ``span_id`` and ``trace_flags``, or nothing. Not to be changed."""
    global _known  # noqa: PLW0603 - a memo of one, replaced as a whole
    fields = None
    if _current_context is not None:
        context = _current_context()
        known, fields = _known
        if context is not known:
            fields = _span_fields(context)
            _known = (context, fields)
    return bound().trace if fields is None else fields


def trace_state() -> str:
    """The vendors' part of the running trace (W3C ``tracestate``)."""
    if _current_context is not None:
        span = get_current_span().get_span_context()
        if span.is_valid:
            return span.trace_state.to_header()
    return bound().trace_state


@contextmanager
def remote_parent(trace: Mapping[str, Any], state: str) -> Iterator[None]:
    """Make OpenTelemetry's next span, within the block, a child of one elsewhere.

    Unless a span of this process is running: a framework that traces itself has seen to it.
    """
    if _current_context is None or get_current_span().is_recording():
        yield
        return
    span = SpanContext(
        int(trace["trace_id"], 16),
        int(trace["span_id"], 16),
        is_remote=True,
        trace_flags=TraceFlags(trace["trace_flags"]),
        trace_state=TraceState.from_header([state]) if state else None,
    )
    token = attach(set_span_in_context(NonRecordingSpan(span)))
    try:
        yield
    finally:
        detach(token)


def _span_fields(context: Any) -> dict[str, Any] | None:
    span = get_current_span(context).get_span_context()
    if not span.is_valid:
        return None
    return {
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
        "trace_flags": int(span.trace_flags),
    }

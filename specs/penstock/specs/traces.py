"""The ids of the trace that is running: OpenTelemetry's current span, else one that was entered."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, NamedTuple

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

    class _OwnSpan(NonRecordingSpan):
        """One of ours, to OpenTelemetry: a parent, nothing that it could write to."""


class Running(NamedTuple):
    """A trace that goes on here.

    Attributes:
        fields: ``trace_id``, ``span_id`` and ``trace_flags`` as a record has them, or nothing.
        state: The vendors' part of it (W3C ``tracestate``), to be passed on.
        is_ours: Whether a span of ours runs it, rather than a caller.
    """

    fields: Mapping[str, Any]
    state: str
    is_ours: bool = False


_NOTHING: Final = Running(MappingProxyType({}), "")
_RUNNING: Final = ContextVar("penstock_running", default=_NOTHING)
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
    return _RUNNING.get().fields if fields is None else fields


def trace_state() -> str:
    """The vendors' part of the running trace (W3C ``tracestate``)."""
    if _current_context is not None:
        span = get_current_span().get_span_context()
        if span.is_valid:
            return span.trace_state.to_header()
    return _RUNNING.get().state


@contextmanager
def use_trace(fields: Mapping[str, Any], state: str) -> Iterator[None]:
    """Records made within the block belong to this trace, where OpenTelemetry runs none."""
    token = _RUNNING.set(Running(fields, state))
    try:
        yield
    finally:
        _RUNNING.reset(token)


@contextmanager
def remote_parent(trace: Mapping[str, Any], state: str) -> Iterator[None]:
    """Make OpenTelemetry's next span, within the block, a child of one elsewhere.

    Unless a span of this process is running: a framework that traces itself has seen to it.
    """
    if _current_context is None or is_tracing():
        yield
        return
    token = attach(
        set_span_in_context(NonRecordingSpan(_span_context(trace, state, is_remote=True)))
    )
    try:
        yield
    finally:
        detach(token)


def enter_span(fields: Mapping[str, Any], state: str) -> Any:
    """From here on a span of ours is running; returns what `leave_span` takes.

    It is the parent of OpenTelemetry's next span, too.
    """
    global _known  # noqa: PLW0603 - as in `trace_fields`
    if _current_context is None:
        return _RUNNING.set(Running(fields, state, is_ours=True))
    span = _OwnSpan(_span_context(fields, state, is_remote=False))
    token = attach(set_span_in_context(span))
    _known = (_current_context(), fields)
    return token


def leave_span(token: Any) -> None:
    """What was running before is running again.

    A generator may end in another context than it began in; then there is nothing to go back to.
    """
    if _current_context is not None:
        detach(token)
        return
    with suppress(ValueError):
        _RUNNING.reset(token)


def is_tracing() -> bool:
    """Whether OpenTelemetry's or a span of ours is running, made in this process."""
    if _current_context is None:
        return _RUNNING.get().is_ours
    span = get_current_span()
    return span.is_recording() or isinstance(span, _OwnSpan)


def _span_context(fields: Mapping[str, Any], state: str, *, is_remote: bool) -> "SpanContext":
    return SpanContext(
        int(fields["trace_id"], 16),
        int(fields["span_id"], 16),
        is_remote=is_remote,
        trace_flags=TraceFlags(fields["trace_flags"]),
        trace_state=TraceState.from_header([state]) if state else None,
    )


def _span_fields(context: Any) -> dict[str, Any] | None:
    span = get_current_span(context).get_span_context()
    if not span.is_valid:
        return None
    return {
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
        "trace_flags": int(span.trace_flags),
    }

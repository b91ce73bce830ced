"""The ids of the trace that is running: OpenTelemetry's current span, else one that was entered."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

_current_context: Callable[[], Any] | None
try:
    from opentelemetry import context as otel_context
    from opentelemetry.context import Context, attach, detach, get_current
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

        def __init__(self, context: SpanContext, work: "Work") -> None:
            super().__init__(context)
            self.work = work


@dataclass(slots=True, eq=False)
class Work:
    """A span of ours, as long as something runs within it.

    Attributes:
        is_server: It is a request that is handled.
        has_ended: What was begun within it may outlive it.
        ids: As a record has them.
    """

    is_server: bool
    has_ended: bool = False
    ids: Mapping[str, Any] | None = None


class Running(NamedTuple):
    """A trace that goes on here.

    Attributes:
        fields: ``trace_id``, ``span_id`` and ``trace_flags`` as a record has them, or nothing.
        state: The vendors' part of it (W3C ``tracestate``), to be passed on.
        work: The span of ours within which it goes on.
    """

    fields: Mapping[str, Any]
    state: str
    work: Work | None = None


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
    token = _RUNNING.set(Running(fields, state, _RUNNING.get().work))
    try:
        yield
    finally:
        _RUNNING.reset(token)


@contextmanager
def remote_parent(trace: Mapping[str, Any], state: str) -> Iterator[None]:
    """Make OpenTelemetry's next span, within the block, a child of one elsewhere.

    Unless a span of OpenTelemetry's is recorded: a framework that traces itself has seen to it.
    """
    if _current_context is None or get_current_span().is_recording():
        yield
        return
    token = attach(
        set_span_in_context(NonRecordingSpan(_span_context(trace, state, is_remote=True)))
    )
    try:
        yield
    finally:
        detach(token)


def enter_span(fields: Mapping[str, Any], state: str, work: Work) -> Any:
    """From here on a span of ours is running; returns what `leave_span` takes.

    It is the parent of OpenTelemetry's next span, too.
    """
    global _known  # noqa: PLW0603 - as in `trace_fields`
    work.ids = fields
    ours = _RUNNING.set(Running(fields, state, work))
    if _current_context is None:
        return ours, None
    span = _OwnSpan(_span_context(fields, state, is_remote=False), work)
    theirs = attach(set_span_in_context(span))
    _known = (_current_context(), fields)
    return ours, theirs


def leave_span(tokens: Any) -> None:
    """What was running before is running again.

    A generator may end in another context than it began in; then there is nothing to go back to.
    """
    ours, theirs = tokens
    with suppress(ValueError, RuntimeError):
        _RUNNING.reset(ours)
        if theirs is not None:
            detach(theirs)


def is_tracing() -> bool:
    """Whether a request is being handled within a span already, OpenTelemetry's or ours."""
    work = _RUNNING.get().work
    if work is not None and work.is_server and not work.has_ended:
        return True
    return _current_context is not None and bool(get_current_span().is_recording())


def has_outlived() -> bool:
    """Whether what runs here was begun within a span of ours that has ended."""
    running = _RUNNING.get()
    work = running.work
    if work is None or not work.has_ended or running.fields is not work.ids:
        return False
    if _current_context is None:
        return True
    span = get_current_span()
    return isinstance(span, _OwnSpan) and span.work is work


def to_foreign(fields: Mapping[str, Any] | None, state: str = "") -> Any:
    """A context of OpenTelemetry's in which this trace, or none, is running."""
    if fields is None:
        return Context()
    span = NonRecordingSpan(_span_context(fields, state, is_remote=False))
    return set_span_in_context(span, Context())


def from_foreign(context: Any) -> tuple[Mapping[str, Any], str] | None:
    """The trace that is running in a context of OpenTelemetry's, and its state; None if none is."""
    fields = _span_fields(context)
    if fields is None:
        return None
    return fields, get_current_span(context).get_span_context().trace_state.to_header()


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

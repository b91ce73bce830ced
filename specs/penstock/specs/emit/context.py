"""The context of the running task: what is bound, and the ids of its trace."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from penstock.specs.models.attributes import clean_attributes, clean_text, encodable
from penstock.specs.models.envelope import ZERO_SPAN, ZERO_TRACE, Context

_current_context: Callable[[], Any] | None
try:
    from opentelemetry import context as otel_context
    from opentelemetry.trace import get_current_span
except ImportError:  # the extra `app` is not installed
    _current_context = None
else:
    # What `get_current` asks, two calls further down; every record needs it.
    _holder = getattr(otel_context._RUNTIME_CONTEXT, "_current_context", None)  # noqa: SLF001
    _current_context = _holder.get if isinstance(_holder, ContextVar) else otel_context.get_current

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class Bound:
    """An immutable binding.

    Attributes:
        context: Context with the wire's keys (``user.id``).
        attributes: Clean, and encodable.
    """

    context: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


_BOUND: ContextVar[Bound] = ContextVar("penstock_bound", default=Bound())  # noqa: B039 - frozen
_KEYS: Final = {
    key: (field.alias or name)
    for name, field in Context.model_fields.items()
    for key in (name, field.alias or name)
}
_LENGTHS: Final = {
    field.alias or name: next(
        (rule.max_length for rule in field.metadata if hasattr(rule, "max_length")), 64
    )
    for name, field in Context.model_fields.items()
}


@contextmanager
def bind(**given: Any) -> Iterator[None]:
    """Add fields to every record made within the block, in this thread or asyncio task.

    Names of `Context` (``user_id``, ``request_id``, …) become context; all others attributes. Tasks
    and `asyncio.to_thread` inherit the binding. Threads and executors do where their work runs in a
    copy of the context: ``executor.submit(contextvars.copy_context().run, work)``.
    """
    before = _BOUND.get()
    context, attributes = dict(before.context), {}
    for name, value in given.items():
        key = _KEYS.get(name)
        if key is None:
            attributes[name] = value
        elif value is not None:
            context[key] = encodable(clean_text(value, _LENGTHS[key]))
    clean, _ = clean_attributes(attributes)
    merged = {**before.attributes, **encodable(clean)}
    token = _BOUND.set(replace(before, context=context, attributes=merged))
    try:
        yield
    finally:
        _BOUND.reset(token)


bound: Final = _BOUND.get
"""Return what is bound here and now."""


_TRACE: Final[ContextVar[Mapping[str, Any]]] = ContextVar(
    "penstock_trace", default=MappingProxyType({})
)
_known: tuple[Any, Mapping[str, Any] | None] = (None, None)
"""OpenTelemetry's context that was read last, which cannot change, and its span's ids."""


def trace_fields() -> Mapping[str, Any]:
    """``trace_id``, ``span_id`` and ``trace_flags`` of here and now, or nothing. Not to be changed.

    They are those of OpenTelemetry's current span; where there is none, those of `use_trace`.
    """
    global _known  # noqa: PLW0603 - a memo of one, replaced as a whole
    fields = None
    if _current_context is not None:
        context = _current_context()
        known, fields = _known
        if context is not known:
            fields = _span_fields(context)
            _known = (context, fields)
    return _TRACE.get() if fields is None else fields


@contextmanager
def use_trace(fields: Mapping[str, Any]) -> Iterator[None]:
    """Records made within the block have these ids, unless OpenTelemetry has a current span."""
    token = _TRACE.set(fields)
    try:
        yield
    finally:
        _TRACE.reset(token)


def parse_traceparent(text: str) -> dict[str, Any] | None:
    """The ids of a W3C ``traceparent`` header; None if it is not well formed."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    unknown = version == "ff" or (version == "00" and rest is not None)
    if unknown or trace_id == ZERO_TRACE or span_id == ZERO_SPAN:
        return None
    return {"trace_id": trace_id, "span_id": span_id, "trace_flags": int(flags, 16)}


def _span_fields(context: Any) -> dict[str, Any] | None:
    span = get_current_span(context).get_span_context()
    if not span.is_valid:
        return None
    return {
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
        "trace_flags": int(span.trace_flags),
    }

"""The context that OpenTelemetry's spans and log records keep until they are exported.

The SDK exports in a separate thread, where nothing is bound. So the bound context is stored on an
object that the running and the exported span or record share: a span's `SpanContext`, and a log
record's attributes, which the SDK does not copy. It lives as long as they do, so spans that never
end, or that nobody exports, leave nothing behind.
"""

import weakref
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk._logs import (
    LoggerProvider,
    LogRecordProcessor,
    ReadableLogRecord,
    ReadWriteLogRecord,
)
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from typing_extensions import override

from penstock.specs.emit.context import Bound, bound

_KEPT: Final = "penstock.bound"
"""No identifier: nothing that the API may call its own attribute."""

_has_processor: Final[weakref.WeakSet[TracerProvider | LoggerProvider]] = weakref.WeakSet()


class BoundSpanProcessor(SpanProcessor):
    """Stores, for `PenstockSpanExporter`, what is bound when a span starts.

    `setup` and `install` bring it, also to a provider that was set before. One that is made later,
    or is not the global one, gets it by hand, in any order:
    ``provider.add_span_processor(BoundSpanProcessor())``.
    """

    @override
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        here = bound()
        if here.context or here.attributes:
            _members(span.get_span_context())[_KEPT] = here


class BoundLogRecordProcessor(LogRecordProcessor):
    """Stores, for `PenstockLogRecordExporter`, what is bound when a log record is emitted.

    `setup` and `install` bring it to the global provider, if there is one. Others get it by hand,
    before what exports: ``provider.add_log_record_processor(BoundLogRecordProcessor())``.
    """

    @override
    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        here = bound()
        if here.context or here.attributes:
            _members(log_record.log_record.attributes)[_KEPT] = here

    @override
    def shutdown(self) -> None:
        """Do nothing: it holds nothing."""

    @override
    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def add_bound_processor(provider: object) -> None:
    """Give one of the SDK's providers, once, the processor that stores what is bound."""
    if not isinstance(provider, (TracerProvider, LoggerProvider)) or provider in _has_processor:
        return
    _has_processor.add(provider)
    if isinstance(provider, TracerProvider):
        provider.add_span_processor(BoundSpanProcessor())
    else:
        provider.add_log_record_processor(BoundLogRecordProcessor())
        _put_first(provider)


def _put_first(provider: LoggerProvider) -> None:
    """The processor added last before those that export: a batch may be exported meanwhile."""
    several: Any = getattr(provider, "_multi_log_record_processor", None)
    processors = getattr(several, "_log_record_processors", None)
    if isinstance(processors, tuple):
        several._log_record_processors = (processors[-1], *processors[:-1])  # noqa: SLF001


def bound_at_start(span: ReadableSpan) -> Bound | None:
    """Return what was bound when the span started; None where no `BoundSpanProcessor` saw it."""
    found: Bound | None = _members(span.context).get(_KEPT)
    return found


def bound_at_emit(readable: ReadableLogRecord) -> Bound | None:
    """Return what was bound at its emission; None where no `BoundLogRecordProcessor` saw it."""
    found: Bound | None = _members(readable.log_record.attributes).get(_KEPT)
    return found


def _members(holder: Any) -> dict[str, Any]:
    """Return an object's `__dict__`; an empty one where it has none."""
    members: dict[str, Any] = getattr(holder, "__dict__", {})
    return members

"""Tracers whose spans are looked at, and not sent."""

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from penstock.service.tracing import TracingSection
from penstock.service.tracing.spans import Tracer


class RecordingTracer(Tracer):
    """Keeps the spans that ended."""

    def __init__(self, section: TracingSection) -> None:
        self.kept = InMemorySpanExporter()
        super().__init__(section, self.kept, resource={}, processor=SimpleSpanProcessor(self.kept))


def make_tracer(**keys: Any) -> RecordingTracer:
    """Traces everything, unless the keys say otherwise."""
    usual = {"endpoint": "http://127.0.0.1:1", "sample": 1}
    return RecordingTracer(TracingSection.model_validate(usual | keys))


def ended(tracer: RecordingTracer) -> list[ReadableSpan]:
    """The spans that ended since the last look."""
    spans = [*tracer.kept.get_finished_spans()]
    tracer.kept.clear()
    return spans


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(span.attributes or {})


def error_of(span: ReadableSpan) -> str:
    """Why the work failed; empty: it did not."""
    return span.status.description or ""


def context_of(span: ReadableSpan) -> SpanContext:
    """The ids of a span."""
    context = span.get_span_context()
    assert context is not None
    return context

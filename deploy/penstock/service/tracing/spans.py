"""Spans of a process's own work, made and sent with OpenTelemetry's SDK."""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal

import requests
import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, TraceIdRatioBased
from opentelemetry.trace import (
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from typing_extensions import override

from penstock.base.clock import Clock, SystemClock
from penstock.service.release import release
from penstock.service.tracing.section import OUTCOMES, TracingSection, span_of

LINKS_MAX: Final = 16
"""Links of one span; of more, the newest are kept."""

BATCH_SPANS_MAX: Final = 256
"""Spans of one request."""

_TEXT_MAX: Final = 512
_TIMEOUT_S: Final = 5.0
"""Time for one batch, retries included."""
_DELAY_MS: Final = 1000
"""Spans wait so long for others."""

Kind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
Value = str | int | float | bool


class Tracer:
    """Begins and ends spans, of which a share is recorded. Used on any thread.

    Args:
        section: The section of the configuration.
        exporter: Sends the spans.
        resource: Resource of the spans.
        processor: Hands ended spans to `exporter`; None: in batches.
        own: Further subjects of Penstock's own spans.
        clock: The clock.

    Attributes:
        own_subjects: Subjects on which Penstock's own spans travel.
    """

    def __init__(
        self,
        section: TracingSection,
        exporter: SpanExporter,
        *,
        resource: Mapping[str, str],
        processor: SpanProcessor | None = None,
        own: Iterable[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self.own_subjects: frozenset[str] = frozenset(section.own_subjects)
        self.add_own(own)
        self._clock = clock or SystemClock()
        self._ids = _Ids()
        self._counting = _Counting(exporter, section.endpoint)
        self._processor = processor or BatchSpanProcessor(
            self._counting,
            max_queue_size=section.max_queue_size,
            max_export_batch_size=min(BATCH_SPANS_MAX, section.max_queue_size),
            schedule_delay_millis=_DELAY_MS,
        )
        self._sampler = TraceIdRatioBased(section.sample)
        provider = TracerProvider(
            sampler=ALWAYS_ON,  # of what `start` has asked `_sampler` about
            resource=Resource.create(dict(resource)),
            id_generator=self._ids,
            span_limits=SpanLimits(max_links=LINKS_MAX, max_span_attribute_length=_TEXT_MAX),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._counting.ended)
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("penstock")

    def start(
        self,
        name: str,
        *,
        kind: Kind = "INTERNAL",
        trace_id: int = 0,
        span_id: int = 0,
        ago_ns: int = 0,
    ) -> Span | None:
        """A span that begins a trace; None where the sampler leaves it out.

        Args:
            name: Name of the operation; a few words, the same ones each time.
            kind: OpenTelemetry's kind of span.
            trace_id: Decides whether it is sampled, see `trace_of`; 0: a random one.
            span_id: 0: a random one.
            ago_ns: Since when it is being done.
        """
        trace_id = trace_id or self._ids.generate_trace_id()
        # Asked before the SDK begins a span, which costs ten times as much.
        decision = self._sampler.should_sample(None, trace_id, name).decision
        if decision is not Decision.RECORD_AND_SAMPLE:
            return None
        with self._ids.set(trace_id, span_id):
            return self.start_rare(name, kind=kind, ago_ns=ago_ns)

    def start_rare(self, name: str, *, kind: Kind = "INTERNAL", ago_ns: int = 0) -> Span:
        """A span that is always recorded, for what happens rarely; arguments as in `start`."""
        return self._tracer.start_span(
            name, kind=SpanKind[kind], start_time=self._clock.unix_ns() - ago_ns
        )

    def part(self, of: Span, name: str, *, kind: Kind = "INTERNAL", ago_ns: int = 0) -> Span:
        """A span for a part of what another span is about."""
        return self._tracer.start_span(
            name,
            context=set_span_in_context(of),
            kind=SpanKind[kind],
            start_time=self._clock.unix_ns() - ago_ns,
        )

    def end(
        self, span: Span, *, error: str = "", attributes: Mapping[str, Value] | None = None
    ) -> None:
        """End a span; `error` says why the work failed."""
        span.set_attributes(attributes or {})
        if error:
            span.set_status(StatusCode.ERROR, error[:_TEXT_MAX])
        span.end(self._clock.unix_ns())

    def link(self, span: Span, trace_id: int) -> None:
        """Link a span with the one that begins a batch's trace."""
        context = SpanContext(
            trace_id, span_of(trace_id), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )
        span.add_link(context)

    def now_ns(self) -> int:
        """The time that `ago_ns` is measured by."""
        return self._clock.monotonic_ns()

    def add_own(self, subjects: Iterable[str]) -> None:
        """Penstock's own spans travel there, too; what waits may still go where it went before."""
        self.own_subjects |= frozenset(subjects)
        self._own_bytes = frozenset(subject.encode() for subject in self.own_subjects)

    def is_own(self, subject: str | bytes) -> bool:
        """Return whether the subject is that of Penstock's own spans."""
        return subject in (self._own_bytes if isinstance(subject, bytes) else self.own_subjects)

    def counts(self) -> dict[str, int]:
        """Spans by outcome, and those that ended without one so far."""
        return self._counting.counts()

    def close(self) -> None:
        """Send what waits, and send no more."""
        self._processor.shutdown()


def open_tracer(
    section: TracingSection, service: str, instance: str, own: Iterable[str] = ()
) -> Tracer:
    """The tracer of a process, whose spans go to the endpoint of `section`."""
    # What the SDK says of each attempt is said once, by `_Counting`: the collector reads the log.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    session = requests.Session()
    session.trust_env = False  # a proxy of the environment is not for Penstock's own collector
    exporter = OTLPSpanExporter(
        f"{section.endpoint}/v1/traces",
        certificate_file=None if section.ca_file is None else str(section.ca_file),
        timeout=_TIMEOUT_S,
        session=session,
    )
    resource = {
        "service.name": service,
        "service.namespace": "penstock",
        "service.instance.id": instance,
        "service.version": release(),
    }
    return Tracer(section, exporter, resource=resource, own=own)


class _Ids(RandomIdGenerator):
    """Random ids, unless the caller has set those of its next span."""

    def __init__(self) -> None:
        self._next = threading.local()

    @contextmanager
    def set(self, trace_id: int, span_id: int) -> Iterator[None]:
        self._next.trace_id, self._next.span_id = trace_id, span_id
        try:
            yield
        finally:
            self._next.trace_id = self._next.span_id = 0

    @override
    def generate_trace_id(self) -> int:
        return getattr(self._next, "trace_id", 0) or super().generate_trace_id()

    @override
    def generate_span_id(self) -> int:
        return getattr(self._next, "span_id", 0) or super().generate_span_id()


class _Counting(SpanExporter):
    """Counts what becomes of spans on the way to an exporter."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self.ended = _Ended()
        self._exporter = exporter
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._fails = False

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        with self._lock:
            self._counts["failed" if failed else "sent"] += len(spans)
        if failed and not self._fails:
            structlog.get_logger().warning("span_export_failed", endpoint=self._endpoint)
        self._fails = failed
        return result

    @override
    def shutdown(self) -> None:
        self._exporter.shutdown()

    def counts(self) -> dict[str, int]:
        with self._lock:
            unsent = self.ended.count - sum(self._counts.values())
            return {**self._counts, "unsent": max(unsent, 0)}


class _Ended(SpanProcessor):
    """Counts the spans that ended."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    @override
    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            self.count += 1

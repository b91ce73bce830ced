"""OpenTelemetry exporters that emit records.

Named ``penstock`` in the exporter entry points, so ``OTEL_TRACES_EXPORTER=penstock`` and its like
choose them. Constructed without arguments they use the process's emitter: that of `setup`, or one
made from PENSTOCK_SOCKET.

Delivery is the emitter's business: an export succeeds once the records are queued, since the SDK
throws failed batches away. Where they are made without `setup`, which would see to it, they flush
on SIGTERM themselves.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.specs import environment
from penstock.specs.emit import hooks, process_sink
from penstock.specs.emit.context import Bound
from penstock.specs.emit.emitter import PROCESS_EXIT, Emitter
from penstock.specs.emit.process_emitter import process_emitter
from penstock.specs.errors import MissingExtraError
from penstock.specs.limits import ATTRIBUTES_MAX
from penstock.specs.models.attributes import clean_attributes
from penstock.specs.models.codec import encode_json

try:
    from opentelemetry import metrics, trace
    from opentelemetry._logs import get_logger_provider
    from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
    from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
    from opentelemetry.sdk.metrics import (
        Counter,
        MeterProvider,
        ObservableCounter,
        ObservableUpDownCounter,
        UpDownCounter,
    )
    from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        MetricExporter,
        MetricExportResult,
        MetricsData,
        PeriodicExportingMetricReader,
    )
    from opentelemetry.sdk.metrics.view import Aggregation, ExponentialBucketHistogramAggregation
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
except ImportError as error:
    raise MissingExtraError(error.name) from None

from typing_extensions import override

from penstock.specs.models.resource import fit_and_count
from penstock.specs.otel.context import add_bound_processor, bound_at_emit, bound_at_start
from penstock.specs.otel.convert import log_record, metric_records, span_record

TEMPORALITY_VARIABLE: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
HISTOGRAM_VARIABLE: Final = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
INTERVAL_VARIABLE: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS: Final = 10_000.0
_FLUSH_MS: Final = 1_000
_RESOURCES_MAX: Final = 16


class _EmitterExporter:
    """Brings records to the emitter, each with its resource unless that is the emitter's."""

    def __init__(self, emitter: Emitter | None = None) -> None:
        self._emitter = emitter
        self._process_exit = PROCESS_EXIT if emitter is None else emitter.process_exit
        if emitter is None and process_sink.sink() is None:
            hooks.before_end(_force_flush)
            hooks.flush_on_sigterm()
        self._known: dict[int, tuple[Resource, dict[str, Any], bytes | None]] = {}

    def shutdown(self, *_: Any, **__: Any) -> None:
        """The emitter outlives the SDK, unless the process ends and that was set up before it."""
        if self._process_exit.has_begun:
            self._process_exit.flush(self._emitter or process_emitter())

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        """Wait until all that was emitted is answered."""
        emitter = self._emitter or process_emitter()
        if self._process_exit.has_begun:
            return self._process_exit.flush(emitter)
        return emitter.flush(timeout_millis / 1000)

    def _emit_each(self, kind: str, given: Iterable[Any], convert: Callable[[Any], Any]) -> None:
        for each in given:
            try:
                record = convert(each)
            except Exception:  # noqa: BLE001 - one that is odd must not lose its batch
                self._record_drop(kind)
            else:
                self._emit(kind, each.resource, record)

    def _emit(self, kind: str, resource: Resource, record: dict[str, Any]) -> None:
        """Emit one record; counted, never raised, when it cannot be."""
        emitter = self._emitter or process_emitter()
        failed = record.get("status_code") == "ERROR"
        if kind == "span" and emitter.sampler is not None and not failed:
            if not emitter.sampler.keeps(record["trace_id"]):
                emitter.record_drop(kind, "sampled")
                return
            record["sample_weight"] = emitter.sampler.weight
        if kind == "span" and emitter.facts is not None:
            _add_below(record, emitter.facts.at(record["end_time_unix_nano"]))
        try:
            resource_json = self._resource_json(emitter, resource)
        except (TypeError, ValueError):
            emitter.record_drop(kind, "not_encodable")
            return
        severity_number = 17 if failed else int(record.get("severity_number", 9))
        emitter.emit_fields(record, severity_number, resource_json)

    def _record_drop(self, kind: str) -> None:
        """Count a record that could not be converted."""
        (self._emitter or process_emitter()).record_drop(kind, "not_encodable")

    def _resource_json(self, emitter: Emitter, resource: Resource) -> bytes | None:
        """The SDK's resource over the emitter's, as JSON; None when it adds nothing to it."""
        own = emitter.resource  # another one after a fork
        known = self._known.get(id(resource))
        if known is None or known[0] is not resource or known[1] is not own:
            if len(self._known) >= _RESOURCES_MAX:
                self._known.clear()
            known = (resource, own, _merge(own, resource))
            self._known[id(resource)] = known
        return known[2]


class PenstockSpanExporter(_EmitterExporter, SpanExporter):
    """Spans to the emitter."""

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._emit_each("span", spans, _of_span)
        return SpanExportResult.SUCCESS


class PenstockLogRecordExporter(_EmitterExporter, LogRecordExporter):
    """OpenTelemetry log records to the emitter."""

    @override
    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        self._emit_each("log", batch, _of_log)
        return LogRecordExportResult.SUCCESS


class PenstockMetricExporter(_EmitterExporter, MetricExporter):
    """Metric points to the emitter.

    The temporality follows OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE: ``cumulative``
    (default), ``delta`` or ``lowmemory``; histograms are exponential where
    OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION says so.
    """

    def __init__(self, emitter: Emitter | None = None) -> None:
        preference = os.environ.get(TEMPORALITY_VARIABLE, "cumulative")
        _EmitterExporter.__init__(self, emitter)
        MetricExporter.__init__(
            self,
            preferred_temporality=temporality_of(preference),
            preferred_aggregation=aggregation_of(os.environ.get(HISTOGRAM_VARIABLE, "")),
        )

    @override
    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        records: Iterable[tuple[Resource, dict[str, Any] | None]] = metric_records(metrics_data)
        try:
            for resource, record in records:
                if record is None:
                    self._record_drop("metric")
                else:
                    self._emit("metric", resource, record)
        except Exception:  # noqa: BLE001 - the reader would log it and go on; we also count it
            self._record_drop("metric")
            return MetricExportResult.FAILURE
        return MetricExportResult.SUCCESS


def install(emitter: Emitter | None = None, *, metric_interval_s: float | None = None) -> None:
    """Make the process's tracer and meter providers emit records; call once, after `setup`.

    `setup` does so itself where nobody else has; then this does nothing. At exit the SDK exports
    what it holds, then the emitter flushes. A program that wants to know what became of its last
    records calls `shutdown` and `Emitter.flush` itself.

    Args:
        emitter: Gets the records; None for the process's, whichever that is at the time.
        metric_interval_s: Between exports of metrics; else OTEL_METRIC_EXPORT_INTERVAL, else 10 s.
    """
    resource = Resource.create((emitter or process_emitter()).resource)
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        _install_tracers(emitter, resource)
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        _install_meters(emitter, resource, metric_interval_s)
    _add_bound_processors()
    hooks.before_end(_force_flush)


def install_where_free() -> None:
    """`install`, unless something else was set up or a variable forbids it; `setup` calls it."""
    if environment.sdk_is_disabled():
        return
    resource = Resource.create(process_emitter().resource)
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    if environment.is_exported("traces") and isinstance(tracers, trace.ProxyTracerProvider):
        environment.warn_of_other_exporters("traces")
        _install_tracers(None, resource)
    # The API has no public name for what stands in for a provider.
    if environment.is_exported("metrics") and type(meters).__name__ == "_ProxyMeterProvider":
        environment.warn_of_other_exporters("metrics")
        _install_meters(None, resource, None)
    _add_bound_processors()
    hooks.before_end(_force_flush)


def shutdown() -> None:
    """Export what the SDK still holds; then `Emitter.flush` brings it out of the process."""
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        if isinstance(provider, (TracerProvider, MeterProvider)):
            provider.shutdown()


def _install_tracers(emitter: Emitter | None, resource: Resource) -> None:
    tracers = TracerProvider(resource=resource)
    add_bound_processor(tracers)
    tracers.add_span_processor(BatchSpanProcessor(PenstockSpanExporter(emitter)))
    trace.set_tracer_provider(tracers)


def _install_meters(emitter: Emitter | None, resource: Resource, interval_s: float | None) -> None:
    milliseconds = None if interval_s is None else interval_s * 1000
    if milliseconds is None and INTERVAL_VARIABLE not in os.environ:
        milliseconds = _INTERVAL_MS
    reader = PeriodicExportingMetricReader(
        PenstockMetricExporter(emitter), export_interval_millis=milliseconds
    )
    os.register_at_fork(after_in_child=lambda: _renew_lock(reader))
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader], resource=resource))


def _add_bound_processors() -> None:
    """Add the processors to providers that others made, as ``OTEL_LOGS_EXPORTER=penstock`` does."""
    add_bound_processor(trace.get_tracer_provider())
    add_bound_processor(get_logger_provider())


def _renew_lock(reader: PeriodicExportingMetricReader) -> None:
    """The SDK renews all its locks in a forked child but this one, which its thread may hold."""
    if hasattr(reader, "_export_lock"):
        reader._export_lock = threading.Lock()  # noqa: SLF001 - see above


def _force_flush() -> None:
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider(), get_logger_provider())
    for provider in providers:
        if isinstance(provider, (TracerProvider, MeterProvider, LoggerProvider)):
            provider.force_flush(_FLUSH_MS)


def temporality_of(preference: str) -> dict[type, AggregationTemporality]:
    """OpenTelemetry's three preferences, by instrument class."""
    delta, cumulative = AggregationTemporality.DELTA, AggregationTemporality.CUMULATIVE
    name = preference.strip().lower()
    return {
        Counter: delta if name in ("delta", "lowmemory") else cumulative,
        HistogramInstrument: delta if name in ("delta", "lowmemory") else cumulative,
        ObservableCounter: delta if name == "delta" else cumulative,
        UpDownCounter: cumulative,
        ObservableUpDownCounter: cumulative,
    }


def aggregation_of(name: str) -> dict[type, Aggregation]:
    """OpenTelemetry's ``base2_exponential_bucket_histogram``; any other name is the usual."""
    if name.strip().lower() != "base2_exponential_bucket_histogram":
        return {}
    return {HistogramInstrument: ExponentialBucketHistogramAggregation()}


def _of_span(span: ReadableSpan) -> dict[str, Any]:
    return _with_bound(span_record(span), bound_at_start(span))


def _of_log(readable: ReadableLogRecord) -> dict[str, Any]:
    return _with_bound(log_record(readable), bound_at_emit(readable))


def _with_bound(record: dict[str, Any], here: Bound | None) -> dict[str, Any]:
    if here is not None:
        if here.context:
            record["context"] = dict(here.context)
        _add_below(record, here.attributes)
    return record


def _add_below(record: dict[str, Any], common: Mapping[str, Any]) -> None:
    """Attributes that give way to the record's own; what there is no room for is counted."""
    own = record.get("attributes", {})
    more = [item for item in common.items() if item[0] not in own]
    if not more:
        return
    room = max(0, ATTRIBUTES_MAX - len(own))
    if len(more) > room:
        dropped = record.get("dropped_attributes_count", 0)
        record["dropped_attributes_count"] = dropped + len(more) - room
    record["attributes"] = {**dict(more[:room]), **own}


def _merge(own: dict[str, Any], resource: Resource) -> bytes | None:
    """None when the SDK knows nothing that the emitter's resource does not say."""
    given, _ = clean_attributes(
        {k: v for k, v in resource.attributes.items() if not k.startswith("telemetry.sdk.")}
    )
    if str(given.get("service.name", "")).startswith("unknown_service"):
        del given["service.name"]
    # After a fork the SDK still has its parent's identity; the emitter has its own.
    for key in ("service.instance.id", "process.pid"):
        if key in own:
            given.pop(key, None)
    merged, _ = fit_and_count({**own, **given})
    return None if merged == own else encode_json(merged)

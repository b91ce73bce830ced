"""The exporters, against the real SDK; every record they make must pass the validator."""

import math
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import (
    Histogram,
    MeterProvider,
    ObservableCounter,
    UpDownCounter,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, StatusCode
from typing_extensions import override

from penstock.specs import Emitter
from penstock.specs.otel.exporter import (
    PenstockLogRecordExporter,
    PenstockMetricExporter,
    PenstockSpanExporter,
    temporality_of,
)
from tests.unit.specs.output import Output


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    made = Output(tmp_path / "out.ndjson")
    yield made
    made.close()


@pytest.fixture
def tracers(output: Output) -> Iterator[TracerProvider]:
    provider = TracerProvider(resource=Resource({"service.name": "app"}))
    provider.add_span_processor(SimpleSpanProcessor(PenstockSpanExporter(output.emitter)))
    yield provider
    provider.shutdown()


def test_spans_keep_their_place_in_the_trace(output: Output, tracers: TracerProvider) -> None:
    tracer = tracers.get_tracer("lib")
    with tracer.start_as_current_span("other") as other:
        link = Link(other.get_span_context(), {"why": "because"})
    with tracer.start_as_current_span("outer", kind=SpanKind.SERVER, links=[link]) as outer:
        outer.set_attribute("http.request.method", "GET")
        outer.set_attribute("sizes", (1, 2))
        outer.add_event("cache miss", {"key": "k"})
        with tracer.start_as_current_span("inner") as inner:
            inner.set_status(StatusCode.ERROR, "no luck")
    found = {record["name"]: record for record in output.records()}
    assert found["inner"]["parent_span_id"] == found["outer"]["span_id"]
    assert found["inner"]["trace_id"] == found["outer"]["trace_id"]
    assert (found["inner"]["status_code"], found["inner"]["status_message"]) == ("ERROR", "no luck")
    assert "parent_span_id" not in found["outer"]
    assert found["outer"]["span_kind"] == "SERVER"
    assert found["outer"]["scope"] == "lib"
    assert found["outer"]["attributes"] == {"http.request.method": "GET", "sizes": [1, 2]}
    assert found["outer"]["links"][0]["span_id"] == found["other"]["span_id"]
    assert found["outer"]["events"][0]["name"] == "cache miss"
    assert found["outer"]["end_time_unix_nano"] >= found["inner"]["end_time_unix_nano"]


def test_exception_in_a_span_marks_it(output: Output, tracers: TracerProvider) -> None:
    with pytest.raises(ValueError, match="no"), tracers.get_tracer("x").start_as_current_span("s"):
        raise ValueError("no")
    (record,) = output.records()
    assert record["status_code"] == "ERROR"
    assert record["events"][0]["attributes"]["exception.type"] == "ValueError"


class Offered(Emitter):
    """Takes down with which severity records are offered."""

    def __init__(self) -> None:
        super().__init__({"service.name": "app"})
        self.severities: list[int] = []

    @override
    def emit(self, kind: str, line: bytes, severity_number: int = 9) -> bool:
        self.severities.append(severity_number)
        return True


def test_failed_span_is_kept_longer_than_others() -> None:
    emitter = Offered()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(PenstockSpanExporter(emitter)))
    tracer = provider.get_tracer("x")
    tracer.start_span("good").end()
    bad = tracer.start_span("bad")
    bad.set_status(StatusCode.ERROR)
    bad.end()
    provider.shutdown()
    emitter.close()
    assert emitter.severities == [9, 17]


def test_spans_of_a_trace_stay_or_go_and_failed_ones_stay(tmp_path: Path) -> None:
    output = Output(tmp_path / "sampled.ndjson", sampling=0.5)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(PenstockSpanExporter(output.emitter)))
    tracer = provider.get_tracer("x")
    for _ in range(40):
        with tracer.start_as_current_span("outer"):
            tracer.start_span("inner").end()
            bad = tracer.start_span("bad")
            bad.set_status(StatusCode.ERROR)
            bad.end()
    kept: dict[str, set[str]] = {}
    for record in output.records():
        kept.setdefault(record["trace_id"], set()).add(record["name"])
        assert record.get("sample_weight") == (None if record["name"] == "bad" else 2)
    assert {frozenset(names) for names in kept.values()} == {
        frozenset({"outer", "inner", "bad"}), frozenset({"bad"}),
    }  # fmt: skip
    counters = output.emitter.counters()
    assert counters.acked["span"] + counters.dropped["span"]["sampled"] == 120
    output.close()


def test_resource_is_the_emitters_with_what_the_sdk_adds(output: Output) -> None:
    provider = TracerProvider(resource=Resource({"service.name": "other", "zone": "a"}))
    provider.add_span_processor(SimpleSpanProcessor(PenstockSpanExporter(output.emitter)))
    provider.get_tracer("x").start_span("s").end()
    provider.shutdown()
    (record,) = output.records()
    assert record["resource"] == {
        "service.name": "other",
        "service.instance.id": "i-1",
        "zone": "a",
    }


def test_all_metric_types(output: Output) -> None:
    reader = PeriodicExportingMetricReader(
        PenstockMetricExporter(output.emitter), export_interval_millis=3_600_000
    )
    views = [View(instrument_name="latency", aggregation=ExponentialBucketHistogramAggregation())]
    provider = MeterProvider(metric_readers=[reader], views=views)
    meter = provider.get_meter("lib")
    meter.create_counter("Orders", "{order}").add(2, {"outcome": "paid"})
    meter.create_up_down_counter("queue").add(-1)
    meter.create_gauge("stock").set(7)
    meter.create_histogram("value", "EUR").record(12.5)
    latency = meter.create_histogram("latency", "s")
    for value in (0.0, 0.1, 0.25, 3.0):
        latency.record(value)
    provider.shutdown()
    found = {record["name"]: record for record in output.records()}
    assert found["orders"]["value"] == 2
    assert found["orders"]["is_monotonic"]
    assert found["orders"]["attributes"] == {"outcome": "paid"}
    assert (found["queue"]["value"], found["queue"]["is_monotonic"]) == (-1, False)
    assert (found["stock"]["metric_type"], found["stock"]["unit"]) == ("gauge", "1")
    assert (found["value"]["count"], found["value"]["sum"], found["value"]["max"]) == (
        1,
        12.5,
        12.5,
    )
    assert found["latency"]["metric_type"] == "exponential_histogram"
    assert (found["latency"]["count"], found["latency"]["zero_count"]) == (4, 1)


def test_metric_exporter_follows_the_temporality_preference(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta, cumulative = AggregationTemporality.DELTA, AggregationTemporality.CUMULATIVE
    assert temporality_of("delta")[ObservableCounter] is delta
    assert temporality_of("LowMemory")[ObservableCounter] is cumulative
    assert temporality_of("LowMemory")[Histogram] is delta
    assert set(temporality_of("cumulative").values()) == {cumulative}
    assert temporality_of("delta")[UpDownCounter] is cumulative
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    exporter = PenstockMetricExporter(output.emitter)
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, 3_600_000)])
    provider.get_meter("lib").create_counter("orders").add(1)
    provider.shutdown()
    (record,) = output.records()
    assert record["temporality"] == "delta"
    exporter.shutdown(timeout=1.0)


def test_logs_of_the_sdk_become_log_records(output: Output) -> None:
    provider = LoggerProvider(resource=Resource({"service.name": "app"}))
    provider.add_log_record_processor(
        SimpleLogRecordProcessor(PenstockLogRecordExporter(output.emitter))
    )
    logger = provider.get_logger("lib")
    logger.emit(
        LogRecord(
            timestamp=1_700_000_000_000_000_000,
            severity_number=SeverityNumber.ERROR2,
            body={"a": 1},
            attributes={"k": {"nested": [1]}},
            event_name="door.opened",
        )
    )
    logger.emit(LogRecord(body="plain"))
    provider.shutdown()
    first, second = output.records()
    assert first["time_unix_nano"] == 1_700_000_000_000_000_000
    assert (first["severity_number"], first["severity_text"]) == (18, "ERROR2")
    assert (first["body"], first["event_name"]) == ('{"a": 1}', "door.opened")
    assert first["attributes"] == {"k.nested": [1]}
    assert (second["body"], second["severity_number"]) == ("plain", 9)


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_exporters_are_found_by_name_and_made_without_arguments(signal: str) -> None:
    (found,) = [
        entry
        for entry in entry_points(group=f"opentelemetry_{signal}_exporter")
        if entry.name == "penstock"
    ]
    exporter = found.load()()
    assert exporter.force_flush(timeout_millis=1000)
    exporter.shutdown()


def test_numbers_that_json_or_int64_cannot_hold_are_made_to_fit(output: Output) -> None:
    reader = PeriodicExportingMetricReader(
        PenstockMetricExporter(output.emitter), export_interval_millis=3_600_000
    )
    provider = MeterProvider(metric_readers=[reader])
    meter = provider.get_meter("lib")
    meter.create_gauge("large").set(1 << 70)
    meter.create_gauge("fraction").set(Half(0.5))
    meter.create_gauge("last").set(1)
    wait = meter.create_histogram("wait")
    wait.record(1e308)
    wait.record(1e308)
    provider.shutdown()
    found = {record["name"]: record for record in output.records()}
    assert (found["wait"]["sum"], found["wait"]["max"]) == ("Infinity", 1e308)
    assert found["large"]["value"] == float(1 << 70)
    assert found["fraction"]["value"] == 0.5
    assert found["last"]["value"] == 1


class Odd(float):
    """A number that cannot be read."""

    @override
    def __float__(self) -> float:
        raise ArithmeticError


class Half(float):
    """A subclass, as numpy's are."""


def test_names_and_values_of_a_point_are_kept_as_they_are(output: Output) -> None:
    point = NumberDataPoint({}, 0, 5, math.nan)
    metric = Metric("Queue/Depth-max", "", "", Gauge([point]))
    scope = ScopeMetrics(InstrumentationScope("lib"), [metric], "")
    exporter = PenstockMetricExporter(output.emitter)
    exporter.export(MetricsData([ResourceMetrics(Resource({}), [scope], "")]))
    exporter.shutdown()
    (record,) = output.records()
    assert (record["name"], record["value"]) == ("Queue/Depth-max", "NaN")


def test_a_span_beyond_the_specs_limits_is_cut_and_says_so(output: Output) -> None:
    provider = TracerProvider(span_limits=SpanLimits(max_events=200, max_links=200))
    provider.add_span_processor(SimpleSpanProcessor(PenstockSpanExporter(output.emitter)))
    tracer = provider.get_tracer("lib")
    other = tracer.start_span("other").get_span_context()
    span = tracer.start_span("s", links=[Link(other)] * 130, start_time=1)
    for _ in range(140):
        span.add_event("e", timestamp=2)
    span.end()
    provider.shutdown()
    (record,) = output.records()
    assert (len(record["links"]), record["dropped_links_count"]) == (128, 2)
    assert (len(record["events"]), record["dropped_events_count"]) == (128, 12)


def test_a_point_that_cannot_be_converted_costs_only_itself(output: Output) -> None:
    reader = PeriodicExportingMetricReader(
        PenstockMetricExporter(output.emitter), export_interval_millis=3_600_000
    )
    provider = MeterProvider(metric_readers=[reader])
    provider.get_meter("lib").create_gauge("bad").set(Odd(1))
    provider.get_meter("lib").create_gauge("good").set(1)
    provider.shutdown()
    assert [record["name"] for record in output.records()] == ["good"]
    assert output.emitter.counters().dropped == {"metric": {"not_encodable": 1}}

"""Variables of OpenTelemetry's, honoured by `setup`; malformed ones are as good as not set."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from penstock.specs import environment
from penstock.specs.environment import RULES, well_formed
from penstock.specs.otel.exporter import (
    HISTOGRAM_VARIABLE,
    PenstockMetricExporter,
    PenstockSpanExporter,
)
from tests.unit.specs.output import Output

PAGE = Path(__file__).parents[3] / "docs/specs/emitting.md"
BAD = {name: "always" if name.endswith("_FILTER") else "-5" for name in RULES}

PROGRAM = """
from opentelemetry import metrics, trace
from penstock import specs
specs.setup("shop")
tracer = trace.get_tracer("lib")
with tracer.start_as_current_span("work", attributes={"first": "too long", "second": "x"}) as span:
    span.add_event("one")
    span.add_event("two")
metrics.get_meter("lib").create_histogram("took", unit="s").record(1.5)
specs.log().info("done")
specs.WsgiMiddleware  # reads OTEL_PROPAGATORS
"""


def run(cwd: Path, **variables: str) -> list[dict[str, Any]]:
    quiet = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM), cwd=cwd, env=quiet | variables, capture_output=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_setup_does_as_the_variables_say(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        OTEL_RESOURCE_ATTRIBUTES="service.version=1.2,team=a%20b",
        OTEL_TRACES_SAMPLER="traceidratio",
        OTEL_TRACES_SAMPLER_ARG="1.0",
        OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="1",
        OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT="1",
        OTEL_SPAN_EVENT_COUNT_LIMIT="1",
        OTEL_LOG_LEVEL="error",
        OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=(
            "base2_exponential_bucket_histogram"
        ),
    )
    log, span, metric = sorted(
        found, key=lambda record: ("log", "span", "metric").index(record["kind"])
    )
    assert log["resource"].items() >= {"service.version": "1.2", "team": "a b"}.items()
    own = {k: v for k, v in span["attributes"].items() if k in ("first", "second")}
    assert own == {"second": "x"}
    assert span["dropped_attributes_count"] == 1
    assert [event["name"] for event in span["events"]] == ["two"]
    assert metric["metric_type"] == "exponential_histogram"


def test_a_sampler_of_the_environment_holds_for_opentelemetrys_spans(tmp_path: Path) -> None:
    kinds = [record["kind"] for record in run(tmp_path, OTEL_TRACES_SAMPLER="always_off")]
    assert sorted(kinds) == ["log", "metric"]


def test_an_application_starts_whatever_its_variables_hold(tmp_path: Path) -> None:
    """Spans and metrics come as if the variables were not set, and each variable is named."""
    found = run(tmp_path, **BAD, OTEL_PROPAGATORS="b4", OTEL_LOG_LEVEL="loud")
    said = [record["body"] for record in found if record.get("severity_text") == "WARN"]
    named = sorted(re.match("[A-Z_]+", body)[0] for body in said)  # type: ignore[index]
    assert named == sorted([*BAD, "OTEL_PROPAGATORS", "OTEL_LOG_LEVEL"])
    assert {record["kind"] for record in found} == {"log", "span", "metric"}


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5.2", "nan", "1e400", "²"])
@pytest.mark.parametrize("name", RULES)
def test_the_sdk_does_not_choke_on_what_is_left(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with well_formed():
        assert name not in os.environ
    assert os.environ[name] == value


@pytest.mark.parametrize(
    ("queue", "batch", "hidden"),
    [
        ("100", None, ["OTEL_BSP_MAX_QUEUE_SIZE"]),
        (None, "4096", ["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"]),
        ("10", "20", ["OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"]),
        ("20", "10", []),
        ("0", "10", ["OTEL_BSP_MAX_QUEUE_SIZE"]),
    ],
)
def test_batches_have_to_fit_into_the_queue(
    monkeypatch: pytest.MonkeyPatch, queue: str | None, batch: str | None, hidden: list[str]
) -> None:
    names = ("OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE")
    given = {name: text for name, text in zip(names, (queue, batch), strict=True) if text}
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    with well_formed():
        assert [name for name in given if name not in os.environ] == hidden
        BatchSpanProcessor(PenstockSpanExporter()).shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", [name for name in RULES if name.endswith("_LIMIT")])
@pytest.mark.parametrize("value", ["0", "7", " 7 "])
def test_what_is_well_formed_stays(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with well_formed():
        assert os.environ[name] == value
        SpanLimits()


def test_filters_of_exemplars_are_the_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("always_on", "always_off", "trace_based", "always"):
        monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", value)
        with well_formed():
            assert ("OTEL_METRICS_EXEMPLAR_FILTER" in os.environ) is (value != "always")
            MeterProvider([InMemoryMetricReader()]).shutdown()


def test_several_exporters_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "penstock, otlp,")
    environment.warn_of_other_exporters("traces")
    environment.warn_of_other_exporters("metrics")
    assert ["nothing goes to otlp" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("value", "level"),
    [("", 0), ("warn", 30), (" ERROR ", 40), ("none", 51), ("loud", 0)],
)
def test_opentelemetrys_own_loggers_get_its_level(
    monkeypatch: pytest.MonkeyPatch, value: str, level: int
) -> None:
    logger = logging.getLogger("opentelemetry")
    before = logger.level
    logger.setLevel(logging.NOTSET)
    monkeypatch.setenv("OTEL_LOG_LEVEL", value)
    try:
        environment.configure_opentelemetrys_loggers()
        assert logger.level == level
    finally:
        logger.setLevel(before)


def test_histograms_are_the_usual_ones_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(HISTOGRAM_VARIABLE, raising=False)
    output = Output(tmp_path / "out.ndjson")
    exporter = PenstockMetricExporter(output.emitter)
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, 3_600_000)])
    provider.get_meter("lib").create_histogram("wait").record(1)
    provider.shutdown()
    (record,) = output.records()
    output.close()
    assert record["metric_type"] == "histogram"


def test_the_documentation_names_every_variable() -> None:
    text = PAGE.read_text()
    table = text[text.index("## OpenTelemetry's variables") : text.index("## Values and limits")]
    assert [name for name in RULES if f"`{name}`" not in table] == []

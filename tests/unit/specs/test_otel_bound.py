"""What is bound where a span of OpenTelemetry's starts is on its record, which others export."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from penstock import specs
from penstock.specs import Emitter
from penstock.specs.emit.context import Bound
from penstock.specs.limits import ATTRIBUTES_MAX
from penstock.specs.otel.context import (
    BoundLogRecordProcessor,
    BoundSpanProcessor,
    add_bound_processor,
)
from penstock.specs.otel.exporter import PenstockLogRecordExporter, PenstockSpanExporter
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.redact.sensitivity import HashKey
from tests.unit.specs.output import Output


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    made = Output(tmp_path / "out.ndjson")
    yield made
    made.close()


def provider_to(emitter: Emitter) -> TracerProvider:
    """As `setup` makes it: exports in a thread of the SDK's."""
    provider = TracerProvider(resource=Resource({"service.name": "app"}))
    provider.add_span_processor(BoundSpanProcessor())
    provider.add_span_processor(BatchSpanProcessor(PenstockSpanExporter(emitter)))
    return provider


def test_what_is_bound_when_a_span_starts_is_on_its_record(output: Output) -> None:
    provider = provider_to(output.emitter)
    tracer = provider.get_tracer("lib")
    with specs.bind(user_id="u-1", request_id="r-1", tenant="t", tier="bound"):
        with tracer.start_as_current_span("inner", attributes={"tier": "own"}):
            tracer.start_span("bare").end()
        kept = tracer.start_span("ends elsewhere")
    with specs.bind(user_id="u-2"):
        ender = threading.Thread(target=kept.end)
        ender.start()
        ender.join()
    tracer.start_span("outside").end()
    provider.shutdown()
    found = {record["name"]: record for record in output.records()}
    for name in ("inner", "bare", "ends elsewhere"):
        assert found[name]["context"] == {"user.id": "u-1", "request.id": "r-1"}
    assert found["inner"]["attributes"] == {"tenant": "t", "tier": "own"}
    assert found["bare"]["attributes"] == {"tenant": "t", "tier": "bound"}
    assert "context" not in found["outside"]
    assert "attributes" not in found["outside"]


def test_markers_of_the_context_hold_for_spans(output: Output) -> None:
    output.emitter.scrubber = Scrubber(HashKey("k", b"x" * 16))  # type: ignore[misc]
    provider = provider_to(output.emitter)
    with specs.bind(user_id="u-1", user_email="a@b.c", password="p"):
        provider.get_tracer("lib").start_span("s").end()
    provider.shutdown()
    (record,) = output.records()
    assert record["context"]["user.id"].startswith("hk:")
    assert "user.email" not in record["context"]
    assert record["attributes"] == {"password": "[redacted:secret]"}


def test_attributes_beyond_the_limit_are_counted_and_the_spans_own_stay(output: Output) -> None:
    provider = provider_to(output.emitter)
    own = {f"own.{number}": number for number in range(ATTRIBUTES_MAX - 2)}
    with specs.bind(one=1, two=2, three=3, four=4, **{"own.0": "bound"}):
        provider.get_tracer("lib").start_span("s", attributes=own).end()
    provider.shutdown()
    (record,) = output.records()
    assert len(record["attributes"]) == ATTRIBUTES_MAX
    assert record["attributes"].items() >= own.items()
    assert record["dropped_attributes_count"] == 2


def test_figures_of_the_machine_without_room_are_counted(tmp_path: Path) -> None:
    """At first there are two, of the memory."""
    output = Output(tmp_path / "facts.ndjson", machine_facts=True)
    provider = provider_to(output.emitter)
    own = {f"own.{number}": number for number in range(ATTRIBUTES_MAX - 1)}
    provider.get_tracer("lib").start_span("s", attributes=own).end()
    provider.shutdown()
    (record,) = output.records()
    output.close()
    assert record["attributes"].items() >= own.items()
    assert record["attributes"].keys() - own.keys() == {"process.memory.usage"}
    assert record["dropped_attributes_count"] == 1


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF])
def test_spans_that_never_end_or_are_not_sampled_leave_nothing(sampler: Sampler) -> None:
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BoundSpanProcessor())
    gc.collect()
    before = sum(isinstance(known, Bound) for known in gc.get_objects())
    spans = []
    for number in range(50):
        with specs.bind(user_id=f"u-{number}"):
            spans.append(provider.get_tracer("lib").start_span("never ends"))
    held = sum(isinstance(known, Bound) for known in gc.get_objects()) - before
    assert held == (50 if sampler is ALWAYS_ON else 0)
    spans.clear()
    gc.collect()
    assert sum(isinstance(known, Bound) for known in gc.get_objects()) == before


def test_without_the_processor_a_span_has_nothing_bound(output: Output) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(PenstockSpanExporter(output.emitter)))
    with specs.bind(user_id="u-1"):
        provider.get_tracer("lib").start_span("s").end()
    provider.shutdown()
    (record,) = output.records()
    assert "context" not in record


@pytest.mark.parametrize("exporting", [BatchLogRecordProcessor, SimpleLogRecordProcessor])
@pytest.mark.parametrize("order", ["before", "seen to later"])
def test_what_is_bound_when_a_log_record_is_emitted_is_on_it(
    output: Output, exporting: Any, order: str
) -> None:
    provider = LoggerProvider(resource=Resource({"service.name": "app"}))
    if order == "before":
        provider.add_log_record_processor(BoundLogRecordProcessor())
    provider.add_log_record_processor(exporting(PenstockLogRecordExporter(output.emitter)))
    if order == "seen to later":
        add_bound_processor(provider)
        add_bound_processor(provider)
    logger = provider.get_logger("lib")
    with specs.bind(user_id="u-1", tenant="t", tier="bound"):
        logger.emit(LogRecord(body="own", attributes={"tier": "own"}))
        logger.emit(LogRecord(body="bare"))
        with specs.bind(user_id="u-2"):
            logger.emit(LogRecord(body="other"))
    logger.emit(LogRecord(body="outside"))
    with specs.bind(user_id="who flushes"):
        provider.shutdown()
    found = {record["body"]: record for record in output.records()}
    contexts = {body: record.get("context", {}).get("user.id") for body, record in found.items()}
    assert contexts == {"own": "u-1", "bare": "u-1", "other": "u-2", "outside": None}
    assert found["own"]["attributes"] == {"tenant": "t", "tier": "own"}
    assert found["bare"]["attributes"] == {"tenant": "t", "tier": "bound"}
    assert "attributes" not in found["outside"]


def test_a_provider_is_has_processor_once() -> None:
    provider, tracers = LoggerProvider(), TracerProvider()
    for _ in range(3):
        add_bound_processor(provider)
        add_bound_processor(tracers)
    add_bound_processor(object())
    logs = provider._multi_log_record_processor  # noqa: SLF001 - the SDK has no public list of them
    assert len(logs._log_record_processors) == 1  # noqa: SLF001 - as above
    active = tracers._active_span_processor  # noqa: SLF001 - the SDK has no public list of them
    assert len(active._span_processors) == 1  # noqa: SLF001 - as above


PROGRAM = """
from opentelemetry import trace
from penstock import specs
specs.setup("shop")
with specs.bind(user_id="u-1"):
    with trace.get_tracer("lib").start_as_current_span("work"):
        pass
"""


def test_setup_brings_it(tmp_path: Path) -> None:
    quiet = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM), cwd=tmp_path, env=quiet, capture_output=True, check=True
    )
    assert b'"context":{"user.id":"u-1"}' in done.stdout, done


BY_NAME = """
import sys
from importlib.metadata import entry_points
from opentelemetry import _logs, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
def exporter(signal):
    (found,) = entry_points(group=f"opentelemetry_{signal}_exporter", name="penstock")
    return found.load()()
loggers, tracers = LoggerProvider(), TracerProvider()
loggers.add_log_record_processor(BatchLogRecordProcessor(exporter("logs")))
tracers.add_span_processor(BatchSpanProcessor(exporter("traces")))
_logs.set_logger_provider(loggers)
trace.set_tracer_provider(tracers)
from penstock import specs
specs.setup("shop")
with specs.bind(user_id="u-1"):
    _logs.get_logger("lib").emit(_logs.LogRecord(body="said"))
    trace.get_tracer("lib").start_span("work").end()
"""


def test_setup_brings_it_to_providers_that_others_set_up(tmp_path: Path) -> None:
    """As opentelemetry-instrument does it before the application begins."""
    quiet = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        (sys.executable, "-c", BY_NAME), cwd=tmp_path, env=quiet, capture_output=True, check=True
    )
    assert done.stdout.count(b'"context":{"user.id":"u-1"}') == 2, done


@pytest.mark.parametrize("spans", [1, 700])
def test_what_the_sdk_exports_at_exit_is_not_lost(tmp_path: Path, spans: int) -> None:
    """Though it was set up before the emitter, and so ends after that was flushed."""
    quiet = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    program = BY_NAME.partition("from penstock import specs")[0] + (
        f"for _ in range({spans}):\n    trace.get_tracer('lib').start_span('work').end()\n"
    )
    done = subprocess.run(
        (sys.executable, "-c", program), cwd=tmp_path, env=quiet, capture_output=True, check=True
    )
    assert done.stdout.count(b'"kind":"span"') == spans, done.stderr

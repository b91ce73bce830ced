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
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from penstock import specs
from penstock.specs import Emitter, HashKey, Scrubber
from penstock.specs.bound import Bound
from penstock.specs.limits import ATTRIBUTES_MAX
from penstock.specs.otel import PenstockSpanExporter
from penstock.specs.otel_bound import BoundSpanProcessor
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


def test_figures_of_the_machine_without_room_are_counted(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Facts:
        def at(self, _: int) -> dict[str, Any]:
            return {"machine.a": 1, "machine.b": 2, "machine.c": 3}

    monkeypatch.setattr(output.emitter, "facts", Facts())
    provider = provider_to(output.emitter)
    own = {f"own.{number}": number for number in range(ATTRIBUTES_MAX - 1)}
    provider.get_tracer("lib").start_span("s", attributes=own).end()
    provider.shutdown()
    (record,) = output.records()
    assert len(record["attributes"]) == ATTRIBUTES_MAX
    assert record["attributes"].items() >= own.items()
    assert record["dropped_attributes_count"] == 2


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

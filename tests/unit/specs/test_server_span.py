"""Requests where OpenTelemetry is set up, and where it is not installed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from typing_extensions import override

from penstock.specs.emit.context import bound, trace_fields
from penstock.specs.emit.process_emitter import use_emitter
from penstock.specs.otel.exporter import PenstockSpanExporter
from penstock.specs.web.request import Request, ServerOptions, caller_bound, handling
from tests.unit.specs.output import Output

ROOT = Path(__file__).resolve().parents[3]
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{CALLER}-01"
OTHER = "a" * 32 + "-" + "b" * 16


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    """The process's emitter; all that it writes the validator accepts."""
    made = Output(tmp_path / "lines")
    before = use_emitter(made.emitter)
    yield made
    use_emitter(before)
    made.close()


@pytest.fixture
def provider(output: Output) -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(PenstockSpanExporter(output.emitter)))
    return made


def spans(output: Output) -> dict[str, dict[str, Any]]:
    return {record["name"]: record for record in output.records() if record["kind"] == "span"}


def test_a_request_has_a_span_that_is_the_callers_child(
    output: Output, provider: TracerProvider
) -> None:
    request = Request("http.server", "GET", {"url.path": "/o"})
    options = ServerOptions(tracer_provider=provider)
    headers: dict[str, str] = {}
    with handling(request, {"traceparent": PARENT, "tracestate": "vendor=1"}, options):
        propagate.inject(headers)
        request.name, request.failed = "GET /orders/{id}", True
    record = spans(output)["GET /orders/{id}"]
    said = next(each for each in output.records() if each["kind"] == "log")
    assert (record["span_kind"], record["status_code"]) == ("SERVER", "ERROR")
    assert (record["trace_id"], record["parent_span_id"]) == (TRACE, CALLER)
    assert record["attributes"] == {"url.path": "/o"}
    assert said["span_id"] == record["span_id"]
    assert headers == {
        "traceparent": f"00-{TRACE}-{record['span_id']}-01", "tracestate": "vendor=1",
    }  # fmt: skip
    assert trace_fields() == {}


def test_a_request_that_is_traced_already_has_no_second_span(
    output: Output, provider: TracerProvider
) -> None:
    options = ServerOptions(tracer_provider=provider)
    with (
        provider.get_tracer("framework").start_as_current_span("theirs"),
        handling(Request("http.server", "ours"), {"traceparent": PARENT}, options),
    ):
        assert trace_fields()["trace_id"] != TRACE
    assert spans(output).keys() == {"theirs"}


def test_a_request_within_a_span_that_is_not_sampled_is_not_sampled(output: Output) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    with provider.get_tracer("framework").start_as_current_span("theirs") as theirs:
        options = ServerOptions(records=False, tracer_provider=provider)
        with handling(Request("http.server", "ours"), {}, options):
            trace_id = trace_fields()["trace_id"]
    assert int(trace_id, 16) == theirs.get_span_context().trace_id
    assert output.records() == []


async def test_what_outlives_a_span_is_no_part_of_it(
    output: Output, provider: TracerProvider
) -> None:
    over = asyncio.Event()
    silent = ServerOptions(records=False, tracer_provider=provider)

    async def serve() -> None:
        await over.wait()
        for number, headers in enumerate(({}, {}, {"traceparent": PARENT})):
            with (
                handling(Request("http.server", f"GET {number}"), headers, silent),
                handling(Request("http.server", "by another middleware"), headers, silent),
            ):
                pass

    with provider.get_tracer("app").start_as_current_span("startup"):
        task = asyncio.create_task(serve())
    over.set()
    await task
    found = spans(output)
    assert sorted(found) == ["GET 0", "GET 1", "GET 2", "startup"]
    assert len({record["trace_id"] for record in found.values()}) == 4
    assert found["GET 2"]["parent_span_id"] == CALLER
    assert all("parent_span_id" not in found[name] for name in ("GET 0", "GET 1"))


class MixedCase(TextMapPropagator):
    """Asks for its header by the name that its vendor writes it with, as that of AWS X-Ray does."""

    @override
    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        assert getter.keys(carrier) == list(carrier)
        (given,) = getter.get(carrier, "X-Vendor-Trace-Id")
        trace_id, span_id = (int(part, 16) for part in given.split("-"))
        found = trace.SpanContext(trace_id, span_id, True, trace.TraceFlags(1))
        return trace.set_span_in_context(trace.NonRecordingSpan(found), context)

    @override
    def inject(self, carrier: Any, context: Context | None = None, setter: Any = None) -> None:
        raise NotImplementedError

    @property
    @override
    def fields(self) -> set[str]:
        return set()


@pytest.fixture
def mixed_case() -> Iterator[None]:
    """Chosen as an application, or OTEL_PROPAGATORS, chooses it."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(MixedCase())
    yield
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures("mixed_case")
def test_headers_are_read_by_opentelemetrys_propagator() -> None:
    with caller_bound({"x-vendor-trace-id": OTHER, "traceparent": PARENT}, baggage=False):
        assert trace_fields()["trace_id"] == "a" * 32


@pytest.mark.usefixtures("mixed_case")
def test_a_propagator_that_fails_hurts_no_request(caplog: pytest.LogCaptureFixture) -> None:
    with caller_bound({"x-vendor-trace-id": "nonsense"}, baggage=True):
        assert trace_fields().keys() == {"trace_id"}
    assert "the caller's trace is not read" in caplog.text


def test_baggage_is_believed_only_when_asked_for() -> None:
    headers = {"baggage": "user.id=%C3%BC%201,request.id=r-1,user.email=a%40b.c,session.id="}
    with caller_bound(headers, baggage=False):
        assert bound().context == {}
    with caller_bound(headers, baggage=True):
        assert bound().context == {"user.id": "ü 1", "request.parent_id": "r-1"}


UNKNOWN = """
import logging
logging.basicConfig()
from penstock.specs.emit.context import trace_fields
from penstock.specs.web.request import caller_bound
with caller_bound({"traceparent": "%s"}, baggage=True):
    print(trace_fields()["trace_id"])
"""


def test_a_propagator_that_is_not_installed_is_named_and_w3c_stays() -> None:
    done = subprocess.run(
        (sys.executable, "-c", UNKNOWN % PARENT),
        env=os.environ | {"OTEL_PROPAGATORS": "nobody"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{TRACE}\n"
    assert "OTEL_PROPAGATORS is ignored, tracecontext is used" in done.stderr
    assert "nobody" in done.stderr


WITHOUT = """
import importlib.util, sys
from tests.support.extras_only import forbid
forbid({"opentelemetry"})
assert importlib.util.find_spec("opentelemetry") is None
import pytest
sys.exit(pytest.main(["-qx", "--timeout=60", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_traces_go_on_where_opentelemetry_is_not_installed() -> None:
    done = subprocess.run(
        (sys.executable, "-c", WITHOUT, "tests/unit/specs/test_trace_context.py"),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout

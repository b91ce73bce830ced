"""Traces where OpenTelemetry is installed and used as well, and where it is not installed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider

from penstock import specs
from penstock.specs.emit.api import use_emitter
from penstock.specs.trace.span_context import trace_fields
from tests.unit.specs.output import Output

ROOT = Path(__file__).resolve().parents[3]
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{CALLER}-01"


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    """The process's emitter; all that it writes the gate accepts."""
    made = Output(tmp_path / "lines")
    before = use_emitter(made.emitter)
    yield made
    use_emitter(before)
    made.close()


def test_spans_of_opentelemetry_and_ours_are_each_others_children(output: Output) -> None:
    tracer = TracerProvider().get_tracer("t")
    with tracer.start_as_current_span("theirs") as theirs, specs.span("ours"):
        with tracer.start_as_current_span("inner") as inner:
            assert inner.parent is not None  # type: ignore[attr-defined]
            parent = inner.parent.span_id  # type: ignore[attr-defined]
        assert not otel.get_current_span().is_recording()
    ours = output.records()[0]
    assert ours["parent_span_id"] == f"{theirs.get_span_context().span_id:016x}"
    assert ours["span_id"] == f"{parent:016x}"


def test_opentelemetrys_spans_are_children_of_a_trace_that_goes_on() -> None:
    with (
        specs.extracted({"traceparent": PARENT}),
        TracerProvider().get_tracer("t").start_as_current_span("child") as span,
    ):
        assert f"{span.get_span_context().trace_id:032x}" == TRACE
        assert trace_fields()["trace_id"] == TRACE
        assert trace_fields()["span_id"] != CALLER
    assert trace_fields() == {}


WITHOUT = """
import importlib.util, sys
from tests.support.extras_only import forbid
forbid({"opentelemetry"})
assert importlib.util.find_spec("opentelemetry") is None
import pytest
sys.exit(pytest.main(["-qx", "--timeout=60", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_all_holds_where_opentelemetry_is_not_installed() -> None:
    """Spans, their requests, and the context between processes: other tests, run without it."""
    files = [f"tests/unit/specs/{name}.py" for name in ("test_tracing", "test_propagation")]
    done = subprocess.run(
        (sys.executable, "-c", WITHOUT, *files),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout

"""Which headers carry a trace, by OTEL_PROPAGATORS."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from typing_extensions import override

from penstock import specs
from penstock.specs.emit.context import bound
from penstock.specs.testing import Capture
from penstock.specs.trace.span_context import trace_fields
from penstock.specs.web.middleware import AsgiMiddleware, Message

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "a" * 32 + "-" + "b" * 16
HEADERS = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "user.id=u"}


class OneHeader(TextMapPropagator):
    """As OpenTelemetry's own are: here ``trace: TRACE-SPAN``."""

    @override
    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        given = carrier.get("trace")
        if given is None:
            return context or Context()
        trace_id, span_id = (int(part, 16) for part in given.split("-"))
        found = trace.SpanContext(
            trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(1)
        )
        return trace.set_span_in_context(trace.NonRecordingSpan(found), context)

    @override
    def inject(self, carrier: Any, context: Context | None = None, setter: Any = None) -> None:
        here = trace.get_current_span(context).get_span_context()
        carrier["trace"] = f"{here.trace_id:032x}-{here.span_id:016x}"

    @property
    @override
    def fields(self) -> set[str]:
        return {"trace"}


class MixedCase(OneHeader):
    """Asks for its header by the name that its vendor writes it with, as that of AWS X-Ray does."""

    @override
    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        found = getter.get(carrier, "X-Vendor-Trace-Id")
        assert getter.keys(carrier) == list(carrier)
        return super().extract({"trace": found[0]} if found else {}, context)


class Broken(OneHeader):
    @override
    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        raise KeyError("extract")

    @override
    def inject(self, carrier: Any, context: Context | None = None, setter: Any = None) -> None:
        raise KeyError("inject")


Choose = Callable[[str], None]


@pytest.fixture
def choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Sets the variable, where an installed package registers these."""
    targets = {
        "one": "OneHeader", "mixed": "MixedCase", "broken": "Broken", "unloadable": "Absent",
    }  # fmt: skip
    package = tmp_path / "vendor-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    lines = [f"{name} = {__name__}:{target}\n" for name, target in targets.items()]
    (package / "entry_points.txt").write_text("[opentelemetry_propagator]\n" + "".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OTEL_PROPAGATORS", "none")
    sent()  # what another test chose is not remembered
    return lambda text: monkeypatch.setenv("OTEL_PROPAGATORS", text)


def sent(*, baggage: bool = True) -> dict[str, str]:
    """What goes out within a span of the trace ``HEADERS``."""
    headers: dict[str, str] = {}
    specs.inject(headers, baggage=baggage)
    return headers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"traceparent", "tracestate", "baggage"}),
        ("tracecontext,baggage", {"traceparent", "tracestate", "baggage"}),
        (" tracecontext , tracecontext ", {"traceparent", "tracestate"}),
        ("baggage", {"baggage"}),
        ("none", set()),
        ("tracecontext,None", set()),
        ("one", {"trace"}),
        ("one,tracecontext", {"trace", "traceparent", "tracestate"}),
        ("broken,one", {"trace"}),
        ("nobody,tracecontext", {"traceparent", "tracestate"}),
        ("unloadable,tracecontext", {"traceparent", "tracestate"}),
        ("nobody", set()),
    ],
)
def test_traces_are_written_as_the_variable_says(
    choose: Choose, text: str, expected: set[str]
) -> None:
    choose("tracecontext")
    with specs.extracted(HEADERS), specs.bind(user_id="u"):
        choose(text)
        assert sent().keys() == expected
        assert sent(baggage=False).keys() == expected - {"baggage"}


@pytest.mark.parametrize(
    ("text", "trace_id", "who"),
    [
        ("", PARENT[3:35], {"user.id": "u"}),
        ("tracecontext", PARENT[3:35], {}),
        ("baggage", None, {"user.id": "u"}),
        ("none", None, {}),
        ("one", "a" * 32, {}),
        ("one,tracecontext", PARENT[3:35], {}),
        ("tracecontext,one", "a" * 32, {}),
        ("tracecontext,broken", PARENT[3:35], {}),
    ],
)
def test_traces_are_read_as_the_variable_says(
    choose: Choose, text: str, trace_id: str | None, who: dict[str, str]
) -> None:
    choose(text)
    with specs.extracted({**HEADERS, "trace": OTHER}, baggage=True):
        assert trace_fields().get("trace_id") == trace_id
        assert bound().context == who


def test_a_header_that_is_asked_for_with_capitals_is_found_in_lower_case(choose: Choose) -> None:
    choose("mixed")
    for name in ("X-Vendor-Trace-Id", "x-vendor-trace-id"):
        with specs.extracted({name: OTHER}):
            assert trace_fields().get("trace_id") == "a" * 32
    with specs.extracted(HEADERS):
        assert "trace_id" not in trace_fields()


def test_a_span_goes_on_under_another_packages_header(choose: Choose) -> None:
    choose("one")
    with specs.extracted({"trace": OTHER}), specs.span("work") as span:
        assert (span.ids["trace_id"], span.parent_span_id) == tuple(OTHER.split("-"))
        assert sent() == {"trace": f"{'a' * 32}-{span.ids['span_id']}"}


async def test_a_middleware_reads_what_the_variable_says(
    choose: Choose, specs_capture: Capture
) -> None:
    async def app(scope: Message, receive: Any, send: Any) -> None:
        specs.log().info("inside")
        await send({"type": "http.response.start", "status": 200})

    async def receive() -> Message:
        return {}

    async def send(_: Message) -> None:
        return None

    choose("one")
    headers = [(b"Trace", OTHER.encode()), (b"traceparent", PARENT.encode())]
    scope: Message = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    await AsgiMiddleware(AsgiMiddleware(app))(scope, receive, send)
    traces = {
        record.get("trace_id")
        for record in specs_capture.records
        if record.get("scope") != "asyncio"
    }
    assert traces == {"a" * 32}
    outer = specs_capture.of("span")[-1]
    assert outer["parent_span_id"] == "b" * 16


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("b3", "b3 is ignored: no installed package registers it"),
        ("unloadable", "unloadable is ignored, it cannot be loaded"),
    ],
)
def test_names_that_are_not_known_are_warned_of_once(
    choose: Choose, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    choose(text)
    with caplog.at_level(logging.WARNING, "penstock.specs"):
        for _ in range(3):
            sent()
    assert [said in message for message in caplog.messages] == [True]

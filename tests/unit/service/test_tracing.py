"""Spans of a process's own work: which there are, and what becomes of them."""

import threading
import timeit
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.trace import SpanKind
from pydantic import ValidationError
from typing_extensions import override

from penstock.service.tracing import (
    Tracing,
    TracingSection,
    address_of,
    span_of,
    trace_of,
)
from penstock.service.tracing.spans import BATCH_SPANS_MAX, LINKS_MAX, Tracer
from tests.support.tracing import attributes_of, context_of, ended, error_of, make_tracer
from tests.support.waiting import wait_until


def section(**keys: Any) -> TracingSection:
    return TracingSection.model_validate({"endpoint": "http://127.0.0.1:1", "sample": 1} | keys)


def test_a_share_of_the_work_is_traced() -> None:
    found = make_tracer(sample=0.1)
    assert 60 < sum(found.start("work") is not None for _ in range(1000)) < 140


def test_what_is_rare_is_always_traced() -> None:
    found = make_tracer(sample=0)
    found.end(found.start_rare("election", ago_ns=7))
    assert [span.name for span in ended(found)] == ["election"]
    assert found.start("work") is None


def test_each_process_that_meets_a_trace_decides_alike() -> None:
    one, other = (make_tracer(sample=0.2) for _ in range(2))
    traces = [trace_of(b"p" * 16, number) for number in range(300)]
    chosen = [trace for trace in traces if one.start("work", trace_id=trace) is not None]
    assert 20 < len(chosen) < 110
    assert [t for t in traces if other.start("work", trace_id=t) is not None] == chosen
    assert len({span_of(trace) for trace in traces}) == 300


def test_a_batch_has_the_ids_that_others_know_it_by() -> None:
    found = make_tracer()
    trace = trace_of(b"p" * 16, 7)
    for span_id in (span_of(trace), 0):
        span = found.start("publish", kind="PRODUCER", trace_id=trace, span_id=span_id)
        assert span is not None
        found.end(span)
    stored, repeated = map(context_of, ended(found))
    assert (stored.trace_id, stored.span_id) == (trace, span_of(trace))
    assert repeated.trace_id == trace
    assert repeated.span_id != stored.span_id


def test_parts_have_the_trace_of_the_whole_and_links_are_bounded() -> None:
    found = make_tracer()
    whole = found.start("work", ago_ns=7_000)
    assert whole is not None
    part = found.part(whole, "part", kind="CLIENT")
    for number in range(1, 2 * LINKS_MAX):
        found.link(part, trace_of(b"p" * 16, number))
    found.end(part)
    found.end(whole, error="no", attributes={"penstock.stream": "logs"})
    inner, outer = ended(found)
    assert inner.parent == context_of(outer)
    assert (inner.kind, len(inner.links)) == (SpanKind.CLIENT, LINKS_MAX)
    assert (outer.parent, error_of(outer)) == (None, "no")
    assert attributes_of(outer) == {"penstock.stream": "logs"}
    assert outer.start_time is not None
    assert outer.end_time is not None
    assert outer.end_time - outer.start_time >= 7_000


def test_own_subjects_are_known_as_text_and_as_bytes() -> None:
    found = make_tracer()
    found.add_own(["telemetry.traces.shop"])
    assert found.is_own("telemetry.traces.penstock_logd")
    assert found.is_own("telemetry.traces.shop")
    assert found.is_own(b"telemetry.traces.shop")
    assert not found.is_own("telemetry.traces.other")


def test_what_is_not_traced_costs_little() -> None:
    """Bounded far above what it takes: work is traced by the batch, never by the record."""
    found = make_tracer(sample=0.0)
    runs = 5_000
    seconds = min(timeit.repeat(lambda: found.start("work"), number=runs, repeat=5))
    assert seconds / runs < 100e-6


@pytest.mark.parametrize(
    "wrong",
    [{"endpoint": "ftp://x"}, {"endpoint": "http://x/path"}, {"sample": 2}, {"max_queue_size": 0}],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        section(**wrong)


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("http://:4318", "no host"), ("http://h:99999", "[Pp]ort"), ("http://h:x", "[Pp]ort"),
        ("http://h:0", "[Pp]ort"), ("http://[::1", "IPv6"), (f"http://{'a' * 64}.example", "label"),
        ("https://a..b", "label"), ("http://h?x", "HOST:PORT"), ("http://h#x", "HOST:PORT"),
    ],
)  # fmt: skip
def test_an_endpoint_that_cannot_be_asked_is_refused(endpoint: str, why: str) -> None:
    with pytest.raises(ValidationError, match=f"{why}.*"):
        section(endpoint=endpoint)


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("http://127.0.0.1:4318", "127.0.0.1", 4318), ("https://[::1]:1", "::1", 1),
        ("http://Collector", "collector", 80), ("https://bücher.example", "bücher.example", 443),
    ],
)  # fmt: skip
def test_an_endpoint_is_a_host_and_a_port(endpoint: str, host: str, port: int) -> None:
    assert address_of(section(endpoint=endpoint).endpoint) == (host, port)


class Collector:
    """Takes OTLP over HTTP, with the answers a test sets."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.requests: list[ExportTraceServiceRequest] = []
        self.before: Callable[[], None] = lambda: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                outer.requests.append(ExportTraceServiceRequest.FromString(body))
                outer.before()
                with suppress(OSError):  # the client may have gone
                    self.send_response(outer.answers.pop(0) if outer.answers else 200)
                    self.end_headers()

            @override
            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[trace_pb2.Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.server.shutdown()
    found.thread.join()
    found.server.server_close()


def work(found: Tracer | None, count: int = 1) -> None:
    assert found is not None
    for _ in range(count):
        span = found.start("work")
        assert span is not None
        found.end(span)


def test_spans_reach_a_collector_with_what_they_are_of(collector: Collector) -> None:
    tracing = Tracing(section(endpoint=collector.endpoint), "logd", "n-1")
    assert tracing.tracer is not None
    span = tracing.tracer.start("append", kind="CONSUMER", trace_id=0xAB)
    assert span is not None
    tracing.tracer.end(span, error="why", attributes={"a.b": "text", "number": 3})
    wait_until(lambda: tracing.counts() == {"sent": 1, "failed": 0, "unsent": 0})
    tracing.close()
    (sent,) = collector.spans()
    assert (sent.trace_id.hex(), sent.kind) == (f"{0xAB:032x}", trace_pb2.Span.SPAN_KIND_CONSUMER)
    assert sent.status.message == "why"
    (resource,) = [one.resource for one in collector.requests[0].resource_spans]
    values = {one.key: one.value.string_value for one in resource.attributes}
    assert (values["service.name"], values["service.instance.id"]) == ("penstock.logd", "n-1")


def test_a_collector_that_is_busy_gets_them_again_and_one_that_refuses_does_not(
    collector: Collector,
) -> None:
    collector.answers = [503, 200, 400]
    tracing = Tracing(section(endpoint=collector.endpoint), "logd", "n-1")
    work(tracing.tracer, 2)
    wait_until(lambda: tracing.counts()["sent"] == 2)
    with structlog.testing.capture_logs() as said:
        work(tracing.tracer)
        wait_until(lambda: tracing.counts()["failed"] == 1)
        tracing.close()
    assert [line["event"] for line in said].count("span_export_failed") == 1
    assert len(collector.requests) == 3


def test_at_the_end_what_waits_is_sent_in_several_requests(collector: Collector) -> None:
    tracing = Tracing(section(endpoint=collector.endpoint), "logd", "n-1")
    work(tracing.tracer, 2 * BATCH_SPANS_MAX + 1)
    tracing.close(60)
    assert tracing.counts() == {"sent": 2 * BATCH_SPANS_MAX + 1, "failed": 0, "unsent": 0}
    assert len(collector.requests) >= 3


def test_closing_does_not_wait_for_a_collector_that_does_not_answer(collector: Collector) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        go_on.wait(60)

    collector.before = wait
    tracing = Tracing(section(endpoint=collector.endpoint), "logd", "n-1")
    work(tracing.tracer, 3)
    assert asked.wait(60)
    tracing.close(0.01)
    assert tracing.counts() == {"sent": 0, "failed": 0, "unsent": 3}
    go_on.set()


def test_what_finds_no_room_is_dropped_and_counted_as_unsent() -> None:
    tracing = Tracing(section(max_queue_size=2), "logd", "n-1")
    work(tracing.tracer, 5)
    tracing.close(60)
    counts = tracing.counts()
    assert counts["sent"] == 0
    assert counts["failed"] + counts["unsent"] == 5
    assert counts["unsent"] >= 1


@pytest.mark.parametrize("given", [None, section(enabled=False)])
def test_nothing_is_there_where_nothing_is_traced(given: TracingSection | None) -> None:
    before = threading.active_count()
    tracing = Tracing(given, "logd", "n-1")
    assert (tracing.tracer, tracing.counts(), threading.active_count()) == (None, {}, before)
    tracing.close()

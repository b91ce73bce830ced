"""Spans of a process's own work: how many there are, what becomes of them, what they cost."""

import json
import random
import threading
import timeit
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import structlog
from pydantic import ValidationError
from typing_extensions import override

from penstock.base.clock import Clock
from penstock.service.tracing import (
    BATCH_SPANS_MAX,
    LINKS_MAX,
    Tracer,
    Tracing,
    TracingSection,
    address_of,
    span_of,
    trace_of,
)
from tests.support.waiting import wait_until

SECOND_NS = 10**9


class SetClock(Clock):
    def __init__(self) -> None:
        self.ns = 100 * SECOND_NS

    @override
    def monotonic_ns(self) -> int:
        return self.ns

    @override
    def unix_ns(self) -> int:
        return 10**18 + self.ns


def section(**keys: Any) -> TracingSection:
    return TracingSection.model_validate({"endpoint": "http://127.0.0.1:1", "sample": 1} | keys)


def tracer(clock: Clock | None = None, **keys: Any) -> Tracer:
    return Tracer(section(**keys), clock=clock, draw=random.Random(1))


def test_a_share_of_the_work_is_traced() -> None:
    found = tracer(sample=0.1, spans_per_s_max=10_000)
    assert 60 < sum(found.start("work") is not None for _ in range(1000)) < 140


def test_whoever_meets_a_trace_decides_alike() -> None:
    one, other = (tracer(sample=0.2, spans_per_s_max=10_000) for _ in range(2))
    traces = [trace_of(b"p" * 16, number) for number in range(300)]
    chosen = [trace for trace in traces if one.start("work", trace_id=trace) is not None]
    assert 20 < len(chosen) < 110
    assert [t for t in traces if other.start("work", trace_id=t) is not None] == chosen
    assert len({span_of(trace) for trace in traces}) == 300


def test_no_more_spans_a_second_than_configured_and_the_others_are_counted() -> None:
    clock = SetClock()
    found = tracer(clock, spans_per_s_max=5)
    begun = 0
    for _ in range(100):  # ten seconds
        begun += sum(found.start("work") is not None for _ in range(10))
        clock.ns += SECOND_NS // 10
    assert begun == 54  # five at once, and five a second after that
    assert found.counts()["rate_limited"] == 1000 - 54


def test_what_waits_is_bounded_and_what_finds_no_room_is_counted() -> None:
    found = tracer(waiting_max=3, spans_per_s_max=100)
    for _ in range(5):
        span = found.start("work")
        assert span is not None
        span.end()
        span.end()  # once is enough
    counts = found.counts()
    assert (counts["waiting"], counts["queue_full"]) == (3, 2)
    assert len(found.take()) == 3
    assert found.counts()["waiting"] == 3  # until it is known what became of them
    found.settle({"sent": 2, "refused": 1})
    assert found.counts() == {
        "sent": 2, "rate_limited": 0, "queue_full": 2, "refused": 1, "lost": 0, "waiting": 0,
    }  # fmt: skip


def test_parts_have_the_trace_of_the_whole_and_links_are_bounded() -> None:
    clock = SetClock()
    found = tracer(clock)
    whole = found.start("work", ago_ns=7)
    part = found.part(whole, "part")
    assert whole is not None
    assert part is not None
    assert (part.trace_id, part.parent_id) == (whole.trace_id, whole.span_id)
    assert found.part(None, "part") is None
    clock.ns += 5
    whole.end(error="no", penstock__stream="logs")
    assert (whole.ended_unix_ns - whole.begun_unix_ns, whole.error) == (12, "no")
    assert whole.attributes == {"penstock.stream": "logs"}
    for number in range(2 * LINKS_MAX):
        part.link(number, number)
    assert len(part.links) == LINKS_MAX


def test_own_subjects_are_known_as_text_and_as_bytes() -> None:
    found = Tracer(section(), own=["other.traces.penstock_logd"])
    assert found.is_own("telemetry.traces.penstock_logd")
    assert found.is_own(b"other.traces.penstock_logd")
    assert not found.is_own("telemetry.traces.shop")
    found.add_own(["telemetry.traces.shop"])
    assert found.is_own("telemetry.traces.shop")
    assert found.is_own(b"telemetry.traces.shop")
    assert found.is_own("other.traces.penstock_logd")  # what waits is still on its way there


def test_what_is_not_traced_costs_next_to_nothing() -> None:
    """A branch, a random number and a comparison: bounded far above what they take."""
    found = tracer(sample=0.0)
    runs = 20_000
    seconds = min(timeit.repeat(lambda: found.start("work"), number=runs, repeat=5))
    assert seconds / runs < 5e-6


@pytest.mark.parametrize(
    "wrong",
    [{"endpoint": "ftp://x"}, {"endpoint": "http://x/path"}, {"sample": 2}, {"spans_per_s_max": 0}],
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
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.requests: list[dict[str, Any]] = []
        self.said = ""
        self.before: Callable[[], None] = lambda: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert (self.path, self.headers["Content-Type"]) == (
                    "/v1/traces",
                    "application/json",
                )
                outer.requests.append(json.loads(body))
                status, answer = outer.answers.pop(0) if outer.answers else (200, {})
                self.send_response(status)
                self.end_headers()
                outer.before()
                with suppress(OSError):  # who asked may have gone
                    self.wfile.write((outer.said or json.dumps(answer)).encode())

            @override
            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[dict[str, Any]]:
        return [
            span
            for request in self.requests
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.server.shutdown()
    found.thread.join()
    found.server.server_close()


def test_spans_are_sent_as_otlp_has_them(collector: Collector) -> None:
    tracing = Tracing(section(endpoint=collector.endpoint), "logd", "n-1")
    assert tracing.tracer is not None
    span = tracing.tracer.start("append", kind="CONSUMER", trace_id=0xAB)
    assert span is not None
    span.link(1, 2)
    span.end(error="why", a__b="text", number=3, share=0.5, good=True)
    wait_until(lambda: tracing.counts()["sent"] == 1)
    tracing.close()
    (sent,) = collector.spans()
    assert (sent["traceId"], sent["kind"]) == (f"{0xAB:032x}", 5)
    assert sent["links"] == [{"traceId": f"{1:032x}", "spanId": f"{2:016x}"}]
    assert sent["status"] == {"code": 2, "message": "why"}
    values = {one["key"]: one["value"] for one in sent["attributes"]}
    assert values == {
        "a.b": {"stringValue": "text"}, "number": {"intValue": "3"},
        "share": {"doubleValue": 0.5}, "good": {"boolValue": True},
    }  # fmt: skip
    resource = collector.requests[0]["resourceSpans"][0]["resource"]["attributes"]
    assert {"key": "service.name", "value": {"stringValue": "penstock.logd"}} in resource


def test_a_collector_that_is_busy_gets_them_again_and_one_that_refuses_does_not(
    collector: Collector,
) -> None:
    collector.answers = [(503, {}), (200, {"partialSuccess": {"rejectedSpans": "1"}}), (400, {})]
    tracing = Tracing(section(endpoint=collector.endpoint), "logd", "n-1")
    assert tracing.tracer is not None
    for _ in range(2):
        span = tracing.tracer.start("work")
        assert span is not None
        span.end()
    wait_until(lambda: tracing.counts()["waiting"] == 0)
    assert (tracing.counts()["sent"], tracing.counts()["refused"]) == (1, 1)
    span = tracing.tracer.start("work")
    assert span is not None
    span.end()
    wait_until(lambda: tracing.counts()["refused"] == 2)
    tracing.close()


def test_spans_for_a_collector_that_is_away_are_lost_at_the_end_and_counted() -> None:
    tracing = Tracing(section(), "logd", "n-1")
    assert tracing.tracer is not None
    span = tracing.tracer.start("work")
    assert span is not None
    span.end()
    tracing.close()
    assert (tracing.counts()["lost"], tracing.counts()["waiting"]) == (1, 0)


def work(found: Tracer | None, count: int) -> None:
    assert found is not None
    for _ in range(count):
        span = found.start("work")
        assert span is not None
        span.end()


def test_more_than_one_batch_is_known_to_wait_until_all_are_taken() -> None:
    found = tracer(spans_per_s_max=10_000)
    work(found, BATCH_SPANS_MAX - 1)
    assert (found.came.is_set(), found.full.is_set()) == (True, False)
    work(found, BATCH_SPANS_MAX + 2)
    for left in (BATCH_SPANS_MAX + 1, 1, 0):
        assert (found.came.is_set(), found.full.is_set()) == (True, left > 0)
        assert found.take()
        found.settle({"sent": 1})
        assert found.counts()["waiting"] == left
    assert not found.came.is_set()


def test_where_few_may_wait_they_are_sent_before_others_find_no_room() -> None:
    found = tracer(waiting_max=2, spans_per_s_max=100)
    work(found, 2)
    assert found.full.is_set()


def test_all_that_waits_is_sent_though_no_other_span_comes(collector: Collector) -> None:
    tracing = Tracing(section(endpoint=collector.endpoint, spans_per_s_max=10_000), "logd", "n-1")
    work(tracing.tracer, 600)
    wait_until(lambda: tracing.counts()["sent"] == 600)
    tracing.close()
    assert len(collector.requests) >= 3


def test_at_the_end_several_batches_are_sent(collector: Collector) -> None:
    tracing = Tracing(section(endpoint=collector.endpoint, spans_per_s_max=10_000), "logd", "n-1")
    work(tracing.tracer, 600)
    tracing.close(60)
    assert (tracing.counts()["sent"], tracing.counts()["lost"]) == (600, 0)


def test_what_a_slow_collector_has_not_taken_in_time_is_counted_as_lost_once(
    collector: Collector,
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        go_on.wait(60)

    collector.before = wait
    tracing = Tracing(section(endpoint=collector.endpoint, spans_per_s_max=10_000), "logd", "n-1")
    work(tracing.tracer, 300)
    assert asked.wait(60)
    tracing.close(0.01)
    assert (tracing.counts()["lost"], tracing.counts()["waiting"]) == (300, 0)
    go_on.set()
    work(tracing.tracer, 1)
    wait_until(lambda: not any(one.name == "spans" for one in threading.enumerate()))
    assert (tracing.counts()["lost"], tracing.counts()["sent"]) == (301, 0)


@pytest.mark.parametrize(
    "said",
    [
        '{"partialSuccess": {"rejectedSpans": Infinity}}',
        '{"partialSuccess": {"rejectedSpans": -5}}',
        "[" * 60_000,
    ],
)
def test_no_answer_ends_the_sending(collector: Collector, said: str) -> None:
    collector.said = said
    tracing = Tracing(section(endpoint=collector.endpoint), "logd", "n-1")
    work(tracing.tracer, 1)
    wait_until(lambda: tracing.counts()["waiting"] == 0)
    tracing.close()
    assert (tracing.counts()["sent"], tracing.counts()["refused"]) == (1, 0)


def test_an_address_that_cannot_be_asked_does_not_end_the_sending() -> None:
    """Whatever a name is that no check knew: here one that no socket takes."""
    given = section().model_copy(update={"endpoint": f"http://{'a' * 64}.example:4318"})
    tracing = Tracing(given, "logd", "n-1")
    work(tracing.tracer, 1)
    with structlog.testing.capture_logs() as told:
        wait_until(lambda: told, what="why the spans are not taken")
    assert told[0]["event"] == "spans are not taken"
    assert tracing.counts()["lost"] == 0, "they are to be sent again"
    tracing.close()
    assert tracing.counts()["lost"] == 1


@pytest.mark.parametrize("given", [None, section(enabled=False)])
def test_nothing_is_there_where_nothing_is_traced(given: TracingSection | None) -> None:
    before = threading.active_count()
    tracing = Tracing(given, "logd", "n-1")
    assert (tracing.tracer, tracing.counts(), threading.active_count()) == (None, {}, before)
    tracing.close()

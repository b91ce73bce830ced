"""Spans of one's own: what they say, whose children they are, and that they hurt nobody.

All of it holds with OpenTelemetry and without it: `test_tracing_otel` runs this file where it is
not installed. So nothing here may import it.
"""

import asyncio
import contextvars
import os
import re
from collections.abc import Generator, Iterator
from contextlib import nullcontext as does_not_raise
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock import specs
from penstock.specs import clock
from penstock.specs.emit.api import use_emitter
from penstock.specs.limits import ATTRIBUTES_MAX, LINKS_MAX, NAME_CHARACTERS_MAX
from penstock.specs.models.attributes import exception_attributes
from penstock.specs.trace.span_context import is_tracing, trace_fields
from penstock.specs.web.request import Habits, Request, handling, server_span
from tests.unit.specs.output import Output

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    """The process's emitter; all that it writes the gate accepts."""
    made = Output(tmp_path / "lines")
    before = use_emitter(made.emitter)
    yield made
    use_emitter(before)
    made.close()


def spans(output: Output) -> dict[str, dict[str, Any]]:
    return {record["name"]: record for record in output.records() if record["kind"] == "span"}


def test_a_span_says_what_was_done_how_long_and_with_what(output: Output) -> None:
    with (
        specs.bind(user_id="u-1", tenant="t-1"),
        specs.span("charge card", kind="CLIENT", scope="shop", order_id=7) as span,
    ):
        span.set({"card.brand": "visa"}, amount=42)
    (record,) = output.records()
    assert record["schema"] == "span/1.0"
    assert record["span_kind"] == "CLIENT"
    assert record["status_code"] == "UNSET"
    assert record["scope"] == "shop"
    assert record["end_time_unix_nano"] >= record["time_unix_nano"]
    assert record["context"] == {"user.id": "u-1"}
    assert record["attributes"] == {
        "tenant": "t-1", "order_id": 7, "card.brand": "visa", "amount": 42,
    }  # fmt: skip
    assert "parent_span_id" not in record


def test_a_fault_has_one_fingerprint_on_its_spans_and_in_the_log(output: Output) -> None:
    def fault(card: str) -> None:
        raise TimeoutError(f"no answer for {card}")

    caught: list[BaseException] = []
    for card in ("a", "b"):
        try:
            with specs.span("charge"):
                fault(card)
        except TimeoutError as error:
            caught.append(error)
    found = [record["attributes"] for record in output.records()]
    assert found[0]["exception.fingerprint"] == found[1]["exception.fingerprint"]
    assert re.fullmatch("[0-9a-f]{16}", found[0]["exception.fingerprint"])
    assert exception_attributes(caught[0])["exception.type"] == found[0]["error.type"]
    with specs.span("fine"):
        pass
    assert "attributes" not in output.records()[-1]


def test_what_runs_within_belongs_to_it(output: Output) -> None:
    with specs.span("order") as outer:
        output.emitter.logs.write("said", 9, {})
        headers: dict[str, str] = {}
        specs.inject(headers)
        with specs.span("charge"):
            pass
    records = output.records()
    said = next(record for record in records if record["kind"] == "log")
    charge, order = spans(output)["charge"], spans(output)["order"]
    assert said["span_id"] == order["span_id"] == outer.ids["span_id"]
    assert said["trace_id"] == order["trace_id"] == charge["trace_id"]
    assert charge["parent_span_id"] == order["span_id"]
    assert headers["traceparent"] == f"00-{order['trace_id']}-{order['span_id']}-01"
    assert trace_fields() == {}
    assert not is_tracing()


def test_a_callers_trace_goes_on(output: Output) -> None:
    headers: dict[str, str] = {}
    with (
        specs.extracted({"traceparent": PARENT, "tracestate": "vendor=1"}),
        specs.span("handle"),
    ):
        specs.inject(headers)
    record = spans(output)["handle"]
    assert (record["trace_id"], record["parent_span_id"]) == (TRACE, CALLER)
    assert record["trace_state"] == headers["tracestate"] == "vendor=1"


def test_what_is_raised_makes_it_a_failure_and_goes_on(output: Output) -> None:
    with pytest.raises(ZeroDivisionError), specs.span("divide"):
        _ = 1 / 0
    record = spans(output)["divide"]
    assert (record["status_code"], record["status_message"]) == ("ERROR", "division by zero")
    assert record["attributes"]["error.type"] == "ZeroDivisionError"
    with specs.span("ask") as span:
        span.fail("no answer")
    assert spans(output)["ask"]["status_message"] == "no answer"


async def test_a_task_that_is_cancelled_has_not_failed(output: Output) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        with specs.span("wait"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert spans(output)["wait"]["status_code"] == "UNSET"


def test_links_are_bounded_and_malformed_ones_counted(output: Output) -> None:
    with specs.span("consume", kind="CONSUMER") as span:
        span.link("nonsense")
        for _ in range(LINKS_MAX + 2):
            span.link(PARENT)
    record = spans(output)["consume"]
    assert record["links"][0] == {"trace_id": TRACE, "span_id": CALLER}
    assert (len(record["links"]), record["dropped_links_count"]) == (LINKS_MAX, 3)


class Broken:
    """Says nothing of itself."""

    @override
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_odd_values_are_made_to_fit(output: Output) -> None:
    many = {f"key.{number}": number for number in range(ATTRIBUTES_MAX + 5)}
    with specs.span("x" * 2000, kind="NONSENSE") as span:  # type: ignore[arg-type]
        span.set(many)
    with specs.span("", broken=Broken(), text="\ud800", big=1 << 70, nan=float("nan")):
        pass
    found = spans(output)
    (long,) = (name for name in found if name.startswith("x"))
    assert len(long) == NAME_CHARACTERS_MAX
    assert found[long]["span_kind"] == "INTERNAL"
    assert len(found[long]["attributes"]) == ATTRIBUTES_MAX
    assert found[long]["dropped_attributes_count"] == 5
    assert found["unnamed"]["attributes"] == {
        "broken": "<Broken>", "text": "?", "big": str(1 << 70), "nan": "nan",
    }  # fmt: skip


def test_secrets_do_not_leave_the_process(output: Output) -> None:
    for _ in range(2):  # the second time their names are known
        with specs.span("log in", password="hunter2", attempt=1):
            pass
    records = output.records()
    assert "hunter2" not in str(records)
    assert [record["attributes"]["attempt"] for record in records] == [1, 1]


def test_a_sample_keeps_whole_traces_and_failures(tmp_path: Path) -> None:
    output = Output(tmp_path / "lines", sampling=0.5)
    before = use_emitter(output.emitter)
    try:
        for number in range(64):
            with specs.span("fine") as span:
                pass
            with specs.span(f"failed {number}") as span:
                span.fail()
        records = output.records()
    finally:
        use_emitter(before)
    counters = output.emitter.counters()
    output.close()
    fine = [record for record in records if record["name"] == "fine"]
    assert len(records) - len(fine) == 64
    assert 0 < len(fine) < 64
    assert all(record["sample_weight"] == 2 for record in fine)
    assert counters.dropped == {"span": {"sampled": 64 - len(fine)}}


def test_without_setup_the_block_runs_all_the_same() -> None:
    before = use_emitter(None)
    try:
        with does_not_raise(), specs.span("nobody listens") as span:
            span.set(a=1)
    finally:
        use_emitter(before)


def test_a_generator_that_ends_elsewhere_hurts_nobody(output: Output) -> None:
    def work() -> Generator[int]:
        with specs.span("generate"):
            yield 1
            yield 2

    numbers = work()
    contextvars.copy_context().run(next, numbers)
    numbers.close()
    assert spans(output)["generate"]["status_code"] == "UNSET"
    assert trace_fields() == {}


def test_requests_have_a_span_where_opentelemetrys_sdk_is_not_set_up(output: Output) -> None:
    with specs.extracted({"traceparent": PARENT}), server_span("GET", {"url.path": "/o"}) as outer:
        with server_span("GET", {}) as inner:  # a framework within a framework
            inner.finish("inner", {}, failed=False)
        outer.finish("GET /orders/{id}", {"http.response.status_code": 503}, failed=True)
    (record,) = output.records()
    assert record["name"] == "GET /orders/{id}"
    assert (record["span_kind"], record["status_code"]) == ("SERVER", "ERROR")
    assert record["parent_span_id"] == CALLER
    assert record["attributes"] == {"url.path": "/o", "http.response.status_code": 503}


def test_a_forked_child_draws_ids_of_its_own() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, clock.trace_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = os.read(reading, 64).decode()
    os.close(reading)
    os.close(writing)
    assert len(drawn) == 32
    assert drawn != clock.trace_id()


def test_a_message_goes_on_with_its_producers_trace_within_a_span_of_its_consumer(
    output: Output,
) -> None:
    with (
        specs.span("poll") as poll,
        specs.extracted({"traceparent": PARENT}),
        specs.span("process") as process,
    ):
        process.link("00-{trace_id}-{span_id}-01".format(**poll.ids))
    record = spans(output)["process"]
    assert (record["trace_id"], record["parent_span_id"]) == (TRACE, CALLER)
    assert record["links"] == [{name: poll.ids[name] for name in ("trace_id", "span_id")}]


async def test_what_outlives_a_span_is_no_part_of_it(output: Output) -> None:
    over = asyncio.Event()

    async def serve() -> None:
        await over.wait()
        for number, headers in enumerate(({}, {}, {"traceparent": PARENT})):
            request, silent = Request("http.server", f"GET {number}"), Habits(records=False)
            with (
                handling(request, headers, silent),
                handling(Request("http.server", "by another middleware"), headers, silent),
            ):
                pass

    with specs.span("startup"):
        task = asyncio.create_task(serve())
    over.set()
    await task
    found = spans(output)
    assert sorted(found) == ["GET 0", "GET 1", "GET 2", "startup"]
    assert len({record["trace_id"] for record in found.values()}) == 4
    assert found["GET 2"]["parent_span_id"] == CALLER
    assert all("parent_span_id" not in found[name] for name in ("GET 0", "GET 1"))


def test_wrong_use_raises_nothing(output: Output) -> None:
    with specs.span("twice") as span:
        with span:
            output.emitter.logs.write("said", 9, {})
        span.set(5)  # type: ignore[arg-type]
        span.set([1])  # type: ignore[arg-type]
        for odd in (None, 5, PARENT.encode()):
            span.link(odd)  # type: ignore[arg-type]
        span.status = "BOGUS"  # type: ignore[assignment]
        span.kind = []  # type: ignore[assignment]
    span.__exit__(None, None, None)
    record = spans(output)["twice"]
    assert (record["status_code"], record["span_kind"]) == ("UNSET", "INTERNAL")
    assert record["dropped_links_count"] == 3
    assert [each["kind"] for each in output.records()] == ["log", "span"]
    assert output.records()[0]["span_id"] == record["span_id"]
    assert trace_fields() == {}


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_requests_have_no_span_where_none_are_wanted(
    output: Output, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with server_span("GET", {}):
        pass
    assert output.records() == []


def test_a_child_forked_within_a_span_leaves_it_to_its_parent(output: Output) -> None:
    with specs.span("parent's"):
        child = os.fork()
    if child == 0:
        os._exit(len(output.emitter.counters().emitted))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert output.emitter.counters().emitted == {"span": 1}


def test_threads_of_an_executor_belong_to_the_span(output: Output) -> None:
    with specs.Executor(1) as executor, specs.span("outer") as outer:
        inner = executor.submit(trace_fields).result()
    assert inner["span_id"] == outer.ids["span_id"]
    assert spans(output)["outer"]["span_id"] == outer.ids["span_id"]

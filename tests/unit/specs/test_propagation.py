"""Traces and context between processes and threads.

All of it holds with OpenTelemetry and without it: `test_tracing_otel` runs this file where it is
not installed. So nothing here may import it.
"""

import re
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import specs
from penstock.specs.emit.context import bound
from penstock.specs.trace.propagation import (
    CARRIED,
    new_trace,
    parse_baggage,
    parse_traceparent,
    parse_tracestate,
)
from penstock.specs.trace.span_context import trace_fields

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FIELDS = {
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "span_id": "00f067aa0ba902b7",
    "trace_flags": 1,
}


def test_a_trace_goes_on_in_another_process() -> None:
    with specs.extracted({"traceparent": PARENT, "tracestate": "vendor=1"}):
        assert trace_fields() == FIELDS
        headers: dict[str, str] = {}
        specs.inject(headers)
    assert headers == {"traceparent": PARENT, "tracestate": "vendor=1"}
    assert trace_fields() == {}


@pytest.mark.parametrize(
    "text",
    [
        "", "00", PARENT[:-1], PARENT + "-x", "ff" + PARENT[2:], PARENT.upper(),
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
    ],
)  # fmt: skip
def test_malformed_parents_are_ignored(text: str) -> None:
    assert parse_traceparent(text) is None
    with specs.extracted({"traceparent": text}):
        assert trace_fields() == {}


@pytest.mark.parametrize(
    "state",
    [
        "vendor", "vendor=", "=1", "Vendor=1", "vendor=a=b", "vendor=1\r\nX-Evil: 1", "vendor=\x00",
        "vendor=é", "vendor=1;other", "a=1,a=2", "vendor=1,broken", "v=" + "x" * 257, "@a=1",
        "1a=1", "v@=1", "v@" + "a" * 15 + "=1", ",".join(f"k{n}=1" for n in range(33)),
        "v=" + "x" * 600, "ven dor=1", "vendor =1",
    ],
)  # fmt: skip
def test_malformed_states_are_not_passed_on(state: str) -> None:
    expected = {"traceparent": PARENT}
    if state == "vendor=1;other":  # a semicolon is an ordinary character
        expected["tracestate"] = state
    with specs.extracted({"traceparent": PARENT, "tracestate": state}):
        headers: dict[str, str] = {}
        specs.inject(headers)
        assert trace_fields() == FIELDS
        with specs.span("own") as span:
            assert span.state == expected.get("tracestate", "")
    assert headers == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("a=1 , b=2,,", "a=1,b=2"),
        ("0tenant@sys=x y,foo_-*/=!~", "0tenant@sys=x y,foo_-*/=!~"),
        (",".join(f"k{n}=1" for n in range(32)), ",".join(f"k{n}=1" for n in range(32))),
        ("", ""),
    ],
)
def test_well_formed_states_are_passed_on(state: str, expected: str) -> None:
    assert parse_tracestate(state) == expected


def test_parents_of_later_versions_are_understood() -> None:
    assert parse_traceparent("01" + PARENT[2:] + "-more") == FIELDS


def test_nothing_is_injected_without_a_trace() -> None:
    headers: dict[str, str] = {}
    specs.inject(headers)
    assert headers == {}


def test_baggage_is_sent_and_believed_only_when_asked_for() -> None:
    with specs.bind(user_id="ü 1", request_id="r-1", user_email="a@b.c"):
        plain: dict[str, str] = {}
        specs.inject(plain)
        headers: dict[str, str] = {}
        specs.inject(headers, baggage=True)
    assert plain == {}
    assert headers == {"baggage": "user.id=%C3%BC%201,request.id=r-1"}
    with specs.extracted(headers):
        assert bound().context == {}
    with specs.extracted(headers, baggage=True):
        assert bound().context == {"user.id": "ü 1", "request.parent_id": "r-1"}


@given(st.dictionaries(st.sampled_from(CARRIED), st.text(min_size=1, max_size=30)))
def test_baggage_comes_back_as_it_was(context: dict[str, str]) -> None:
    headers: dict[str, str] = {}
    names: Any = {key.replace(".", "_"): value for key, value in context.items()}
    with specs.bind(**names):
        sent = dict(bound().context)
        specs.inject(headers, baggage=True)
    assert parse_baggage(headers.get("baggage", "")) == sent


@given(st.text())
def test_any_baggage_can_be_read(text: str) -> None:
    assert parse_baggage(text).keys() <= set(CARRIED)


def test_baggage_beyond_its_bounds_is_ignored() -> None:
    assert parse_baggage("user.id=" + "x" * 9000) == {}
    assert parse_baggage("a=b," * 64 + "user.id=u") == {}


def test_a_trace_of_its_own_is_made_where_there_is_none() -> None:
    with new_trace():
        made = dict(trace_fields())
        assert re.fullmatch("[0-9a-f]{32}", made["trace_id"])
        with new_trace():
            assert trace_fields() == made


def test_bindings_cross_threads_with_the_executor() -> None:
    with specs.Executor(2) as pool:
        with specs.bind(user_id="u"), specs.extracted({"traceparent": PARENT}):
            inside = pool.submit(lambda: (dict(bound().context), dict(trace_fields())))
        outside = pool.submit(lambda: dict(bound().context))
    assert inside.result() == ({"user.id": "u"}, FIELDS)
    assert outside.result() == {}


def test_a_carried_function_can_run_in_many_threads_at_once() -> None:
    found: list[dict[str, str]] = []
    meeting = threading.Barrier(3)

    def work() -> None:
        meeting.wait(10)
        found.append(dict(bound().context))

    with specs.bind(user_id="u"):
        carried = specs.carry(work)
    threads = [threading.Thread(target=carried) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"user.id": "u"}] * 3

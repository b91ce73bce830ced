"""The trace that records belong to: OpenTelemetry's, else the one that a request's headers name.

All of it holds with OpenTelemetry and without it: `test_server_span` runs this file where it is not
installed. So nothing here may import it.
"""

import contextvars
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import specs
from penstock.specs import ids
from penstock.specs.emit.context import bound, parse_traceparent, trace_fields, use_trace
from penstock.specs.emit.process_emitter import use_emitter
from penstock.specs.web.request import Request, ServerOptions, caller_bound, handling
from tests.unit.specs.output import Output

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FIELDS = {
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "span_id": "00f067aa0ba902b7",
    "trace_flags": 1,
}


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    """The process's emitter; all that it writes the validator accepts."""
    made = Output(tmp_path / "lines")
    before = use_emitter(made.emitter)
    yield made
    use_emitter(before)
    made.close()


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
    with caller_bound({"traceparent": text}, baggage=False):
        assert trace_fields().keys() == {"trace_id"}
        assert trace_fields()["trace_id"] != FIELDS["trace_id"]


def test_parents_of_later_versions_are_understood() -> None:
    assert parse_traceparent("01" + PARENT[2:] + "-more") == FIELDS


def test_records_of_a_block_have_the_ids_of_its_trace(output: Output) -> None:
    with use_trace(FIELDS):
        output.emitter.logs.write("within", 9, {})
    output.emitter.logs.write("outside", 9, {})
    within, outside = output.records()
    assert {name: within[name] for name in FIELDS} == FIELDS
    assert "trace_id" not in outside


def test_a_callers_trace_goes_on_and_one_within_keeps_it() -> None:
    with caller_bound({"traceparent": PARENT}, baggage=False):
        assert trace_fields() == FIELDS
        with caller_bound({"traceparent": PARENT}, baggage=False):
            assert trace_fields() == FIELDS
    assert trace_fields() == {}


def test_a_request_without_a_trace_gets_one_of_its_own() -> None:
    with caller_bound({}, baggage=False):
        made = dict(trace_fields())
        assert re.fullmatch("[0-9a-f]{32}", made["trace_id"])
        with caller_bound({}, baggage=False):
            assert trace_fields() == made
    assert trace_fields() == {}


def test_a_request_has_ids_and_no_span_where_no_tracer_is_set_up(output: Output) -> None:
    request = Request("http.server", "GET")
    with handling(request, {"traceparent": PARENT}, ServerOptions()):
        request.status = 200
    (record,) = output.records()
    assert (record["kind"], record["body"]) == ("log", "request handled")
    assert {name: record[name] for name in FIELDS} == FIELDS


def test_a_forked_child_draws_ids_of_its_own() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, ids.trace_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = os.read(reading, 64).decode()
    os.close(reading)
    os.close(writing)
    assert len(drawn) == 32
    assert drawn != ids.trace_id()


def test_bindings_cross_threads_in_a_copy_of_the_context() -> None:
    with ThreadPoolExecutor(2) as pool:
        with specs.bind(user_id="u"), use_trace(FIELDS):
            here = contextvars.copy_context()
            inside = pool.submit(here.run, lambda: (dict(bound().context), dict(trace_fields())))
        outside = pool.submit(lambda: dict(bound().context))
    assert inside.result() == ({"user.id": "u"}, FIELDS)
    assert outside.result() == {}

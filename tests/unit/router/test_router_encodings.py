"""What sinks keep of what they worked out before changes no byte of what they make."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from penstock.router.remembered import ANSWERS_MAX, LENGTH_MAX, remembered
from penstock.router.sinks import make_sink
from penstock.router.sinks.loki import fit_name
from penstock.router.sinks.protobuf import field_bytes, field_size
from penstock.router.sinks.table import sink_kind
from penstock.specs.ecs import time_text
from penstock.specs.otlp import to_otlp
from tests.support.sink_batches import batch, context, gauge_record, log_record, span_record
from tests.unit.router.test_router_odd_records import OTHERS
from tests.unit.specs import records
from tests.unit.specs.test_mappings import changed

URL = {"url": "http://127.0.0.1:1"}
ALIKE = [1, 1.0, True, "1", 0, -0.0, False, "", "0", [1], [True], {"a": 1}, {"a": 1.0}]
"""Values that Python holds equal are others in JSON; so are texts."""
REQUESTS: dict[str, Any] = {
    "resourceLogs": ExportLogsServiceRequest,
    "resourceSpans": ExportTraceServiceRequest,
    "resourceMetrics": ExportMetricsServiceRequest,
}
NUMBERS = {FieldDescriptor.TYPE_DOUBLE: float, FieldDescriptor.TYPE_FLOAT: float}
TEXTS = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BOOL}


def sink(name: str, directory: Path, **keys: Any) -> Any:
    made = sink_kind(name).config.model_validate({"type": name, **keys})
    return make_sink(made, context(directory))


def fill(message: Any, fields: dict[str, Any]) -> Message:
    """OTLP's JSON into a message, field by field, as its descriptor says."""
    for key, value in fields.items():
        field = message.DESCRIPTOR.fields_by_camelcase_name[key]
        inner = getattr(message, field.name)
        if field.is_repeated and field.message_type:
            for it in value:
                fill(inner.add(), it)
        elif field.is_repeated:
            inner.extend(scalar(field, it) for it in value)
        elif field.message_type:
            inner.SetInParent()
            fill(inner, value)
        else:
            setattr(message, field.name, scalar(field, value))
    return message  # type: ignore[no-any-return]


def scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64decode(value) if field.name == "bytes_value" else bytes.fromhex(value)
    return value if field.type in TEXTS else NUMBERS.get(field.type, int)(value)


def hold(made: Any, record: dict[str, Any]) -> None:
    """A request of one record is what its descriptors say, and as large as the sink held it."""
    (request,), faulty = made._requests(batch([record]))
    body, (item,) = made._body(request), request.items
    element = to_otlp(record)
    (scopes,) = {*element} - {"resource"}
    element[scopes][0].setdefault("scope", {})
    outer = scopes.replace("scope", "resource")
    expected = fill(REQUESTS[outer](), {outer: [element]})
    assert REQUESTS[outer].FromString(body) == expected
    assert item.size == len(body)
    assert not faulty


@given(changed())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_otlp_is_what_its_descriptors_say(tmp_path: Path, record: dict[str, Any]) -> None:
    made = sink("otlp", tmp_path, **URL)
    for it in (record, record):  # the second one's resource and scope are known
        hold(made, it)


def test_otlp_tells_resources_and_scopes_apart_that_python_holds_equal(tmp_path: Path) -> None:
    made = sink("otlp", tmp_path, **URL)
    for value in ALIKE:
        record = log_record(0, resource={"service.name": value}, scope="1")
        hold(made, record)
    for name in ("a", "a" * LENGTH_MAX, "b"):
        record = log_record(0, scope=name, resource={"service.name": name})
        hold(made, record)


@pytest.mark.parametrize(
    "record",
    [
        *(make() for make in records.ALL.values()),
        *OTHERS,
        span_record(0),
        gauge_record(0, value=3, exemplars=[{"time_unix_nano": 1, "value": 2, "trace_id": "0a"}]),
        log_record(0, body=b"\xff".hex(), attributes={"list": [None, [], {}, {"a": [1.5]}]}),
    ],
)
def test_otlp_of_every_kind_is_what_its_descriptors_say(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    hold(sink("otlp", tmp_path, **URL), record)


def test_otlp_takes_no_null_where_a_value_belongs(tmp_path: Path) -> None:
    span = span_record(0, links=[{"trace_id": "0a", "span_id": None}])
    _, (faulty,) = sink("otlp", tmp_path, **URL)._requests(batch([span]))
    assert faulty.fault.reason == "TypeError: spanId is null"


def test_records_nested_as_deeply_as_before_are_sent(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = {"k": deep}
    (request,), faulty = sink("otlp", tmp_path, **URL)._requests(batch([log_record(0, body=deep)]))
    assert (len(request.items), faulty) == (1, [])


@given(st.integers(0, 5_000) | st.integers(0, 1 << 24))
def test_the_size_of_a_field_is_told_without_it(length: int) -> None:
    assert field_size(length) == len(field_bytes(15, bytes(length)))


@given(st.text() | st.from_regex(r"[a-z0-9._/ -]{0,30}"))
def test_a_name_of_loki_is_fit_character_by_character(name: str) -> None:
    fitted = "".join(it if it.isascii() and it.isalnum() else "_" for it in name)
    assert fit_name(name) == (f"_{fitted}" if fitted[:1].isdigit() else fitted)


@given(st.integers(0, 1 << 64))
def test_a_time_is_written_as_the_calendar_has_it(moment_ns: int) -> None:
    seconds, rest = divmod(moment_ns, 10**9)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    assert time_text(moment_ns) == f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def test_few_answers_to_short_texts_are_kept() -> None:
    asked: list[str] = []

    @remembered
    def upper(text: str) -> str:
        asked.append(text)
        return text.upper()

    long = "a" * (LENGTH_MAX + 1)
    assert [*map(upper, ("a", "a", long, long))] == ["A", "A", long.upper(), long.upper()]
    assert asked == ["a", long, long]
    names = [json.dumps(number) for number in range(ANSWERS_MAX)]
    assert [*map(upper, names)] == names
    upper("a")
    assert asked[-1] == "a"  # it is forgotten

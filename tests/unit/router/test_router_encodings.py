"""What sinks keep of what they worked out before changes no byte of what they make."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import psutil
import pyarrow as pa
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

from penstock.router.columns.json_objects import write_json, write_sorted
from penstock.router.delivery.batch_names import in_log_order
from penstock.router.sinks import make_sink
from penstock.router.sinks.bigquery.sink import encoded
from penstock.router.sinks.google_cloud_logging import payload_of, severity_of
from penstock.router.sinks.http.encode import ANSWERS_MAX, LENGTH_MAX, cached
from penstock.router.sinks.http.protobuf import field_bytes, field_size, field_varint
from penstock.router.sinks.loki import fit_name
from penstock.router.sinks.registry import sink_kind
from penstock.specs.formats.ecs import time_text
from penstock.specs.formats.otlp import to_otlp
from tests.support.recorded_sink import RecordedSink, sent
from tests.support.sink_batches import batch, context, gauge_record, log_record, span_record
from tests.unit.router.test_router_odd_records import OTHERS
from tests.unit.specs import records
from tests.unit.specs.test_mappings import changed

TEXT = st.text()
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
            setattr(message, field.name, scalar(field, value))  # a field that its descriptor names
    return message  # type: ignore[no-any-return]


def scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64decode(value) if field.name == "bytes_value" else bytes.fromhex(value)
    return value if field.type in TEXTS else NUMBERS.get(field.type, int)(value)


def hold(made: RecordedSink, record: dict[str, Any]) -> None:
    """A request of one record is what its descriptors say, and as large as the sink held it."""
    outcome = made.write([record])
    (body,) = outcome.bodies
    (row,) = batch([record]).select(made.sink.columns).to_pylist()
    item = made.sink.encode(row)
    element = to_otlp(record)
    (scopes,) = {*element} - {"resource"}
    element[scopes][0].setdefault("scope", {})
    outer = scopes.replace("scope", "resource")
    expected = fill(REQUESTS[outer](), {outer: [element]})
    assert REQUESTS[outer].FromString(body) == expected
    assert item.size == len(body)
    assert not outcome.dead_letters


@given(changed())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_otlp_is_what_its_descriptors_say(tmp_path: Path, record: dict[str, Any]) -> None:
    with RecordedSink("otlp", tmp_path) as made:
        for it in (record, record):  # the second one's resource and scope are known
            hold(made, it)


def test_otlp_tells_resources_and_scopes_apart_that_python_holds_equal(tmp_path: Path) -> None:
    with RecordedSink("otlp", tmp_path) as made:
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
    with RecordedSink("otlp", tmp_path) as made:
        hold(made, record)


def test_otlp_takes_no_null_where_a_value_belongs(tmp_path: Path) -> None:
    span = span_record(0, links=[{"trace_id": "0a", "span_id": None}])
    (dead_letter,) = sent("otlp", tmp_path, [span]).dead_letters
    assert dead_letter["reason"] == "TypeError: spanId is null"


def test_records_nested_as_deeply_as_before_are_sent(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = {"k": deep}
    outcome = sent("otlp", tmp_path, [log_record(0, body=deep)])
    assert (len(outcome.requests), outcome.dead_letters) == (1, [])


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


@pytest.mark.parametrize(
    ("name", "record"),
    [("loki", log_record(0)), ("datadog", gauge_record(0)), ("http", b"text"), ("otlp", b"text")],
)
def test_what_is_made_of_a_record_takes_no_page_of_memory(
    tmp_path: Path, name: str, record: Any
) -> None:
    keys = {"api_key": "k"} if name == "datadog" else URL
    made, count = sink(name, tmp_path, **keys), 5000
    (row,) = batch([record]).select(made.columns).to_pylist()
    before = psutil.Process().memory_info().rss
    kept = [made.encode(row) for _ in range(count)]
    assert psutil.Process().memory_info().rss - before < count * 2048
    assert len(kept) == count


@given(st.dictionaries(TEXT, TEXT))
def test_texts_are_written_as_they_were(texts: dict[str, str]) -> None:
    assert write_json(texts) == orjson.dumps(texts)
    assert write_sorted(texts) == orjson.dumps(texts, option=orjson.OPT_SORT_KEYS)


@given(st.lists(st.none() | st.integers(0, 1 << 62) | TEXT | st.binary(), max_size=12))
def test_a_row_of_bigquery_has_the_fields_that_are_there(fields: list[Any]) -> None:
    expected = b""
    for number, value in enumerate(fields, 1):
        if isinstance(value, int):
            expected += field_varint(number, value)
        elif value is not None:
            expected += field_bytes(number, value.encode() if isinstance(value, str) else value)
    assert encoded(fields) == expected


@given(TEXT, st.binary())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_message_of_nats_is_as_large_as_its_headers_and_payload(
    tmp_path: Path, key: str, value: bytes
) -> None:
    made = sink("nats", tmp_path, subject="out")
    (row,) = batch([value], key=key.encode()).select(made.columns).to_pylist()
    item = made.encode(row)
    lines = "".join(f"{name}: {text}\r\n" for name, text in item.content.headers.items())
    assert item.size == len(f"NATS/1.0\r\n{lines}\r\n".encode()) + len(value)


@pytest.mark.parametrize(
    ("numbers", "severity"),
    [
        ((-1, 0, True, None, "9"), "DEFAULT"), ((1, 8), "DEBUG"), ((9, 12), "INFO"),
        ((13, 16), "WARNING"), ((17, 20), "ERROR"), ((21, 24, 99), "CRITICAL"),
    ],
)  # fmt: skip
def test_a_severity_of_cloud_logging_begins_at_a_number(
    numbers: tuple[Any, ...], severity: str
) -> None:
    assert {severity_of({"severity_number": number}) for number in numbers} == {severity}


def test_the_body_of_a_log_is_the_message_of_cloud_logging_and_not_there_twice() -> None:
    assert payload_of({"body": "b", "n": 2**60}) == {"message": "b", "n": str(2**60)}
    assert payload_of({"body": "b", "message": "m"}) == {"body": "b", "message": "m"}
    assert payload_of({"body": None, "name": "n"}) == {"name": "n"}


def test_a_request_has_records_of_one_partition(tmp_path: Path) -> None:
    parts = [("a", 0, 3), ("a", 1, 1), ("b", 0, 2), ("b", 2, 1)]
    tables = [
        batch([log_record(0)] * count, first=7, stream=stream, partition=partition)
        for stream, partition, count in reversed(parts)
    ]
    rows = in_log_order(pa.concat_tables(tables))
    outcome = sent("http", tmp_path, rows)
    assert [len(body.splitlines()) for body in outcome.bodies] == [3, 1, 2, 1]
    assert [asked.headers["idempotency-key"] for asked in outcome.requests] == [
        "job/sink/a.0/0/7-9", "job/sink/a.0/1/7-7", "job/sink/b.0/0/7-8", "job/sink/b.0/2/7-7",
    ]  # fmt: skip
    nothing = sent("http", tmp_path, rows.slice(0, 0))
    assert (nothing.requests, nothing.dead_letters) == ((), [])


def test_few_answers_to_short_texts_are_kept() -> None:
    asked: list[str] = []

    @cached
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

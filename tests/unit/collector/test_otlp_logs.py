"""Plain log records on the short way have the lines that the long way makes."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from penstock.collector.decode import otlp_logs
from penstock.collector.decode.otlp_logs import map_logs
from penstock.collector.decode.otlp_messages import LOGS, Encoding, decode_request
from penstock.collector.decode.otlp_records import map_element

DEFAULT = {"host.name": "h"}
KEYS = ("a", "a.b", "", "k" * 300, "user.id", "penstock.kind", "penstock.x", "log.record.uid",
        "session.id", "trace_id", "service.name")  # fmt: skip
TEXTS = ("", "x", "\u202e\u0000é", "s" * 70_000, "ERROR", "warning", "t" * 40)
KINDS = ("string_value", "int_value", "bool_value", "double_value", "bytes_value", "array_value",
         "kvlist_value", "none")  # fmt: skip
NUMBERS = (0, 1, -1, 2**63 - 1, -(2**63))


def long_way(request: ExportLogsServiceRequest) -> tuple[list[Any], list[int]]:
    """The lines, and what was told to be lost of resources."""
    lost: list[int] = []
    elements = decode_request(LOGS, request.SerializeToString(), Encoding.PROTOBUF)
    made = [line for one in elements for line in map_element(one, DEFAULT, 99, lost.append)]
    return [read(line) for line in made], lost


def short_way(request: ExportLogsServiceRequest) -> tuple[list[Any], list[int]]:
    """Likewise."""
    lost: list[int] = []
    return [read(line) for line in map_logs(request, DEFAULT, 99, lost.append)], lost


def read(made: bytes | str) -> Any:
    """A line's content; what is no line stays text."""
    return made if isinstance(made, str) else orjson.loads(made)


@st.composite
def requests(draw: st.DrawFn) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    for _ in range(draw(st.integers(0, 2))):
        element = request.resource_logs.add()
        fill(draw, element.resource.attributes, 3)
        for _ in range(draw(st.integers(0, 2))):
            scope = element.scope_logs.add()
            scope.scope.name = draw(st.sampled_from(("", "till", "s" * 300)))
            scope.schema_url = draw(st.sampled_from(("", "https://x", "penstock:log/1.0")))
            for _ in range(draw(st.integers(0, 3))):
                fill_record(draw, scope.log_records.add())
    return request


def fill_record(draw: st.DrawFn, record: Any) -> None:
    record.time_unix_nano, record.observed_time_unix_nano = (
        draw(st.sampled_from((0, 5, 2**64 - 1))) for _ in range(2)
    )
    record.severity_number = draw(st.sampled_from((0, 1, 9, 24, 25, -1)))
    record.severity_text = draw(st.sampled_from(TEXTS))
    record.event_name = draw(st.sampled_from(("", "e")))
    record.flags = draw(st.sampled_from((0, 1, 256, 257)))
    record.dropped_attributes_count = draw(st.sampled_from((0, 3)))
    record.trace_id = draw(st.sampled_from((b"", bytes(16), b"\xab" * 16, b"short")))
    record.span_id = draw(st.sampled_from((b"", bytes(8), b"\xcd" * 8)))
    fill_value(draw, record.body)
    fill(draw, record.attributes, 4)


def fill(draw: st.DrawFn, pairs: Any, most: int) -> None:
    for _ in range(draw(st.integers(0, most))):
        fill_value(draw, pairs.add(key=draw(st.sampled_from(KEYS))).value)


def fill_value(draw: st.DrawFn, value: Any) -> None:
    match draw(st.sampled_from(KINDS)):
        case "string_value":
            value.string_value = draw(st.sampled_from(TEXTS))
        case "int_value":
            value.int_value = draw(st.sampled_from(NUMBERS))
        case "bool_value":
            value.bool_value = draw(st.booleans())
        case "double_value":
            value.double_value = draw(st.sampled_from((0.0, 1.5, float("inf"), float("nan"))))
        case "bytes_value":
            value.bytes_value = b"\xff"
        case "array_value":
            value.array_value.values.add().int_value = 1
        case "kvlist_value":
            value.kvlist_value.values.add(key="k").value.string_value = "v"
        case _:
            pass


@settings(max_examples=150, deadline=None)
@given(request=requests())
def test_both_ways_make_the_same_lines(request: ExportLogsServiceRequest) -> None:
    assert short_way(request) == long_way(request)


def test_a_plain_record_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    request = ExportLogsServiceRequest()
    element = request.resource_logs.add()
    element.resource.attributes.add(key="service.name").value.string_value = "shop"
    record = element.scope_logs.add().log_records.add(time_unix_nano=5, severity_number=9)
    record.body.string_value = "hi"
    record.attributes.add(key="n").value.int_value = 3
    expected = long_way(request)
    monkeypatch.setattr(otlp_logs, "map_element", None)
    assert short_way(request) == expected


def test_what_a_resource_loses_is_told_once() -> None:
    request = ExportLogsServiceRequest()
    element = request.resource_logs.add()
    for number in range(100):
        pair = element.resource.attributes.add(key=f"k{number}")
        pair.value.string_value = "v" * 1000
    records = element.scope_logs.add().log_records
    for _ in range(3):
        records.add().body.string_value = "hi"
    lines, lost = short_way(request)
    assert (lines, lost) == long_way(request)
    assert len(lines) == 3
    assert len(lost) == 1


def test_more_attributes_than_a_record_may_have_go_the_long_way() -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    for number in range(300):
        record.attributes.add(key=f"k{number}").value.int_value = number
    assert short_way(request) == long_way(request)

"""Plain log records on the short way have the lines that the long way makes."""

from collections import Counter
from itertools import chain
from typing import Any

import orjson
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from penstock.collector.decode.otlp.logs import AT_ONCE, Made, Members, map_logs, unpack_records
from penstock.collector.decode.otlp.messages import LOGS, Encoding, decode_request
from penstock.collector.decode.otlp.records import Note, map_element
from penstock.collector.decode.shapes import Check
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Rejected

DEFAULT = {"host.name": "h"}
KEYS = ("a", "a.b", "", "k" * 128, "k" * 129, "k" * 300, "user.id", "penstock.kind", "penstock.x",
        "log.record.uid", "session.id", "trace_id", "service.name")  # fmt: skip
TEXTS = (
    "",
    "x",
    'q"\\\n',
    "m" * 32_768,
    "m" * 32_769,
    "\u202e\u0000é",
    "s" * 70_000,
    "ERROR",
    "warning",
    "t" * 40,
)
KINDS = ("string_value", "int_value", "bool_value", "double_value", "bytes_value", "array_value",
         "kvlist_value", "none")  # fmt: skip
NUMBERS = (0, 1, -1, 2**63 - 1, -(2**63))


NOTES = {
    "attributes_dropped_by_sender", "entity_refs_dropped", "flag_bits_dropped", "levels_unknown",
    "resource_attributes_dropped", "texts_cut",
}  # fmt: skip


def long_way(request: ExportLogsServiceRequest) -> tuple[list[Any], Counter[str]]:
    """The lines, and what was noted of them."""
    noted: Counter[str] = Counter()

    def note(what: str, count: int) -> None:
        assert what in NOTES
        noted[what] += count

    elements = decode_request(LOGS, request.SerializeToString(), Encoding.PROTOBUF)
    made = [line for one in elements for line in map_element(one, DEFAULT, 99, note)]
    return [read(line) for line in made], noted


def short_way(request: ExportLogsServiceRequest) -> tuple[list[Any], Counter[str]]:
    """Likewise."""
    noted: Counter[str] = Counter()

    def note(what: str, count: int) -> None:
        noted[what] += count

    lines = [read(line) for line, _ in mapped(request, note)]
    return lines, noted


def mapped(
    request: ExportLogsServiceRequest, lost: Note = lambda *_: None, check: Check = check_line
) -> list[Made]:
    """What is made of a request, with verdicts."""
    made = map_logs(request.SerializeToString(), DEFAULT, 99, lost, check=check)
    return [*chain.from_iterable(made)]


def read(made: bytes | str) -> Any:
    """A line's content; what is no line stays text."""
    return made if isinstance(made, str) else orjson.loads(made)


@st.composite
def requests(draw: st.DrawFn) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    for _ in range(draw(st.integers(0, 2))):
        element = request.resource_logs.add()
        fill(draw, element.resource.attributes, 3)
        element.resource.dropped_attributes_count = draw(st.sampled_from((0, 2)))
        for _ in range(draw(st.integers(0, 2))):
            element.resource.entity_refs.add(type="service")
        for _ in range(draw(st.integers(0, 2))):
            scope = element.scope_logs.add()
            scope.scope.name = draw(st.sampled_from(("", "till", "s" * 300)))
            scope.scope.dropped_attributes_count = draw(st.sampled_from((0, 5)))
            scope.scope.version = draw(st.sampled_from(("", "1.2", "v" * 40_000)))
            if draw(st.booleans()):
                fill(draw, scope.scope.attributes, 2)
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
    record.event_name = draw(st.sampled_from(("", "e", "e" * 255, "e" * 256)))
    record.flags = draw(st.sampled_from((0, 1, 256, 257)))
    record.dropped_attributes_count = draw(st.sampled_from((0, 3)))
    record.trace_id = draw(st.sampled_from((b"", bytes(16), b"\xab" * 16, b"short", bytes(5))))
    record.span_id = draw(st.sampled_from((b"", bytes(8), b"\xcd" * 8, b"\xcd" * 9)))
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


@settings(max_examples=150, deadline=None)
@given(request=requests())
def test_a_verdict_that_comes_with_a_line_is_the_gates(request: ExportLogsServiceRequest) -> None:
    for line, verdict in mapped(request):
        if verdict is not None:
            assert isinstance(line, bytes)
            assert verdict == check_line(line)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("span_id", b"\xcd" * 9), ("trace_id", b"\xab" * 15), ("time_unix_nano", 2**63),
        ("observed_time_unix_nano", 2**64 - 1), ("event_name", "e" * 256),
        ("severity_text", "t" * 40), ("severity_number", 25), ("flags", 257),
    ],
)  # fmt: skip
def test_behind_a_record_of_its_shape_each_bound_is_kept(field: str, value: Any) -> None:
    """What is judged by its shape would go on, were it not for the short way's own bounds."""
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for _ in range(2):
        record = records.add(
            time_unix_nano=5, observed_time_unix_nano=6, severity_number=9, event_name="e",
            flags=1, trace_id=b"\xab" * 16, span_id=b"\xcd" * 8,
        )  # fmt: skip
        record.body.string_value = "x"
    records[1].MergeFrom(LogRecord(**{field: value}))
    _check(request)


@pytest.mark.parametrize("key", [*KEYS, "user.email"])
@pytest.mark.parametrize("text", ["v", "m" * 32_769])
def test_behind_a_record_with_an_attribute_each_bound_is_kept(key: str, text: str) -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for name, value in ((key[:128], "v"), (key, text)):
        record = records.add(time_unix_nano=5)
        record.body.string_value = value
        record.attributes.add(key=name).value.string_value = value
    _check(request)


def _check(request: ExportLogsServiceRequest) -> None:
    assert short_way(request) == long_way(request)
    for line, verdict in mapped(request):
        assert verdict in (None, check_line(line if isinstance(line, bytes) else line.encode()))


def test_of_records_of_one_shape_the_first_is_judged() -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number in range(30):
        record = records.add(time_unix_nano=number, severity_number=number % 24 + 1)
        record.body.string_value = f"number {number}"
        record.attributes.add(key="b" if number % 3 else "a").value.int_value = number
        record.trace_id = bytes((1 if number % 2 else 0,)) * 16
    judged: list[bytes] = []

    def judge(line: bytes) -> Any:
        judged.append(line)
        return check_line(line)

    found = mapped(request, check=judge)
    assert len(judged) == 4
    lines = [line for line, _ in found if isinstance(line, bytes)]
    assert [verdict for _, verdict in found] == [check_line(line) for line in lines]


def test_what_the_gate_refuses_of_a_shape_is_known_of_no_other() -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for _ in range(3):
        records.add(time_unix_nano=5).body.string_value = "x"
    found = mapped(request, check=lambda _: Rejected("bad_schema"))
    assert [verdict for _, verdict in found] == [None] * 3


def test_a_record_that_is_too_large_as_a_line_is_judged_by_itself() -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for size in (1, 32_000):
        record = records.add(time_unix_nano=5)
        record.body.string_value = "x"
        for number in range(9):
            record.attributes.add(key=f"k{number}").value.string_value = "v" * size
    small, large = mapped(request)
    assert small[1] is not None
    assert large[1] is None
    assert isinstance(large[0], bytes)
    assert check_line(large[0]) == Rejected("too_large")


def test_attributes_stay_packed_in_every_field_that_a_record_has() -> None:
    """A field that OTLP adds is read, too, or the schema of ours says that it cannot be made."""
    ours = unpack_records(b"\x0a\x06\x12\x04\x12\x02\x08\x01")[0][0][0].DESCRIPTOR
    theirs = LogRecord.DESCRIPTOR
    assert {field.name: field.number for field in ours.fields} == {
        field.name: field.number for field in theirs.fields
    }
    assert ours.fields_by_name["attributes"].type == FieldDescriptor.TYPE_BYTES


def test_a_plain_record_goes_the_short_way() -> None:
    """The long way knows no verdict."""
    request = ExportLogsServiceRequest()
    element = request.resource_logs.add()
    element.resource.attributes.add(key="service.name").value.string_value = "shop"
    record = element.scope_logs.add().log_records.add(time_unix_nano=5, severity_number=9)
    record.body.string_value = "hi"
    record.attributes.add(key="n").value.int_value = 3
    assert short_way(request) == long_way(request)
    [(line, verdict)] = mapped(request)
    assert isinstance(line, bytes)
    assert verdict == check_line(line)


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


def test_of_attributes_a_bounded_number_of_short_ones_is_remembered() -> None:
    known = Members(count_max=10)
    for number in range(25):
        packed = KeyValue(key="k", value=AnyValue(int_value=number)).SerializeToString()
        assert known[packed] == known[packed] == ("k", f'"k":{number}')
        assert len(known) <= 10
    long = KeyValue(key="k", value=AnyValue(string_value="v" * 600)).SerializeToString()
    assert known[long] == ("k", f'"k":"{"v" * 600}"')
    assert long not in known


def test_among_many_records_each_that_is_not_plain_is_read_in_its_place() -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number in range(3 * AT_ONCE):
        body = records.add(time_unix_nano=5).body
        if number % AT_ONCE == 7:
            body.kvlist_value.values.add(key="n").value.int_value = number
        else:
            body.string_value = f"number {number}"
    assert short_way(request) == long_way(request)

"""OTLP requests as record lines: what senders send, and what attackers might."""

import base64
import json
import math
from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from penstock.collector.decode.otlp.messages import (
    SIGNALS,
    Encoding,
    decode_request,
    encode_response,
    encode_status,
)
from penstock.collector.decode.otlp.records import map_element
from penstock.collector.errors import RemoteProtocolError
from penstock.specs.errors import RefusedRecordError
from penstock.specs.models.resource import DROPPED
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

LOGS, TRACES, METRICS = SIGNALS
NOW = 1_700_000_000_000_000_009
TIME = 1_700_000_000_000_000_000
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
Json = dict[str, Any]


def mapped(element: Json) -> list[Json]:
    """The element's records, all of which keep to their spec."""
    found = []
    for line in map_element(element, {"host.name": "h"}, NOW):
        assert isinstance(line, bytes), line
        assert isinstance(check_line(line), Accepted), (check_line(line), line)
        found.append(json.loads(line))
    return found


def logs(*records: Json, **resource: Any) -> Json:
    given = {"attributes": [{"key": key, "value": value} for key, value in resource.items()]}
    return {"resource": given, "scopeLogs": [{"scope": {"name": "lib"}, "logRecords": [*records]}]}


def spans(*members: Json) -> Json:
    return {"scopeSpans": [{"spans": [*members]}]}


def metrics(*members: Json) -> Json:
    return {"scopeMetrics": [{"metrics": [*members]}]}


def number(name: str, kind: str, point: Json, **data: Any) -> Json:
    full = {"timeUnixNano": str(TIME), **point}
    return {"name": name, kind: {"dataPoints": [full], **data}}


def test_a_protobuf_request_becomes_the_json_object_of_the_protocol() -> None:
    request = LOGS.request()
    element = request.resource_logs.add()  # type: ignore[attr-defined]
    pairs = [
        KeyValue(key="s", value=AnyValue(string_value="x")),
        KeyValue(key="i", value=AnyValue(int_value=-5)),
        KeyValue(key="b", value=AnyValue(bytes_value=b"\xff")),
        KeyValue(key="none"),
    ]
    element.scope_logs.add().log_records.append(
        LogRecord(time_unix_nano=TIME, trace_id=bytes.fromhex(TRACE), attributes=pairs)
    )
    (found,) = decode_request(LOGS, request.SerializeToString(), Encoding.PROTOBUF)
    values = [{"stringValue": "x"}, {"intValue": -5}, {"bytesValue": "/w=="}, {}]
    names = ("s", "i", "b", "none")
    attributes = [{"key": key, "value": value} for key, value in zip(names, values, strict=True)]
    record = {"timeUnixNano": TIME, "attributes": attributes, "traceId": TRACE}
    assert found["scopeLogs"] == [{"logRecords": [record]}]


def test_both_encodings_yield_the_same_records() -> None:
    request = LOGS.request()
    element = request.resource_logs.add()  # type: ignore[attr-defined]
    record = LogRecord(
        time_unix_nano=TIME, span_id=bytes.fromhex(SPAN), trace_id=bytes.fromhex(TRACE)
    )
    record.body.array_value.values.append(AnyValue(double_value=0.5))
    element.scope_logs.add().log_records.append(record)
    (binary,) = decode_request(LOGS, request.SerializeToString(), Encoding.PROTOBUF)
    text = {
        "timeUnixNano": str(TIME), "traceId": TRACE.upper(), "spanId": SPAN.upper(),
        "body": {"arrayValue": {"values": [{"doubleValue": 0.5}]}}, "unknownField": 1,
    }  # fmt: skip
    body = orjson.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [text]}]}]})
    (plain,) = decode_request(LOGS, body, Encoding.JSON)
    assert mapped(binary) == mapped(plain)
    assert mapped(plain)[0]["body"] == "[0.5]"


def test_a_log_record_keeps_what_the_spec_has_a_field_for() -> None:
    record = {
        "timeUnixNano": str(TIME), "severityNumber": 17, "severityText": "Error",
        "body": {"stringValue": "sold"}, "traceId": TRACE, "spanId": SPAN, "flags": 257,
        "eventName": "sale", "droppedAttributesCount": 2,
        "attributes": [
            {"key": "a", "value": {"kvlistValue": {"values": [
                {"key": "b", "value": {"intValue": "7"}}]}}},
            {"key": "user.id", "value": {"intValue": 12}},
        ],
    }  # fmt: skip
    (found,) = mapped(logs(record, **{"service.name": {"stringValue": "shop"}}))
    assert found["attributes"] == {"a.b": 7}
    assert found["context"] == {"user.id": "12"}
    assert (found["severity_number"], found["severity_text"]) == (17, "Error")
    assert (found["body"], found["event_name"], found["scope"]) == ("sold", "sale", "lib")
    assert (found["trace_id"], found["span_id"], found["trace_flags"]) == (TRACE, SPAN, 1)
    assert found["dropped_attributes_count"] == 2
    assert found["resource"] == {"service.name": "shop"}
    assert found["observed_time_unix_nano"] == NOW


def test_a_log_record_without_anything_is_a_record() -> None:
    (found,) = mapped(logs({}))
    assert (found["time_unix_nano"], found["severity_number"], found["body"]) == (NOW, 9, "")
    assert found["resource"] == {"service.name": "unknown_service", "host.name": "h"}


@pytest.mark.parametrize(
    ("given", "severity"),
    [({"severityText": "warning"}, 13), ({"severityNumber": 99}, 9), ({"severityNumber": 3}, 3)],
)
def test_a_severity_is_taken_from_its_text_where_its_number_says_nothing(
    given: Json, severity: int
) -> None:
    assert mapped(logs(given))[0]["severity_number"] == severity


@pytest.mark.parametrize(
    ("given", "severity"), [("SEVERITY_NUMBER_ERROR", 17), ("SEVERITY_NUMBER_WARN3", 15), ("5", 5)]
)
def test_a_severity_may_have_its_name_in_json(given: str, severity: int) -> None:
    assert mapped(logs({"severityNumber": given}))[0]["severity_number"] == severity


def test_enumerations_of_spans_and_metrics_may_have_their_names_in_json() -> None:
    span = {
        "traceId": TRACE, "spanId": SPAN, "name": "GET", "kind": "SPAN_KIND_CLIENT",
        "startTimeUnixNano": str(TIME), "endTimeUnixNano": str(TIME + 1),
        "status": {"code": "STATUS_CODE_ERROR"},
    }  # fmt: skip
    found, unspecified = mapped(spans(span, span | {"kind": "SPAN_KIND_UNSPECIFIED"}))
    assert (found["span_kind"], found["status_code"]) == ("CLIENT", "ERROR")
    assert unspecified["span_kind"] == "INTERNAL"
    delta = "AGGREGATION_TEMPORALITY_DELTA"
    sums = number("sales", "sum", {"asInt": "7"}, aggregationTemporality=delta)
    assert mapped(metrics(sums))[0]["temporality"] == "delta"


def test_a_span_keeps_what_the_spec_has_a_field_for() -> None:
    span = {
        "traceId": TRACE, "spanId": SPAN, "parentSpanId": "", "name": "GET /", "kind": 2,
        "startTimeUnixNano": str(TIME), "endTimeUnixNano": str(TIME + 5), "flags": 256,
        "status": {"code": 2, "message": "no"}, "traceState": "a=b", "droppedLinksCount": 1,
        "events": [{"timeUnixNano": str(TIME), "name": "e"}] * 130,
        "links": [{"traceId": TRACE.upper(), "spanId": SPAN}],
    }  # fmt: skip
    (found,) = mapped(spans(span))
    assert (found["span_kind"], found["status_code"], found["status_message"]) == (
        "SERVER", "ERROR", "no",
    )  # fmt: skip
    assert "parent_span_id" not in found
    assert (len(found["events"]), found["dropped_events_count"]) == (128, 2)
    assert found["links"] == [{"trace_id": TRACE, "span_id": SPAN}]
    assert found["dropped_links_count"] == 1


def test_texts_that_are_cut_without_the_records_saying_are_counted() -> None:
    long = "x" * 600
    noted = Counter[str]()

    def note(what: str, count: int) -> None:
        noted[what] += count

    span = {
        "traceId": TRACE, "spanId": SPAN, "name": long, "traceState": "a" * 600,
        "startTimeUnixNano": str(TIME), "endTimeUnixNano": str(TIME), "events": [{"name": long}],
    }  # fmt: skip
    element = {"scopeSpans": [{"scope": {"name": long}, "spans": [span]}]}
    (line,) = map_element(element, {}, NOW, note)
    assert isinstance(line, bytes)
    assert isinstance(check_line(line), Accepted)
    assert noted == {"texts_cut": 4}
    (line,) = map_element(logs({"body": {"stringValue": "b"}, "severityText": long}), {}, NOW, note)
    assert noted["texts_cut"] == 5


def test_a_span_of_no_kind_is_internal_and_one_without_a_name_has_one() -> None:
    (found,) = mapped(
        spans({"traceId": TRACE, "spanId": SPAN, "kind": 0, "startTimeUnixNano": TIME,
               "endTimeUnixNano": TIME})
    )  # fmt: skip
    assert (found["span_kind"], found["name"]) == ("INTERNAL", "unnamed")


def test_what_is_dropped_of_an_event_or_a_link_is_counted_and_a_time_of_zero_is_none() -> None:
    pairs = [{"key": f"k{number}", "value": {"intValue": "1"}} for number in range(200)]
    (found,) = mapped(
        spans({"traceId": TRACE, "spanId": SPAN, "startTimeUnixNano": TIME, "endTimeUnixNano": TIME,
               "events": [{"attributes": pairs}],
               "links": [{"traceId": TRACE, "spanId": SPAN, "attributes": pairs}]})
    )  # fmt: skip
    (event,), (link,) = found["events"], found["links"]
    assert (event["name"], event["time_unix_nano"]) == ("unnamed", TIME)
    kept = len(event["attributes"]) + len(link["attributes"])
    assert found["dropped_attributes_count"] == 400 - kept > 0


def test_metrics_of_every_type_become_points() -> None:
    found = mapped(
        metrics(
            number("http.Requests", "gauge", {"asInt": "3"}),
            number("b", "sum", {"asDouble": 1.5}, isMonotonic=True, aggregationTemporality=2),
            number("c", "sum", {"asInt": 1}, aggregationTemporality=1),
            number(
                "d", "histogram",
                {"count": "3", "bucketCounts": ["1", "2"], "explicitBounds": [1], "sum": 4},
                aggregationTemporality=2,
            ),
            number("e", "histogram", {"count": "3"}, aggregationTemporality=2),
            number("f", "histogram", {}, aggregationTemporality=2),
            number(
                "g", "exponentialHistogram",
                {"count": "1", "scale": 2, "positive": {"bucketCounts": ["1"]}},
                aggregationTemporality=1,
            ),
        )
    )  # fmt: skip
    assert [point["name"] for point in found] == ["http.Requests", "b", "c", "d", "e", "f", "g"]
    assert [point.get("temporality") for point in found[:3]] == [None, "cumulative", "delta"]
    assert [point.get("is_monotonic") for point in found[1:3]] == [True, False]
    assert (found[4]["bucket_counts"], found[4]["explicit_bounds"]) == ([3], [])
    assert found[6]["positive"] == {"offset": 0, "bucket_counts": [1]}


def test_a_summary_becomes_two_sums_and_a_gauge_of_quantiles() -> None:
    point = {
        "timeUnixNano": TIME, "startTimeUnixNano": TIME - 5, "count": "4", "sum": 2.5,
        "quantileValues": [{"quantile": 0.5, "value": 0.25}, {"quantile": 1, "value": 1}],
        "attributes": [{"key": "k", "value": {"stringValue": "v"}}],
    }  # fmt: skip
    found = mapped(metrics({"name": "rpc", "unit": "s", "summary": {"dataPoints": [point]}}))
    assert [(p["name"], p["unit"], p["value"]) for p in found] == [
        ("rpc.count", "1", 4), ("rpc.sum", "s", 2.5), ("rpc", "s", 0.25), ("rpc", "s", 1.0),
    ]  # fmt: skip
    assert found[2]["attributes"] == {"k": "v", "quantile": 0.5}


def test_values_that_json_has_no_numbers_for_are_words() -> None:
    found = mapped(
        metrics(
            number("a", "gauge", {"asDouble": "NaN", "exemplars": [{"asDouble": "Infinity"}]}),
            number("b", "gauge", {"asDouble": math.inf}),
            number(
                "c", "histogram", {"count": "1", "sum": "-Infinity", "min": "NaN", "max": 2},
                aggregationTemporality=1,
            ),
            number(
                "d", "histogram", {"count": "0", "sum": 0, "min": "Infinity", "max": "-Infinity"},
                aggregationTemporality=1,
            ),
            {"name": "e", "summary": {"dataPoints": [
                {"timeUnixNano": TIME, "quantileValues": [{"quantile": 0.5, "value": math.nan}]}
            ]}},
        )
    )  # fmt: skip
    a, b, c, d, *_, quantile = found
    assert (a["value"], a["exemplars"][0]["value"], b["value"]) == ("NaN", "Infinity", "Infinity")
    assert (c["sum"], c["min"], c["max"]) == ("-Infinity", "NaN", 2.0)
    assert (d["sum"], "min" in d, "max" in d) == (0, False, False)  # nothing was measured
    assert (quantile["name"], quantile["value"]) == ("e", "NaN")


def test_a_series_that_stopped_has_no_value() -> None:
    (found,) = mapped(metrics(number("a", "gauge", {"flags": 1})))
    assert (found["flags"], "value" in found) == (1, False)


def noted(element: Json) -> dict[str, int]:
    """What is counted of an element."""
    found = Counter[str]()

    def note(what: str, count: int) -> None:
        found[what] += count

    assert [*map_element(element, {"host.name": "h"}, NOW, note)]
    return dict(found)


def test_what_is_said_of_a_resource_and_of_a_scope_alone_is_counted() -> None:
    element = logs({"body": {"stringValue": "b"}, "flags": 0x101})
    element["resource"] |= {"droppedAttributesCount": 3, "entityRefs": [{"type": "host"}]}
    element["scopeLogs"][0]["scope"]["droppedAttributesCount"] = "4"
    assert noted(element) == {
        "attributes_dropped_by_sender": 7, "entity_refs_dropped": 1, "flag_bits_dropped": 1,
    }  # fmt: skip


def test_what_a_span_has_no_place_for_of_its_links_and_events_is_counted() -> None:
    ids = {"traceId": TRACE, "spanId": SPAN}
    links = [
        {**ids, "traceState": "a=b", "flags": 1, "droppedAttributesCount": 2},
        {**ids, "traceState": "", "flags": 0, "droppedAttributesCount": 0},
    ]
    events = [{"name": "e", "droppedAttributesCount": 5}, {"name": "f"}]
    span = {**ids, "name": "s", "flags": 0x301, "links": links, "events": events}
    assert noted(spans({**span, "startTimeUnixNano": TIME, "endTimeUnixNano": TIME})) == {
        "attributes_dropped_by_sender": 7, "link_trace_states_dropped": 1, "link_flags_dropped": 1,
        "flag_bits_dropped": 1,
    }  # fmt: skip
    plain = {**ids, "name": "s", "flags": 1, "startTimeUnixNano": TIME, "endTimeUnixNano": TIME}
    assert noted(spans(plain)) == {}


def test_exemplars_are_kept_as_far_as_the_spec_has_room() -> None:
    one = {"timeUnixNano": TIME, "asInt": 1, "traceId": TRACE, "spanId": SPAN}
    point = {"asInt": 1, "exemplars": [{"timeUnixNano": TIME}, *[one] * 6]}
    lost: list[tuple[str, int]] = []
    element = metrics(number("a", "gauge", point))
    (line,) = map_element(element, {"host.name": "h"}, NOW, lambda *told: lost.append(told))
    assert lost == [("exemplars_dropped", 3)]
    found = json.loads(line)
    assert (
        found["exemplars"]
        == [{"time_unix_nano": TIME, "value": 1, "trace_id": TRACE, "span_id": SPAN}] * 4
    )


def test_what_cannot_be_read_takes_no_other_along() -> None:
    unreadable = {"timeUnixNano": "soon"}
    found = list(map_element(logs({}, unreadable, {}), {}, NOW))
    assert [type(one) for one in found] == [bytes, str, bytes]
    assert json.loads(found[1]) == unreadable


def test_null_is_as_good_as_absent_as_in_protobufs_json() -> None:
    """Rust's SDK writes every field that is not set as null."""
    pair = {"key": "a", "value": None}
    record = {"body": {"stringValue": "null"}, "attributes": [pair], "traceId": None}
    nested = {"key": "b", "value": {"arrayValue": {"values": [{"arrayValue": None}, {}]}}}
    body = {
        "resourceLogs": [
            {"resource": None, "scopeLogs": None},
            {"resource": None, "schemaUrl": None, "scopeLogs": [{"scope": None, "logRecords": [
                record, {"body": None, "attributes": None, "severityText": None},
                {"attributes": [nested]},
            ]}]},
        ]
    }  # fmt: skip
    elements = decode_request(LOGS, orjson.dumps(body), Encoding.JSON)
    plain, empty, nulls = (record for element in elements for record in mapped(element))
    assert (plain["body"], plain["attributes"]) == ("null", {"a": None})
    assert (empty["body"], empty["attributes"], nulls["attributes"]) == (
        "",
        {},
        {"b": "[null,null]"},
    )
    assert decode_request(LOGS, b'{"resourceLogs":null}', Encoding.JSON) == []
    deep = b'{"resourceLogs":[{"a":null,"b":' + b"[" * 900 + b"]" * 900 + b"}]}"
    ((key, _),) = decode_request(LOGS, deep, Encoding.JSON)[0].items()
    assert key == "b"


def test_what_the_spec_forbids_is_left_to_the_gate() -> None:
    (line,) = map_element(metrics(number("a", "sum", {"asInt": 1})), {}, NOW)
    assert isinstance(line, bytes)
    assert not isinstance(check_line(line), Accepted)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"resourceLogs": 5}', b'{"resourceLogs": [5]}']
)
def test_what_is_no_json_request_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(LOGS, body, Encoding.JSON)


@pytest.mark.parametrize("element", [{"scopeLogs": 5}, {"resource": 5}, {"scopeMetrics": [5]}])
def test_what_is_no_element_is_refused(element: Json) -> None:
    with pytest.raises(RefusedRecordError):
        list(map_element(element, {}, NOW))


def test_nesting_without_end_is_refused() -> None:
    value: Json = {"stringValue": "x"}
    for _ in range(400):
        value = {"arrayValue": {"values": [value]}}
    with pytest.raises(RefusedRecordError):
        list(map_element(logs({"body": value}), {}, NOW))


def test_answers_are_what_the_protocol_says() -> None:
    assert encode_response(LOGS, Encoding.JSON, 0, "") == b"{}"
    assert encode_response(LOGS, Encoding.PROTOBUF, 0, "") == b""
    told = json.loads(encode_response(METRICS, Encoding.JSON, 2, "why"))
    assert told == {"partialSuccess": {"rejectedDataPoints": "2", "errorMessage": "why"}}
    response = TRACES.response()
    response.ParseFromString(encode_response(TRACES, Encoding.PROTOBUF, 3, "why"))
    assert response.partial_success.rejected_spans == 3
    status = json.loads(encode_status(Encoding.JSON, 14, "full", retry_after_s=2))
    assert status["details"][0]["retryDelay"] == "2s"
    assert len(encode_status(Encoding.PROTOBUF, 3, "x" * 9_000_000)) < 4096


WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["key", "value", "attributes", "stringValue", "intValue", "kvlistValue", "values",
             "timeUnixNano", "traceId", "body", "severityNumber", "flags", "name", "gauge", "sum",
             "summary", "histogram", "dataPoints", "asInt", "count", "exemplars", "links", "kind",
             "status", "quantileValues", "user.id", "penstock.kind"]
        ), inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(WILD, st.sampled_from(["logRecords", "spans", "metrics"]))
def test_no_json_makes_the_mapping_raise_anything_else(member: Any, inner: str) -> None:
    outer = {"logRecords": "scopeLogs", "spans": "scopeSpans", "metrics": "scopeMetrics"}[inner]
    try:
        for made in map_element({outer: [{inner: [member]}]}, {}, NOW):
            if isinstance(made, bytes):
                check_line(made)
    except RefusedRecordError:
        pass


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(SIGNALS))
def test_no_bytes_make_the_decoder_raise_anything_else(body: bytes, signal: Any) -> None:
    for encoding in Encoding:
        try:
            for element in decode_request(signal, body, encoding):
                list(map_element(element, {}, NOW))
        except (RemoteProtocolError, RefusedRecordError):
            continue


def test_bytes_values_stay_base64() -> None:
    value = {"bytesValue": base64.b64encode(b"\0\1").decode()}
    (found,) = mapped(logs({"attributes": [{"key": "raw", "value": value}]}))
    assert found["attributes"] == {"raw": "AAE="}


def test_what_a_resource_is_too_small_for_is_counted_and_said() -> None:
    large = {f"key.{number}": {"stringValue": "x" * 1_000} for number in range(20)}
    lost: list[tuple[str, int]] = []
    (line,) = map_element(logs({}, **large), {}, NOW, lambda *told: lost.append(told))
    assert isinstance(line, bytes)
    resource = json.loads(line)["resource"]
    assert lost == [("resource_attributes_dropped", resource[DROPPED])]
    assert resource[DROPPED] == 20 - sum(key.startswith("key.") for key in resource) > 0
    assert isinstance(check_line(line), Accepted)

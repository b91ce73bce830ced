"""Records as OTLP and as ECS: there and back again, and what stands where."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource

from penstock.specs import RefusedRecordError
from penstock.specs.formats import ecs, otlp
from penstock.specs.models.envelope import Context
from penstock.specs.models.kinds import BASE_MODELS, WIRE_REQUIRED
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.unit.specs import records

Make = Callable[..., dict[str, Any]]
CONTEXT = [str(field.alias) for field in Context.model_fields.values()]

TEXT = st.text(max_size=20)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SCALAR = st.none() | st.booleans() | INT64 | TEXT | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(min_size=1, max_size=20).filter(
    lambda name: not name.startswith("penstock.") and name not in {*CONTEXT, "log.record.uid"}
) | st.sampled_from([*ecs.ATTRIBUTES, "error.type", "trace.id", "message"])
ATTRIBUTES = st.dictionaries(NAMES, SCALAR | st.lists(SCALAR, max_size=3), min_size=1, max_size=5)
TIMES = st.integers(0, (1 << 63) - 1)
ANY_KIND: dict[str, Any] = {
    "observed_time_unix_nano": TIMES,
    "scope": TEXT.filter(bool),
    "sample_weight": st.floats(1, 1e6),
    "context": st.dictionaries(st.sampled_from(CONTEXT), TEXT, min_size=1),
    "attributes": ATTRIBUTES,
    "dropped_attributes_count": st.integers(0, 1000),
    "trace_flags": st.integers(0, 255),
    "record_id": st.just(records.RECORD_ID),
    "resource": st.dictionaries(
        st.sampled_from([*ecs.RESOURCE, "x.y", "host.image.id"]), SCALAR, max_size=5
    ),
}
"""Fields that any record may have, with what they may hold."""
REQUIRED = {"schema", "kind", "time_unix_nano", "metric_type", "resource"}


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """A record with other common fields, and without some that its kind has."""
    record = draw(st.sampled_from(list(records.ALL.values())))()
    for key in draw(st.sets(st.sampled_from(sorted(set(record) - REQUIRED)), max_size=3)):
        del record[key]
    for key in draw(st.sets(st.sampled_from(sorted(ANY_KIND)))):
        record[key] = draw(ANY_KIND[key])
    return {**record, "time_unix_nano": draw(TIMES)}


def test_values_that_json_has_no_numbers_for_come_back() -> None:
    words = {"sum": "Infinity", "min": "-Infinity", "max": "NaN"}
    exemplars = [{"time_unix_nano": 5, "value": "NaN"}]
    for record in (
        records.gauge_without_number(exemplars=exemplars), records.histogram(**words),
    ):  # fmt: skip
        (back,) = otlp.from_otlp(json.loads(json.dumps(otlp.to_otlp(record))))
        assert back == record
        document = ecs.to_ecs(record)
        assert not {"NaN", "Infinity"} & {document.get(f"penstock.{key}") for key in words}
        assert ecs.from_ecs(document) == record


@given(changed())
def test_otlp_comes_back_as_it_was(record: dict[str, Any]) -> None:
    text = json.dumps(otlp.to_otlp(record))
    (back,) = otlp.from_otlp(json.loads(text))
    assert back == record


@given(changed())
def test_ecs_comes_back_as_it_was(record: dict[str, Any]) -> None:
    document = json.loads(json.dumps(ecs.to_ecs(record)))
    assert ecs.from_ecs(document) == {key: value for key, value in record.items() if value != {}}


@pytest.mark.parametrize("make", records.ALL.values(), ids=records.ALL)
def test_what_comes_back_is_a_record_with_schema_and_kind_first(make: Make) -> None:
    (by_otlp,) = otlp.from_otlp(otlp.to_otlp(make()))
    for back in (by_otlp, ecs.from_ecs(ecs.to_ecs(make()))):
        assert list(back)[:2] == ["schema", "kind"]
        assert isinstance(check_line(json.dumps(back).encode()), Accepted)


def test_otlp_has_ids_in_hex_integers_as_text_and_enumerations_as_numbers() -> None:
    element = otlp.to_otlp(records.span())
    (scope,) = element["scopeSpans"]
    (span,) = scope["spans"]
    assert scope["schemaUrl"] == "penstock:span/1.0"
    assert span["traceId"] == records.TRACE
    assert span["startTimeUnixNano"] == str(records.TIME)
    assert span["kind"] == 2
    assert span["status"] == {"code": 2, "message": "payment declined"}
    assert element["resource"]["attributes"][0] == {
        "key": "service.name", "value": {"stringValue": "checkout"},
    }  # fmt: skip
    (metric,) = otlp.to_otlp(records.total())["scopeMetrics"][0]["metrics"]
    assert metric["sum"]["aggregationTemporality"] == 1
    assert metric["sum"]["dataPoints"][0]["asInt"] == "4"


def test_otlp_keeps_what_it_has_no_field_for_as_attributes() -> None:
    (log,) = otlp.to_otlp(records.audit(context={"user.id": "u"}))["scopeLogs"][0]["logRecords"]
    names = {pair["key"] for pair in log["attributes"]}
    assert {"user.id", "log.record.uid", "penstock.actor", "penstock.kind"} <= names
    assert log["eventName"] == "user.role_granted"


def test_otlp_of_others_is_read_too() -> None:
    element = {
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "a"}}]},
        "scopeLogs": [
            {
                "scope": {"name": "lib"},
                "schemaUrl": "https://opentelemetry.io/schemas/1.44.0",
                "logRecords": [
                    {"timeUnixNano": "5", "severityNumber": 9, "body": {"stringValue": "x"}},
                    {"timeUnixNano": 6, "severityNumber": 9, "body": {"stringValue": "y"}},
                ],
            }
        ],
    }
    first, second = otlp.from_otlp(element)
    assert first == {
        "schema": "log/1.0", "kind": "log", "time_unix_nano": 5, "severity_number": 9,
        "body": "x", "scope": "lib", "resource": {"service.name": "a"},
        "attributes": {"otel.scope.schema_url": "https://opentelemetry.io/schemas/1.44.0"},
    }  # fmt: skip
    assert second["time_unix_nano"] == 6
    with pytest.raises(RefusedRecordError, match="not_otlp"):
        list(otlp.from_otlp({"scopeLogs": [{"logRecords": [{"timeUnixNano": "x"}]}]}))


def test_tables_name_every_field_of_their_kind_once() -> None:
    tables = {
        "log": (otlp.LOG,),
        "span": (otlp.SPAN,),
        "metric": (otlp.METRIC, otlp.METRIC_DATA, otlp.POINT),
    }
    common = {"schema", "kind", "scope", "context", "resource", "attributes", "record_id"}
    common |= {"observed_time_unix_nano", "sample_weight", "dropped_attributes_count", "trace_id"}
    common |= {"span_id", "trace_flags", "metric_type"}
    for kind, found in tables.items():
        keys = Counter(row.key for table in found for row in table)
        fields = {field.alias or name for name, field in BASE_MODELS[kind].model_fields.items()}
        assert set(keys.values()) == {1}
        assert keys.keys() <= fields
        assert fields - keys.keys() <= common


def test_ecs_names_are_those_of_the_schema() -> None:
    document = ecs.to_ecs(records.log(attributes={"exception.type": "E", "order": 1}))
    assert document["@timestamp"] == "2023-11-14T22:13:20.123456789Z"
    assert document["log.level"] == "INFO"
    assert document["service.environment"] == "test"
    assert document["http.request.id"] == "r-1"
    assert document["error.type"] == "E"
    assert document["penstock.attributes.order"] == 1
    assert ecs.to_ecs(records.span())["event.outcome"] == "failure"
    assert ecs.to_ecs(records.audit())["event.outcome"] == "success"


def test_ecs_has_no_name_twice() -> None:
    for kind, model in BASE_MODELS.items():
        keys = {field.alias or name for name, field in model.model_fields.items()}
        names = [ecs.FIELDS[key] for key in keys if key in ecs.FIELDS]
        names += [target for table in ecs.GROUPS.values() for target in table.values()]
        assert [name for name, count in Counter(names).items() if count > 1] == [], kind
        assert WIRE_REQUIRED[kind] <= keys


@pytest.mark.parametrize("text", ["", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.1Z"])
def test_time_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nine digits"):
        ecs.time_ns(text)


def test_resource_of_the_sdk_is_made_of_what_the_tables_know() -> None:
    attributes = dict(Resource.create({"service.name": "a"}).attributes)
    back = ecs.from_ecs(ecs.to_ecs(records.log(resource=attributes)))
    assert back["resource"] == attributes

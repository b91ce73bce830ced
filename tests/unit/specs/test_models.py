"""The models' invariants, and the validator that applies them to lines."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Rejected
from tests.unit.specs import records
from tests.unit.specs.records import SPAN, TIME, TRACE

Make = Callable[..., dict[str, Any]]

SECRET = "4111-1111-1111-1111"


def verdict(record: dict[str, Any]) -> str:
    found = check_line(json.dumps(record).encode())
    return f"{found.reason}: {found.detail}" if isinstance(found, Rejected) else "accepted"


@pytest.mark.parametrize("make", records.ALL.values(), ids=records.ALL)
def test_valid_record_is_accepted(make: Make) -> None:
    assert verdict(make()) == "accepted"


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("log", {"severity_number": 0}, "invalid: severity_number: greater_than_equal"),
    ("log", {"severity_number": 25}, "invalid: severity_number: less_than_equal"),
    ("log", {"severity_number": "9"}, "invalid: severity_number: int_type"),
    ("log", {"severity_number": None}, "missing_field: severity_number"),
    ("log", {"time_unix_nano": None}, "missing_field: time_unix_nano"),
    ("log", {"time_unix_nano": -1}, "invalid: time_unix_nano: greater_than_equal"),
    ("log", {"time_unix_nano": 1 << 63}, "invalid: time_unix_nano: less_than_equal"),
    ("log", {"time_unix_nano": 1.5}, "invalid: time_unix_nano: int_type"),
    ("log", {"body": None}, "missing_field: body"),
    ("log", {"body": {"a": 1}}, "invalid: body: string_type"),
    ("log", {"body": "x" * 32_769}, "invalid: body: string_too_long"),
    ("log", {"trace_id": "0" * 32}, "invalid: record: trace_id is all zero"),
    ("log", {"span_id": "0" * 16}, "invalid: record: span_id is all zero"),
    ("log", {"trace_id": TRACE.upper()}, "invalid: trace_id: string_pattern_mismatch"),
    ("log", {"trace_id": None}, "invalid: record: span_id needs trace_id"),
    ("log", {"trace_flags": 256}, "invalid: trace_flags: less_than_equal"),
    ("log", {"sample_weight": 0.5}, "invalid: sample_weight: greater_than_equal"),
    ("log", {"resource": None}, "missing_field: resource"),
    ("log", {"resource": {}}, "invalid: resource.service.name: missing"),
    ("log", {"resource": {"service.name": ""}}, "invalid: resource.service.name: string_too_short"),
    ("log", {"resource": []}, "invalid: resource: model_type"),
    ("log", {"attributes": {"a": {"b": 1}}}, "invalid: attributes.a: string_type"),
    ("log", {"attributes": {"a": [[1]]}}, "invalid: attributes.a: string_type"),
    ("log", {"attributes": {"a": 1 << 63}}, "invalid: attributes.a: string_type"),
    ("log", {"attributes": {"a": 1 << 200}}, "invalid: attributes.a: string_type"),
    ("log", {"attributes": {"": 1}}, "invalid: attributes.: string_too_short"),
    ("log", {"attributes": {f"k{n}": n for n in range(129)}}, "invalid: attributes: too_long"),
    ("log", {"kind": "logs"}, "bad_kind: "),
    ("log", {"kind": ["log"]}, "bad_kind: "),
    ("log", {"schema": "log"}, "bad_schema: "),
    ("log", {"schema": None}, "bad_schema: "),
    ("log", {"schema": 1}, "bad_schema: "),
    ("log", {"schema": "log/01.0"}, "bad_schema: "),
    ("log", {"schema": "span/1.0"}, "kind_mismatch: "),
    ("log", {"schema": "log/2.0"}, "unknown_major: "),
    (
        "span",
        {"end_time_unix_nano": TIME - 1},
        "invalid: record: end_time_unix_nano is before time_unix_nano",
    ),
    ("span", {"span_kind": "SELF"}, "invalid: span_kind: literal_error"),
    ("span", {"trace_id": None}, "missing_field: trace_id"),
    ("span", {"name": ""}, "invalid: name: string_too_short"),
    ("span", {"links": [{"trace_id": TRACE}]}, "invalid: links.0: missing"),
    ("span", {"links": [{"trace_id": TRACE, "span_id": SPAN}] * 129}, "invalid: links: too_long"),
    ("metric_gauge", {"value": None}, "invalid: record: gauge needs value"),
    ("metric_gauge", {"count": 1}, "invalid: record: gauge has no count"),
    ("metric_gauge", {"name": ""}, "invalid: name: string_too_short"),
    ("metric_gauge", {"name": "x" * 256}, "invalid: name: string_too_long"),
    ("metric_gauge", {"value": "nan"}, "invalid: value.constrained-int: int_type"),
    ("metric_gauge", {"metric_type": "meter"}, "invalid: metric_type: literal_error"),
    ("metric_sum", {"value": -1}, "invalid: record: value of a monotonic sum is negative"),
    ("metric_sum", {"temporality": None}, "invalid: record: sum needs temporality"),
    (
        "metric_sum",
        {"start_time_unix_nano": TIME + 1},
        "invalid: record: start_time_unix_nano is after time_unix_nano",
    ),
    (
        "metric_histogram",
        {"bucket_counts": [5]},
        "invalid: record: bucket_counts must be one longer than explicit_bounds",
    ),
    (
        "metric_histogram",
        {"bucket_counts": [1, 3, 2]},
        "invalid: record: bucket_counts must add up to count",
    ),
    (
        "metric_histogram",
        {"explicit_bounds": [25.0, 5.0]},
        "invalid: record: explicit_bounds must rise strictly",
    ),
    (
        "metric_histogram",
        {"explicit_bounds": [5.0, 5.0]},
        "invalid: record: explicit_bounds must rise strictly",
    ),
    ("metric_histogram", {"min": 41.0}, "invalid: record: min is above max"),
    (
        "metric_exponential_histogram",
        {"count": 5},
        "invalid: record: buckets and zero_count must add up to count",
    ),
    ("metric_exponential_histogram", {"scale": 21}, "invalid: scale: less_than_equal"),
    (
        "metric_exponential_histogram",
        {"zero_count": None},
        "invalid: record: exponential_histogram needs zero_count",
    ),
    ("event", {"record_id": None}, "missing_field: record_id"),
    ("event", {"event_name": None}, "missing_field: event_name"),
    ("event", {"event_name": "Opened"}, "invalid: event_name: string_pattern_mismatch"),
    ("audit", {"actor": {"type": "user"}}, "invalid: actor.id: missing"),
    ("audit", {"outcome": "maybe"}, "invalid: outcome: literal_error"),
    ("audit", {"target": None}, "missing_field: target"),
    ("audit", {"prev_hash": "abc"}, "invalid: prev_hash: string_pattern_mismatch"),
]


def test_null_in_the_place_of_what_must_be_there_is_missing() -> None:
    line = json.dumps(records.log()).encode()
    for key in ("resource", "time_unix_nano", "body"):
        null = json.dumps({**json.loads(line), key: None}).encode()
        assert check_line(null) == Rejected("missing_field", key)


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    BROKEN,
    ids=[f"{k}-{next(iter(c))}-{n}" for n, (k, c, _) in enumerate(BROKEN)],
)
def test_broken_record_is_refused_with_its_rule(
    kind: str, changes: dict[str, Any], expected: str
) -> None:
    assert verdict(records.ALL[kind](**changes)) == expected


ALLOWED: list[tuple[str, dict[str, Any]]] = [
    ("log", {"span_id": None}),
    ("log", {"attributes": {"a": (1 << 63) - 1, "b": -(1 << 63), "c": None, "d": [None, "x"]}}),
    ("log", {"resource": {"service.name": "a", "k8s.pod.name": "p", "ports": [1, 2]}}),
    ("metric_gauge", {"value": None, "flags": 1}),
    ("metric_gauge", {"value": -2.5}),
    ("metric_sum", {"value": -1, "is_monotonic": False}),
    ("metric_histogram", {"sum": None, "min": None, "max": None}),
    ("metric_exponential_histogram", {"negative": None, "count": 5}),
    ("log", {"schema": "shop.unknown/7.3"}),
    ("log", {"schema": "log/1.9", "invented": {"deep": [1]}, "context": {"new.key": "x"}}),
]


@pytest.mark.parametrize(("kind", "changes"), ALLOWED)
def test_unusual_record_is_accepted(kind: str, changes: dict[str, Any]) -> None:
    assert verdict(records.ALL[kind](**changes)) == "accepted"


@pytest.mark.parametrize(
    "changes",
    [
        {"body": {SECRET: SECRET}},
        {"trace_id": SECRET},
        {"severity_number": SECRET},
        {"schema": SECRET},
        {"kind": SECRET},
        {"attributes": {"card": {"number": SECRET}}},
        {"context": {"user.id": [SECRET]}},
        {"resource": {"service.name": [SECRET]}},
    ],
)
def test_reason_never_holds_the_value(changes: dict[str, Any]) -> None:
    found = verdict(records.log(**changes))
    assert found != "accepted"
    assert SECRET not in found

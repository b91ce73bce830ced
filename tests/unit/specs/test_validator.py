"""Verdicts on bytes: JSON that is none, too much, twice there, or newer than we are."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.specs import Event, encode
from penstock.specs.validate.validator import attach, attach_and_check, check_line, check_together
from penstock.specs.validate.verdict import Accepted, Rejected
from tests.unit.specs import records


def line_of(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def reason(line: bytes) -> str:
    found = check_line(line)
    return found.reason if isinstance(found, Rejected) else "accepted"


def accepted(line: bytes) -> Accepted:
    found = check_line(line)
    assert isinstance(found, Accepted), found
    return found


GOOD = line_of(records.log())


def test_accepted_says_what_routing_needs() -> None:
    assert accepted(GOOD) == Accepted(
        kind="log",
        schema="log/1.0",
        service="checkout",
        time_unix_nano=records.TIME,
        unknown_fields=0,
        exact=True,
        names=tuple(records.log()["attributes"]),
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"", "not_json"),
        (b"hello", "not_json"),
        (GOOD[:-1], "not_json"),
        (GOOD + b"{}", "not_json"),
        (GOOD.replace(b"24.5", b"NaN"), "not_json"),
        (GOOD.replace(b"24.5", b"Infinity"), "not_json"),
        (GOOD.replace(b"24.5", b"1e999"), "invalid"),
        (GOOD.replace(b"order placed", b"\xff\xfe"), "not_json"),
        (GOOD.replace(b"order placed", b"\\ud800"), "not_json"),
        (b"[]", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"7", "not_an_object"),
        (b"{}", "bad_kind"),
        (b"[" * 100_000, "not_json"),
        (b'{"a":' * 50_000, "not_json"),
        (GOOD[:-1] + b',"deep":' + b"[" * 20 + b"]" * 20 + b"}", "too_deep"),
        (GOOD[:-1] + b',"kind":"audit"}', "duplicate_key"),
        (GOOD[:-1] + b',"kind" :"audit"}', "duplicate_key"),
        (GOOD[:-1] + b',"\\u006bind":"log"}', "duplicate_key"),
        (GOOD.replace(b'"total":24.5', b'"total":1,"total":2'), "duplicate_key"),
        (GOOD.replace(b'"total":24.5', b'"total":1,"total" :2,"note":":x"'), "duplicate_key"),
    ],
)
def test_line_that_is_no_record_is_rejected(line: bytes, expected: str) -> None:
    assert reason(line) == expected


def test_line_may_be_as_long_as_the_limit() -> None:
    assert reason(GOOD.ljust(1 << 18)) == "accepted"
    assert reason(GOOD.ljust((1 << 18) + 1)) == "too_large"


@pytest.mark.parametrize("text", ['":', 'say "kind": twice', '\\":', "a:b", '"body" : "x"'])
def test_text_that_looks_like_keys_is_no_duplicate(text: str) -> None:
    assert reason(line_of(records.log(body=text, attributes={"note": text}))) == "accepted"


def test_blanks_and_line_breaks_between_tokens_are_json_too() -> None:
    assert reason(json.dumps(records.log(), indent=1, separators=(" , ", " : ")).encode()) == (
        "accepted"
    )


KEYS = st.sampled_from(["a", "b", "kind", '"', ":", '":'])
VALUES = st.recursive(
    st.none() | st.integers() | st.sampled_from(['":', "x", '\\":', '"a":1', '"a" :1']),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(st.tuples(KEYS, inner), max_size=3).map(tuple)
    ),
    max_leaves=8,
)


def as_json(value: Any, colon: str) -> str:
    """JSON text; a tuple is an object, which may have a key twice."""
    if isinstance(value, tuple):
        pairs = (f"{json.dumps(key)}{colon}{as_json(inner, colon)}" for key, inner in value)
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(as_json(inner, colon) for inner in value) + "]"
    return json.dumps(value)


def has_duplicate(value: Any) -> bool:
    members = [inner for _, inner in value] if isinstance(value, tuple) else value
    if not isinstance(value, (tuple, list)):
        return False
    keys = [key for key, _ in value] if isinstance(value, tuple) else []
    return len(set(keys)) < len(keys) or any(has_duplicate(inner) for inner in members)


@given(VALUES, st.sampled_from([":", " :", ": ", " : "]))
def test_duplicate_keys_are_found_wherever_they_are(value: Any, colon: str) -> None:
    line = GOOD[:-1] + b',"x":' + as_json(value, colon).encode() + b"}"
    expected = {"duplicate_key"} if has_duplicate(value) else {"accepted", "too_deep"}
    assert reason(line) in expected


class Measured(Event, spec="gate_test.measured/1.0"):
    """A specialised spec of this test."""

    length: int


class MeasuredBetter(Event, spec="gate_test.measured/1.2"):
    """A newer minor of it."""

    length: int
    width: int = 0


def test_specialised_spec_is_applied_to_its_own_fields() -> None:
    line = encode(Measured(length=3, attributes={"other": "x"}))
    whole = attach(line, b'{"service.name":"a"}')
    assert accepted(whole).exact
    found = check_line(whole.replace(b'.length":3', b'.length":"3"'))
    assert found == Rejected("invalid", "length: int_type")
    found = check_line(whole.replace(b"gate_test.length", b"gate_test.len"))
    assert found == Rejected("invalid", "length: missing")


def test_newer_minor_is_judged_by_the_newest_one_known() -> None:
    whole = attach(encode(Measured(length=3)), b'{"service.name":"a"}')
    newer = whole.replace(b"measured/1.0", b"measured/1.9")
    assert not accepted(newer).exact
    assert reason(newer.replace(b'.length":3', b'.length":"3"')) == "invalid"
    assert reason(whole.replace(b"measured/1.0", b"measured/2.0")) == "unknown_major"


def test_unknown_fields_are_counted_at_every_depth() -> None:
    record = records.span(
        newer=1,
        context={"user.id": "u", "user.shoe_size": 43},
        links=[{"trace_id": records.TRACE, "span_id": records.SPAN, "why": "x"}],
    )
    assert accepted(line_of(record)).unknown_fields == 3


def test_unknown_field_does_not_hide_a_broken_rule_between_fields() -> None:
    assert reason(line_of(records.total(newer=1, value=-1))) == "invalid"


def test_attach_adds_what_the_line_lacks_and_keeps_its_bytes() -> None:
    bare = line_of({key: value for key, value in records.log().items() if key != "resource"})
    resource = b'{"service.name":"cart"}'
    whole = attach(bare, resource, 17)
    assert whole == bare[:-1] + b',"resource":' + resource + b',"observed_time_unix_nano":17}'
    assert accepted(whole).service == "cart"
    assert attach(whole, b'{"service.name":"other"}', 18) == whole
    assert attach(GOOD, resource) == GOOD


@pytest.mark.parametrize("text", ['"resource"', '"resource":{', "resource"])
def test_attach_is_not_misled_by_text(text: str) -> None:
    bare = line_of({k: v for k, v in records.log(body=text).items() if k != "resource"})
    assert accepted(attach(bare, b'{"service.name":"cart"}')).service == "cart"


def test_attach_sees_a_key_that_is_written_with_escapes() -> None:
    escaped = GOOD.replace(b'"resource"', b'"\\u0072esource"')
    assert attach(escaped, b'{"service.name":"other"}') == escaped


@pytest.mark.parametrize("line", [b"", b"hello", b"[1]", b"{"])
def test_attach_leaves_what_is_no_object_to_the_gate(line: bytes) -> None:
    assert reason(attach(line, b"{}", 1)) in {"not_json", "not_an_object"}


BARE = line_of({key: value for key, value in records.log().items() if key != "resource"})


@given(
    st.lists(
        st.sampled_from(
            [
                BARE, GOOD, BARE + b" ", b" " + BARE, BARE[:-1] + b" }", b"{ }", b"{}", b"", b"[1]",
                BARE[:-1] + b"\x0b}", b"hello", b"{", BARE.replace(b"order", b'\\"resource\\"'),
                GOOD.replace(b'"resource"', b'"\\u0072esource"'),
                BARE[:-1] + b',"observed_time_unix_nano":5}', GOOD,
                BARE[:-1] + b',"attributes":{"resource":"x"}}',
                BARE[:-1] + b',"resource":7}', BARE[:-1] + b',"context":{"resource":{}}}',
            ]
        ),
        max_size=4,
    )
)  # fmt: skip
def test_attached_together_lines_say_what_each_says(lines: list[bytes]) -> None:
    resource = b'{"service.name":"cart"}'
    found, verdicts = attach_and_check(lines, resource, 17)
    assert verdicts == check_together(found)
    for line, whole in zip(lines, found, strict=True):
        expected = attach(line, resource, 17)
        assert whole == expected


@pytest.mark.parametrize("line", [BARE[:-1] + b"\x0b}", BARE + b"\x0c", b"\x0b" + BARE])
def test_attach_makes_no_json_of_what_is_none(line: bytes) -> None:
    resource = b'{"service.name":"cart"}'
    assert reason(line) == reason(attach(line, resource, 17)) == "not_json"
    ((whole,), _) = attach_and_check([line], resource, 17)
    assert reason(whole) == "not_json"


def test_attach_to_an_empty_object() -> None:
    assert attach(b"{ }", b"{}") == b'{"resource":{}}'


@given(st.binary(max_size=60))
def test_the_validator_never_raises(noise: bytes) -> None:
    half = len(GOOD) // 2
    for line in (noise, GOOD[:half] + noise + GOOD[half:], attach(noise, b"{}", 1)):
        assert check_line(line) is not None


def test_a_field_has_one_name_on_the_wire() -> None:
    """The names that models have for Python are not columns; nobody would find their values."""
    service = {"service_name": "checkout"}
    assert check_line(line_of(records.log() | {"resource": service})) == Rejected(
        "invalid", "resource.service.name: missing"
    )
    context = records.log() | {"context": {"user_id": "u-1"}}
    assert accepted(line_of(context)).unknown_fields == 1

"""Markers, actions and detectors: what leaves, what stays, and classes that may not be."""

import json
import re
import types
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from penstock.specs import (
    Dimension,
    Event,
    LogRecord,
    MetricPoint,
    Record,
    RefusedSpecError,
    Sensitive,
    SpecError,
    encode,
)
from penstock.specs.emit.log_writer import LogLines
from penstock.specs.formats.schemas import json_schema
from penstock.specs.models.codec import encode_json
from penstock.specs.redact.detectors import redact_text, sensitivity_of_name
from penstock.specs.redact.scrubber import Scrubber, check_actions
from penstock.specs.redact.sensitivity import ACTIONS, SENSITIVITIES, Action, HashKey, truncated
from penstock.specs.validate.validator import attach, check_line
from penstock.specs.validate.verdict import Accepted, Rejected
from tests.unit.specs import records
from tests.unit.specs.output import Output

KEY = HashKey("k1", b"0123456789abcdef")
CARD = "4111 1111 1111 1111"


class Paid(Event, spec="sensitive_test.paid/1.0"):
    """A specialised spec of this test, with each action."""

    shop: Annotated[str, Sensitive("public")]
    customer: Annotated[str, Sensitive("pseudonym")]
    card: Annotated[str, Sensitive("pci")]
    address: Annotated[str | None, Sensitive("pii", "truncate")] = None
    email: Annotated[str | None, Sensitive("pii")] = None
    friends: list[Annotated[str, Sensitive("pseudonym")]] | None = None


class Sent(Event, spec="sensitive_test.sent/1.0"):
    """A specialised spec without a marker."""

    carrier: str


def wire(**changes: Any) -> dict[str, Any]:
    fields = {"shop": "s", "customer": "u-1", "card": CARD, "address": "192.0.2.7"}
    whole: dict[str, Any] = json.loads(encode(Paid(**{**fields, **changes})))
    return {**whole, "resource": {"service.name": "a"}}


def test_each_action_does_what_it_says() -> None:
    given_fields = wire(email="x@example.com", friends=["u-2", "u-3"])
    scrubbed = Scrubber(KEY).scrub(given_fields)
    hashed = KEY.hashed("u-1", 0)
    assert scrubbed["attributes"] == {
        "sensitive_test.shop": "s",
        "sensitive_test.customer": hashed,
        "sensitive_test.card": "[redacted:pci]",
        "sensitive_test.address": "192.0.2.0",
        "sensitive_test.friends": [KEY.hashed("u-2", 0), KEY.hashed("u-3", 0)],
    }
    assert hashed.startswith("hk1:")
    assert scrubbed["dropped_attributes_count"] == 1
    assert given_fields["attributes"]["sensitive_test.card"] == CARD
    assert isinstance(check_line(json.dumps(scrubbed).encode()), Accepted)


@pytest.mark.parametrize("make", records.ALL.values(), ids=records.ALL)
def test_scrubbed_twice_is_scrubbed_once_and_still_a_record(make: Any) -> None:
    context = {"user.id": "u", "session.id": "s", "client.address": "2001:db8::7", "user.name": "N"}
    attributes = {"a": f"card {CARD}", "password": "hunter2", "n": 1, "l": ["x@example.com", 2]}
    line = json.dumps(make(context=context, attributes=attributes)).encode()
    for scrubber in (Scrubber(KEY), Scrubber(), Scrubber(HashKey("r", b"x" * 16, 30))):
        once = scrubber.scrub_line(line)
        assert isinstance(check_line(once), Accepted)
        assert b"hunter2" not in once
        assert b"1111" not in once
        assert b'"user.name"' not in once
        assert scrubber.scrub_line(once) == once


def test_line_with_nothing_to_do_keeps_its_bytes() -> None:
    line = json.dumps(records.histogram(), indent=1).encode()
    assert Scrubber(KEY).scrub_line(line) is line


def test_without_a_key_pseudonyms_are_redacted_at_the_edge_and_kept_where_it_is_said() -> None:
    record = records.log(context={"user.id": "u-17"})
    assert Scrubber().scrub(record)["context"] == {"user.id": "[redacted:pseudonym]"}
    kept = Scrubber(keyless="keep").scrub(record)
    assert kept is record


def test_without_a_key_an_emitter_redacts_a_specs_own_pseudonyms_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = Output(tmp_path / "out")
    try:
        for _ in range(2):
            output.emitter.emit_record(Paid(shop="s", customer="u-1", card=CARD, friends=["u-2"]))
        paid = next(iter(output.records()))["attributes"]
        counted = output.emitter.counters().keyless
    finally:
        output.close()
    assert paid["sensitive_test.customer"] == "[redacted:pseudonym]"
    assert paid["sensitive_test.friends"] == ["[redacted:pseudonym]"]
    assert counted == {"sensitive_test.customer": 2, "sensitive_test.friends": 2}
    told = [one.getMessage() for one in caplog.records if "PENSTOCK_HASH_KEY" in one.getMessage()]
    assert len(told) == 2  # once for each field


CONTEXT_NAMED = {
    "user.id": "u-1", "userId": "u-2", "session_id": "s-1", "client.address": "192.0.2.7",
    "user.name": "Ann", "user_agent.original": "curl/8", "order": "o-1",
}  # fmt: skip


def test_attributes_that_are_named_as_the_contexts_fields_are_treated_as_these() -> None:
    treated = {
        "user.id": KEY.hashed("u-1", 0), "userId": KEY.hashed("u-2", 0),
        "session_id": KEY.hashed("s-1", 0), "client.address": "192.0.2.0", "order": "o-1",
    }  # fmt: skip
    record = records.log(attributes=CONTEXT_NAMED, context=None)
    for scrubber in (Scrubber(KEY), Scrubber(KEY, values=False)):
        scrubbed = scrubber.scrub(record)
        assert scrubbed["attributes"] == treated
        assert scrubbed["dropped_attributes_count"] == 2
        assert scrubber.scrub(scrubbed) is scrubbed
        assert scrubber.scrub_names(CONTEXT_NAMED) == treated
    assert Scrubber().scrub(record)["attributes"]["user.id"] == "[redacted:pseudonym]"
    event = {"name": "e", "time_unix_nano": 1, "attributes": {"user.id": "u-1"}}
    inner = Scrubber(KEY).scrub(records.span(events=[event]))["events"][0]["attributes"]
    assert inner == {"user.id": KEY.hashed("u-1", 0)}
    chosen = Scrubber(actions={"attributes.user.id": "keep", "context.session.id": "keep"})
    kept = chosen.scrub(record)["attributes"]
    assert (kept["user.id"], kept["session_id"]) == ("u-1", "s-1")
    assert kept["userId"] == "[redacted:pseudonym]"


def test_a_name_that_says_something_is_looked_at_whatever_its_first_value_was() -> None:
    lines = LogLines(Scrubber(values=False))
    for nothing, something in ((None, "hunter2"), ("", "hunter2")):
        assert lines.record("x", 9, {"password": nothing})["attributes"] == {"password": nothing}
        said = lines.record("x", 9, {"password": something})["attributes"]
        assert said == {"password": "[redacted:secret]"}
    lines.record("x", 9, {"client.address": "10.0.0.0"})
    said = lines.record("x", 9, {"client.address": "10.0.0.7"})["attributes"]
    assert said == {"client.address": "10.0.0.0"}


def test_rotation_changes_the_hash_with_the_records_time_only() -> None:
    key = HashKey("r", b"0123456789abcdef", rotate_days=30)
    day = 86_400 * 10**9
    assert key.hashed("u", 0) == key.hashed("u", 29 * day)
    assert key.hashed("u", 0) != key.hashed("u", 30 * day)
    assert key.hashed("u", 0) != HashKey("r", b"0123456789abcdeF", 30).hashed("u", 0)
    assert key.hashed("u", 31 * day).startswith("hr.1:")


def test_operator_may_choose_another_action() -> None:
    scrubber = Scrubber(KEY, actions={"context.user.email": "hash"})
    record = records.log(context={"user.email": "x@example.com"})
    assert scrubber.scrub(record)["context"] == {"user.email": KEY.hashed("x@example.com", 0)}


@pytest.mark.parametrize("values", [True, False])
def test_an_operators_action_reaches_every_attribute(values: bool) -> None:
    """It was once heeded only where a spec or the context's names had one already."""
    actions: dict[str, Action] = {"attributes.ref": "drop", "attributes.note": "hash"}
    scrubber = Scrubber(KEY, actions=actions, values=values)
    record = records.log(attributes={"ref": "r-1", "note": "x", "order": "o-1"})
    for scrubbed in (scrubber.scrub(record), json.loads(scrubber.scrub_line(encode_json(record)))):
        assert scrubbed["attributes"] == {"note": KEY.hashed("x", 0), "order": "o-1"}
        assert scrubber.scrub(scrubbed) == scrubbed


def test_an_operators_action_reaches_a_field_that_its_spec_does_not_mark() -> None:
    scrubber = Scrubber(KEY, actions={"attributes.sensitive_test.carrier": "redact"})
    record = json.loads(encode(Sent(carrier="x")))
    assert scrubber.scrub(record)["attributes"] == {"sensitive_test.carrier": "[redacted:pii]"}


@pytest.mark.parametrize("path", ["body", "attributes", "attributes.*", "context.usr.email", "x"])
def test_an_action_for_what_no_record_has_is_refused(path: str) -> None:
    with pytest.raises(SpecError, match=re.escape(path)):
        check_actions([path])
    check_actions(["context.user.email", "attributes.any.key"])


@pytest.mark.parametrize("text", ["k", "k:short", "a b:0123456789abcdef", "k:0123456789abcdef:x"])
def test_malformed_key_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        HashKey.parse(text)
    assert text.partition(":")[2] in ("", "x") or text.partition(":")[2] not in str(caught.value)
    assert HashKey.parse("k:0123456789abcdef:7").rotate_days == 7
    assert "0123" not in repr(KEY)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("192.0.2.7", "192.0.2.0"),
        ("2001:db8:1:2::7", "2001:db8:1::"),
        ("Anderson", "Ande…"),
        ("Ann", "Ann"),
        ("", ""),
    ],
)
def test_truncated(value: str, expected: str) -> None:
    assert truncated(value) == expected
    assert truncated(expected) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("password", "secret"),
        ("db.password", "secret"),
        ("userPassword", "secret"),
        ("http.request.header.authorization", "secret"),
        ("X-Api-Key", "secret"),
        ("user.email", "pii"),
        ("payment.card_number", "pci"),
        ("gen_ai.usage.input_tokens", None),
        ("password_policy.name", None),
        ("exception.message", None),
        ("shop.country", None),
        ("", None),
    ],
)
def test_names_that_say_what_they_hold(name: str, expected: str | None) -> None:
    assert sensitivity_of_name(name) == expected


SENSITIVE_TEXTS = [
    (f"paid with {CARD} today", "paid with [redacted:pci] today"),
    ("4111111111111111", "[redacted:pci]"),
    ("378282246310005", "[redacted:pci]"),
    ("mail ann.lee+x@mail.example.com now", "mail [redacted:pii] now"),
    ("Authorization: Bearer abcdefghijklmnop1234", "Authorization: [redacted:secret]"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "[redacted:secret]"),
    ("key AKIAABCDEFGHIJKLMNOP.", "key [redacted:secret]."),
    ("postgres://app:s3cret@db/x", "postgres://[redacted:secret]@db/x"),
    ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----", "[redacted:secret]"),
    ("-----BEGIN RSA PRIVATE KEY-----\nabc", "[redacted:secret]"),
]
HARMLESS_TEXTS = [
    "1700000000123456789",
    "4111111111111112",
    "0.4111111111111111",
    records.TRACE,
    "0b6c1f0e-8f2b-4c57-9d3a-6a1d8f1f2c11",
    "https://example.com/a@b",
    "order placed",
    "a@b",
    "user@localhost",
    "2026-11-22 05:45:00",
]


@pytest.mark.parametrize(("text", "expected"), SENSITIVE_TEXTS)
def test_sensitive_part_of_a_text_is_replaced(text: str, expected: str) -> None:
    assert redact_text(text) == expected
    assert redact_text(expected) == expected


@pytest.mark.parametrize("text", HARMLESS_TEXTS)
def test_harmless_text_is_the_same_object(text: str) -> None:
    assert redact_text(text) is text


@given(st.text(max_size=200))
def test_redacted_text_still_fits_its_field(text: str) -> None:
    record = records.span(name=f"{text} a@b.cc 4111111111111111"[-255:])
    assert len(Scrubber(KEY).scrub(record)["name"]) <= 255


def test_long_text_is_not_cut_for_its_marks() -> None:
    assert redact_text("a@b.cc " * 100) == "[redacted:pii] " * 100


def test_free_text_and_undeclared_attributes_are_searched_at_every_depth() -> None:
    record = records.span(
        name="send to x@example.com",
        status_message=CARD,
        events=[{"name": "e", "time_unix_nano": 1, "attributes": {"to": "x@example.com"}}],
    )
    scrubbed = Scrubber(KEY).scrub(record)
    assert "example.com" not in json.dumps(scrubbed)
    assert "4111" not in json.dumps(scrubbed)
    assert scrubbed["links"] is record["links"]


def test_names_alone_are_judged_where_values_are_not() -> None:
    scrubber = Scrubber(KEY, values=False)
    attributes = {"note": CARD, "card_number": CARD, "token": None, "pan": True}
    scrubbed = scrubber.scrub(records.log(attributes=attributes, context=None))
    assert scrubbed["attributes"] == attributes | {"card_number": "[redacted:pci]"}


def test_emitter_scrubs_what_it_emits(tmp_path: Path) -> None:
    output = Output(tmp_path / "out")
    try:
        output.emitter.emit_record(Paid(shop="s", customer="u-1", card=CARD, email="x@y.zz"))
        output.emitter.logs.write("x", 9, {"password": "hunter2"})
        paid, said = sorted(output.records(), key=lambda record: str(record["kind"]))
    finally:
        output.close()
    assert paid["attributes"]["sensitive_test.card"] == "[redacted:pci]"
    assert "sensitive_test.email" not in paid["attributes"]
    assert said["attributes"] == {"password": "[redacted:secret]"}


def test_marker_stands_in_the_json_schema() -> None:
    properties = json_schema(Paid)["properties"]
    assert properties["card"]["x-sensitivity"] == "pci"
    assert properties["email"]["x-action"] == "drop"
    assert json_schema(LogRecord)["$defs"]["Context"]["properties"]["user.email"]["x-action"] == (
        "drop"
    )


def test_reason_does_not_hold_a_name_that_is_a_value() -> None:
    verdict = check_line(json.dumps(records.log(attributes={"x@example.com": {}})).encode())
    assert isinstance(verdict, Rejected)
    assert "example.com" not in verdict.detail


def test_marker_words_are_closed() -> None:
    for word in ("", "private"):
        with pytest.raises(RefusedSpecError):
            Sensitive(word)  # type: ignore[arg-type]
    with pytest.raises(RefusedSpecError):
        Sensitive("pii", "encrypt")  # type: ignore[arg-type]


def test_marker_covers_what_is_no_stricter() -> None:
    for one in SENSITIVITIES:
        for action in ACTIONS:
            assert Sensitive(one, action).covers(Sensitive("public", "keep"))
            assert Sensitive("secret", "drop").covers(Sensitive(one, action))
    assert not Sensitive("pii", "keep").covers(Sensitive("pii"))
    assert not Sensitive("internal", "drop").covers(Sensitive("pii"))


class Profile(BaseModel):
    """A mix-in of fields."""

    phone: Annotated[str | None, Sensitive("pii")] = None


class Called(Event, Profile, spec="sensitive_test.called/1.0"):
    """A spec with a mix-in."""

    seconds: int = 0


def test_mixed_in_fields_are_the_specs_own_and_keep_their_marker() -> None:
    assert Called.own_fields == {
        "phone": "sensitive_test.phone",
        "seconds": "sensitive_test.seconds",
    }
    line = json.loads(encode(Called(phone="555", seconds=3)))
    assert Scrubber(KEY).scrub(line)["attributes"] == {"sensitive_test.seconds": 3}


def test_subclass_cannot_lose_or_weaken_a_marker() -> None:
    with pytest.raises(RefusedSpecError, match=r"phone is pii in Profile; mark it"):

        class _Lost(Event, Profile, spec="sensitive_test.lost/1.0"):
            phone: str | None = None

    with pytest.raises(RefusedSpecError, match="phone is pii"):

        class _Weaker(Event, Profile, spec="sensitive_test.weaker/1.0"):
            phone: Annotated[str | None, Sensitive("pii", "keep")] = None

    with pytest.raises(RefusedSpecError, match="card is pci"):

        class _NoSpec(Paid):
            card: str


BAD_FIELDS: list[tuple[type[Record], str, Any, str]] = [
    (Event, "at", Annotated[str, Sensitive("pii")], "must be optional"),
    (Event, "n", Annotated[int, Sensitive("secret")], "redact makes text"),
    (Event, "t", Annotated[str, Field(max_length=8), Sensitive("pseudonym")], "hash makes text"),
    (Event, "inner", Profile, "own field is text"),
    (Event, "data", dict[str, str], "own field is text"),
    (Event, "deep", list[list[int]], "own field is text"),
    (Event, "thing", Any, "own field is text"),
    (MetricPoint, "route", str, "no bound"),
    (MetricPoint, "user_id", Annotated[str, Dimension(max_cardinality=10)], "is an id"),
    (MetricPoint, "trace_id", str, "already defined"),
    (MetricPoint, "who", Annotated[str, Sensitive("pseudonym")], "stored for ever"),
]


@pytest.mark.parametrize(("kind", "name", "annotation", "match"), BAD_FIELDS)
def test_field_that_a_spec_may_not_have_is_refused(
    kind: type[Record], name: str, annotation: Any, match: str
) -> None:
    with pytest.raises(RefusedSpecError, match=match):
        types.new_class(
            "Bad",
            (kind,),
            {"spec": "sensitive_test.bad/1.0"},
            lambda body: body.update(__annotations__={name: annotation}),
        )


class Orders(MetricPoint, spec="sensitive_test.orders/1.0"):
    """A metric with dimensions."""

    status: Literal["paid", "failed"]
    route: Annotated[str, Dimension(max_cardinality=50)]
    cached: bool | None = None


def test_metric_has_declared_dimensions_and_no_other_attributes() -> None:
    point = Orders(unit="1", metric_type="gauge", value=1, status="paid", route="/pay")
    assert point.name == "sensitive_test.orders"
    assert json_schema(Orders)["properties"]["route"]["x-max-cardinality"] == 50
    line = attach(encode(point), b'{"service.name":"a"}')
    assert isinstance(check_line(line), Accepted)
    assert isinstance(check_line(line.replace(b'"paid"', b'"lost"')), Rejected)
    with pytest.raises(ValueError, match="declared dimensions"):
        Orders(
            unit="1", metric_type="gauge", value=1, status="paid", route="/", attributes={"x": 1}
        )
    with pytest.raises(RefusedSpecError, match="from 1 to"):
        Dimension(5_000)


def test_undeclared_attribute_in_the_specs_namespace_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="not declared"):
        Called(attributes={"sensitive_test.phnoe": "1"})
    newer = attach(encode(Called(seconds=1)), b'{"service.name":"a"}').replace(
        b'"sensitive_test.seconds":1', b'"sensitive_test.later":1'
    )
    assert isinstance(check_line(newer), Accepted)

"""Whatever an application logs becomes attributes that the validator accepts."""

import enum
import json
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from penstock.specs import Emitter, bind
from penstock.specs.models.attributes import clean_attributes, clean_text, exception_attributes
from penstock.specs.models.codec import encode_json
from penstock.specs.models.resource import DROPPED, fit_and_count
from penstock.specs.validate.validator import attach, check_line
from penstock.specs.validate.verdict import Accepted
from tests.unit.specs.records import log_line


class Mute:
    """An object that cannot say what it is."""

    @override
    def __str__(self) -> str:
        raise RuntimeError("no")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "a"),
        (True, True),
        (None, None),
        (1, 1),
        (1.5, 1.5),
        (1 << 63, str(1 << 63)),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        ([1, "a", None], [1, "a", None]),
        ((1, 2), [1, 2]),
        ([[1]], ["[1]"]),
        ([{"sku": "a", "n": [1, None]}], ['{"sku": "a", "n": [1, null]}']),
        (b"\xff", "\ufffd"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Mute(), "<Mute>"),
        ({}, "{}"),
    ],
)
def test_value_is_made_to_fit(value: Any, expected: Any) -> None:
    assert clean_attributes({"k": value}) == ({"k": expected}, 0)


def test_nested_mappings_are_laid_out_flat() -> None:
    found, dropped = clean_attributes({"a": {"b": {"c": {"d": {"e": 1}}}}, 1: 2})
    assert found == {"a.b.c.d": '{"e": 1}', "1": 2}
    assert dropped == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x" * 9000, "x" * 8191 + "…"),
        (["x" * 9000, 1], ["x" * 8191 + "…", 1]),
        (list(range(2000)), [*range(1023), "…"]),
        ([{"n": list(range(1500))}], [json.dumps({"n": [*range(1023), "…"]}, ensure_ascii=False)]),
    ],
)
def test_what_is_cut_is_marked_and_counted_once(value: Any, expected: Any) -> None:
    assert clean_attributes({"k": value}) == ({"k": expected}, 1)
    assert clean_attributes({"k": expected}) == ({"k": expected}, 0)


def test_a_secret_within_a_list_is_redacted_by_its_name() -> None:
    given = {"users": [{"name": "a", "login": {"password": "hunter2", "token": None}}]}
    (text,) = json.loads(log_line("x", 9, given))["attributes"]["users"]
    assert json.loads(text) == {
        "name": "a", "login": {"password": "[redacted:secret]", "token": None},
    }  # fmt: skip
    body = json.loads(log_line([{"card_number": 4111}], 9, {}))["body"]
    assert body == '[{"card_number": "[redacted:pci]"}]'


def test_a_body_that_is_cut_is_counted() -> None:
    assert json.loads(log_line("x" * 9000, 9, {"k": 1}))["dropped_attributes_count"] == 1
    assert "dropped_attributes_count" not in json.loads(log_line("x" * 8192, 9, {"k": 1}))


def test_structures_in_a_list_are_json_whatever_they_hold() -> None:
    deep: Any = {"end": 1}
    for _ in range(30):
        deep = [deep]
    given = [{1: float("nan"), "deep": deep, "m": Mute()}]
    texts: Any = clean_attributes({"k": given})[0]["k"]
    (text,) = texts
    found = json.loads(text)
    assert (found["1"], found["m"]) == ("nan", "<Mute>")


def test_what_is_too_many_is_counted() -> None:
    found, dropped = clean_attributes({f"k{n}": n for n in range(130)} | {"x" * 129: 1})
    assert (len(found), dropped) == (128, 3)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=20)
    | st.binary(max_size=20)
    | st.builds(Mute),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(
    ANYTHING,
    st.dictionaries(st.text(st.characters(codec=None), max_size=10), ANYTHING, max_size=5),
)
def test_any_log_line_passes_the_gate(body: Any, given_fields: dict[str, Any]) -> None:
    line = attach(log_line(body, 9, given_fields), b'{"service.name":"a"}')
    assert isinstance(check_line(line), Accepted), check_line(line)


def test_record_that_is_too_long_is_cut() -> None:
    fields = {f"k{n}": "y" * 8000 for n in range(100)} | {"list": list(range(1000))}
    line = log_line("x", 9, fields)
    assert len(line) < 64 * 1024
    assert json.loads(line)["dropped_attributes_count"] == 101


def test_exception_is_data_without_locals() -> None:
    def fail(secret: str) -> None:
        value = secret + "!"
        raise ValueError(f"bad {len(value)}")

    def wrap() -> None:
        try:
            fail("hunter" + str(2))
        except ValueError as error:
            raise RuntimeError("outer") from error

    with pytest.raises(RuntimeError) as caught:
        wrap()
    found = exception_attributes(caught.value)
    assert found["exception.type"] == "RuntimeError"
    assert found["exception.message"] == "outer"
    told = "".join(traceback.format_exception(caught.value)).rstrip()
    assert found["exception.stacktrace"] == told
    assert 'raise ValueError(f"bad {len(value)}")' in told
    assert "hunter2" not in str(found)
    assert (
        found["exception.fingerprint"]
        == exception_attributes(caught.value)["exception.fingerprint"]
    )


def test_exceptions_that_cause_each_other_end() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert exception_attributes(first)["exception.stacktrace"].count("ValueError") == 2


def test_deep_recursion_is_bounded() -> None:
    def sink(depth: int) -> None:
        sink(depth + 1)

    with pytest.raises(RecursionError) as caught:
        sink(0)
    assert exception_attributes(caught.value)["exception.stacktrace"].count("\n") <= 33


def fail(kind: type[Exception], text: str) -> Exception:
    """An exception that was raised."""
    hidden = "hunter" + str(2)
    with pytest.raises(kind) as caught:
        raise kind(text, len(hidden))
    return caught.value


def group(*members: Exception) -> ExceptionGroup[Exception]:
    with pytest.raises(ExceptionGroup) as caught:
        raise ExceptionGroup("several", members)
    return caught.value


def test_the_members_of_a_group_are_told_without_locals() -> None:
    inner = group(fail(KeyError, "deep"))
    found = exception_attributes(group(fail(ValueError, "one"), fail(ValueError, "two"), inner))
    text = found["exception.stacktrace"]
    assert found["exception.type"] == "ExceptionGroup"
    assert found["exception.group.size"] == 3
    assert found["exception.group.types"] == ["ExceptionGroup", "ValueError"]
    assert "  | ValueError: ('one', 7)" in text
    assert "      | KeyError: ('deep', 7)" in text
    assert text.count("in fail") == 3
    assert "hunter2" not in str(found)
    assert clean_attributes(found) == (found, 0)


def test_a_group_is_the_same_fault_whatever_its_members_order_and_number() -> None:
    def mark(*members: Exception) -> str:
        return str(exception_attributes(group(*members))["exception.fingerprint"])

    one, other = fail(ValueError, "a"), fail(KeyError, "b")
    assert mark(one, other) == mark(other, one, fail(ValueError, "c"))
    assert mark(one) != mark(other) != mark(one, other)


def test_groups_are_bounded() -> None:
    many = exception_attributes(group(*(fail(ValueError, str(n)) for n in range(1_000))))
    assert many["exception.group.size"] == 1_000
    assert many["exception.stacktrace"].count("raise kind(") == 16
    assert "and 984 more exceptions" in many["exception.stacktrace"]
    deep: Exception = fail(ValueError, "end")
    for _ in range(100):
        deep = group(deep)
    text = exception_attributes(deep)["exception.stacktrace"]
    assert text.count("ExceptionGroup: several") == 1
    assert "too large to be shown" in text


def test_notes_are_kept_and_a_long_report_is_cut_in_its_middle() -> None:
    error = fail(ValueError, "x" * 100_000)
    error.add_note("seen at the till")
    text = exception_attributes(error)["exception.stacktrace"]
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("seen at the till")
    assert len(text) <= 32 * 1024


def test_a_member_that_was_caused_by_its_group_ends() -> None:
    member = ValueError("a")
    whole = group(member)
    member.__cause__ = whole
    assert exception_attributes(whole)["exception.stacktrace"].count("ExceptionGroup") == 2


def test_what_a_resource_is_too_small_for_is_counted_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    large = {"service.name": "a", **{f"key.{number}": "x" * 100 for number in range(200)}}
    fitted, dropped = fit_and_count(large)
    assert 0 < dropped == 201 - (len(fitted) - 1) == fitted[DROPPED]
    assert fit_and_count(fitted) == (fitted, 0)
    again, more = fit_and_count({**fitted, **{f"more.{number}": 1 for number in range(200)}})
    assert again[DROPPED] == dropped + more > dropped
    assert DROPPED not in fit_and_count({"service.name": "a"})[0]
    emitter = Emitter(large)
    assert emitter.resource[DROPPED] == dropped
    assert f"{dropped} of its attributes are left out" in caplog.text
    emitter.close(0)


def test_text_is_cut_with_a_mark() -> None:
    assert clean_text("abcdef", 4) == "abc…"


class Unbound:
    """A proxy whose object is not there, as outside of a request."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name) if name == "_value_" else AttributeError(name)


class Broken(dict[str, Any]):
    """A mapping that another thread changes."""

    @override
    def items(self) -> Any:
        raise RuntimeError("changed size during iteration")


def test_a_value_that_cannot_be_looked_at_costs_only_itself() -> None:
    given = {"a": Unbound(), "b": 10**5000, "c": Broken(x=1), "d": 1}
    found, dropped = clean_attributes(given)
    assert (found["a"], found["b"], found["d"], dropped) == ("<Unbound>", "<int>", 1, 0)
    assert "c" in found


def test_a_record_of_nothing_but_wide_characters_is_small_enough() -> None:
    fields = {f"{number:03}" + "\x00" * 125: "\x00" * 1000 for number in range(128)}
    line = log_line("\x00" * 9000, 9, fields, scope=["not", "text"])
    resource = b'{"service.name":"app"}'
    assert isinstance(check_line(attach(line, resource)), Accepted)


weird = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.sampled_from([Mute(), Unbound(), Broken(x=1), Colour.RED, Level.HIGH]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=())) | st.integers(), inner)
    ),
    max_leaves=20,
)


@given(body=weird, scope=weird, fields=st.dictionaries(st.text(), weird), who=weird)
def test_whatever_is_logged_passes_the_gate(
    body: Any, scope: Any, fields: dict[str, Any], who: Any
) -> None:
    cycle: list[Any] = [fields]
    cycle.append(cycle)
    with bind(user_id=who, anything=body):
        line = log_line(body, 9, {**fields, "cycle": cycle}, scope=scope)
    verdict = check_line(attach(line, b'{"service.name":"app"}'))
    assert isinstance(verdict, Accepted), verdict


@given(
    st.dictionaries(
        st.sampled_from(["service.name", "service.version", "service.instance.id", "zone"])
        | st.text(),
        weird,
    )
)
def test_whatever_the_resource_is_its_records_pass_the_gate(resource: dict[str, Any]) -> None:
    fitted, _ = fit_and_count(resource)
    assert fit_and_count(fitted) == (fitted, 0)
    line = attach(log_line("x", 9, {}), encode_json(fitted))
    assert isinstance(check_line(line), Accepted), check_line(line)

"""Expressions: what they give, what is refused when they are read, and that they never fail."""

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.collector.transforms.expressions.expression import (
    ExpressionError,
    compile_condition,
    compile_expression,
)

RECORD: dict[str, Any] = {
    "schema": "log/1.0",
    "kind": "log",
    "severity_number": 9,
    "body": "GET /cart timeout",
    "attributes": {
        "http.response.status_code": 500, "url.path": "/cart", "n": "12", "ok": True, "user-id": 7,
        "tags": ["a", "b"], "big": 2**62,
    },
    "resource": {"service.name": "shop"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("severity_number >= 17", False),
        ("severity_number < 10 && kind == 'log'", True),
        ('attributes.http.response.status_code >= 500 || body == ""', True),
        ('attributes["user-id"] + 1', 8),
        ('body.contains("timeout") ? "slow" : "fine"', "slow"),
        ('resource.service.name in ["shop", "cart"]', True),
        ('"a" in attributes.tags', True),
        ("int(attributes.n) + 1", 13),
        ("attributes.n + 1", None),
        ("attributes.nope == null", True),
        ("attributes.nope > 3", False),
        ("!(attributes.nope > 3)", True),
        ("has(attributes.nope) || attributes.ok", True),
        ("attributes.ok == 1", False),
        ("1 / 0", None),
        ("attributes.big * 4", None),
        ("1 + 2 * 3 - 4 % 3", 6),
        ("(1 + 2) * -3", -9),
        ("7 / 2", 3.5),
        (r'extract(body, "GET (\\S+)")', "/cart"),
        ('timestamp("01.03.2024", "%d.%m.%Y", "UTC", 0)', 1_709_251_200_000_000_000),
        (
            'timestamp("Mar  1 12:00:00", "auto", "UTC", 1709294400 * 1000000000)',
            1_709_294_400_000_000_000,
        ),
        ('timestamp(1709294400, "auto", "UTC", 0)', 1_709_294_400_000_000_000),
        ('timestamp("soon", "auto", "UTC", 0)', None),
        (r'body.matches("^(a+)+$")', False),
        ('lower("ABC") + upper("d") + trim(" e ")', "abcDe"),
        ('replace("a-b-c", "-", ".").size()', 5),
        ("substring(body, 0, 3)", "GET"),
        ("coalesce(attributes.nope, attributes.n, 'x')", "12"),
        ("double('1e3')", 1000.0),
        ("string(12) + string(true)", "12true"),
        ("size(attributes.tags)", 2),
        ("// a note\n 'x\\n'", "x\n"),
        ("trace_id", None),
    ],
)
def test_expressions_give(text: str, value: Any) -> None:
    found = compile_expression(text).evaluate(RECORD)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("severty_number > 3", 1, "did you mean severity_number"),
        ('severity_number + "x" > 3', 17, "cannot be applied to a number"),
        ("body > 3", 6, "never >"),
        ("body.foo()", 6, "no function 'foo'"),
        ("1 +", 4, "a value is expected"),
        ("severity_number", 1, "a condition is true or false"),
        ('matches(body, "(")', 15, "no pattern of RE2"),
        ("matches(body, body)", 15, "constant pattern"),
        ("body.contains(3)", 15, "contains takes a string"),
        ("size()", 1, "takes 1 arguments"),
        ("body.x == 1", 1, "nothing inside"),
        ("1 < 2 < 3", 7, "cannot be chained"),
        ("severity_number == 'x'", 17, "never =="),
        ('"abc', 1, "not understood"),
        (r'"\q" == body', 2, "escape"),
        ("(" * 40 + "1" + ")" * 40, 33, "inside each other"),
        (" && ".join(["true"] * 40), 262, "in a row"),
        ("99999999999999999999 > 1", 1, "int64"),
        ("severity_number > 3 4", 21, "one too many"),
        ("1 in 2", 3, "in cannot be applied"),
        ("true && 1", 6, "&& cannot be applied"),
        ("x" * 9000, 8193, "longer than"),
        ("__import__('os')", 1, "no function"),
        ("body.__class__ == 1", 1, "nothing inside"),
    ],
)
def test_mistakes_are_found_when_the_configuration_is_read(
    text: str, position: int, words: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_condition(text)
    assert words in str(caught.value)
    assert f"at character {position}:" in str(caught.value)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.lists(st.integers() | st.text(max_size=3), max_size=3)
)  # fmt: skip
LEAVES = st.sampled_from(
    ["severity_number", "body", "attributes.a", "attributes.b", "value", "1", "0", "-2.5", '"x"',
     "true", "null", "[1, body]", "9223372036854775807", "context", "1e300"]
)  # fmt: skip


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    marks = st.sampled_from(["+", "-", "*", "/", "%", "==", "!=", "<", ">=", "&&", "||", "in"])
    names = st.sampled_from(["int", "double", "string", "size", "lower", "trim", "has"])
    return (
        st.tuples(inner, marks, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
        | st.tuples(names, inner).map(lambda t: f"{t[0]}({t[1]})")
        | st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} ? {t[1]} : {t[2]})")
        | st.tuples(inner, inner).map(lambda t: f"replace(string({t[0]}), 'x', string({t[1]}))")
    )


TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,), "int": (int,), "number": (int, float), "string": (str,), "list": (list,),
    "map": (dict,), "null": (),
}  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.recursive(LEAVES, _grown, max_leaves=8), SCALARS, SCALARS, st.integers(1, 24))
def test_what_is_accepted_never_fails_and_keeps_its_type(
    text: str, one: Any, other: Any, severity: int
) -> None:
    try:
        expression = compile_expression(text)
    except ExpressionError:
        return
    fields = {"severity_number": severity, "body": "x", "attributes": {"a": one, "b": other}}
    for record in (fields, {}):
        found = expression.evaluate(record)
        if found is not None and expression.type != "dyn":
            assert isinstance(found, TYPES[expression.type])


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text('()[]"&|=<>!.+- abody1', max_size=60))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        compile_expression(text)


def test_patterns_take_linear_time() -> None:
    expression = compile_condition('body.matches("^(a+)+$")')
    began = time.process_time()
    assert expression.evaluate({"body": "a" * 30_000 + "!"}) is False
    assert time.process_time() - began < 5  # Python's own engine would need longer than the sun

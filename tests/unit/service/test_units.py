"""Sizes and durations with units, in the sections that have such keys."""

from typing import Any

import pytest
from pydantic import Field, ValidationError

from penstock.service import Quantities


class Part(Quantities):
    bytes_max: int = 0
    request_bytes: int = 0
    records_per_s: float = 0
    timeout_s: float = 0
    poll_ms: int = Field(default=10, ge=10)
    name: str = ""


class Whole(Quantities):
    part: Part


@pytest.mark.parametrize(
    ("key", "text", "number"),
    [
        ("bytes_max", "1GiB", 1024**3),
        ("bytes_max", "1.5 MiB", 3 * 512 * 1024),
        ("request_bytes", "64kB", 64_000),
        ("request_bytes", "512", 512),
        ("timeout_s", "10s", 10),
        ("timeout_s", "250ms", 0.25),
        ("timeout_s", "2h", 7200),
        ("poll_ms", "1s", 1000),
        ("poll_ms", "100 ms", 100),
        ("name", "10s", "10s"),
    ],
)
def test_a_quantity_may_have_a_unit(key: str, text: str, number: Any) -> None:
    assert getattr(Whole.model_validate({"part": {key: text}}).part, key) == number


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("bytes_max", "10s", "'10s' has no unit that is known: use one of B, KiB"),
        ("timeout_s", "5 parsecs", "use one of ms, s, m, min, h, d"),
        ("bytes_max", "0.5B", "integer"),
        ("bytes_max", "much", "integer"),
        ("records_per_s", "10s", "number"),
        ("poll_ms", "1ms", "greater than or equal to 10"),
    ],
)
def test_another_unit_is_refused(key: str, text: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Whole.model_validate({"part": {key: text}})


class Limits(Quantities):
    part: Part = Part(bytes_max=5, timeout_s=6)
    other: Part = Part()


class Nested(Quantities):
    limits: Limits = Limits(part=Part(bytes_max=7, poll_ms=80), other=Part(name="b"))
    from_: Part = Field(default=Part(name="c"), alias="from")


class Outermost(Quantities):
    nested: Nested = Nested.model_validate({"from": {"name": "d"}})


def test_a_section_that_is_given_in_part_keeps_the_defaults_of_the_one_that_it_stands_in() -> None:
    given = Limits.model_validate({"part": {"timeout_s": "1s"}, "other": {"name": "a"}})
    assert given == Limits(part=Part(bytes_max=5, timeout_s=1), other=Part(name="a"))
    assert given.part.poll_ms == 10


def test_sections_that_are_nested_keep_the_defaults_of_the_outermost() -> None:
    given = Nested.model_validate({"limits": {"part": {"poll_ms": 90}}})
    assert given.limits.part == Part(bytes_max=7, poll_ms=90)
    assert given.limits.other == Part(name="b")
    assert Nested.model_validate({"limits": {}}) == Nested()
    assert Outermost.model_validate({"nested": {"limits": {}}}) == Outermost()


def test_a_section_that_is_no_mapping_is_still_refused() -> None:
    with pytest.raises(ValidationError, match="valid dictionary"):
        Limits.model_validate({"part": None})

"""Subjects: no service name may add levels, wildcards or protocol lines."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.specs.subjects import kind_of, subject_of, subject_token


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("checkout", "checkout"),
        ("a.b", "a_b"),
        ("a b\r\n", "a_b__"),
        ("*", "_"),
        (">", "_"),
        ("über", "_ber"),
        ("", "unknown"),
        ("x" * 100, "x" * 64),
    ],
)
def test_service_becomes_one_safe_token(service: str, expected: str) -> None:
    assert subject_token(service) == expected


@given(st.text(max_size=200))
def test_any_service_makes_a_subject_of_three_tokens(service: str) -> None:
    assert re.fullmatch(r"telemetry\.traces\.[A-Za-z0-9_-]{1,64}", subject_of("span", service))


def test_prefix_may_have_levels_and_kind_is_found_again() -> None:
    assert subject_of("audit", "a", "acme.telemetry") == "acme.telemetry.audit.a"
    assert kind_of("acme.telemetry.audit.a") == "audit"
    assert kind_of("telemetry.logs.logs") == "log"
    assert kind_of("telemetry.else.x") is None


def test_unknown_kind_has_no_subject() -> None:
    with pytest.raises(KeyError):
        subject_of("trace", "a")

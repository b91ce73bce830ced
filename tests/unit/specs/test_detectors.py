"""What is found in texts, however they are made, in time that grows with their length alone."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.specs.detectors import (
    _KEY,
    _OTHERS,
    _WEB_TOKEN,
    _found,
    _is_card,
    redact_text,
)

HOSTILE_UNITS = [
    "eyJ-", "eyJ", "a.", "@a-", "://a:", "bearer ", "-----BEGIN ", "4 4-", f"{'eyJ-' * 300}.aaaa",
    "eyJ-4111111111111111-", "eyJaaaaaaaa ", "eyJaaaaaaaa.aaaaaaaa ", "-eyJaaaaaaaa.",
    "eyJaaaaaaaa.aaaaaaaa.-----BEGIN PRIVATE KEY-----", "eyJ-AKIAABCDEFGHIJKLMNOP-",
    f"eyJ{'a' * 20}.", "eyJaaaaaaaa..", "eyJaaaaaaaa..aaaaaaaa", "eyJaaaaaaaa..aaaaaaaa.a ",
    "aeyJ", "keyJ", "_eyJaaaaaaaa.", "eyJaaaaaaaa.aaaaaaaa.eyJaaaaaaaa..eyJaaaaaaaa...",
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE_UNITS)
def test_no_text_takes_time_that_grows_with_its_square(unit: str) -> None:
    """What does so ends at no time: at this length it would take hours."""
    text = (unit * (1 + (1 << 21) // len(unit)))[: 1 << 21] + "@"
    judged = redact_text(text)
    assert len(judged) <= len(text)


def test_a_payload_without_an_end_is_looked_at_once() -> None:
    text = f"{'eyJ-' * (1 << 18)}.{'a' * (1 << 20)}"
    assert redact_text(text) is text


@pytest.mark.parametrize("length", [8, 1000, 1500, 100_000])
def test_a_token_behind_a_hyphen_is_found(length: int) -> None:
    token = f"eyJ{'h' * length}.{'p' * 3000}.{'s' * 40}"
    assert redact_text(f"session-{token} x") == "session-[redacted:secret] x"
    assert redact_text(f"session={token} x") == "session=[redacted:secret] x"
    assert redact_text(f"eyJhhhhhhhhh eyJ-{token} x") == "eyJhhhhhhhhh [redacted:secret] x"
    key = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----"
    assert redact_text(key + token) == "[redacted:secret]" * 2


SIGNED = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
DIRECT = "eyJhbGciOiJkaXIifQ..48V1_ALb6US04U3b.5eym8TW_c8SuK0ltJ3rpYIzOeDQz7TA.XFBoMYUZodetZdvT"
WRAPPED = "eyJhbGciOiJSU0Et.OKOawDo13gRp2ojaHV7L.48V1_ALb6US04U3b.5eym8TW_c8SuK0.XFBoMYUZodetZdvT"


@pytest.mark.parametrize("token", [SIGNED, DIRECT, WRAPPED])
@pytest.mark.parametrize(
    "before", ["", "id_token%3D", "session_", r"a\n", r"\u003d", "%20", "token", "a-", "1"]
)
def test_no_part_of_a_token_stays(token: str, before: str) -> None:
    assert redact_text(f"{before}{token} x") == f"{before}[redacted:secret] x"
    assert redact_text(f"{before}{token}; x") == f"{before}[redacted:secret]; x"


@pytest.mark.parametrize("first", [SIGNED, DIRECT, WRAPPED])
@pytest.mark.parametrize("second", [SIGNED, DIRECT, WRAPPED])
@pytest.mark.parametrize("between", ["-", "_", "", "."])
def test_no_part_of_tokens_that_are_joined_stays(first: str, second: str, between: str) -> None:
    assert redact_text(f"a {first}{between}{second} x") == "a [redacted:secret] x"


@pytest.mark.parametrize(
    "text",
    [
        "org.hibernate.PrimaryKeyJoinColumn.referencedColumnName.value eyJ",
        "keyJsonSerializer.configuration.enabled",
        "eyJhbGciOiJIUzI1NiJ9 eyJhbGci... eyJhbGciOiJkaXIifQ..short. eyJhbGciOiJkaXIifQ...",
        "https://eyJhhhhhhhh.example.com/abcdefgh.abcdefgh",
    ],
)
def test_what_looks_little_like_a_token_stays(text: str) -> None:
    assert redact_text(text) is text


WORDS = st.lists(
    st.sampled_from(
        [
            "eyJ", "-", "abcdefgh", ".", " ", "@", "é", "4111111111111111", "4111111111111112", ":",
            "://", "AKIAABCDEFGHIJKLMNOP", "xoxb-", "bearer ", "-----BEGIN PRIVATE KEY-----",
            "-----END PRIVATE KEY-----", "_", "a.bc", "eyJabcdefgh", "eyJabcdefgh.abcdefgh.",
            "..", "k", "%3D",
        ]
    ),
    max_size=24,
).map("".join)  # fmt: skip


@settings(max_examples=1_000)
@given(WORDS)
def test_what_is_found_is_what_one_plain_pattern_finds(text: str) -> None:
    """Which looks for a token at each of its beginnings, however long that takes."""
    plain = re.compile(f"{_KEY}|{_WEB_TOKEN}|{_OTHERS}", re.DOTALL)
    found = [(match.lastgroup, *match.span()) for match in plain.finditer(text)]
    expected = [each for each in found if each[0] != "card" or _is_card(text[each[1] : each[2]])]
    assert list(_found(text)) == expected

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
    "%3DAKIA", "%25", "%20%2", "%204 ", "%20bearer%20", "ghp_", "%3Dghp_a", "xoxb-%3D",
    r"\nsk_live_",
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


KEYS = [
    "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", f"ghp_{'a1B2' * 9}", f"ghs_{'a1B2' * 9}",
    "xoxb-123456789012-abcdef", "sk_live_4eC39HqLyjWDarjtT1zdp7dc", "4111111111111111",
]  # fmt: skip
CODED = ["%3D", "%3d", "%3A", "%20", "%22", "%0A", "%A0", "%253D", "%253A", "%2520", "%2522"]
OTHERWISE_CODED = [r"\u003d", r"\u0022", r"\n", r"\t", r"\r", "\x1b[1m", "\x1b[32m"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("front", [" ", "=", '"', "/", "é ", *CODED])
@pytest.mark.parametrize("behind", ["", " x", "&x=1", "%26x%3D1"])
def test_a_key_is_found_behind_a_code_in_a_url(key: str, front: str, behind: str) -> None:
    before = f"GET /callback?next{front}"
    assert redact_text(f"{before}{key}{behind}").startswith(f"{before}[redacted:")
    assert redact_text(f"{before}{key}{behind}").endswith(f"]{behind}")


@pytest.mark.parametrize("key", [key for key in KEYS if not key.isdecimal()])
@pytest.mark.parametrize("front", OTHERWISE_CODED)
def test_a_key_is_found_behind_a_code_in_a_text(key: str, front: str) -> None:
    assert redact_text(f"a{front}{key} x") == f"a{front}[redacted:secret] x"


@pytest.mark.parametrize("front", ["", "Authorization: ", "Authorization%3A%20", "auth%3D"])
@pytest.mark.parametrize("word", ["Bearer ", "bearer ", "Bearer%20", "BEARER%20"])
def test_what_a_bearer_shows_is_found_in_a_url_too(front: str, word: str) -> None:
    assert redact_text(f"{front}{word}mF_9.B5f-4.1JqM0a") == f"{front}[redacted:secret]"


@pytest.mark.parametrize(
    "text",
    [
        "MAKIAIOSFODNN7EXAMPLE", "FANTASIAIOSFODNN7EXAMPL", "AKIAIOSFODNN7EXAMPLE0",
        "AKIAIOSFODNN7EXAMPL", "region ASIASOUTHEAST", "EURASIA1234567890123456",
        "x%3DxAKIAIOSFODNN7EXAMPLE", "%GDAKIAIOSFODNN7EXAMPLE",
        f"highs_{'0123456789' * 4}", f"throughp_{'a' * 40}", f"ghp_{'a' * 35}",
        f"%3Dghx_{'a' * 40}",
        "disk_live_0123456789abcdef", "task_test_0123456789abcdef", "%3Dsk_live_short",
        "%3Dsk_prod_0123456789abcdef", "foxoxb-123456789012", "%3Dxoxz-123456789012", "xoxb-short",
        "forbearer 0123456789abcdef", "the bearer of bad news", "Bearer%20short", "bearer%21" * 4,
        "%204111111111111112", "%3D4111111111111112", "id%2041111111111111111111111",
        "0.4111111111111111", "%253D12345678901234567890123", "100%2 4242",
    ],
)  # fmt: skip
def test_what_is_no_key_stays(text: str) -> None:
    assert redact_text(text) is text


WORDS = st.lists(
    st.sampled_from(
        [
            "eyJ", "-", "abcdefgh", ".", " ", "@", "é", "4111111111111111", "4111111111111112", ":",
            "://", "AKIAABCDEFGHIJKLMNOP", "xoxb-", "bearer ", "-----BEGIN PRIVATE KEY-----",
            "-----END PRIVATE KEY-----", "_", "a.bc", "eyJabcdefgh", "eyJabcdefgh.abcdefgh.",
            "..", "k", "%3D", "%20", "%25", "4", r"\n", "sk_live_abcdefgh",
        ]
    ),
    max_size=24,
).map("".join)  # fmt: skip


@settings(max_examples=1_000)
@given(WORDS)
def test_what_is_found_is_what_one_plain_pattern_finds(text: str) -> None:
    """Which looks for a token at each of its beginnings, however long that takes."""
    plain = re.compile(f"{_KEY}|{_WEB_TOKEN}|{_OTHERS}", re.DOTALL)
    found = [(match.lastgroup, *match.span(match.lastgroup or 0)) for match in plain.finditer(text)]
    expected = [each for each in found if each[0] != "card" or _is_card(text[each[1] : each[2]])]
    assert list(_found(text)) == expected

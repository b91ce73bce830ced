"""What is found in texts, however they are made, in time that grows with their length alone."""

import random
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.specs import detectors
from penstock.specs.detectors import (
    _EMAIL,
    _GROUPED,
    _KEY,
    _OTHERS,
    _WEB_TOKEN,
    _WHOLE,
    _found,
    _is_card,
    redact_text,
)

HOSTILE_UNITS = [
    "eyJ-", "eyJ", "a.", "@a-", "://a:", "bearer ", "-----BEGIN ", "4 4-", f"{'eyJ-' * 300}.aaaa",
    "eyJ-4111111111111111-", "eyJaaaaaaaa ", "eyJaaaaaaaa.aaaaaaaa ", "-eyJaaaaaaaa.",
    "eyJaaaaaaaa.aaaaaaaa.-----BEGIN PRIVATE KEY-----", "eyJ-AKIAABCDEFGHIJKLMNOP-",
    f"eyJ{'a' * 20}.", "eyJaaaaaaaa..", "eyJaaaaaaaa..aaaaaaaa", "eyJaaaaaaaa..aaaaaaaa.a ",
    "4 ", "45 4111111111111112 ",
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


VISA = "4111111111111111"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"2026-01-01 12:00:45 {VISA} charged", "2026-01-01 12:00:45 [redacted:pci] charged"),
        (f"qty 3 {VISA}", "qty 3 [redacted:pci]"),
        ("5 5500000000000004", "5 [redacted:pci]"),
        (f"{VISA} 123", "[redacted:pci] 123"),
        (f"{VISA}-123", "[redacted:pci]-123"),
        ("4111 1111 1111 1111 12/27", "[redacted:pci] 12/27"),
        ("3-4111-1111-1111-1111 12/27", "3-[redacted:pci] 12/27"),
        ("20 3782 822463 10005 6", "20 [redacted:pci] 6"),
        ("2 3 4 5 6 6011000990139424 5 4 3 2", "2 3 4 5 6 [redacted:pci] 5 4 3 2"),
        (f"{VISA} 5500000000000004 2223003122003222", " ".join(["[redacted:pci]"] * 3)),
        (f"5 {VISA}, 5 5500000000000004", "5 [redacted:pci], 5 [redacted:pci]"),
        ("3530 4111 1111 1111 1111 30", "3530 [redacted:pci] 30"),
        ("eyJ-eyJaaaaaaaa-5-4111111111111111-a", "eyJ-eyJaaaaaaaa-5-[redacted:pci]-a"),
        (f"q=%20{VISA} 123&card=%3D{VISA}-12", "q=%20[redacted:pci] 123&card=%3D[redacted:pci]-12"),
        ("45 4111111111111112@mail.example", "45 [redacted:pii]"),
    ],
)
def test_a_card_is_found_among_other_numbers(text: str, expected: str) -> None:
    assert redact_text(text) == expected


def test_of_numbers_that_overlap_no_part_stays() -> None:
    """Eight digits and the first ones of the card happen to have a check digit, too."""
    assert _is_card("4000000441111111")
    assert redact_text("7 40000004 4111 1111 1111 1111 7") == "7 [redacted:pci] 7"


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


@pytest.mark.parametrize("front", ["%", "%20", "%2520", "%A0", "%A", "%25"])
def test_a_card_behind_a_percent_sign_is_found_though_it_may_begin_like_a_code(front: str) -> None:
    dice = random.Random(8)
    for _ in range(500):
        beginning = dice.choice(["4", "51", "52", "55"])
        digits = beginning + "".join(dice.choices("0123456789", k=15 - len(beginning)))
        card = next(digits + last for last in "0123456789" if _is_card(digits + last))
        found = redact_text(f"WHERE pan LIKE '{front}{card}%'")
        assert "[redacted:pci]" in found
        assert not re.search("[0-9]{5}", found), card


@pytest.mark.parametrize(
    "text",
    [
        "45 4111111111111112",
        "20260101 120045 2026 010112 004500",
        "5 2026010112004508 5 2025010112004509",
        "22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49",
        "411 111 111 111 111 1 12",
        "45 4.111111111111111 45 .4111111111111111",
    ],
)
def test_numbers_that_look_little_like_a_card_stay(text: str) -> None:
    assert redact_text(text) is text


@pytest.mark.parametrize("unit", ["4", "4 ", "4-", "4444 ", "44444 ", "2 4000000000000 "])
def test_digits_are_looked_at_as_often_as_there_are_some(
    monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    looked: Counter[str] = Counter()

    class Counted:
        def search(self, text: str, start: int, end: int) -> re.Match[str] | None:
            looked["characters"] += max(0, min(end, len(text)) - start)
            return _GROUPED.search(text, start, end)

    def counted(text: str) -> bool:
        looked["digits"] += len(text)
        return False  # the worst: all are looked at

    monkeypatch.setattr(detectors, "_GROUPED", Counted())
    monkeypatch.setattr(detectors, "_is_card", counted)
    counts = []
    for length in (1 << 10, 1 << 12, 1 << 16):
        looked.clear()
        redact_text(unit * (length // len(unit)))
        counts.append(looked.total() / length)
    assert max(counts) <= 64
    assert counts[2] <= counts[1] + 1 <= counts[0] + 2


WORDS = st.lists(
    st.sampled_from(
        [
            "eyJ", "-", "abcdefgh", ".", " ", "@", "é", "4111111111111111", "4111111111111112", ":",
            "://", "AKIAABCDEFGHIJKLMNOP", "xoxb-", "bearer ", "-----BEGIN PRIVATE KEY-----",
            "-----END PRIVATE KEY-----", "_", "a.bc", "eyJabcdefgh", "eyJabcdefgh.abcdefgh.",
            "..", "k", "%3D", "%20", "%25", "4", r"\n", "sk_live_abcdefgh",
            "45", "3", "5500 0000 0000 0004", "4111-1111", "40000004", "2024",
        ]
    ),
    max_size=24,
).map("".join)  # fmt: skip


def cards(text: str) -> list[tuple[int, int]]:
    """Every part of a text that is a card's number among other numbers."""
    shape = re.compile(r"([456]|3[04-9]|2[2-7])\d*([ -]\d{4,})*([ -]\d+)?", re.ASCII)
    inner = re.compile(r"\d{4,}", re.ASCII)
    found = []
    for start in range(len(text)):
        if text[start] not in "23456":
            continue
        for end in range(start + 13, min(len(text), start + 37) + 1):
            part = text[start:end]
            bounds = text[max(0, start - 1) : start] + text[end : end + 1]
            whole = not re.search("[0-9]", bounds) and text[max(0, start - 1) : start] != "."
            if whole and shape.fullmatch(part) and inner.match(part) and _is_card(part):
                found.append((start, end))
    return found


def plainly_found(text: str) -> Iterator[tuple[str, int, int]]:
    """Looks for a token at each of its beginnings, and for a card in each part of the text."""
    plain = re.compile(f"{_KEY}|{_WEB_TOKEN}|{_OTHERS}", re.DOTALL)
    position = 0
    while match := plain.search(text, position):
        assert match.lastgroup
        name, (start, position) = match.lastgroup, match.span(match.lastgroup)
        if name == "card":
            address = re.compile(_EMAIL).match(text, max(start, text.rfind(" ", 0, position) + 1))
            inside, among = list[tuple[int, int]](), list[tuple[int, int]]()
            for at in sorted({match.start(), max(match.start(), start - 2), start}):
                if not inside and (whole := _WHOLE.match(text, at)):
                    coded = {(at, at + end) for begin, end in cards(text[at:]) if begin == 0}
                    among = sorted({*cards(text), *coded})
                    inside = [each for each in among if at <= each[0] < whole.end()]
                    inside = [whole.span()] * _is_card(whole[0]) + inside
            if inside:
                start, position = inside[0]
                for begin, end in among:
                    if start <= begin < position:
                        position = max(position, end)
            elif address:
                name, start, position = "email", *address.span()
            else:
                continue
        yield name, start, position


@settings(max_examples=1_000)
@given(WORDS)
def test_what_is_found_is_what_is_found_plainly(text: str) -> None:
    assert list(_found(text)) == list(plainly_found(text))


@settings(max_examples=1_000)
@given(st.text(st.sampled_from("0123456789" * 4 + "44444 - .a"), max_size=80))
def test_no_part_of_a_card_stays_among_numbers(text: str) -> None:
    found = list(_found(text))
    for start, end in cards(text):
        assert any(begin <= start and end <= stop for _, begin, stop in found)

"""What is found in texts, however they are made, in time that grows with their length alone."""

import json
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from urllib.parse import parse_qs, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.specs import SpecError
from penstock.specs.redact.detectors import (
    ALL,
    DETECTORS,
    Detectors,
    is_name_of_id,
    redact_text,
    sensitivity_of_name,
)
from penstock.specs.redact.top_level_domains import TOP_LEVEL_LABELS

HOSTILE_UNITS = [
    "eyJ-", "eyJ", "a.", "@a-", "://a:", "bearer ", "-----BEGIN ", "4 4-", f"{'eyJ-' * 300}.aaaa",
    "eyJ-4111111111111111-", "eyJaaaaaaaa ", "eyJaaaaaaaa.aaaaaaaa ", "-eyJaaaaaaaa.",
    "eyJaaaaaaaa.aaaaaaaa.-----BEGIN PRIVATE KEY-----", "eyJ-AKIAABCDEFGHIJKLMNOP-",
    f"eyJ{'a' * 20}.", "eyJaaaaaaaa..", "eyJaaaaaaaa..aaaaaaaa", "eyJaaaaaaaa..aaaaaaaa.a ",
    "4 ", "45 4111111111111112 ",
    "aeyJ", "keyJ", "_eyJaaaaaaaa.", "eyJaaaaaaaa.aaaaaaaa.eyJaaaaaaaa..eyJaaaaaaaa...",
    "%3DAKIA", "%25", "%20%2", "%204 ", "%20bearer%20", "ghp_", "%3Dghp_a", "xoxb-%3D",
    r"\nsk_live_", "password=", "password\\", 'password="', "'password':'null", "pwd='/",
    '\\"password\\":\\"', "token: \\", "a@b.", "@b.cc", "%40", "4111 1111 1111 1112 ", "4111 ",
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE_UNITS)
def test_no_text_takes_time_that_grows_with_its_square(unit: str) -> None:
    """What does so ends at no time: at this length it would take hours."""
    text = (unit * (1 + (1 << 17) // len(unit)))[: 1 << 17] + "@"
    for plainly in (False, True):
        assert all(one.start < one.end for one in ALL.find(text.encode(), plainly=plainly))


def test_a_payload_without_an_end_is_looked_at_once() -> None:
    text = f"{'eyJ-' * (1 << 17)}.{'a' * (1 << 20)}"
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
        (f"{VISA}-1227 x", "[redacted:pci]-1227 x"),
        ("20 3782 822463 10005 6", "20 [redacted:pci] 6"),
        ("2 3 4 5 6 6011000990139424 5 4 3 2", "2 3 4 5 6 [redacted:pci] 5 4 3 2"),
        (f"{VISA} 5500000000000004 371449635398431", " ".join(["[redacted:pci]"] * 3)),
        (f"5 {VISA}, 5 5500000000000004", "5 [redacted:pci], 5 [redacted:pci]"),
        ("3530 4111 1111 1111 1111 30", "3530 [redacted:pci] 30"),
        (f"q=%20{VISA} 123&card=%3D{VISA}-12", "q=%20[redacted:pci] 123&card=%3D[redacted:pci]-12"),
        ("45 4111111111111112@mail.example", "45 [redacted:pii]"),
    ],
)
def test_a_card_is_found_among_other_numbers(text: str, expected: str) -> None:
    assert redact_text(text) == expected


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


@pytest.mark.parametrize("front", ["%", "%20", "%2520", "%A0"])
def test_a_card_behind_a_percent_sign_is_found_though_it_may_begin_like_a_code(front: str) -> None:
    dice = random.Random(8)
    for _ in range(500):
        beginning = dice.choice(["4", "51", "52", "55"])
        digits = beginning + "".join(dice.choices("0123456789", k=15 - len(beginning)))
        card = next(digits + last for last in "0123456789" if has_check_digit(digits + last))
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


# What is found, and what is not, as docs/specs/sensitive-data.md says.

FOUND = [
    # Cards: issuer, length and check digit, as one number or in the issuer's groups.
    ("pan 4222222222222220 x", "pan [redacted:pci] x"),
    ("pan 5105105105105100", "pan [redacted:pci]"),
    ("pan 2223003122003222", "pan [redacted:pci]"),
    ("Mastercard: 2223003122003222", "Mastercard: [redacted:pci]"),
    ("paid with 2223003122003222", "paid with [redacted:pci]"),
    ("2223 0031 2200 3222", "[redacted:pci]"),
    ("pan 6011000990139424", "pan [redacted:pci]"),
    ("pan 3530111333300000", "pan [redacted:pci]"),
    ("pan 6240008631401148", "pan [redacted:pci]"),
    ("pan 371449635398431", "pan [redacted:pci]"),
    ("pan 3714-496353-98431", "pan [redacted:pci]"),
    ("pan 30569309025904", "pan [redacted:pci]"),
    ("pan 3056 930902 5904", "pan [redacted:pci]"),
    ("4111-1111-1111-1111", "[redacted:pci]"),
    ("4111 1111 1111 1111 123", "[redacted:pci] 123"),
    ("4000 0000 0000 0000 006", "[redacted:pci]"),
    ("4111\u00a01111\u00a01111\u00a01111", "[redacted:pci]"),
    ("4111\u20091111\u20091111\u20091111", "[redacted:pci]"),
    ("4111\u20101111\u20111111\u20101111", "[redacted:pci]"),
    ("card=4111+1111+1111+1111&x", "card=[redacted:pci]&x"),
    ("card=4111%201111%201111%201111&x", "card=[redacted:pci]&x"),
    ("paid with 4111111111111111.", "paid with [redacted:pci]."),
    ("number:4111111111111111,x", "number:[redacted:pci],x"),
    ("%2530569309025904 t", "%25[redacted:pci] t"),
    ("x@4111111111111111.net", "x@[redacted:pci].net"),
    ("%404111111111111111.com", "%40[redacted:pci].com"),
    ("card_id=4111111111111111", "card_id=[redacted:pci]"),
    ("order_id=4111-1111-1111-1111", "order_id=[redacted:pci]"),
    ("paid 4111111111111111", "paid [redacted:pci]"),
    # Addresses.
    ("mail ann.lee+x@mail.example.com now", "mail [redacted:pii] now"),
    ("to=ann%40example.com&x", "to=[redacted:pii]&x"),
    ("<ann@example.co.uk>, bob@example.museum.", "<[redacted:pii]>, [redacted:pii]."),
    ("mailto:ann@example.org:25", "mailto:[redacted:pii]:25"),
    # Passwords in URLs.
    ("postgres://app:s3cret@db/x", "postgres://[redacted:secret]@db/x"),
    ("redis://:s3cret@cache:6379", "redis://[redacted:secret]@cache:6379"),
    # Values that a name in the text speaks of.
    ("a=1&password=hunter2&b=2", "a=1&password=[redacted:secret]&b=2"),
    ("?access_token=abc", "?access_token=[redacted:secret]"),
    ("next=%2Fx%3Fpassword%3Dhunter2%26b%3D1", "next=%2Fx%3Fpassword%3D[redacted:secret]%26b%3D1"),
    ("user=x%26password=abc", "user=x%26password=[redacted:secret]"),
    ('x {"password": "a \\"b\\" c", "n": 1}', 'x {"password": "[redacted:secret]", "n": 1}'),
    ("{'password': 'it\\'s', 'n': 1}", "{'password': '[redacted:secret]', 'n': 1}"),
    ("{'password': \"it's\", 'n': 1}", "{'password': \"[redacted:secret]\", 'n': 1}"),
    ('{"a":"{\\"password\\":\\"x \\\\\\"y\\"}"}',
     '{"a":"{\\"password\\":\\"[redacted:secret]\\"}"}'),
    ('items=[{"password": "x"}]', 'items=[{"password": "[redacted:secret]"}]'),
    ('{"a":{"b":{"c":{"d":{"e":{"apiKey":"x"}}}}}}',
     '{"a":{"b":{"c":{"d":{"e":{"apiKey":"[redacted:secret]"}}}}}}'),
    ('{"cvv":123}', '{"cvv":"[redacted:pci]"}'),
    ('{"cvv":  \n "123"}', '{"cvv":  \n "[redacted:pci]"}'),
    ('client_secret: "x"', 'client_secret: "[redacted:secret]"'),
    ("client_secret = x", "client_secret = [redacted:secret]"),
    (':password=>"x"', ':password=>"[redacted:secret]"'),
    ("Authorization=Basic YTpi x", "Authorization=[redacted:secret] x"),
    ('password="never closed', 'password="[redacted:secret]'),
    ("pässwörd password=ü&x", "pässwörd password=[redacted:secret]&x"),
]  # fmt: skip
LEFT = [
    # No card is a part of a word, of an id or of a longer number.
    "blk_-6952295868487656571", "blk_4111111111111111", "x4111111111111111", "4111111111111111x",
    "-4111111111111111", "order-4111111111111111", "3-4111-1111-1111-1111 12/27",
    "4111111111111111-a", "4111111111111111_1", "1.4111111111111111", "4111111111111111.5",
    "0b6c1f0e-4111-1111-1111-1111deadbeef", "req-0b6c1f0e-8f2b-4c57-9d3a-6a1d8f1f2c11 4111deadbeef",
    # No card: another length, issuer or check digit, other groups.
    "4000000000000000006", "4222222222222", "1111222233334444", "5611111111111113",
    "4111111111111112", "20261126172053", "2026112617205312", "1764177653123456789",
    "41111111 1111 1111", "411111 1111 111111",
    "got 2223003122003222",
    # No card: a name before it says that it is an id.
    "order_id=4111111111111111", "order 4111111111111111 placed", '{"spanId": "4111111111111111"}',
    "offset: 4111111111111111", "id#4111111111111111",
    # No address: no such top-level label, a version, a path, the user of a URL.
    "Leader@345]", "Server@0.0.0.0:62267", "lodash@4.17.21", "react@18.2.0-rc.com.1",
    "git@github.com:a/b", "git clone git@github.com:owner/name.git", "github.com/a/b@v1.2.com",
    "akka.tcp://sys@10.0.0.1:2552", "akka.tcp://sys@host.example.com:2552", "user@1000.service",
    "com.shop.Cart@7f31245a.close()", "icon@2x.mov", "x@y.zz", "aes128-gcm@openssh.com",
    "curve25519-sha256@libssh.org", "x@example.com/resource", "user@localhost",
    # No secret: other names, prose, nothing behind them.
    "page_token=abc", "nextToken=abc", '"prompt_token": 12', "next_page_token='x'",
    '"method.full_name": "a.B.c"', "repository.full_name=a/b", "camera.pan=12", "tokens=3",
    "invalid token: expected a number", "Failed password for root from 1.2.3.4", "passwords=3",
    "PWD=/root ; USER=root", "password=", "password= next=1", '"password": null', "if token == x:",
    '"password": ""', "password=[redacted:secret]", "keyword=abc", "secretary=abc",
    f"password=hk1:{'0a' * 16}",
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FOUND)
def test_each_documented_positive_is_found(text: str, expected: str) -> None:
    assert redact_text(text) == expected
    assert redact_text(expected) is expected


@pytest.mark.parametrize("text", LEFT)
def test_each_documented_negative_stays(text: str) -> None:
    assert redact_text(text) is text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("access_token", "secret"), ("csrf-token", "secret"), ("DBPassword", "secret"),
        ("APIKey", "secret"), ("user.full_name", "pii"), ("fullName", "pii"), ("card.pan", "pci"),
        ("page_token", None), ("nextToken", None), ("prompt_token", None), ("camera.pan", None),
        ("method.full_name", None), ("tokenizer", None), ("company", None), ("span", None),
    ],
)  # fmt: skip
def test_a_name_counts_by_its_whole_words(name: str, expected: str | None) -> None:
    assert sensitivity_of_name(name) == expected


SECRET_KEYS = ["password", "apiKey", "client_secret", "access-token", "card_number", "db.passwd"]
OTHER_KEYS = ["page_token", "note", "keyword", "n", "method.full_name", "é"]
NESTED = st.recursive(
    st.just(""),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(SECRET_KEYS + OTHER_KEYS), inner, max_size=3)
    ),
    max_leaves=8,
).map(lambda value: numbered(value, count()))


def numbered(value: object, numbers: Iterator[int]) -> object:
    """The structure with other texts, none of them twice."""
    if isinstance(value, dict):
        return {key: numbered(inner, numbers) for key, inner in value.items()}
    if isinstance(value, list):
        return [numbered(inner, numbers) for inner in value]
    return f"V{next(numbers)}V"


def values_of(value: object, *, secret: bool) -> Iterator[str]:
    """The texts of a structure that are values of such a key, or of another one."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        if isinstance(inner, str):
            if (key in SECRET_KEYS) is secret:
                yield inner
        else:
            yield from values_of(inner, secret=secret)
    for inner in value if isinstance(value, list) else ():
        yield from values_of(inner, secret=secret)


@given(NESTED, st.integers(0, 3), st.sampled_from(["é ", "x=", "items: ", '{"a":1} ']))
def test_values_of_secret_names_are_found_however_deep_they_are(
    value: object, levels: int, before: str
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    for _ in range(levels):
        text = json.dumps({"message": text}, ensure_ascii=False)
    for form in (text, repr(value), json.dumps(value, indent=2, ensure_ascii=False)):
        judged = redact_text(before + form)
        assert not [each for each in values_of(value, secret=True) if each in judged]
        assert all(each in judged for each in values_of(value, secret=False))


@given(st.dictionaries(st.sampled_from(SECRET_KEYS + OTHER_KEYS), st.text("Vx &=%+é'", max_size=9)))
def test_values_of_secret_names_are_found_in_a_query(fields: dict[str, str]) -> None:
    judged = parse_qs(redact_text(urlencode(fields)), keep_blank_values=True)
    for key, value in fields.items():
        empty = value == "" or key not in SECRET_KEYS
        assert judged[key] == ([value] if empty else ["[redacted:" + sensitivity_of(key) + "]"])


def sensitivity_of(key: str) -> str:
    return sensitivity_of_name(key) or ""


# What an operator may choose.


@pytest.mark.parametrize("name", [name for name in DETECTORS if name != "names"])
def test_a_detector_that_is_off_finds_nothing_and_the_others_do(name: str) -> None:
    text = (
        "mail ann@example.com card 4111111111111111 key AKIAIOSFODNN7EXAMPLE at http://u:p@h "
        f"with {SIGNED} and password=x and -----BEGIN PRIVATE KEY-----"
    )
    rest = Detectors(frozenset(DETECTORS) - {name})
    assert {found.detector for found in ALL.find(text.encode())} == {*DETECTORS} - {"names"}
    for plainly in (False, True):
        found = [one.detector for one in rest.find(text.encode(), plainly=plainly)]
        assert sorted(found) == sorted({*DETECTORS} - {"names", name})


def test_what_a_pattern_excepts_stays() -> None:
    detectors = Detectors(except_patterns=(r"@example\.com$", "^4111"))
    text = "ann@example.com bob@example.org 4111111111111111 5500000000000004"
    assert detectors.redact(text) == (
        "ann@example.com [redacted:pii] 4111111111111111 [redacted:pci]"
    )


def test_unknown_detectors_and_patterns_that_are_none_are_refused() -> None:
    with pytest.raises(SpecError, match="there is no detector cards; there are names, private_key"):
        Detectors(frozenset(("cards",)))
    with pytest.raises(SpecError, match="'\\(' is no regular expression"):
        Detectors(except_patterns=("(",))


# Rates.


def compact_time(dice: random.Random) -> str:
    at = time.gmtime(dice.randrange(1_500_000_000, 1_900_000_000))
    form = dice.choice(["%Y%m%d%H%M%S", "%y%m%d%H%M%S", "%Y%m%dT%H%M%S"])
    digits = dice.choice(["", f"{dice.randrange(1000):03}", f"{dice.randrange(10**6):06}"])
    return time.strftime(form, at) + digits


def snowflake(dice: random.Random) -> str:
    epoch_ms = dice.choice([1_288_834_974_657, 1_420_070_400_000])
    at_ms = dice.randrange(1_450_000_000_000, 1_900_000_000_000)
    return str((at_ms - epoch_ms) << 22 | dice.getrandbits(22))


RANDOM_IDS: dict[str, Callable[[random.Random], str]] = {
    "uuid": lambda dice: str(uuid.UUID(int=dice.getrandbits(128), version=4)),
    "hex": lambda dice: f"{dice.getrandbits(128):032x}"[: dice.choice([8, 16, 24, 32])],
    "int64": lambda dice: str(dice.randrange(-(1 << 63), 1 << 63)),
    "snowflake": snowflake,
    "time": compact_time,
    "version": lambda dice: ".".join(
        str(dice.randrange(1 << dice.randrange(1, 40))) for _ in "abc"
    ),
}


@pytest.mark.parametrize("kind", RANDOM_IDS)
def test_random_ids_are_taken_for_something_sensitive_once_in_100_000_at_most(kind: str) -> None:
    """How many are looked at: DETECTOR_IDS, by hand 10 million; the seed is always the same."""
    total = int(os.environ.get("DETECTOR_IDS", "10000"))
    dice, make = random.Random(7), RANDOM_IDS[kind]
    found = 0
    for at in range(0, total, 100):  # many in one text are looked at more quickly
        text = "".join(f"got {make(dice)} done\n" for _ in range(min(100, total - at)))
        found += redact_text(text).count("[redacted:")
    assert found <= max(1, total / 100_000)


# The same, plainly: everything at each place of a text, one after the other.

WORD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
ALNUM = WORD - {"_"}
UNICODE_BETWEEN = [0xA0, 0x2010, 0x2011, 0x202F, *range(0x2000, 0x200B)]
BETWEEN = [" ", "+", "-", "%20", *(chr(c).encode().decode("latin-1") for c in UNICODE_BETWEEN)]
LAYOUTS: dict[int, list[tuple[int, ...]]] = {
    16: [(16,), (4, 4, 4, 4)],
    19: [(4, 4, 4, 4, 3)],
    15: [(15,), (4, 6, 5)],
    14: [(14,), (4, 6, 4)],
}
ISSUERS = {
    16: [(4000, 4999), (5100, 5599), (2221, 2720), (6011, 6011), (6440, 6599), (6200, 6299),
         (3528, 3589)],
    15: [(3400, 3499), (3700, 3799)],
    14: [(3000, 3059), (3095, 3095), (3600, 3699), (3800, 3999)],
}  # fmt: skip
ISSUERS[19] = ISSUERS[16]
CODED_FRONT = re.compile(
    r"(?:%(?:25)?[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[bfnrt]|\x1b\[[0-9;]{0,8}m)\Z"
)


def has_check_digit(digits: str) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def front_of(text: str, start: int, allowed: Callable[[str], bool]) -> int | None:
    """Where a match begins whose thing begins at `start`; None when there is no border."""
    fronts = [
        at for at in range(max(0, start - 12), start) if CODED_FRONT.fullmatch(text[at:start])
    ]
    if start == 0 or allowed(text[start - 1]):
        fronts.append(max(0, start - 1))
    return min(fronts, default=None)


def groups_at(text: str, start: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """Groups of digits from there on, as far as each."""
    groups: list[str] = []
    at = start
    while True:
        end = at
        while end < len(text) and text[end] in "0123456789":
            end += 1
        if end == at:
            return
        groups.append(text[at:end])
        yield tuple(groups), end
        between = next((sign for sign in BETWEEN if text.startswith(sign, end)), None)
        if between is None or len(groups) > 5:
            return
        at = end + len(between)


def plainly_an_id(before: str) -> bool:
    quote, blank = r"""\\*["']\Z""", r"(?:%20|[\t ])\Z"
    for sign in (quote, blank, r"[=:#]\Z", blank, quote):
        before = re.sub(sign, "", before, count=1)
    name = re.search(r"[A-Za-z][A-Za-z0-9_.-]*\Z", before)
    return name is not None and is_name_of_id(name[0])


def plainly_paid(before: str) -> bool:
    parts = ("card", "charge", "credit", "debit", "bill", "checkout")
    words = re.split("[^a-z0-9_]+", before.lower())
    return any(part in before.lower() for part in parts) or any(
        word in ("pan", "cc") or word.startswith(("pay", "paid", "cvv", "cvc")) for word in words
    )


def plain_cards(text: str) -> Iterator[tuple[int, int, int]]:
    for start, character in enumerate(text):
        if character not in "23456":
            continue
        front = front_of(text, start, lambda before: before not in WORD | {".", "-"})
        if front is None:
            continue
        for groups, end in reversed([*groups_at(text, start)]):
            digits, layout = "".join(groups), tuple(map(len, groups))
            behind = text[end : end + 6]
            expiry = re.match(r"-[0-9]{2,4}(?![A-Za-z0-9_-])", behind)
            if (
                not (len(groups) == 1 and plainly_an_id(text[max(0, start - 48) : start]))
                and (len(groups) > 1 or digits[0] != "2" or plainly_paid(text[:start][-64:]))
                and layout in LAYOUTS.get(len(digits), [])
                and any(low <= int(digits[:4]) <= high for low, high in ISSUERS[len(digits)])
                and has_check_digit(digits)
                and not (behind and (behind[0] in WORD or behind[0] == "@"))
                and not re.match(r"\.[0-9]", behind)
                and (expiry or not re.match("-[A-Za-z0-9_]", behind))
            ):
                yield front, start, end
                break


def plain_addresses(text: str) -> Iterator[tuple[int, int, int]]:
    for at in range(len(text)):
        sign = "@" if text[at] == "@" else "%40"
        if not text.startswith(sign, at):
            continue
        first = at
        while first > max(0, at - 64) and text[first - 1] in ALNUM | set("._%+-"):
            first -= 1
        while first < at and text[first] in ".-":
            first += 1
        begin = end = at + len(sign)
        while end < len(text) and text[end] in ALNUM | {".", "-"}:
            end += 1
        for stop in range(end, begin, -1):
            labels = text[begin:stop].split(".")
            if (
                len(labels) > 1
                and all(labels)
                and all(len(label) < 64 for label in labels)
                and re.fullmatch("[A-Za-z]{2,24}", labels[-1])
                and not (stop < len(text) and text[stop] in ALNUM)
            ):
                behind = text[stop:]
                if (
                    first < at
                    and labels[-1].lower() in TOP_LEVEL_LABELS
                    and not re.match("v?[0-9]+[.x]", text[begin:stop], re.IGNORECASE)
                    and text[begin:stop].lower() not in ("openssh.com", "libssh.org")
                    and not re.match(r"/|:[A-Za-z0-9_.~-]*/|\.[A-Za-z0-9]", behind)
                    and text[max(0, first - 3) : first] != "://"
                ):
                    yield at, first, stop
                break


def plain_tokens(text: str) -> Iterator[tuple[int, int, int]]:
    end = "[A-Z ]{0,40}PRIVATE KEY-----"
    shapes = [
        (r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![A-Za-z0-9_])", True),
        ("gh[pousr]_[A-Za-z0-9]{36,}", True),
        ("xox[abeoprs]-[A-Za-z0-9-]{10,}", True),
        ("sk_(?:live|test)_[A-Za-z0-9]{16,}", True),
        ("[Bb][Ee][Aa][Rr][Ee][Rr](?: |%20)[A-Za-z0-9._~+/-]{16,}=*", True),
        (f"-----BEGIN {end}(?:.*?-----END {end}|.*)", False),
    ]  # fmt: skip
    for start in range(len(text)):
        for shape, bordered in shapes:
            match = re.compile(shape, re.DOTALL).match(text, start)
            if match is None:
                continue
            front: int | None = start
            if bordered:
                front = front_of(text, start, lambda before: before not in WORD)
                if front == start - 1:  # such a border is no part of the match
                    front = start
            if front is not None:
                yield front, start, match.end()


def plain_logins(text: str) -> Iterator[tuple[int, int, int]]:
    for start in range(len(text)):
        if text.startswith("://", start):
            end = start + 3
            while end < len(text) and text[end] not in "\t\n\v\f\r /@":
                end += 1
            user, colon, password = text[start + 3 : end].partition(":")
            if text[end : end + 1] == "@" and colon and password and "@" not in user:
                yield start, start + 3, end


def plain_web_tokens(text: str) -> Iterator[tuple[int, int, int]]:
    w = "[A-Za-z0-9_-]"
    shape = re.compile(
        rf"eyJ{w}{{8,}}(?:\.{w}{{8,}}\.{w}*|\.\.{w}{{8,}}\.{w}+\.{w}*)(?:\.\.?{w}{{8,}})*"
    )
    for start in range(len(text)):
        if text[max(0, start - 1) : start] in ("K", "k"):
            continue
        if match := shape.match(text, start):
            yield max(0, start - 1), start, match.end()
            if text[max(0, start - 1) : start] not in WORD:
                yield start, start, match.end()


PLAIN = [plain_web_tokens, plain_tokens, plain_logins, plain_addresses, plain_cards]


def plainly_found(text: str) -> list[tuple[int, int]]:
    """What begins first counts; what begins before its end does not."""
    every = sorted(
        (at, rank, start, end) for rank, plain in enumerate(PLAIN) for at, start, end in plain(text)
    )
    found: list[tuple[int, int]] = []
    position = 0
    for at, _, start, end in every:
        if at >= position:
            begin = max(start, position)
            if begin > start:  # an address behind another thing: what is left of it
                begin += len(text[begin:at]) - len(text[begin:at].lstrip(".-"))
            if begin < end and not (begin > start and begin == at):
                found.append((begin, end))
                position = end
    return found


WORDS = st.lists(
    st.sampled_from(
        [
            "eyJ", "-", "abcdefgh", ".", " ", "@", "é", "4111111111111111", "4111111111111112", ":",
            "://", "AKIAABCDEFGHIJKLMNOP", "xoxb-", "bearer ", "-----BEGIN PRIVATE KEY-----",
            "-----END PRIVATE KEY-----", "_", "a.bc", "eyJabcdefgh", "eyJabcdefgh.abcdefgh.",
            "..", "k", "%3D", "%20", "%25", "4", r"\n", "sk_live_abcdefgh", "/", ".com", "@v1.",
            "45", "3", "5500 0000 0000 0004", "4111-1111", "40000004", "2024", "\u00a0", "\u2009",
            "3782 822463 10005", "4111 1111 1111 1111 123", "\u2011", "%40", "ann@example.com",
            "git@github.com:a/b", r"\u003d", "\x1b[1m", "\n", "\t", "u:p@h", "+", "-12", "1111",
        ]
    )
    | st.text(max_size=2),
    max_size=24,
).map("".join)  # fmt: skip
SHAPES = Detectors(frozenset(DETECTORS) - {"names", "named_value"})


@settings(max_examples=int(os.environ.get("DETECTOR_TEXTS", "200")), deadline=None)
@given(WORDS)
def test_what_is_found_is_what_is_found_plainly(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    found = [(start, end) for _, start, end, _ in SHAPES.find(raw)]
    assert found == plainly_found(raw.decode("latin-1"))

"""Lines that are not even taken apart hold nothing to find, and both engines find the same."""

import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.specs import Event, Sensitive, encode
from penstock.specs.redact.detectors import ALL, Detectors
from penstock.specs.redact.line_search import LineParts, LineSearch
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.redact.sensitivity import HashKey
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.unit.specs import records

KEYS = ('"café"'.encode(),)
KEY = HashKey("k1", b"0123456789abcdef")


class Sold(Event, spec="scrub_lines_test.sold/1.0"):
    """A specialised spec of this test."""

    buyer: Annotated[str, Sensitive("pii", "truncate")]


PIECES = st.sampled_from(
    [
        "-----BEGIN RSA PRIVATE KEY-----", "eyJ", "abcdefgh12", ".", "AKIA", "ASIA", "ghp_",
        "x" * 36, "ABCDEFGH01234567", "xoxb-", "sk_live_", "BeArEr ", "://", "user:pw", "@",
        "host.example", "4111", "1111", " ", "-", "5500000000000004", "é", "..", "_",
        "eyJabcdefgh12", "%20", "%3D", "%A0", "%25A0", "BearER%20",
        "45 ", "4111111111111111 123", "5 5500-0000-0000-0004", "password", "=", "'", '"',
        "api_key", "\u00a0", "\u2009", "\n", "/", ".com", "{", "}", "token", "page_", "\\",
    ]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join))
def test_python_finds_what_re2_finds(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    assert [*ALL.find(raw, plainly=True)] == [*ALL.find(raw, plainly=False)]


TEXTS = st.lists(
    PIECES | st.sampled_from([":", ",", "[", '"', "\\", "nano", "\n"]), max_size=9
).map("".join)
NAMES = st.sampled_from(["a", "password", "userEmail", "time_unix_nano", "trace_id", "nano", ":"])
VALUES = TEXTS | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False)


def all_kinds(texts: dict[str, Any]) -> list[dict[str, Any]]:
    """A record of each kind with these attributes and texts in it."""
    span = {**records.span(), "status_message": texts["text"], "attributes": texts["attributes"]}
    inner = {"time_unix_nano": records.TIME, "attributes": texts["attributes"]}
    return [
        {**records.log(), "body": texts["text"], "attributes": texts["attributes"],
         "context": texts["context"]},
        {**span, "events": [{"name": "e", **inner}]},
        {**records.gauge(), "exemplars": [{"value": 1.0, **inner}]},
        {**json.loads(encode(Sold(buyer=texts["text"]))), "resource": {"service.name": "a"}},
    ]  # fmt: skip


@pytest.mark.parametrize("scrubber", [Scrubber(KEY), Scrubber(KEY, values=False)])
@given(
    texts=st.fixed_dictionaries(
        {
            "text": TEXTS,
            "attributes": st.dictionaries(NAMES, VALUES | st.lists(TEXTS, max_size=2), max_size=3),
            "context": st.dictionaries(st.sampled_from(["user.id", "request.id"]), TEXTS),
        }
    ),
    ascii_only=st.booleans(),
    spaced=st.booleans(),
)
def test_lines_that_are_not_taken_apart_have_nothing_to_scrub(
    scrubber: Scrubber, texts: dict[str, Any], *, ascii_only: bool, spaced: bool
) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    for record in all_kinds(texts):
        line = json.dumps(record, ensure_ascii=ascii_only, separators=separators).encode()
        verdict = check_line(line)
        alone = LineSearch([line])
        among = LineSearch([usual_line(), line, b"a@b.cc 4111111111111111 bearer " * 2])
        if isinstance(verdict, Accepted) and (
            scrubber.is_clean(line, verdict, alone) or scrubber.is_clean(line, verdict, among)
        ):
            assert scrubber.scrub_line(line) is line


@given(st.lists(TEXTS, min_size=1, max_size=3), st.lists(NAMES, max_size=2))
def test_suspects_among_many_lines_are_those_that_are_suspect_alone(
    texts: list[str], names: list[str]
) -> None:
    scrubber = Scrubber(KEY)
    found = [
        json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
        for text in texts
        for record in all_kinds(
            {"text": text, "attributes": dict.fromkeys(names, 1), "context": {}}
        )
    ]
    judged = [(line, check_line(line)) for line in found]
    right = [(line, verdict) for line, verdict in judged if isinstance(verdict, Accepted)]
    search = LineSearch([line for line, _ in right])
    alone = [scrubber.is_clean(line, verdict, search) for line, verdict in right]
    verdicts = [verdict for _, verdict in right]
    suspects = scrubber.suspects(verdicts, search)
    assert {place for place, is_clean in enumerate(alone) if not is_clean} <= {*suspects}
    assert bool(suspects) is not all(alone)


def usual_line() -> bytes:
    usual = {**records.log(), "context": {"request.id": "r-1"}}
    return json.dumps(usual, separators=(",", ":")).encode()


def test_usual_lines_are_not_taken_apart() -> None:
    line = usual_line()
    verdict = check_line(line)
    assert isinstance(verdict, Accepted)
    assert Scrubber(KEY).is_clean(line, verdict, LineSearch([line]))
    for text in (
        b"4111 1111 1111 1111",
        b"x@example.com",
        b"bearer " + b"a" * 20,
        b":4111111111111111",
        b"45 4111111111111111 12",
        b"x:4111111111111111",
        b'o\\":4111111111111111',
        b"caf%25C3%25A94111111111111111",
        b"%25204111111111111111",
        b"a\\u0040b.de",
    ):
        found = line.replace(b"order placed", text)
        assert not Scrubber(KEY).is_clean(found, verdict, LineSearch([line, found]))
        assert Scrubber(KEY).is_clean(line, verdict, LineSearch([line, found]))


def test_ids_and_times_of_digits_are_not_taken_for_card_numbers() -> None:
    record = {**json.loads(usual_line()), "time_unix_nano": 2 * 10**18, "trace_id": "4" * 32}
    line = json.dumps(record, separators=(",", ":")).encode()
    verdict = check_line(line)
    assert isinstance(verdict, Accepted)
    assert Scrubber(KEY).is_clean(line, verdict, LineSearch([line]))


def test_every_line_that_shows_a_sign_is_found_among_many() -> None:
    lines = [b'{"body":"%d %s"}' % (at, b"a@b.cc " * (at % 3)) for at in range(100)]
    lines[9] = b'{"body":\n"a@b.cc"}'  # a line break between tokens
    search = LineSearch(lines)
    shown = [at for at, line in enumerate(lines) if search.shows(line, (), ALL)]
    assert shown == [at for at in range(100) if at % 3 != 0 or at == 9]


def test_what_is_behind_an_at_sign_and_no_address_is_no_sign() -> None:
    texts = [
        "hmac@libssh.org", "a@b.cc", "ann@%40b.cc", "x@node.internal b@openssh.com", "@b.cc",
        "@2x.net", "@4111111111111111.net", "x@node.internal bob@b.cc", "a@b.cc/d", "a%40b.cc",
    ]  # fmt: skip
    lines = [b'{"body":"%b"}' % text.encode() for text in texts]
    for parts in (None, LineParts(b"", lines), LineParts(b"a@b.zz", lines)):
        assert [*LineSearch(lines, parts).places((), ALL)] == [1, 2, 6, 7, 9]
    assert [*range(10)] == [*LineSearch(lines, LineParts(b"a@b.cc", lines)).places((), ALL)]
    no_email = Detectors(enabled=frozenset({"card"}))
    assert [*LineSearch(lines).places((), no_email)] == [6]


STRINGS = TEXTS | st.sampled_from(
    ["a@b.cc x", "4111111111111111", "a\\\\", '"', "pwd", "4111 1111 ", "1111 1111", "ann@", "b.cc"]
)


@given(
    before=STRINGS,
    own=st.lists(STRINGS, min_size=8, max_size=10),
    alike=STRINGS,
    after=STRINGS,
    key=st.sampled_from(["a", "b", "c", "d"]),
    spaced=st.booleans(),
)
def test_what_lines_have_in_common_hides_nothing(
    before: str, own: list[str], alike: str, after: str, key: str, *, spaced: bool
) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    lines = [
        json.dumps(
            {"a": before, "b": alike + text + alike, "c": after}, separators=separators
        ).encode()
        for text in own
    ]
    # Each text by itself: a line may show a sign that begins in one text and ends in another.
    shared = _shows(before) or _shows(after)
    alone = {at for at, text in enumerate(own) if shared or _shows(alike + text + alike)}
    assert alone <= {*LineSearch(lines).places((), ALL)}
    keyed = {*range(len(own))} if key in "abc" else alone
    assert keyed <= {*LineSearch(lines).places((b'"%b"' % key.encode(),), ALL)}


def _shows(text: str) -> bool:
    return bool(LineSearch([json.dumps({"x": text}).encode()]).places((), ALL))


@pytest.mark.parametrize("body", ["{} 1111 1111 1111", "4111 1111 1111 {}", "x {} 1111 1111 1111"])
def test_no_string_is_cut_where_lines_begin_or_end_to_differ(body: str) -> None:
    own = "4111" if body.startswith(("{", "x")) else "1111"
    texts = [body.format(own if at == 5 else 3000 + at) for at in range(9)]
    for first in ('"', "y"):
        lines = [json.dumps({"a": first, "b": text, "c": "x"}).encode() for text in texts]
        assert 5 in LineSearch(lines).places((), ALL)


@pytest.mark.parametrize("unit", ["@b.cc/", "@b.zz ", "4111111111111112 ", "span=1 ", "://@b.zz"])
def test_no_line_takes_time_that_grows_with_its_square(unit: str) -> None:
    line = json.dumps({"body": unit * (1 + (1 << 17) // len(unit))}).encode()
    assert not LineSearch([line]).places((), ALL)


def test_a_key_outside_ascii_is_found() -> None:
    lines = [b'{"caf\xc3\xa9":1}', b'{"cafe":1}']
    search = LineSearch(lines)
    assert [search.shows(line, KEYS, None) for line in lines] == [True, False]

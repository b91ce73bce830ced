"""What others wrote cannot drive a terminal; tables stay aligned and within it."""

import io
from contextlib import redirect_stderr

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from penstock.logd.cli.output import (
    Progress,
    cut,
    facts,
    human_bytes,
    pretty_json,
    record_json,
    record_pretty,
    record_text,
    safe,
    safe_bytes,
    safe_json,
    table,
)
from penstock.logd.cli.output import width_of as width
from penstock.logd.format.batch import Record

HOSTILE = b"\x1b]0;owned\x07\x1b[2J\xc2\x9b31m\r\x7f\xe2\x80\xae\xe2\x80\x8b\xff\n"


def controls(text: str) -> list[str]:
    return [
        sign
        for sign in text
        if ord(sign) < 0x20 or 0x7F <= ord(sign) < 0xA0 or sign in "\u202e\u200b\u2028\ufeff"
    ]


def test_a_hostile_payload_moves_nothing() -> None:
    record = Record(
        HOSTILE[:-2].decode(), HOSTILE, 0, HOSTILE, ((HOSTILE.decode("latin-1"), HOSTILE),)
    )
    for form in (record_text, record_json):
        assert controls(form(7, record)) == []
    assert set(controls(record_pretty(7, record))) == {"\n"}
    assert r"\x1b]0;owned\x07" in record_text(7, record)
    assert r"\u202e" in record_text(7, record)
    assert r"\xff\n" in record_text(7, record)


@given(st.binary(max_size=60))
def test_no_payload_drives_the_terminal(value: bytes) -> None:
    assert controls(safe_bytes(value)) == []


@given(st.text(max_size=40))
def test_json_means_the_same_and_moves_nothing(text: str) -> None:
    encodable = text.encode("utf-8", "replace").decode()
    shown = safe_json(orjson.dumps({encodable: [encodable]}))
    assert controls(shown) == []
    assert orjson.loads(shown) == {encodable: [encodable]}


def test_text_of_people_stays() -> None:
    assert safe("grüße, 世界 — 🙂\u0301") == "grüße, 世界 — 🙂\u0301"


def test_json_payloads_are_laid_out_and_others_are_not() -> None:
    record = Record("t.a", b'{"a":{"b":"\xc2\x9bx"}}', 0, b"tea", (("K", b"v"),))
    assert record_pretty(3, record).splitlines() == [
        "offset 3  1970-01-01T00:00:00.000000Z  t.a",
        "  key: tea",
        "  K: v",
        "{",
        '  "a": {',
        '    "b": "\\u009bx"',
        "  }",
        "}",
    ]
    assert [pretty_json(value) for value in (b"{", b"7", b"", b"\xff")] == [None] * 4
    assert record_pretty(3, Record("t", None, 0)).endswith("t\n(tombstone)\n")


def test_columns_are_aligned_whatever_the_letters() -> None:
    lines = table(
        ("NAME", "COUNT", "WHAT"), [("世界", 5, "x"), ("a\u0301\x1b", 1234, "y")]
    ).splitlines()
    assert lines == ["NAME   COUNT  WHAT", "世界       5  x", "a\u0301\\x1b   1234  y"]


def test_numbers_stand_to_the_right_though_some_are_not_known() -> None:
    assert table(("N",), [("-",), (100,)]).splitlines() == ["  N", "  -", "100"]
    assert table(("N",), [("-",)]).splitlines() == ["N", "-"]


def test_the_last_column_gives_way_on_a_narrow_terminal() -> None:
    rows = [("logs", "telemetry.logs." + "x" * 90)]
    lines = table(("STREAM", "SUBJECT"), rows, width=40).splitlines()
    assert max(map(width, lines)) == 40
    assert lines[1].endswith("…")
    assert max(map(width, table(("A", "B"), rows, width=5).splitlines())) == 18  # a little stays
    assert lines != table(("STREAM", "SUBJECT"), rows).splitlines()  # no terminal: nothing is cut


def test_text_is_cut_by_columns() -> None:
    assert (cut("abc", 3), cut("abcd", 3), cut("世界世", 4)) == ("abc", "ab…", "世…")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2 * 10**9, "2.0 GB"), (10**16, "10000.0 TB")],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_facts_say_none() -> None:
    assert facts({"a": None, "bcd": "x\x1b"}) == "a    none\nbcd  x\\x1b"


class _Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return self.now_ns


class Terminal(io.StringIO):
    """What is written to a terminal."""

    @override
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_now_and_then() -> None:
    clock = _Clock()
    with redirect_stderr(Terminal()) as terminal, Progress("reading", 4000, clock=clock) as shown:
        shown.advance(10)
        assert terminal.getvalue() == "", "what is over at once has no bar"
        clock.now_ns = 10**9
        shown.advance(1990, 1_000_000)
        written = terminal.getvalue()
        shown.advance(1)
        assert terminal.getvalue() == written
    assert "reading  [##########----------]   50%" in written
    assert written.endswith("  2,000 records, 1.0 MB, 2,000 records/s")
    with redirect_stderr(Terminal()) as terminal, Progress("reading", clock=clock) as shown:
        clock.now_ns = 2 * 10**9
        shown.advance(5)
    assert "5 records, 5 records/s" in terminal.getvalue()
    with redirect_stderr(io.StringIO()) as none, Progress("reading", clock=clock) as shown:
        clock.now_ns = 10**10
        shown.advance(5)
    assert none.getvalue() == ""

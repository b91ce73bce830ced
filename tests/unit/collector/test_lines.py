"""Cutting lines, and making records of them."""

import json
import os
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.lines import (
    BYTE_ORDER_MARK,
    LineContext,
    PlainLines,
    decode_line,
    printable,
)
from penstock.collector.sources.line_framing import Line, LineCutter, encoding_of, parts_of
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

CONTEXT = LineContext({"service.name": "app"}, {"log.file.name": "a.log"})
NOW_NS = 1_700_000_000_000_000_000


@pytest.mark.parametrize("bytes_max", [20, 100])
def test_lines_and_positions_are_the_same_however_the_bytes_arrive(bytes_max: int) -> None:
    random = Random(1)
    data = b"".join(
        random.randbytes(random.randint(0, 30)).replace(b"\n", b"")
        + random.choice((b"\n", b"\r\n"))
        for _ in range(50)
    )
    expected = [
        Line(text[:bytes_max].removesuffix(b"\r"), end, len(text) > bytes_max)
        for text, end in _dumb(data)
    ]
    for step in (1, 3, 7, len(data)):
        cutter = LineCutter(bytes_max, position=0)
        lines = [
            line for at in range(0, len(data), step) for line in cutter.feed(data[at : at + step])
        ]
        assert lines == expected
        assert cutter.flush() is None


def _dumb(data: bytes) -> list[tuple[bytes, int]]:
    found, at = [], 0
    for text in data.split(b"\n")[:-1]:
        at += len(text) + 1
        found.append((text, at))
    return found


def test_a_line_without_its_newline_waits_and_can_be_flushed() -> None:
    cutter = LineCutter(100, position=10)
    assert cutter.feed(b"a\nbc") == [Line(b"a", 12)]
    assert (cutter.line_start, cutter.position, cutter.waits) == (12, 14, True)
    assert cutter.feed(b"d") == []
    assert cutter.flush() == Line(b"bcd", 15)
    assert not cutter.waits


def record(line: bytes, *, truncated: bool = False) -> dict[str, object]:
    made, _ = decode_line(line, CONTEXT, NOW_NS, truncated=truncated)
    assert isinstance(check_line(made), Accepted), check_line(made)
    fields: dict[str, object] = json.loads(made)
    return fields


@pytest.mark.parametrize(
    ("flushed", "rest", "continued"),
    [
        (b"begin", b"ning\nnext\n", [(b"ning", True), (b"next", False)]),
        (b"whole", b"\nnext\n", [(b"next", False)]),
        (b"whole\r", b"\nnext\n", [(b"next", False)]),
        (b"x" * 21, b"more\nnext\n", [(b"next", False)]),
    ],
)
def test_what_comes_after_a_line_was_flushed_continues_it(
    flushed: bytes, rest: bytes, continued: list[tuple[bytes, bool]]
) -> None:
    cutter = LineCutter(20)
    assert cutter.feed(flushed) == []
    line = cutter.flush()
    assert line is not None
    assert (line.text, line.end) == (flushed[:20].removesuffix(b"\r"), len(flushed))
    assert not cutter.waits
    assert [(one.text, one.continued) for one in cutter.feed(rest)] == continued
    assert cutter.position == cutter.line_start == len(flushed + rest)


@pytest.mark.parametrize("name", ["utf-16", "utf-16le", "utf-16be", "latin-1", "windows-1252"])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_lines_of_another_encoding_are_text(name: str, step: int) -> None:
    """A newline of UTF-16 may stand across two characters, as in U+0A0A and U+0A00."""
    texts = ["größer als ½", "", "é" * 30]
    if name.startswith("utf-16"):
        texts += ["\u0a0a\u0a00\u0100", "日本語 😀"]
    data = "".join(f"{text}\r\n" for text in texts).encode(name)
    cutter = LineCutter(1000, encoding=encoding_of(name, data[:4]))
    lines: list[Line] = []
    while cutter.position < len(data):
        before = cutter.position
        lines += cutter.feed(data[before : before + step])
        step += cutter.position == before  # half of a character is not taken
    assert [line.text.decode() for line in lines] == texts
    assert lines[-1].end == len(data)
    assert cutter.replaced == 0
    again = LineCutter(1000, position=lines[0].end, encoding=encoding_of(name, data[:4]))
    assert again.feed(data[lines[0].end :]) == lines[1:]
    assert again.is_line_end(data[: lines[0].end])


def test_what_is_no_text_in_its_encoding_is_counted() -> None:
    cutter = LineCutter(100, encoding=encoding_of("utf-16le", b""))
    (line,) = cutter.feed(b"a\0\0\xd8b\0\n\0")
    assert (line.text.decode(), cutter.replaced) == ("a\ufffdb", 1)


@pytest.mark.parametrize("text", ["x" * 100, "é" * 50, "日" * 33 + "y", "😀" * 25])
def test_a_long_line_is_parts_that_continue_one_another(text: str) -> None:
    line = Line(text.encode(), 500, truncated=True)
    parts = parts_of(line, 30)
    assert "".join(part.text.decode() for part in parts) == text
    assert all(len(part.text) <= 30 for part in parts)
    assert [part.continued for part in parts] == [False] + [True] * (len(parts) - 1)
    assert [part.truncated for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [part.end for part in parts] == [*range(500 - len(parts) + 1, 501)]


def test_a_text_line_is_the_body() -> None:
    made = record(b"hello {world")
    assert made["body"] == "hello {world"
    assert made["time_unix_nano"] == made["observed_time_unix_nano"] == NOW_NS
    assert made["attributes"] == {"log.file.name": "a.log"}


def test_bytes_that_are_not_utf8_are_replaced_and_marked() -> None:
    made = record(b"caf\xe9")
    assert made["body"] == "caf\ufffd"
    assert made["attributes"] == {"log.file.name": "a.log", "log.record.bytes_replaced": True}


@pytest.mark.parametrize(
    ("level", "number"),
    [("debug", 5), ("INFO", 9), ("warning", 13), ("error", 17), ("critical", 21)],
)
def test_a_structured_line_is_taken_apart(level: str, number: int) -> None:
    line = {
        "event": "sold", "level": level, "timestamp": "2026-01-02T03:04:05.000006Z",
        "price": 3.5, "nested": {"a": {"b": [1, 2]}}, "mixed": [1, "x"], "big": 1 << 62,
        "none": None,
    }  # fmt: skip
    made = record(json.dumps(line).encode())
    assert (made["body"], made["severity_number"]) == ("sold", number)
    assert made["time_unix_nano"] == 1_767_323_045_000_006_000
    assert made["attributes"] == {
        "price": 3.5, "nested.a.b": [1, 2], "mixed": '[1,"x"]', "big": 1 << 62, "none": None,
        "log.file.name": "a.log",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        b'{"just": "json"}',
        b'{"level": "info"',
        b"{}",
        b"",
        b"\x00",
        b'{"level": 3, "time": "never", "message": 5}',
        b'{"level": "info", "time": -1}',
        b'{"level": "info", "time": 1e300}',
        b'{"level": "info", "' + b"k" * 200 + b'": 1}',
        b'{"level": "info", "": 1}',
        b'{"level": "info", "a": {"b": {"c": {"d": {"e": {"f": 1}}}}}}',
        b'{"level": "info", "s": "' + b"x" * 33_000 + b'"}',
    ],
)
def test_whatever_the_line_is_the_record_keeps_to_its_spec(line: bytes) -> None:
    record(line)


def test_a_cut_line_is_marked_and_not_parsed() -> None:
    made = record(b'{"level": "info", "event": "x', truncated=True)
    assert made["attributes"] == {"log.file.name": "a.log", "log.record.truncated": True}


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "2300-01-01", "9999-12-31T23:59:59Z"])
def test_a_time_that_no_record_can_hold_is_an_attribute(time: str) -> None:
    """Go writes its zero time as the first of these."""
    line = json.dumps({"level": "info", "msg": "m", "time": time}).encode()
    found = record(line)
    assert found["time_unix_nano"] == NOW_NS
    assert found["attributes"] == {"log.file.name": "a.log", "time": time}


def test_the_sources_own_attributes_have_room_beside_those_of_the_line() -> None:
    fields: dict[str, object] = {f"k{number}": number for number in range(200)}
    found = record(json.dumps({"level": "info", "msg": "m"} | fields).encode())
    attributes = found["attributes"]
    assert isinstance(attributes, dict)
    assert (len(attributes), attributes["log.file.name"]) == (128, "a.log")
    assert found["dropped_attributes_count"] == 73


def test_a_file_name_that_is_not_unicode_is_shown_as_text() -> None:
    assert printable(os.fsdecode(b"/var/log/caf\xe9.log")) == "/var/log/caf\ufffd.log"


LONG = 16 * 1024
ODD = st.sampled_from(
    [b"\0" * LONG, b"\x1b" * (LONG + 1), b'"', b"\\", b"\xff", b"{", b'{"level":"info"}']
)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | ODD)
def test_plain_lines_are_what_they_would_be_one_by_one(line: bytes) -> None:
    made = PlainLines(CONTEXT, NOW_NS).make(line)
    one, _ = decode_line(line, CONTEXT, NOW_NS, truncated=False)
    if made is None:
        is_marked = line.startswith(BYTE_ORDER_MARK)
        assert is_marked or len(line) > LONG or "�" in json.loads(one)["body"]
    else:
        assert made == (one, check_line(one))


@pytest.mark.parametrize(
    "context",
    [
        LineContext({"service.name": ""}, {}),
        LineContext({"service.name": "app"}, {"a": "x" * 40_000}),
        LineContext({"service.name": "app", "a": "x" * 200_000}, {}),
    ],
)
def test_where_the_gate_refuses_one_each_is_judged(context: LineContext) -> None:
    assert PlainLines(context, NOW_NS).make(b"hello") is None


def test_an_empty_key_makes_no_event_of_an_object() -> None:
    line = b'{"":"x","message":"paid"}'
    record, _ = decode_line(line, CONTEXT, NOW_NS, truncated=False)
    assert json.loads(record)["body"] == line.decode()
    assert PlainLines(CONTEXT, NOW_NS).make(line) == (record, check_line(record))


def test_lines_that_were_cut_together_are_lines() -> None:
    cutter = LineCutter(100)
    lines = cutter.feed(b"one\r\ntwo\n\nthr")
    assert lines == [Line(b"one", 5), Line(b"two", 9), Line(b"", 10)]
    assert (lines[1], lines[1:], len(lines)) == (Line(b"two", 9), [*lines][1:], 3)
    assert lines != [Line(b"one", 5)]

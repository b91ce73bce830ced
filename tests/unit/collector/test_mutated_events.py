"""JSON lines, mutated: what is made of them together and quickly is what is made of each slowly.

How many lines: MUTATED_EVENTS; MUTATED_SEED: which ones. The slow way is `decode_line`, with
the validator's verdict on what it makes.
"""

import json
import os
import random
from collections import Counter
from typing import Any

import pytest

from penstock.collector.decode.line_rules import rules_of
from penstock.collector.decode.lines import LineContext, PlainLines, decode_line
from penstock.collector.decode.shapes import Made
from penstock.specs.redact.detectors import ALL
from penstock.specs.redact.line_search import LineSearch
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.redact.sensitivity import HashKey
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.unit.specs.test_mutated_lines import mutated_lines

LINES = int(os.environ.get("MUTATED_EVENTS", "4000"))
SEED = int(os.environ.get("MUTATED_SEED", "5"))
BATCH = 150
NOW_NS = 1_767_000_000_000_000_000
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RESOURCE = {"service.name": "shop", "host.name": "host-1"}
NAMES = {"log.file.path": "/var/log/shop.log", "log.file.name": "shop.log"}
TIMED = {"layouts": ["auto"], "pattern": None, "zone": "UTC"}
CONTEXTS = [
    LineContext(RESOURCE, NAMES),
    LineContext(RESOURCE, {}),
    LineContext(RESOURCE, NAMES, rules_of({"detect": ["severity", "time"]})),
    LineContext(RESOURCE, NAMES, rules_of({"timestamp": {**TIMED, "field": "ts"}})),
    LineContext(RESOURCE, NAMES, rules_of({"timestamp": {**TIMED, "field": None}})),
    LineContext({"service.name": ""}, NAMES),
]
LEVELS: dict[str, list[Any]] = {
    "level": ["info", " ERROR ", "warn", "loud", "", 30, 3, 2.5, None, True, {}, []],
    "severity": ["INFO", 400, "x"], "levelno": [20, "30"],
    "@l": ["Verbose"], "severity_number": [9],
}  # fmt: skip
TIMES: dict[str, list[Any]] = {
    "timestamp": [
        "2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05,123", "now",
        "2026-01-02T03:04:05.1234567+01:00", "1969-01-01", "9999-01-01", "", None,
    ],
    "time": [1_767_000_000_123, 5, -1, True, 1e400, {"seconds": 1, "nanos": 5}],
    "ts": [1_767_000_000.25, "1767000000", 1e18],
    "t": [{"$date": "2026-01-02T03:04:05Z"}],
}  # fmt: skip
BODIES: dict[str, list[Any]] = {
    "event": ["order placed", "", "é", 5, None], "message": ["paid \u2028", ["a"], "\0"],
    "msg": ["x" * 33_000, "ok"], "@mt": ["{user} paid", "paid"], "MessageTemplate": ["{a}"],
}  # fmt: skip
KEYS = [
    "a", "b", "user", "é", "k" * 128, "k" * 129, "", "schema", "log.file.path", "pid", "hostname",
    "short_message", "s", "c", "trace_id", "traceId", "span_id", "traceparent", "mdc", "fields",
]  # fmt: skip
VALUES: list[Any] = [
    "", "a", "é", "\U0001f600", 'a"b\\c\n', "\0", "x" * 33_000, TRACE, SPAN, "0" * 32,
    f"00-{TRACE}-{SPAN}-01", None, True, False, 0, -1, (1 << 63) - 1, -(1 << 63), 1 << 63,
    -(1 << 63) - 1, (1 << 64) - 1, 1 << 64, 10**30, 0.0, -0.0, 1.0, 0.1, 1e15, 1e16, 1e17, 1e-5,
    1e-7, 5e-324, 1.7976931348623157e308, float("nan"), float("inf"), [], [1], ["a", 1], {},
    {"b": 1}, {"message": "m"}, {"trace_id": TRACE}, {"a": {"b": {"c": {"d": {"e": 1}}}}},
]  # fmt: skip
PIECES = [
    b"NaN", b"-Infinity", b"1e400", b"-0", b"-0.0", b"1E5", b"1.50", b"01", b"1.", b".5", b"+1",
    b"9223372036854775808", b"123456789012345678901234567890", b"\\ud800", b"\\udc00", b"\\u0061",
    b"\\ud83d\\ude00", b"\\u0000", b"\\/", b"\\x", b"\\", b"\xff", b"\xc3", b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b"\xc2\xa0", b"\0", b"\x1f", b"\t", b" ", b"\r", b",", b":", b"{", b"}", b"[",
    b"]", b'"', b"null", b"true", b"{}", b"[[]]", b"[[[[[[[[[", b'"level":"info",', b'"a":1,"a":2,',
    b'"level":1,', b'"timestamp":"2026-01-02T03:04:05Z",', b'"\\u0061":3,',
]  # fmt: skip

TEXTS = [
    b"paid", b'"GET /a", "b"', b"\xc3\xa9", b"\t", b"", b'\\"', b'",', b"x:{}", b"C:\\new", b"\\",
    b"\\n", b"  {", b'{"level":', b'{"level":"info"}', b"\xff", b"\xef\xbb\xbf", b"\0", b"\r",
    b"\xe2\x80\xa8",
]  # fmt: skip
"""Lines, or parts of them, of which the first are text and nothing else."""
COLUMNS: dict[str, list[Any]] = {
    "level": ["info", "warn", "ERROR", "debug", "loud", 30, True, 1, 1.0, None],
    "ts": [
        "2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.000000Z", "2026-01-02T03:04:05.999999Z",
        "2026-01-02T03:04:06.000001Z", "2026-01-02T03:04:05.12345Z", "2026-01-02T03:04:05.1234567Z",
        "2026-01-02T03:04:05.12 456Z", "2026-01-02T03:04:05,123456Z", "2026-01-02T03:04:05.123456",
        "2026-02-30T03:04:05.123456Z", "1969-12-31T23:59:59.999999Z", 1_767_000_000_123, None,
    ],
    "msg": ["order placed", "},{", "é", '"}', "two\nlines", "\\n", "\\", "", None, 5, "\u2028",
            "\0"],
    "note": ["},{", "{}", '"},{"', "a", None, 1.5, [], {}, "two\nlines"],
    "n": [1, -1, 0.25, True, None, 1e300, 1 << 63],
}  # fmt: skip
"""Values of events with the same keys, of which the first are usual."""


def event(dice: random.Random) -> dict[str, Any]:
    """Fields of an event in any order: a few, or as many as a record has room for."""
    fields: dict[str, Any] = {}
    for choices in (LEVELS, TIMES, BODIES):
        if dice.random() < 0.8:
            key = dice.choice([*choices])
            usual = dice.random() < 0.85
            fields[key] = choices[key][0] if usual else dice.choice(choices[key])
    count = dice.randint(0, 4) if dice.random() < 0.98 else dice.randint(118, 132)
    for number in range(count):
        key = dice.choice(KEYS) if count < 10 else f"k{number}"
        fields[key] = dice.choice(VALUES if dice.random() < 0.12 else VALUES[:4])
    items = [*fields.items()]
    dice.shuffle(items)
    return dict(items)


def line_of(dice: random.Random, fields: dict[str, Any]) -> bytes:
    """The fields as JSON, mostly as they are."""
    separators = dice.choice([(",", ":"), (", ", ": "), (" ,", " : ")])
    text = json.dumps(fields, separators=separators, ensure_ascii=dice.random() < 0.5)
    line = text.encode("utf-8", "surrogatepass")
    for _ in range(dice.choice([0, 0, 0, 0, 0, 0, 1, 2])):
        at = dice.randint(0, len(line))
        to = min(len(line), at + dice.randint(1, 6))
        match dice.randrange(4):
            case 0:
                line = line[:at] + dice.choice(PIECES) + line[at:]
            case 1:
                line = line[:at] + dice.choice(PIECES) + line[to:]
            case 2:
                line = line[:at] + line[to:]
            case _:
                line = line[:to] + line[at:]
    begin = dice.choice([b" ", b"\t", b"\xef\xbb\xbf", b"x"]) if dice.random() < 0.05 else b""
    return begin + line.replace(b"\n", b"")


def drawn(dice: random.Random, events: list[dict[str, Any]]) -> list[bytes]:
    """Lines that come together: of many events, of one with other values each time, or of text."""
    count = dice.randint(1, 200)
    match dice.randrange(10):
        case 0 | 1 | 2:
            return [line_of(dice, fields) for fields in dice.choices(events, k=dice.randint(1, 9))]
        case 3:
            texts = TEXTS if dice.random() < 0.5 else TEXTS[:8]
            return [b" ".join(dice.choices(texts, k=dice.randint(1, 3))) for _ in range(count)]
        case 4:
            own = dict.fromkeys(dice.choice(events), dice.choice(VALUES[:4]))
            usual = [own | {"level": "info", "n": number} for number in range(count)]
            return [json.dumps(fields).encode() for fields in usual]
        case _:
            columns = dice.sample([*COLUMNS], k=dice.randint(1, len(COLUMNS)))
            rare = dice.random() < 0.3
            values = {key: COLUMNS[key] if rare else COLUMNS[key][:4] for key in columns}
            rows = [{key: dice.choice(values[key]) for key in columns} for _ in range(count)]
            return [json.dumps(fields, ensure_ascii=False).encode() for fields in rows]


def made_together(context: LineContext, lines: list[bytes]) -> list[Made | None]:
    """What is made of each of lines that come together."""
    records, verdicts, _ = PlainLines(context, NOW_NS).make_together(lines)
    each = zip(records, verdicts, strict=True)
    return [None if record is None else (record, verdict) for record, verdict in each]


def test_what_is_made_of_mutated_lines_is_what_is_made_slowly() -> None:
    dice, quick = random.Random(SEED), Counter[bool]()
    events = [event(dice) for _ in range(100)]
    while quick.total() < LINES:
        context = CONTEXTS[0] if dice.random() < 0.5 else dice.choice(CONTEXTS)
        events[dice.randrange(len(events))] = event(dice)
        lines = drawn(dice, events)
        each = PlainLines(context, NOW_NS)
        for line, made in zip(lines, made_together(context, lines), strict=True):
            assert made == each.make(line), line
            quick[made is not None] += 1
            if made is not None:
                slowly, end = decode_line(line, context, NOW_NS, truncated=False)
                verdict = check_line(slowly)
                assert made[0] == slowly, line
                assert made[1] == (verdict if isinstance(verdict, Accepted) else None), line
                assert end == "pass", line
    assert min(quick.values()) > LINES // 8, quick


def lines_of_texts(dice: random.Random, texts: list[str]) -> list[bytes]:
    """Lines that have these texts as a whole, or in fields of an event."""
    events: list[dict[str, Any]]
    match dice.randrange(6):
        case 0:
            return [text.replace("\n", " ").encode() for text in texts]
        case 1:
            events = [{"level": "info", "msg": "paid", "note": text} for text in texts]
        case 2:
            events = [{"msg": text, "level": dice.choice(["info", "warn"])} for text in texts]
        case 3:
            events = [{"msg": texts[0], "n": number} for number in range(len(texts))]
        case 4:
            events = [{"msg": text, "level": "info", "n": []} for text in texts]
            return [json.dumps(fields)[:-1].encode() + b",}" for fields in events]
        case _:
            events = [{"msg": text, dice.choice("ab"): text} for text in texts]
    return [json.dumps({"ts": 1_767_000_000.25, **fields}).encode() for fields in events]


def test_nothing_sensitive_is_passed_over_in_the_parts_of_mutated_lines() -> None:
    dice, scrubber = random.Random(SEED), Scrubber(HashKey("k1", b"0123456789abcdef"))
    texts, context, clean = [*mutated_lines(LINES)], CONTEXTS[0], 0
    for first in range(0, LINES, BATCH):
        lines = lines_of_texts(dice, texts[first : first + BATCH])
        made = PlainLines(context, NOW_NS).make_together(lines)
        for place, line in enumerate(lines):
            if made.lines[place] is None:
                record, _ = decode_line(line, context, NOW_NS, truncated=False)
                verdict = check_line(record)
                made.put(place, record, verdict if isinstance(verdict, Accepted) else None)
        records = [*filter(None, made.lines)]
        verdicts = [verdict for verdict in made.verdicts if verdict is not None]
        assert len(verdicts) == len(records) == len(lines)
        suspects = {*scrubber.suspects(verdicts, LineSearch(records, made.parts))}
        for place, record in enumerate(records):
            if place not in suspects:
                assert scrubber.scrub_line(record) is record, lines[place]
        clean += len(lines) - len(suspects)
    assert LINES // 4 < clean < LINES


@pytest.mark.parametrize("line", [b'paid {"context": 1}', b"paid", b'{"note": "context"}'])
def test_a_text_that_quotes_a_key_is_not_taken_for_a_record_that_has_it(line: bytes) -> None:
    made = PlainLines(CONTEXTS[0], NOW_NS).make_together([line, b"paid"])
    search = LineSearch([*filter(None, made.lines)], made.parts)
    assert not search.places((b'"context"', b'"note"'), ALL)


@pytest.mark.parametrize("value", VALUES)
def test_each_value_is_stored_as_it_is_made_slowly(value: Any) -> None:
    lines = [json.dumps({"level": "info", "n": value}).encode()] * 2
    record, _ = decode_line(lines[0], CONTEXTS[0], NOW_NS, truncated=False)
    made = made_together(CONTEXTS[0], lines)
    assert made in ([None] * 2, [(record, check_line(record))] * 2)


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"level":"info"}{"level":"warn"}', b'{"level":"info"}'],
        [b'{"level":"info"} {"level":"warn"}'],
        [b'{"level":"info","a":1', b',"b":2}', b'{"level":"info"}{"level":"warn"}'],
        [b'{"level":"info","a":', b'{"level":"info"}}'],
        [b'{"level":"info","a":"', b'{"}', b'{"level":"info"}'],
        [b'{"level":"info",', b'{"level":"info"}'],
        [b"{", b'{"level":"info"}'],
        [b'{"level":"info"}', b""],
        [b'{"level":"info"}\r{"level":"info"}', b'{"level":"info"}\r'],
        [b'{"level":1,"short_message":"a"}', b'{"level":true,"short_message":"a"}'],
        [b'{"level":true,"short_message":"a"}', b'{"level":1.0,"short_message":"a"}'],
        [b'{"level":"info","log.file.path":"a"}', b'{"level":"info","log.file.path":5}'],
        [b'{"log.file.path":"a","level":"info","b":1}'] * 2,
        [b'{"level":"info"}', b'{"level":"info"}', b'{"level":"info","event":"a"}'],
        [b'{"level":"info","a":1}', b'{"level":"info"}', b'{"a":1,"level":"info"}'],
    ],
)
def test_lines_that_come_together_are_no_part_of_each_other(lines: list[bytes]) -> None:
    for context in CONTEXTS:
        each = PlainLines(context, NOW_NS)
        assert made_together(context, lines) == [each.make(line) for line in lines]

"""What structured loggers write, as records: severity, time, message and trace."""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.decode.lines import LineContext, PlainLines, decode_line
from penstock.specs.limits import STRING_CHARACTERS_MAX
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

SENDERS = Path("tests/golden/senders")
NOW_NS = 1_700_000_000_000_000_000
CONTEXT = LineContext({"service.name": "shop"}, {})
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def read(line: bytes) -> tuple[dict[str, Any], Counter[str]]:
    """A line's record and what was not understood; both ways to make it give the same."""
    notes: Counter[str] = Counter()
    made, _ = decode_line(line, CONTEXT, NOW_NS, truncated=False, notes=notes)
    assert isinstance(check_line(made), Accepted), (check_line(made), made)
    plain = PlainLines(CONTEXT, NOW_NS).make(line)
    assert plain is None or plain == (made, check_line(made))
    return json.loads(made), notes


def records(name: str) -> list[dict[str, Any]]:
    found = []
    for line in (SENDERS / name).read_bytes().splitlines():
        record, notes = read(line)
        assert not notes, (notes, line)
        assert record["time_unix_nano"] // 10**9 in range(1_795_700_000, 1_795_800_000), line
        found.append(record)
    return found


FIVE = [("starting", 1), ("cache filled", 5), ("order placed", 9), ("low stock", 13)]
FAILED, OUT, BROKEN = ("payment failed", 17), ("out of memory", 21), ("broken", 24)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pino.ndjson", [FIVE[0], *FIVE[2:], FAILED, OUT]),
        ("bunyan.ndjson", [*FIVE[1:3], FAILED]),
        ("winston.ndjson",
         [FAILED, FIVE[3], FIVE[2], ("GET /", 7), ("v", 6), ("d", 5), ("s", 1)]),
        ("zap.ndjson", [*FIVE[1:], FAILED, ("cannot be", 21), BROKEN]),
        ("logrus.ndjson", [FIVE[0], *FIVE[2:], FAILED, BROKEN]),
        ("zerolog.ndjson", [FIVE[2], FAILED, BROKEN, *[FIVE[3]] * 3]),
        ("slog.ndjson", [*FIVE[1:3], ("noticed", 11), ("starting", 1), FAILED]),
        ("log4j2_JsonLayout.ndjson", [*FIVE, FAILED, OUT]),
        ("log4j2_EcsLayout.ndjson", [*FIVE, FAILED, OUT]),
        ("log4j2_GcpLayout.ndjson",
         [("starting", 5), *FIVE[1:], FAILED, ("out of memory", 24)]),
        ("logback_JsonEncoder.ndjson", [FIVE[0], ("order 7 placed", 9), FIVE[3], FAILED] * 2),
        ("logstash_logback_encoder.ndjson", [FIVE[0], ("order 7 placed", 9), FIVE[3], FAILED]),
        ("monolog.ndjson", [*FIVE[1:3], ("noticed", 10), FIVE[3], FAILED, ("disk full", 21),
                            ("calling", 22), ("gone", 24)]),
        ("tracing_subscriber.ndjson", [*FIVE, FAILED]),
        ("postgresql.jsonlog",
         [("database system is ready to accept connections", 9),
          ("statement: do 'begin raise warning ''low stock''; end'", 9), FIVE[3]]),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)  # fmt: skip
def test_levels_and_messages_of_real_loggers(name: str, expected: list[tuple[str, int]]) -> None:
    assert [(it["body"], it["severity_number"]) for it in records(name)] == expected


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("pino.ndjson", 1), ("log4j2_EcsLayout.ndjson", 0), ("log4j2_GcpLayout.ndjson", 0),
        ("tracing_subscriber.ndjson", 2),
    ],
)  # fmt: skip
def test_the_ids_of_a_trace_become_the_records_own(name: str, at: int) -> None:
    record = records(name)[at]
    assert (record["trace_id"], record["span_id"]) == (TRACE, SPAN)


def test_a_trace_without_a_span_and_one_that_is_bound_in_an_object() -> None:
    assert [records(name)[1]["trace_id"] for name in ("zap.ndjson", "monolog.ndjson")] == [
        TRACE
    ] * 2
    assert records("zap.ndjson")[1]["attributes"]["big"] == 9_007_199_254_740_993


def test_times_keep_what_their_numbers_say() -> None:
    zerolog = [it["time_unix_nano"] for it in records("zerolog.ndjson")[3:]]
    assert zerolog == [
        1_795_715_562_978_000_000,
        1_795_715_562_978_139_000,
        1_795_715_562_978_140_119,
    ]
    assert records("zap.ndjson")[0]["time_unix_nano"] == 1_795_715_562_958_628_700
    log4j = records("log4j2_JsonLayout.ndjson")[0]["time_unix_nano"]
    assert log4j == 1_795_716_264_818_906_502


@pytest.mark.parametrize(
    ("line", "body", "number", "time"),
    [
        # Written from their documentation: nothing that makes them runs here.
        ({"@t": "2026-01-02T03:04:05.0000001Z", "@mt": "Sold {Id}", "@l": "Verbose", "Id": 7,
          "@tr": TRACE, "@sp": SPAN}, "Sold 7", 1, "2026-01-02T03:04:05"),
        ({"@t": "2026-01-02T03:04:05Z", "@m": "Sold 7", "@i": "c0ffee00"}, "Sold 7", 9,
         "2026-01-02T03:04:05"),
        ({"Timestamp": "2026-01-02 03:04:05Z", "EventId": 0, "LogLevel": "Critical",
          "Category": "Shop", "Message": "gone"}, "gone", 21, "2026-01-02T03:04:05"),
        ({"Timestamp": "2026-01-02T03:04:05.1+01:00", "Level": "Fatal",
          "MessageTemplate": "gone {@What}", "Properties": {"What": {"id": 7}}},
         'gone {"id":7}', 21, "2026-01-02T02:04:05.1"),
        ({"t": {"$date": "2026-01-02T03:04:05.006+00:00"}, "s": "W", "c": "NETWORK", "id": 22943,
          "ctx": "listener", "msg": "Slow"}, "Slow", 13, "2026-01-02T03:04:05.006"),
        ({"version": "1.1", "host": "web-1", "short_message": "lost", "level": 3,
          "timestamp": 1767323045.006, "_id": "x"}, "lost", 17, "2026-01-02T03:04:05.006"),
        ({"severity": 500, "message": "lost", "timestamp": {"seconds": 1767323045, "nanos": 6}},
         "lost", 17, "2026-01-02T03:04:05"),
        ({"severity": "EMERGENCY", "textPayload": "gone", "time": "2026-01-02T03:04:05Z",
          "logging.googleapis.com/trace": f"projects/shop/traces/{TRACE}",
          "logging.googleapis.com/spanId": SPAN}, "gone", 24, "2026-01-02T03:04:05"),
        ({"@timestamp": "2026-01-02T03:04:05Z", "log": {"level": "error", "logger": "a.B"},
          "message": "lost", "trace": {"id": TRACE}, "span": {"id": SPAN}},
         "lost", 17, "2026-01-02T03:04:05"),
        ({"levelno": 40, "msg": "lost", "asctime": "2026-01-02 03:04:05,006"}, "lost", 17,
         "2026-01-02T03:04:05.006"),
        ({"severityNumber": 18, "message": "lost", "timestamp": "1767323045006",
          "traceparent": f"00-{TRACE}-{SPAN}-01"}, "lost", 18, "2026-01-02T03:04:05.006"),
        ({"@level": "warn", "@message": "slow", "@timestamp": "2026-01-02T03:04:05.000000Z"},
         "slow", 13, "2026-01-02T03:04:05"),
    ],
    ids=["clef", "clef m", ".net", "serilog", "mongodb", "gelf", "google", "google text", "ecs",
         "python", "otel", "hclog"],
)  # fmt: skip
def test_loggers_by_their_documentation(
    line: dict[str, Any], body: str, number: int, time: str
) -> None:
    record, notes = read(json.dumps(line).encode())
    assert (record["body"], record["severity_number"], notes) == (body, number, Counter())
    expected_s = datetime.fromisoformat(f"{time}+00:00").timestamp()
    assert record["time_unix_nano"] / 1e9 == pytest.approx(expected_s, abs=1e-5)
    if TRACE in str(line):
        assert (record["trace_id"], record["span_id"]) == (TRACE, SPAN)
        assert record.get("trace_flags") == (1 if "traceparent" in line else None)


@pytest.mark.parametrize(
    ("template", "event", "body"),
    [
        ("{User} paid {Amount} in {Took:0.00} ms", {"User": "ada", "Amount": 1.5, "Took": 2},
         "ada paid 1.5 in 2 ms"),
        ("took {Took:0.00} of {Limit:000} ms", {"Took": 2, "Limit": 30, "@r": ["2.00", "030"]},
         "took 2.00 of 030 ms"),
        ("order {@Order} of {$User}", {"Order": {"id": 7, "of": [1, None]}, "User": True},
         'order {"id":7,"of":[1,null]} of true'),
        ("{{Id}} is {Id}, }} { {", {"Id": 7}, "{Id} is 7, } { {"),
        ("no {Such} {Id:x} {, } {Id Nr} {}", {"Id": 7}, "no {Such} 7 {, } {Id Nr} {}"),
        ("|{Id,4}|{Id,-4}|{Id,4:x}|", {"Id": 7}, "|   7|7   |   7|"),
        ("{0} and {1}", {"0": "a", "1": "b"}, "a and b"),
        ("no holes", {}, "no holes"),
    ],
    ids=["names", "renderings", "operators", "escapes", "unknown", "alignment", "indexes", "none"],
)  # fmt: skip
def test_a_message_template_is_rendered_with_the_events_properties(
    template: str, event: dict[str, Any], body: str
) -> None:
    given = {"@t": "2026-01-02T03:04:05Z", "@mt": template, **event}
    record, notes = read(json.dumps(given).encode())
    assert (record["body"], notes) == (body, Counter())
    assert record["attributes"].get("@mt") == (None if body == template else template)
    record, _ = read(json.dumps({**given, "@m": "as it came"}).encode())
    assert (record["body"], record["attributes"]["@mt"]) == ("as it came", template)


def test_a_rendered_template_keeps_to_the_bounds_of_a_body() -> None:
    given = {"@t": "2026-01-02T03:04:05Z", "@mt": "{A}" * 5000, "A": "x" * 1000}
    record, _ = read(json.dumps(given).encode())
    assert record["body"] == "x" * STRING_CHARACTERS_MAX
    assert record["attributes"]["log.record.truncated"] is True


def test_what_is_not_understood_is_kept_and_counted() -> None:
    record, notes = read(b'{"level":"loud","time":"soon","msg":"hi","trace_id":"7"}')
    assert (record["severity_number"], record["time_unix_nano"]) == (9, NOW_NS)
    assert record["attributes"] == {"level": "loud", "time": "soon", "trace_id": "7"}
    assert notes == {"levels_unknown": 1, "timestamps_unreadable": 1}
    record, notes = read(b'{"level":3,"time":0.25,"text":"a number of no known logger"}')
    assert record["attributes"] == {
        "level": 3, "time": 0.25, "text": "a number of no known logger",
    }  # fmt: skip
    assert notes == {"levels_unknown": 1, "timestamps_unreadable": 1}
    _, notes = read(b'{"level":"loud","severity":"warn","ts":5,"time":"2026-01-02T03:04:05Z"}')
    assert not notes  # another field says it


@pytest.mark.parametrize(
    ("value", "kept", "repaired"),
    [
        (b"1e400", "1e400", True), (b"NaN", "NaN", True), (b"-Infinity", "-Infinity", True),
        (b'"\\ud800 x"', "\ufffd x", True), (b'"caf\xe9"', "caf\ufffd", True), (b"1,", 1, True),
        (b"[1,2,]", [1, 2], True), (b'"a,}"', "a,}", False),
        (b"123456789012345678901234", "123456789012345678901234", False),
        (b"18446744073709551615", "18446744073709551615", False),
    ],
)  # fmt: skip
def test_one_odd_value_does_not_make_text_of_a_json_line(
    value: bytes, kept: Any, *, repaired: bool
) -> None:
    for before in (b"", b"\xef\xbb\xbf", b"  "):
        record, notes = read(before + b'{"level":"error","msg":"hi","a":%b}' % value)
        assert (record["body"], record["severity_number"]) == ("hi", 17)
        assert record["attributes"] == {"a": kept}
        assert notes == ({"lines_repaired": 1} if repaired else {})


def test_what_is_no_json_for_any_reader_is_text() -> None:
    for line in (b'{"level":"info"', b"{level: info}", b'{"level":"info"} {"level":"info"}'):
        record, notes = read(line)
        assert (record["body"], notes) == (line.decode(), Counter())
    record, _ = read(b"\xef\xbb\xbfplain text")
    assert record["body"] == "plain text"

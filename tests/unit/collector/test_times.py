"""Times as programs write them."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.line_rules import rules_of
from penstock.collector.decode.lines import LineContext, PlainLines, decode_line
from penstock.collector.decode.timestamps import (
    LAYOUTS,
    UnknownLayoutError,
    epoch_time_ns,
    layouts_of,
    line_reader,
    text_time_ns,
    time_of,
    times_of,
)
from penstock.collector.decode.units import decode_records
from penstock.collector.spool.spool import Unit
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

SENDERS = Path("tests/golden/senders")
NOW_NS = 1_795_700_000_000_000_000
"""In November 2026."""
NOW_S = NOW_NS // 10**9
BERLIN = ZoneInfo("Europe/Berlin")
AUTO = layouts_of(["auto"])


def ns(text: str) -> int:
    """A time in UTC, exactly."""
    moment, _, fraction = text.partition(".")
    whole = datetime.fromisoformat(f"{moment}+00:00") - datetime(1970, 1, 1, tzinfo=UTC)
    return whole // timedelta(seconds=1) * 10**9 + int(fraction.ljust(9, "0"))


@pytest.mark.parametrize(
    ("text", "layout", "expected"),
    [
        ("2024-03-01T12:00:00.123456789Z", "iso8601", "2024-03-01T12:00:00.123456789"),
        ("2024-03-01 12:00:00,123", "log4j", "2024-03-01T12:00:00.123"),
        ("2024-03-01 12:00:00 +01:00", "rfc3339", "2024-03-01T11:00:00"),
        ("2024-03-01 12:00:00.123 UTC", "postgres", "2024-03-01T12:00:00.123"),
        ("2024-03-01 12:00:00.123 CET", "postgres", "2024-03-01T11:00:00.123"),
        ("2024/03/01 12:00:00", "nginx", "2024-03-01T12:00:00"),
        ("2024/03/01 12:00:00.000004", "go", "2024-03-01T12:00:00.000004"),
        ("24/03/01 12:00:00", "spark", "2024-03-01T12:00:00"),
        ("240301 120000", "hdfs", "2024-03-01T12:00:00"),
        ("240301  9:00:00", "mysql", "2024-03-01T09:00:00"),
        ("01/Mar/2024:12:00:00 +0100", "clf", "2024-03-01T11:00:00"),
        ("Fri Mar 01 12:00:00.123456 2024", "apache_error", "2024-03-01T12:00:00.123456"),
        ("Fri Mar  1 12:00:00 UTC 2024", "apache_error", "2024-03-01T12:00:00"),
        ("Fri, 01 Mar 2024 12:00:00 GMT", "rfc1123", "2024-03-01T12:00:00"),
        ("Mar 01, 2024 12:00:00 AM", "jul", "2024-03-01T00:00:00"),
        ("Nov 26, 2026 5:53:18\u202fPM", "jul", "2026-11-26T17:53:18"),
        ("01 Mar 2024 12:00:00.123", "redis", "2024-03-01T12:00:00.123"),
        ("Mar  1 12:00:00", "rfc3164", "2027-03-01T12:00:00"),
        ("Oct  1 12:00:00", "rfc3164", "2026-10-01T12:00:00"),
        ("E0726 12:34:56.123456", "klog", "2026-07-26T12:34:56.123456"),
        ("10-17 16:13:38.811", "android", "2026-10-17T16:13:38.811"),
        ("2024-03-01-12.00.00.363779", "dotted", "2024-03-01T12:00:00.363779"),
        ("1709294400.5", "epoch", "2024-03-01T12:00:00.5"),
        ("1709294400123456789", "epoch", "2024-03-01T12:00:00.123456789"),
    ],
)  # fmt: skip
def test_named_layouts_are_read_by_name_found_and_told_apart(
    text: str, layout: str, expected: str
) -> None:
    assert text_time_ns(text, NOW_NS, UTC, layouts_of([layout])) == ns(expected)
    assert text_time_ns(text, NOW_NS) == ns(expected)
    for line in (text, f"{text} and more", f"[{text}] and more", f"10.0.0.1 - ada [{text}] x"):
        assert line_reader(AUTO, UTC)(line, NOW_NS) == ns(expected), line


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2024-13-01 12:00:00", "2024-02-30 12:00:00", "99/Mar/2024:12:00:00 +0100",
     "2024-03-01 25:00:00", "Foo 01 12:00:00", "2024-03-01 12:00:00 XYZQ", "12", "1e9",
     "2024-03-01 12:00:00 +99:00"],
)  # fmt: skip
def test_what_is_no_time_is_none(text: str) -> None:
    assert text_time_ns(text, NOW_NS) is None
    assert time_of(text, NOW_NS) is None


def test_a_zone_counts_where_the_text_names_none_and_summer_time_is_known() -> None:
    read = line_reader(AUTO, BERLIN)
    assert read("2024-03-01 12:00:00 INFO x", NOW_NS) == ns("2024-03-01T11:00:00")
    assert read("2024-07-01 12:00:00 INFO x", NOW_NS) == ns("2024-07-01T10:00:00")
    assert read("2024-07-01 12:00:00Z INFO x", NOW_NS) == ns("2024-07-01T12:00:00")


def test_layouts_may_be_written_as_for_strptime() -> None:
    layouts = layouts_of(["%d.%m.%Y %H:%M:%S,%f", "%I:%M %p on %b %d %Y", "at %s"])
    for text, expected in (
        ("01.03.2024 12:00:00,25", "2024-03-01T12:00:00.25"),
        ("01:30 PM on Mar 01 2024", "2024-03-01T13:30:00"),
        ("at 1709294400", "2024-03-01T12:00:00"),
    ):
        assert text_time_ns(text, NOW_NS, UTC, layouts) == ns(expected)


@pytest.mark.parametrize(
    ("layout", "said"),
    [("apache-error", "name one of .*apache_error"), ("%Q", "%Q is not known"), ("%d %d", "twice")],
)
def test_a_layout_that_is_none_is_explained(layout: str, said: str) -> None:
    with pytest.raises(UnknownLayoutError, match=said):
        layouts_of([layout])


def test_numbers_are_times_by_their_magnitude() -> None:
    at = 1_709_294_400
    for unit in (1, 10**3, 10**6, 10**9):
        assert epoch_time_ns(at * unit) == time_of(str(at * unit), NOW_NS) == at * 10**9
    assert epoch_time_ns(at + 0.1234567) == at * 10**9 + 123_456_700
    for value in (0, -1, 5, 0.25, 10**8 - 1, 10**20, float("inf"), float("nan"), True):
        assert time_of(value, NOW_NS) is None


@given(st.text(max_size=60))
def test_any_text_is_a_time_or_none(text: str) -> None:
    found = time_of(text, NOW_NS)
    assert found is None or 0 <= found < 1 << 63
    line_reader(AUTO, UTC)(text, NOW_NS)


@given(st.datetimes(datetime(1973, 5, 1), datetime(2068, 1, 1)))  # noqa: DTZ001 - UTC
def test_what_strftime_writes_is_read(moment: datetime) -> None:
    at_ns = ns(f"{moment:%Y-%m-%dT%H:%M:%S.%f}")
    layout = "%Y-%m-%d %H:%M:%S.%f"
    assert text_time_ns(f"{moment:{layout}}", NOW_NS, UTC, layouts_of([layout])) == at_ns
    spark = [LAYOUTS["spark"]]
    assert text_time_ns(f"{moment:%y/%m/%d %H:%M:%S.%f}", NOW_NS, UTC, spark) == at_ns


def read_lines(name: str, **options: Any) -> list[tuple[int, int]]:
    """Severity and seconds of each line's record."""
    context = LineContext({"service.name": "s"}, {}, rules_of(options))
    found = []
    for line in (SENDERS / name).read_bytes().splitlines():
        notes: Counter[str] = Counter()
        made, _ = decode_line(line, context, NOW_NS, truncated=False, notes=notes)
        assert isinstance(check_line(made), Accepted)
        plain = PlainLines(context, NOW_NS).make(line)
        assert plain == (made, check_line(made)) or (plain is None and notes)
        record = json.loads(made)
        found.append((record["severity_number"], record["time_unix_nano"] // 10**9))
    return found


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("klog.log", [9, 13, 13, 17, 17, 17]),
        ("log4j2_Pattern.log", [1, 5, 9, 13, 17, 21]),
        ("postgresql.log", [9, 17, 9, 13]),
    ],
)
def test_time_and_severity_of_real_lines_are_found_when_asked(name: str, levels: list[int]) -> None:
    found = read_lines(name, detect=["severity", "time"])
    assert [level for level, _ in found] == levels
    assert all(1_795_715_000 < at < 1_795_716_500 for _, at in found)
    assert read_lines(name) == [(9, NOW_S)] * len(levels)
    assert {level for level, _ in read_lines(name, detect=["time"])} == {9}
    assert {at for _, at in read_lines(name, detect=["severity"])} == {NOW_S}


def test_java_util_logging_has_its_time_and_its_level_on_lines_of_their_own() -> None:
    found = read_lines("java_util_logging.log", detect=["severity", "time"])
    assert [level for level, _ in found[1::2]] == [1, 6, 7, 9, 13, 17]
    assert len({at for _, at in found[::2]} - {NOW_S}) == 1


def test_a_time_stands_where_the_configuration_says() -> None:
    given = {"pattern": r"at=(?P<time>\S+)", "layouts": ["%d.%m.%YT%H:%M"], "timezone": "UTC"}
    context = LineContext(
        {"service.name": "s"}, {}, rules_of({"timestamp": {**given, "field": "when"}})
    )
    notes: Counter[str] = Counter()

    def time_ns(line: bytes) -> int:
        made, _ = decode_line(line, context, NOW_NS, truncated=False, notes=notes)
        plain = PlainLines(context, NOW_NS).make(line)
        assert plain is None or plain[0] == made
        return int(json.loads(made)["time_unix_nano"])

    noon = ns("2024-03-01T12:00:00")
    assert time_ns(b"x at=01.03.2024T12:00 y") == noon
    assert time_ns(b'{"when":"01.03.2024T12:00","level":"info","time":5}') == noon
    assert time_ns(b'{"when":"01.03.2024T12:00"}') == noon
    assert not notes
    assert time_ns(b"no time") == NOW_NS
    assert notes == {"timestamps_unreadable": 1}


@pytest.mark.parametrize("key", ["timezone", "zone"])  # the second in units of older releases
@pytest.mark.parametrize("on_error", ["filter", "quarantine"])
def test_a_line_whose_time_cannot_be_read_ends_as_configured(on_error: str, key: str) -> None:
    timestamp = {"pattern": None, "layouts": ["auto"], key: "UTC", "field": "when"}
    lines = [
        b"2026-01-01T00:00:00Z hi", b"no time", b'{"when":"2026-01-01T00:00:00Z"}',
        b'{"when":"soon","time":"2026-01-01T00:00:00Z"}', b'{"level":"info"}',
        b'{"level":"info","time":"2026-01-01T00:00:00Z"}', b'{"level":"info","time":"soon"}',
    ]  # fmt: skip
    for field, ended in (("when", [1, 3, 4, 6]), (None, [1, 4, 6])):
        given = {**timestamp, "field": field}
        for told, expected in ((on_error, dict.fromkeys(ended, on_error)), ("pass", {})):
            rules = {"timestamp": {**given, "on_error": told}}
            payload = b"\n".join(
                lines if field else [*lines[:2], b"2026-01-01 00:00:00", *lines[3:]]
            )
            unit = Unit("s", "lines", payload, 7, NOW_NS, {"service": "s", "rules": rules})
            found = decode_records(unit, {})
            assert (found.ended, found.count) == (expected, 7)
            assert found.notes == {"timestamps_unreadable": len(ended)}


@pytest.mark.parametrize("value", [64_268_800_125, 64_268_800_125.5, "64268800125", 2**63])
def test_a_number_that_is_no_time_of_a_record_is_none(value: Any) -> None:
    assert time_of(value, NOW_NS) is None


ARABIC = "\u0661\u0662\u0663\u0664\u0665\u0666"
SECONDS = [
    "2026-01-02T03:04:05", "2026-01-02 03:04:06", "2262-04-11T23:47:16", "1969-12-31T23:59:59",
    "1970-01-01T00:00:00", "2026-02-30T00:00:00", "2026-01-02T24:00:00", "2026-01-02T03:04:60",
    "2026-W01-1T03:04:05", "2026-01-02T03:04+05", "2026-01-02T03:04", "\u0662026-01-02T03:04:05",
]  # fmt: skip
FRACTIONS = [
    ".123456", ",123456", ".000000", ".999999", ".12 456", ".+12345", ".1_3456", "." + ARABIC,
    "+012345", ".12345", ".1234567", ".123456789", ".1234567890", "",
]  # fmt: skip
ZONES = ["Z", "z", "\n", "", "+01:00", "-01:00", "+25:00", "+01:00:00.1234567", " UTC", " EST"]


def some(values: list[str]) -> st.SearchStrategy[list[str]]:
    """One or two, the first mostly."""
    return st.lists(st.sampled_from(values[:1] * 4 + values), min_size=1, max_size=2)


@given(some(SECONDS), some(FRACTIONS), some(ZONES), st.sampled_from([[], [5], [None], ["soon"]]))
def test_times_that_are_read_together_are_those_that_each_is(
    seconds: list[str], fractions: list[str], zones: list[str], others: list[Any]
) -> None:
    texts = [*map("".join, product(seconds, fractions, zones)), *others]
    for first in range(len(texts)):
        together = texts[first:] + texts[:first]
        assert times_of(together, NOW_NS) == [time_of(text, NOW_NS) for text in together]


@pytest.mark.parametrize("second", SECONDS)
def test_times_of_one_layout_are_those_that_each_is(second: str) -> None:
    for digits, zone in product(range(11), ZONES):
        texts = [
            f"{start}.{number:0{digits}}{zone}"
            for start in (second, SECONDS[0])
            for number in (0, 1, 10**digits - 1)
        ]
        for together in (texts, texts[:3], texts[3:] + texts[:3]):
            assert times_of(together, NOW_NS) == [time_of(text, NOW_NS) for text in together]


@pytest.mark.parametrize("fraction", [".123457", "." + ARABIC, ".12345", ".1234567", ",123457"])
def test_a_time_of_another_layout_is_read_by_itself(fraction: str) -> None:
    for zone, other in (("Z", "z"), ("+01:00", "+02:00"), ("+01:00:00", "+01:00:00"), ("", "Z")):
        texts = [
            SECONDS[0] + ".123456" + zone, SECONDS[0] + fraction + other,
            SECONDS[0] + fraction + zone, SECONDS[0] + ".5" + zone,
        ]  # fmt: skip
        for together in (texts[:2], texts):
            assert times_of(together, NOW_NS) == [time_of(text, NOW_NS) for text in together]

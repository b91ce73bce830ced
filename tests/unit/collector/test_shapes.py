"""What is made and judged by its shape is what it would be by itself."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.lines import LineContext, PlainLines, decode_line, log_record
from penstock.collector.decode.shapes import ShapedEvents
from penstock.specs.limits import ATTRIBUTES_MAX, INT64_MAX, INT64_MIN, STRING_CHARACTERS_MAX
from penstock.specs.validate.validator import check_line

NOW_NS = 1_767_000_000_000_000_000
RESOURCE = {"service.name": "shop"}
ADDED = {"log.file.path": "/var/log/shop.log"}
CONTEXT = LineContext(RESOURCE, ADDED)

KEYS = st.sampled_from(
    ["level", "severity", "lvl", "timestamp", "time", "ts", "event", "message", "msg", "log", "a",
     "log.file.path", "", "é", "k" * 128, "k" * 129, "schema", "body"]
)  # fmt: skip
VALUES = st.sampled_from(
    ["info", " ERROR ", "loud", "", "paid", "é", "x" * (STRING_CHARACTERS_MAX + 1), "\0", "\ud800",
     "2026-01-02T03:04:05.123456789Z", "2026-01-02", "1969-01-01", "9999-01-01", None, True, False,
     0, 1, -1, 1_767_000_000, 1_767_000_000.5, INT64_MAX, INT64_MIN, INT64_MAX + 1, 1 << 64, 0.0,
     1.5, float("inf"), float("nan"), [], [1], ["a", 1], {}, {"b": 1}, b"bytes"]
)  # fmt: skip
EVENTS = st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=4)


@given(events=EVENTS, timed=st.booleans())
def test_a_plain_event_makes_the_record_that_any_event_makes(
    events: list[dict[str, Any]], *, timed: bool
) -> None:
    plain = ShapedEvents(RESOURCE, ADDED, NOW_NS, timed=timed)
    time_ns = 7 if timed else None
    for fields in events:
        made = plain.make(fields, time_ns=time_ns)
        if made is None:
            continue
        expected = log_record(dict(fields), ADDED, RESOURCE, NOW_NS, time_ns=time_ns)
        assert made == (orjson.dumps(expected), check_line(made[0]))


LINES = st.dictionaries(KEYS, VALUES.filter(lambda value: value.__class__ is not bytes), max_size=5)


@given(st.lists(LINES.map(lambda fields: json.dumps(fields).encode()), max_size=4))
def test_a_structured_line_makes_the_record_that_it_makes_alone(lines: list[bytes]) -> None:
    plain = PlainLines(CONTEXT, NOW_NS)
    for line in lines:
        made = plain.make(line)
        one, _ = decode_line(line, CONTEXT, NOW_NS, truncated=False)
        assert made is None or made == (one, check_line(one))


def test_of_events_of_one_shape_the_first_is_judged() -> None:
    judged: list[bytes] = []

    def judge(line: bytes) -> Any:
        judged.append(line)
        return check_line(line)

    plain = ShapedEvents(RESOURCE, ADDED, NOW_NS, timed=False, check=judge)
    events = [{"level": "info", "event": f"order {number}", "n": number} for number in range(50)]
    found = [plain.make(fields) for fields in (*events, {"level": "error", "total": 1.5})]
    assert len(judged) == 2
    made = [one for one in found if one is not None]
    assert made == [(line, check_line(line)) for line, _ in made]
    assert len(made) == 51


@pytest.mark.parametrize(
    "fields",
    [
        {"level": "loud"},
        {"level": 3},
        {"ts": "yesterday"},
        {"event": ""},
        {"event": ["a"]},
        {"event": "x" * (STRING_CHARACTERS_MAX + 1)},
        {"n": INT64_MAX + 1},
        {"n": float("nan")},
        {"n": [1]},
        {"n": {"deep": 1}},
        {"n": "x" * (STRING_CHARACTERS_MAX + 1)},
        {1: "a key that is no text"},
        {"": 1},
        {f"k{number}": 1 for number in range(ATTRIBUTES_MAX)},
    ],
)
def test_what_is_not_plain_is_left_to_be_looked_at(fields: dict[Any, Any]) -> None:
    plain = ShapedEvents(RESOURCE, ADDED, NOW_NS, timed=False)
    assert plain.make({"level": "info", "event": "a", "ts": 1_700_000_000, "n": 1}) is not None
    assert plain.make(fields) is None


def test_where_the_gate_refuses_the_first_each_is_judged() -> None:
    plain = ShapedEvents({"service.name": ""}, {}, NOW_NS, timed=False)
    for _ in range(2):
        made = plain.make({"level": "info", "event": "a"})
        assert made is not None
        assert made[1] is None

"""Records of one request: the fast way and the other make the same, and say the same of it."""

import json
from typing import Any

import pytest

from penstock.collector.decode.senders.record_maker import About, RecordMaker
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

NOW_NS = 1_764_268_800_000_000_000
EVENTS: list[dict[str, Any]] = [
    {"message": "m", "level": "warn", "a": 1, "b": 2.5, "c": None, "d": True},
    {"message": "m", "time": "2025-11-27T18:40:00Z"},
    {"msg": "m", "level": 30, "pid": 1, "hostname": "h"},
    {"a": "b"},
    {"message": "m", "trace_id": "ab" * 16, "span_id": "cd" * 8},
    {"message": "m", "origin": "its own"},
]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("is_line", [True, False])
@pytest.mark.parametrize("time_ns", [None, NOW_NS - 5])
@pytest.mark.parametrize("level", ["", "error"])
def test_both_ways_make_the_same_record_of_an_event(
    event: dict[str, Any], is_line: bool, time_ns: int | None, level: str
) -> None:
    """An attribute that is no text leaves the fast way."""
    maker = RecordMaker({"site": "a"}, NOW_NS)
    resource = maker.resource_of("shop", "web-1")
    made = []
    for more in {}, {"number": 5}:
        about = About({"origin": "o", **more}, time_ns, level)
        line, verdict = maker.event(dict(event), resource, about, is_line=is_line)
        assert (verdict is not None) is (not more)
        assert verdict in (None, check_line(line))
        record = json.loads(line)
        record["attributes"].pop("number", None)
        made.append(record)
    assert made[0] == made[1]


def test_the_verdict_on_a_line_is_the_validators() -> None:
    maker = RecordMaker({}, NOW_NS)
    resources = maker.resource_of("shop"), maker.resource_of("till", "web-1")
    for attributes in {}, {"a": "b"}, {"a": 5}, {"trace_id": "ab" * 16}, {"a": ["b"]}:
        for resource in resources:
            for text in "one", "two", "x" * 40_000, b"\xff":
                line, verdict = maker.text(text, resource, About(attributes, NOW_NS - 5, "warn"))
                expected = check_line(line)
                assert isinstance(expected, Accepted)
                assert verdict == (None if attributes == {"a": ["b"]} else expected)


def test_only_the_first_origins_of_a_request_are_remembered() -> None:
    """Each event of a request is validated alone."""
    maker = RecordMaker({}, NOW_NS)
    resource = maker.resource_of("shop")
    verdicts = [
        maker.event({"message": "m"}, resource, About({"id": str(number)}))[1]
        for number in range(200)
    ]
    assert verdicts.count(None) == 200 - 64

"""StatsD lines and what they are aggregated to."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.metrics import metric_line
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import STATSD_SET_MEMBERS_MAX
from penstock.collector.sources.statsd.aggregation import Verdict, Window
from penstock.collector.sources.statsd.protocol import Kind, Notice, Sample, parse_line
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

BEGAN, NOW = 1_000_000_000, 11_000_000_000


def window(*lines: bytes, max_series: int = 100) -> Window:
    made = Window(max_series=max_series, now_ns=BEGAN)
    for line in lines:
        sample = parse_line(line)
        assert isinstance(sample, Sample)
        made.add(sample)
    return made


def points(made: Window, now_ns: int = NOW) -> dict[str, dict[str, Any]]:
    found = made.flush(now_ns)
    for point in found:
        line = metric_line(
            point.name, point.unit, dict(point.tags), point.typed,
            time_ns=point.time_ns, observed_ns=now_ns, resource={"service.name": "s"},
        )  # fmt: skip
        assert isinstance(check_line(line), Accepted), (check_line(line), line)
    return {point.name: point.typed for point in found}


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        (b"a:1|c", Sample(Kind.COUNTER, "a", (), (1.0,))),
        (b"a:-1.5|c|@0.1", Sample(Kind.COUNTER, "a", (), (-1.5,), rate=0.1)),
        (b"a:1|c|@0", Sample(Kind.COUNTER, "a", (), (1.0,))),
        (b"a:320|ms|@0.1", Sample(Kind.TIMER, "a", (), (320.0,), rate=0.1)),
        (b"a:7|g", Sample(Kind.GAUGE, "a", (), (7.0,))),
        (b"a:-7|g", Sample(Kind.GAUGE, "a", (), (-7.0,), relative=True)),
        (b"a:+7|g", Sample(Kind.GAUGE, "a", (), (7.0,), relative=True)),
        (b"a:x:y|s", Sample(Kind.SET, "a", (), members=(b"x:y",))),
        (b"a:1:2:3|h", Sample(Kind.HISTOGRAM, "a", (), (1.0, 2.0, 3.0))),
        (b"a:1|d|#b:1,f,b:2", Sample(Kind.DISTRIBUTION, "a", (("b", "2"), ("f", True)), (1.0,),
                                       lost=("tags_repeated",))),
        (b"a:1|c|@1|@0.5", Sample(Kind.COUNTER, "a", (), (1.0,), rate=0.5,
                                  lost=("fields_repeated",))),
        (b"a:7|g|@0.5", Sample(Kind.GAUGE, "a", (), (7.0,), rate=0.5, lost=("rates_dropped",))),
        (b"a:x|s|@0.5|T5", Sample(Kind.SET, "a", (), members=(b"x",),
                                  lost=("rates_dropped", "times_dropped"))),
        (b"a:1|ms|T5", Sample(Kind.TIMER, "a", (), (1.0,), time_s=5, lost=("times_dropped",))),
        (b"a:1|c|#x:y:z|c:ci-1|T1656581400|e:it",
         Sample(Kind.COUNTER, "a", (("container.id", "ci-1"), ("x", "y:z")), (1.0,),
                time_s=1656581400, unknown=("e",))),
        (b"a:1|c|card:low|x|k:v|",
         Sample(Kind.COUNTER, "a", (), (1.0,), unknown=("card", "x", "k"))),
    ],
)  # fmt: skip
def test_a_line_is_read_as_the_protocol_says(line: bytes, sample: Sample) -> None:
    assert parse_line(line) == sample


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"a", b"a:1", b"a:|c", b":1|c", b"a:x|c", b"a:nan|g", b"a:inf|g", b"a:1|x",
        b"a:1_0|c", b"a:1|c|@2",
        b"a:1|c|@x", b"a:1|c|T-1", b"a:1|c|#" + b",".join(b"%d" % n for n in range(65)),
        b"_e{5,4}:title|tex", b"_e{1,1}:title|text", b"_e{a}:b", b"_sc|name", b"_sc|name|4",
        b"a" * 9000 + b":1|c",
    ],
)  # fmt: skip
def test_what_is_no_line_is_refused(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_line(line)


def test_an_event_and_a_check_are_read() -> None:
    event = parse_line("_e{6,7}:Grüß|a\\nbäc|d:5|h:web|p:low|t:warning|k:g|#env:x".encode())
    assert event == Notice(
        "dogstatsd.event", "Grüß\na\nbäc", "warning", (("env", "x"),),
        {"priority": "low", "aggregation_key": "g", "host": "web", "alert_type": "warning"}, 5,
    )  # fmt: skip
    check = parse_line(b"_sc|db.up|2|d:5|h:web|#a|m:gone")
    facts = {"check": "db.up", "status": "2", "host": "web"}
    assert check == Notice("dogstatsd.service_check", "gone", "error", (("a", True),), facts, 5)
    assert parse_line(b"_e{1,1}:a|b|m:no").unknown == ("m",)
    assert parse_line(b"_sc|db.up|0|t:no").unknown == ("t",)


def test_counters_add_up_by_rate_and_series() -> None:
    found = points(window(b"a:1|c", b"a:2|c|@0.1", b"b:1|c|#x:1", b"b:-4|c|#x:1"))
    assert found["a"] == {
        "metric_type": "sum", "value": 21.0, "is_monotonic": False, "temporality": "delta",
        "start_time_unix_nano": BEGAN,
    }  # fmt: skip
    assert found["b"]["value"] == -3.0


def test_gauges_are_set_changed_and_remembered() -> None:
    made = window(b"a:5|g", b"a:-2|g", b"a:+4|g")
    assert points(made)["a"]["value"] == 7.0
    assert points(made) == {}
    made.add(Sample(Kind.GAUGE, "a", (), (1.0,), relative=True))
    assert points(made)["a"]["value"] == 8.0


def test_timers_count_what_their_rate_stands_for() -> None:
    found = points(window(b"a:10|ms|@0.5", b"a:20|ms", b"b:1:2:3|h", b"c:1|d|@0.3", b"c:1|d|@0.3",
                          b"c:1|d|@0.3"))  # fmt: skip
    assert (found["a"]["count"], found["a"]["sum"]) == (3, 40.0)
    assert (found["a"]["min"], found["a"]["max"]) == (10.0, 20.0)
    assert (found["b"]["count"], found["c"]["count"]) == (3, 10)


def test_sets_count_different_members() -> None:
    assert points(window(b"a:x|s", b"a:y|s", b"a:x|s"))["a"]["value"] == 2


def test_a_value_with_a_time_is_passed_on() -> None:
    made = window(b"a:5|c|T2", b"a:6|c|T3", b"g:1|g|T4")
    assert [(p.name, p.time_ns, p.typed["value"]) for p in made.flush(NOW)] == [
        ("a", 2_000_000_000, 5.0), ("a", 3_000_000_000, 6.0), ("g", 4_000_000_000, 1.0),
    ]  # fmt: skip


def test_an_interval_begins_where_the_last_one_ended() -> None:
    made = window(b"a:1|c")
    made.flush(NOW)
    made.add(Sample(Kind.COUNTER, "a", (), (1.0,)))
    assert points(made, NOW + 5)["a"]["start_time_unix_nano"] == NOW


def test_series_and_members_beyond_the_bounds_are_refused() -> None:
    made = window(b"a:1|c", b"b:1|g", max_series=2)
    one = Sample(Kind.TIMER, "c", (), (1.0,))
    assert made.add(one) is Verdict.TOO_MANY_SERIES
    assert made.add(Sample(Kind.COUNTER, "a", (), (1.0,))) is Verdict.AGGREGATED
    made.flush(NOW)
    assert made.add(one) is Verdict.AGGREGATED
    members = tuple(b"%d" % number for number in range(STATSD_SET_MEMBERS_MAX))
    assert made.add(Sample(Kind.SET, "s", (), members=members)) is Verdict.AGGREGATED
    more = Sample(Kind.SET, "s", (), members=(b"more",))
    assert made.add(more) is Verdict.TOO_MANY_MEMBERS
    made.flush(NOW)
    assert made.add(more) is Verdict.AGGREGATED, "the bound is that of an interval"


@given(st.binary(max_size=40), st.sampled_from([b"", b"a:", b"_e{1,1}:", b"_sc|", b"a:1|c|"]))
def test_no_bytes_make_the_parser_raise_anything_else(noise: bytes, head: bytes) -> None:
    try:
        found = parse_line(head + noise)
    except RemoteProtocolError:
        return
    if isinstance(found, Sample):
        made = Window(max_series=10, now_ns=BEGAN)
        made.add(found)
        points(made)


@pytest.mark.parametrize("rate", [b"1e-300", b"5e-324", b"9e-7", b"-0.1", b"1.1"])
def test_a_rate_that_no_count_can_hold_is_refused(rate: bytes) -> None:
    """Such a timer would count more than JSON's integers hold, or be infinite."""
    with pytest.raises(RemoteProtocolError):
        parse_line(b"a:1|ms|@" + rate)


def test_samples_that_are_passed_on_are_bounded_also_in_a_series_that_is_known() -> None:
    made = window(b"a:1|c", *[b"a:1|c|T1"] * 20, max_series=10)
    assert len(made.flush(NOW)) == 10


def test_a_counter_with_a_time_of_its_own_is_passed_on_by_its_rate() -> None:
    made = window(b"hits:3|c|@0.5|T7")
    (point,) = made.flush(NOW)
    assert (point.name, point.time_ns) == ("hits", 7_000_000_000)
    assert point.typed == {
        "metric_type": "sum",
        "value": 6.0,
        "is_monotonic": False,
        "temporality": "delta",
        "start_time_unix_nano": 7_000_000_000,
    }
    (gauge,) = window(b"depth:4|g|T7").flush(NOW)
    assert gauge.typed == {"metric_type": "gauge", "value": 4.0}


def test_a_timer_is_in_milliseconds_and_a_histogram_has_no_unit() -> None:
    found = window(b"t:1|ms", b"h:1|h").flush(NOW)
    assert {point.name: point.unit for point in found} == {"t": "ms", "h": "1"}


def test_series_of_all_kinds_count_together() -> None:
    made = window(b"a:1|c", b"b:1|ms", b"c:x|s", b"d:1|g", b"e:1|c|T7", max_series=5)
    assert made.add(sample_of(b"f:1|c")) is Verdict.TOO_MANY_SERIES
    assert sorted(points(made)) == ["a", "b", "c", "d", "e"]


def test_of_too_many_gauges_the_one_not_set_for_longest_is_forgotten() -> None:
    made = window(b"a:1|g", b"b:2|g", max_series=2)
    points(made)
    for line in (b"a:+1|g", b"c:3|g"):
        made.add(sample_of(line))
    assert points(made) == {"a": gauge(2.0), "c": gauge(3.0)}
    for line in (b"b:+1|g", b"c:+1|g"):
        made.add(sample_of(line))
    assert points(made) == {"b": gauge(1.0), "c": gauge(4.0)}, "b begins again at nothing"
    assert made.forgotten_gauges == 2


def sample_of(line: bytes) -> Sample:
    sample = parse_line(line)
    assert isinstance(sample, Sample)
    return sample


def gauge(value: float) -> dict[str, Any]:
    return {"metric_type": "gauge", "value": value}

"""Prometheus's exposition in protobuf, made by hand from `io.prometheus.client`'s description."""

import math
from typing import Any

import pytest

from penstock.collector.decode.metrics import metric_line
from penstock.collector.decode.prometheus.exposition import Scraped, read_exposition
from penstock.collector.decode.prometheus.exposition_protobuf import ACCEPT
from penstock.collector.errors import UndecodableError
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.protobuf_bytes import encode

NOW = 1_700_000_000_000_000_000
COUNTER, GAUGE, SUMMARY, UNTYPED, HISTOGRAM = range(5)


def field(number: int, value: int | bytes) -> bytes:
    return encode({number: value})


def double(number: int, value: float) -> bytes:
    return encode({number: float(value)})


def signed(number: int, value: int) -> bytes:
    """A field of the type sint32 or sint64."""
    return field(number, value << 1 ^ value >> 63)


def label(name: str, value: str) -> bytes:
    return field(1, field(1, name.encode()) + field(2, value.encode()))


def family(name: str, kind: int, *metrics: bytes, unit: str = "") -> bytes:
    message = field(1, name.encode()) + field(2, b"help") + field(3, kind)
    message += b"".join(field(4, one) for one in metrics)
    message += field(5, unit.encode()) if unit else b""
    return encode({1: message})[1:]  # a field's bytes have the same length before them


def spans(number: int, *each: tuple[int, int]) -> bytes:
    return b"".join(field(number, signed(1, offset) + field(2, n)) for offset, n in each)


def native(*, count: int = 7, schema: int = 3, more: bytes = b"") -> bytes:
    """Two values of 0, two and one above 1, and two of negative values."""
    made = field(1, count) + double(2, 5.5) + signed(5, schema) + double(6, 1e-9) + field(7, 2)
    made += spans(12, (1, 1), (2, 1)) + signed(13, 2) + signed(13, -1)
    made += spans(9, (0, 1)) + signed(10, 2)
    return made + more


def read(body: bytes, **options: Any) -> Scraped:
    keys = {"scrape_ns": NOW, "first_scrape_ns": NOW - 5, "max_samples": 1000, **options}
    found = read_exposition(body, f"{ACCEPT}; charset=utf-8", **keys)
    for point in found.points:
        line = metric_line(
            point.name, point.unit, point.labels, point.typed,
            time_ns=point.time_ns or NOW, observed_ns=NOW, resource={"service.name": "x"},
        )  # fmt: skip
        assert isinstance(check_line(line), Accepted), (check_line(line), line)
    return found


def test_a_native_histogram_is_an_exponential_one() -> None:
    exemplar = field(16, label("trace_id", "a" * 32) + double(2, 1.5))
    created = field(15, field(1, 1_600_000_000) + field(2, 7))
    body = family(
        "latency_seconds", HISTOGRAM,
        label("path", "/") + field(7, native(more=exemplar + created)), unit="seconds",
    )  # fmt: skip
    (point,) = read(body).points
    assert (point.name, point.unit, point.labels) == ("latency_seconds", "seconds", {"path": "/"})
    exemplars = point.typed.pop("exemplars")
    assert exemplars == [{"time_unix_nano": NOW, "value": 1.5, "trace_id": "a" * 32}]
    assert point.typed == {
        "metric_type": "exponential_histogram", "temporality": "cumulative",
        "start_time_unix_nano": 1_600_000_000_000_000_007,
        "count": 7, "sum": 5.5, "scale": 3, "zero_count": 2, "zero_threshold": 1e-9,
        "positive": {"offset": 0, "bucket_counts": [2, 0, 0, 1]},
        "negative": {"offset": -1, "bucket_counts": [2]},
    }  # fmt: skip


def test_an_empty_native_histogram_is_one_and_classic_buckets_beside_are_counted() -> None:
    empty = family("a", HISTOGRAM, field(7, field(1, 0) + double(6, 1e-9) + spans(12, (0, 0))))
    classic = field(3, field(1, 7) + double(2, 1.0))
    found = read(empty + family("b", HISTOGRAM, field(7, native(more=classic))))
    assert [point.typed["count"] for point in found.points] == [0, 7]
    assert {point.typed["metric_type"] for point in found.points} == {"exponential_histogram"}
    assert (found.samples, +found.notes) == (
        2, {"classic_buckets_dropped": 1, "help_texts_dropped": 2},
    )  # fmt: skip


def test_observations_that_are_no_numbers_are_in_no_bucket_and_are_counted() -> None:
    found = read(family("a", HISTOGRAM, field(7, native(count=9))))
    assert found.points[0].typed["count"] == 7
    assert found.notes["observations_not_numbers"] == 2


def test_a_sum_that_is_not_finite_is_left_out_and_counted() -> None:
    found = read(family("a", HISTOGRAM, field(7, native() + double(2, math.inf))))
    assert "sum" not in found.points[0].typed
    assert found.notes["sums_not_finite"] == 1


def test_sums_and_histograms_begin_when_they_were_created() -> None:
    created = field(1, 1_600_000_000)
    body = (
        family("jobs_total", COUNTER, field(3, double(1, 5.0) + field(3, created)))
        + family("size", SUMMARY, field(4, field(1, 4) + double(2, 8.0) + field(4, created)))
        + family("wait", HISTOGRAM, field(7, field(1, 4) + double(2, 9.0) + field(15, created)))
        + family("new_total", COUNTER, field(3, double(1, 5.0)))
        + family("orders_created", COUNTER, field(3, double(1, 6.0)))
    )
    found = read(body)
    starts = {point.name: point.typed["start_time_unix_nano"] for point in found.points}
    assert starts.pop("new_total") == starts.pop("orders_created") == NOW - 5
    assert set(starts) == {"jobs_total", "size_sum", "size_count", "wait"}
    assert set(starts.values()) == {1_600_000_000_000_000_000}
    assert found.samples == 8


def test_a_type_that_no_point_says_is_counted() -> None:
    gauges = family("a", 5, field(7, field(1, 4) + double(2, 9.0) + field(15, field(1, 5))))
    found = read(gauges)
    assert {point.typed["metric_type"] for point in found.points} == {"gauge"}
    assert not any(point.name.endswith("_created") for point in found.points)
    assert found.notes["family_types_dropped"] == 1


def test_a_native_histogram_that_makes_no_sense_is_counted_and_the_others_are_kept() -> None:
    wrong = field(7, native(more=spans(12, (0, 1))))
    found = read(family("a", HISTOGRAM, wrong) + family("b", GAUGE, field(2, double(1, 3))))
    assert [point.name for point in found.points] == ["b"]
    assert found.malformed == 1


def test_everything_else_is_as_in_text() -> None:
    buckets = field(3, field(1, 1) + double(2, 0.5)) + field(3, field(1, 3) + double(2, 2.0))
    body = (
        family("jobs_total", COUNTER, label("q", "a") + field(3, double(1, 5.0)))
        + family("heat", GAUGE, field(2, double(1, math.nan)))
        + family("odd", UNTYPED, field(5, double(1, 2.0)) + field(6, 1_700_000_000_001))
        + family(
            "size", SUMMARY,
            field(4, field(1, 4) + double(2, 8.0) + field(3, double(1, 0.5) + double(2, 1.5))),
        )
        + family("wait", HISTOGRAM, field(7, field(1, 4) + double(2, 9.0) + buckets))
    )  # fmt: skip
    text = b"""# TYPE jobs_total counter
jobs_total{q="a"} 5
# TYPE heat gauge
heat NaN
# TYPE odd untyped
odd 2 1700000000001
# TYPE size summary
size{quantile="0.5"} 1.5
size_sum 8
size_count 4
# TYPE wait histogram
wait_bucket{le="0.5"} 1
wait_bucket{le="2.0"} 3
wait_bucket{le="+Inf"} 4
wait_sum 9
wait_count 4
"""
    by_text = read_exposition(
        text, "text/plain", scrape_ns=NOW, first_scrape_ns=NOW - 5, max_samples=1000
    )
    found = read(body)
    assert repr(found.points) == repr(by_text.points)
    assert found.samples == by_text.samples


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x80" * 6, "a length that is none"),
        (b"\x80", "a length that is none"),
        (b"\x05ab", "cut short"),
        (b"\x02\x0a\x09", "not a protobuf"),
    ],
)
def test_bytes_that_are_no_messages_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError, match=reason):
        read(body)


def test_an_answer_of_too_many_samples_is_refused_whole() -> None:
    metrics = [label("n", str(n)) + field(2, double(1, 1)) for n in range(3)]
    with pytest.raises(UndecodableError, match="more than 2 samples"):
        read(family("a", GAUGE, *metrics), max_samples=2)

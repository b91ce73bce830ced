"""Metric points of an interval become one, through a graph made of configuration text."""

from typing import Any

import orjson
import pytest

from penstock.collector.transforms.graph.graph import Graph
from penstock.collector.transforms.transform import DropReason
from tests.support.collector_graph import delivered, graph_of, process

SECOND = 1_000_000_000
SUM = {"metric_type": "sum", "is_monotonic": True, "temporality": "delta"}
GAUGE = {"metric_type": "gauge"}


def graph_with(**options: Any) -> Graph:
    section = {"type": "aggregate", "inputs": ["app"], "interval_s": 60, **options}
    graph = graph_of({"transforms": {"t": section}})
    assert graph.flush(0, 0) == {}
    return graph


def point(time_s: int, **more: Any) -> bytes:
    record = {
        "schema": "metric/1.1", "kind": "metric", "name": "n", "unit": "1",
        "time_unix_nano": time_s * SECOND, "start_time_unix_nano": (time_s - 10) * SECOND,
    }  # fmt: skip
    return orjson.dumps(record | more)


def histogram(time_s: int, buckets: list[int], **more: Any) -> bytes:
    own = {
        "metric_type": "histogram", "temporality": "delta", "count": sum(buckets),
        "sum": float(sum(buckets)), "bucket_counts": buckets, "explicit_bounds": [1.0, 2.0],
    }  # fmt: skip
    return point(time_s, **(own | more))


def held(graph: Graph, *lines: bytes, now_ns: int = 0) -> None:
    outcome = process(graph, *lines, now_ns=now_ns)
    assert outcome.refused == []
    assert outcome.ended == {DropReason.AGGREGATED: len(lines)}


def flushed(graph: Graph, now_ns: int, *, everything: bool = False) -> list[dict[str, Any]]:
    """The records that are due, which their spec accepts."""
    lines = graph.flush(now_ns, now_ns, everything=everything).get("t", [])
    outcome = process(graph, *lines, source="t")
    assert outcome.refused == []
    return [record for _, record in delivered(outcome)]


def test_deltas_of_a_series_are_added_up_at_the_end_of_the_interval() -> None:
    graph = graph_with()
    other = {"attributes": {"route": "/b"}}
    lines = [
        point(20, value=5, **SUM), point(30, value=8, **SUM), point(30, value=50, **SUM, **other),
        point(10, value=1.5, **SUM),
    ]  # fmt: skip
    held(graph, *lines, now_ns=SECOND)
    assert flushed(graph, 61 * SECOND - 1) == []
    one, two = flushed(graph, 62 * SECOND)
    assert (one["value"], two["value"]) == (14.5, 50)
    assert (one["start_time_unix_nano"], one["time_unix_nano"]) == (0, 30 * SECOND)
    assert two["attributes"] == {"route": "/b"}
    assert flushed(graph, 200 * SECOND) == []


def test_a_resource_keeps_series_apart() -> None:
    graph = graph_with()
    process(graph, point(20, value=5, **SUM), resource=b'{"service.name":"shop"}')
    process(graph, point(20, value=6, **SUM), resource=b'{"service.name":"till"}')
    assert [one["value"] for one in flushed(graph, 0, everything=True)] == [5, 6]


@pytest.mark.parametrize(
    "shape", [GAUGE, SUM | {"temporality": "cumulative"}], ids=["gauge", "cumulative"]
)
def test_the_latest_stands_for_all_where_nothing_is_added_up(shape: dict[str, Any]) -> None:
    graph = graph_with()
    held(
        graph,
        *(point(time_s, value=value, **shape) for time_s, value in ((20, 5), (40, 7), (30, 9))),
    )
    (found,) = flushed(graph, 0, everything=True)
    assert (found["value"], found["time_unix_nano"]) == (7, 40 * SECOND)


def test_histograms_are_added_up_bucket_by_bucket() -> None:
    graph = graph_with()
    exemplars = [{"time_unix_nano": number, "value": 1.0} for number in range(3)]
    held(
        graph,
        histogram(20, [1, 2, 3], min=0.5, max=9.0, exemplars=exemplars),
        histogram(30, [4, 0, 1], min=0.7, max=12.0, exemplars=exemplars),
        histogram(30, [1, 1, 1], explicit_bounds=[1.0, 5.0]),
    )
    one, other = flushed(graph, 0, everything=True)
    assert (one["count"], one["sum"], one["bucket_counts"]) == (11, 11.0, [5, 2, 4])
    assert (one["min"], one["max"]) == (0.5, 12.0)
    assert [exemplar["time_unix_nano"] for exemplar in one["exemplars"]] == [2, 0, 1, 2]
    assert (other["count"], other["explicit_bounds"]) == (3, [1.0, 5.0])


def test_exponential_histograms_are_added_up_at_the_lower_scale() -> None:
    graph = graph_with()
    own = {"metric_type": "exponential_histogram", "temporality": "delta"}
    first = {
        "count": 7, "sum": 9.5, "scale": 1, "zero_count": 1, "min": -3.0, "max": 2.0,
        "positive": {"offset": -1, "bucket_counts": [1, 2, 0, 2]},
        "negative": {"offset": 3, "bucket_counts": [1]},
    }  # fmt: skip
    second = {
        "count": 4, "sum": 6.0, "scale": 0, "zero_count": 0, "min": 1.0, "max": 4.0,
        "positive": {"offset": 1, "bucket_counts": [4]},
    }  # fmt: skip
    held(graph, point(20, **own, **first), point(30, **own, **second))
    (found,) = flushed(graph, 0, everything=True)
    assert (found["count"], found["sum"], found["scale"], found["zero_count"]) == (11, 15.5, 0, 1)
    assert found["positive"] == {"offset": -1, "bucket_counts": [1, 2, 6]}
    assert found["negative"] == {"offset": 1, "bucket_counts": [1]}
    assert (found["min"], found["max"]) == (-3.0, 4.0)


def test_an_extreme_that_one_histogram_lacks_is_left_out() -> None:
    graph = graph_with()
    held(graph, histogram(20, [1, 0, 0], min=0.5, max=0.6), histogram(30, [1, 0, 0], max=0.9))
    (found,) = flushed(graph, 0, everything=True)
    assert "min" not in found
    assert found["max"] == 0.9


@pytest.mark.parametrize(
    "more",
    [
        SUM | {"value": "NaN"},
        SUM | {"flags": 1},
    ],
    ids=["no number", "no recorded value"],
)
def test_what_cannot_be_added_up_passes_and_is_counted(more: dict[str, Any]) -> None:
    graph = graph_with()
    line = point(20, **more)
    ((_, found),) = delivered(process(graph, line))
    given = orjson.loads(line)
    assert {key: found[key] for key in given} == given
    assert graph.counts()["t"]["points_not_aggregated"] == 1


def test_other_kinds_pass() -> None:
    graph = graph_with()
    line = b'{"schema":"log/1.0","kind":"log","time_unix_nano":1,"severity_number":9,"body":"b"}'
    assert len(delivered(process(graph, line))) == 1
    assert graph.counts()["t"].get("points_not_aggregated", 0) == 0


def test_a_total_beyond_its_range_begins_another_point() -> None:
    graph = graph_with()
    held(graph, *(point(time_s, value=2**62, **SUM) for time_s in (20, 30)))
    assert [one["value"] for one in flushed(graph, SECOND)] == [2**62]
    assert [one["value"] for one in flushed(graph, 0, everything=True)] == [2**62]
    assert graph.counts()["t"]["series_out_of_range"] == 1


def test_the_oldest_series_beyond_a_bound_goes_on_at_once() -> None:
    graph = graph_with(max_series=2)
    held(graph, *(point(20, value=1, **SUM | {"name": name}) for name in ("a", "b", "c")))
    assert [one["name"] for one in flushed(graph, SECOND)] == ["a"]
    assert [one["name"] for one in flushed(graph, 0, everything=True)] == ["b", "c"]
    assert graph.counts()["t"]["series_ended_early"] == 1


def test_bytes_are_bounded_too() -> None:
    graph = graph_with(max_bytes=64 * 1024)
    wide = {"description": "x" * 30_000}
    held(
        graph, *(point(20, value=1, attributes=wide, **SUM | {"name": n}) for n in ("a", "b", "c"))
    )
    assert [one["name"] for one in flushed(graph, SECOND)] == ["a"]


def test_a_metric_is_renamed_by_edit() -> None:
    section = {"type": "edit", "inputs": ["app"], "set": {"name": "'new.name'"}}
    graph = graph_of({"transforms": {"t": section}})
    ((_, found),) = delivered(process(graph, point(20, value=1, **SUM)))
    assert found["name"] == "new.name"

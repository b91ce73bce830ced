"""Cumulative points to deltas and back, through a graph made of configuration text."""

from typing import Any

import orjson
import pytest

from penstock.collector.agent.route_fingerprint import UNKNOWN, route_fingerprint
from penstock.collector.transforms.graph.graph import Graph
from penstock.collector.transforms.transform import DropReason
from tests.support.collector_graph import config_of, delivered, graph_of, process

SECOND = 1_000_000_000


def graph_to(to: str, **options: Any) -> Graph:
    section = {"type": "temporality", "inputs": ["app"], "to": to, **options}
    return graph_of({"transforms": {"t": section}})


def point(time_s: int, value: float | None, temporality: str | None, **more: Any) -> bytes:
    record = {
        "schema": "metric/1.1", "kind": "metric", "name": "n", "unit": "1", "metric_type": "sum",
        "time_unix_nano": time_s * SECOND, "start_time_unix_nano": SECOND, "value": value,
        "is_monotonic": True, "temporality": temporality,
    }  # fmt: skip
    return orjson.dumps({k: v for k, v in (record | more).items() if v is not None})


def histogram(time_s: int, buckets: list[int], temporality: str, **more: Any) -> bytes:
    own = {
        "metric_type": "histogram", "is_monotonic": None, "count": sum(buckets),
        "sum": float(sum(buckets)), "bucket_counts": buckets, "explicit_bounds": [1.0, 2.0],
        "min": 0.5, "max": 3.0,
    }  # fmt: skip
    return point(time_s, None, temporality, **{**own, **more})


def made(graph: Graph, *lines: bytes, **options: Any) -> list[dict[str, Any]]:
    outcome = process(graph, *lines, **options)
    assert outcome.refused == []
    return [record for _, record in delivered(outcome)]


def test_cumulative_sums_become_deltas() -> None:
    graph = graph_to("delta")
    other = {"attributes": {"route": "/b"}}
    lines = [
        point(10, 5, "cumulative"), point(10, 50, "cumulative", **other),
        point(20, 8, "cumulative"), point(20, 50, "cumulative", **other),
        point(30, 8.5, "cumulative"),
    ]  # fmt: skip
    outcome = process(graph, *lines)
    found = [record for _, record in delivered(outcome)]
    assert [one["value"] for one in found] == [3, 0, 0.5]
    assert {one["temporality"] for one in found} == {"delta"}
    assert [one["start_time_unix_nano"] for one in found] == [10 * SECOND, 10 * SECOND, 20 * SECOND]
    assert outcome.ended == {DropReason.AGGREGATED: 2}


def test_a_series_that_begins_again_counts_from_there() -> None:
    graph = graph_to("delta")
    lines = [
        point(10, 5, "cumulative"), point(20, 2, "cumulative"),
        point(40, 7, "cumulative", start_time_unix_nano=30 * SECOND),
    ]  # fmt: skip
    found = made(graph, *lines)
    assert [one["value"] for one in found] == [2, 7]
    assert [one["start_time_unix_nano"] for one in found] == [10 * SECOND, 30 * SECOND]
    assert graph.counts()["t"]["series_reset"] == 2


def test_histograms_become_deltas_bucket_by_bucket() -> None:
    graph = graph_to("delta")
    lines = [
        histogram(10, [1, 2, 3], "cumulative"), histogram(20, [2, 2, 5], "cumulative"),
        histogram(30, [3, 3, 6], "cumulative", explicit_bounds=[1.0, 5.0]),
    ]  # fmt: skip
    first, second = made(graph, *lines)
    assert (first["count"], first["sum"], first["bucket_counts"]) == (3, 3.0, [1, 0, 2])
    assert "min" not in first
    assert (second["count"], second["bucket_counts"]) == (12, [3, 3, 6])


def test_deltas_become_cumulative() -> None:
    graph = graph_to("cumulative")
    lines = [
        point(10, 5, "delta"), point(20, 3, "delta", start_time_unix_nano=10 * SECOND),
        histogram(10, [1, 2, 3], "delta"),
        histogram(20, [1, 0, 1], "delta", start_time_unix_nano=10 * SECOND),
    ]  # fmt: skip
    found = made(graph, *lines)
    assert [one.get("value") for one in found] == [5, 8, None, None]
    assert [one.get("bucket_counts") for one in found[2:]] == [[1, 2, 3], [2, 2, 4]]
    assert {one["start_time_unix_nano"] for one in found} == {SECOND}
    assert {one["temporality"] for one in found} == {"cumulative"}


@pytest.mark.parametrize(
    "line",
    [
        point(10, 5, "delta"),
        point(10, 5, "cumulative", is_monotonic=False),
        point(10, 5, None, metric_type="gauge", is_monotonic=None),
        point(10, None, "cumulative", flags=1),
    ],
)
def test_what_cannot_be_converted_passes_as_it_is(line: bytes) -> None:
    (found,) = made(graph_to("delta"), line)
    given = orjson.loads(line)
    assert {key: found[key] for key in given} == given


def exponential(time_s: int, temporality: str, scale: int, counts: list[int]) -> bytes:
    return point(
        time_s, None, temporality, metric_type="exponential_histogram", is_monotonic=None,
        count=sum(counts) + 1, sum=float(sum(counts)), scale=scale, zero_count=1,
        positive={"offset": 0, "bucket_counts": counts}, min=0.0, max=9.0,
    )  # fmt: skip


def test_exponential_histograms_become_deltas_at_the_lower_scale() -> None:
    graph = graph_to("delta")
    lines = [
        exponential(10, "cumulative", 1, [1, 1, 2]), exponential(20, "cumulative", 0, [2, 5]),
        exponential(30, "cumulative", 0, [1, 5]),
    ]  # fmt: skip
    first, second = made(graph, *lines)
    assert (first["count"], first["sum"], first["scale"], first["zero_count"]) == (3, 3.0, 0, 0)
    assert first["positive"] == {"offset": 1, "bucket_counts": [3]}
    assert (second["count"], second["positive"]["bucket_counts"]) == (7, [1, 5])
    assert "min" not in first
    assert graph.counts()["t"]["series_reset"] == 1


def test_exponential_deltas_become_cumulative() -> None:
    found = made(graph_to("cumulative"), *(exponential(n, "delta", 2, [n]) for n in (10, 20)))
    assert [one["positive"] for one in found] == [
        {"offset": 0, "bucket_counts": [10]}, {"offset": 0, "bucket_counts": [30]}
    ]  # fmt: skip
    assert [(one["count"], one["zero_count"]) for one in found] == [(11, 1), (32, 2)]


def test_a_total_beyond_its_range_passes_as_it_is() -> None:
    graph = graph_to("cumulative")
    found = made(graph, point(10, 2**62, "delta"), point(20, 2**62, "delta"))
    assert [one["temporality"] for one in found] == ["cumulative", "delta"]
    assert graph.counts()["t"]["points_not_converted"] == 1


def test_a_point_that_is_not_later_ends_and_is_counted() -> None:
    graph = graph_to("delta")
    lines = [point(20, 5, "cumulative"), point(20, 6, "cumulative"), point(10, 7, "cumulative")]
    outcome = process(graph, *lines)
    assert outcome.ended == {DropReason.AGGREGATED: 1, DropReason.FILTERED: 2}
    assert graph.counts()["t"]["points_out_of_order"] == 2


def test_series_beyond_the_bound_and_silent_ones_are_forgotten() -> None:
    graph = graph_to("delta", max_series=2, max_idle_s=60)
    for name in "a", "b", "c":
        made(graph, point(10, 5, "cumulative", name=name))
    assert graph.counts()["t"]["series_forgotten"] == 1
    assert made(graph, point(20, 6, "cumulative", name="a")) == []
    assert [one["value"] for one in made(graph, point(20, 6, "cumulative", name="c"))] == [1]
    assert made(graph, point(30, 9, "cumulative", name="c"), now_ns=60 * SECOND) == []


def test_the_series_that_was_silent_longest_is_forgotten_first() -> None:
    graph = graph_to("delta", max_series=2)
    for time_s, name in (10, "a"), (10, "b"), (20, "a"), (20, "c"):
        made(graph, point(time_s, 5, "cumulative", name=name))
    assert len(made(graph, point(30, 6, "cumulative", name="a"))) == 1
    assert made(graph, point(30, 6, "cumulative", name="b")) == []


def test_copies_behind_it_have_no_fingerprint() -> None:
    section = {"type": "temporality", "inputs": ["app"], "to": "delta"}
    one = {"type": "filter", "inputs": ["t"], "where": "true"}
    keys = {"transforms": {"t": section, "a": one, "b": one}}
    assert route_fingerprint(config_of(keys), graph_of(keys)) == UNKNOWN
    keys = {"transforms": {"t": section}}
    assert route_fingerprint(config_of(keys), graph_of(keys)) != UNKNOWN

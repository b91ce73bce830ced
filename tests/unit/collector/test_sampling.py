"""Samples one behind the other: each decides by itself, so that weights are right."""

from typing import Any

import pytest

from penstock.collector.transforms.graph.wiring import WiringError
from tests.support.collector_graph import delivered, graph_of, log, process

FIFTH: dict[str, Any] = {"type": "sample", "ratio": 0.2}


def one_behind_the_other(**second: Any) -> Any:
    """A graph of two samples, with a route between them."""
    route = {"type": "route", "inputs": ["first"], "routes": {"a": {"where": "true"}}}
    transforms = {
        "first": {**FIFTH, "inputs": ["app"]},
        "between": route,
        "second": {**FIFTH, "inputs": ["between.a"], **second},
    }
    return graph_of({"transforms": transforms})


def test_a_fifth_of_a_fifth_stands_for_all() -> None:
    graph = one_behind_the_other(seed="second")
    found = delivered(process(graph, *[log(trace_id=f"{n:032x}") for n in range(1, 10_001)]))
    assert {record["sample_weight"] for _, record in found} == {25}
    assert 320 < len(found) < 480, "400 of 10,000"


def test_the_same_seed_behind_itself_is_refused() -> None:
    with pytest.raises(WiringError, match=r"second\.seed: first before it keeps the same"):
        one_behind_the_other()
    side_by_side = {name: {**FIFTH, "inputs": ["app"]} for name in ("a", "b")}
    graph_of({"transforms": side_by_side})


def test_what_is_counted_between_two_samples_is_sampled_by_itself() -> None:
    count = {"type": "logs_to_metrics", "inputs": ["first"], "name": "lines"}
    second = {**FIFTH, "inputs": ["count"]}
    first = {**FIFTH, "inputs": ["app"]}
    transforms = {"first": first, "count": count, "second": second}
    assert graph_of({"transforms": transforms}) is not None

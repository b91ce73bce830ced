"""Weights say how many records there were before sampling."""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from penstock.specs.emit.sampling import Sampler
from tests.unit.router.test_router_transforms import record_row, run, table

FIFTH: dict[str, Any] = {"sample": {"rate": 0.2}}
TRACES = [blake2b(str(number).encode(), digest_size=16).hexdigest() for number in range(10_000)]


def sampled(directory: Path, traces: list[str], weight: float, *steps: dict[str, Any]) -> Any:
    """A record of each trace, through a route with these steps."""
    given = (record_row(n, trace_id=it, sample_weight=weight) for n, it in enumerate(traces))
    return run(directory, table(*given), *steps).rows


@pytest.mark.parametrize("before", ["an emitter", "a step", "another job"])
def test_a_fifth_of_a_fifth_stands_for_all(tmp_path: Path, before: str) -> None:
    if before == "a step":
        rows = sampled(tmp_path, TRACES, 1.0, FIFTH, FIFTH)
    elif before == "an emitter":
        sampler = Sampler(0.2)
        kept = [trace for trace in TRACES if sampler.keeps(trace)]
        rows = sampled(tmp_path, kept, sampler.weight, FIFTH)
    else:
        other = {"sample": {"rate": 0.2, "seed": "other"}}
        kept = sampled(tmp_path, TRACES, 1.0, other)["trace_id"].to_pylist()
        rows = sampled(tmp_path, kept, 5.0, FIFTH)
    assert set(rows["sample_weight"].to_pylist()) == {25.0}
    assert 320 < rows.num_rows < 480, "400 of 10,000"


def test_routes_keep_the_same_traces(tmp_path: Path) -> None:
    tenth = {"sample": {"rate": 0.1}}
    one = sampled(tmp_path, TRACES, 1.0, FIFTH)["trace_id"].to_pylist()
    mask = {"mask": {"fields": ["body"]}}
    other = sampled(tmp_path, TRACES, 1.0, mask, tenth)["trace_id"].to_pylist()
    assert set(other) < set(one)

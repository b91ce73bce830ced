"""Sums and differences of exponential histograms, beside the histogram that measures all values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.metrics import ExponentialHistogram
from penstock.collector.transforms.metrics.exponential import Exponential
from penstock.specs.limits import BUCKETS_MAX, INT64_MAX

VALUES = st.lists(
    st.floats(min_value=-1e9, max_value=1e9).filter(lambda value: abs(value) > 1e-9 or value == 0),
    min_size=1, max_size=30,
)  # fmt: skip


def measured(values: list[float]) -> Exponential:
    histogram = ExponentialHistogram()
    for value in values:
        histogram.add(value)
    found = Exponential.of(histogram.fields())
    assert found is not None
    return found


def buckets(one: Exponential) -> tuple[object, ...]:
    return one.count, one.zeros, one.positive, one.negative


@given(VALUES, VALUES)
def test_the_sum_is_the_histogram_of_all_values(first: list[float], second: list[float]) -> None:
    both = measured(first).plus(measured(second))
    assert both is not None
    whole = measured([*first, *second])
    scale = min(both.scale, whole.scale)
    assert buckets(both.at_scale(scale)) == buckets(whole.at_scale(scale))
    for side in (both.positive, both.negative):
        assert not side or max(side) - min(side) < BUCKETS_MAX
    assert Exponential.of(both.fields()) == both


@given(VALUES, VALUES)
def test_the_difference_is_what_came_in_between(first: list[float], second: list[float]) -> None:
    before, whole = measured(first), measured([*first, *second])
    between = whole.minus(before)
    assert between is not None
    assert buckets(between) == buckets(measured(second).at_scale(between.scale))
    assert before.minus(whole) is None


def test_the_larger_zero_threshold_takes_buckets_in() -> None:
    """Bucket 0 of scale 0 is (1, 2], bucket 1 (2, 4]: a threshold of 3 moves to 4."""
    fields = {"count": 6, "scale": 0, "zero_count": 0,
              "positive": {"offset": 0, "bucket_counts": [1, 2, 3]}}  # fmt: skip
    one = Exponential.of(fields)
    other = Exponential.of({"count": 5, "scale": 0, "zero_count": 5, "zero_threshold": 3.0})
    assert one is not None
    assert other is not None
    both = one.plus(other)
    assert both is not None
    assert (both.zeros, both.threshold, both.positive) == (8, 4.0, {2: 3})
    assert both.fields()["zero_threshold"] == 4.0
    assert other.plus(one) == both


@pytest.mark.parametrize("scale", [-10, 0, 3, 20])
def test_a_threshold_at_the_bound_of_a_bucket_stays_there(scale: int) -> None:
    index = max(1, 5 << max(0, scale) >> 1) if scale >= 0 else 0
    bound = 2.0 ** (index * 2.0**-scale)
    positive = {"offset": index, "bucket_counts": [7]}
    one = Exponential.of({"count": 7, "scale": scale, "zero_count": 0, "positive": positive})
    assert one is not None
    moved = one.within(bound)
    assert moved is not None
    assert moved.positive == {index: 7}
    assert math.isclose(moved.threshold, bound)


def test_numbers_out_of_range_are_none() -> None:
    def of(offset: int, count: int) -> Exponential:
        positive = {"offset": offset, "bucket_counts": [count]}
        found = Exponential.of(
            {"count": count, "scale": -10, "zero_count": 0, "positive": positive}
        )
        assert found is not None
        return found

    assert of(0, INT64_MAX).plus(of(0, 1)) is None
    assert of(0, 1).plus(of(1 << 30, 1)) is None, "no scale has so few buckets"
    assert Exponential.of({"count": 1, "scale": 0, "zero_count": 1, "sum": "NaN"}) is None

"""The exponential histogram against the definition of its buckets."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.metrics import SCALE_MAX, ExponentialHistogram
from penstock.specs.limits import BUCKETS_MAX

VALUES = st.floats(min_value=-1e300, max_value=1e300, allow_nan=False)


def filled(values: list[float]) -> ExponentialHistogram:
    histogram = ExponentialHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(st.lists(VALUES, min_size=1, max_size=40))
def test_buckets_count_everything_and_are_never_too_many(values: list[float]) -> None:
    fields = filled(values).fields()
    total = fields["zero_count"]
    for side in ("positive", "negative"):
        counts = fields.get(side, {}).get("bucket_counts", [])
        assert len(counts) <= BUCKETS_MAX
        total += sum(counts)
    assert total == fields["count"] == len(values)
    assert (fields["min"], fields["max"]) == (min(values), max(values))
    assert -10 <= fields["scale"] <= SCALE_MAX


@given(st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=20))
def test_each_value_lies_in_the_bucket_that_counts_it(values: list[float]) -> None:
    fields = filled(values).fields()
    scale, offset = fields["scale"], fields["positive"]["offset"]
    ranks = [math.log2(value) * 2.0**scale for value in values]
    for index, count in enumerate(fields["positive"]["bucket_counts"], offset):
        near = sum(index - 1e-3 <= rank <= index + 1 + 1e-3 for rank in ranks)
        sure = sum(index + 1e-3 < rank < index + 1 - 1e-3 for rank in ranks)
        assert sure <= count <= near


@pytest.mark.parametrize("exponent", [-1000, -3, 0, 1, 10, 1000])
def test_a_power_of_two_is_the_upper_end_of_its_bucket(exponent: int) -> None:
    histogram = filled([2.0**exponent])
    assert list(histogram.positive) == [(exponent << SCALE_MAX) - 1]


def test_a_wide_range_lowers_the_scale_only_as_far_as_needed() -> None:
    assert filled([1.0, 32.0]).scale == 4
    assert filled([1.1, 32.0]).scale == 5
    assert filled([1e-300, 1e300]).scale == -4

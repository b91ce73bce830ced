"""Exponential buckets made wider, compared with looking at each measurement again."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.specs.otel.convert import Range, downscaled, fitted

INDEXES = st.lists(st.integers(-400, 400), max_size=60)


def of(indexes: list[int]) -> Range:
    """Each measurement given by the index of its bucket."""
    if not indexes:
        return Range(0, [])
    counts = Counter(indexes)
    return Range(min(indexes), [counts[i] for i in range(min(indexes), max(indexes) + 1)])


@given(INDEXES, st.integers(0, 12))
def test_buckets_are_those_of_measurements_at_the_wider_scale(
    indexes: list[int], steps: int
) -> None:
    wide = downscaled(of(indexes), steps)
    expected = of([index // 2**steps for index in indexes])
    assert list(wide.counts) == list(expected.counts)
    assert not indexes or wide.offset == expected.offset


@given(INDEXES, INDEXES, st.integers(-10, 20), st.integers(2, 160))
def test_the_finest_scale_that_fits_is_taken(
    one: list[int], other: list[int], scale: int, buckets_max: int
) -> None:
    try:
        found, positive, negative = fitted(scale, of(one), of(other), buckets_max)
    except ValueError:
        found, positive, negative = -11, of([]), of([])
    else:
        assert max(len(positive.counts), len(negative.counts)) <= buckets_max
        assert sum(positive.counts) + sum(negative.counts) == len(one) + len(other)
    if found < scale:
        steps = scale - found - 1
        ranges = [downscaled(of(each), steps) for each in (one, other)]
        assert max(len(each.counts) for each in ranges) > buckets_max


def test_what_fits_at_no_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="too many buckets"):
        fitted(-10, Range(0, [1] * 161), Range(0, []))

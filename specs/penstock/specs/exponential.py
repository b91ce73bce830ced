"""Exponential histograms with fewer, wider buckets: without loss of a count."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.specs.limits import BUCKETS_MAX

SCALE_MIN: Final = -10
"""The widest buckets that a record can have; each then spans 2**1024."""


class Range(NamedTuple):
    """Counts of consecutive buckets; `offset` is the index of the first."""

    offset: int
    counts: Sequence[int]


def downscaled(buckets: Range, steps: int) -> Range:
    """Each bucket becomes half of one that is twice as wide (logarithmically), `steps` times.

    Bucket i of scale s lies within bucket i >> 1 of scale s - 1 (OpenTelemetry's data model,
    exponential scale), also for negative i.
    """
    if not buckets.counts or not steps:
        return buckets
    first = buckets.offset >> steps
    last = (buckets.offset + len(buckets.counts) - 1) >> steps
    counts = [0] * (last - first + 1)
    for number, count in enumerate(buckets.counts):
        counts[((buckets.offset + number) >> steps) - first] += count
    return Range(first, counts)


def fitted(
    scale: int, positive: Range, negative: Range, buckets_max: int = BUCKETS_MAX
) -> tuple[int, Range, Range]:
    """The finest scale at which both ranges fit, and the ranges at it.

    Raises:
        ValueError: They fit at no scale that a record can have.
    """
    for steps in range(scale - SCALE_MIN + 1):
        ranges = downscaled(positive, steps), downscaled(negative, steps)
        if all(len(each.counts) <= buckets_max for each in ranges):
            return scale - steps, *ranges
    raise ValueError("an exponential histogram with too many buckets")

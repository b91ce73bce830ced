"""Exponential histograms of metric points as numbers that are added and subtracted.

At scale s, bucket i counts values in (base**i, base**(i + 1)] with base = 2**(2**-s), so a bucket
of one scale is half a bucket of the scale below. Two histograms are brought to the lower of their
scales, and to the larger of their zero thresholds: buckets within it are counted as zeros, and one
that straddles it moves the threshold to its end. This is OpenTelemetry's data model for metrics,
"Exponential Histograms: Merging".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from penstock.collector.transforms.expressions.expression import NUMBERS
from penstock.collector.transforms.expressions.paths import Fields
from penstock.specs.limits import BUCKETS_MAX, INT64_MAX

_SCALE_MIN: Final = -10
"""The lowest that a point may have: two buckets hold every double there."""

Buckets = dict[int, int]
"""Counts by bucket; none is 0."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """The numbers of a point.

    Attributes:
        sum: None where the point has none.
    """

    scale: int
    zeros: int
    threshold: float
    positive: Buckets
    negative: Buckets
    sum: float | None

    @classmethod
    def of(cls, fields: Fields) -> Self | None:
        """Read a point; None where it has no numbers, or one that is not finite."""
        if fields.get("count") is None or fields.get("scale") is None:
            return None
        total, threshold = fields.get("sum"), fields.get("zero_threshold") or 0.0
        if (total is not None and total.__class__ not in NUMBERS) or not math.isfinite(threshold):
            return None
        return cls(
            int(fields["scale"]),
            int(fields.get("zero_count") or 0),
            float(threshold),
            _buckets(fields.get("positive")),
            _buckets(fields.get("negative")),
            total,
        )

    @property
    def count(self) -> int:
        """Return the number of all values."""
        return self.zeros + sum(self.positive.values()) + sum(self.negative.values())

    def plus(self, other: "Exponential") -> "Exponential | None":
        """Return the sum of both; None where a number would leave its range."""
        return _fitting(_combined(self, other, lambda a, b: a + b))

    def minus(self, earlier: "Exponential") -> "Exponential | None":
        """What came after an earlier one; None where that has more of something."""
        made = _combined(self, earlier, lambda a, b: a - b)
        if made is None:
            return None
        counts = (made.zeros, *made.positive.values(), *made.negative.values())
        return None if min(counts) < 0 else _fitting(made)

    def fields(self) -> dict[str, Any]:
        """The fields of a point that say it."""
        made: dict[str, Any] = {
            "count": self.count, "scale": self.scale, "zero_count": self.zeros,
        }  # fmt: skip
        if self.threshold:
            made["zero_threshold"] = self.threshold
        if self.sum is not None:
            made["sum"] = self.sum
        for name, buckets in (("positive", self.positive), ("negative", self.negative)):
            if buckets:
                first, last = min(buckets), max(buckets)
                counts = [buckets.get(index, 0) for index in range(first, last + 1)]
                made[name] = {"offset": first, "bucket_counts": counts}
        return made

    def at_scale(self, scale: int) -> "Exponential":
        """The same at a lower scale."""
        by = self.scale - scale
        positive, negative = _joined(self.positive, by), _joined(self.negative, by)
        return replace(self, scale=scale, positive=positive, negative=negative)

    def within(self, threshold: float) -> "Exponential | None":
        """The same with a larger threshold; None where that leaves the range of doubles."""
        if threshold <= self.threshold:
            return self
        width = 2.0**-self.scale
        end = _near_a_bound(math.log2(threshold), width)
        for index in sorted({*self.positive, *self.negative}):
            if index * width < end < (index + 1) * width:
                end = (index + 1) * width
        if end >= _LOG2_MAX:
            return None
        positive, negative = _above(self.positive, end, width), _above(self.negative, end, width)
        left = sum(positive.values()) + sum(negative.values())
        return replace(
            self, zeros=self.count - left, threshold=max(threshold, 2.0**end), positive=positive,
            negative=negative,
        )  # fmt: skip


FIELDS: Final = frozenset({
    "count", "sum", "scale", "zero_count", "zero_threshold", "positive", "negative",
})  # fmt: skip
"""Fields of a point that `Exponential.of` reads."""

_LOG2_MAX: Final = 1024.0


def _near_a_bound(end: float, width: float) -> float:
    """The bound of a bucket, where a logarithm is one but for its rounding."""
    bound = round(end / width) * width
    return bound if abs(end - bound) < width / 10_000 else end


def _combined(
    one: Exponential, other: Exponential, add: Callable[[Any, Any], Any]
) -> Exponential | None:
    """Both, at one scale and threshold, number by number."""
    scale = min(one.scale, other.scale)
    first, second = one.at_scale(scale), other.at_scale(scale)
    while first.threshold != second.threshold:
        threshold = max(first.threshold, second.threshold)
        moved, other_moved = first.within(threshold), second.within(threshold)
        if moved is None or other_moved is None:
            return None
        first, second = moved, other_moved
    return Exponential(
        scale,
        add(first.zeros, second.zeros),
        first.threshold,
        _each(first.positive, second.positive, add),
        _each(first.negative, second.negative, add),
        None if first.sum is None or second.sum is None else add(first.sum, second.sum),
    )


def _fitting(made: Exponential | None) -> Exponential | None:
    """The same at a scale at which a point has room for its buckets; None where there is none."""
    if made is None or made.count > INT64_MAX or not math.isfinite(made.sum or 0.0):
        return None
    while max(_span(made.positive), _span(made.negative)) > BUCKETS_MAX:
        if made.scale <= _SCALE_MIN:
            return None
        made = made.at_scale(made.scale - 1)
    return made


def _buckets(given: Any) -> Buckets:
    if given is None:
        return {}
    counts = enumerate(given["bucket_counts"], int(given["offset"]))
    return {index: int(count) for index, count in counts if count}


def _joined(buckets: Buckets, by: int) -> Buckets:
    if not by:
        return buckets
    joined: Buckets = {}
    for index, count in buckets.items():
        joined[index >> by] = joined.get(index >> by, 0) + count
    return joined


def _above(buckets: Buckets, end: float, width: float) -> Buckets:
    return {index: count for index, count in buckets.items() if index * width >= end}


def _each(one: Buckets, other: Buckets, add: Callable[[Any, Any], Any]) -> Buckets:
    made = {index: add(one.get(index, 0), other.get(index, 0)) for index in {**one, **other}}
    return {index: count for index, count in made.items() if count}


def _span(buckets: Buckets) -> int:
    return max(buckets) - min(buckets) + 1 if buckets else 0

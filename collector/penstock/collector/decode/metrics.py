"""Metric points that the collector itself makes, as record lines.

Its histograms are OpenTelemetry's base-2 exponential ones, of bounded size. At scale s, bucket i
counts values in (base**i, base**(i + 1)] with base = 2**(2**-s). A bucket of one scale is half a
bucket of the scale below, so joining pairs of buckets makes room for a wider range. At scale 5 a
range of 1 to 32 fills 160 buckets, with a relative error of 1.1 percent.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock.collector.decode.attributes import flatten
from penstock.specs.limits import BUCKETS_MAX
from penstock.specs.models.scalars import not_finite_word


def metric_line(  # noqa: PLR0913 - a point's fields
    name: str,
    unit: str,
    attributes: Mapping[str, Any],
    typed: Mapping[str, Any],
    *,
    time_ns: int,
    observed_ns: int,
    resource: Mapping[str, Any],
) -> bytes:
    """One point's line.

    Args:
        name: The name that its source gives it.
        unit: UCUM's; empty for none.
        attributes: The series' dimensions, as its source has them.
        typed: The fields of its metric type; floats may be NaN or infinite.
        time_ns: Time of the measurement.
        observed_ns: Arrival time at the collector.
        resource: Resource that was measured.
    """
    own, left_out = flatten(attributes)
    record: dict[str, Any] = {
        "schema": "metric/1.1",
        "kind": "metric",
        "time_unix_nano": time_ns,
        "observed_time_unix_nano": observed_ns,
        "name": name,
        "unit": unit or "1",
        **{key: not_finite_word(value) for key, value in typed.items()},
        "resource": resource,
        "attributes": own,
    }
    if left_out:
        record["dropped_attributes_count"] = left_out
    return orjson.dumps(record)


SCALE_MAX: Final = 20


@dataclass(slots=True)
class ExponentialHistogram:
    """Counts of measurements by size."""

    count: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    zeros: int = 0
    scale: int = SCALE_MAX
    positive: dict[int, int] = field(default_factory=dict)
    negative: dict[int, int] = field(default_factory=dict)

    def add(self, value: float, count: int = 1) -> None:
        """Measure a finite value `count` times."""
        self.count += count
        self.total += value * count
        self.low, self.high = min(self.low, value), max(self.high, value)
        if value == 0:
            self.zeros += count
            return
        buckets = self.positive if value > 0 else self.negative
        index = _index(abs(value)) >> (SCALE_MAX - self.scale)
        buckets[index] = buckets.get(index, 0) + count
        while max(buckets) - min(buckets) >= BUCKETS_MAX:
            self._join_pairs()
            buckets = self.positive if value > 0 else self.negative

    def fields(self) -> dict[str, Any]:
        """The fields of a metric point that are its type's own; `count` must not be 0."""
        found: dict[str, Any] = {
            "metric_type": "exponential_histogram",
            "count": self.count,
            "min": self.low,
            "max": self.high,
            "scale": self.scale,
            "zero_count": self.zeros,
        }
        if math.isfinite(self.total):
            found["sum"] = self.total
        for name, buckets in (("positive", self.positive), ("negative", self.negative)):
            if buckets:
                first, last = min(buckets), max(buckets)
                counts = [buckets.get(index, 0) for index in range(first, last + 1)]
                found[name] = {"offset": first, "bucket_counts": counts}
        return found

    def _join_pairs(self) -> None:
        self.scale -= 1
        self.positive = _joined(self.positive)
        self.negative = _joined(self.negative)


def _joined(buckets: dict[int, int]) -> dict[int, int]:
    joined: dict[int, int] = {}
    for index, count in buckets.items():
        joined[index >> 1] = joined.get(index >> 1, 0) + count
    return joined


def _index(value: float) -> int:
    """The bucket of a positive value at `SCALE_MAX`."""
    mantissa, exponent = math.frexp(value)
    if mantissa == 0.5:  # a power of two is the upper end of its bucket, exactly
        return ((exponent - 1) << SCALE_MAX) - 1
    fraction = math.ceil(math.log2(mantissa) * (1 << SCALE_MAX)) - 1
    return (exponent << SCALE_MAX) + fraction

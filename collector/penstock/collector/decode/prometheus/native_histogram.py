"""Prometheus's native histograms as OpenTelemetry's exponential ones.

At schema s bucket i of Prometheus counts values in (base**(i - 1), base**i] with base = 2**(2**-s),
which is bucket i - 1 of OpenTelemetry at scale s. Counts stand in spans: how far the next run of
buckets is from the one before, and how long it is; whole counts as differences from the bucket
before, float counts as they are. The schema -53 has custom bounds, as a classic histogram has. See
"Native Histograms" in Prometheus's specifications.
"""

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from penstock.specs.limits import BUCKETS_MAX, EXPLICIT_BOUNDS_MAX, INT64_MAX
from penstock.specs.models.metric import NO_RECORDED_VALUE

Json = dict[str, Any]
_CUSTOM_BUCKETS: Final = -53
_SCHEMAS: Final = range(-4, 9)
_INDEX_MAX: Final = (1 << 31) - 1
_STALE: Final = struct.pack("<Q", 0x7FF0_0000_0000_0002)
"""The NaN that says that a series has ended (prometheus/model/value)."""


@dataclass(frozen=True, slots=True)
class NativeHistogram:
    """A native histogram as it was sent.

    Attributes:
        count: Number of observations, whole or not.
        positive: Spans, differences of whole counts, and float counts, of which one is empty.
        negative: Likewise.
        custom_bounds: Upper bounds of the buckets of the schema -53.
    """

    schema: int
    count: float
    sum: float
    zero_threshold: float
    zero_count: float
    positive: tuple[Any, Any, Any]
    negative: tuple[Any, Any, Any]
    custom_bounds: Sequence[float] = ()


def is_stale(value: float) -> bool:
    """Return whether a value says that its series has ended."""
    return struct.pack("<d", value) == _STALE


def window(start_ns: int) -> Json:
    """The fields of a cumulative point that say since when it counts."""
    return {"temporality": "cumulative", "start_time_unix_nano": start_ns}


def native_histogram(one: NativeHistogram, start_ns: int, notes: Counter[str]) -> Json | str:
    """The fields of a native histogram's point, or why it can be none.

    Args:
        one: The histogram.
        start_ns: Time since which it counts.
        notes: Counts observations that are no numbers, which are in no bucket, and sums that are
            not finite; both are left out.
    """
    if is_stale(one.sum):
        empty = {"count": 0, "scale": 0, "zero_count": 0, "flags": NO_RECORDED_VALUE}
        return {"metric_type": "exponential_histogram", **window(start_ns), **empty}
    count, zeros = _whole(one.count), _whole(one.zero_count)
    positive, negative = _buckets(*one.positive), _buckets(*one.negative)
    if count is None or zeros is None or positive is None or negative is None:
        return "buckets that do not fit their spans, or counts that are no whole numbers"
    total = zeros + sum(positive.values()) + sum(negative.values())
    if max(count, total) > INT64_MAX:
        return "counts beyond 64 bits"
    if count > total:
        notes["observations_not_numbers"] += count - total
        count = total
    typed = {"count": count, **window(start_ns)}
    if math.isfinite(one.sum):
        typed["sum"] = one.sum
    else:
        notes["sums_not_finite"] += 1
    if one.schema == _CUSTOM_BUCKETS:
        return typed | _explicit(one, positive) if _fits(one, positive) else "custom buckets"
    if one.schema not in _SCHEMAS:
        return f"the schema {one.schema}"
    if one.zero_threshold > 0 and math.isfinite(one.zero_threshold):
        typed["zero_threshold"] = one.zero_threshold
    return typed | {"zero_count": zeros} | _exponential(one.schema, positive, negative)


def _exponential(scale: int, positive: dict[int, int], negative: dict[int, int]) -> Json:
    """Buckets at the highest scale at which a record has room for them."""
    while any(_width(buckets) > BUCKETS_MAX for buckets in (positive, negative)):
        scale, positive, negative = scale - 1, _halved(positive), _halved(negative)
    typed: Json = {"metric_type": "exponential_histogram", "scale": scale}
    for name, buckets in (("positive", positive), ("negative", negative)):
        if buckets:
            first, last = min(buckets), max(buckets)
            counts = [buckets.get(index, 0) for index in range(first, last + 1)]
            typed[name] = {"offset": first - 1, "bucket_counts": counts}
    return typed


def _whole(count: float) -> int | None:
    """A count that may be sent as a float, as a whole number; None where it is none."""
    if isinstance(count, int):
        return count
    return int(count) if 0 <= count <= INT64_MAX and count == int(count) else None


def _buckets(spans: Any, deltas: Any, counts: Any) -> dict[int, int] | None:
    """Counts by Prometheus's index, without zeros; None where they do not fit their spans."""
    given = list(accumulate(deltas)) if deltas else [_whole(count) for count in counts]
    if sum(span.length for span in spans) != len(given):
        return None
    found: dict[int, int] = {}
    index, left = 0, iter(given)
    for span in spans:
        index += span.offset
        for _ in range(span.length):
            count = next(left)
            if count is None or count < 0 or abs(index) >= _INDEX_MAX:
                return None
            if count:
                found[index] = count
            index += 1
    return found


def _width(buckets: Mapping[int, int]) -> int:
    return max(buckets) - min(buckets) + 1 if buckets else 0


def _halved(buckets: Mapping[int, int]) -> dict[int, int]:
    """Merge buckets to the scale below: each new one covers two of the old ones."""
    found: dict[int, int] = {}
    for index, count in buckets.items():
        found[(index + 1) >> 1] = found.get((index + 1) >> 1, 0) + count
    return found


def _fits(one: NativeHistogram, buckets: Mapping[int, int]) -> bool:
    """Return whether custom buckets lie within their bounds, and a record has room for those."""
    bounds = len(one.custom_bounds)
    return bounds <= EXPLICIT_BOUNDS_MAX and all(0 <= index <= bounds for index in buckets)


def _explicit(one: NativeHistogram, buckets: Mapping[int, int]) -> Json:
    bounds = list(one.custom_bounds)
    counts = [buckets.get(index, 0) for index in range(len(bounds) + 1)]
    return {"metric_type": "histogram", "explicit_bounds": bounds, "bucket_counts": counts}

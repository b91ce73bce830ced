"""Aggregate: the points of a series within an interval become one point.

Deltas are added up: sums, and histograms bucket by bucket, exponential ones at the lowest scale and
the largest zero threshold of the points. Of gauges and of cumulative points,
whose numbers hold those before them, the latest goes on. A series is the points that have all in
common but their times and their numbers; histograms with other bounds are another series.

Series are kept in memory. A stop sends all of them; after a kill their points are read again.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.collector.limits import KIB, MIB
from penstock.collector.transforms.expressions.expression import NUMBERS, digest
from penstock.collector.transforms.expressions.paths import Fields
from penstock.collector.transforms.metrics.exponential import FIELDS, Exponential
from penstock.collector.transforms.transform import (
    PASS,
    Aggregator,
    DropReason,
    Event,
    TransformContext,
    TransformSettings,
    Verdict,
)
from penstock.specs.limits import EXEMPLARS_MAX, INT64_MAX, INT64_MIN
from penstock.specs.models.codec import encode_json

_SECOND_NS: Final = 1_000_000_000
_FLUSH_NS: Final = _SECOND_NS // 10
"""Between looks whether the interval is over."""
_OF_ONE_POINT: Final = frozenset({
    "time_unix_nano", "observed_time_unix_nano", "start_time_unix_nano", "record_id", "value",
    "count", "sum", "min", "max", "bucket_counts", "scale", "zero_count", "zero_threshold",
    "positive", "negative", "exemplars", "flags",
})  # fmt: skip
"""Fields in which the points of a series differ."""


class AggregateSettings(TransformSettings):
    """The points of a series within an interval become one point."""

    type: Literal["aggregate"]
    interval_s: float = Field(
        default=60.0, ge=0.1, le=3600, description="from the first point that is held to the flush"
    )
    max_series: int = Field(
        default=100_000, ge=1, le=10_000_000,
        description="at once; beyond it the oldest goes on before its interval is over",
    )  # fmt: skip
    max_bytes: int = Field(default=128 * MIB, ge=64 * KIB, le=4096 * MIB, description="likewise")
    max_ended_bytes: int = Field(
        default=8 * MIB, ge=64 * KIB, le=4096 * MIB,
        description="of series that have ended early; beyond it they go on before the next flush",
    )  # fmt: skip


@dataclass(slots=True)
class _Series:
    """The point that a series has become.

    Attributes:
        fields: The latest point, with the numbers of all.
        size: Bytes that it takes, by its first point.
    """

    fields: Fields
    size: int


class Aggregate(Aggregator):
    """Holds one point of each series until the interval is over; every other record passes.

    Args:
        settings: Interval and bounds.
    """

    settings = AggregateSettings
    outputs = (PASS,)
    interval_ns = _FLUSH_NS

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(settings)

    def __init__(self, settings: AggregateSettings) -> None:
        self._settings = settings
        self._interval_ns = int(settings.interval_s * _SECOND_NS)
        self._due_ns: int | None = None
        self._series: OrderedDict[bytes, _Series] = OrderedDict()
        self._ended: list[Fields] = []
        self._size = self._ended_size = 0
        self._notes = Counter[str]()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        fields = event.fields
        if fields.get("kind") != "metric":
            return PASS
        if not _is_understood(fields):
            self._notes["points_not_aggregated"] += 1
            return PASS
        key = digest(_identity(fields))
        series = self._series.get(key)
        if series is None:
            self._begin(key, fields, now_ns)
        elif (merged := _merged(series.fields, fields)) is not None:
            series.fields = merged
        else:
            self._end_early(key, "series_out_of_range")
            self._begin(key, fields, now_ns)
        return DropReason.AGGREGATED

    @override
    def takes(self, event: Event) -> bool:
        return event.fields.get("kind") == "metric" and _is_understood(event.fields)

    @override
    def flush(self, now_ns: int, unix_ns: int, *, everything: bool = False) -> list[Fields]:
        due, self._ended, self._ended_size = self._ended, [], 0
        if self._due_ns is not None and (everything or now_ns >= self._due_ns):
            due += [series.fields for series in self._series.values()]
            self._series.clear()
            self._size, self._due_ns = 0, None
        return due

    @property
    @override
    def held_since_ns(self) -> int | None:
        return None if self._due_ns is None else self._due_ns - self._interval_ns

    @property
    @override
    def is_flush_due(self) -> bool:
        return self._ended_size > self._settings.max_ended_bytes

    @property
    @override
    def notes(self) -> Mapping[str, int]:
        return self._notes

    def _begin(self, key: bytes, fields: Fields, now_ns: int) -> None:
        size = len(encode_json(fields))
        self._series[key] = _Series(fields, size)
        self._size += size
        if self._due_ns is None:
            self._due_ns = now_ns + self._interval_ns
        settings = self._settings
        while len(self._series) > settings.max_series or self._size > settings.max_bytes:
            self._end_early(next(iter(self._series)), "series_ended_early")

    def _end_early(self, key: bytes, reason: str) -> None:
        series = self._series.pop(key)
        self._size -= series.size
        self._ended.append(series.fields)
        self._ended_size += series.size
        self._notes[reason] += 1


def _identity(fields: Fields) -> list[Any]:
    """What the points of a series have in common."""
    shared = {name: value for name, value in fields.items() if name not in _OF_ONE_POINT}
    return [shared, fields.get("explicit_bounds"), fields.get("sum") is None]


def _is_last(fields: Fields) -> bool:
    """Return whether the latest point of a series stands for those before it."""
    return fields["metric_type"] == "gauge" or fields.get("temporality") == "cumulative"


def _is_understood(fields: Fields) -> bool:
    """Return whether the latest point stands for all, or a point's numbers can be added up."""
    if _is_last(fields):
        return True
    if fields.get("temporality") != "delta" or fields.get("start_time_unix_nano") is None:
        return False
    if fields["metric_type"] == "exponential_histogram":
        return Exponential.of(fields) is not None
    numbers = _numbers_of(fields)
    return numbers is not None and all(number.__class__ in NUMBERS for number in numbers)


def _numbers_of(fields: Fields) -> list[Any] | None:
    """The numbers of a delta that are added up; None where it has none that can be."""
    if fields["metric_type"] == "sum":
        return [fields.get("value")]
    if fields["metric_type"] != "histogram" or not fields.get("bucket_counts"):
        return None
    own_sum = [] if fields.get("sum") is None else [fields["sum"]]
    return [fields.get("count"), *fields["bucket_counts"], *own_sum]


def _merged(held: Fields, point: Fields) -> Fields | None:
    """One point for two of a series; None where a number would leave its range."""
    earlier, later = (held, point) if _time_of(held) <= _time_of(point) else (point, held)
    if _is_last(point):
        return later
    made = {name: value for name, value in later.items() if name != "record_id"}
    begun = [int(one["start_time_unix_nano"]) for one in (earlier, later)]
    made["start_time_unix_nano"] = min(begun)
    typed = _added(held, point)
    if typed is None:
        return None
    if point["metric_type"] == "exponential_histogram":
        made = {name: value for name, value in made.items() if name not in FIELDS}
    made |= typed
    if point["metric_type"] != "sum":
        for name, choose in (("min", min), ("max", max)):
            made.pop(name, None)
            extremes: list[Any] = [held.get(name), point.get(name)]
            if all(number.__class__ in NUMBERS for number in extremes):
                made[name] = choose(extremes)
    exemplars = [*(earlier.get("exemplars") or ()), *(later.get("exemplars") or ())]
    if exemplars:
        made["exemplars"] = exemplars[-EXEMPLARS_MAX:]
    return made


def _added(held: Fields, point: Fields) -> dict[str, Any] | None:
    """The numbers of both deltas; None where one would leave its range."""
    if point["metric_type"] == "exponential_histogram":
        one, other = Exponential.of(held), Exponential.of(point)
        assert one is not None
        assert other is not None
        both = one.plus(other)
        return None if both is None else both.fields()
    totals = [a + b for a, b in zip(_numbers_of(held) or (), _numbers_of(point) or (), strict=True)]
    if not all(_fits(total) for total in totals):
        return None
    if point["metric_type"] == "sum":
        return {"value": totals[0]}
    buckets = len(point["bucket_counts"])
    made = {"count": totals[0], "bucket_counts": totals[1 : buckets + 1]}
    return made if len(totals) == buckets + 1 else {**made, "sum": totals[-1]}


def _time_of(fields: Fields) -> int:
    return int(fields["time_unix_nano"])


def _fits(number: Any) -> bool:
    if number.__class__ is int:
        return bool(INT64_MIN <= number <= INT64_MAX)
    return bool(number - number == 0.0)

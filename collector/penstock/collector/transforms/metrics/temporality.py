"""Temporality: cumulative points become deltas, or deltas become cumulative.

A cumulative point says what was counted since its series began, a delta what was counted since the
point before it. A series is the points of one name, unit, type, resource and attributes.

The state of series is kept in memory and lost with the process: the first point of a series, which
begins it, has no delta, and a cumulative series begins again after a restart, as that of a program
does which was started again.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.collector.transforms.expressions.expression import NUMBERS, digest
from penstock.collector.transforms.expressions.paths import Fields
from penstock.collector.transforms.metrics.exponential import FIELDS, Exponential
from penstock.collector.transforms.transform import (
    PASS,
    DropReason,
    Event,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
)
from penstock.specs.limits import INT64_MAX, INT64_MIN

_SECOND_NS: Final = 1_000_000_000


class TemporalitySettings(TransformSettings):
    """Cumulative points become deltas, or deltas become cumulative."""

    type: Literal["temporality"]
    to: Literal["delta", "cumulative"]
    max_series: int = Field(
        default=100_000, ge=1, le=10_000_000,
        description="whose state is kept; beyond it that of the one silent longest is forgotten",
    )  # fmt: skip
    max_idle_s: float = Field(
        default=3600.0, ge=1, le=604_800, description="after which a silent series is forgotten"
    )


Numbers = tuple[Any, ...] | Exponential


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of a series.

    Attributes:
        begun_ns: When the cumulative series began.
        time_ns: Time of its last point.
        numbers: What that point counted: the value; or the count, the sum and the buckets; or all
            of an exponential histogram.
        bounds: The bounds of its buckets.
        seen_ns: When it came, by the monotonic clock.
    """

    begun_ns: int
    time_ns: int
    numbers: Numbers
    bounds: tuple[Any, ...]
    seen_ns: int


class Temporality(Transform):
    """Converts sums and histograms of both kinds; every other record passes.

    Args:
        settings: The temporality of what goes on, and bounds.
    """

    settings = TemporalitySettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(settings)

    def __init__(self, settings: TemporalitySettings) -> None:
        self._to_delta = settings.to == "delta"
        self._from = "cumulative" if self._to_delta else "delta"
        self._to = settings.to
        self._max_series = settings.max_series
        self._max_idle_ns = int(settings.max_idle_s * _SECOND_NS)
        self._series: OrderedDict[bytes, _State] = OrderedDict()
        self._notes = Counter[str]()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        fields = event.fields
        if fields.get("kind") != "metric" or fields.get("temporality") != self._from:
            return PASS
        numbers = _numbers_of(fields)
        if numbers is None or (self._to_delta and not _only_rises(fields)):
            self._notes["points_not_converted"] += 1
            return PASS
        self._forget(now_ns)
        key = digest(_identity(fields))
        time_ns = int(fields["time_unix_nano"])
        before = self._series.get(key)
        if before is not None and time_ns <= before.time_ns:
            self._notes["points_out_of_order"] += 1
            return DropReason.FILTERED
        bounds = tuple(fields.get("explicit_bounds") or ())
        found = self._converted(fields, before, numbers, bounds)
        if found is None:
            return PASS
        made, state_numbers, begun_ns = found
        self._series[key] = _State(begun_ns, time_ns, state_numbers, bounds, now_ns)
        self._series.move_to_end(key)
        if len(self._series) > self._max_series:
            self._series.popitem(last=False)
            self._notes["series_forgotten"] += 1
        if made is None:
            return DropReason.AGGREGATED
        event.fields = made
        return PASS

    @property
    @override
    def notes(self) -> Mapping[str, int]:
        return self._notes

    def _forget(self, now_ns: int) -> None:
        """Forget the series that were silent too long, which are the first."""
        while self._series:
            oldest = next(iter(self._series.values()))
            if oldest.seen_ns + self._max_idle_ns > now_ns:
                return
            self._series.popitem(last=False)

    def _converted(
        self,
        fields: Fields,
        before: _State | None,
        numbers: Numbers,
        bounds: tuple[Any, ...],
    ) -> tuple[Fields | None, Numbers, int] | None:
        """The point that goes on, and the state after it; a point of None begins its series.

        None: a number would leave its range, and the point passes as it is.
        """
        begun_ns = int(fields.get("start_time_unix_nano") or 0)
        if self._to_delta:
            if before is None:
                return None, numbers, begun_ns
            change = None
            if begun_ns <= before.time_ns and bounds == before.bounds:
                change = _difference(numbers, before.numbers)
            if change is None:
                self._notes["series_reset"] += 1
                start_ns = max(before.time_ns, begun_ns)
                return self._point(fields, numbers, start_ns), numbers, begun_ns
            return self._point(fields, change, before.time_ns), numbers, begun_ns
        if before is None or bounds != before.bounds:
            return self._point(fields, numbers, begun_ns), numbers, begun_ns
        total = _total(numbers, before.numbers)
        if total is None:
            self._notes["points_not_converted"] += 1
            return None
        return self._point(fields, total, before.begun_ns), total, before.begun_ns

    def _point(self, fields: Fields, numbers: Numbers, start_ns: int) -> Fields:
        """The point with other numbers; what one point alone knows of its time is left out."""
        time_ns = int(fields["time_unix_nano"])
        made = {
            **{key: value for key, value in fields.items() if key not in {"min", "max"}},
            "temporality": self._to,
            "start_time_unix_nano": min(start_ns, time_ns),
        }
        if isinstance(numbers, Exponential):
            others = {name: value for name, value in made.items() if name not in FIELDS}
            return others | numbers.fields()
        if fields["metric_type"] == "sum":
            return {**made, "value": numbers[0]}
        count, *rest = numbers
        if fields.get("sum") is not None:
            made["sum"], *rest = rest
        return {**made, "count": count, "bucket_counts": rest}


def _only_rises(fields: Fields) -> bool:
    """Return whether a cumulative point's numbers fall only where the series begins again."""
    return fields["metric_type"] != "sum" or fields.get("is_monotonic") is True


def _difference(later: Numbers, earlier: Numbers) -> Numbers | None:
    """What was counted in between; None where a number is smaller than before."""
    if isinstance(later, Exponential) or isinstance(earlier, Exponential):
        assert isinstance(later, Exponential)
        assert isinstance(earlier, Exponential)
        return later.minus(earlier)
    pairs = list(zip(later, earlier, strict=True))
    return None if any(new < old for new, old in pairs) else tuple(new - old for new, old in pairs)


def _total(later: Numbers, earlier: Numbers) -> Numbers | None:
    """Both; None where a number would leave its range."""
    if isinstance(later, Exponential) or isinstance(earlier, Exponential):
        assert isinstance(later, Exponential)
        assert isinstance(earlier, Exponential)
        return later.plus(earlier)
    total = tuple(new + old for new, old in zip(later, earlier, strict=True))
    return total if all(_fits(number) for number in total) else None


def _numbers_of(fields: Fields) -> Numbers | None:
    """What a point counts; None where it counts nothing that can be added up."""
    if fields["metric_type"] == "exponential_histogram":
        return Exponential.of(fields)
    if fields["metric_type"] == "sum":
        found: tuple[Any, ...] = (fields.get("value"),)
    elif fields["metric_type"] == "histogram" and fields.get("bucket_counts"):
        own_sum = () if fields.get("sum") is None else (fields["sum"],)
        found = (fields.get("count"), *own_sum, *fields["bucket_counts"])
    else:
        return None
    return found if all(number.__class__ in NUMBERS for number in found) else None


def _identity(fields: Fields) -> list[Any]:
    return [
        fields.get("name"), fields.get("unit"), fields["metric_type"], fields.get("is_monotonic"),
        fields.get("sum") is None, fields.get("resource"), fields.get("attributes"),
    ]  # fmt: skip


def _fits(number: Any) -> bool:
    if number.__class__ is int:
        return bool(INT64_MIN <= number <= INT64_MAX)
    return bool(number - number == 0.0)

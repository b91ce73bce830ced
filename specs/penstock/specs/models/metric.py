"""Metric points: a measurement of one of four types."""

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from penstock.specs.emit.process_sink import emit_here
from penstock.specs.errors import BrokenRuleError
from penstock.specs.limits import (
    BUCKETS_MAX,
    EXEMPLARS_MAX,
    EXPLICIT_BOUNDS_MAX,
    NAME_CHARACTERS_MAX,
)
from penstock.specs.models.envelope import CONFIG, Record
from penstock.specs.models.scalars import (
    Attributes,
    Count,
    Finite,
    Int64,
    Measured,
    Nanoseconds,
    Number,
    ReadersFirst,
    SpanId,
)
from penstock.specs.models.scalars import TraceId as _TraceId

NO_RECORDED_VALUE = 1
"""Bit of `flags`: the series stopped; the point has no value."""


class Exemplar(BaseModel):
    """One measurement that went into a point, with the trace it came from."""

    model_config = CONFIG

    time_unix_nano: Nanoseconds
    value: Annotated[Number, ReadersFirst()]
    trace_id: _TraceId | None = None
    span_id: SpanId | None = None
    attributes: Attributes | None = None


class Buckets(BaseModel):
    """Exponential buckets: index `offset + i` counts values in (base**index, base**(index+1)]."""

    model_config = CONFIG

    offset: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
    bucket_counts: Annotated[list[Count], Field(max_length=BUCKETS_MAX)]


def fits_its_type(point: Any) -> None:
    """A point has the fields of its type, and they agree with one another."""
    if point.start_time_unix_nano is not None and point.start_time_unix_nano > point.time_unix_nano:
        raise BrokenRuleError("start_time_unix_nano is after time_unix_nano")
    needed, allowed = _SHAPES[point.metric_type]
    if (point.flags or 0) & NO_RECORDED_VALUE:
        needed = frozenset()
    given = {name for name in _TYPED if getattr(point, name) is not None}
    if missing := needed - given:
        raise BrokenRuleError(f"{point.metric_type} needs {', '.join(sorted(missing))}")
    if foreign := given - allowed:
        raise BrokenRuleError(f"{point.metric_type} has no {', '.join(sorted(foreign))}")
    if given:
        _check(point)


class MetricPoint(Record, spec="metric/1.1"):
    """One point of a gauge, sum, histogram or exponential histogram; `metric_type` says which.

    `name` is the metric's own name as its sender has it: its letters' case and every other
    character tell metrics apart. A value that JSON has no number for is the word ``NaN``,
    ``Infinity`` or ``-Infinity``; where a point is made, such a float may be given.

    A specialised spec's `name` is its own name, and its own fields are the metric's dimensions
    (`penstock.specs.models.dimensions`).
    """

    rules = (*Record.rules, fits_its_type)

    kind: Literal["metric"] = "metric"
    name: Annotated[
        str,
        Field(min_length=1, max_length=NAME_CHARACTERS_MAX, validate_default=True),
        ReadersFirst(),
    ] = ""
    unit: Annotated[str, Field(min_length=1, max_length=63)]
    metric_type: Literal["gauge", "sum", "histogram", "exponential_histogram"]
    start_time_unix_nano: Nanoseconds | None = None
    temporality: Literal["delta", "cumulative"] | None = None
    is_monotonic: bool | None = None
    value: Annotated[Number | None, ReadersFirst()] = None
    count: Count | None = None
    sum: Annotated[Measured | None, ReadersFirst()] = None
    min: Annotated[Measured | None, ReadersFirst()] = None
    max: Annotated[Measured | None, ReadersFirst()] = None
    bucket_counts: Annotated[list[Count] | None, Field(max_length=EXPLICIT_BOUNDS_MAX + 1)] = None
    explicit_bounds: Annotated[list[Finite] | None, Field(max_length=EXPLICIT_BOUNDS_MAX)] = None
    scale: Annotated[int | None, Field(ge=-10, le=20)] = None
    zero_count: Count | None = None
    zero_threshold: Annotated[float | None, Field(ge=0)] = None
    positive: Buckets | None = None
    negative: Buckets | None = None
    exemplars: Annotated[list[Exemplar] | None, Field(max_length=EXEMPLARS_MAX)] = None
    flags: Annotated[Int64 | None, Field(ge=0, le=0xFFFF_FFFF)] = None

    def emit(self) -> bool:
        """Emit through the process's emitter; False when it was dropped, also without `setup`.

        A dimension's values beyond its cap go out as one: `penstock.specs.emit.emitter`.
        """
        return emit_here(self)


_TYPED = (
    "start_time_unix_nano", "temporality", "is_monotonic", "value", "count", "sum", "min", "max",
    "bucket_counts", "explicit_bounds", "scale", "zero_count", "zero_threshold", "positive",
    "negative",
)  # fmt: skip
_STATISTICS = {"count", "sum", "min", "max", "start_time_unix_nano", "temporality"}
_SHAPES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "gauge": (
        frozenset({"value"}),
        frozenset({"value", "start_time_unix_nano"}),
    ),
    "sum": (
        frozenset({"value", "is_monotonic", "temporality", "start_time_unix_nano"}),
        frozenset({"value", "is_monotonic", "temporality", "start_time_unix_nano"}),
    ),
    "histogram": (
        frozenset(
            {"count", "bucket_counts", "explicit_bounds", "temporality", "start_time_unix_nano"}
        ),
        frozenset(_STATISTICS | {"bucket_counts", "explicit_bounds"}),
    ),
    "exponential_histogram": (
        frozenset({"count", "scale", "zero_count", "temporality", "start_time_unix_nano"}),
        frozenset(_STATISTICS | {"scale", "zero_count", "zero_threshold", "positive", "negative"}),
    ),
}
"""The fields that each metric type needs, and those it may have."""


def _check(point: Any) -> None:
    """The rules between the fields of one type.

    Raises:
        BrokenRuleError: One is broken.
    """
    if point.is_monotonic and point.value is not None and float(point.value) < 0:
        raise BrokenRuleError("value of a monotonic sum is negative")
    if point.min is not None and point.max is not None and float(point.min) > float(point.max):
        raise BrokenRuleError("min is above max")
    if point.bucket_counts is not None and point.explicit_bounds is not None:
        _check_histogram(point.count, point.bucket_counts, point.explicit_bounds)
    if point.scale is not None:
        _check_exponential(point)


def _check_histogram(count: int | None, counts: list[int], bounds: list[float]) -> None:
    if len(counts) != len(bounds) + 1:
        raise BrokenRuleError("bucket_counts must be one longer than explicit_bounds")
    if any(low >= high for low, high in pairwise(bounds)):
        raise BrokenRuleError("explicit_bounds must rise strictly")
    if sum(counts) != count:
        raise BrokenRuleError("bucket_counts must add up to count")


def _check_exponential(point: Any) -> None:
    total = point.zero_count or 0
    for buckets in (point.positive, point.negative):
        total += sum(buckets.bucket_counts) if buckets is not None else 0
    if total != point.count:
        raise BrokenRuleError("buckets and zero_count must add up to count")

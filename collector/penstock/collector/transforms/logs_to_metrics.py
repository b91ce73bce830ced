"""Logs to metrics: records are counted or measured, in series of bounded number.

What is counted is kept in memory until the next flush, and becomes delta sums or exponential
histograms then; so a restart begins new deltas and no total goes backwards. What was counted since
the last flush is read again after a kill. A stop loses nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.decode.metrics import ExponentialHistogram
from penstock.collector.transforms.expressions.expression import (
    NUMBERS,
    Evaluate,
    compile_expression,
    to_text,
)
from penstock.collector.transforms.expressions.paths import Fields
from penstock.collector.transforms.transform import (
    PASS,
    Aggregator,
    DropReason,
    Event,
    Expression,
    Refusal,
    TransformContext,
    TransformSettings,
    Verdict,
)
from penstock.specs.limits import NAME_CHARACTERS_MAX

OTHER = "other"
"""The value of every dimension of the series that counts what has no room for its own."""

COUNT_MAX: Final = 1 << 53
"""Up to which a double counts by ones."""

WEIGHT_TOTAL_MAX: Final = 1e300
"""Largest weight of one sum; beyond it a double would become infinite."""

_SECOND_NS: Final = 1_000_000_000

Key = tuple[str, ...]


class LogsToMetricsSettings(TransformSettings):
    """Records are counted or measured, and only the metric goes on."""

    type: Literal["logs_to_metrics"]
    name: str = Field(min_length=1, max_length=NAME_CHARACTERS_MAX)
    unit: str = Field(default="1", min_length=1, max_length=63)
    metric: Literal["counter", "histogram"] = "counter"
    value: Expression | None = None
    dimensions: dict[Annotated[str, Field(min_length=1, max_length=128)], Expression] = Field(
        default={}, max_length=16
    )
    max_series: int = Field(default=1000, ge=1, le=100_000)
    interval_s: float = Field(default=10.0, ge=0.1, le=3600)

    @model_validator(mode="after")
    def _measures_something(self) -> "LogsToMetricsSettings":
        if self.metric == "histogram" and self.value is None:
            msg = "a histogram needs a `value`"
            raise ValueError(msg)
        return self


@dataclass(frozen=True, slots=True)
class Measure:
    """The definition of one metric.

    Attributes:
        value: Value that is summed or distributed; None counts records, each by its
            `sample_weight`.
        dimensions: Attribute of the metric to what computes it.
    """

    name: str
    unit: str
    is_histogram: bool
    value: Evaluate | None
    dimensions: list[tuple[str, Evaluate]]


@dataclass(slots=True)
class _Series:
    total: float = 0
    histogram: ExponentialHistogram = field(default_factory=ExponentialHistogram)


class LogsToMetrics(Aggregator):
    """Takes records in and gives metric points out.

    Args:
        measure: The metric.
        max_series: Series of one interval, over all services; what comes beyond is counted in one
            more, of the service ``other``, whose dimensions are all ``other``.
        interval_ns: Between flushes.
        resource: The points' resource, besides their service.
    """

    settings = LogsToMetricsSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        measure = Measure(
            settings.name,
            settings.unit,
            settings.metric == "histogram",
            compile_expression(settings.value).evaluate if settings.value else None,
            [(key, compile_expression(text).evaluate) for key, text in settings.dimensions.items()],
        )
        return cls(
            measure,
            max_series=settings.max_series,
            interval_ns=int(settings.interval_s * _SECOND_NS),
            resource=context.resource,
        )

    def __init__(
        self, measure: Measure, *, max_series: int, interval_ns: int, resource: Mapping[str, Any]
    ) -> None:
        self._measure = measure
        self._max_series = max_series
        self.interval_ns = interval_ns
        self._resource = resource
        self._since_ns: int | None = None
        self._series: dict[Key, _Series] = {}

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        fields, measure = event.fields, self._measure
        weight = fields.get("sample_weight") or 1
        value: Any = 1 if measure.value is None else measure.value(fields)
        if value.__class__ not in NUMBERS or (value < 0 and not measure.is_histogram):
            return Refusal(f"value of the metric {measure.name} is no number that can be added up")
        service = (fields.get("resource") or {}).get("service.name")
        dimensions = (to_text(read(fields)) or "" for _, read in measure.dimensions)
        key = (str(service), *(text[:NAME_CHARACTERS_MAX] for text in dimensions))
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._max_series:
                key = (OTHER,) * len(key)
            series = self._series.setdefault(key, _Series())
        if self._since_ns is None:
            self._since_ns = now_ns
        if measure.is_histogram:
            series.histogram.add(value, max(1, round(min(weight, COUNT_MAX))))
        else:
            series.total = min(series.total + value * weight, WEIGHT_TOTAL_MAX)
        return DropReason.AGGREGATED

    @override
    def takes(self, event: Event) -> bool:
        return True

    @override
    def flush(self, now_ns: int, unix_ns: int, *, everything: bool = False) -> list[Fields]:
        since_ns = now_ns if self._since_ns is None else self._since_ns
        begun_ns = max(0, unix_ns - (now_ns - since_ns))
        points = [
            self._point(key, series, begun_ns, unix_ns) for key, series in self._series.items()
        ]
        self._series, self._since_ns = {}, None
        return points

    @property
    @override
    def held_since_ns(self) -> int | None:
        return self._since_ns

    def _point(self, key: Key, series: _Series, begun_ns: int, unix_ns: int) -> Fields:
        measure = self._measure
        if measure.is_histogram:
            typed = series.histogram.fields()
        else:
            total = series.total
            whole = int(total) if total == int(total) and total <= COUNT_MAX else total
            typed = {"metric_type": "sum", "value": whole, "is_monotonic": True}
        names = [name for name, _ in measure.dimensions]
        return {
            "schema": "metric/1.1",
            "kind": "metric",
            "time_unix_nano": unix_ns,
            "observed_time_unix_nano": unix_ns,
            "name": measure.name,
            "unit": measure.unit,
            **typed,
            "temporality": "delta",
            "start_time_unix_nano": begun_ns,
            "resource": {**self._resource, "service.name": key[0]},
            "attributes": dict(zip(names, key[1:], strict=True)),
        }

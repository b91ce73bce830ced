"""StatsD samples of one flush interval, aggregated by series: kind, name and tags.

    counter                  delta sum, not monotonic: a counter may be decremented
    gauge                    gauge, in the intervals in which it changed; its value is kept
    timer, histogram         delta exponential histogram; a sample of rate r counts 1/r times
    set                      gauge of how many different members there were

A value with its own time was aggregated by its sender and is passed on as it is.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from penstock.collector.decode.metrics import ExponentialHistogram
from penstock.collector.limits import STATSD_SET_MEMBERS_MAX
from penstock.collector.sources.statsd.protocol import TIMED, Kind, Sample, Tags

Series = tuple[Kind, str, Tags]
_SECOND_NS: Final = 1_000_000_000


class Verdict(Enum):
    """The result of one sample."""

    AGGREGATED = "aggregated"
    TOO_MANY_SERIES = "too_many_series"
    TOO_MANY_MEMBERS = "too_many_members"


@dataclass(frozen=True, slots=True)
class Point:
    """The point of one series; `typed` holds the fields of its metric type."""

    name: str
    unit: str
    tags: Tags
    time_ns: int
    typed: dict[str, Any]


@dataclass(slots=True)
class _Timer:
    histogram: ExponentialHistogram = field(default_factory=ExponentialHistogram)
    owed: float = 0.0
    """The fraction of a measurement that sample rates left over."""

    def add(self, value: float, rate: float) -> None:
        self.owed += 1 / rate
        count = int(self.owed + 1e-9)
        self.owed -= count
        self.histogram.add(value, max(count, 1))


class Window:
    """The interval that is being collected.

    Args:
        max_series: Series of one interval, with samples that are passed on, and gauges that are
            kept; more are refused.
        now_ns: Begin of the first interval.

    Attributes:
        forgotten_gauges: Number of gauges whose value was given up since it was taken out.
    """

    def __init__(self, *, max_series: int, now_ns: int) -> None:
        self._series_max = max_series
        self._began_ns = now_ns
        self._counters: dict[Series, float] = {}
        self._timers: dict[Series, _Timer] = {}
        self._sets: dict[Series, set[bytes]] = {}
        self._set_members = 0
        self._gauges: OrderedDict[Series, float] = OrderedDict()
        self._changed: set[Series] = set()
        self._passed: list[Point] = []
        self.forgotten_gauges = 0

    def add(self, sample: Sample) -> Verdict:
        """Aggregate one sample."""
        series = (sample.kind, sample.name, sample.tags)
        is_passed_on = sample.time_s is not None and sample.kind in TIMED
        if (is_passed_on or self._is_new(series)) and self._count() >= self._series_max:
            return Verdict.TOO_MANY_SERIES
        if sample.kind is Kind.SET:
            return self._add_members(series, sample)
        if is_passed_on:
            return self._pass_on(sample)
        for value in sample.values:
            if sample.kind is Kind.COUNTER:
                self._counters[series] = self._counters.get(series, 0.0) + value / sample.rate
            elif sample.kind is Kind.GAUGE:
                self._set_gauge(series, value, relative=sample.relative)
            else:
                self._timers.setdefault(series, _Timer()).add(value, sample.rate)
        return Verdict.AGGREGATED

    def flush(self, now_ns: int) -> list[Point]:
        """The points of the interval that ends now; the next one begins."""
        began_ns, self._began_ns = min(self._began_ns, now_ns), now_ns
        window = {"temporality": "delta", "start_time_unix_nano": began_ns}
        found, self._passed = self._passed, []
        for (_, name, tags), total in self._counters.items():
            typed = {"metric_type": "sum", "value": total, "is_monotonic": False, **window}
            found.append(Point(name, "1", tags, now_ns, typed))
        for (kind, name, tags), timer in self._timers.items():
            unit = "ms" if kind is Kind.TIMER else "1"
            found.append(Point(name, unit, tags, now_ns, {**timer.histogram.fields(), **window}))
        for (_, name, tags), members in self._sets.items():
            found.append(Point(name, "1", tags, now_ns, _gauge(len(members))))
        for series in self._changed:
            _, name, tags = series
            found.append(Point(name, "1", tags, now_ns, _gauge(self._gauges[series])))
        self._counters, self._timers, self._sets = {}, {}, {}
        self._changed.clear()
        self._set_members = 0
        return found

    def _count(self) -> int:
        aggregated = len(self._counters) + len(self._timers) + len(self._sets)
        return aggregated + len(self._changed) + len(self._passed)

    def _is_new(self, series: Series) -> bool:
        return not any(
            series in known for known in (self._counters, self._timers, self._sets, self._changed)
        )

    def _set_gauge(self, series: Series, value: float, *, relative: bool) -> None:
        base = self._gauges.get(series, 0.0) if relative else 0.0
        self._gauges[series] = base + value
        self._gauges.move_to_end(series)
        self._changed.add(series)
        if len(self._gauges) > self._series_max:
            self._gauges.popitem(last=False)
            self.forgotten_gauges += 1

    def _add_members(self, series: Series, sample: Sample) -> Verdict:
        members = self._sets.setdefault(series, set())
        for member in sample.members:
            if member not in members:
                if self._set_members >= STATSD_SET_MEMBERS_MAX:
                    return Verdict.TOO_MANY_MEMBERS
                members.add(member)
                self._set_members += 1
        return Verdict.AGGREGATED

    def _pass_on(self, sample: Sample) -> Verdict:
        assert sample.time_s is not None
        time_ns = sample.time_s * _SECOND_NS
        for value in sample.values:
            typed = _gauge(value)
            if sample.kind is Kind.COUNTER:
                typed = {
                    "metric_type": "sum",
                    "value": value / sample.rate,
                    "is_monotonic": False,
                    "temporality": "delta",
                    "start_time_unix_nano": time_ns,
                }
            self._passed.append(Point(sample.name, "1", sample.tags, time_ns, typed))
        return Verdict.AGGREGATED


def _gauge(value: float) -> dict[str, Any]:
    return {"metric_type": "gauge", "value": value}

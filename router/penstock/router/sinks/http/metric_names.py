"""Metric names as a destination takes them, and the names that became one there.

A destination that knows fewer characters than senders use makes two metrics one, as `a.b` and `a_b`
are for Prometheus. Their samples are then of one series. That is counted (`names_merged`), and each
pair is named in the log once.
"""

from typing import Final

import structlog

from penstock.router.meter import Meter

_NAMES_MAX: Final = 50_000
"""Cached fitted names, some 10 MB; of later ones it is not known whether they merge
(`names_unchecked`)."""
_PAIRS_MAX: Final = 1_000
_log = structlog.get_logger()


class MetricNames:
    """Names of a sink's metrics at its destination."""

    def __init__(self, sink: str, meter: Meter) -> None:
        self._sink = sink
        self._meter = meter
        self._first: dict[str, str] = {}
        self._pairs: set[tuple[str, str]] = set()

    def note(self, name: str, fitted: str) -> None:
        """One point of the metric `name` goes out as `fitted`."""
        first = self._first.get(fitted)
        if first is None:
            if len(self._first) < _NAMES_MAX:
                self._first[fitted] = name
            else:
                self._meter.count("names_unchecked")
        elif first != name:
            self._meter.count("names_merged")
            pair = (fitted, name)
            if pair not in self._pairs and len(self._pairs) < _PAIRS_MAX:
                self._pairs.add(pair)
                _log.warning(
                    "metric_name_collision",
                    sink=self._sink, names=[first, name], metric=fitted,
                )  # fmt: skip

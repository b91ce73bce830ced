"""The job's status as metrics."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from penstock.router.delivery.breaker import STATES
from penstock.service import Status, span_metrics

_COUNTERS: Final = {
    "received": "Records that a sink's query read from the log.",
    "sent": "Records that a sink's destination confirmed.",
    "errors": "Failures of a sink: records that it refused, failed requests, failed queries.",
}
_DETAILS: Final = {
    "left_out_lost": "Records that a sink did not get because the log no longer had them intact.",
    "log_truncated": "Records that the log lost after a sink got them.",
    "dead_letters": "Records that a sink sent to its dead-letter queue.",
    "dead_letters_not_streamed": "Dead-letter records that did not reach `dead_letter_stream`.",
}

_TIME_REASONS: Final = ("missing", "not_an_integer", "before_1970", "after_2262")
"""Reasons for which a record gets the log's time; counters are `time_replaced_REASON`."""


def times_replaced(detail: Mapping[str, Any]) -> int:
    """Return how many records of a sink got the log's time, by its stage's detail."""
    return sum(detail.get(f"time_replaced_{reason}", 0) for reason in _TIME_REASONS)


class StatusCollector(Collector):
    """The status's stages as Prometheus metrics."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: the sinks are only known once the job runs."""
        return []

    @override
    def collect(self) -> Iterable[Metric]:
        status = self._status()
        stages = {stage.name.partition("/")[2]: stage for stage in status.stages}
        for name, about in (_COUNTERS | _DETAILS).items():
            counter = CounterMetricFamily(f"penstock_router_{name}", about, labels=["sink"])
            for sink, stage in stages.items():
                of_detail = name in _DETAILS
                counter.add_metric(
                    [sink], stage.detail.get(name, 0) if of_detail else getattr(stage, name)
                )
            yield counter
        replaced = CounterMetricFamily(
            "penstock_router_times_replaced",
            "Records whose time a sink replaced by the time at which the log got them.",
            labels=["sink", "reason"],
        )
        lag = GaugeMetricFamily(
            "penstock_router_lag",
            "Records in the log that a sink has not received yet.",
            labels=["sink"],
        )
        for sink, stage in stages.items():
            for reason in _TIME_REASONS:
                number = stage.detail.get(f"time_replaced_{reason}", 0)
                replaced.add_metric([sink, reason], number)
            lag.add_metric([sink], stage.lag)
        yield from (replaced, lag)
        yield from _circuits(status.info.get("sinks", {}))
        yield from span_metrics("router", status.info.get("tracing", {}))


def _circuits(sinks: Mapping[str, Any]) -> Iterable[Metric]:
    state = GaugeMetricFamily(
        "penstock_router_circuit",
        "The state of a sink's circuit breaker: 1 for the current state, 0 for the others.",
        labels=["sink", "state"],
    )
    opened = CounterMetricFamily(
        "penstock_router_circuit_opened",
        "Times that a sink's circuit breaker opened or paused.",
        labels=["sink"],
    )
    for sink, info in sinks.items():
        for name in STATES:
            state.add_metric([sink, name], info["circuit"]["state"] == name)
        opened.add_metric([sink], info["circuit"]["opened"])
    yield from (state, opened)

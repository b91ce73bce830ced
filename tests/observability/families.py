"""Every metric of every process, from the code that serves them: nothing is started.

logd declares its metrics in a table. The collectors of the others are run with nothing in them, so
each yields its families (name, type, help, labels) without a sample. `tests/live/test_metrics.py`
holds what real processes serve against this list.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from penstock.collector.telemetry import Metrics
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.daemon import Console, ConsoleMetrics
from penstock.logd.metrics import METRICS, family
from penstock.router.telemetry import StatusCollector
from penstock.service import Health, Status, span_metrics

PROCESSES = ("collector", "logd", "router", "console")

_UNITS = ("bytes", "seconds", "ms", "records", "messages", "envelopes", "requests", "connections",
          "acks", "streams", "gaps", "events")  # fmt: skip
_OFFSETS = ("offset", "watermark", "index")


@dataclass(frozen=True)
class Family:
    """One metric.

    Attributes:
        name: As queries name it; of a counter with `_total`.
        labels: Those of the process's own; scraping adds `job` and `instance`.
    """

    process: str
    name: str
    kind: str
    help: str
    labels: tuple[str, ...]

    @property
    def unit(self) -> str:
        """What is counted, as the name says; 1 for what has no unit."""
        words = self.name.removesuffix("_total").split("_")[2:]
        if any(word in _OFFSETS for word in words):
            return "offset"
        if "seconds" in words:
            return "seconds"
        said = next((unit for unit in reversed(words) if unit in _UNITS), "1")
        return "records" if said == "1" and self.help.startswith("Records ") else said


def families() -> list[Family]:
    """All of them, by process and name."""
    found = [
        Family(
            process,
            metric.name + ("_total" if metric.type == "counter" else ""),
            metric.type,
            metric.documentation.removesuffix("."),
            tuple(getattr(metric, "_labelnames", ())),
        )
        for process, metrics in (
            ("collector", _collector()),
            ("logd", _logd()),
            ("router", _router()),
            ("console", _console()),
        )
        for metric in metrics
    ]
    return sorted(found, key=lambda family: (PROCESSES.index(family.process), family.name))


def _logd() -> Iterable[Metric]:
    yield from (family(name, ()) for name in METRICS)
    yield from span_metrics("logd", {})


def _collector() -> Iterable[Metric]:
    status = Status("collector", "collector", "", Health.READY)
    return Metrics(lambda: status, CollectorRegistry()).collect()


def _router() -> Iterable[Metric]:
    return StatusCollector(lambda: Status("router", "job", "", Health.READY)).collect()


def _console() -> Iterable[Metric]:
    return ConsoleMetrics(Console(ConsoleConfig())).collect()

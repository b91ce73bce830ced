"""Every metric of every process, from the code that serves them: nothing is started.

The collectors of metrics are run on stand-ins that have nothing in them, so each says its families
(name, type, help, labels) without a sample. `tests/live/test_metrics.py` holds what real processes
serve against this list.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from penstock.collector.telemetry import Metrics
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.daemon import Console, ConsoleMetrics
from penstock.logd.cluster.engine import cluster_metrics
from penstock.logd.liftbridge.server import GrpcServer
from penstock.logd.listeners import Listeners
from penstock.logd.security.reloader import CredentialReloader
from penstock.logd.telemetry import Telemetry
from penstock.router.telemetry import StatusCollector
from penstock.service import Health, Status

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


class Nothing:
    """Has every attribute, takes every call, and holds nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *_: object, **__: object) -> Any:
        return Nothing()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0


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
    nothing = cast("Any", Nothing())
    registry = Telemetry(
        node="n", engine=nothing, budget=nothing, acks=nothing, data_link=nothing,
        ack_link=nothing, server=nothing, listeners=nothing, reloader=nothing, data_dir=Path(),
        metrics_streams_max=0,
    ).registry()  # fmt: skip
    yield from registry.collect()
    yield from cluster_metrics(nothing, [])
    yield from Listeners.metrics(nothing)
    yield from CredentialReloader.metrics(nothing)
    yield from GrpcServer.metrics(nothing)


def _collector() -> Iterable[Metric]:
    status = Status("collector", "collector", "", Health.READY)
    return Metrics(lambda: status, CollectorRegistry()).collect()


def _router() -> Iterable[Metric]:
    return StatusCollector(lambda: Status("router", "job", "", Health.READY)).collect()


def _console() -> Iterable[Metric]:
    return ConsoleMetrics(Console(ConsoleConfig())).collect()

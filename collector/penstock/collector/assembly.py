"""From a source's configuration to the source."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from penstock.collector import config
from penstock.collector.core.files import Generations
from penstock.collector.core.ledger import Ledger
from penstock.collector.courier import Courier
from penstock.collector.pipeline import Pipeline
from penstock.collector.sources.file import FileSource
from penstock.collector.sources.forward import ForwardSource
from penstock.collector.sources.host_metrics import HostMetricsSource
from penstock.collector.sources.source import Source
from penstock.collector.sources.stdin import StdinSource
from penstock.collector.sources.unix import UnixSource
from penstock.collector.spool import Spool
from penstock.service.clock import Clock


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything of the collector that some source needs.

    Attributes:
        resource: The collector's defaults.
        save: Makes the checkpoint durable, and says whether it could.
        known: Names of file sources that ran before.
    """

    resource: Mapping[str, Any]
    spool: Spool
    ledger: Ledger
    clock: Clock
    generations: Generations
    pipeline: Pipeline
    courier: Courier
    save: Callable[[], Awaitable[bool]]
    known: frozenset[str]


def make_source(section: config.Source, parts: Parts) -> Source:
    """Make a source of its configuration."""
    name = section.name or section.type
    spool, ledger, clock = parts.spool, parts.ledger, parts.clock
    match section:
        case config.UnixSource(path=path, mode=mode):
            return UnixSource(name, path, mode, spool=spool, ledger=ledger, clock=clock)
        case config.StdinSource(service=service, line_bytes_max=line_bytes_max):
            return StdinSource(
                name, service, line_bytes_max, spool=spool, ledger=ledger, clock=clock
            )
        case config.FileSource():
            return FileSource(
                section,
                parts.resource,
                parts.generations,
                pipeline=parts.pipeline,
                courier=parts.courier,
                ledger=ledger,
                clock=clock,
                save=parts.save,
                first_time=name not in parts.known,
            )
        case config.ForwardSource(service=service):
            address = section.listen or section.path
            assert address is not None
            return ForwardSource(name, address, service, spool=spool, ledger=ledger, clock=clock)
        case config.HostMetricsSource(service=service, interval_s=interval_s):
            own = {**parts.resource, "service.name": service}
            return HostMetricsSource(name, interval_s, own, spool=spool, ledger=ledger, clock=clock)
    assert_never(section)

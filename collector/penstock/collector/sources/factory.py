"""From a source's configuration to the source."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from penstock.base.clock import Clock
from penstock.collector.delivery.pipeline import Pipeline
from penstock.collector.delivery.publisher import Sender
from penstock.collector.descriptors import Descriptors
from penstock.collector.ledger import Ledger
from penstock.collector.sources import sections
from penstock.collector.sources.files.identity import Generations
from penstock.collector.sources.files.source import FileSource
from penstock.collector.sources.forward.source import ForwardSource
from penstock.collector.sources.host_metrics import HostMetricsSource
from penstock.collector.sources.journald import JournaldSource
from penstock.collector.sources.otlp.source import OtlpSource
from penstock.collector.sources.program import ExecSource
from penstock.collector.sources.prometheus import PrometheusSource
from penstock.collector.sources.source import Source
from penstock.collector.sources.statsd.source import StatsdSource
from penstock.collector.sources.stdin import StdinSource
from penstock.collector.sources.syslog.source import SyslogSource
from penstock.collector.sources.unix.source import UnixSource
from penstock.collector.spool.memory_budget import Budget
from penstock.collector.spool.spool import Spooling
from penstock.collector.spool.writer import SpoolWriter
from penstock.logd.storage import Checkpoint


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything of the collector that some source needs.

    Attributes:
        resource: The collector's defaults.
        budget: What network sources may hold.
        descriptors: What files may be open at once.
        save: Makes the checkpoint durable, and says whether it could.
        known: Names of file sources that ran before.
        data_dir: For what a source keeps itself.
        node: This collector's name, which is the node's where Kubernetes runs one on each.
    """

    resource: Mapping[str, Any]
    budget: Budget
    descriptors: Descriptors
    spool: Spooling
    ledger: Ledger
    clock: Clock
    generations: Generations
    pipeline: Pipeline
    courier: Sender
    save: Callable[[], Awaitable[bool]]
    known: frozenset[str]
    data_dir: Path
    node: str


def make_source(  # noqa: C901, PLR0911, PLR0912 - one case a source
    section: sections.Source, parts: Parts
) -> Source:
    """Make a source of its configuration."""
    name = section.name or section.type
    spool, ledger, clock, resource = parts.spool, parts.ledger, parts.clock, parts.resource
    share = parts.budget.share(name)
    intake = SpoolWriter(name, spool=spool, ledger=ledger, clock=clock, share=share)
    match section:
        case sections.UnixSource():
            return UnixSource(name, section, spool=spool, ledger=ledger, clock=clock, share=share)
        case sections.StdinSource(service=service, max_line_bytes=max_line_bytes):
            rules = section.line_options()
            return StdinSource(service, max_line_bytes, intake=intake, rules=rules)
        case sections.FileSource():
            return _make_file_source(section, parts, name)
        case sections.ForwardSource():
            return ForwardSource(section, intake=intake)
        case sections.OtlpSource():
            return OtlpSource(section, resource, intake=intake)
        case sections.SyslogSource():
            return SyslogSource(section, intake=intake)
        case sections.StatsdSource():
            return StatsdSource(section, resource, intake=intake)
        case sections.ExecSource():
            return ExecSource(section, intake=intake)
        case sections.JournaldSource():
            checkpoint = Checkpoint(parts.data_dir / f"journald-{name}")
            return JournaldSource(section, checkpoint, intake=intake)
        case sections.PrometheusSource():
            return PrometheusSource(section, resource, intake=intake)
        case sections.HostMetricsSource(service=service, interval_s=interval_s):
            own = {**resource, "service.name": service}
            return HostMetricsSource(interval_s, own, intake=intake)
    assert_never(section)


def _make_file_source(section: sections.FileSource, parts: Parts, name: str) -> FileSource:
    return FileSource(
        section,
        parts.resource,
        parts.generations,
        pipeline=parts.pipeline,
        courier=parts.courier,
        ledger=parts.ledger,
        clock=parts.clock,
        save=parts.save,
        first_time=name not in parts.known,
        descriptors=parts.descriptors,
        node=parts.node,
    )

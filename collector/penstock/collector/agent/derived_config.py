"""Functions that derive what the collector's parts need from its configuration."""

import hashlib
import json
import socket
from collections.abc import Mapping
from typing import Any

from penstock.collector.checkpoint.recovery import Sizes
from penstock.collector.config import CollectorConfig
from penstock.collector.delivery.ordered_queue import Limits
from penstock.collector.transforms.enrich import Enrich
from penstock.collector.transforms.graph.build import build_checked
from penstock.collector.transforms.graph.graph import Graph
from penstock.collector.transforms.texts.geoip import GeoIp
from penstock.service.tracing import SERVICES
from penstock.specs.subjects import subject_of


def limits_of(config: CollectorConfig) -> Limits:
    return Limits(
        batch_bytes_max=config.batch.max_bytes,
        batch_records_max=config.batch.max_records,
        batch_age_ns=config.batch.max_age_ms * 1_000_000,
    )


def sizes_of(config: CollectorConfig) -> Sizes:
    """Return the sizes of the journals."""
    spool = config.spool
    drops = config.drops
    return Sizes(
        spool.max_bytes,
        spool.max_urgent_bytes,
        config.quarantine.max_bytes,
        drops.max_bytes,
        drops.max_age_s,
    )


def resource_of(config: CollectorConfig) -> dict[str, Any]:
    """Return the resource that records get which bring none."""
    return {"host.name": socket.gethostname(), **config.resource}


def own_subjects(config: CollectorConfig) -> list[str]:
    """Return the subjects of Penstock's own spans; `output.subject` may change them."""
    return [subject_of("span", name, config.subject_prefix) for name in SERVICES.values()]


def graph_of(config: CollectorConfig, where: str = "the configuration") -> Graph:
    """Everything between decoding and delivery.

    Args:
        config: Checked.
        where: Name of the configuration, for messages.

    Raises:
        ConfigError: It makes no graph; `where` says of which files.
    """
    return build_checked(config, resource_of(config), where)


def tables_of(graph: Graph) -> Mapping[str, Any]:
    """Return what transforms read of files when the graph was made: rows, editions of databases."""
    found: dict[str, Any] = {}
    for name, step in graph.steps.items():
        match step.transform:
            case Enrich(rows=rows):
                found[name] = rows
            case GeoIp(edition=edition):
                found[name] = edition
            case _:
                pass
    return found


def digest_of_tables(graph: Graph) -> str:
    """Return a digest of the tables' rows and the hash key; it changes only with these."""
    key = graph.hash_key
    known = key and [key.id, key.rotate_days, key.secret.hex()]
    read = json.dumps([tables_of(graph), known], sort_keys=True)
    return hashlib.sha256(read.encode()).hexdigest()

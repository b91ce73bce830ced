"""Graphs of transforms for tests, from the configuration's own text."""

from collections.abc import Mapping
from typing import Any

import orjson
import yaml

from penstock.collector.config import CollectorConfig
from penstock.collector.drops.sampler import DropSampler
from penstock.collector.transforms.graph.build import build_graph
from penstock.collector.transforms.graph.graph import Chunk, Graph, Outcome

RESOURCE = b'{"service.name":"shop"}'
HOST = {"host.name": "host-1"}


def config_of(keys: dict[str, Any] | str) -> CollectorConfig:
    """A configuration with one source, `app`, unless the keys have others."""
    given = yaml.safe_load(keys) if isinstance(keys, str) else keys
    base = {"data_dir": "/x", "sources": [{"type": "stdin", "name": "app"}]}
    return CollectorConfig.model_validate(base | given)


def graph_of(keys: dict[str, Any] | str) -> Graph:
    """The graph of such a configuration."""
    return build_graph(config_of(keys), HOST)


def log(body: str = "paid", **more: Any) -> bytes:
    """A log record's line, without resource."""
    record = {"schema": "log/1.0", "kind": "log", "time_unix_nano": 1, "severity_number": 9}
    return orjson.dumps(record | {"body": body} | more)


def process(
    graph: Graph,
    *lines: bytes,
    source: str = "app",
    resource: bytes = RESOURCE,
    observed_ns: int = 5,
    now_ns: int = 0,
    first: int = 1,
    sampler: DropSampler | None = None,
    met: Mapping[str, int] | None = None,
) -> Outcome:
    """What becomes of lines; their sequences count from `first`."""
    sequences = range(first, first + len(lines))
    chunk = Chunk(source, 0, sequences, lines, resource, observed_ns, met=met or {})
    return graph.process(chunk, now_ns, sampler)


def delivered(outcome: Outcome) -> list[tuple[str, dict[str, Any]]]:
    """Subject and record of everything that leaves the graph."""
    return [
        (subject, orjson.loads(line))
        for (subject, _), batch in outcome.batches.items()
        for line in batch.lines
    ]


def total(outcome: Outcome) -> int:
    """Everything that is accounted for."""
    records = sum(len(batch) for batch in outcome.batches.values())
    return records + len(outcome.refused) + outcome.ended.total()

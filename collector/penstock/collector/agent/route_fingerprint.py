"""What sorts records into lanes, as digests; see `penstock.collector.checkpoint.routing`."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from penstock.collector.agent.settings import resource_of, tables_of
from penstock.collector.checkpoint.routing import RouteFingerprint
from penstock.collector.config import CollectorConfig
from penstock.collector.sources.sections import FileSource
from penstock.collector.transforms import sections
from penstock.collector.transforms.enrich import DOCKER_FACTS, PATH_FACTS
from penstock.collector.transforms.expression import fields_of, parse
from penstock.collector.transforms.graph import OUTPUT, Graph
from penstock.collector.transforms.paths import parse_path
from penstock.collector.transforms.subjects import SubjectTemplate

Place = tuple[str, ...]
"""A field, or a field and a key in it."""

SERVICE: Final = ("resource", "service.name")
KIND: Final = ("kind",)
WEIGHT: Final = ("sample_weight",)


def places_read(config: CollectorConfig, *, copies: bool) -> frozenset[Place]:
    """Every place that a record's subject, or its way to it, may depend on; rather too many.

    Args:
        config: The whole.
        copies: Whether records may be copied. Else what only ends records decides nothing; of
            copies it decides the numbers, and what samples decides the weight of what is left.
    """
    ending = sections.FilterSection | sections.SampleSection
    found = {SERVICE, KIND}.union(*(template.reads for template in templates(config)))
    for section in config.transforms.values():
        if not isinstance(section, ending):
            found |= _read_by(section)
    for section in config.transforms.values():
        weighs = isinstance(section, sections.SampleSection) and names_any(found, [WEIGHT])
        if isinstance(section, ending) and (copies or weighs):
            found |= _read_by(section)
    return frozenset(found)


def templates(config: CollectorConfig) -> list[SubjectTemplate]:
    """Of the output and of routes."""
    routes = (
        branch.subject
        for section in config.transforms.values()
        if isinstance(section, sections.RouteSection)
        for branch in section.routes.values()
    )
    return [SubjectTemplate(text) for text in (config.output.subject, *routes) if text is not None]


def names_any(reads: Iterable[Place], places: Iterable[Place]) -> bool:
    """Whether one of the places is read, by itself or with all of its field."""
    known = set(reads)
    return any(place in known or place[:1] in known for place in places)


def _read_by(section: sections.TransformConfig) -> set[Place]:
    found = {place for text in _expressions(section) for place in fields_of(parse(text))}
    return found | {parse_path(text) for text in _paths(section)}


def _expressions(section: sections.TransformConfig) -> Iterator[str]:
    """But of those that make other records, or that only remember what passed."""
    match section:
        case sections.EditSection():
            yield from section.set.values()
        case sections.FilterSection(where=where):
            yield where
        case sections.RouteSection(routes=routes):
            yield from (branch.where for branch in routes.values())
        case sections.SampleSection(keep=str(keep)):
            yield keep
        case sections.EnrichSection(tables=tables):
            yield from (table.key for table in tables)
        case _:
            pass


def _paths(section: sections.TransformConfig) -> Iterator[str]:
    match section:
        case sections.ParseSection() | sections.TimestampSection():
            yield section.field
        case sections.EditSection():
            yield from section.rename
        case _:
            pass


RELEASE: Final = 1
"""Raised when a release sorts the same records by the same configuration into other lanes."""

_OF_READING: Final = (
    ("attributes", "log.file.name"),
    ("attributes", "log.file.path"),
    ("time_unix_nano",),
    ("observed_time_unix_nano",),
)
"""What a line has of when it was read, and of its file's name then."""


def fingerprint_of(config: CollectorConfig, graph: Graph) -> RouteFingerprint:
    """What decides the lane of a record, of the configuration and of the graph made of it."""
    copies = _makes_copies(config, graph)
    reads = places_read(config, copies=copies)
    docker = _adds_containers(config) and names_any(reads, DOCKER_FACTS)
    if docker or (copies and any(map(_forgets, config.transforms.values()))):
        return RouteFingerprint()
    decides = _decides(config, graph, reads)
    files = sorted(map(_lines_of, (s for s in config.sources if isinstance(s, FileSource))))
    names = _adds_containers(config) and names_any(reads, PATH_FACTS)
    varies = names or names_any(reads, _OF_READING) or _hashes_by_time(config, graph)
    return RouteFingerprint(
        spools=_digest(decides), files="" if files and varies else _digest([decides, files])
    )


def _decides(config: CollectorConfig, graph: Graph, reads: frozenset[Place]) -> list[Any]:
    facts = [
        fact for fact in resource_of(config).items() if names_any(reads, [("resource", fact[0])])
    ]
    return [
        RELEASE,
        config.subject_prefix,
        config.output.model_dump(mode="json"),
        {name: one.model_dump(mode="json") for name, one in config.transforms.items()},
        [*_tables(config, graph, reads)],
        sorted(facts),
        _sensitive(config, graph) if templates(config) else None,
    ]


def _tables(config: CollectorConfig, graph: Graph, reads: frozenset[Place]) -> Iterator[Any]:
    """Rows that may decide; others may change as they like."""
    for name, rows in tables_of(graph).items():
        section = config.transforms[name]
        assert isinstance(section, sections.EnrichSection)
        for table, found in zip(section.tables, rows, strict=True):
            columns = {column for row in found.values() for column in row}
            if names_any(reads, [("attributes", table.prefix + column) for column in columns]):
                yield found


def _sensitive(config: CollectorConfig, graph: Graph) -> Any:
    """What is taken out of values that subjects are filled with; of the key what it is known by."""
    key = graph.hash_key
    shown = config.sensitive.model_dump(mode="json", exclude={"hash_key"})
    return [shown, key and [key.id, key.rotate_days]]


def _hashes_by_time(config: CollectorConfig, graph: Graph) -> bool:
    key = graph.hash_key
    return key is not None and key.rotate_days > 0 and bool(templates(config))


def _adds_containers(config: CollectorConfig) -> bool:
    return any(
        isinstance(section, sections.EnrichSection) and section.container
        for section in config.transforms.values()
    )


def _makes_copies(config: CollectorConfig, graph: Graph) -> bool:
    """Whether a record may go several ways: its copies are numbered by those that are not ended."""
    transforms = config.transforms
    return any(
        sum(
            taker == OUTPUT or not isinstance(transforms[taker], sections.CountSection)
            for taker in takers
        )
        > 1
        for takers in graph.wiring.takers.values()
    )


def _forgets(section: sections.TransformConfig) -> bool:
    """Whether it ends records by what it remembers, which the next run does not."""
    match section:
        case sections.ThrottleSection(when_exceeded=when_exceeded):
            return when_exceeded == "drop"
        case _:
            return isinstance(section, sections.DedupeSection)


def _lines_of(source: FileSource) -> str:
    """What makes records of the bytes of a source's files."""
    fields = {"name", "service", "format", "multiline", "line_bytes_max"}
    return source.model_dump_json(include=fields)


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()

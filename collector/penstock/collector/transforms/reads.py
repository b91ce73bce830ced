"""What places of a record decide where it goes, as far as the configuration tells."""

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.collector.config import CollectorConfig
from penstock.collector.transforms import sections
from penstock.collector.transforms.paths import parse_path
from penstock.collector.transforms.subjects import SubjectTemplate
from penstock.collector.transforms.syntax import fields_of, parse

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

"""The route fingerprint: a digest of everything that decides the subject of a record.

The checkpoint says for each subject of each source that everything up to sequence s is delivered. A
record that gets another subject when it is read again may lie below that subject's s, and would
count as delivered by error. So the checkpoint holds this digest, and its positions hold only as
long as the digest is the same.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from penstock.collector.agent.derived_config import resource_of, tables_of
from penstock.collector.config import CollectorConfig
from penstock.collector.registry import TRANSFORMS
from penstock.collector.sources.files.settings import FileSettings
from penstock.collector.transforms.dedupe import DedupeSettings
from penstock.collector.transforms.edit import EditSettings
from penstock.collector.transforms.enrich import DOCKER_FACTS, PATH_FACTS, EnrichSettings
from penstock.collector.transforms.expressions.expression import fields_of, parse
from penstock.collector.transforms.expressions.paths import parse_path
from penstock.collector.transforms.expressions.subject_template import SubjectTemplate
from penstock.collector.transforms.filter import FilterSettings
from penstock.collector.transforms.graph.graph import Graph
from penstock.collector.transforms.grouping.explode import ExplodeSettings
from penstock.collector.transforms.grouping.reduce import ReduceSettings
from penstock.collector.transforms.grouping.tail_sample import TailSampleSettings
from penstock.collector.transforms.logs_to_metrics import LogsToMetricsSettings
from penstock.collector.transforms.metrics.temporality import TemporalitySettings
from penstock.collector.transforms.route import RouteSettings
from penstock.collector.transforms.sample import SampleSettings
from penstock.collector.transforms.texts.field_parser import FieldSettings
from penstock.collector.transforms.throttle import ThrottleSettings
from penstock.collector.transforms.timestamp import TimestampSettings
from penstock.collector.transforms.transform import TransformSettings

RELEASE: Final = 1
"""Raised when a release gives the same records other subjects by the same configuration."""

UNKNOWN: Final = ""
"""The fingerprint where records may get other subjects the next time they are read."""

_OF_READING: Final = (
    ("attributes", "log.file.name"),
    ("attributes", "log.file.path"),
    ("time_unix_nano",),
    ("observed_time_unix_nano",),
)
"""Fields of a line that say when it was read and from a file of which name."""
_OF_LINES: Final = {"name", "service", "format", "multiline", "max_line_bytes"}


def route_fingerprint(config: CollectorConfig, graph: Graph) -> str:
    """The digest for a configuration and its graph; `UNKNOWN` where subjects may vary."""
    if _varies(config, graph):
        return UNKNOWN
    sources = [one for one in config.sources if isinstance(one, FileSettings)]
    service = config.resource.get("service.name")
    decides = [
        RELEASE,
        config.subject_prefix,
        config.output.model_dump(mode="json"),
        {name: one.model_dump(mode="json") for name, one in config.transforms.items()},
        sorted(
            TRANSFORMS.kind(one.type).package
            for one in config.transforms.values()
            if not TRANSFORMS.is_own(one.type)
        ),
        tables_of(graph),
        resource_of(config) if _reads(config, [("resource",)]) else service,
        _sensitive(config, graph) if _templates(config) else None,
        sorted(one.model_dump_json(include=_OF_LINES) for one in sources),
    ]
    return hashlib.blake2b(json.dumps(decides).encode(), digest_size=16).hexdigest()


def _varies(config: CollectorConfig, graph: Graph) -> bool:
    """Return whether a reload may change a record's subject or its number among its copies."""
    files = any(isinstance(source, FileSettings) for source in config.sources)
    enriches = any(
        isinstance(one, EnrichSettings) and one.container for one in config.transforms.values()
    )
    key = graph.hash_key
    return (
        (files and _reads(config, _OF_READING))
        or (files and enriches and _reads(config, PATH_FACTS))
        or (enriches and _reads(config, DOCKER_FACTS))
        or (key is not None and key.rotate_days > 0 and bool(_templates(config)))
        or _forgets_among_copies(config, graph)
    )


def _forgets_among_copies(config: CollectorConfig, graph: Graph) -> bool:
    """Return whether copies are numbered by the state of a transform, which is lost at the end."""
    forgets = any(
        isinstance(one, (DedupeSettings, TemporalitySettings))
        or (isinstance(one, ThrottleSettings) and one.when_exceeded == "drop")
        for one in config.transforms.values()
    )
    counts = {
        name
        for name, one in config.transforms.items()
        if isinstance(one, LogsToMetricsSettings)  # it passes no copy on
    }
    explodes = any(isinstance(one, ExplodeSettings) for one in config.transforms.values())
    copies = any(len({*takers} - counts) > 1 for takers in graph.wiring.takers.values())
    return forgets and (explodes or copies)


def _reads(config: CollectorConfig, places: Any) -> bool:
    """Return whether an expression or a template reads one of the places or its field."""
    if any(not TRANSFORMS.is_own(section.type) for section in config.transforms.values()):
        return True  # nobody knows what a package's transform reads
    found = {path for template in _templates(config) for path in template.reads}
    for section in config.transforms.values():
        found |= {place for text in _expressions(section) for place in fields_of(parse(text))}
        found |= {parse_path(text) for text in _paths(section)}
    fields = {place[0] for place in places if len(place) == 1}
    return any(
        place[0] in fields or place in places or place in {one[:1] for one in places}
        for place in found
    )


def _templates(config: CollectorConfig) -> list[SubjectTemplate]:
    """Templates of subjects: the output's, and those of routes."""
    routes = (
        branch.subject
        for section in config.transforms.values()
        if isinstance(section, RouteSettings)
        for branch in section.routes.values()
    )
    return [SubjectTemplate(text) for text in (config.output.subject, *routes) if text is not None]


def _expressions(section: TransformSettings) -> Iterator[str]:
    match section:
        case EditSettings():
            yield from section.set.values()
        case FilterSettings(where=where):
            yield where
        case RouteSettings(routes=routes):
            yield from (branch.where for branch in routes.values())
        case SampleSettings(keep=str(keep)):
            yield keep
        case EnrichSettings(tables=tables):
            yield from (table.key for table in tables)
        case ReduceSettings(key=key, ends_when=ends):
            yield key
            if ends is not None:
                yield ends
        case TailSampleSettings(rules=rules):
            yield from (rule.where for rule in rules if rule.where is not None)
        case _:
            pass


def _paths(section: TransformSettings) -> Iterator[str]:
    match section:
        case FieldSettings() | TimestampSettings() | ExplodeSettings():
            yield section.field
        case ReduceSettings(merge=merge):
            yield from merge
        case EditSettings():
            yield from section.rename
        case _:
            pass


def _sensitive(config: CollectorConfig, graph: Graph) -> Any:
    """Return the settings that redact values in subjects; the hash key is named by its id alone."""
    key = graph.hash_key
    shown = config.sensitive.model_dump(mode="json", exclude={"hash_key"})
    return [shown, key and [key.id, key.rotate_days]]

"""From the configuration to the graph: files of tables are read, everything is checked."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, assert_never
from zoneinfo import ZoneInfo

from penstock.collector.config import CollectorConfig, SensitiveSection
from penstock.collector.decode.timestamps import layouts_of
from penstock.collector.regex import compile_pattern
from penstock.collector.transforms import sections
from penstock.collector.transforms.count import Count, Measure
from penstock.collector.transforms.edit import Edit, Redact
from penstock.collector.transforms.enrich import Enrich, Rows
from penstock.collector.transforms.event import Transform
from penstock.collector.transforms.expression import (
    Evaluate,
    compile_condition,
    compile_expression,
)
from penstock.collector.transforms.graph import Graph, WiringError, wire
from penstock.collector.transforms.parse import (
    Lift,
    Parse,
    Read,
    Timestamp,
    csv_reader,
    key_value_reader,
    read_clf,
    read_json,
    read_logfmt,
    regex_reader,
    syslog_reader,
)
from penstock.collector.transforms.paths import Fields, parse_path, parse_selection
from penstock.collector.transforms.select import (
    Branch,
    Dedupe,
    Filter,
    Route,
    Sample,
    Throttle,
    is_error,
)
from penstock.collector.transforms.subjects import SubjectTemplate
from penstock.service import ConfigError
from penstock.specs.redact.detectors import DETECTORS, Detectors
from penstock.specs.redact.scrubber import Scrubber


def scrubber_of(section: SensitiveSection) -> Scrubber | None:
    """What treats records, as configured; None when nothing does.

    Raises:
        ConfigError: The hash key cannot be read, or is none.
    """
    if not section.enabled:
        return None
    detectors = Detectors(
        frozenset(name for name in DETECTORS if section.detectors.get(name, True)),
        frozenset(section.except_.fields),
        tuple(section.except_.patterns),
        section.mode,
    )
    return Scrubber(
        section.read_hash_key(),
        keyless=section.without_key,
        values=section.search,
        actions=section.actions,
        detectors=detectors,
    )


TABLE_BYTES_MAX: Final = 16 * 1024 * 1024
TABLE_ROWS_MAX: Final = 100_000
"""A table stays in memory; larger ones belong into a join in the router."""

DOCKER_CONFIG_BYTES_MAX: Final = 1024 * 1024
_SECOND_NS: Final = 1_000_000_000


class TableError(ValueError):
    """A table's file cannot be used."""


Tables = Mapping[str, Sequence[Rows]]
"""What the files of tables said when a graph was made, by the name of the transform."""


def build_graph(config: CollectorConfig, resource: Mapping[str, Any]) -> Graph:
    """Make everything the configuration describes.

    Args:
        config: Checked by itself.
        resource: Facts of this host.

    Raises:
        WiringError: The graph is wrong.
        TableError: A table is.
    """
    _refuse_the_same_seed(config.transforms)
    built = {name: _build(name, section, resource) for name, section in config.transforms.items()}
    wiring = wire(
        [source.name or source.type for source in config.sources],
        {name: transform.outputs for name, transform in built.items()},
        {name: section.inputs for name, section in config.transforms.items()},
        config.output.inputs,
    )
    subject = config.output.subject
    return Graph(
        wiring,
        built,
        prefix=config.subject_prefix,
        template=None if subject is None else SubjectTemplate(subject),
        scrubber=scrubber_of(config.sensitive),
    )


def _refuse_the_same_seed(transforms: Mapping[str, sections.TransformConfig]) -> None:
    """A `sample` behind another one has to decide by itself: their weights are multiplied."""
    for name, section in transforms.items():
        if not isinstance(section, sections.SampleSection):
            continue
        waiting, before = list(section.inputs), set[str]()
        while waiting:
            other = waiting.pop().partition(".")[0]
            if other in before or other not in transforms:
                continue
            before.add(other)
            earlier = transforms[other]
            if isinstance(earlier, sections.CountSection):
                continue  # what it makes are records of its own
            waiting += earlier.inputs
            if (
                other != name
                and isinstance(earlier, sections.SampleSection)
                and earlier.seed == section.seed
            ):
                told = f"{other} before it keeps the same traces, and their weights are multiplied"
                raise WiringError([f"transforms.{name}.seed: {told}; give it another"])


def build_checked(config: CollectorConfig, resource: Mapping[str, Any], where: str) -> Graph:
    """`build_graph`, with what is wrong told as every mistake of a configuration is.

    Raises:
        ConfigError: With the file, the keys, and what to do.
    """
    try:
        return build_graph(config, resource)
    except (WiringError, TableError) as error:
        raise ConfigError(
            "\n".join(f"{where}: {line}" for line in str(error).splitlines()),
            fix="correct the keys named; `penstock collector graph` shows how records go",
        ) from None


def _build(  # noqa: PLR0911 - one case a transform
    name: str,
    section: sections.TransformConfig,
    resource: Mapping[str, Any],
) -> Transform:
    match section:
        case sections.ParseSection():
            return _parse(section)
        case sections.EditSection():
            return Edit(
                [(parse_path(old), parse_path(new)) for old, new in section.rename.items()],
                [(parse_path(path), _evaluate(text)) for path, text in section.set.items()],
                [parse_selection(path) for path in section.remove],
            )
        case sections.FilterSection(where=where):
            return Filter(compile_condition(where).evaluate)
        case sections.RouteSection(routes=routes):
            return Route([_branch(key, branch) for key, branch in routes.items()])
        case sections.RedactSection():
            patterns = [(key, compile_pattern(text)) for key, text in section.patterns.items()]
            places = [parse_selection(path) for path in section.fields]
            return Redact(places, section.action, patterns, name)
        case sections.TimestampSection():
            return Timestamp(
                parse_path(section.field),
                pattern=section.pattern,
                layouts=layouts_of(section.layouts),
                zone=ZoneInfo(section.zone),
                on_error=section.on_error,
            )
        case sections.EnrichSection():
            return _enrich(name, section, resource)
        case sections.CountSection():
            return _count(section, resource)
        case _:
            return _limit(section)


def _limit(
    section: sections.SampleSection | sections.ThrottleSection | sections.DedupeSection,
) -> Transform:
    match section:
        case sections.SampleSection(ratio=ratio, keep=keep, keep_errors=keep_errors):
            return Sample(ratio, _keeper(keep, keep_errors=keep_errors), section.seed)
        case sections.ThrottleSection(rate=rate):
            return Throttle(
                rate,
                section.burst or max(1, int(rate)),
                _evaluate(section.key) if section.key else None,
                max_keys=section.max_keys,
                when_exceeded=section.when_exceeded,
            )
        case sections.DedupeSection(key=key):
            return Dedupe(
                _evaluate(key) if key else None,
                window_ns=int(section.window_s * _SECOND_NS),
                max_keys=section.max_keys,
            )
    assert_never(section)


def _evaluate(text: str) -> Evaluate:
    return compile_expression(text).evaluate


def _branch(name: str, section: sections.RouteBranch) -> Branch:
    subject = None if section.subject is None else SubjectTemplate(section.subject)
    return Branch(name, compile_condition(section.where).evaluate, subject)


def _keeper(keep: str | None, *, keep_errors: bool) -> Evaluate:
    condition = compile_condition(keep).evaluate if keep else None

    def is_kept(fields: Fields) -> bool:
        return (keep_errors and is_error(fields)) or (condition is not None and condition(fields))

    return is_kept


def _parse(section: sections.ParseSection) -> Parse:
    prefix = section.prefix or {"syslog": "log.syslog."}.get(section.format, "")
    lift = Lift(**section.lift.model_dump())
    if section.format == "syslog":
        lift = Lift(
            body=lift.body or "body",
            time=lift.time or "time_unix_nano",
            severity="severity_number",
        )
    return Parse(
        _reader(section),
        parse_path(section.field),
        prefix=prefix,
        types=section.types,
        lift=lift,
        on_failure=section.on_failure,
        name=section.format,
    )


def _reader(section: sections.ParseSection) -> Read:
    if section.format == "syslog":
        return lambda text, fields: syslog_reader(
            text, fields.get("observed_time_unix_nano") or fields["time_unix_nano"]
        )
    readers = {"json": read_json, "logfmt": read_logfmt, "clf": read_clf}
    if section.pattern is not None:
        read = regex_reader(section.pattern)
    elif section.columns:
        read = csv_reader(section.columns, section.delimiter)
    elif section.format == "key_value":
        read = key_value_reader(section.pair_separator, section.value_separator)
    else:
        read = readers[section.format]
    return lambda text, _: read(text)


def _count(section: sections.CountSection, resource: Mapping[str, Any]) -> Count:
    measure = Measure(
        section.name,
        section.unit,
        section.metric == "histogram",
        _evaluate(section.value) if section.value else None,
        [(key, _evaluate(text)) for key, text in section.dimensions.items()],
    )
    return Count(
        measure,
        max_series=section.max_series,
        interval_ns=int(section.interval_s * _SECOND_NS),
        resource=resource,
    )


def _enrich(
    name: str,
    section: sections.EnrichSection,
    resource: Mapping[str, Any],
) -> Enrich:
    tables: list[tuple[Evaluate, Rows, str]] = [
        (_evaluate(table.key), _rows(name, table), table.prefix) for table in section.tables
    ]
    return Enrich(
        resource if section.host else {}, _read_docker if section.container else None, tables
    )


def _rows(name: str, table: sections.TableSection) -> dict[str, dict[str, Any]]:
    """A table's rows by the text in its key column.

    Raises:
        TableError: It cannot be read, is too large, or has a key twice.
    """
    where = f"transforms.{name}.tables: {table.file}"
    try:
        if table.file.stat().st_size > TABLE_BYTES_MAX:
            raise TableError(f"{where} has more than {TABLE_BYTES_MAX} bytes")
        text = table.file.read_text(encoding="utf-8")
        rows = (
            json.loads(text)
            if table.file.suffix == ".json"
            else [*csv.DictReader(text.splitlines())]
        )
    except OSError as error:
        raise TableError(f"{where} cannot be read: {error.strerror}") from None
    except (ValueError, csv.Error, RecursionError) as error:
        raise TableError(
            f"{where} is neither CSV nor, as *.json, a list of objects: {error}"
        ) from None
    if not isinstance(rows, list) or len(rows) > TABLE_ROWS_MAX:
        raise TableError(f"{where} must be a list of at most {TABLE_ROWS_MAX} rows")
    found: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows, 1):
        values = dict(row) if isinstance(row, dict) else {}
        key = values.pop(table.column, None)
        if key is None or str(key) in found:
            problem = "has no" if key is None else "repeats the"
            raise TableError(f"{where}: row {number} {problem} {table.column}")
        found[str(key)] = {k: v for k, v in values.items() if k and _is_scalar(v)}
    return found


def _is_scalar(value: Any) -> bool:
    return value.__class__ in {str, int, float, bool}


def _read_docker(directory: str, container_id: str) -> Mapping[str, Any] | None:
    path = Path(directory) / "config.v2.json"
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(DOCKER_CONFIG_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    is_its_own = isinstance(found, dict) and found.get("ID") == container_id
    return found if is_its_own else None

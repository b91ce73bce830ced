"""Unit tests written in the configuration: records in, what becomes of them compared."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from penstock.collector.config import CollectorConfig
from penstock.collector.decode.line_rules import OnError, rules_of
from penstock.collector.decode.lines import LineContext, decode_line
from penstock.collector.decode.syslog import decode_syslog
from penstock.collector.sources.exec import ExecSettings
from penstock.collector.sources.files.container_lines import READERS
from penstock.collector.sources.files.settings import FileSettings
from penstock.collector.sources.stdin import StdinSettings
from penstock.collector.sources.syslog.framing import pack_messages
from penstock.collector.sources.syslog.source import SyslogSettings
from penstock.collector.spool.spool import Unit
from penstock.collector.transforms.expressions.paths import getter, parse_path
from penstock.collector.transforms.graph.build import build_graph
from penstock.collector.transforms.graph.graph import Chunk, Graph, Outcome
from penstock.collector.transforms.graph.settings import Expected, ExpectedRecord, Step, TestCase
from penstock.collector.transforms.transform import DropReason

NOW_UNIX_NS: Final = 1_767_225_600_000_000_000
"""When tests begin, 2026-01-01: nothing of them depends on when they run."""

_SECOND_NS: Final = 1_000_000_000
_RESOURCE: Final = b'{"service.name":"test"}'
_PLAIN: Final[Mapping[str, Any]] = {
    "schema": "log/1.0",
    "kind": "log",
    "time_unix_nano": NOW_UNIX_NS,
    "severity_number": 9,
    "body": "",
}


def run_case(config: CollectorConfig, case: TestCase, resource: Mapping[str, Any]) -> list[str]:
    """Run one test on a graph of its own; returns what differs, empty when nothing does."""
    graph = build_graph(config, resource)
    known = [source.name or source.type for source in config.sources] + graph.aggregators()
    if case.source not in known:
        return [f"there is no source {case.source!r}; there are {', '.join(known)}"]
    now_ns = 0
    found: list[str] = []
    for number, step in enumerate(case.steps, 1):
        now_ns += int(step.after_s * _SECOND_NS)
        try:
            line, end = _input(config, case.source, step, resource, NOW_UNIX_NS + now_ns)
        except ValueError as error:
            return [*found, f"record {number}: {error}"]
        shared = _RESOURCE if step.line is None else b""  # what is read of a line has its own
        chunk = Chunk(
            case.source, 0, [number], [line], shared, NOW_UNIX_NS + now_ns, ended={number: end}
        )
        outcome = graph.process(chunk, now_ns)
        found += [f"record {number}: {line}" for line in _differences(step.expect, outcome)]
    if case.created is not None:
        found += [f"created: {line}" for line in _created(graph, case.created, now_ns)]
    return found


def _input(
    config: CollectorConfig, source: str, step: Step, resource: Mapping[str, Any], now_ns: int
) -> tuple[bytes, OnError]:
    """The record that goes in, and what becomes of it as far as its source decides that.

    Raises:
        ValueError: The source reads no lines, or this is none of its format.
    """
    if step.line is None:
        given = step.record
        return (given.encode() if isinstance(given, str) else _line(given or {})), "pass"
    section = next((one for one in config.sources if source in (one.name, one.type)), None)
    raw = step.line.encode()
    match section:
        case FileSettings():
            own = {**resource, "service.name": section.service}
            path = section.include[0]
            attributes = {"log.file.path": path, "log.file.name": Path(path).name}
            context = LineContext(own, attributes, rules_of(section.line_options()))
            piece = READERS[section.format](raw)
            if piece is None:
                msg = f"line: is no line of the format {section.format}"
                raise ValueError(msg)
            return decode_line(
                piece.text,
                context,
                now_ns,
                truncated=False,
                written_ns=piece.time_ns,
                stream=piece.stream,
                own=piece.attributes,
            )
        case StdinSettings() | ExecSettings():
            attributes = {} if isinstance(section, StdinSettings) else {"log.iostream": "stdout"}
            own = {**resource, "service.name": section.service}
            context = LineContext(own, attributes, rules_of(section.line_options()))
            return decode_line(raw, context, now_ns, truncated=False)
        case SyslogSettings():
            meta = {"service": section.service, "timezone": section.timezone}
            unit = Unit(source, "syslog", pack_messages([raw]), 1, now_ns, meta)
            return decode_syslog(unit, resource)[0][0], "pass"
        case _:
            msg = f"line: the source {source} reads no lines; use `record`"
            raise ValueError(msg)


def _line(record: Mapping[str, Any]) -> bytes:
    """A record of its kind's plain fields and those given, the schema first as on the wire."""
    kind = record.get("kind", "log")
    plain = _PLAIN if kind == "log" else {"time_unix_nano": NOW_UNIX_NS}
    return orjson.dumps({**plain, "schema": f"{kind}/1.0", "kind": kind, **record})


def _differences(expected: Expected, outcome: Outcome) -> Iterator[str]:
    records = _delivered(outcome)
    if isinstance(expected.delivered, list):
        wanted = expected.delivered
    else:
        wanted = [] if expected.delivered is None else [expected.delivered]
    yield from _compare_records(wanted, records)
    reasons = [refused.reason for refused in outcome.refused]
    yield from _compare_reasons(expected.quarantined, reasons)
    endings = [expected.ended] if isinstance(expected.ended, str) else expected.ended or []
    found = [ending.value for ending in DropReason for _ in range(outcome.ended[ending])]
    if sorted(endings) != sorted(found):
        yield f"ended: expected {_shown(sorted(endings))}, found {_shown(sorted(found))}"


def _compare_reasons(expected: str | None, reasons: list[str]) -> Iterator[str]:
    if expected is None:
        yield from (f"quarantined: {reason}" for reason in reasons)
    elif not any(expected in reason for reason in reasons):
        yield f"quarantined: expected {expected!r}, found {_shown(reasons)}"


def _delivered(outcome: Outcome) -> list[tuple[str, dict[str, Any]]]:
    return [
        (subject, orjson.loads(line))
        for (subject, _), batch in outcome.batches.items()
        for line in batch.lines
    ]


def _compare_records(
    wanted: list[ExpectedRecord], records: list[tuple[str, dict[str, Any]]]
) -> Iterator[str]:
    """Each expected record is compared with the first of its subject that is left, or of any."""
    left = list(records)
    for expected in wanted:
        same = [one for one in left if expected.subject in (None, one[0])]
        if not left:
            yield f"delivered: expected a record on {expected.subject or 'any subject'}, found none"
            continue
        chosen = (same or left)[0]
        left.remove(chosen)
        yield from _compare(expected, *chosen)
    for subject, record in left:
        yield f"delivered on {subject}, which was not expected: {_shown(record)}"


def _compare(expected: ExpectedRecord, subject: str, record: dict[str, Any]) -> Iterator[str]:
    if expected.subject is not None and expected.subject != subject:
        yield f"subject: expected {expected.subject}, found {subject}"
    for path, value in expected.fields.items():
        found = getter(parse_path(path))(record)
        if found != value or (found.__class__ is bool) != (value.__class__ is bool):
            yield f"{path}: expected {_shown(value)}, found {_shown(found)}"
    for path in expected.absent:
        found = getter(parse_path(path))(record)
        if found is not None:
            yield f"{path}: expected nothing, found {_shown(found)}"


def _created(graph: Graph, wanted: list[ExpectedRecord], now_ns: int) -> Iterator[str]:
    """What transforms made, after it went through what comes behind them."""
    records: list[tuple[str, dict[str, Any]]] = []
    for name, lines in graph.flush(now_ns, NOW_UNIX_NS + now_ns, everything=True).items():
        chunk = Chunk(name, 0, range(1, len(lines) + 1), lines, b"", NOW_UNIX_NS)
        outcome = graph.process(chunk, now_ns)
        yield from (f"quarantined: {refused.reason}" for refused in outcome.refused)
        records += _delivered(outcome)
    yield from _compare_records(wanted, records)


def _shown(value: Any) -> str:
    return orjson.dumps(value).decode() if value not in (None, []) else "nothing"

"""`penstock collector validate|test|graph|print-config|schema`: the configuration by itself."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import orjson

from penstock.base.errors import ServiceError
from penstock.base.pluralize import pluralize
from penstock.collector.agent.derived_config import graph_of, resource_of
from penstock.collector.config import CollectorConfig, load_collector_config
from penstock.collector.decode.line_rules import OnError, rules_of
from penstock.collector.decode.lines import LineContext, decode_line
from penstock.collector.decode.senders.record_maker import RecordMaker
from penstock.collector.decode.senders.socket import decode_socket
from penstock.collector.decode.syslog import decode_syslog
from penstock.collector.errors import UndecodableError
from penstock.collector.sources.exec import ExecSettings
from penstock.collector.sources.files.container_lines import READERS
from penstock.collector.sources.files.settings import FileSettings
from penstock.collector.sources.network.framing import pack_messages
from penstock.collector.sources.senders.socket import SocketSettings, meta_of
from penstock.collector.sources.settings import read_secret
from penstock.collector.sources.stdin import StdinSettings
from penstock.collector.sources.syslog.source import SyslogSettings
from penstock.collector.spool.spool import Unit
from penstock.collector.transforms.expressions.paths import getter, parse_path
from penstock.collector.transforms.graph.build import build_graph
from penstock.collector.transforms.graph.graph import Chunk, Graph, Outcome
from penstock.collector.transforms.graph.settings import Expected, ExpectedRecord, Step, TestCase
from penstock.collector.transforms.graph.wiring import OUTPUT
from penstock.collector.transforms.transform import DropReason
from penstock.logd.security.tls import CertificateFiles, ClientCertificates, TlsFileError
from penstock.service import ConfigError, ExitCode, show_config


def check_use(config: CollectorConfig, graph: Graph, where: str) -> None:
    """Look at what a configuration names.

    Args:
        config: Checked by itself.
        graph: Made of it.
        where: Its files, for messages.

    Raises:
        ConfigError: With file, key path, reason and fix for every error found.
    """
    found = [*_of_files(config), *_of_secrets(config), *_of_tests(config, graph)]
    if found:
        raise ConfigError(
            "\n".join(f"{where}: {key}: {reason}" for key, reason, _ in found),
            fix="; ".join(dict.fromkeys(f"{key}: {fix}" for key, _, fix in found)),
        )


Problem = tuple[str, str, str]
"""The key, the reason, the fix."""


def _of_files(config: CollectorConfig) -> Iterator[Problem]:
    for index, source in enumerate(config.sources):
        if (section := getattr(source, "tls", None)) is not None:
            yield from _files(section, f"sources.{index}.tls", listens=True)
        elif getattr(source, "ca_file", None) is not None:
            yield from _files(source, f"sources.{index}")
    yield from _files(config.nats, "nats")
    if config.admin_access is not None and config.admin_access.cert_file is not None:
        yield from _files(config.admin_access, "admin_access", listens=True)
    if config.tracing is not None:
        yield from _files(config.tracing, "tracing")


def _files(section: object, place: str, *, listens: bool = False) -> Iterator[Problem]:
    """Check the certificate files that a section names, if it names any."""
    names = ("ca_file", "cert_file", "key_file")
    files = CertificateFiles(**{name: getattr(section, name, None) for name in names})
    asks = ClientCertificates.NONE if files.ca_file is None else ClientCertificates.REQUIRED
    try:
        if listens:
            files.server(asks)
        elif files.paths():
            files.client()
    except TlsFileError as error:
        yield f"{place}.{error.key}", str(error), error.fix


def _of_secrets(config: CollectorConfig) -> Iterator[Problem]:
    """Check what a start reads; what is read for each request may come later."""
    given = {f"nats.{key}": secret for key, secret in config.nats.secrets()}
    for index, source in enumerate(config.sources):
        given |= {f"sources.{index}.{key}": secret for key, secret in source.secrets()}
    checks: list[Callable[[], object]] = [
        partial(read_secret, secret, key) for key, secret in given.items()
    ]
    if config.admin_access is not None:
        checks.append(config.admin_access.check_token)
    for check in checks:
        try:
            check()
        except ConfigError as error:
            key, _, reason = error.reason.partition(": ")
            yield key, reason, error.fix


def _of_tests(config: CollectorConfig, graph: Graph) -> Iterator[Problem]:
    known = [source.name or source.type for source in config.sources] + graph.aggregators()
    for index, case in enumerate(config.tests):
        if case.source not in known:
            reason = f"there is no source {case.source!r}, only {', '.join(known)}"
            yield f"tests.{index}.source", reason, "name one of those"


_FILES = click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE...",
)


class TestsFailedError(ServiceError):
    """A unit test of the configuration failed."""

    exit_code = ExitCode.FAILURE


def _load(files: tuple[Path, ...]) -> tuple[CollectorConfig, Graph]:
    config = load_collector_config(files)
    return config, graph_of(config, ", ".join(map(str, files)))


@click.command(epilog="Example: penstock collector validate collector.yaml transforms.yaml")
@_FILES
def validate(files: tuple[Path, ...]) -> None:
    """Check configuration files, the graph, its expressions and tables; exit 78 when wrong.

    So are files of TLS that cannot be used, secrets that a start reads and cannot, and tests of
    sources that there are not.
    """
    config, graph = _load(files)
    check_use(config, graph, ", ".join(map(str, files)))
    click.echo(
        f"valid: {pluralize(len(config.sources), 'source')},"
        f" {pluralize(len(graph.steps), 'transform')}, {pluralize(len(config.tests), 'test')}"
    )


@click.command(epilog="Example: penstock collector test collector.yaml --name 'health checks'")
@_FILES
@click.option("--name", "wanted", metavar="NAME", help="Only the test of this name.")
def test(files: tuple[Path, ...], wanted: str | None) -> None:
    """Run the unit tests written in the configuration; exit 1 when one fails."""
    config, _ = _load(files)
    cases = [case for case in config.tests if wanted in (None, case.name)]
    if not cases:
        raise TestsFailedError(
            f"there is no test{f' named {wanted!r}' if wanted else ''} in the configuration",
            fix="write some under the key `tests`; docs/transforms.md shows how",
        )
    failed = 0
    for case in cases:
        differences = run_case(config, case, resource_of(config))
        failed += bool(differences)
        click.echo(f"{'FAILED' if differences else 'ok    '}  {case.name}")
        for line in differences:
            click.echo(f"          {line}")
    click.echo(f"{len(cases) - failed} of {len(cases)} tests passed")
    if failed:
        raise TestsFailedError(
            f"{failed} of {len(cases)} tests failed",
            fix="correct the transforms, or what the tests expect",
        )


@click.command(epilog="Example: penstock collector graph collector.yaml --format dot")
@_FILES
@click.option(
    "--format", "form", type=click.Choice(["text", "dot"]), default="text",
    show_default=True, help="For people, or for Graphviz.",
)  # fmt: skip
def graph(files: tuple[Path, ...], form: str) -> None:
    """Show how records go from the sources to the output."""
    config, built = _load(files)
    lines = _as_text(config, built) if form == "text" else _as_dot(config, built)
    for line in lines:
        click.echo(line)


@click.command("print-config", epilog="Example: penstock collector print-config collector.yaml")
@_FILES
def print_config(files: tuple[Path, ...]) -> None:
    """Print what the files and the environment amount to, with secrets hidden."""
    config, _ = _load(files)
    click.echo(show_config(config), nl=False)


@click.command(epilog="Example: penstock collector schema > collector.schema.json")
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    click.echo(json.dumps(CollectorConfig.model_json_schema(), indent=2))


def _edges(config: CollectorConfig, built: Graph) -> Iterator[tuple[str, str, str]]:
    """From, the output's name, to; what is sensitive is taken out between the graph and NATS."""
    for port, takers in built.wiring.takers.items():
        name, _, part = port.partition(".")
        for taker in takers:
            yield name, part, taker
    last = "redact (sensitive)" if config.sensitive.enabled else "validate"
    yield OUTPUT, "", last
    yield last, "", _subjects(config)


def _subjects(config: CollectorConfig) -> str:
    return config.output.subject or f"{config.subject_prefix}.{{kind}}.{{service}}"


def _label(config: CollectorConfig, name: str) -> str:
    section: Any = config.transforms.get(name)
    if section is None:
        kinds = {source.name or source.type: source.type for source in config.sources}
        return f"{name} ({kinds[name]})" if name in kinds else name
    return f"{name} ({section.type})"


def _as_text(config: CollectorConfig, built: Graph) -> Iterator[str]:
    edges = list(_edges(config, built))
    for name in dict.fromkeys(edge[0] for edge in edges):
        yield _label(config, name)
        for _, part, taker in (edge for edge in edges if edge[0] == name):
            yield f"  {f'[{part}] ' if part else ''}-> {_label(config, taker)}"


def _as_dot(config: CollectorConfig, built: Graph) -> Iterator[str]:
    yield "digraph collector {"
    yield "  rankdir=LR; node [shape=box];"
    for name, part, taker in _edges(config, built):
        label = f" [label={json.dumps(part)}]" if part else ""
        ends = (json.dumps(_label(config, end)) for end in (name, taker))
        yield f"  {' -> '.join(ends)}{label};"
    yield "}"


NOW_UNIX_NS: Final = 1_767_225_600_000_000_000
"""Start of the tests' clock, 2026-01-01, so that no result depends on when they run."""

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
    """Run one test on its own graph; returns what differs, empty when nothing does."""
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
        case SocketSettings():
            own = {**meta_of(section), "peer": "", "truncated": []}
            unit = Unit(source, "socket", pack_messages([raw]), 1, now_ns, own)
            ((_, made),) = decode_socket(unit, RecordMaker(resource, now_ns))
            match made:
                case UndecodableError():
                    msg = f"line: {made}"
                    raise ValueError(msg)
                case (line, _):
                    return line, "pass"
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
    """Yield the differences of the records that transforms created, after later transforms."""
    records: list[tuple[str, dict[str, Any]]] = []
    for name, lines in graph.flush(now_ns, NOW_UNIX_NS + now_ns, everything=True).items():
        chunk = Chunk(name, 0, range(1, len(lines) + 1), lines, b"", NOW_UNIX_NS)
        outcome = graph.process(chunk, now_ns)
        yield from (f"quarantined: {refused.reason}" for refused in outcome.refused)
        records += _delivered(outcome)
    yield from _compare_records(wanted, records)


def _shown(value: Any) -> str:
    return orjson.dumps(value).decode() if value not in (None, []) else "nothing"

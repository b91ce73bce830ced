"""`penstock collector validate|test|graph|print-config|schema`: the configuration by itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from penstock.base.errors import ServiceError
from penstock.base.pluralize import pluralize
from penstock.collector.agent.derived_config import graph_of, resource_of
from penstock.collector.cli.cases import run_case
from penstock.collector.config import CollectorConfig
from penstock.collector.config_files import load_collector_config
from penstock.collector.transforms.graph.graph import Graph
from penstock.collector.transforms.graph.wiring import OUTPUT
from penstock.logd.security.tls import CertificateFiles, ClientCertificates, TlsFileError
from penstock.service import ConfigError, ExitCode, show_config


def check_use(config: CollectorConfig, graph: Graph, where: str) -> None:
    """Look at what a configuration names.

    Args:
        config: Checked by itself.
        graph: Made of it.
        where: Its files, for messages.

    Raises:
        ConfigError: With file, key path, reason and fix for every mistake found.
    """
    found = [*_of_files(config), *_of_tests(config, graph)]
    if found:
        raise ConfigError(
            "\n".join(f"{where}: {key}: {reason}" for key, reason, _ in found),
            fix="; ".join(dict.fromkeys(f"{key}: {fix}" for key, _, fix in found)),
        )


Mistake = tuple[str, str, str]
"""The key, the reason, the fix."""


def _of_files(config: CollectorConfig) -> Iterator[Mistake]:
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


def _files(section: object, place: str, *, listens: bool = False) -> Iterator[Mistake]:
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


def _of_tests(config: CollectorConfig, graph: Graph) -> Iterator[Mistake]:
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

    So are files of TLS that cannot be used, and tests of sources that there are not.
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
@click.option("--format", "form", type=click.Choice(["text", "dot"]), default="text")
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


COMMANDS: tuple[click.Command, ...] = (validate, test, graph, print_config, schema)


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

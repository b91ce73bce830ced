"""The click commands of `penstock`. Each imports what it needs only when it runs."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from typing_extensions import override

from penstock.base.daemon_imports import daemon_imports
from penstock.base.errors import UnavailableError
from penstock.base.extras import MissingExtraError, extra_of, install_command
from penstock.service.cli import (
    POSITION,
    FloatRange,
    IntRange,
    PenstockGroup,
    check_option,
    config_option,
)

# What `penstock --help` says of each part; the text stands here so that help imports none of them.
PARTS: Mapping[str, str] = {
    "specs": "Telemetry specs: list and export them, validate records, check what a change breaks.",
    "collector": "The collector: run it, check its configuration, inspect its spool.",
    "logd": "The log: streams, tail, fetch; run the daemon.",
    "router": "Router jobs: run one, check it, show its progress.",
}
TOOLS: Mapping[str, str] = {
    "lake": "Lakes of Parquet files: count and verify rows, merge small files.",
}

_MODULES: Mapping[str, str] = {
    "lake": "penstock.router.cli.lake",
    "router": "penstock.router.cli.main",
}
"""Module of a group's commands, where it is not `penstock.PART.cli`."""

_EXTRAS: Mapping[str, str] = {"specs": "service", "lake": "router"}
"""Extra that a group's commands need, where it is not their own."""


class PartsGroup(PenstockGroup):
    """The commands of this module, and one lazily imported group for each part."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *PARTS, *TOOLS]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in PARTS or cmd_name in TOOLS:
            return _load(cmd_name)
        return super().get_command(ctx, cmd_name)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
        with formatter.section("Run the pipeline"):
            formatter.write_dl(own)
        with formatter.section("The parts"):
            formatter.write_dl(list(PARTS.items()))
        with formatter.section("Look at data"):
            formatter.write_dl(list(TOOLS.items()))

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(self.epilog or "", formatter)


class ExampleCommand(click.Command):
    """A command whose epilog is its examples, kept line by line."""

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(self.epilog or "", formatter)


def _write_examples(text: str, formatter: click.HelpFormatter) -> None:
    if text:
        with formatter.section("Examples"):
            for line in text.strip().splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")


def _load(name: str) -> click.Command:
    """Import a part's commands.

    Raises:
        UnavailableError: A library of the part's extra is not installed.
    """
    try:
        with daemon_imports():
            module = importlib.import_module(_MODULES.get(name, f"penstock.{name}.cli"))
    except (ModuleNotFoundError, MissingExtraError) as error:
        if (error.name or "").startswith("penstock"):
            raise
        extra = extra_of(str(error.name), part=_EXTRAS.get(name, name))
        raise UnavailableError(
            f"penstock {name} needs {error.name}, which is not installed",
            fix=install_command(extra),
        ) from None
    command: click.Command = module.cli
    return command


def _import_structlog() -> None:
    """Import structlog before the launcher is, whose tables need rich.

    Where it finds rich it brings in rich's tracebacks and pygments as well, which nobody is shown:
    2.5 MiB for as long as the launcher runs.
    """
    with daemon_imports():
        import structlog  # noqa: F401 - only imported


@click.group(
    cls=PartsGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""
    penstock demo                  try the whole pipeline for a minute
    penstock up                    run it on this host until you stop it
    penstock status                show whether every part is healthy
    penstock logd tail logs        show records as they arrive
    """,
)
@click.version_option(package_name="penstock", message="penstock %(version)s")
def cli() -> None:
    """Penstock: an observability pipeline in one appliance.

    Apps and hosts write telemetry once; Penstock makes it durable, ordered and replayable, and
    routes it to any number of backends.
    """


def check_urls(_: click.Context, __: click.Parameter, urls: tuple[str, ...]) -> tuple[str, ...]:
    """Return addresses of admin endpoints as they are.

    Raises:
        BadParameter: One is no address of HTTP.
    """
    for url in urls:
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in {"http", "https"} and bool(parts.hostname)
            is_address = is_address and parts.port != 0
        except ValueError:  # a port that is no number, a bracket that is not closed
            is_address = False
        if not is_address:
            msg = f"{url!r} is not http://HOST:PORT"
            raise click.BadParameter(msg)
    return urls


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Directory for all state, configuration and logs.",
)
nats_option = click.option(
    "--nats-url", metavar="URL", help="Use this NATS server instead of starting one."
)


ports_option = click.option(
    "--ports-from",
    type=IntRange(1024, 65_436),
    metavar="PORT",
    help="Listen on PORT and the 99 ports after it, also at later starts in this directory.",
)


def nodes_option(default: int) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """The option `--nodes`: how many logd run."""
    return click.option(
        "--nodes",
        type=IntRange(1, 5),
        default=default,
        show_default=True,
        help="How many logd to run; several form a cluster, with up to 3 copies of each stream.",
    )


@cli.command(
    cls=ExampleCommand,
    epilog="""
    penstock up
    penstock up --nodes 3
    penstock up --detach           and later: penstock down
    penstock up --config shop.yaml
    penstock up --dir /srv/penstock --nats-url nats://10.0.0.5:4222
    penstock up --ports-from 20000 when the default ports are taken
    """,
)
@directory_option
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="YAML file with your settings for logd, collector, router, console and launcher.",
)
@nats_option
@nodes_option(1)
@ports_option
@click.option("--free-ports", is_flag=True, help="Listen on free ports, other ones at each start.")
@click.option(
    "--detach", is_flag=True, help="Return when all parts are ready; `penstock down` stops them."
)
def up(*, detach: bool, **options: Any) -> None:
    """Run the pipeline on this host until it is stopped.

    The command starts nats-server, logd, a collector, a router and the console as separate
    processes. Ctrl-C drains and stops them; a second Ctrl-C kills them. DIR keeps their state
    (~/.local/state/penstock).
    """
    _extra_all()
    any_free, ports_from = options.pop("free_ports"), options["ports_from"]
    if any_free and ports_from is not None:
        raise click.UsageError("--free-ports and --ports-from exclude one another")
    if detach:
        from penstock.deploy.up.background import start

        ports = ["--free-ports"] if any_free else []
        ports += [] if ports_from is None else ["--ports-from", str(ports_from)]
        url = ["--nats-url", options["nats_url"]] if options["nats_url"] else []
        own = ["--config", str(options["config_path"])] if options["config_path"] else []
        arguments = ["--nodes", str(options["nodes"]), *ports, *url, *own]
        start(directory=options["directory"], arguments=arguments)
        return
    _import_structlog()
    from penstock.deploy.up.launch import launch_up

    launch_up(any_free=any_free, **options)


@cli.command(
    cls=ExampleCommand,
    epilog="""
    penstock demo
    penstock demo --seconds 20 --json result.json
    penstock demo --forever        until Ctrl-C, then drain and check
    """,
)
@click.option(
    "--seconds",
    type=IntRange(1),
    default=60,
    show_default=True,
    help="How many seconds to collect.",
)
@click.option("--forever", is_flag=True, help="Collect until Ctrl-C.")
@directory_option
@nats_option
@nodes_option(3)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the result to FILE as JSON.",
)
def demo(**options: Any) -> None:
    """Run the pipeline on real input, then check that all of it arrived.

    The demo collects an example app's logs, spans, metrics, events and audit records, this host's
    metrics and the log files of nats-server and Penstock. In the middle it kills the logd that
    leads the busiest stream with kill -9. Then it drains, shows what the Parquet files hold, and
    compares the counts of every stage. The exit code is 1 when they differ.
    """
    _extra_all()
    _import_structlog()
    from penstock.deploy.up.launch import launch_demo

    launch_demo(**options)


@cli.command(
    cls=ExampleCommand,
    epilog="""
    penstock status
    penstock status --wait 60      wait up to a minute until every part is healthy
    penstock status --all          every stage and stream
    penstock status --dir .work/demo --json
    penstock status --url http://127.0.0.1:9294
    """,
)
@directory_option
@click.option(
    "--url", "urls", multiple=True, metavar="URL", callback=check_urls,
    help="Ask this admin endpoint; may be repeated.",
)  # fmt: skip
@click.option(
    "--wait",
    "wait_s",
    type=FloatRange(0),
    default=0,
    metavar="SECONDS",
    help="Wait up to SECONDS until every part is healthy.",
)
@click.option(
    "--all", "everything", is_flag=True,
    help="Show every stage and partition, not only the unhealthy and the busiest.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def status(**options: Any) -> None:
    """Show the status of each part. Exit code: 0 healthy, 1 degraded, 69 not running."""
    _extra_all()
    from penstock.deploy.status import show_status

    show_status(**options)


@cli.command(
    cls=ExampleCommand,
    epilog="""
    penstock account
    penstock account --wait 30 --json
    penstock account --url http://10.0.0.5:9298
    """,
)
@directory_option
@click.option(
    "--url", "urls", multiple=True, metavar="URL", callback=check_urls,
    help="Ask this admin endpoint instead, a console's or a part's; repeatable.",
)  # fmt: skip
@click.option(
    "--wait",
    "wait_s",
    type=FloatRange(0),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="Wait up to SECONDS while records are on their way or a part does not answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def account(**options: Any) -> None:
    """Show whether every record is accounted for, from the apps to the sinks.

    Exit code: 0 balanced, 1 records are missing or too many, 69 a part could not be asked.
    """
    _extra_all()
    from penstock.deploy.account.command import show_account

    show_account(**options)


@cli.command(
    cls=ExampleCommand,
    epilog="""
    penstock console                        what `penstock up` runs here
    penstock console --listen 127.0.0.1:8080 --dir /srv/penstock
    penstock console --config console.yaml
    """,
)
@directory_option
@click.option("--listen", metavar="HOST:PORT", help="Address of the page (127.0.0.1:9299).")
@config_option
@check_option
def console(**options: Any) -> None:
    """Serve one web page that shows all of the pipeline, live.

    `penstock up` serves this page, too. Every client that reaches it may look; an action needs the
    token in DIR/console.token. On an address that other machines reach, the page needs TLS, and
    every request needs the token.
    """
    _require("collector", "structlog", "yaml", "h11", "pyarrow")
    with daemon_imports():
        from penstock.deploy.console.daemon import run_console

    run_console(**options)


@cli.command(
    cls=ExampleCommand,
    epilog="""
    penstock trace --trace-id 0af7651916cd43dd8448eb211c80319c
    penstock trace --record-id 018f2c19-aa00-7000-8000-000000000042 --from 1h --json
    penstock trace --position logs/0/4711
    penstock trace --service checkout --text declined --severity 17 --from 10m
    penstock trace --where "service = 'checkout' and body like '%declined%'" --from 10m
    penstock trace --position logs/0/4711 --config console.yaml --job /etc/penstock/job.yaml
    """,
)
@click.option("--trace-id", "trace_ids", multiple=True, metavar="ID", help="A trace; repeatable.")
@click.option("--record-id", "record_ids", multiple=True, metavar="ID", help="Likewise a record.")
@click.option(
    "--position",
    "positions",
    multiple=True,
    metavar="STREAM/PARTITION/OFFSET",
    help="A place in the log; repeatable.",
)
@click.option("--where", metavar="CONDITION", help="A condition, as of a route of a router job.")
@click.option("--service", default="", help="The records of a service.")
@click.option("--text", default="", help="Records with this text in body or name; case counts.")
@click.option(
    "--severity", type=IntRange(0, 24), default=0, metavar="NUMBER",
    help="Records of at least this severity number: 13 warnings, 17 errors and failed spans.",
)  # fmt: skip
@click.option("--stream", "streams", multiple=True, help="Look in this stream only; repeatable.")
@click.option(
    "--from",
    "start",
    type=POSITION,
    default="earliest",
    show_default=True,
    help="Look at no records before: a time, or 15m ago.",
)
@click.option("--to", "end", type=POSITION, default="latest", show_default=True, help="Nor after.")
@click.option(
    "--limit",
    type=IntRange(1, 10_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Explain at most N records.",
)
@directory_option
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The console's configuration, which names the parts.",
)
@click.option("--server", metavar="HOST:PORT", help="Ask this logd, with --url for the others.")
@click.option(
    "--url", "urls", multiple=True, metavar="URL", callback=check_urls,
    help="Admin endpoint of a router job or collector; may be repeated.",
)  # fmt: skip
@click.option(
    "--job", "job_files", multiple=True, metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A job file; it and its checkpoint are read where the job does not run. Repeatable.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def trace(
    *,
    directory: Path | None,
    config_path: Path | None,
    server: str | None,
    urls: tuple[str, ...],
    as_json: bool,
    **question: Any,
) -> None:
    """Find records and say where each is, from the collector to every sink.

    For each sink of each job: delivered, waiting, not routed, sampled, deduplicated, dead letter,
    lost, or unknown and why. A job that does not run is asked by its files, which `penstock up`
    knows and --job names. Exit code: 0 when every sink that should have a record has it, 1 when
    one lacks it or no record is found, 69 when a part could not be asked; the rest is told.
    """
    _extra_all()
    from penstock.deploy.trace.command import run_trace
    from penstock.deploy.trace.question import TraceQuestion

    run_trace(
        directory=directory,
        config_path=config_path,
        server=server,
        urls=urls,
        as_json=as_json,
        question=TraceQuestion(**question),
    )


@cli.command(
    cls=ExampleCommand,
    epilog="""
    penstock doctor                what `penstock up` would need here, or what runs
    penstock doctor --dir /srv/penstock --nodes 3
    penstock doctor --config /etc/penstock/logd.yaml --json
    """,
)
@directory_option
@nats_option
@nodes_option(1)
@ports_option
@click.option(
    "--config",
    "configs",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Check what the configuration FILE of a part needs; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def doctor(**options: Any) -> None:
    """Check everything that `penstock up` needs on this host, or the parts that run.

    It checks libraries, Java, nats-server, limits, memory, clock, systemd, disk, socket and ports.
    `penstock up` makes the same checks before it starts anything. The exit code is 1 when a check
    found something that keeps Penstock from working, else 0, also with warnings.
    """
    _service_libraries()
    from penstock.deploy.doctor import run_checks

    run_checks(**options)


@cli.command(
    cls=ExampleCommand,
    epilog="""
    penstock down
    penstock down --dir /srv/penstock --timeout 300
    """,
)
@directory_option
@click.option(
    "--timeout", "timeout_s", type=IntRange(1, 86_400), default=180, show_default=True,
    metavar="SECONDS", help="How long to wait until everything is drained.",
)  # fmt: skip
def down(**options: Any) -> None:
    """Drain and stop what `penstock up` runs in DIR, as Ctrl-C does there.

    The exit code is 0, also when nothing runs in DIR. It is 75 when draining takes longer than the
    timeout; the draining goes on.
    """
    _service_libraries()
    from penstock.deploy.up.background import stop

    stop(**options)


@cli.command(
    cls=ExampleCommand,
    epilog="""
    penstock init --for compose --dir /etc/penstock
    penstock init --for kubernetes --dir deploy/k8s/secrets
    """,
)
@click.option(
    "--for", "kind", type=click.Choice(["compose", "kubernetes"]), required=True,
    help="The deployment: deploy/compose.yaml or deploy/k8s.",
)  # fmt: skip
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False), required=True,
    metavar="DIR", help="Where to make a directory for each part.",
)  # fmt: skip
@click.option("--nodes", type=IntRange(1, 5), default=3, show_default=True, help="How many logd.")
@click.option(
    "--force", is_flag=True,
    help="Also replace files that were edited or are not from `init`, and keep a copy of each.",
)  # fmt: skip
def init(kind: str, directory: Path, nodes: int, *, force: bool) -> None:
    """Make certificates, keys, passwords and configurations for a first start.

    The command makes a directory for each part of deploy/compose.yaml or deploy/k8s. You may run it
    before every start: it only replaces files that an earlier run wrote and nobody has changed,
    such as a certificate that is about to end. DIR/operator holds the keys to everything: keep it
    away from the parts, and keep a copy in a safe place.
    """
    _service_libraries("cryptography")
    from penstock.base.clock import SystemClock
    from penstock.base.pluralize import pluralize
    from penstock.deploy.init import init as make
    from penstock.deploy.site import site_of

    made = make(directory.absolute(), site_of(kind, nodes), SystemClock(), force=force)
    for path in made.copies:
        click.echo(f"kept a copy: {path}")
    for path in made.written:
        click.echo(f"wrote {path}")
    for path in made.kept:
        click.echo(
            f"left {path}: it was edited, or `penstock init` did not write it; --force replaces it"
            " and keeps a copy"
        )
    written = pluralize(len(made.written), "file")
    click.echo(f"{written} written; keep {directory}/operator to yourself")


@cli.command(cls=ExampleCommand, epilog="penstock version")
def version() -> None:
    """Show the versions of Penstock, Python and the key libraries."""
    from penstock.deploy.version import version_report

    for name, value in version_report():
        click.echo(f"{name:<18} {value}")


@cli.command(
    cls=ExampleCommand,
    epilog="""
    source <(penstock completion bash)               this shell; in ~/.bashrc: every shell
    penstock completion zsh > ~/.zfunc/_penstock     needs ~/.zfunc in fpath
    penstock completion fish > ~/.config/fish/completions/penstock.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script with which SHELL completes the commands and options of penstock."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, "penstock", "_PENSTOCK_COMPLETE")
    click.echo(script.source_template % script.source_vars())  # source() would run bash


def _extra_all() -> None:
    """Refuse when the appliance's libraries are not installed, and name the extra."""
    _require("all", "rich", "pyarrow", "psutil", "nats", "pyspark")


def _service_libraries(*names: str) -> None:
    """Refuse when a part's libraries are not installed, and name the extra."""
    _require("logd", "structlog", "yaml", *names)


def _require(extra: str, *names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UnavailableError(
                f"this command needs {name}, which is not installed",
                fix=install_command(extra),
            )

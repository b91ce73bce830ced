"""`penstock collector`: run the agent, and the commands around it."""

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from penstock.collector.agent.derived_config import graph_of
from penstock.collector.agent.worker_plan import WORKERS_MAX, Share, config_of, left_behind
from penstock.collector.config import (
    CollectorConfig,
    Texts,
    load_collector_config,
    read_inherited,
    read_texts,
)
from penstock.collector.registry import SOURCES, TRANSFORMS, Registry
from penstock.service import check_only, configure_logs, run_until_stopped
from penstock.service.cli import IntRange, LazyGroup, check_option
from penstock.service.config import option_lines

_COMMANDS: Final = {
    "drops": "drops:drops",
    "graph": "config:graph",
    "import-config": "import_config:import_config",
    "print-config": "config:print_config",
    "quarantine": "quarantine:quarantine",
    "reload": "admin:reload",
    "schema": "config:schema",
    "spool": "spool:spool",
    "tap": "admin:tap",
    "test": "config:test",
    "top": "admin:top",
    "validate": "config:validate",
}
"""Module and function of each command that the daemon has no use for, below this package."""


def describe_types(registry: Registry) -> Iterator[str]:
    """Lines: each type and its purpose, then its keys with type and default."""
    for name in registry.types():
        try:
            kind = registry.kind(name)
        except ValueError as error:
            yield f"{name}: {error}"
            continue
        first, *rest = option_lines(kind.settings)
        yield first if registry.is_own(name) else f"{first} (package {kind.package})"
        yield from rest


config_files_option = click.option(
    "--config",
    "config_paths",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="YAML configuration file; starts the daemon. Several are merged.",
)


def _share(_: click.Context, __: click.Parameter, value: str | None) -> Share | None:
    """Read which worker of how many this process is; the supervising process passes it."""
    if value is None:
        return None
    parts = value.split("/")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise click.BadParameter("is not INDEX/COUNT/SUPERVISOR")
    return Share(*map(int, parts))


def _inherited(_: click.Context, __: click.Parameter, descriptor: int | None) -> Texts | None:
    """The configuration that the supervisor gave this worker, whatever the files say now."""
    if descriptor is None:
        return None
    try:
        return read_inherited(descriptor)
    except (OSError, ValueError):
        raise click.BadParameter("no configuration was inherited") from None


@click.group(
    cls=LazyGroup,
    lazy={name: f"penstock.collector.cli.{place}" for name, place in _COMMANDS.items()},
    invoke_without_command=True,
    epilog="Example: penstock collector --config collector.yaml",
)
@config_files_option
@check_option
@click.pass_context
def cli(context: click.Context, config_paths: tuple[Path, ...], *, check: bool) -> None:
    """Collect telemetry on this host and bring it to the log."""
    if context.invoked_subcommand is None:
        start(context, config_paths, check=check)


@cli.command(epilog="Example: penstock collector run --config collector.yaml --workers 4")
@config_files_option
@check_option
@click.option(
    "--workers",
    "count",
    type=IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Processes that share the network sources.",
)
@click.option("--worker", metavar="INDEX/COUNT/SUPERVISOR", callback=_share, hidden=True)
@click.option("--inherited", "texts", type=int, metavar="FD", callback=_inherited, hidden=True)
@click.pass_context
def run(
    context: click.Context,
    config_paths: tuple[Path, ...],
    count: int,
    worker: Share | None,
    texts: Texts | None,
    *,
    check: bool,
) -> None:
    """Run the collector; without options the same as without a command.

    With several workers each has its own spool, the first in the data directory, the others below
    `workers/` in it; sources that listen on ports are shared by all, the others are the first's.
    """
    start(context, config_paths, count=count, worker=worker, texts=texts, check=check)


def start(
    context: click.Context,
    config_paths: tuple[Path, ...],
    *,
    count: int = 1,
    worker: Share | None = None,
    texts: Texts | None = None,
    check: bool,
) -> None:
    """Run the collector until it is stopped, or only check its configuration.

    Begins with `texts`, if they are given; the files are read again at a reload only.
    """
    if not config_paths:
        raise click.UsageError("--config FILE is needed to run the collector", context)
    config_path = Path(", ".join(map(str, config_paths)))

    def load(texts: Texts) -> CollectorConfig:
        config = load_collector_config(config_paths, texts=texts)
        graph_of(config, str(config_path))
        return config if worker is None else config_of(config, worker)

    texts = read_texts(config_paths) if texts is None else texts
    config = load(texts)
    if check:
        from penstock.collector.cli.config import check_use

        check_use(config, graph_of(config, str(config_path)), str(config_path))
        click.echo(check_only(config, config_path))
        return
    configure_logs("collector", level=config.log_level)
    if worker is None and (count > 1 or left_behind(config.data_dir, 1)):
        from penstock.collector.agent.workers import Workers

        run_until_stopped(Workers(config, count, texts, load=load).run)
        return

    def load_again() -> CollectorConfig:
        return load(read_texts(config_paths))

    _run_one(config, config_path, worker, None if worker is not None else load_again)


def _run_one(
    config: CollectorConfig,
    config_path: Path,
    worker: Share | None,
    load: Callable[[], CollectorConfig] | None,
) -> None:
    from penstock.base.heap import keep_freed_memory
    from penstock.collector.agent.agent import Agent
    from penstock.collector.agent.workers import stop_when_orphaned

    share = worker or Share(0, 1)

    async def main(stop: asyncio.Event) -> None:
        agent = Agent(config, config_path, load=load, receives=share.receives, takes=share.takes)
        watch: asyncio.Task[None] | None = None
        if worker is not None:
            watch = asyncio.create_task(stop_when_orphaned(stop, worker.supervisor))
        try:
            await agent.run(stop)
        finally:
            if watch is not None:
                watch.cancel()

    # What is loaded by now stays until the end, and is no garbage to be looked for.
    gc.freeze()
    keep_freed_memory()
    run_until_stopped(main)


@cli.command(epilog="Example: penstock collector sources")
def sources() -> None:
    """List the types of sources and their options, those of installed packages as well."""
    for line in describe_types(SOURCES):
        click.echo(line)


@cli.command(epilog="Example: penstock collector transforms")
def transforms() -> None:
    """List the types of transforms and their options, those of installed packages as well."""
    for line in describe_types(TRANSFORMS):
        click.echo(line)


def main() -> None:
    """Run the command with the process's own arguments."""
    cli(sys.argv[1:])

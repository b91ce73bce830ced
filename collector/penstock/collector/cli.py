"""`penstock collector`: run the agent, and the commands around it."""

import sys
from pathlib import Path
from typing import Any

import click

from penstock.collector.cli_config import COMMANDS
from penstock.collector.cli_live import reload, tap, top
from penstock.collector.cli_quarantine import quarantine
from penstock.collector.cli_sources import describe_sources
from penstock.collector.cli_spool import spool
from penstock.collector.config import CollectorConfig
from penstock.collector.config_files import config_files_option, load_collector_config
from penstock.collector.settings import graph_of
from penstock.service import check_only, configure_logs, run_until_stopped
from penstock.service.command import PenstockGroup, check_option


@click.group(
    cls=PenstockGroup,
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


@cli.command(epilog="Example: penstock collector run --config collector.yaml")
@config_files_option
@check_option
@click.pass_context
def run(context: click.Context, config_paths: tuple[Path, ...], *, check: bool) -> None:
    """Run the collector; the same as without a command."""
    start(context, config_paths, check=check)


def start(context: click.Context, config_paths: tuple[Path, ...], *, check: bool) -> None:
    """Run the collector until it is stopped, or only check its configuration."""
    if not config_paths:
        raise click.UsageError("--config FILE is needed to run the collector", context)
    config_path = Path(", ".join(map(str, config_paths)))

    def load() -> CollectorConfig:
        config = load_collector_config(config_paths)
        graph_of(config, str(config_path))
        return config

    config = load()
    if check:
        click.echo(check_only(config, config_path))
        return
    from penstock.collector.agent import Agent

    configure_logs("collector", level=config.log_level)

    async def main(stop: Any) -> None:
        await Agent(config, config_path, load=load).run(stop)

    run_until_stopped(main)


@cli.command(epilog="Example: penstock collector sources")
def sources() -> None:
    """List the types of sources and their options."""
    for line in describe_sources():
        click.echo(line)


for _command in (*COMMANDS, spool, quarantine, reload, tap, top):
    cli.add_command(_command)


def main() -> None:
    """Run the command with the process's own arguments."""
    cli(sys.argv[1:])

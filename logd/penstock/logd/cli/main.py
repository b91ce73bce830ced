"""The group of all commands, and running the daemon."""

import gc
from pathlib import Path
from typing import Final

import click

from penstock.base.daemon_imports import daemon_imports
from penstock.service.cli import LazyGroup, check_option, config_option

_COMMANDS: Final = {
    "acl": "access:acl",
    "backup": "backup:backup",
    "check": "offline:check",
    "cluster": "cluster:cluster",
    "cursors": "consumers:cursors",
    "dump": "offline:dump",
    "export": "query:export",
    "fetch": "records:fetch",
    "gaps": "streams.listing:gaps",
    "groups": "consumers:groups",
    "keys": "access:keys",
    "match": "streams.listing:match",
    "publish": "publish:publish",
    "query": "query:query",
    "quotas": "access:quotas",
    "repair": "offline:repair",
    "restore": "backup:restore",
    "streams": "streams.group:streams",
    "tail": "records:tail",
    "who-can": "access:who_can",
}
"""Module and function of each command, below `penstock.logd.cli`."""


@click.group(
    cls=LazyGroup,
    lazy={name: f"penstock.logd.cli.{place}" for name, place in _COMMANDS.items()},
    invoke_without_command=True,
    epilog="Examples: penstock logd --config logd.yaml, penstock logd tail logs --follow",
)
@config_option
@check_option
@click.pass_context
def cli(context: click.Context, config_path: Path | None, check: bool) -> None:
    """Run the replicated log daemon, ask a running one, or look at a stopped one's files.

    With --config, runs the daemon until SIGTERM or SIGINT. The commands talk to the daemon at
    --server, by default 127.0.0.1:9293 or what PENSTOCK_LOGD_SERVER says; check, repair and dump
    take a data directory instead.
    """
    if context.invoked_subcommand is not None:
        return
    if config_path is None:
        raise click.UsageError("name a command, or a configuration file with --config", context)
    with daemon_imports():
        from penstock.logd.config import ENV_PREFIX, LogdConfig
        from penstock.logd.daemon import run_daemon
        from penstock.service import check_only, configure_logs, load_config, run_until_stopped

    config = load_config(LogdConfig, config_path, env_prefix=ENV_PREFIX)
    if check:
        click.echo(check_only(config, config_path), nl=False)
        return
    configure_logs("logd", level=config.log_level)
    # What is loaded by now stays until the end. Without this, every full collection looks at all of
    # it, and no request is answered for 50 ms. Nothing of a stream is made yet: what goes is freed.
    gc.freeze()
    run_until_stopped(
        lambda stop: run_daemon(config, config_path, stop), stuck_s=config.drain_timeout_s
    )

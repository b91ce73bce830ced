"""The group of all commands, and running the daemon."""

import gc
from pathlib import Path

import click

from penstock.logd.cli.access import acl, keys, quotas, who_can
from penstock.logd.cli.backup import backup, restore
from penstock.logd.cli.cluster import cluster
from penstock.logd.cli.consumers import cursors, groups
from penstock.logd.cli.offline import check as check_offline
from penstock.logd.cli.offline import dump, repair
from penstock.logd.cli.publish import publish
from penstock.logd.cli.query import export, query
from penstock.logd.cli.records import fetch, tail
from penstock.logd.cli.streams import gaps, match, streams
from penstock.service import check_only, configure_logs, load_config, run_until_stopped
from penstock.service.cli import PenstockGroup, check_option, config_option


@click.group(
    cls=PenstockGroup,
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
    from penstock.logd.config import ENV_PREFIX, LogdConfig
    from penstock.logd.daemon import run_daemon

    config = load_config(LogdConfig, config_path, env_prefix=ENV_PREFIX)
    if check:
        click.echo(check_only(config, config_path), nl=False)
        return
    configure_logs("logd", level=config.log_level)
    # What is loaded by now stays until the end. Without this, every full collection looks at all of
    # it, and nobody is answered for 50 ms. Nothing of a stream is made yet: what goes is freed.
    gc.freeze()
    run_until_stopped(lambda stop: run_daemon(config, config_path, stop))


_ASKING = (streams, cluster, publish, tail, fetch, query, export, cursors, groups, match, gaps)
_KEEPING = (backup, restore)
_PERMITTING = (keys, acl, who_can, quotas)
for _command in (*_ASKING, *_PERMITTING, *_KEEPING, check_offline, repair, dump):
    cli.add_command(_command)

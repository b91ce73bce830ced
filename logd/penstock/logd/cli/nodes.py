"""`penstock logd nodes ...` and `penstock logd rebalance`: the nodes of a cluster."""

from collections import Counter
from dataclasses import asdict
from typing import Any

import click
import orjson
from click.core import ParameterSource

from penstock.logd.cli.server import asking, server_option, table
from penstock.logd.client import ClusterInfo, StreamInfo

_TITLES = ("NODE", "STATE", "LIVE", "RACK", "FETCH", "LEADS", "REPLICAS", "ROLE")


@click.group(
    invoke_without_command=True,
    epilog="Examples: penstock logd nodes, penstock logd nodes drain logd-2",
)
@server_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
def nodes(context: click.Context, server: str, as_json: bool) -> None:
    """List the nodes of the cluster, or change them.

    LEADS and REPLICAS count partitions, those of logd's own streams too. A lone logd lists itself.
    """
    if context.invoked_subcommand is not None:
        if context.get_parameter_source("server") is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"give --server after {context.invoked_subcommand}", context)
        return
    with asking(server) as log:
        info, streams = log.cluster(), log.streams(internal=True)
    rows = _rows(info, streams)
    if as_json:
        for row in rows:
            click.echo(orjson.dumps(row))
        return
    shown = [
        (
            row["node"],
            row["state"],
            "yes" if row["live"] else "no",
            row["rack"] or "-",
            row["fetch"] or "-",
            row["leads"],
            row["replicas"],
            "controller" if row["controller"] else "-",
        )
        for row in rows
    ]
    click.echo(table(_TITLES, shown))
    if info.controller is None:
        click.echo("no node is the controller at present: nothing can be changed", err=True)


@nodes.command(epilog="Example: penstock logd nodes drain logd-2")
@click.argument("node")
@server_option
def drain(node: str, server: str) -> None:
    """Begin to move every replica and leadership off NODE; `nodes` shows how far that is."""
    with asking(server) as log:
        log.drain_node(node)
    click.echo(f"node {node} is draining")


@nodes.command(epilog="Example: penstock logd nodes undrain logd-2")
@click.argument("node")
@server_option
def undrain(node: str, server: str) -> None:
    """Give NODE replicas again; `rebalance` moves some back."""
    with asking(server) as log:
        log.drain_node(node, undo=True)
    click.echo(f"node {node} is active")


@nodes.command(epilog="Example: penstock logd nodes remove logd-2 --yes")
@click.argument("node")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_option
def remove(node: str, yes: bool, server: str) -> None:
    """End the membership of NODE for ever; drain it first."""
    with asking(server) as log:
        if not yes:
            click.confirm(f"Remove node {node} from the cluster?", abort=True, err=True)
        log.remove_node(node)
    click.echo(f"node {node} is removed")


@click.command(epilog="Example: penstock logd rebalance --json")
@server_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def rebalance(server: str, as_json: bool) -> None:
    """Spread replicas and leaderships evenly over the nodes; data moves in the background."""
    with asking(server) as log:
        moves = log.rebalance()
    click.echo(orjson.dumps({"moves": moves}) if as_json else f"{moves} moves have begun")


def _rows(info: ClusterInfo, streams: list[StreamInfo]) -> list[dict[str, Any]]:
    """The nodes with what they have."""
    partitions = [part for stream in streams for part in stream.partitions]
    leads = Counter(part.leader for part in partitions)
    replicas = Counter(node for part in partitions for node in (*part.replicas, *part.observers))
    return [
        asdict(node)
        | {
            "leads": leads[node.node],
            "replicas": replicas[node.node],
            "controller": node.node == info.controller,
        }
        for node in info.nodes
    ]

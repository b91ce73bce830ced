"""`penstock logd cluster ...`: the nodes of a cluster, and which of them decides."""

import time
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

import click

from penstock.base.clock import SystemClock
from penstock.base.pluralize import pluralize
from penstock.logd.cli.moving import left_of_drain, left_of_rebalance
from penstock.logd.cli.outcome import json_option, tell
from penstock.logd.cli.server import asking, server_option
from penstock.logd.cli.tables import table
from penstock.logd.cli.text import echo_json
from penstock.logd.cli.watching import Work, wait_option, watch
from penstock.logd.client import ClusterInfo, StreamInfo
from penstock.logd.core.node import REJOIN
from penstock.service import UnavailableError
from penstock.service.command import PenstockGroup

_TITLES: Final = ("NODE", "STATE", "LIVE", "LEADS", "REPLICAS", "ROLE", "RACK", "FETCH")


_UNFIT: Final = ("failed", "leaderless", "damaged", "degraded")
_LOOK_S: Final = 0.5
_SAID_MAX: Final = 5


@click.group(cls=PenstockGroup, epilog="Example: penstock logd cluster info")
def cluster() -> None:
    """See the nodes of a cluster, and change them."""


@cluster.command(epilog="Example: penstock logd cluster info --json")
@server_option
@json_option()
def info(server: str, as_json: bool) -> None:
    """Show the nodes: whether they live, what they lead and have, who is the controller.

    LEADS and REPLICAS count partitions, those of logd's own streams too. A lone logd shows itself.
    """
    with asking(server) as log:
        found, streams = log.cluster(), log.streams(internal=True)
    rows = _rows(found, streams)
    if as_json:
        echo_json({"cluster": found.name, "controller": found.controller, "nodes": rows})
        return
    click.echo(_summary(found, streams))
    click.echo(table(_TITLES, [_cells(row) for row in rows]))
    for node in found.nodes:
        if node.problem and node.is_member:
            click.echo(f"node {node.node} is {node.standing}: {node.problem}", err=True)
    if any(node.standing.startswith("refused") for node in found.nodes):
        click.echo(REJOIN, err=True)
    if found.controller is None:
        click.echo("no node is the controller at present: nothing can be changed", err=True)


@cluster.command(epilog="Example: penstock logd cluster drain logd-2")
@click.argument("node")
@wait_option
@json_option("One JSON object, when it is done.")
@server_option
def drain(node: str, wait: bool, server: str, as_json: bool) -> None:
    """Move every replica and leadership off NODE.

    It is shown how far that is, until the node has nothing. Ctrl-C leaves the work going.
    """
    with asking(server) as log:
        log.drain_node(node)
        if not as_json:
            click.echo(f"node {node} is draining")
        if wait:
            label, hint = (
                f"drain of {node}",
                "start nodes to move to; see: penstock logd streams ls",
            )
            work = Work(label=label, is_left=left_of_drain(node), hint=hint)
            done = watch(log, work, as_json=as_json)
            if not as_json:
                click.echo(
                    f"node {node} has nothing: moved off it: {pluralize(done.total, 'partition')}"
                )
    if as_json:
        echo_json({"node": node, "done": wait})


@cluster.command(epilog="Example: penstock logd cluster undrain logd-2")
@click.argument("node")
@json_option()
@server_option
def undrain(node: str, as_json: bool, server: str) -> None:
    """Give NODE replicas again; `rebalance` moves some back."""
    with asking(server) as log:
        log.drain_node(node, undo=True)
    tell(f"node {node} is active", {"node": node, "active": True}, as_json=as_json)


@cluster.command(epilog="Example: penstock logd cluster remove logd-2 --yes")
@click.argument("node")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option()
@server_option
def remove(node: str, yes: bool, as_json: bool, server: str) -> None:
    """End the membership of NODE for ever; drain it first."""
    with asking(server) as log:
        if not yes:
            click.confirm(f"Remove node {node} from the cluster?", abort=True, err=True)
        log.remove_node(node)
    tell(f"node {node} is removed", {"node": node, "removed": True}, as_json=as_json)


@cluster.command(epilog="Example: penstock logd cluster rebalance --json")
@wait_option
@server_option
@json_option("One JSON object, when it is done.")
def rebalance(wait: bool, server: str, as_json: bool) -> None:
    """Spread replicas and leaderships evenly over the nodes; data moves in the background.

    It is shown how far that is, until nothing is under way. Ctrl-C leaves the work going.
    """
    with asking(server) as log:
        moves = log.rebalance()
        if not as_json:
            click.echo(f"begun: {pluralize(moves, 'move')}")
        if wait:
            hint = "see which nodes are live: penstock logd cluster info"
            work = Work(label="rebalance", is_left=left_of_rebalance, hint=hint, lasting=True)
            watch(log, work, as_json=as_json)
            if not as_json:
                click.echo("nothing is under way any more")
    if as_json:
        echo_json({"moves": moves, "done": wait})


@cluster.command(epilog="Example: penstock logd cluster wait --seconds 300")
@click.option("--seconds", type=click.FloatRange(min=0), default=300.0, show_default=True)
@json_option("One JSON object, when it is so.")
@server_option
def wait(seconds: float, as_json: bool, server: str) -> None:
    """Wait until every node lives and every replica is in sync: then the next may be stopped.

    For rolling restarts: stop one node with SIGTERM, which hands on what it leads; start it; wait.
    Exit code 69: it is not so in time; what is missing is said.
    """
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + round(seconds * 1e9)
    while missing := _missing(server):
        if clock.monotonic_ns() > deadline_ns:
            what, fix = missing
            raise UnavailableError(f"after {seconds:g} s: {what}", fix=fix)
        time.sleep(_LOOK_S)
    words = "every node lives, every replica is in sync: one node may be stopped"
    tell(words, {"in_sync": True}, as_json=as_json)


def _missing(server: str) -> tuple[str, str] | None:
    """Why no node should be stopped now, and what to do about it; None: nothing."""
    try:
        with asking(server) as log:
            found, streams = log.cluster(), log.streams(internal=True)
    except UnavailableError as error:
        return error.reason, error.fix or ""
    if found.name is None:
        raise click.UsageError("this is a lone logd: it has no other nodes to wait for")
    away = [node.node for node in found.nodes if node.is_member and not node.live]
    states = {
        (stream.name, stream.state_of(part)) for stream in streams for part in stream.partitions
    }
    reasons = [f"node {name} is away" for name in away]
    reasons += [] if found.controller else ["no node is the controller"]
    reasons += sorted(f"{name} is {state}" for name, state in states if state in _UNFIT)
    reasons += [f"{stream.name} is failed" for stream in streams if stream.problem]
    said = ", ".join(list(dict.fromkeys(reasons))[:_SAID_MAX])
    return (said, "stop no other node; see the logs of that one") if said else None


@cluster.command("step-down", epilog="Example: penstock logd cluster step-down --to logd-2")
@click.option("--to", "heir", metavar="NODE", help="Who is to decide. Default: any other node.")
@server_option
@json_option()
def step_down(heir: str | None, server: str, as_json: bool) -> None:
    """Have another node be the controller, which decides who leads what.

    Before that node is taken away, or because it is slow. Leaders of partitions stay who they are:
    a node that is stopped hands those over itself, `drain` moves them off, `rebalance` evens out.
    """
    with asking(server) as log:
        controller = log.step_down(heir)
    tell(f"node {controller} is the controller", {"controller": controller}, as_json=as_json)


def _summary(info: ClusterInfo, streams: list[StreamInfo]) -> str:
    """What is wrong at a glance, or that nothing is."""
    members = [node for node in info.nodes if node.is_member]
    live = sum(node.live for node in members)
    partitions = [part for stream in streams for part in stream.partitions]
    leaderless = sum(part.leader is None for part in partitions)
    behind = sum(len(part.isr) < len(part.replicas) for part in partitions)
    name = "no cluster: a lone logd" if info.name is None else f"cluster {info.name}"
    return (
        f"{name}; {live} of {len(members)} nodes live; {pluralize(len(partitions), 'partition')}, "
        f"{leaderless} without a leader, {behind} not fully in sync"
    )


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["node"],
        row["standing"],
        "yes" if row["live"] else "no",
        row["leads"],
        row["replicas"],
        "controller" if row["controller"] else "-",
        row["rack"] or "-",
        row["fetch"] or "-",
    )


def _rows(info: ClusterInfo, streams: list[StreamInfo]) -> list[dict[str, Any]]:
    """The nodes with what they have."""
    partitions = [part for stream in streams for part in stream.partitions]
    leads = Counter(part.leader for part in partitions)
    replicas = Counter(node for part in partitions for node in (*part.replicas, *part.observers))
    return [
        asdict(node)
        | {
            "standing": node.standing,
            "leads": leads[node.node],
            "replicas": replicas[node.node],
            "controller": node.node == info.controller,
        }
        for node in info.nodes
    ]

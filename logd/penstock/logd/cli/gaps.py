"""`penstock logd gaps`: what was missed of subjects, and what of the logs cannot be read."""

from collections.abc import Sequence
from typing import Any

import click

from penstock.logd.cli.outcome import json_option
from penstock.logd.cli.server import asking, server_option
from penstock.logd.cli.tables import table
from penstock.logd.cli.text import echo_json, safe
from penstock.logd.client import LogClient
from penstock.logd.errors import UnavailableError
from penstock.service import UnavailableError as ServiceUnavailableError

_Rows = list[dict[str, Any]]


@click.command(epilog="Example: penstock logd gaps --stream logs")
@click.option("--stream", help="Only this stream's.")
@click.option("--node", help="Only of this node. Default: all nodes of the cluster.")
@json_option("One JSON object a line.")
@server_option
def gaps(stream: str | None, node: str | None, as_json: bool, server: str) -> None:
    """Say when streams missed messages, and why; and which offsets are damaged.

    A gap is a time in which a stream was off its subject, or dropped what nobody could be told of.
    Nodes remember those since they were started, the last 64 that ended; all are in their logs and
    in the stream __activity.
    """
    with asking(server) as log:
        ingest, damaged, silent = _found(log, node)
    ingest = [gap for gap in ingest if stream is None or _concerns(gap["streams"], stream)]
    damaged = [part for part in damaged if stream in (None, part["stream"])]
    if as_json:
        for row in (*ingest, *damaged):
            echo_json(row)
    else:
        _show(ingest, damaged)
    if silent:
        raise ServiceUnavailableError(
            "; ".join(silent), fix="see to those nodes: penstock logd cluster info"
        )


def _found(log: LogClient, wanted: str | None) -> tuple[_Rows, _Rows, list[str]]:
    """Gaps and damage by node, and the nodes that gave no answer."""
    info = log.cluster()
    nodes: Sequence[str | None] = [node.node for node in info.nodes if node.is_member]
    if wanted is not None:
        nodes = [wanted]
    elif info.name is None:
        nodes = [None]
    ingest: _Rows = []
    damaged: _Rows = []
    silent = []
    for node in nodes:
        try:
            answer = log.gaps(node)
        except UnavailableError as error:
            silent.append(safe(f"node {node} was not asked: {error}"))
            continue
        of = {"node": answer["node"]}
        ingest += [of | {"kind": "ingest"} | gap for gap in answer["ended"] + answer["lasting"]]
        damaged += [of | {"kind": "damage"} | part for part in answer["damaged"]]
    return sorted(ingest, key=lambda gap: str(gap["start"])), damaged, silent


def _concerns(streams: Sequence[str], wanted: str) -> bool:
    """Whether a stream is among those; of one with partitions, each is named."""
    return any(name == wanted or name.startswith(f"{wanted}/") for name in streams)


def _show(ingest: _Rows, damaged: _Rows) -> None:
    if ingest:
        titles = ("START", "END", "SECONDS", "MISSED", "REASON", "STREAMS", "NODE", "DETAIL")
        click.echo(table(titles, [_gap(gap) for gap in ingest]))
    else:
        click.echo("no stream has missed messages since logd was started")
    if damaged:
        click.echo("\ndamaged offsets, that cannot be read:")
        rows = [(p["stream"], p["partition"], p["first"], p["upto"], p["node"]) for p in damaged]
        click.echo(table(("STREAM", "PARTITION", "FROM", "TO (EXCL.)", "NODE"), rows))


def _gap(gap: dict[str, Any]) -> tuple[object, ...]:
    streams = ",".join(gap["streams"])
    more = gap["stream_count"] - len(gap["streams"])
    return (
        _time(gap["start"]),
        "lasts" if gap["end"] is None else _time(gap["end"]),
        round(gap["seconds"]),
        "?" if gap["messages"] is None else str(gap["messages"]),
        gap["reason"],
        f"{streams} and {more} more" if more else streams,
        gap["node"],
        gap["detail"] or "-",
    )


def _time(date: str) -> str:
    """To the second; those that last less are told by SECONDS."""
    return date.partition(".")[0] + "Z"

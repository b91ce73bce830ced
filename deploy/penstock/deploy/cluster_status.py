"""What `penstock status` says of a cluster of logd: its nodes, who decides, who leads what."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError

_TIMEOUT_S = 5.0


def read_cluster(servers: str) -> dict[str, Any] | None:
    """Nodes and partitions as a node knows them; None when none answers.

    Args:
        servers: Addresses of the nodes, joined by commas.
    """
    try:
        with LogClient(servers, timeout_s=_TIMEOUT_S) as log:
            info, streams = log.cluster(), log.streams()
    except LogdError:
        return None
    partitions = [
        {
            "stream": stream.name,
            "partition": part.partition,
            "leader": part.leader,
            "isr": list(part.isr),
            "replicas": list(part.replicas),
        }
        for stream in streams
        for part in stream.partitions
    ]
    return {
        "controller": info.controller,
        "nodes": [asdict(node) for node in info.nodes],
        "partitions": partitions,
    }


def print_cluster(cluster: dict[str, Any] | None) -> None:
    """One row for each node, then one for each partition."""
    console = Console(highlight=False)
    console.print()
    if cluster is None:
        console.print(Text("no node of the cluster answers", style="red"))
        return
    console.print(_nodes(cluster))
    console.print()
    console.print(_partitions(cluster))
    if cluster["controller"] is None:
        console.print(Text("no node is the controller: nothing can be changed", style="yellow"))


def _nodes(cluster: dict[str, Any]) -> Table:
    leads = Counter(part["leader"] for part in cluster["partitions"])
    table = _table("node", "state", "role", "fetch", "leads")
    for node in cluster["nodes"]:
        state = node["state"] if node["live"] else "gone"
        table.add_row(
            Text(node["node"], style="bold"),
            Text(state, style={"active": "green", "gone": "red"}.get(state, "yellow")),
            "controller" if node["node"] == cluster["controller"] else "",
            node["fetch"],
            f"{leads[node['node']]:,}",
        )
    return table


def _partitions(cluster: dict[str, Any]) -> Table:
    table = _table("stream", "partition", "leader", "in sync", "out of sync")
    for part in cluster["partitions"]:
        missing = [name for name in part["replicas"] if name not in part["isr"]]
        table.add_row(
            part["stream"],
            str(part["partition"]),
            part["leader"] or Text("none", style="red"),
            ", ".join(part["isr"]),
            Text(", ".join(missing), style="yellow"),
        )
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in titles:
        table.add_column(title)
    return table

"""`penstock status`: ask every part how it is, and say it in a table; of a cluster, who leads."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.base.clock import SystemClock
from penstock.base.errors import ExitCode, UnavailableError
from penstock.deploy.up.layout import Layout, address_lines, default_root, read_running
from penstock.deploy.up.probe import get_json, is_serving
from penstock.deploy.up.progress import stage_cells
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


Statuses = Mapping[str, dict[str, Any] | None]
"""What each part says of itself, by part; None: it does not answer."""

_POLL_S = 0.2
_STYLES = {"ready": "green", "degraded": "yellow", "starting": "yellow", "draining": "cyan"}


def show_status(
    *, directory: Path | None, urls: tuple[str, ...], wait_s: float, as_json: bool
) -> None:
    """Print how the parts are and exit: 0 healthy, 1 degraded, 69 not running.

    Args:
        directory: Of what runs, if it is not one of the usual.
        urls: Admin endpoints to ask instead.
        wait_s: How long to wait until all is well.
        as_json: Instead of tables.

    Raises:
        UnavailableError: Nothing runs there.
    """
    statuses, running = asyncio.run(_look(directory, urls, wait_s))
    servers = running.get("cluster")
    cluster = None if servers is None else read_cluster(servers)
    if as_json:
        document = statuses if servers is None else {**statuses, "cluster": cluster}
        if "addresses" in running:
            document = {**document, "addresses": running["addresses"]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        _print(statuses)
        if servers is not None:
            print_cluster(cluster)
        _print_addresses(running)
    sys.exit(ExitCode.OK if _is_healthy(statuses) else ExitCode.FAILURE)


async def _look(
    directory: Path | None, urls: tuple[str, ...], wait_s: float
) -> tuple[Statuses, Mapping[str, Any]]:
    """How the parts are, once all is well or the time is over, and what runs."""
    clock = SystemClock()
    until_ns = clock.monotonic_ns() + int(wait_s * 1e9)
    while True:
        late = clock.monotonic_ns() >= until_ns
        try:
            statuses, running = await _ask_all(directory, urls)
        except UnavailableError:
            if late:
                raise
        else:
            if late or _is_healthy(statuses):
                return statuses, running
        await asyncio.sleep(_POLL_S)


async def _ask_all(
    directory: Path | None, urls: tuple[str, ...]
) -> tuple[Statuses, Mapping[str, Any]]:
    running = {"parts": {url: url for url in urls}} if urls else _running(directory)
    statuses = await _ask(running["parts"])
    if not any(statuses.values()):
        raise UnavailableError(
            f"nothing answers at {', '.join(running['parts'].values())}",
            fix="start it with: penstock up",
        )
    return statuses, running


def _is_healthy(statuses: Statuses) -> bool:
    return all(status and status["health"] == "ready" for status in statuses.values())


def _running(directory: Path | None) -> dict[str, Any]:
    """What runs in a directory, named or one of the usual, as its launcher wrote it down."""
    places = [directory] if directory else [default_root(), Path(".work/demo")]
    for place in places:
        running = read_running(Layout(place.absolute()))
        if running is not None:
            return running
    raise UnavailableError(
        f"no penstock runs in {' or '.join(map(str, places))}",
        fix="start it with `penstock up`, or name its directory with --dir",
    )


async def _ask(admin_urls: Mapping[str, str]) -> Statuses:
    answers = await asyncio.gather(*(_ask_one(name, url) for name, url in admin_urls.items()))
    return dict(zip(admin_urls, answers, strict=True))


async def _ask_one(name: str, url: str) -> dict[str, Any] | None:
    if name != "nats":
        return await get_json(f"{url.rstrip('/')}/status")
    if not await is_serving(url):
        return None
    facts = await get_json(f"{url}/varz") or {}
    return {
        "component": "nats",
        "name": facts.get("server_name", "nats"),
        "version": facts.get("version", ""),
        "health": "ready",
        "reasons": [],
        "stages": [
            {
                "name": "messages",
                "received": facts.get("in_msgs", 0),
                "sent": facts.get("out_msgs", 0),
                "lag": 0,
                "errors": facts.get("slow_consumers", 0),
            }
        ],
    }


def _print_addresses(running: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    lines = address_lines(running.get("addresses", {}))
    for line in ["", *lines] if lines else []:
        console.print(Text(line), soft_wrap=True)


def _print(statuses: Statuses) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("part", "health", "stage"):
        table.add_column(title)
    for title in ("in", "out", "lag", "errors"):
        table.add_column(title, justify="right")
    reasons: list[str] = []
    for name, status in statuses.items():
        health = status["health"] if status else "not running"
        first = (Text(name, style="bold"), Text(health, style=_STYLES.get(health, "red")))
        stages = status["stages"] if status else []
        if not stages:
            table.add_row(*first)
        for index, stage in enumerate(stages):
            table.add_row(*(first if index == 0 else ("", "")), *stage_cells(stage))
        if status:
            reasons += [f"{name}: {reason}" for reason in status["reasons"]]
    console = Console(highlight=False)
    console.print(table)
    for reason in reasons:
        console.print(Text(reason, style="yellow"))

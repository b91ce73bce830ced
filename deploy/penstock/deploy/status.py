"""`penstock status`: ask every part how it is, and say it in a table; of a cluster, who leads."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.base.clock import SystemClock
from penstock.base.errors import ExitCode, UnavailableError
from penstock.deploy.account.figures import Reading
from penstock.deploy.account.rows import APPS, State, rows_of
from penstock.deploy.checks import free_bytes
from penstock.deploy.disk_room import Sample, read_samples, room_line
from penstock.deploy.up.layout import Layout, address_lines, default_root, read_running
from penstock.deploy.up.probe import get_json, is_serving
from penstock.deploy.up.progress import stage_cells
from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError

_TIMEOUT_S = 5.0
STAGES_SHOWN = 6
"""Stages that `status` shows of each part without `--all`, so that it fits on one screen."""
PARTITIONS_SHOWN = 6


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
        "nodes": [to_builtins(node) for node in info.nodes],
        "partitions": partitions,
    }


def print_cluster(
    cluster: dict[str, Any] | None, *, everything: bool = False, console: Console | None = None
) -> None:
    """One row for each node, then one for each partition.

    Args:
        cluster: Result of `read_cluster`.
        everything: Not only the first `PARTITIONS_SHOWN` partitions, the unwell ones first.
        console: Console to write to; standard output by default.
    """
    console = console or Console(highlight=False)
    console.print()
    if cluster is None:
        console.print(Text("no node of the cluster answers", style="red"))
        return
    console.print(_nodes(cluster))
    console.print()
    shown = cluster["partitions"]
    if not everything and len(shown) > PARTITIONS_SHOWN:
        shown = sorted(shown, key=_is_in_sync)[:PARTITIONS_SHOWN]
    console.print(_partitions(shown))
    left = cluster["partitions"][len(shown) :]
    if left:
        count = len(cluster["partitions"])
        unwell = sum(not _is_in_sync(part) for part in cluster["partitions"])
        console.print(
            f"{count:,} partitions, {unwell:,} without a leader or out of sync; --all shows each"
        )
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


def _is_in_sync(part: Mapping[str, Any]) -> bool:
    return part["leader"] is not None and set(part["replicas"]) <= set(part["isr"])


def _partitions(partitions: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("stream", "partition", "leader", "in sync", "out of sync")
    for part in partitions:
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
"""The status of each part; None: it does not answer."""

_POLL_S = 0.2
_STYLES = {"ready": "green", "degraded": "yellow", "starting": "yellow", "draining": "cyan"}


def show_status(
    *,
    directory: Path | None,
    urls: tuple[str, ...],
    wait_s: float,
    everything: bool,
    as_json: bool,
) -> None:
    """Print how the parts are and exit: 0 healthy, 1 degraded, 69 not running.

    Args:
        directory: The launch's directory, if it is not one of the usual.
        urls: Admin endpoints to ask instead.
        wait_s: Seconds to wait until all is well.
        everything: A row for each stage, not only for the unwell and the busiest.
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
        print_parts(statuses, everything=everything)
        if servers is not None:
            print_cluster(cluster, everything=everything)
        _print_addresses(running)
    sys.exit(ExitCode.OK if _is_healthy(statuses) else ExitCode.FAILURE)


async def _look(
    directory: Path | None, urls: tuple[str, ...], wait_s: float
) -> tuple[Statuses, Mapping[str, Any]]:
    """Poll the parts until all is well or the time is over; return their status and the launch."""
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
    running = {"parts": {url: url for url in urls}} if urls else running_parts(directory)
    statuses = await _ask(running["parts"])
    if not any(statuses.values()):
        raise UnavailableError(
            f"nothing answers at {', '.join(running['parts'].values())}",
            fix="start that part, or name its admin endpoint with --url"
            if urls
            else "start it with: penstock up",
        )
    return statuses, running


def _is_healthy(statuses: Statuses) -> bool:
    return all(status and status["health"] == "ready" for status in statuses.values())


def running_parts(directory: Path | None) -> dict[str, Any]:
    """Return the launch in a directory, named or usual, as its launcher wrote it down."""
    places = [directory] if directory else [default_root(), Path(".work/demo")]
    for place in places:
        running = read_running(Layout(place.absolute()))
        if running is not None:
            return {**running, "directory": str(place.absolute())}
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
    if lines:
        layout = Layout(Path(running["directory"]))
        now = Sample(SystemClock().unix_ns() // 10**9, free_bytes(layout.root))
        lines.append(f"  {room_line(read_samples(layout.room), now)}")
        for line in ["", *lines]:
            console.print(Text(line), soft_wrap=True)


def print_parts(
    statuses: Statuses, *, everything: bool = False, console: Console | None = None
) -> None:
    """A table of the parts and their stages, then what is wrong.

    Args:
        statuses: Status of each part.
        everything: A row for each stage; else for `STAGES_SHOWN`, the unwell and the busiest.
        console: Console to write to; standard output by default.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("part", "health", "stage"):
        table.add_column(title)
    for title in ("in", "out", "lag", "errors"):
        table.add_column(title, justify="right")
    reasons: list[str] = []
    for name, status in statuses.items():
        health = status["health"] if status else "no answer"
        first = (Text(name, style="bold"), Text(health, style=_STYLES.get(health, "red")))
        stages = status["stages"] if status else []
        shown = stages if everything else shortened(stages)
        if not shown:
            table.add_row(*first)
        for index, stage in enumerate(shown):
            table.add_row(*(first if index == 0 else ("", "")), *stage_cells(stage))
        if status:
            reasons += [f"{name}: {reason}" for reason in status["reasons"]]
    reasons += missing_records(statuses)
    console = console or Console(highlight=False)
    console.print(table)
    for reason in reasons:
        console.print(Text(reason, style="yellow"))


def shortened(stages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The stages with errors and the busiest, in their order, and one row that sums up the others.

    What is no more than `STAGES_SHOWN` is all there.
    """
    if len(stages) <= STAGES_SHOWN:
        return list(stages)
    ranked = sorted(
        stages, key=lambda one: (one["errors"] > 0, one["received"] + one["sent"]), reverse=True
    )
    first = {one["name"] for one in ranked[: STAGES_SHOWN - 1]}
    shown = [one for one in stages if one["name"] in first]
    others = [one for one in stages if one["name"] not in first]
    figures = ("received", "sent", "lag", "errors")
    sums = {figure: sum(int(one[figure]) for one in others) for figure in figures}
    return [*shown, {"name": f"{len(others):,} more (--all)", **sums}]


def missing_records(statuses: Statuses) -> list[str]:
    """Rows of the account that are off, and what applications dropped, from one reading.

    `penstock account` reads twice, and says more.
    """
    found = []
    for row in rows_of(None, Reading(statuses)):
        dropped = {name: n for name, n in row.went.items() if n and name.startswith("dropped")}
        if row.state is State.OFF:
            found.append(f"{row.name}: {row.statement}")
        elif row.stage == APPS and dropped:
            each = ", ".join(f"{count:,} {name}" for name, count in dropped.items())
            found.append(f"{row.part}: applications lost records before they were sent: {each}")
    return found

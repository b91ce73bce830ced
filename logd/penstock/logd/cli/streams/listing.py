"""`penstock logd streams ls` and `info`, `match` and `gaps`: what is stored, under which name."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from msgspec import to_builtins

from penstock.logd.cli.output import (
    echo_json,
    facts,
    human_bytes,
    json_option,
    safe,
    table,
)
from penstock.logd.cli.server import (
    AskRefusedError,
    asking,
    server_option,
    stream_argument,
)
from penstock.logd.client import LogClient, PartitionInfo, StreamInfo
from penstock.logd.errors import UnavailableError
from penstock.service import UnavailableError as ServiceUnavailableError

_TITLES: Final = ("STREAM", "STATE", "RECORDS", "END", "SIZE", "LEADER", "ISR", "SUBJECT")


@click.command(epilog="Example: penstock logd streams ls --json")
@click.option("--internal", is_flag=True, help="Also logd's own.")
@server_option
@json_option("One JSON object a line.")
def list_streams(internal: bool, server: str, as_json: bool) -> None:
    """List the streams, with a line for each partition.

    STATE is ok; degraded: not every replica is in sync; refusing: all publishers are refused, for
    what is said below; damaged: some offsets cannot be read, see `gaps`; leaderless: nothing is
    stored, and nothing can be read, until one leads; failed: see what is said below; paused, held
    or read-only. RECORDS counts offsets, END is the next one. ISR
    says how many replicas are in sync, and which are not.
    """
    with asking(server) as log:
        found = log.streams(internal=internal)
    if as_json:
        for stream in found:
            echo_json(to_builtins(stream))
        return
    click.echo(table(_TITLES, [row for stream in found for row in _rows(stream)]))
    for stream in found:
        if stream.problem:
            click.echo(safe(f"{stream.name}: {stream.problem}"), err=True)
    for text in dict.fromkeys(text for stream in found for text in _refusals(stream)):
        click.echo(safe(text), err=True)


@click.command(epilog="Example: penstock logd streams info logs")
@stream_argument("name")
@server_option
@json_option()
def info(name: str, server: str, as_json: bool) -> None:
    """Show everything about the stream NAME."""
    with asking(server) as log:
        stream = log.stream(name)
    if as_json:
        echo_json(to_builtins(stream), indent=True)
        return
    known: dict[str, Any] = {
        "name": stream.name,
        "subject": stream.subject,
        "incarnation": stream.incarnation,
        "problem": stream.problem or None,
    }
    for key, value in stream.options.items():
        inner = value.items() if isinstance(value, dict) else ()
        known |= {f"{key}.{name}": limit for name, limit in inner} or {key: value}
    for partition in stream.partitions:
        place = f"{partition.partition}." if len(stream.partitions) > 1 else ""
        for key, value in to_builtins(partition).items():
            text = ", ".join(value) if isinstance(value, tuple) else value
            known[place + key] = None if text == "" else text
    click.echo(facts(known))


@click.command(epilog="Example: penstock logd match telemetry.logs.checkout")
@click.argument("subject")
@json_option()
@server_option
def match(subject: str, as_json: bool, server: str) -> None:
    """Say which streams store what is published on SUBJECT; exit code 1: none does."""
    with asking(server) as log:
        found = log.match(subject)
    if as_json:
        echo_json({"subject": subject, "streams": found})
    else:
        for name in found:
            click.echo(name)
    if not found:
        raise AskRefusedError(
            f"no stream stores {safe(subject)}",
            fix="see their subjects, penstock logd streams ls, or create one",
        )


def _rows(stream: StreamInfo) -> list[tuple[object, ...]]:
    """A line for each partition."""
    if not stream.partitions:
        return [(stream.name, "failed", *["-"] * 5, stream.subject)]
    rows: list[tuple[object, ...]] = []
    for part in stream.partitions:
        number = part.partition
        standing: tuple[object, ...] = ("-", "-", "-")
        if part.is_known:
            end = part.high_watermark + 1
            standing = (end - part.start_offset, end, human_bytes(part.size_bytes))
        name = f"{stream.name}/{number}" if len(stream.partitions) > 1 else stream.name
        subject = f"{stream.subject}.{number}" if number else stream.subject
        roles = (part.leader or "-", _in_sync(part), subject)
        rows.append((name, stream.state_of(part), *standing, *roles))
    return rows


def _refusals(stream: StreamInfo) -> Iterator[str]:
    """Which nodes refuse publishers, and why: one disk may concern all streams."""
    for part in stream.partitions:
        if refusal := stream.refusal_of(part):
            yield f"{part.leader} refuses publishers: {refusal}"


def _in_sync(part: PartitionInfo) -> str:
    """Return the number of replicas in sync, and the names of the others."""
    missing = ",".join(node for node in part.replicas if node not in part.isr)
    counted = f"{len(part.isr)}/{len(part.replicas)}"
    return f"{counted} not {missing}" if missing else counted


_Rows = list[dict[str, Any]]


@click.command(epilog="Example: penstock logd gaps --stream logs")
@click.option("--stream", help="Only this stream's.")
@click.option("--node", help="Only of this node. Default: all nodes of the cluster.")
@json_option("One JSON object a line.")
@server_option
def gaps(stream: str | None, node: str | None, as_json: bool, server: str) -> None:
    """Say when streams missed messages, and why; and which offsets are damaged.

    A gap is a time in which a stream was off its subject, or dropped messages without an answer.
    Nodes keep those since they were started, the last 64 that ended; all are in their logs and
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
    elif info.cluster is None:
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
        of = {"node": answer.node}
        ingest += [
            of | {"kind": "ingest"} | to_builtins(it) for it in answer.ended + answer.lasting
        ]
        damaged += [of | {"kind": "damage"} | to_builtins(part) for part in answer.damaged]
    return sorted(ingest, key=lambda gap: str(gap["start"])), damaged, silent


def _concerns(streams: Sequence[str], wanted: str) -> bool:
    """Return whether the stream, or a partition of it, is named."""
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
    """Return the date to the second."""
    return date.partition(".")[0] + "Z"

"""`penstock logd streams ...` and `penstock logd match`: what is stored, and under which name."""

from dataclasses import asdict
from typing import Any, Final

import click

from penstock.base.pluralize import pluralize
from penstock.logd.cli.outcome import json_option, tell
from penstock.logd.cli.purge import purge
from penstock.logd.cli.server import AskRefusedError, asking, server_option, stream_argument
from penstock.logd.cli.stream_changes import (
    alter,
    elect,
    move,
    observers,
    pause,
    readonly,
    resume,
    writable,
)
from penstock.logd.cli.stream_options import chosen_options, stream_options
from penstock.logd.cli.tables import facts, table
from penstock.logd.cli.text import echo_json, human_bytes, safe
from penstock.logd.client import PartitionInfo, StreamInfo
from penstock.service.command import PenstockGroup

_TITLES: Final = ("STREAM", "STATE", "RECORDS", "END", "SIZE", "LEADER", "ISR", "SUBJECT")


@click.group(cls=PenstockGroup, epilog="Example: penstock logd streams ls")
def streams() -> None:
    """List, show, create, change, move, purge and delete streams."""


for _command in (alter, purge, pause, resume, readonly, writable, move, observers, elect):
    streams.add_command(_command)


@streams.command("ls", epilog="Example: penstock logd streams ls --json")
@click.option("--internal", is_flag=True, help="Also logd's own.")
@server_option
@json_option("One JSON object a line.")
def list_streams(internal: bool, server: str, as_json: bool) -> None:
    """List the streams, with a line for each partition.

    STATE is ok; degraded: not every replica is in sync; damaged: some offsets cannot be read, see
    `gaps`; leaderless: nothing is stored, and nothing can be read, until one leads; failed: see
    what is said below; paused, held or read-only. RECORDS counts offsets, END is the next one. ISR
    says how many replicas are in sync, and who is not.
    """
    with asking(server) as log:
        found = log.streams(internal=internal)
    if as_json:
        for stream in found:
            echo_json(asdict(stream))
        return
    click.echo(table(_TITLES, [row for stream in found for row in _rows(stream)]))
    for stream in found:
        if stream.problem:
            click.echo(safe(f"{stream.name}: {stream.problem}"), err=True)


@streams.command(epilog="Example: penstock logd streams create logs --subject 'telemetry.logs.>'")
@click.argument("name")
@click.option("--subject", required=True, help="Subject or filter, with * and >, to store.")
@click.option("--partitions", type=click.IntRange(min=1), help="How many; cannot be changed.")
@click.option(
    "--encryption",
    type=click.Choice(["none", "aes-256-gcm"]),
    help="Of what is on disk; cannot be changed.",
)
@stream_options
@json_option()
@server_option
def create(name: str, subject: str, as_json: bool, server: str, **options: Any) -> None:
    """Create a stream NAME; the same again changes nothing.

    Partition 0 stores the subject itself, partition n what is published on the subject with .n
    behind it. A lone logd has one partition and one replica of everything.
    """
    with asking(server) as log:
        stream = log.create_stream(name, subject, **chosen_options(options))
    done: dict[str, Any] = {"stream": stream.name, "subject": stream.subject}
    done |= {"incarnation": stream.incarnation, "partitions": len(stream.partitions)}
    tell(f"stream {stream.name} stores {stream.subject}", done, as_json=as_json)


@streams.command(epilog="Example: penstock logd streams info logs")
@stream_argument("name")
@server_option
@json_option()
def info(name: str, server: str, as_json: bool) -> None:
    """Show everything about the stream NAME."""
    with asking(server) as log:
        stream = log.stream(name)
    if as_json:
        echo_json(asdict(stream), indent=True)
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
        for key, value in asdict(partition).items():
            known[place + key] = ", ".join(value) or None if isinstance(value, tuple) else value
    click.echo(facts(known))


@streams.command("open", epilog="Example: penstock logd streams open logs")
@stream_argument("name")
@click.option("--node", help="Of a cluster; default: the one at --server.")
@json_option()
@server_option
def open_stream(name: str, node: str | None, as_json: bool, server: str) -> None:
    """Open the stream NAME again, after what made it fail was seen to."""
    with asking(server) as log:
        log.open_stream(name, node=node)
    done = {"stream": name, "node": node, "open": True}
    tell(f"stream {name} is open", done, as_json=as_json)


@streams.command(epilog="Example: penstock logd streams delete scratch --yes")
@stream_argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option()
@server_option
def delete(name: str, yes: bool, as_json: bool, server: str) -> None:
    """Delete the stream NAME and everything in it."""
    with asking(server) as log:
        stream = log.stream(name)
        if not yes:
            known = [part for part in stream.partitions if part.is_known]
            records = sum(part.high_watermark + 1 - part.start_offset for part in known)
            click.confirm(
                f"Delete stream {name} with {pluralize(records, 'record')}?", abort=True, err=True
            )
        log.delete_stream(name)
    tell(f"stream {name} is deleted", {"stream": name, "deleted": True}, as_json=as_json)


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


def _in_sync(part: PartitionInfo) -> str:
    """How many replicas are in sync, and who is not."""
    missing = ",".join(node for node in part.replicas if node not in part.isr)
    counted = f"{len(part.isr)}/{len(part.replicas)}"
    return f"{counted} not {missing}" if missing else counted

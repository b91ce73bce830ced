"""`penstock logd groups ...`: consumer groups, who reads what, and how far behind they are."""

from dataclasses import asdict
from typing import Any

import click

from penstock.logd.cli.lag import PartitionPlace, Standing, standings
from penstock.logd.cli.outcome import json_option
from penstock.logd.cli.server import asking, server_option
from penstock.logd.cli.tables import table
from penstock.logd.cli.text import echo_json
from penstock.logd.client import GroupInfo, LogClient
from penstock.service.command import PenstockGroup


@click.group(cls=PenstockGroup, epilog="Example: penstock logd groups ls")
def groups() -> None:
    """List the consumer groups that have members, and show one."""


@groups.command("ls", epilog="Example: penstock logd groups ls --json")
@server_option
@json_option("One JSON object a line.")
def list_groups(server: str, as_json: bool) -> None:
    """List the consumer groups that have members.

    LAG counts the records that a group has not committed, in the partitions it reads.
    """
    with asking(server) as log:
        found, known = log.groups(), standings(log)
        rows = [_summary(group, _partitions(log, group, known)) for group in found]
    if as_json:
        for row in rows:
            echo_json(row)
        return
    titles = ("group", "epoch", "members", "partitions", "lag")
    shown = [tuple("-" if row[title] is None else row[title] for title in titles) for row in rows]
    click.echo(table([title.upper() for title in titles], shown))


@groups.command(epilog="Example: penstock logd groups info billing --json")
@click.argument("name")
@server_option
@json_option()
def info(name: str, server: str, as_json: bool) -> None:
    """Show the members of group NAME, and the partitions that each of them reads.

    A partition on its way from one member to another has both, as FROM>TO.
    """
    with asking(server) as log:
        group = log.group(name)
        partitions = _partitions(log, group, standings(log))
    if as_json:
        echo_json(asdict(group) | {"partitions": partitions})
        return
    members = [
        (one.member, f"{one.session_ms / 1000:g}", ", ".join(one.streams)) for one in group.members
    ]
    click.echo(table(("MEMBER", "SESSION_S", "STREAMS"), members))
    click.echo()
    shown = [
        (
            part["stream"],
            part["partition"],
            "-" if part["offset"] is None else part["offset"],
            "-" if part["lag"] is None else part["lag"],
            _reader(part),
        )
        for part in partitions
    ]
    click.echo(table(("STREAM", "PARTITION", "OFFSET", "LAG", "MEMBER"), shown))


def _partitions(
    log: LogClient, group: GroupInfo, known: dict[PartitionPlace, Standing]
) -> list[dict[str, Any]]:
    """A group's partitions, with how far it has come."""
    offsets = {
        (cursor.stream, cursor.incarnation, cursor.partition): cursor.offset
        for cursor in log.cursors(consumer=group.group)
    }
    rows = []
    for part in group.partitions:
        place = (part.stream, part.incarnation, part.partition)
        offset, standing = offsets.get(place), known.get(place)
        lag = None if standing is None else standing.lag(offset)
        rows.append(asdict(part) | {"offset": offset, "lag": lag})
    return rows


def _summary(group: GroupInfo, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    lags = [part["lag"] for part in partitions]
    return {
        "group": group.group,
        "epoch": group.epoch,
        "members": len(group.members),
        "partitions": len(partitions),
        "lag": None if None in lags else sum(lags),
    }


def _reader(part: dict[str, Any]) -> str:
    reads, wanted = part["member"] or "-", part["wanted"] or "-"
    return reads if reads == wanted else f"{reads}>{wanted}"

"""`penstock logd cursors ...`: how far consumers have come, and to put that right."""

from typing import Any, NamedTuple

import click
from msgspec import to_builtins

from penstock.logd.cli.output import echo_json, json_option, table, tell
from penstock.logd.cli.server import asking, server_option, stream_argument
from penstock.logd.client import Cursor, GroupInfo, LogClient
from penstock.service.cli import IntRange, PenstockGroup

PartitionPlace = tuple[str, str, int]
"""Stream, incarnation and number of a partition."""


class Standing(NamedTuple):
    """Readable offsets of a partition: `start` inclusive, `end` exclusive."""

    start: int
    end: int

    def lag(self, offset: int | None) -> int:
        """Records that a consumer has before it; without a cursor, all there are."""
        return max(self.end - max(self.start, offset or 0), 0)


def standings(log: LogClient) -> dict[PartitionPlace, Standing]:
    """Every partition whose leader could be asked."""
    return {
        (info.name, info.incarnation, part.partition): Standing(
            part.start_offset, part.high_watermark + 1
        )
        for info in log.streams()
        for part in info.partitions
        if part.is_known
    }


@click.group(cls=PenstockGroup, epilog="Example: penstock logd cursors ls")
def cursors() -> None:
    """List, set and delete the cursors of consumers."""


@cursors.command("ls", epilog="Example: penstock logd cursors ls --stream logs --json")
@click.option("--consumer", help="Only this consumer's.")
@click.option("--stream", help="Only those of this stream.")
@server_option
@json_option("One JSON object a line.")
def list_cursors(consumer: str | None, stream: str | None, server: str, as_json: bool) -> None:
    """List cursors: the next record each consumer wants, and how many it has before it."""
    with asking(server) as log:
        found = log.cursors(consumer=consumer, stream=stream)
        known = standings(log)
    if as_json:
        for cursor in found:
            echo_json(to_builtins(cursor) | {"lag": _lag(cursor, known)})
        return
    click.echo(
        table(
            ("CONSUMER", "STREAM", "PARTITION", "OFFSET", "LAG"),
            [
                (
                    cursor.consumer,
                    cursor.stream,
                    cursor.partition,
                    cursor.offset,
                    _shown(cursor, _lag(cursor, known)),
                )
                for cursor in found
            ],
        )
    )


@cursors.command("set", epilog="Example: penstock logd cursors set billing logs 1200")
@click.argument("consumer")
@stream_argument()
@click.argument("offset", type=IntRange(min=0))
@click.option(
    "--partition", type=IntRange(min=0), default=0, show_default=True,
    help="The partition's number.",
)  # fmt: skip
@server_option
@json_option()
def set_cursor(
    consumer: str, stream: str, offset: int, partition: int, server: str, as_json: bool
) -> None:
    """Set the cursor of CONSUMER in STREAM to OFFSET, forwards or back; durable on return."""
    with asking(server) as log:
        cursor = log.cursor(consumer, stream, partition).commit(offset, rewind=True)
    words = f"{consumer} reads {stream}/{partition} from {cursor.offset} on"
    tell(words, to_builtins(cursor), as_json=as_json)


@cursors.command(epilog="Example: penstock logd cursors delete billing logs")
@click.argument("consumer")
@stream_argument()
@click.option(
    "--partition", type=IntRange(min=0), default=0, show_default=True,
    help="The partition's number.",
)  # fmt: skip
@server_option
@json_option()
def delete(consumer: str, stream: str, partition: int, server: str, as_json: bool) -> None:
    """Delete the cursor of CONSUMER in STREAM; without one, nothing changes."""
    with asking(server) as log:
        deleted = log.cursor(consumer, stream, partition).delete()
    what = "is deleted" if deleted else "was not there"
    words = f"the cursor of {consumer} in {stream}/{partition} {what}"
    done = {"consumer": consumer, "stream": stream, "partition": partition, "deleted": deleted}
    tell(words, done, as_json=as_json)


def _lag(cursor: Cursor, known: dict[PartitionPlace, Standing]) -> int | None:
    standing = known.get((cursor.stream, cursor.incarnation, cursor.partition))
    return None if standing is None else standing.lag(cursor.offset)


def _shown(cursor: Cursor, lag: int | None) -> object:
    if lag is not None:
        return lag
    return "unknown" if cursor.current else "stream deleted"


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
        echo_json(to_builtins(group) | {"partitions": partitions})
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
        rows.append(to_builtins(part) | {"offset": offset, "lag": lag})
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

"""`penstock logd cursors ...`: how far consumers have come, and to put that right."""

from dataclasses import asdict

import click

from penstock.logd.cli.lag import PartitionPlace, Standing, standings
from penstock.logd.cli.outcome import json_option, tell
from penstock.logd.cli.server import asking, server_option, stream_argument
from penstock.logd.cli.tables import table
from penstock.logd.cli.text import echo_json
from penstock.logd.client import Cursor
from penstock.service.command import PenstockGroup


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
            echo_json(asdict(cursor) | {"lag": _lag(cursor, known)})
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
@click.argument("offset", type=click.IntRange(min=0))
@click.option("--partition", type=int, default=0, show_default=True)
@server_option
@json_option()
def set_cursor(
    consumer: str, stream: str, offset: int, partition: int, server: str, as_json: bool
) -> None:
    """Set the cursor of CONSUMER in STREAM to OFFSET, forwards or back; durable on return."""
    with asking(server) as log:
        cursor = log.cursor(consumer, stream, partition).commit(offset, rewind=True)
    words = f"{consumer} reads {stream}/{partition} from {cursor.offset} on"
    tell(words, asdict(cursor), as_json=as_json)


@cursors.command(epilog="Example: penstock logd cursors delete billing logs")
@click.argument("consumer")
@stream_argument()
@click.option("--partition", type=int, default=0, show_default=True)
@server_option
@json_option()
def delete(consumer: str, stream: str, partition: int, server: str, as_json: bool) -> None:
    """Delete the cursor of CONSUMER in STREAM; without one, nothing changes."""
    with asking(server) as log:
        deleted = log.delete_cursor(consumer, stream, partition)
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

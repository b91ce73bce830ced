"""`penstock logd streams pause`, `purge`, `delete` and others: whether a stream takes and keeps."""

import click

from penstock.base.pluralize import pluralize
from penstock.logd.cli.output import (
    echo_json,
    json_option,
    tell,
)
from penstock.logd.cli.server import (
    POSITION,
    Position,
    asking,
    partitions_of,
    resolve,
    server_option,
    stream_argument,
)
from penstock.logd.client import LogClient
from penstock.service.cli import IntRange


@click.command(epilog="Example: penstock logd streams purge logs --before 2026-01-31 --yes")
@stream_argument("name")
@click.option(
    "--before",
    type=POSITION,
    help="Delete records below this offset, or before the first at this time, or so long ago.",
)
@click.option("--all", "everything", is_flag=True, help="Delete every record there is now.")
@click.option("--partition", type=IntRange(min=0), help="Only this one. Default: all.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("One JSON object for each partition.")
@server_option
def purge(  # noqa: PLR0913 - what is to go, and how
    *,
    name: str,
    before: Position | None,
    everything: bool,
    partition: int | None,
    yes: bool,
    as_json: bool,
    server: str,
) -> None:
    """Delete the beginning of the stream NAME, on every replica; publishers do not notice.

    Only committed records are deleted. Readers below get OUT_OF_RANGE at once; cursors stay.
    Whole segment files are deleted at once; what the file that holds the offset has below it can no
    longer be read, and goes with that file.
    """
    if everything == (before is not None):
        raise click.UsageError("give either --before or --all")
    with asking(server) as log:
        wanted = () if partition is None else (partition,)
        numbers = partitions_of(log, name, wanted)
        if isinstance(before, int) and len(numbers) > 1:
            raise click.UsageError(f"{name} has {len(numbers)} partitions: name one, or a time")
        ends = {number: _end(log, name, number, before) for number in numbers}
        count = sum(max(upto - start, 0) for start, upto in ends.values())
        if not yes:
            click.confirm(
                f"Delete {pluralize(count, 'record', form=',')} of {name}, for ever?",
                abort=True,
                err=True,
            )
        for number, (start, upto) in ends.items():
            left = log.purge(name, upto, number)
            if as_json:
                echo_json({"stream": name, "partition": number, "start_offset": left})
            else:
                gone = pluralize(max(left - start, 0), "record", form=",")
                click.echo(f"{name}/{number} begins at offset {left}; deleted: {gone}")


def _end(log: LogClient, name: str, partition: int, before: Position | None) -> tuple[int, int]:
    """Return a partition's start, and the offset before which records are purged."""
    start, end = log.offsets(name, partition)
    return start, end if before is None else resolve(log, name, partition, before)


@click.command(epilog="Example: penstock logd streams delete scratch --yes")
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


@click.command(epilog="Example: penstock logd streams open logs")
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


@click.command(epilog="Example: penstock logd streams pause logs")
@stream_argument("name")
@click.option("--hold", is_flag=True, help="Off its subject, until it is resumed.")
@json_option()
@server_option
def pause(name: str, hold: bool, as_json: bool, server: str) -> None:
    """Let the stream NAME rest until a message comes for it; it can be read.

    The message is stored, and ends the pause. With --hold nothing is stored until it is resumed.
    """
    with asking(server) as log:
        log.set_stream_mode(name, paused=True, held=hold)
    words = f"stream {name} is {'held' if hold else 'paused'}"
    tell(words, {"stream": name, "paused": True, "held": hold}, as_json=as_json)


@click.command(epilog="Example: penstock logd streams resume logs")
@stream_argument("name")
@json_option()
@server_option
def resume(name: str, as_json: bool, server: str) -> None:
    """Let the stream NAME take messages again, after a pause."""
    with asking(server) as log:
        log.set_stream_mode(name, paused=False)
    done = {"stream": name, "paused": False, "held": False}
    tell(f"stream {name} is resumed", done, as_json=as_json)


@click.command(epilog="Example: penstock logd streams readonly logs")
@stream_argument("name")
@json_option()
@server_option
def readonly(name: str, as_json: bool, server: str) -> None:
    """Make the stream NAME read-only: publishers that ask for an ack get a refusal."""
    with asking(server) as log:
        log.set_stream_mode(name, read_only=True)
    tell(f"stream {name} is read-only", {"stream": name, "read_only": True}, as_json=as_json)


@click.command(epilog="Example: penstock logd streams writable logs")
@stream_argument("name")
@json_option()
@server_option
def writable(name: str, as_json: bool, server: str) -> None:
    """Store what is published to the stream NAME again."""
    with asking(server) as log:
        log.set_stream_mode(name, read_only=False)
    tell(f"stream {name} is writable", {"stream": name, "read_only": False}, as_json=as_json)

"""`penstock logd streams purge`: deletes the beginning of a stream, for ever."""

import click

from penstock.base.pluralize import pluralize
from penstock.logd.cli.outcome import json_option
from penstock.logd.cli.positions import POSITION, Position, resolve
from penstock.logd.cli.server import asking, server_option, stream_argument
from penstock.logd.cli.source import partitions_of
from penstock.logd.cli.text import echo_json
from penstock.logd.client import LogClient


@click.command(epilog="Example: penstock logd streams purge logs --before 2026-01-31 --yes")
@stream_argument("name")
@click.option(
    "--before",
    type=POSITION,
    help="Delete records below this offset, or before the first at this time, or so long ago.",
)
@click.option("--all", "everything", is_flag=True, help="Delete every record there is now.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this one. Default: all.")
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

    Only what is committed goes. Readers below are told (OUT_OF_RANGE) at once, and cursors stay.
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
    """Where a partition begins, and up to where it is to go."""
    start, end = log.offsets(name, partition)
    return start, end if before is None else resolve(log, name, partition, before)

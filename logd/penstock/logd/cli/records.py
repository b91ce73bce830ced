"""`penstock logd tail` and `penstock logd fetch`: records, for people and for programs."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click
from typing_extensions import override

from penstock.logd.batch import Record, decode_body, encode_body, stream_prefix
from penstock.logd.cli.positions import PARTITION, POSITION, Position, first_offset, resolve
from penstock.logd.cli.server import asking, server_option
from penstock.logd.cli.showing import record_json, record_pretty, record_text
from penstock.logd.client import LogClient
from penstock.logd.rows import batch_records, slice_rows

_FOLLOW_WAIT_MS: Final = 5_000
END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What ends an Arrow IPC stream."""


class _HeaderType(click.ParamType[Any]):
    """`NAME` or `NAME=VALUE`."""

    name = "header"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, wanted = value.partition("=")
        if not name:
            self.fail(f"{value!r} is neither NAME nor NAME=VALUE", param, ctx)
        return name, wanted.encode() if equals else None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What to show of a partition.

    Attributes:
        headers: Each of them a record must have, with the value if one is named.
    """

    stream: str
    partition: int
    follow: bool
    subject: str | None
    headers: tuple[tuple[str, bytes | None], ...]

    def has(self, record: Record) -> bool:
        """Whether a record has the headers."""
        return all(
            any(name == own and value in (None, held) for own, held in record.headers)
            for name, value in self.headers
        )


@click.command(
    epilog="""\b
    Examples:
      penstock logd tail logs --follow --header level=error
      penstock logd tail logs --from 15m --pretty"""
)
@click.argument("stream")
@PARTITION
@click.option(
    "--from",
    "start",
    type=POSITION,
    help="An offset, earliest, latest, a time, or 15m ago. Default: the last 10 records.",
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option("--subject", help="Only records on subjects that this filter matches.")
@click.option(
    "--header",
    "headers",
    type=_HeaderType(),
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Only records that have it; repeatable, and all must be there.",
)
@click.option("--pretty", is_flag=True, help="Headers, and JSON laid out, over several lines.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@server_option
def tail(start: Position | None, pretty: bool, as_json: bool, server: str, **wanted: Any) -> None:
    """Print the records of STREAM.

    What a payload holds cannot drive the terminal: control characters are shown as escapes.
    """
    if pretty and as_json:
        raise click.UsageError("give either --pretty or --json")
    form = record_json if as_json else record_pretty if pretty else record_text
    asked = _Wanted(**wanted)
    with asking(server) as log:
        try:
            for offset, record in _records(log, asked, start):
                click.echo(form(offset, record))
        except KeyboardInterrupt:
            if not asked.follow:
                raise


def _records(
    log: LogClient, wanted: _Wanted, start: Position | None
) -> Iterator[tuple[int, Record]]:
    stream, partition = wanted.stream, wanted.partition
    offset = first_offset(log, stream, partition, start)
    end = log.offsets(stream, partition).end
    incarnation = None
    while wanted.follow or offset < end:
        fetched = log.fetch(
            stream,
            offset,
            partition=partition,
            subject=wanted.subject,
            wait_ms=_FOLLOW_WAIT_MS if wanted.follow else 0,
            incarnation=incarnation,
        )
        incarnation = fetched.incarnation
        for header, body in fetched.frames:
            rows = slice_rows(header, decode_body(body), offset, None if wanted.follow else end)
            for number, record in batch_records(header, rows):
                if wanted.has(record):
                    yield number, record
        sys.stdout.flush()
        offset = fetched.next_offset


@click.command(epilog="Example: penstock logd fetch logs --to 1000 --format arrow > logs.arrow")
@click.argument("stream")
@PARTITION
@click.option("--from", "start", type=POSITION, default="earliest", show_default=True)
@click.option(
    "--to",
    "end",
    type=POSITION,
    default="latest",
    show_default=True,
    help="Exclusive; waits for what is not there yet.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["ndjson", "arrow"]),
    default="ndjson",
    show_default=True,
    help="JSON lines, or an Arrow IPC stream.",
)
@server_option
def fetch(
    *, stream: str, partition: int, start: Position, end: Position, form: str, server: str
) -> None:
    """Write the records of STREAM from one offset or time to another to standard output."""
    with asking(server) as log:
        first = first_offset(log, stream, partition, start)
        stop = resolve(log, stream, partition, end)
        if stop < first:
            raise click.UsageError(f"--to {end} is below --from {start}")
        if form == "ndjson":
            for offset, record in log.records(stream, first, stop, partition=partition):
                click.echo(record_json(offset, record))
            return
        sys.stdout.buffer.write(stream_prefix())
        sys.stdout.buffer.writelines(
            encode_body(slice_rows(header, batch, first, stop))
            for header, batch in log.batches(stream, first, stop, partition=partition)
        )
        sys.stdout.buffer.write(END_OF_STREAM)

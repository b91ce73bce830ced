"""`penstock logd tail` and `penstock logd fetch`: records, for people and for programs."""

import base64
import sys
from datetime import UTC, datetime
from typing import Any, Final

import click
import orjson
from typing_extensions import override

from penstock.logd.batch import Record, decode_body, encode_body, stream_prefix
from penstock.logd.cli.server import asking, server_option
from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError
from penstock.logd.rows import batch_records, slice_rows

_TAIL_RECORDS: Final = 10
_FOLLOW_WAIT_MS: Final = 5_000
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class _OffsetType(click.ParamType[Any]):
    """An offset, or a word for one."""

    name = "offset"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in ("earliest", "latest") and not str(value).isdigit():
            self.fail(f"{value!r} is not an offset, `earliest` or `latest`", param, ctx)
        return value


OFFSET: Final = _OffsetType()
"""The type of `--from` and `--to`."""

PARTITION: Final = click.option(
    "--partition", type=click.IntRange(min=0), default=0, show_default=True
)


@click.command(epilog="Example: penstock logd tail logs --from earliest --follow --json")
@click.argument("stream")
@PARTITION
@click.option("--from", "start", type=OFFSET, help="Default: the last 10 records.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option("--subject", help="Only records on subjects that this filter matches.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@server_option
def tail(  # noqa: PLR0913 - what is asked for, where, and in which form
    *,
    stream: str,
    partition: int,
    start: str | None,
    follow: bool,
    subject: str | None,
    as_json: bool,
    server: str,
) -> None:
    """Print the records of STREAM."""
    with asking(server) as log:
        offset, end = _start(log, stream, partition, start), log.offsets(stream, partition).end
        incarnation = None
        while follow or offset < end:
            fetched = log.fetch(
                stream,
                offset,
                partition=partition,
                subject=subject,
                wait_ms=_FOLLOW_WAIT_MS if follow else 0,
                incarnation=incarnation,
            )
            incarnation = fetched.incarnation
            for header, body in fetched.frames:
                rows = slice_rows(header, decode_body(body), offset, None if follow else end)
                for number, record in batch_records(header, rows):
                    click.echo(
                        record_json(number, record) if as_json else record_text(number, record)
                    )
            sys.stdout.flush()
            offset = fetched.next_offset


@click.command(epilog="Example: penstock logd fetch logs --to 1000 --format arrow > logs.arrow")
@click.argument("stream")
@PARTITION
@click.option("--from", "start", type=OFFSET, default="earliest", show_default=True)
@click.option(
    "--to",
    "end",
    type=OFFSET,
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
def fetch(stream: str, partition: int, start: str, end: str, form: str, server: str) -> None:
    """Write the records of STREAM from one offset to another to standard output."""
    with asking(server) as log:
        first = _start(log, stream, partition, start)
        stop = _resolve(log, stream, partition, end)
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
        sys.stdout.buffer.write(_END_OF_STREAM)


def _start(log: LogClient, stream: str, partition: int, position: str | None) -> int:
    offset = _resolve(log, stream, partition, position)
    start, end = log.offsets(stream, partition)
    if not start <= offset <= end:
        message = f"offset {offset} of {stream} is not in {start} to {end}"
        raise RefusedError("OUT_OF_RANGE", message, earliest=start, latest=end)
    return offset


def _resolve(log: LogClient, stream: str, partition: int, position: str | None) -> int:
    start, end = log.offsets(stream, partition)
    match position:
        case None:
            return max(start, end - _TAIL_RECORDS)
        case "earliest":
            return start
        case "latest":
            return end
        case _:
            return int(position)


def record_text(offset: int, record: Record) -> str:
    """A record as a line for people."""
    value = "(tombstone)" if record.value is None else record.value.decode("utf-8", "replace")
    return f"{offset}  {time_text(record.timestamp_ns)}  {record.subject}  {value}"


def time_text(timestamp_ns: int) -> str:
    """A timestamp for people, to the microsecond."""
    return f"{datetime.fromtimestamp(timestamp_ns / 1e9, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def record_json(offset: int, record: Record) -> bytes:
    """A record as a JSON object."""
    document: dict[str, Any] = {
        "offset": offset,
        "timestamp_ns": record.timestamp_ns,
        "subject": record.subject,
    }
    for name, value in (("key", record.key), ("value", record.value)):
        document |= _json_bytes(name, value)
    if record.headers:
        document["headers"] = [[name, value.decode("latin-1")] for name, value in record.headers]
    if record.reply is not None:
        document["reply"] = record.reply
    return orjson.dumps(document)


def _json_bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    """Text as it is; what is not UTF-8 as base64 under another name."""
    if value is None:
        return {name: None} if name == "value" else {}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}

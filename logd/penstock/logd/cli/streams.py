"""`penstock logd streams ...` and `penstock logd match`: what is stored, and under which name."""

from dataclasses import asdict
from typing import Any

import click
import orjson

from penstock.logd.cli.server import asking, server_option, table
from penstock.logd.client import StreamInfo


@click.group(epilog="Example: penstock logd streams list")
def streams() -> None:
    """List, create, show, open and delete streams."""


@streams.command("list", epilog="Example: penstock logd streams list --json")
@click.option("--internal", is_flag=True, help="Also logd's own.")
@server_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_streams(internal: bool, server: str, as_json: bool) -> None:
    """List the streams."""
    with asking(server) as log:
        found = log.streams(internal=internal)
    if as_json:
        for stream in found:
            click.echo(orjson.dumps(asdict(stream)))
        return
    click.echo(
        table(
            ("STREAM", "SUBJECT", "STATE", "RECORDS", "START", "END", "BYTES"),
            [_row(stream) for stream in found],
        )
    )
    for stream in found:
        if stream.problem:
            click.echo(f"{stream.name}: {stream.problem}", err=True)


@streams.command(epilog="Example: penstock logd streams create logs --subject 'telemetry.logs.>'")
@click.argument("name")
@click.option("--subject", required=True, help="Subject or filter, with * and >, to store.")
@click.option("--ack-on-reply/--no-ack-on-reply", default=None, help="Answer plain publishers.")
@click.option("--ack-policy", type=click.Choice(["all", "leader", "none"]), help="When to ack.")
@click.option("--fsync", type=click.Choice(["commit", "interval", "never"]), help="When to sync.")
@click.option("--fsync-interval-ms", type=int, help="With --fsync interval.")
@click.option("--message-bytes-max", type=int, help="Largest message.")
@click.option("--header-bytes-max", type=int, help="Largest header block of a message.")
@click.option("--header-pairs-max", type=int, help="Most header lines of a message.")
@click.option("--key-bytes-max", type=int, help="Longest key of a record.")
@click.option("--batch-rows-max", type=int, help="Most records of a batch.")
@click.option("--batch-decoded-bytes-max", type=int, help="Most bytes a batch may decode to.")
@click.option("--intake-bytes-max", type=int, help="Bytes that may wait for the disk.")
@click.option("--segment-bytes-max", type=int, help="Size of segment files.")
@click.option("--dedup-window-s", type=int, help="How long a Nats-Msg-Id is remembered.")
@click.option("--dedup-entries-max", type=int, help="Most Nats-Msg-Ids remembered.")
@click.option("--producer-expiry-s", type=int, help="How long an idle producer is remembered.")
@click.option("--producers-max", type=int, help="Most producers remembered.")
@click.option("--retention-age-s", type=int, help="Delete records that are older.")
@click.option("--retention-bytes", type=int, help="Bytes to keep.")
@click.option("--retention-messages", type=int, help="Records to keep.")
@click.option("--discard", type=click.Choice(["old", "new"]), help="What makes room when full.")
@click.option("--compact/--no-compact", default=None, help="Keep only the last record of each key.")
@click.option("--tombstone-retention-s", type=int, help="How long a tombstone is kept.")
@server_option
def create(name: str, subject: str, server: str, **options: Any) -> None:
    """Create a stream NAME; the same again changes nothing."""
    chosen = {key: value for key, value in options.items() if value is not None}
    limits = {key: chosen.pop(f"retention_{key}", None) for key in ("age_s", "bytes", "messages")}
    chosen["retention"] = {key: value for key, value in limits.items() if value is not None}
    with asking(server) as log:
        stream = log.create_stream(name, subject, **chosen)
    click.echo(f"stream {stream.name} stores {stream.subject}")


@streams.command(epilog="Example: penstock logd streams show logs")
@click.argument("name")
@server_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(name: str, server: str, as_json: bool) -> None:
    """Show everything about the stream NAME."""
    with asking(server) as log:
        stream = log.stream(name)
    if as_json:
        click.echo(orjson.dumps(asdict(stream), option=orjson.OPT_INDENT_2))
        return
    facts: dict[str, Any] = {
        "name": stream.name,
        "subject": stream.subject,
        "incarnation": stream.incarnation,
        "problem": stream.problem or None,
    }
    for key, value in stream.options.items():
        inner = value.items() if isinstance(value, dict) else ()
        facts |= {f"{key}.{name}": limit for name, limit in inner} or {key: value}
    for partition in stream.partitions:
        for key, value in asdict(partition).items():
            facts[key] = value
    width = max(len(key) for key in facts)
    for key, value in facts.items():
        click.echo(f"{key.ljust(width)}  {'none' if value is None else value}")


@streams.command("open", epilog="Example: penstock logd streams open logs")
@click.argument("name")
@server_option
def open_stream(name: str, server: str) -> None:
    """Open the stream NAME again, after what made it fail was seen to."""
    with asking(server) as log:
        log.open_stream(name)
    click.echo(f"stream {name} is open")


@streams.command(epilog="Example: penstock logd streams delete scratch --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_option
def delete(name: str, yes: bool, server: str) -> None:
    """Delete the stream NAME and everything in it."""
    with asking(server) as log:
        stream = log.stream(name)
        if not yes:
            records = _row(stream)[3]
            click.confirm(f"Delete stream {name} with {records} records?", abort=True, err=True)
        log.delete_stream(name)
    click.echo(f"stream {name} is deleted")


@click.command(epilog="Example: penstock logd match telemetry.logs.checkout")
@click.argument("subject")
@server_option
def match(subject: str, server: str) -> None:
    """Say which streams store what is published on SUBJECT."""
    with asking(server) as log:
        for name in log.match(subject):
            click.echo(name)


def _row(stream: StreamInfo) -> tuple[object, ...]:
    state = "failed" if stream.problem else "ok"
    if not stream.partitions:
        return (stream.name, stream.subject, state, "-", "-", "-", "-")
    partition = stream.partitions[0]
    end = partition.high_watermark + 1
    return (
        stream.name,
        stream.subject,
        state,
        end - partition.start_offset,
        partition.start_offset,
        end,
        partition.size_bytes,
    )

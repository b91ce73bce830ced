"""`penstock logd publish`: records from arguments, files or standard input, each of them acked."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import click
from typing_extensions import override

from penstock.logd.cli.nats import nats_option, publishing
from penstock.logd.cli.outcome import json_option
from penstock.logd.cli.progress import Progress
from penstock.logd.cli.text import echo_json, safe
from penstock.logd.errors import LogdError
from penstock.logd.publisher import PubAck, PublishOptions
from penstock.service.words import counted

_IN_FLIGHT: Final = 256
"""Records sent and not acked, at a time."""

_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a line of standard input: what NATS carries at most."""

_SHOWN_MAX: Final = 20
"""Acks that are shown one by one to people."""


class _HeaderType(click.ParamType[Any]):
    """`NAME=VALUE`."""

    name = "header"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, content = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, content


@dataclass(slots=True)
class _Stored:
    """What came of it: streams with their first and last offset, and how often it was a repeat."""

    count: int = 0
    duplicates: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, ack: PubAck) -> None:
        """One more is stored."""
        self.count += 1
        self.duplicates += ack.duplicate
        first, last = self.ranges.get(ack.stream, (ack.offset, ack.offset))
        self.ranges[ack.stream] = (min(first, ack.offset), max(last, ack.offset))

    def text(self, seconds: float) -> str:
        """For people."""
        where = ", ".join(f"{name} {a} to {b}" for name, (a, b) in self.ranges.items())
        repeats = f", {self.duplicates} of them before" if self.duplicates else ""
        rate = self.count / max(seconds, 1e-9)
        stored = counted(self.count, "record", form=",")
        return f"{stored} stored{repeats}: {where} ({rate:,.0f} records/s)"


@click.command(
    epilog="""\b
    Examples:
      penstock logd publish telemetry.logs.shop 'out of tea' --header level=error
      penstock logd publish prices.tea 3.20 --key tea --stream prices
      journalctl -o json | penstock logd publish telemetry.logs.journal"""
)
@click.argument("subject")
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option(
    "--file",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Publish this file as one record; repeatable.",
)
@click.option(
    "--header", "headers", type=_HeaderType(), multiple=True, metavar="NAME=VALUE",
    help="Of every record; repeatable.",
)  # fmt: skip
@click.option("--key", help="Of every record, for compaction and the partition.")
@click.option("--tombstone", is_flag=True, help="Delete what has the --key, at compaction.")
@click.option("--id", "message_id", help="What makes a repeat one; for a single record.")
@click.option("--stream", help="Only this stream's ack counts, where several store the subject.")
@click.option(
    "--partitions", type=click.IntRange(min=1), default=1, show_default=True,
    help="Of the stream: with several, --key says which one it is.",
)  # fmt: skip
@click.option(
    "--retry-s", type=click.FloatRange(min=0), default=10.0, show_default=True,
    help="How long to go on when nobody answers, or not now.",
)  # fmt: skip
@click.option(
    "--connect-s", type=click.FloatRange(min=0), default=5.0, show_default=True,
    help="How long to look for a NATS server.",
)  # fmt: skip
@nats_option
@json_option("An ack a line, as JSON.")
def publish(  # noqa: PLR0913 - what is published, how, and where
    *,
    subject: str,
    values: tuple[str, ...],
    files: tuple[Path, ...],
    headers: tuple[tuple[str, str], ...],
    key: str | None,
    tombstone: bool,
    message_id: str | None,
    stream: str | None,
    partitions: int,
    retry_s: float,
    connect_s: float,
    nats: str,
    as_json: bool,
) -> None:
    """Publish records on SUBJECT, and wait until every one is stored.

    Each VALUE is a record, and each --file; without either, each line of standard input. The first
    that is refused ends the command, with exit code 1, or 69 when nobody answers; what was stored
    before it is said, and stays.
    """
    count = None if not values and not files else len(values) + len(files)
    _check(count, tombstone=tombstone, key=key, message_id=message_id)
    options = PublishOptions(
        in_flight_max=_IN_FLIGHT, retry_s=retry_s, stream=stream, connect_timeout_s=connect_s
    )
    with publishing(nats, options) as publisher:
        try:
            if tombstone:
                assert key is not None
                ack = publisher.delete(subject, key=key.encode(), partitions=partitions)
                _show(ack, as_json=as_json)
                return

            def send(value: bytes) -> "Future[PubAck]":
                return publisher.submit(
                    subject,
                    value,
                    key=None if key is None else key.encode(),
                    partitions=partitions,
                    headers=dict(headers),
                    message_id=message_id,
                )

            payloads = _lines(sys.stdin.buffer) if count is None else _payloads(values, files)
            _send_all(send, payloads, count, as_json=as_json)
        except ValueError as error:
            raise click.UsageError(safe(str(error))) from None
        except BaseException:
            publisher.close(flush=False)
            raise


def _check(count: int | None, *, tombstone: bool, key: str | None, message_id: str | None) -> None:
    if tombstone and (key is None or count):
        raise click.UsageError("--tombstone goes with --key, and has no value")
    if tombstone and message_id is not None:
        raise click.UsageError("--tombstone takes no --id")
    if message_id is not None and count != 1:
        raise click.UsageError("--id goes with a single VALUE or --file: it is one record's")


def _send_all(
    send: Callable[[bytes], "Future[PubAck]"],
    payloads: Iterable[bytes],
    count: int | None,
    *,
    as_json: bool,
) -> None:
    stored, waiting = _Stored(), deque[Future[PubAck]]()
    one_by_one = as_json or (count is not None and count <= _SHOWN_MAX)

    def take(future: "Future[PubAck]") -> None:
        try:
            ack = future.result()
        except LogdError:
            click.echo(f"record {stored.count + 1} of the input is not stored", err=True)
            raise
        stored.add(ack)
        if one_by_one:
            _show(ack, as_json=as_json)

    with Progress("publishing", count) as progress:
        try:
            for payload in payloads:
                waiting.append(send(payload))
                progress.advance(1, len(payload))
                while len(waiting) >= _IN_FLIGHT or (waiting and waiting[0].done()):
                    take(waiting.popleft())
            while waiting:
                take(waiting.popleft())
        finally:
            if stored.count and not one_by_one:
                click.echo(stored.text(progress.seconds))


def _show(ack: PubAck, *, as_json: bool) -> None:
    if as_json:
        facts: dict[str, Any] = {"stream": ack.stream, "offset": ack.offset, "epoch": ack.epoch}
        echo_json(facts | {"duplicate": ack.duplicate})
        return
    repeat = ", as it was before" if ack.duplicate else ""
    click.echo(safe(f"stored in {ack.stream} at offset {ack.offset}{repeat}"))


def _payloads(values: tuple[str, ...], files: tuple[Path, ...]) -> Iterator[bytes]:
    for value in values:
        yield value.encode("utf-8", "surrogateescape")
    for file in files:
        yield file.read_bytes()


def _lines(source: IO[bytes]) -> Iterator[bytes]:
    """The lines of standard input, without their ends."""
    if sys.stdin.isatty():
        click.echo("one record a line; Ctrl-D ends", err=True)
    while line := source.readline(_LINE_BYTES_MAX):
        yield line.removesuffix(b"\n").removesuffix(b"\r")

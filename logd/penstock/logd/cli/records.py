"""`penstock logd tail` and `penstock logd fetch`: records, for people and for programs."""

import heapq
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import click
from typing_extensions import override

from penstock.logd.batch import Record, decode_body, encode_body, stream_prefix
from penstock.logd.cli.outcome import check_form, json_option
from penstock.logd.cli.positions import (
    PARTITIONS,
    POSITION,
    Position,
    check_position,
    first_offset,
    resolve,
)
from penstock.logd.cli.read_session import RETRY_S, ReadSession, skip_damaged_option
from penstock.logd.cli.server import asking, server_option, stream_argument
from penstock.logd.cli.showing import (
    LEVELS,
    Telemetry,
    line_text,
    record_json,
    record_pretty,
    record_text,
)
from penstock.logd.cli.source import Range, partitions_of
from penstock.logd.client import LogClient
from penstock.logd.rows import batch_records, slice_rows

_FOLLOW_WAIT_MS: Final = 5_000
_TURN_WAIT_MS: Final = 200
"""How long one of several partitions is waited for, while the others are not."""

_Row: TypeAlias = tuple[int, int, Record]
"""Of which partition, at which offset, what."""

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


class _PatternType(click.ParamType[Any]):
    """A regular expression, as Python's `re` reads it."""

    name = "pattern"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return re.compile(value)
        except re.error as error:
            self.fail(f"{value!r} is no regular expression: {error}", param, ctx)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What to show of a stream.

    Attributes:
        headers: Each of them a record must have, with the value if one is named.
        level: The least severe that is shown; records without a severity are not.
        service: The one whose records are shown.
        grep: What is to be found in a record's line.
    """

    stream: str
    follow: bool
    subject: str | None
    headers: tuple[tuple[str, bytes | None], ...]
    level: str | None
    service: str | None
    grep: re.Pattern[str] | None

    def has(self, record: Record) -> bool:
        """Whether a record has the headers, and says what is asked for."""
        return (
            all(
                any(name == own and value in (None, held) for own, held in record.headers)
                for name, value in self.headers
            )
            and self._is_of(Telemetry.read(record.value) if self.level or self.service else None)
            and (self.grep is None or self.grep.search(line_text(record)) is not None)
        )

    def _is_of(self, telemetry: Telemetry | None) -> bool:
        if self.level is None and self.service is None:
            return True
        if telemetry is None or self.service not in (None, telemetry.service):
            return False
        if self.level is None:
            return True
        return telemetry.severity is not None and telemetry.severity >= LEVELS[self.level]


@click.command(
    epilog="""\b
    Examples:
      penstock logd tail logs --follow --level warn --service shop
      penstock logd tail logs --from 1h --grep 'order_id=1234|timeout'
      penstock logd tail logs --from 15m --pretty"""
)
@stream_argument()
@PARTITIONS
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
@click.option(
    "--level",
    type=click.Choice(list(LEVELS), case_sensitive=False),
    help="Only telemetry records that are at least so severe.",
)
@click.option("--service", help="Only telemetry records of this service.")
@click.option(
    "--grep",
    type=_PatternType(),
    metavar="PATTERN",
    help="Only records in whose line this regular expression is found.",
)
@click.option("--pretty", is_flag=True, help="Headers, and JSON laid out, over several lines.")
@skip_damaged_option
@json_option("One JSON object a line.")
@server_option
def tail(
    *,
    start: Position | None,
    partitions: tuple[int, ...],
    pretty: bool,
    skip_damaged: bool,
    as_json: bool,
    server: str,
    **wanted: Any,
) -> None:
    """Print the records of STREAM, those of several partitions by their times.

    A telemetry record is one line: offset, time, level, service, what happened, and its fields as
    key=value. Of other records it is offset, time, subject and payload.

    With --follow it goes on after logd was away. What a payload holds cannot drive the terminal:
    control characters are shown as escapes.
    """
    if pretty and as_json:
        raise click.UsageError("give either --pretty or --json")
    form = record_json if as_json else record_pretty if pretty else record_text
    asked = _Wanted(**wanted)
    retry_s = None if asked.follow else RETRY_S
    session = ReadSession(skip_damaged=skip_damaged, retry_s=retry_s)
    with asking(server, session.client) as log:
        numbers = partitions_of(log, asked.stream, partitions)
        check_position(start, len(numbers), "--from")
        readers = [_Reader(log, asked, number, start) for number in numbers]
        try:
            for number, offset, record in _by_time(readers, follow=asked.follow):
                click.echo(form(offset, record, number if len(readers) > 1 else None))
        except KeyboardInterrupt:
            if not asked.follow:
                raise
    session.check_complete()


class _Reader:
    """Reads what is wanted of one partition."""

    def __init__(
        self, log: LogClient, wanted: _Wanted, partition: int, start: Position | None
    ) -> None:
        self._log = log
        self._wanted = wanted
        self._partition = partition
        self._offset = first_offset(log, wanted.stream, partition, start)
        self._end = log.offsets(wanted.stream, partition).end
        self._incarnation: str | None = None

    def __iter__(self) -> Iterator[_Row]:
        """All there is now."""
        while self._offset < self._end:
            yield from self.fetch(wait_ms=0)

    def fetch(self, *, wait_ms: int) -> list[_Row]:
        """What comes next."""
        wanted, first = self._wanted, self._offset
        fetched = self._log.fetch(
            wanted.stream,
            first,
            partition=self._partition,
            subject=wanted.subject,
            wait_ms=wait_ms,
            incarnation=self._incarnation,
        )
        self._incarnation, self._offset = fetched.incarnation, fetched.next_offset
        end = None if wanted.follow else self._end
        return [
            (self._partition, number, record)
            for header, body in fetched.frames
            for number, record in batch_records(
                header, slice_rows(header, decode_body(body), first, end)
            )
            if wanted.has(record)
        ]


def _by_time(readers: list[_Reader], *, follow: bool) -> Iterator[_Row]:
    """The records of several partitions, by their times as far as they are there."""
    if not follow:
        yield from heapq.merge(*readers, key=_time_of)
        return
    wait_ms = _FOLLOW_WAIT_MS if len(readers) == 1 else _TURN_WAIT_MS
    for turn in itertools.count():
        waiting = turn % len(readers)  # only one at a time can be waited for
        found = [
            row
            for number, reader in enumerate(readers)
            for row in reader.fetch(wait_ms=wait_ms if number == waiting else 0)
        ]
        yield from sorted(found, key=_time_of)
        sys.stdout.flush()


def _time_of(row: _Row) -> int:
    return row[2].timestamp_ns


@click.command(epilog="Example: penstock logd fetch logs --to 1000 --format arrow > logs.arrow")
@stream_argument()
@PARTITIONS
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
    help="JSON lines, or an Arrow IPC stream. Default: ndjson.",
)
@skip_damaged_option
@json_option("JSON lines: the same as --format ndjson.")
@server_option
def fetch(  # noqa: PLR0913 - what is written, and how
    *,
    stream: str,
    partitions: tuple[int, ...],
    start: Position,
    end: Position,
    form: str | None,
    skip_damaged: bool,
    as_json: bool,
    server: str,
) -> None:
    """Write the records of STREAM from one offset or time to another to standard output.

    Those of several partitions come by their times, as JSON lines.
    """
    check_form(form, as_json=as_json)
    session = ReadSession(skip_damaged=skip_damaged)
    with asking(server, session.client) as log:
        numbers = partitions_of(log, stream, partitions)
        for option, position in (("--from", start), ("--to", end)):
            check_position(position, len(numbers), option)
        if form == "arrow" and len(numbers) > 1:
            raise click.UsageError("an Arrow stream holds one partition: name it with --partition")
        ranges = [_range(log, stream, number, start, end) for number in numbers]
        if form == "arrow":
            _write_arrow(log, *ranges)
        else:
            rows = (_rows(log, part) for part in ranges)
            for number, offset, record in heapq.merge(*rows, key=_time_of):
                click.echo(record_json(offset, record, number if len(ranges) > 1 else None))
    session.check_complete()


def _write_arrow(log: LogClient, part: Range) -> None:
    sys.stdout.buffer.write(stream_prefix())
    sys.stdout.buffer.writelines(
        encode_body(slice_rows(header, batch, part.start, part.end))
        for header, batch in log.batches(
            part.stream, part.start, part.end, partition=part.partition
        )
    )
    sys.stdout.buffer.write(END_OF_STREAM)


def _range(log: LogClient, stream: str, partition: int, start: Position, end: Position) -> Range:
    first = first_offset(log, stream, partition, start)
    stop = resolve(log, stream, partition, end)
    if stop < first:
        raise click.UsageError(f"--to {end} is below --from {start}")
    return Range(stream, partition, first, stop)


def _rows(log: LogClient, part: Range) -> Iterator[_Row]:
    found = log.records(part.stream, part.start, part.end, partition=part.partition)
    return ((part.partition, offset, record) for offset, record in found)

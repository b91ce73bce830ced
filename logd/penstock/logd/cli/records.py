"""`penstock logd tail` and `penstock logd fetch`: records, for people and for programs.

What the clients of one reading command share: backoff from logd, and damage that was skipped.

A command that has begun to read goes on when logd comes back, and says once that it waits. With
`--skip-damaged` it reads past what logd calls damaged (`CORRUPT`, with the offset behind it).
Without a filter logd sends what is on its disk and does not look at it; so what came damaged is
asked for once more with one, for which logd looks at each frame.
"""

import heapq
import itertools
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click
import pyarrow as pa
from typing_extensions import override

from penstock.base.clock import monotonic_ns
from penstock.base.errors import DamagedDataError
from penstock.base.lazy_module import LazyModule
from penstock.base.pluralize import pluralize
from penstock.logd.cli.output import (
    LEVELS,
    Telemetry,
    check_form,
    json_option,
    line_text,
    record_json,
    record_pretty,
    record_text,
    safe,
)
from penstock.logd.cli.server import (
    PARTITIONS,
    POSITION,
    Position,
    asking,
    check_position,
    first_offset,
    partitions_of,
    resolve,
    server_option,
    stream_argument,
)
from penstock.logd.client import Access, Fetched, LogClient
from penstock.logd.client.calls import Call
from penstock.logd.client.following import RetryBackoff, passes
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.logd.format.batch import (
    SCHEMA_OF_DUMP,
    Record,
    decode_body,
    encode_body,
    stream_prefix,
)
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.rows import batch_records, slice_rows

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from penstock.logd.storage.reader import DamagedRanges
else:
    pc = LazyModule("pyarrow.compute")

Answer = TypeVar("Answer")
Function = TypeVar("Function", bound=Callable[..., object])

RETRY_S: Final = 60.0
"""Seconds that logd may be away from a command that reads a range; one that follows waits on."""

_MENDED_S: Final = 5.0
"""Seconds that a cluster gets to read a damaged frame from another replica before it is skipped."""
_MENDING_PAUSE_S: Final = 0.2
_RANGES_SHOWN: Final = 20
_ANY_SUBJECT: Final = ">"

skip_damaged_option: Final = click.option(
    "--skip-damaged",
    is_flag=True,
    help="Read past damaged records and report which; exit code 65 if there were any.",
)


class ReadSession:
    """Makes the clients of one command.

    Args:
        skip_damaged: Whether damage is skipped; else it is an error.
        retry_s: Seconds that logd may be away once a partition was read; None: for ever.
    """

    def __init__(self, *, skip_damaged: bool = False, retry_s: float | None = RETRY_S) -> None:
        self.skips = skip_damaged
        self.retry_s = retry_s
        self.may_be_mended = True
        self._lock = threading.Lock()
        self._skipped: dict[tuple[str, int], DamagedRanges] = {}

    def client(self, server: str, *, access: Access) -> LogClient:
        """A client; each is for one thread."""
        return _SessionReader(server, access=access, session=self)

    def skipped(self) -> list[dict[str, Any]]:
        """The ranges that were skipped: stream, partition, first and upto (exclusive)."""
        with self._lock:
            found = sorted(self._skipped.items())
        return [
            {"stream": stream, "partition": partition, "first": first, "upto": upto}
            for (stream, partition), ranges in found
            for first, upto in ranges.within(0, 1 << 63)
        ]

    def skip(self, stream: str, partition: int, first: int, upto: int) -> None:
        """Note that a range was skipped."""
        from penstock.logd.storage.reader import DamagedRanges

        with self._lock:
            ranges = self._skipped.setdefault((stream, partition), DamagedRanges())
        ranges.add(first, upto)

    def check_complete(self) -> None:
        """Report what was skipped.

        Raises:
            DamagedDataError: Something was.
        """
        check_none_skipped(self.skipped())


def check_none_skipped(skipped: list[dict[str, Any]]) -> None:
    """Report ranges that were skipped, as `ReadSession.skipped` gives them.

    Raises:
        DamagedDataError: There are some.
    """
    if not skipped:
        return
    count = sum(one["upto"] - one["first"] for one in skipped)
    where = [
        f"{one['stream']}/{one['partition']} from offset {one['first']} to {one['upto']}"
        for one in skipped[:_RANGES_SHOWN]
    ]
    more = len(skipped) - len(where)
    where += [f"{pluralize(more, 'range')} more"] if more else []
    raise DamagedDataError(
        f"{pluralize(count, 'damaged offset', form=',')} skipped: {', '.join(where)} (exclusive)",
        fix="everything else was read; see what is damaged: penstock logd gaps",
    )


class _SessionReader(LogClient):
    """A client of a session."""

    def __init__(self, server: str, *, access: Access, session: ReadSession) -> None:
        super().__init__(server, access=access)
        self._session = session
        self._has_read = False

    @override
    def ask(self, call: Call[Answer]) -> Answer:
        if not self._session.skips or call.request["api"] != "fetch":
            return self._patiently(call)
        try:
            return self._patiently(call)
        except CorruptError:  # one frame: of several, empty ones would be left out like a gap
            looked_at = {"subject": _ANY_SUBJECT, "bytes_max": 1, "wait_ms_max": 0}
            call = replace(call, request=looked_at | call.request | {"bytes_max": 1})
            return self._skipping(call)
        except RefusedError as error:
            return self._past(call, error)

    def _skipping(self, call: Call[Answer]) -> Answer:
        try:
            return self._patiently(call)
        except RefusedError as error:
            return self._past(call, error)

    def _past(self, call: Call[Answer], error: RefusedError) -> Answer:
        """An answer without frames that goes on behind the damage which a refusal names.

        Raises:
            RefusedError: It is about something else.
        """
        request = call.request
        mended = self._mended(call, error)
        if mended is not None:
            return mended
        first = int(request["offset"])
        upto = int(error.detail["next_offset"])
        answer, upto = self._behind(call, upto)
        self._session.skip(request["stream"], request.get("partition", 0), first, upto)
        assert isinstance(answer, Fetched)
        return replace(answer, frames=[], next_offset=upto)

    def _mended(self, call: Call[Answer], error: RefusedError) -> Answer | None:
        """The answer, if a cluster has it from another replica soon."""
        until_ns = monotonic_ns() + _MENDED_S * 1e9
        while error.code == "CORRUPT" and "next_offset" in error.detail:
            if not self._session.may_be_mended or not self._has_copies(call):
                return None
            if monotonic_ns() >= until_ns:
                self._session.may_be_mended = False
                return None
            time.sleep(_MENDING_PAUSE_S)
            try:
                return self._patiently(call)
            except RefusedError as again:
                error = again
        raise error

    def _has_copies(self, call: Call[Answer]) -> bool:
        request = call.request
        parts = self.stream(request["stream"]).partitions
        return any(len(p.replicas) > 1 for p in parts if p.partition == request.get("partition", 0))

    def _behind(self, call: Call[Answer], offset: int) -> tuple[Answer, int]:
        """The answer at an offset, or at the end of what can be read if that is below."""
        there = call.request | {"offset": offset, "bytes_max": 1, "wait_ms_max": 0}
        there.pop("bytes_min", None)
        try:
            return self._patiently(replace(call, request=there)), offset
        except RefusedError as error:
            if error.code == "CORRUPT" and "next_offset" in error.detail:
                return self._behind(call, int(error.detail["next_offset"]))
            if error.code != "OUT_OF_RANGE" or int(error.detail["latest"]) >= offset:
                raise
            return self._behind(call, int(error.detail["latest"]))

    def _patiently(self, call: Call[Answer]) -> Answer:
        backoff = RetryBackoff(self._session.retry_s, random.Random())  # noqa: S311 - jitter
        waits = False
        while True:
            try:
                answer = super().ask(call)
            except (UnavailableError, RefusedError) as error:
                if isinstance(error, RefusedError) and not passes(error):
                    raise
                if not self._has_read or not call.repeatable:
                    raise
                pause_s = backoff.pause(error, monotonic_ns())
                if not waits:
                    waits = True
                    click.echo(f"{safe(str(error))}; it is tried again", err=True)
                time.sleep(pause_s)
                continue
            if waits:
                click.echo("logd answers again; reading goes on", err=True)
            self._has_read = self._has_read or call.to is not None
            return answer


FETCH_BYTES: Final = 1024 * 1024
"""Bytes of frames fetched at a time: what a scan holds, besides what DuckDB does."""

ROWS: Final = 8192
"""Rows that are handed on together; fewer where they fill `FETCH_BYTES`."""

_Gathered = tuple[pa.RecordBatch, int]

QUERY_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("log_offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("value", pa.binary()),
        pa.field("text", pa.string()),
    ]
)
"""A stream's columns in SQL; DuckDB compares microseconds with its other times, and nothing else.

`text` is the value where that is UTF-8, else null. Of a header that is repeated the last one is
there, as text; bytes that are none are taken for Latin-1.
"""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of a partition, of one incarnation of its stream."""

    stream: str
    partition: int
    start: int
    end: int

    @property
    def count(self) -> int:
        """Offsets in it."""
        return max(self.end - self.start, 0)


class StreamSource:
    """A stream that can be read again and again, by several readers at a time.

    Args:
        connect: Makes a client for one reader.
        ranges: Ranges to read, partition by partition.
        advance: Told how many records, and bytes, have come.

    Attributes:
        error: Error of the last failed read; DuckDB only passes its message on.
    """

    def __init__(
        self,
        connect: Callable[[], LogClient],
        ranges: list[Range],
        advance: Callable[[int, int], None],
    ) -> None:
        self.error: Exception | None = None
        self._connect = connect
        self._ranges = ranges
        self._advance = advance

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(QUERY_SCHEMA, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records in `QUERY_SCHEMA`."""
        try:
            with self._connect() as log:
                for part in self._ranges:
                    for rows, size in gathered(read_range(log, part)):
                        self._advance(rows.num_rows, size)
                        yield _for_query(part.partition, rows)
        except Exception as error:
            self.error = error
            raise


def read_range(log: LogClient, part: Range) -> Iterator[tuple[FrameHeader, pa.RecordBatch]]:
    """The rows of a range, frame by frame; frames without any are left out."""
    batches = log.batches(
        part.stream, part.start, part.end, partition=part.partition, bytes_max=FETCH_BYTES
    )
    for header, batch in batches if part.count else ():
        rows = slice_rows(header, batch, part.start, part.end)
        if rows.num_rows:
            yield header, rows


def gathered(frames: Iterator[tuple[FrameHeader, pa.RecordBatch]]) -> Iterator[_Gathered]:
    """Frames put together, in `SCHEMA_OF_DUMP`, and how many bytes they had.

    A stream of a record to a frame would else be read by DuckDB a record at a time.
    """
    parts: list[pa.RecordBatch] = []
    count = size = 0
    for header, rows in frames:
        columns = [offsets_of(header, rows), *rows.columns[1:]]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA_OF_DUMP))
        count, size = count + rows.num_rows, size + header.body_length
        if count >= ROWS or size >= FETCH_BYTES:
            yield _one(parts), size
            parts, count, size = [], 0, 0
    if parts:
        yield _one(parts), size


def _one(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _for_query(partition: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows),
            rows.column("offset"),
            rows.column("timestamp").cast(QUERY_SCHEMA.field("timestamp").type, safe=False),
            rows.column("timestamp").cast(pa.int64()),
            rows.column("subject"),
            rows.column("key"),
            _headers(rows.column("headers")),
            rows.column("value"),
            _text(rows.column("value")),
        ],
        schema=QUERY_SCHEMA,
    )


def offsets_of(header: FrameHeader, rows: pa.RecordBatch) -> pa.Array:
    """The offsets of a frame's rows."""
    return pc.add(rows.column("offset_delta").cast(pa.int64()), header.base_offset)


def _headers(column: pa.Array) -> pa.Array:
    """Headers whose names are unique, for DuckDB's maps."""
    kind = QUERY_SCHEMA.field("headers").type
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if (unique := _unique_headers(column)) is not None:
        return unique
    pairs = [
        None if found is None else list({name: _words(value) for name, value in found}.items())
        for found in column.to_pylist()
    ]
    return pa.array(pairs, kind)


def _unique_headers(column: pa.MapArray) -> pa.Array | None:
    """Headers without a copy; None where a name comes twice in a record, or a value is no UTF-8."""
    listed = column.cast(pa.list_(column.type.field(0)))
    rows, names = pc.list_parent_indices(listed), pc.list_flatten(listed).field(0)
    named = pa.table({"row": rows, "name": names})
    if named.group_by(["row", "name"]).aggregate([]).num_rows < named.num_rows:
        return None
    try:
        return column.cast(QUERY_SCHEMA.field("headers").type)
    except pa.ArrowInvalid:
        return None


def _text(column: pa.Array) -> pa.Array:
    """Values that are UTF-8, as text without a copy where all of them are."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in column.to_pylist()], pa.string())


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _words(value: bytes) -> str:
    text = _decoded(value)
    return value.decode("latin-1") if text is None else text


_FOLLOW_WAIT_MS: Final = 5_000
_TURN_WAIT_MS: Final = 200
"""Maximum milliseconds of a fetch from one of several partitions, while the others wait."""

_Row: TypeAlias = tuple[int, int, Record]
"""Partition, offset and record."""

END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Bytes that end an Arrow IPC stream."""


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
    """Filter and options of `tail`.

    Attributes:
        headers: Headers that a record must have, with the value if one is named.
        level: The least severe level that is shown; records without a severity are not.
        service: The service whose records are shown.
        grep: Pattern that a record's line must match.
    """

    stream: str
    follow: bool
    subject: str | None
    headers: tuple[tuple[str, bytes | None], ...]
    level: str | None
    service: str | None
    grep: re.Pattern[str] | None

    def has(self, record: Record) -> bool:
        """Return whether a record passes the filter."""
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
        """Yield all rows up to the end."""
        while self._offset < self._end:
            yield from self.fetch(wait_ms=0)

    def fetch(self, *, wait_ms: int) -> list[_Row]:
        """Fetch the next rows."""
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
@click.option(
    "--from", "start", type=POSITION, default="earliest", show_default=True,
    help="The first record: an offset, a time or how long ago.",
)  # fmt: skip
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

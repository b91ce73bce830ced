"""`penstock logd query`: SQL over streams, by DuckDB; records come as it asks for them.

DuckDB gets each stream as an object with `__arrow_c_stream__` and asks it for batches at each scan,
so nothing is copied or spilled, and a stream may be named twice. Each scan has its own client.
The end of each partition is noted before the query runs: every scan sees the same records. What is
read is said by `--from` and `--to` and never by the WHERE, which only filters: bounds that were
read out of the SQL would depend on how it is written. The SQL reaches no file, no network and no
extension, since it may be pasted from anywhere. The column is `log_offset`: `offset` is a keyword.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import click
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.base.extras import install_command
from penstock.base.files import atomic_writer, sync_directories
from penstock.base.pluralize import pluralize
from penstock.logd.cli.output import (
    Progress,
    echo_json,
    human_bytes,
    json_option,
    json_row,
    record_json,
    safe,
    safe_lines,
    table,
    text_row,
)
from penstock.logd.cli.records import (
    QUERY_SCHEMA,
    Range,
    ReadSession,
    StreamSource,
    gathered,
    offsets_of,
    read_range,
    skip_damaged_option,
)
from penstock.logd.cli.server import (
    PARTITIONS,
    POSITION,
    Position,
    access,
    asking,
    check_position,
    clients,
    first_offset,
    partitions_of,
    resolve,
    server_option,
    stream_argument,
)
from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError
from penstock.logd.format.batch import SCHEMA_OF_DUMP
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.rows import batch_records
from penstock.service import ExitCode, ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError
from penstock.service.cli import IntRange

_ROWS: Final = 1000
"""Rows that are laid out as one table."""

_SETTINGS: Final = (
    "TimeZone = 'UTC'",
    "python_enable_replacements = false",  # else a name could mean a variable of this program
    "enable_external_access = false",
    "lock_configuration = true",
)
_PYTHON: Final = re.compile(r"\. Detail: Python exception:.*", re.DOTALL)


class OutOfMemoryError(ServiceError):
    """A query needs more memory than it may take (exit code 71)."""

    exit_code = ExitCode.MEMORY


@dataclass(frozen=True, slots=True)
class _Scope:
    """The partitions and the range that a query reads."""

    start: Position
    end: Position
    partitions: tuple[int, ...]


@click.command(
    epilog="""\b
    Examples:
      penstock logd query "SELECT subject, count(*) FROM logs GROUP BY ALL" --from 1h
      penstock logd query "SELECT log_offset, text->>'$.body' FROM logs
                           WHERE headers['level'] = 'error'" --from 5m
    """
)
@click.argument("query", metavar="SELECT")
@click.option(
    "--from",
    "start",
    type=POSITION,
    show_default="earliest",
    help="Read no records before: an offset, a time, or 15m ago.",
)
@click.option(
    "--to",
    "end",
    type=POSITION,
    show_default="latest",
    help="Nor from here on.",
)
@click.option(
    "--partition",
    "partitions",
    type=IntRange(min=0),
    multiple=True,
    help="Only this partition; repeatable. Default: all.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    default="512MB",
    show_default=True,
    help="What sorting, grouping and joining may take.",
)
@skip_damaged_option
@json_option("One JSON object a row.")
@server_option
def query(  # noqa: PLR0913 - what is asked for, of what, and how
    *,
    query: str,
    start: Position | None,
    end: Position | None,
    partitions: tuple[int, ...],
    memory: str,
    skip_damaged: bool,
    as_json: bool,
    server: str,
) -> None:
    """Run one SELECT over streams, which are its tables.

    Columns: partition, log_offset, timestamp, timestamp_ns, subject, key, headers (a map), value,
    and text, the value where it is UTF-8. A stream whose name is no plain word stands in double
    quotes. What there was when the query began is read, and passes through: nothing is copied.

    --from and --to say the range that is read, offsets or times; the WHERE filters what came and
    saves no reading. Without either, all of the streams is read, and a line on stderr says so.
    Files cannot be reached from SQL.
    """
    session, let_in = ReadSession(skip_damaged=skip_damaged), access()
    connect = partial(clients().log or session.client, server, access=let_in)
    with (
        asking(server, session.client) as log,
        _engine(memory) as engine,
        Progress("reading") as progress,
    ):
        scope = _Scope(start or "earliest", end or "latest", partitions)
        names = _tables_of(engine, query)
        if names and start is None and end is None:
            click.echo(
                f"reading all of {', '.join(map(safe, names))}; --from and --to read a part",
                err=True,
            )
        sources = _register(engine, log, names, scope, (connect, progress))
        batches = _run(engine, query, sources)
        if as_json:
            for batch in batches:
                progress.hide()
                for row in json_row(batch):
                    echo_json(row)
        else:
            _show(batches, progress)
    session.check_complete()


def _show(batches: Iterator[pa.RecordBatch], progress: Progress) -> None:
    """Lay rows out, so many at a time: where there are none, the columns."""
    held: list[tuple[object, ...]] = []
    names: list[str] = []
    shown = False
    for batch in batches:
        names = batch.schema.names
        held += text_row(batch)
        if len(held) >= _ROWS:
            progress.hide()
            click.echo(table(names, held))
            held, shown = [], True
    progress.hide()
    if held or not shown:
        click.echo(table(names, held))


@contextmanager
def _engine(memory: str) -> Iterator[Any]:
    """DuckDB in memory, that reaches no files and loads nothing."""
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ServiceUnavailableError(
            "penstock logd query needs duckdb, which is not installed",
            fix=install_command("query"),
        ) from None
    try:
        engine = duckdb.connect(":memory:", config={"memory_limit": memory, "threads": "2"})
    except duckdb.Error as error:
        raise click.BadParameter(_words(error), param_hint="--memory") from None
    for setting in _SETTINGS:
        engine.execute(f"SET {setting}")
    try:
        yield engine
    except duckdb.OutOfMemoryException as error:
        raise OutOfMemoryError(
            _words(error), fix="give it more with --memory, or less to read with --from and --to"
        ) from None
    except duckdb.Error as error:
        message = f"the query cannot be run: {_words(error)}"
        if isinstance(error, duckdb.BinderException):  # DuckDB names only columns that sound alike
            message += f"\nA stream's columns: {', '.join(QUERY_SCHEMA.names)}"
        raise click.UsageError(message) from None
    finally:
        engine.close()


def _tables_of(engine: Any, text: str) -> list[str]:
    """Name the tables of a SELECT, each once: streams, or nothing that is there.

    DuckDB's `get_table_names` would bind the statement, which its tables are needed for.

    Raises:
        UsageError: It is none, or more than one.
    """
    found = orjson.loads(_value(engine, "SELECT json_serialize_sql(?)", text))
    if found.get("error"):
        raise click.UsageError(f"give one SELECT: {safe_lines(str(found.get('error_message')))}")
    if len(found["statements"]) != 1:
        raise click.UsageError(f"give one SELECT: these are {len(found['statements'])} statements")
    names, own = dict[str, None](), set[str]()
    for node in _walk(found):
        if node.get("type") == "BASE_TABLE" and not node.get("schema_name"):
            names[str(node["table_name"])] = None
        if isinstance(node.get("cte_map"), dict):
            own |= {str(item["key"]) for item in node["cte_map"].get("map", ())}
    return [name for name in names if name not in own]


def _walk(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a tree, outer ones first."""
    pending = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(reversed(item.values()))
        elif isinstance(item, list):
            pending.extend(reversed(item))


def _value(engine: Any, sql: str, *arguments: str) -> Any:
    """The one value that a statement gives."""
    ((value,),) = engine.execute(sql, list(arguments)).fetchall()
    engine.fetchall()  # from 2.0 on a connection is in use until a fetch finds nothing
    return value


def _register(
    engine: Any,
    log: LogClient,
    names: list[str],
    scope: _Scope,
    way: tuple[Callable[[], LogClient], Progress],
) -> list[StreamSource]:
    """Make a table of each stream that the query names.

    Args:
        engine: DuckDB.
        log: Says what there is.
        names: Names of the streams.
        scope: Ranges to read.
        way: Makes the client of a reader, and shows how far it is.

    Raises:
        RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
    """
    folded = {name.lower() for name in names}
    if len(folded) < len(names):
        raise click.UsageError("streams whose names differ only by case cannot be told apart")
    sources = []
    connect, progress = way
    for name in names:
        ranges = [
            _within(log, name, partition, scope)
            for partition in partitions_of(log, name, scope.partitions)
        ]
        source = StreamSource(connect, ranges, progress.advance)
        engine.register(name, source)
        sources.append(source)
    return sources


def _within(log: LogClient, name: str, partition: int, scope: _Scope) -> Range:
    """Return the range of a partition within the options."""
    first, last = log.offsets(name, partition)
    if scope.start != "earliest":
        first = max(first, resolve(log, name, partition, scope.start))
    if scope.end != "latest":
        last = min(last, resolve(log, name, partition, scope.end))
    return Range(name, partition, first, last)


def _run(engine: Any, text: str, sources: list[StreamSource]) -> Iterator[pa.RecordBatch]:
    """The rows of the result; a batch without any comes last, and says which columns there are."""
    import duckdb

    try:
        reader = engine.sql(text).to_arrow_reader(_ROWS)
        yield from reader
        yield pa.RecordBatch.from_pylist([], schema=reader.schema)
    except (duckdb.Error, pa.ArrowException) as error:
        failed = next((source.error for source in sources if source.error), None)
        if isinstance(failed, LogdError):
            raise failed from None
        if isinstance(error, pa.ArrowNotImplementedError):
            message = f"the result has a type that is not shown: {_words(error)}"
            raise click.UsageError(message) from None
        raise


def _words(error: Exception) -> str:
    """Return DuckDB's message without the traceback that it adds to a reader's failure."""
    return safe_lines(_PYTHON.sub("", str(error)))


_SUFFIXES: Final = {
    ".arrow": "arrow",
    ".feather": "arrow",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}
_GROUP_ROWS: Final = 64 * 1024
_GROUP_BYTES: Final = 64 * 1024 * 1024
"""A row group of Parquet has so many rows, or bytes: they are in memory until it is written."""

_Rows = Iterator[tuple[FrameHeader, pa.RecordBatch]]


class OutputError(ServiceError):
    """The file cannot be written (exit code 74)."""

    exit_code = ExitCode.IO


@dataclass(frozen=True, slots=True)
class _Asked:
    """Options of an export."""

    stream: str
    partitions: tuple[int, ...]
    start: Position
    end: Position


@click.command(
    epilog="""\b
    Examples:
      penstock logd export logs -o logs.parquet --from 2026-01-31 --to 2026-02-01
      penstock logd export prices --partition 3 -o prices-3.ndjson"""
)
@stream_argument()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file; it appears when it is whole.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["arrow", "parquet", "ndjson"]),
    help="An Arrow IPC file, Parquet (zstd), or JSON lines. Default: by the file's name.",
)
@PARTITIONS
@click.option(
    "--from", "start", type=POSITION, default="earliest", show_default=True,
    help="The first record: an offset, a time or how long ago.",
)  # fmt: skip
@click.option("--to", "end", type=POSITION, default="latest", show_default=True, help="Exclusive.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@skip_damaged_option
@json_option("Say what was written as JSON.")
@server_option
def export(
    *,
    output: Path,
    form: str | None,
    force: bool,
    skip_damaged: bool,
    as_json: bool,
    server: str,
    **asked: Any,
) -> None:
    """Write a range of STREAM to a file.

    An export that is cut short leaves nothing, and is not resumed: begin again, or in parts by
    --from and --to. Columns: offset, timestamp, subject, key, headers, reply, value; with several
    partitions, which come one after the other, partition before them.
    """
    chosen = form or _SUFFIXES.get(output.suffix)
    if chosen is None:
        raise click.UsageError(f"{output.name} does not say the format: give --format")
    write = {"arrow": _write_arrow, "parquet": _write_parquet, "ndjson": _write_ndjson}[chosen]
    session = ReadSession(skip_damaged=skip_damaged)
    with asking(server, session.client) as log:
        parts = _ranges(log, _Asked(**asked))
        count = sum(part.count for part in parts)
        with _file(output, force=force) as file, Progress("exporting", count) as progress:
            write(file, _Reading(log, parts, progress))
            records, size = progress.records, file.tell()
    stream = parts[0].stream
    if as_json:
        written = {"records": records, "bytes": size, "file": str(output), "format": chosen}
        more = {"skipped": session.skipped()} if skip_damaged else {}
        echo_json({"stream": stream} | _extent(parts) | written | more)
        session.check_complete()
        return
    where = ", ".join(
        f"{part.stream}/{part.partition} from offset {part.start} to {part.end}" for part in parts
    )
    amount = pluralize(records, "record", form=",")
    click.echo(f"{amount} of {where}: {output} ({human_bytes(size)})")
    session.check_complete()


def _ranges(log: LogClient, asked: _Asked) -> list[Range]:
    """The ranges as they are now.

    Raises:
        UsageError: An offset is given for several partitions, or it ends before it begins.
        RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `OUT_OF_RANGE`.
    """
    numbers = partitions_of(log, asked.stream, asked.partitions)
    for option, position in (("--from", asked.start), ("--to", asked.end)):
        check_position(position, len(numbers), option)
    return [_range(log, asked, number) for number in numbers]


def _range(log: LogClient, asked: _Asked, partition: int) -> Range:
    stream = asked.stream
    start = first_offset(log, stream, partition, asked.start)
    end = min(resolve(log, stream, partition, asked.end), log.offsets(stream, partition).end)
    if end < start:
        raise click.UsageError(f"--to {asked.end} is below --from {asked.start}")
    return Range(stream, partition, start, end)


def _extent(parts: list[Range]) -> dict[str, Any]:
    found = [{"partition": one.partition, "start": one.start, "end": one.end} for one in parts]
    return found[0] if len(found) == 1 else {"partitions": found}


@dataclass(frozen=True, slots=True)
class _Reading:
    """The ranges that an export writes, one partition after the other."""

    log: LogClient
    parts: list[Range]
    progress: Progress

    @property
    def several(self) -> bool:
        """True if each row names its partition."""
        return len(self.parts) > 1

    def rows(self, part: Range) -> _Rows:
        """The rows of one."""
        for header, batch in read_range(self.log, part):
            yield header, batch
            self.progress.advance(batch.num_rows, header.body_length)

    def schema(self) -> pa.Schema:
        """The columns, with what the file holds of which stream."""
        facts = {"stream": self.parts[0].stream} | _extent(self.parts)
        columns = [pa.field("partition", pa.int32())] if self.several else []
        return pa.schema([*columns, *SCHEMA_OF_DUMP]).with_metadata(
            {f"penstock.{name}": _export_words(value) for name, value in facts.items()}
        )

    def table_row(self, part: Range, columns: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
        """Rows of a partition as the file has them."""
        if self.several:
            number = pa.scalar(part.partition, pa.int32())
            columns = [pa.repeat(number, len(columns[0])), *columns]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _export_words(value: object) -> str:
    return orjson.dumps(value).decode() if isinstance(value, list) else str(value)


@contextmanager
def _file(output: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """A file that is made under another name, and takes its own when it is whole and on disk.

    Raises:
        UsageError: Another file is there.
        OutputError: The disk does not take it.
    """
    partial = output.with_name(output.name + ".partial")
    if output.exists() and not force:
        raise click.UsageError(f"{output} is there: choose another file, or give --force")
    if force:
        partial.unlink(missing_ok=True)
    try:
        with atomic_writer(output, temporary=partial, durable=False) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        message = f"{partial} is there: an export writes it, or one was killed"
        raise click.UsageError(f"{message}; if none runs, give --force") from None
    except OSError as error:
        raise _output_error(error, output) from None
    with suppress(OSError):  # not every file system that people export to can
        sync_directories([output.parent])


def _output_error(error: OSError, output: Path) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(
        f"{output} cannot be written: {reason}", fix="see to the disk, or write elsewhere"
    )


def _write_arrow(file: IO[bytes], reading: _Reading) -> None:
    schema = reading.schema()
    with pa.ipc.new_file(file, schema) as writer:
        for part in reading.parts:
            for batch, _ in gathered(reading.rows(part)):
                writer.write_batch(reading.table_row(part, batch.columns, schema))


def _write_parquet(file: IO[bytes], reading: _Reading) -> None:
    schema = reading.schema()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in reading.parts:
            _write_groups(writer, reading, part, schema)


def _write_groups(
    writer: pq.ParquetWriter, reading: _Reading, part: Range, schema: pa.Schema
) -> None:
    group: list[pa.RecordBatch] = []
    count = size = 0
    for header, batch in reading.rows(part):
        columns = [offsets_of(header, batch), *batch.columns[1:]]
        group.append(reading.table_row(part, columns, schema))
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= _GROUP_ROWS or size >= _GROUP_BYTES:
            writer.write_table(pa.Table.from_batches(group))
            group, count, size = [], 0, 0
    if group:
        writer.write_table(pa.Table.from_batches(group))


def _write_ndjson(file: IO[bytes], reading: _Reading) -> None:
    for part in reading.parts:
        number = part.partition if reading.several else None
        for header, batch in reading.rows(part):
            rows = batch_records(header, batch)
            lines = (record_json(offset, record, number) for offset, record in rows)
            file.write("".join(f"{line}\n" for line in lines).encode())

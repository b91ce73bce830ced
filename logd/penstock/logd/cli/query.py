"""`penstock logd query`: SQL over streams, by DuckDB; records come as it asks for them.

What a SELECT reads, by the tree that DuckDB's parser makes of it: streams, columns, bounds.

    {"error": false, "statements": [{"node": {"type": "SELECT_NODE", "from_table": {...}, ...}}]}

Bounds are only taken where they hold of every row that the statement can see of a stream: the
stream is named once, alone in the FROM of its SELECT, and the bound is one of the conditions that
the WHERE joins by AND. Whatever is not understood is no bound: everything is read then, and DuckDB
filters. It filters by the bounds again, so they need only never be too narrow.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
    safe_lines,
    table,
    text_row,
)
from penstock.logd.cli.records import (
    QUERY_SCHEMA,
    Range,
    ReadSession,
    StreamSource,
    clip,
    gathered,
    offsets_of,
    partitions_of,
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
    resolve,
    server_option,
    stream_argument,
)
from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.rows import batch_records
from penstock.logd.offline.dump import SCHEMA_OF_DUMP
from penstock.service import ExitCode, ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError

Tree = dict[str, Any]
Evaluate = Callable[[Tree], int | None]
"""The nanoseconds since 1970 that an expression without columns means; None: not known."""

OFFSET: Final = "log_offset"
TIME: Final = "timestamp"

_FLIPPED: Final = {
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_EQUAL": "COMPARE_EQUAL",
}
_PLAIN: Final = {"CONSTANT", "CAST", "TYPE", "FUNCTION"}
_FUNCTIONS: Final = {
    "+", "-", "now", "get_current_timestamp", "transaction_timestamp", "today", "current_date",
    "trunc", "to_seconds", "to_minutes", "to_hours", "to_days", "to_weeks",
    "date_trunc", "to_timestamp",
}  # fmt: skip
"""Functions that give the same for every row of a statement."""


@dataclass(slots=True)
class Bounds:
    """What need be read of a stream.

    Attributes:
        start: First offset; 0: from its beginning.
        end: Exclusive; None: to its end.
        time_ns: Earliest time of a record.
    """

    start: int = 0
    end: int | None = None
    time_ns: int | None = None


@dataclass(slots=True)
class Reading:
    """What a SELECT reads.

    Attributes:
        tables: Names, in the order of the text; a stream's or another's.
        columns: Names, in lower case; None: all.
        bounds: Of the tables for which some are known.
    """

    tables: list[str] = field(default_factory=list)
    columns: set[str] | None = field(default_factory=set)
    bounds: dict[str, Bounds] = field(default_factory=dict)


def reading_of(tree: Tree, evaluate: Evaluate) -> Reading:
    """Find what the statements of a tree read."""
    found, counts = Reading(), Counter[str]()
    ctes: set[str] = set()
    for node in _walk(tree):
        if node.get("type") == "BASE_TABLE" and not node.get("schema_name"):
            counts[str(node["table_name"])] += 1
        elif node.get("class") == "STAR":
            found.columns = None
        elif node.get("class") == "COLUMN_REF" and found.columns is not None:
            found.columns |= {str(name).lower() for name in node["column_names"]}
        if isinstance(node.get("cte_map"), dict):
            ctes |= {str(item["key"]) for item in node["cte_map"].get("map", ())}
    found.tables = [name for name in counts if name not in ctes]
    for node in _walk(tree):
        name = _only_table(node)
        if name in found.tables and counts[name] == 1:
            found.bounds[name] = _bounds(node["where_clause"], evaluate)
    return found


def _walk(tree: Any) -> Iterator[Tree]:
    """Every object of a tree, outer ones first."""
    pending = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(reversed(item.values()))
        elif isinstance(item, list):
            pending.extend(reversed(item))


def _only_table(node: Tree) -> str:
    """The table that a SELECT has for itself, with a WHERE; empty: there is no such."""
    table = node.get("from_table")
    if node.get("type") != "SELECT_NODE" or not isinstance(table, dict):
        return ""
    plain = table.get("type") == "BASE_TABLE" and not table.get("schema_name")
    changed = table.get("sample") or table.get("column_name_alias") or table.get("at_clause")
    return str(table["table_name"]) if plain and not changed and node.get("where_clause") else ""


def _bounds(where: Tree, evaluate: Evaluate) -> Bounds:
    bounds, pending = Bounds(), [where]
    while pending:
        part = pending.pop()
        match part.get("type"):
            case "CONJUNCTION_AND":
                pending.extend(part["children"])
            case "COMPARE_BETWEEN":
                column = _column(part["input"])
                _narrow(bounds, column, "COMPARE_GREATERTHANOREQUALTO", part["lower"], evaluate)
                _narrow(bounds, column, "COMPARE_LESSTHANOREQUALTO", part["upper"], evaluate)
            case kind if kind in _FLIPPED:
                left, right = part["left"], part["right"]
                _narrow(bounds, _column(left), kind, right, evaluate)
                _narrow(bounds, _column(right), _FLIPPED[kind], left, evaluate)
            case _:
                pass
    return bounds


def _column(node: Tree) -> str:
    names = node.get("column_names") if node.get("class") == "COLUMN_REF" else None
    return str(names[-1]).lower() if names else ""


def _narrow(bounds: Bounds, column: str, kind: str, value: Tree, evaluate: Evaluate) -> None:
    """Take one comparison of a column with a value into account."""
    above = kind in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO", "COMPARE_EQUAL")
    if column == OFFSET and (number := _integer(value)) is not None:
        if above:
            bounds.start = max(bounds.start, number + (kind == "COMPARE_GREATERTHAN"))
        if kind in ("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO", "COMPARE_EQUAL"):
            end = number + (kind != "COMPARE_LESSTHAN")
            bounds.end = end if bounds.end is None else min(bounds.end, end)
    elif column == TIME and above and _is_constant(value):
        time_ns = evaluate(value)
        if time_ns is not None:
            bounds.time_ns = max(time_ns, bounds.time_ns or time_ns)


def _integer(node: Tree) -> int | None:
    literal = node.get("literal")
    if node.get("class") != "CONSTANT" or not isinstance(literal, dict):
        return None
    text = str(literal.get("text"))
    return int(text) if literal.get("kind") == "INTEGER" and text.isdigit() else None


def _is_constant(node: Tree) -> bool:
    return all(
        part["class"] in _PLAIN
        and (part["class"] != "FUNCTION" or part.get("function_name") in _FUNCTIONS)
        for part in _walk(node)
        if "class" in part
    )


_ROWS: Final = 1000
"""Rows that are laid out as one table."""

_SETTINGS: Final = (
    "TimeZone = 'UTC'",
    "python_enable_replacements = false",  # else a name could mean a variable of this program
    "enable_external_access = false",
    "lock_configuration = true",
)
_EVALUATE: Final = "SELECT epoch_ns(CAST(0 AS TIMESTAMP WITH TIME ZONE))"
_PYTHON: Final = re.compile(r"\. Detail: Python exception:.*", re.DOTALL)


class OutOfMemoryError(ServiceError):
    """A query needs more memory than it may take (exit code 71)."""

    exit_code = ExitCode.MEMORY


@dataclass(frozen=True, slots=True)
class _Scope:
    """What of the streams is read at most."""

    start: Position
    end: Position
    partitions: tuple[int, ...]


@click.command(
    epilog="""\b
    Examples:
      penstock logd query "SELECT subject, count(*) FROM logs GROUP BY ALL" --from 1h
      penstock logd query "SELECT log_offset, text->>'$.body' FROM logs
                           WHERE timestamp > now() - INTERVAL 5 MINUTES
                             AND headers['level'] = 'error'"
    """
)
@click.argument("query", metavar="SELECT")
@click.option(
    "--from",
    "start",
    type=POSITION,
    default="earliest",
    show_default=True,
    help="Read no records before: an offset, a time, or 15m ago.",
)
@click.option(
    "--to",
    "end",
    type=POSITION,
    default="latest",
    show_default=True,
    help="Nor from here on.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
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
    start: Position,
    end: Position,
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

    Bounds of log_offset and lower ones of timestamp in the WHERE save reading what is outside, if
    the stream is alone in its FROM; --from and --to always do. Files cannot be reached from SQL.
    """
    session, let_in = ReadSession(skip_damaged=skip_damaged), access()
    connect = partial(clients().log or session.client, server, access=let_in)
    with (
        asking(server, session.client) as log,
        _engine(memory) as engine,
        Progress("reading") as progress,
    ):
        reading = _read_sql(engine, query)
        scope = _Scope(start, end, partitions)
        sources = _register(engine, log, reading, scope, (connect, progress))
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


def _read_sql(engine: Any, text: str) -> Reading:
    """Find what a SELECT reads.

    Raises:
        UsageError: It is none, or more than one.
    """
    tree = _tree(engine, text)
    if tree.get("error"):
        raise click.UsageError(f"give one SELECT: {safe_lines(str(tree.get('error_message')))}")
    if len(tree["statements"]) != 1:
        raise click.UsageError(f"give one SELECT: these are {len(tree['statements'])} statements")
    template = _tree(engine, _EVALUATE)

    def evaluate(expression: dict[str, Any]) -> int | None:
        (call,) = template["statements"][0]["node"]["select_list"]
        call["arguments"][0]["expression"]["child"] = expression
        import duckdb

        try:
            sql = _value(engine, "SELECT json_deserialize_sql(?)", orjson.dumps(template).decode())
            time_ns = _value(engine, sql)
        except duckdb.Error:
            return None
        return time_ns if isinstance(time_ns, int) else None

    return reading_of(tree, evaluate)


def _tree(engine: Any, text: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(_value(engine, "SELECT json_serialize_sql(?)", text))
    return found


def _value(engine: Any, sql: str, *arguments: str) -> Any:
    """The one value that a statement gives."""
    ((value,),) = engine.execute(sql, list(arguments)).fetchall()
    engine.fetchall()  # from 2.0 on a connection is in use until a fetch finds nothing
    return value


def _register(
    engine: Any,
    log: LogClient,
    reading: Reading,
    scope: _Scope,
    way: tuple[Callable[[], LogClient], Progress],
) -> list[StreamSource]:
    """Make a table of each stream that the query names.

    Args:
        engine: DuckDB.
        log: Says what there is.
        reading: What the query reads.
        scope: What is read at most.
        way: Makes the client of a reader, and shows how far it is.

    Raises:
        RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
    """
    folded = {name.lower() for name in reading.tables}
    if len(folded) < len(reading.tables):
        raise click.UsageError("streams whose names differ only by case cannot be told apart")
    sources = []
    connect, progress = way
    for name in reading.tables:
        bounds = reading.bounds.get(name, Bounds())
        ranges = [
            _within(log, name, partition, bounds, scope)
            for partition in partitions_of(log, name, scope.partitions)
        ]
        source = StreamSource(connect, ranges, reading.columns, progress.advance)
        engine.register(name, source)
        sources.append(source)
    return sources


def _within(log: LogClient, name: str, partition: int, bounds: Bounds, scope: _Scope) -> Range:
    """What the query's bounds and the options leave of a partition."""
    start, end = bounds.start, bounds.end
    if scope.start != "earliest":
        start = max(start, resolve(log, name, partition, scope.start))
    if scope.end != "latest":
        stop = resolve(log, name, partition, scope.end)
        end = stop if end is None else min(end, stop)
    return clip(log, name, partition, start, end, bounds.time_ns)


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
    """What DuckDB says, without the traceback that it adds to a reader's failure."""
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
    """What to export."""

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
@click.option("--from", "start", type=POSITION, default="earliest", show_default=True)
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
    """What is written: one partition after the other."""

    log: LogClient
    parts: list[Range]
    progress: Progress

    @property
    def several(self) -> bool:
        """Whether each row says of which partition it is."""
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

"""`penstock logd query`: SQL over streams, by DuckDB; records come as it asks for them."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click
import orjson
import pyarrow as pa

from penstock.base.extras import install_command
from penstock.logd.cli.cells import json_row, text_row
from penstock.logd.cli.outcome import json_option
from penstock.logd.cli.positions import POSITION, Position, resolve
from penstock.logd.cli.progress import Progress
from penstock.logd.cli.read_session import ReadSession, skip_damaged_option
from penstock.logd.cli.server import access, asking, clients, server_option
from penstock.logd.cli.source import QUERY_SCHEMA, Range, StreamSource, clip, partitions_of
from penstock.logd.cli.sql import Bounds, Reading, reading_of
from penstock.logd.cli.tables import table
from penstock.logd.cli.text import echo_json, safe_lines
from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError
from penstock.service import ExitCode, ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError

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

"""Steps `sql` as Spark runs them, and the tables and functions of a job that they name."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from penstock.router.columns.passthrough import PASSTHROUGH
from penstock.router.columns.schema import view
from penstock.router.job.config import JobConfig, Table
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.job.route_task import ROUTE_COLUMN
from penstock.router.transforms.fields import ENVELOPE
from penstock.router.transforms.sql import RECORDS, SQL_COLUMN, Select, parse_select

TABLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum bytes of a table: each batch sends it to every executor."""

_KNOWN: Final = {column.name: column for column in view("records").columns}
_OWN: Final = frozenset({ROUTE_COLUMN, SQL_COLUMN, PASSTHROUGH})
_OF_OTHERS: Final = frozenset({"Aggregate", "Window", "Generate"})
"""Nodes of Spark's plans that need other records, or make several rows of one."""

_NO_GROUP: Final = "[MISSING_GROUP_BY]"
"""Spark's condition for an aggregate beside columns."""


def prepare_session(job: JobConfig, spark: SparkSession) -> None:
    """Make the job's tables and functions known to a session.

    Raises:
        ConfigError: One cannot be had, or a table is too large.
    """
    for name, path in job.udfs.items():
        module, _, attribute = path.partition(":")
        try:
            spark.udf.register(name, getattr(import_module(module), attribute))
        except (ImportError, AttributeError, TypeError, PySparkException) as error:
            raise WrongKeyError(
                f"udfs.{name}: {path}: {error}",
                fix="name a function that pyspark.sql.functions.udf made, in a module that this"
                " Python and that of executors can import",
            ) from error
    for name, table in job.tables.items():
        try:
            frame = _frame_of(table, spark)
            rows = frame.toArrow()
        except PySparkException as error:
            raise WrongKeyError(
                f"tables.{name}: {_first_line(error)}",
                fix="correct the keys of the table; format and options are Spark's",
            ) from None
        if rows.nbytes > TABLE_BYTES_MAX:
            raise WrongKeyError(
                f"tables.{name}: it has {rows.nbytes:,} bytes, and at most {TABLE_BYTES_MAX:,} can"
                " be sent to executors with each batch",
                fix="name a table with the columns and rows that the job needs",
            )
        spark.createDataFrame(rows, frame.schema).createOrReplaceTempView(name)


def _frame_of(table: Table, spark: SparkSession) -> DataFrame:
    reader = spark.read.options(**table.options)
    if table.columns is not None:
        reader = reader.schema(table.columns)
    if table.path is None:
        assert table.table is not None, "one of both, as the settings say"
        return reader.table(table.table)
    return reader.format(table.format).load(table.path)


def statements_to(sink: str, job: JobConfig) -> dict[int, Select]:
    """The SELECTs on the way to a sink, by the number of their route."""
    return {
        index: parse_select(steps[0].sql)
        for index, steps in job.transforms_to(sink).items()
        if steps[0].sql is not None
    }


def with_statements(rows: DataFrame, job: JobConfig, statements: Mapping[int, Select]) -> DataFrame:
    """Return as many rows, in the same order, with `SQL_COLUMN`.

    Of rows that the WHERE of their route leaves out, `ROUTE_COLUMN` is NULL. Rows that are no
    records, and are to be dead letters, are left out by none: it may have been for them.
    """
    always = F.col(f"{RECORDS}.malformed") if job.sends_malformed_to_dlq else F.lit(False)
    rows = rows.withColumn(SQL_COLUMN, F.lit(None).cast("string"))
    for index, statement in statements.items():
        rows = _with_statement(rows, index, statement, always)
    return rows


def _with_statement(rows: DataFrame, index: int, statement: Select, always: Column) -> DataFrame:
    names = rows.columns
    joined = rows.alias(RECORDS)
    # A row that the route does not take, or that is no record, must not find two rows of a table.
    may_find = (F.col(f"{RECORDS}.{ROUTE_COLUMN}") == index) & F.col(
        f"{RECORDS}.offset"
    ).isNotNull()
    for lookup in statement.lookups:
        # Not broadcast, Spark would sort the records by the key, and their order would be gone.
        table = F.broadcast(rows.sparkSession.table(lookup.table)).alias(lookup.alias)
        joined = joined.join(table, F.expr(lookup.on) & may_find, "left")
    condition = F.lit(True) if statement.where is None else F.expr(statement.where)
    where = always | F.coalesce(condition, F.lit(False))
    said = joined.select(f"{RECORDS}.*", *map(F.expr, statement.columns), where)
    changed = _changed(said, names)
    said = said.toDF(*[f"_{number}" for number in range(len(said.columns))])
    columns = dict(zip(names, map(F.col, said.columns), strict=False))
    mine = columns[ROUTE_COLUMN] == index
    fields = [_as_field(name, F.col(said.columns[at])) for at, name in changed.items()]
    if fields:
        made = F.to_json(F.struct(*fields), {"ignoreNullFields": "false"})
        columns[SQL_COLUMN] = F.when(mine, made).otherwise(columns[SQL_COLUMN])
    if statement.where is not None:
        kept = F.col(said.columns[-1])
        columns[ROUTE_COLUMN] = F.when(~mine | kept, columns[ROUTE_COLUMN])
    return said.select(*[column.alias(name) for name, column in columns.items()])


def _as_field(name: str, column: Column) -> Column:
    """A column as the record has it, under the name of the field."""
    if name == "time":
        return (F.unix_micros(column) * 1000).alias("time_unix_nano")
    return column.alias(name)


def _changed(said: DataFrame, names: list[str]) -> dict[int, str]:
    """The names of columns that are not just the record's own, by their place in a frame.

    Args:
        said: The record's columns, those of the SELECT, and its condition.
        names: Names of the record's columns.

    Raises:
        ValueError: Two have one name, or a column cannot be changed.
    """
    output = said._jdf.queryExecution().analyzed().output()  # noqa: SLF001 - no public way
    found: dict[int, str] = {}
    for at in range(len(names), output.size() - 1):
        attribute = output.apply(at)
        name = str(attribute.name())
        if name in names:
            own = output.apply(names.index(name))
            if own.exprId().id() == attribute.exprId().id():
                continue
        if name in found.values():
            raise ValueError(
                f"two columns are called {name}: name the columns of a table that are wanted, in"
                " place of *"
            )
        _check_field(name, attribute.dataType().simpleString())
        found[at] = name
    return found


def _check_field(name: str, kind: str) -> None:
    column = _KNOWN.get(name)
    if name in _OWN or name in ENVELOPE or (name, kind) == ("time", "void"):
        raise ValueError(f"{name} cannot be changed: it is what makes a record")
    if column is None:
        return
    if column.origin != "json" and name != "time":
        raise ValueError(f"{name} is the log's own, and cannot be changed: use another name")
    wanted = column.spark.simpleString()
    if kind not in (wanted, "void"):
        raise ValueError(f"{name} is of type {kind}, not {wanted}: write CAST({name} AS {wanted})")


def check_statement(statement: Select, spark: SparkSession, key_path: str) -> None:
    """Analyse a SELECT against the columns, tables and functions that there are.

    Raises:
        ConfigError: It is not valid, or needs other records.
    """
    rows = spark.createDataFrame([], view("records").struct())
    try:
        rows = rows.withColumn(ROUTE_COLUMN, F.lit(0)).withColumn(SQL_COLUMN, F.lit(""))
        made = _with_statement(rows, 0, statement, F.lit(False))
        plan: Any = made._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way
    except (PySparkException, ValueError) as error:
        told = _first_line(error) if isinstance(error, PySparkException) else str(error)
        if _NO_GROUP in told:
            raise _needs_others(key_path) from None
        raise WrongKeyError(
            f"{key_path}: {told}",
            fix="use the columns that `penstock router plan` lists, and the job's tables and udfs",
        ) from None
    nodes = set(_names_of(plan))
    if nodes & _OF_OTHERS or _has_subquery(plan, spark):
        raise _needs_others(key_path)
    if not plan.deterministic():
        raise WrongKeyError(
            f"{key_path}: it can give another result when a batch is repeated",
            fix="leave out rand(), uuid() and the like, and functions that are not deterministic",
        )


def _needs_others(key_path: str) -> WrongKeyError:
    return WrongKeyError(
        f"{key_path}: it needs other records, or makes several rows of one",
        fix="leave aggregates, window functions, explode() and subqueries out: a step sees one"
        " record at a time. Group in a Spark job of your own: docs/router/frame-sink.md",
    )


def _has_subquery(plan: Any, spark: SparkSession) -> bool:
    jvm: Any = spark._jvm  # noqa: SLF001 - Catalyst has no public way
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return bool(plan.containsPattern(patterns.PLAN_EXPRESSION()))


def _names_of(plan: Any) -> list[str]:
    children = plan.children()
    below = [_names_of(children.apply(at)) for at in range(children.size())]
    return [str(plan.nodeName()), *(name for names in below for name in names)]


def _first_line(error: PySparkException) -> str:
    return (error.getMessage() or str(error)).splitlines()[0]

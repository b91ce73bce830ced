"""Routing as Spark expressions: which rows a sink gets by which route, and if a job's are valid.

With `routing: fan_out` a record goes to the sinks of every route that matches; with `first_match`
only to those of the first one. Where several of a sink's routes match, the first decides what is
done to the record.

A malformed row has unknown fields, and so a condition on it may be unknown. With
`on_malformed: dead_letters` it becomes a dead letter of every sink that it
might have been for: of those with a route whose condition is not false. Its kind, where none can be
told, is unknown as well, and not `raw`. With `on_malformed: route` it is a row like others.
"""

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from penstock.router.columns.passthrough import PASSTHROUGH, Unpacking
from penstock.router.columns.projection import arrow_schema
from penstock.router.columns.schema import KINDS, RAW_KIND, view
from penstock.router.job.config import JobConfig, Route
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.job.route_task import ROUTE_COLUMN
from penstock.router.read.source import LogStreamReader
from penstock.router.spark.readers import Steps, read_passthrough, stream_reader
from penstock.router.spark.sql_steps import (
    check_statement,
    prepare_session,
    statements_to,
    with_statements,
)
from penstock.router.transforms.sql import SQL_COLUMN, parse_select


def steps_to(sink: str, job: JobConfig, columns: list[str]) -> Steps:
    """Return the steps from rows of the view `records` to the given columns of one sink's rows."""
    return lambda rows: rows_for(sink, job, rows).select(*columns)


def classify_for(sink: str, job: JobConfig) -> Steps:
    """Return the steps from rows of the view `records` to the number of the route to a sink.

    The column is `ROUTE_COLUMN`, NULL where no route takes the row; `PASSTHROUGH` is kept. Where a
    route has a SELECT, `SQL_COLUMN` is there as well, and `offset` where that joins.
    """
    statements = statements_to(sink, job)
    joins = any(it.lookups for it in statements.values())

    def choose(rows: DataFrame) -> DataFrame:
        kept = [PASSTHROUGH] if PASSTHROUGH in rows.columns else []
        number = route_number(job, sink)
        rows = routable(job, rows)
        if not statements:
            return rows.select(*kept, number.alias(ROUTE_COLUMN))
        rows = with_statements(rows.withColumn(ROUTE_COLUMN, number), job, statements)
        return rows.select(*kept, *(["offset"] if joins else []), ROUTE_COLUMN, SQL_COLUMN)

    return choose


def route_number(job: JobConfig, sink: str) -> Column:
    """Return the number of the route that leads a `routable` row to a sink; NULL where none does.

    With `on_malformed: dead_letters` a malformed row has one, too, where it might be for the sink.
    """
    number = F.lit(None).cast("int")
    for index in reversed(job.routes_to(sink)):
        number = F.when(_takes(job, index), index).otherwise(number)
    return number


def only_route(job: JobConfig, sink: str) -> int | None:
    """The number of the route that takes every record to a sink; None: Spark must decide."""
    index = job.routes_to(sink)[0]
    if index == len(job.routes) or job.routes[index].where is not None or statements_to(sink, job):
        return None
    return index if index == 0 or job.routing != "first_match" else None


def rows_for(sink: str, job: JobConfig, rows: DataFrame) -> DataFrame:
    """The rows that some route, or the lack of one, leads to a sink; each once.

    They have `ROUTE_COLUMN` as well where a route to that sink has transforms, and `SQL_COLUMN`
    where one has a SELECT.
    """
    leading = job.routes_to(sink)
    takes = [_takes(job, index) for index in leading]
    rows = routable(job, rows).where(reduce(lambda one, other: one | other, takes))
    if not job.transforms_to(sink):
        return rows
    number = F.lit(leading[-1])
    for index, condition in zip(reversed(leading[:-1]), reversed(takes[:-1]), strict=True):
        number = F.when(condition, index).otherwise(number)
    rows = rows.withColumn(ROUTE_COLUMN, number)
    if not (statements := statements_to(sink, job)):
        return rows
    return with_statements(rows, job, statements).where(F.col(ROUTE_COLUMN).isNotNull())


def routable(job: JobConfig, rows: DataFrame) -> DataFrame:
    """Rows as conditions look at them."""
    if not job.sends_malformed_to_dlq:
        return rows
    return rows.withColumn("kind", F.expr(f"nullif(kind, '{RAW_KIND}')"))


def matches(route: Route) -> Column:
    """Return the condition of a route as a column; NULL counts as false."""
    return _condition(route, if_unknown=F.lit(False))


def _condition(route: Route, *, if_unknown: Column) -> Column:
    if route.where is None:
        return F.lit(True)
    return F.coalesce(F.expr(route.where), if_unknown)


def _takes(job: JobConfig, index: int) -> Column:
    """Return whether a row goes to a route's sinks; `unmatched` is the index after the last."""
    is_rest = index == len(job.routes)
    taken = F.lit(True)
    if not is_rest:
        unknown = F.col("malformed") if job.sends_malformed_to_dlq else F.lit(False)
        taken = _condition(job.routes[index], if_unknown=unknown)
    others = job.routes[:index] if is_rest or job.routing == "first_match" else []
    return reduce(lambda so_far, route: so_far & ~matches(route), others, taken)


_TEXT: Final = r"'[^']*'"
_KIND: Final = re.compile(
    rf"(?<![\w.])kind\s*(?:==?\s*({_TEXT})|in\s*\(([^)]*)\))|{_TEXT}", re.IGNORECASE
)
"""A condition on the column `kind`; or a text, in which there is none."""
_CHOICE: Final = re.compile(
    r"\b(?:or|not|case|if|coalesce|nvl2?|ifnull|nullif|decode|false)\b|<=?>|[!|]", re.IGNORECASE
)


def kinds_of(where: str | None) -> frozenset[str]:
    """The kinds of record that a condition may take; all of them unless it plainly says less.

    Plainly is ``kind = 'log'`` or ``kind in ('log', 'span')``, alone or joined by AND.
    """
    every = frozenset(KINDS)
    if where is None or _CHOICE.search(re.sub(_TEXT, "''", where)):
        return every
    for found in _KIND.finditer(where):
        if (texts := found[1] or found[2]) is not None:
            every &= frozenset(text[1:-1] for text in re.findall(_TEXT, texts))
    return every


def check_routes(job: JobConfig, spark: SparkSession) -> None:
    """Analyse each `where` and each step `sql` against what there is, tables and functions too.

    Raises:
        ConfigError: One is not valid; names the route.
    """
    prepare_session(job, spark)
    rows = spark.createDataFrame([], view("records").struct())
    for index, route in enumerate(job.routes):
        if route.where is not None:
            check_condition(route.where, rows, f"routes.{index}.where: route {route.name!r}")
    chains = [*(route.transforms for route in job.routes), job.unmatched.transforms]
    for index, steps in enumerate(chains):
        if steps and steps[0].sql is not None:
            check_statement(
                parse_select(steps[0].sql), spark, f"{job.route_key(index)}.transforms.0.sql"
            )


_FIXED_MOMENT: Final = re.compile(
    r"\b(?:date|timestamp(?:_[ln]tz)?)\s*(['\"])\s*(now|today|tomorrow|yesterday)\s*\1",
    re.IGNORECASE,
)
"""Typed literals that Spark's parser makes a constant of: the job's start."""


def check_condition(where: str, rows: DataFrame, key_path: str) -> None:
    """Analyse a condition against the columns of rows.

    Args:
        where: The condition.
        rows: Rows of the view `records`.
        key_path: Begins the message of an error.

    Raises:
        ConfigError: It is not valid, or not the same each time.
    """
    if fixed := _FIXED_MOMENT.search(where):
        raise WrongKeyError(
            f"{key_path}: {fixed[0]} in {where!r} is fixed when the job starts",
            fix="write current_timestamp() or current_date(), which each batch computes again",
        )
    try:
        chosen = rows.where(where)
        condition = chosen._jdf.queryExecution().analyzed().condition()  # noqa: SLF001 - no public way
        same_each_time = bool(condition.deterministic())
    except PySparkException as error:
        reason = (error.getMessage() or str(error)).splitlines()[0]
        raise WrongKeyError(
            f"{key_path}: {where!r} is not a condition: {reason}",
            fix="use the columns that `penstock router plan` lists; text in single quotes",
        ) from None
    if not same_each_time:
        raise WrongKeyError(
            f"{key_path}: {where!r} can give another answer when a batch is repeated",
            fix="leave out rand(), uuid() and the like; use a hash of trace_id or record_id",
        )


class Routed:
    """The rows for one sink.

    Args:
        job: The job.
        sink: The sink's name.
        columns: Columns of the view `records`, and `ROUTE_COLUMN` where that is wanted.

    Attributes:
        unpacking: Makes the rows of what `frame` was collected to, or a part of it.
        route: Number of the route that takes every record; None: conditions decide.
    """

    def __init__(self, job: JobConfig, sink: str, columns: Sequence[str]) -> None:
        beside = {ROUTE_COLUMN, SQL_COLUMN}
        self._passthrough = [name for name in columns if name not in beside]
        statements = statements_to(sink, job).values()
        known = {column.name: column for column in view("records").columns}
        schema = arrow_schema(known[name] for name in self._passthrough)
        self.unpacking = Unpacking(
            ROUTE_COLUMN,
            schema,
            tuple(columns),
            beside=(SQL_COLUMN,) if statements else (),
            once="offset" if any(it.lookups for it in statements) else None,
        )
        self.route = only_route(job, sink)
        self._steps = steps_to(sink, job, list(columns))
        self._classify = classify_for(sink, job)

    def reader(self, options: Mapping[str, str]) -> LogStreamReader | None:
        """Return what reads the sink's columns in tasks; None: `frame` must, for Spark decides.

        Args:
            options: Options of the data source.
        """
        return None if self.route is None else stream_reader(options, self._passthrough)

    def frame(
        self, spark: SparkSession, options: Mapping[str, str], *, streaming: bool
    ) -> DataFrame:
        """Return the log as a data frame.

        Args:
            spark: The session.
            options: Options of the data source.
            streaming: Whether the frame is a stream or a batch.
        """
        return read_passthrough(
            spark, options, self._steps, self._classify, self._passthrough, streaming=streaming
        )


class SharedRoutes:
    """The rows for several sinks that read together.

    Args:
        job: The job; no route to one of the sinks has a step `sql`.
        columns: For each sink, the columns of the view `records` that it gets, and `ROUTE_COLUMN`
            where that is wanted.

    Attributes:
        schema: Schema of the columns that go past Spark.
        columns: As given.
        verdicts: Name of the column with the number of the route, for each sink.
        routes: For each sink, the number of the route that takes every record; None: conditions
            decide.
    """

    def __init__(self, job: JobConfig, columns: Mapping[str, Sequence[str]]) -> None:
        wanted = _POSITION.union(*columns.values())
        known = [column for column in view("records").columns if column.name in wanted]
        self._job = job
        self._passthrough = [column.name for column in known]
        self.schema = arrow_schema(known)
        self.columns = {sink: tuple(names) for sink, names in columns.items()}
        self.verdicts = {sink: f"{ROUTE_COLUMN}_{number}" for number, sink in enumerate(columns)}
        self.routes = {sink: only_route(job, sink) for sink in columns}

    def reader(self, options: Mapping[str, str]) -> LogStreamReader | None:
        """Return what reads the columns of all sinks in tasks; None: `frame` must."""
        if None in self.routes.values():
            return None
        return stream_reader(options, self._passthrough)

    def frame(self, spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
        """Return the log as a stream; `options` are those of the data source."""
        return read_passthrough(
            spark, options, self._wanted, self._classified, self._passthrough, streaming=True
        )

    def _wanted(self, rows: DataFrame) -> DataFrame:
        leading = {index for sink in self.verdicts for index in self._job.routes_to(sink)}
        takes = [_takes(self._job, index) for index in sorted(leading)]
        rows = routable(self._job, rows).where(reduce(lambda one, other: one | other, takes))
        return rows.select(*self._passthrough)

    def _classified(self, rows: DataFrame) -> DataFrame:
        kept = [PASSTHROUGH] if PASSTHROUGH in rows.columns else []
        numbers = [
            route_number(self._job, sink).alias(verdict) for sink, verdict in self.verdicts.items()
        ]
        return routable(self._job, rows).select(*kept, *numbers)


_POSITION: Final = frozenset({"stream", "partition", "offset"})
"""Columns by which a task knows the rows that a sink has already."""

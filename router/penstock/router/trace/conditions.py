"""The conditions of a job's routes on single records, evaluated by Spark as the job does.

The rows are given to Spark as data, small enough to stay in the driver: Catalyst computes the
conditions there, and no task has to wait for a core that a sink's batch holds.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from penstock.router.checkpoint.deliveries import RecordPosition
from penstock.router.columns.pushdown import columns_in
from penstock.router.columns.schema import view
from penstock.router.delivery.batch_names import POSITION
from penstock.router.job.config import JobConfig
from penstock.router.job.route_task import ROUTE_COLUMN
from penstock.router.job.routes import check_condition, routable, route_number
from penstock.router.read.offsets import StreamPartition
from penstock.router.spark.sql_steps import statements_to, with_statements
from penstock.router.transforms.sql import SQL_COLUMN, Select

_CLOCK: Final = re.compile(
    r"\b(current_(?:date|time|timestamp)|now|localtimestamp|curdate|unix_timestamp)\b",
    re.IGNORECASE,
)
"""Functions of the time at which a condition is evaluated."""


@dataclass(frozen=True, slots=True)
class Routing:
    """What routes do with one record.

    Attributes:
        routes: Number of the route to each sink, of those to which one leads.
        results: Each route's condition: true, false, or None where it is NULL.
        fields: What a step `sql` of the route to a sink sets, as JSON; None: nothing. Sinks without
            such a step are not there, and those to which its WHERE lets the record not pass.
        left_out: Sinks that the record does not reach for the WHERE of such a step.
    """

    routes: Mapping[str, int]
    results: Sequence[bool | None]
    fields: Mapping[str, str | None] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()


def routing_of(
    job: JobConfig, spark: SparkSession, rows: pa.Table
) -> dict[RecordPosition, Routing]:
    """Evaluate all conditions of a job on rows of the view `records`.

    Raises:
        pyspark.errors.PySparkException: Spark cannot.
    """
    sinks = list(job.sinks)
    numbers = [route_number(job, name).alias(f"s{at}") for at, name in enumerate(sinks)]
    conditions = [
        (F.lit(True) if it.where is None else F.expr(it.where)).alias(f"r{at}")
        for at, it in enumerate(job.routes)
    ]
    frame = routable(job, _frame(spark, rows)).select(*POSITION, *numbers, *conditions)
    found = {}
    for row in frame.collect():
        routes = {
            name: int(row[f"s{at}"]) for at, name in enumerate(sinks) if row[f"s{at}"] is not None
        }
        results = [row[f"r{at}"] for at in range(len(conditions))]
        found[_position(row)] = Routing(routes, results)
    for name in sinks:
        if statements := statements_to(name, job):
            _add_statements(found, _set_by(job, name, statements, _frame(spark, rows)), name)
    return found


def _set_by(
    job: JobConfig, sink: str, statements: Mapping[int, Select], rows: DataFrame
) -> dict[RecordPosition, str | None]:
    """What SELECTs on the way to a sink set, of the records that they let pass."""
    numbered = routable(job, rows).withColumn(ROUTE_COLUMN, route_number(job, sink))
    said = with_statements(numbered, job, statements).select(*POSITION, ROUTE_COLUMN, SQL_COLUMN)
    return {
        _position(row): row[SQL_COLUMN] for row in said.collect() if row[ROUTE_COLUMN] is not None
    }


def _add_statements(
    found: dict[RecordPosition, Routing], passed: Mapping[RecordPosition, str | None], sink: str
) -> None:
    for position, routing in found.items():
        if sink not in routing.routes:
            continue
        if position in passed:
            fields = {**routing.fields, sink: passed[position]}
            found[position] = replace(routing, fields=fields)
        else:
            found[position] = replace(routing, left_out=routing.left_out | {sink})


def matching(spark: SparkSession, where: str, rows: pa.Table) -> set[RecordPosition]:
    """Return the rows, of the view `records`, for which a condition holds.

    Raises:
        ConfigError: It is none, or gives another answer each time.
    """
    frame = _frame(spark, rows)
    check_condition(where, frame, "where")
    return {_position(row) for row in frame.where(where).select(*POSITION).collect()}


def columns_of_condition(spark: SparkSession, where: str) -> tuple[str, ...]:
    """The columns that a condition looks at, in the view's order."""
    rows = spark.createDataFrame([], view("records").struct())
    return columns_in(rows.where(where), view("records"))


def looks_at_clock(where: str | None) -> bool:
    """Return whether a condition may depend on when it is evaluated."""
    return where is not None and _CLOCK.search(where) is not None


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows, view("records").struct())


def _position(row: Any) -> RecordPosition:
    return StreamPartition(row["stream"], row["partition"]), row["offset"]

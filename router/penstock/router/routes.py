"""Routing as Spark expressions: which rows a sink gets by which route, and if a job's are valid.

With `routing: fan_out` a record goes to the sinks of every route that matches; with `first_match`
only to those of the first one. Where several of a sink's routes match, the first decides what is
done to the record.
"""

from collections.abc import Iterable
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from penstock.router.config import JobConfig, Route
from penstock.router.feed import ROUTE_COLUMN
from penstock.router.records import empty
from penstock.service import ConfigError


def rows_for(sink: str, job: JobConfig, rows: DataFrame) -> DataFrame:
    """The rows that some route, or the lack of one, leads to a sink; each once.

    They have `ROUTE_COLUMN` as well where a route to that sink has transforms.
    """
    leading = job.routes_to(sink)
    number = _first_of(job, range(len(job.routes)), otherwise=len(job.routes))
    if job.routing == "first_match":
        rows = rows.where(number.isin(leading))
    else:
        own = [job.routes[index] for index in leading if index < len(job.routes)]
        if all(route.where is not None for route in own):
            rows = rows.where(_wanted(job, own, others=sink in job.unmatched.sinks))
        number = _first_of(job, leading, otherwise=len(job.routes))
    return rows.withColumn(ROUTE_COLUMN, number) if job.transforms_to(sink) else rows


def matches(route: Route) -> Column:
    """Whether a route takes a row; NULL is no."""
    if route.where is None:
        return F.lit(True)
    return F.coalesce(F.expr(route.where), F.lit(False))


def _wanted(job: JobConfig, own: list[Route], *, others: bool) -> Column:
    """Whether one of a sink's own routes takes a row, or with `others` none of any sink's."""
    conditions = [matches(route) for route in own]
    if others:
        conditions.append(~_any([matches(route) for route in job.routes]))
    return _any(conditions)


def _any(conditions: list[Column]) -> Column:
    return reduce(lambda one, other: one | other, conditions)


def _first_of(job: JobConfig, indices: Iterable[int], *, otherwise: int) -> Column:
    """The number of the first of some routes that takes a row."""
    number = F.lit(otherwise)
    for index in sorted(indices, reverse=True):
        if index < len(job.routes):
            number = F.when(matches(job.routes[index]), index).otherwise(number)
    return number


def check_routes(job: JobConfig, spark: SparkSession) -> None:
    """Analyse each `where` against the columns there are.

    Raises:
        ConfigError: One is not a valid condition; names the route.
    """
    rows = empty(spark)
    for index, route in enumerate(job.routes):
        if route.where is not None:
            _check(route.where, rows, f"routes.{index}.where: route {route.name!r}")


def _check(where: str, rows: DataFrame, place: str) -> None:
    try:
        chosen = rows.where(where)
        condition = chosen._jdf.queryExecution().analyzed().condition()  # noqa: SLF001 - no public way
        same_each_time = bool(condition.deterministic())
    except PySparkException as error:
        reason = (error.getMessage() or str(error)).splitlines()[0]
        raise ConfigError(
            f"{place}: {where!r} is not a condition: {reason}",
            fix="use the columns that `penstock router plan` lists; text in single quotes",
        ) from None
    if not same_each_time:
        raise ConfigError(
            f"{place}: {where!r} can give another answer when a batch is repeated",
            fix="leave out rand(), uuid() and the like; use a hash of trace_id or record_id",
        )

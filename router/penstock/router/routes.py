"""Routing as Spark expressions: which rows a sink gets, and whether a job's are valid."""

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from penstock.router.config import JobConfig, Route
from penstock.router.records import empty
from penstock.service import ConfigError


def rows_for(sink: str, job: JobConfig, rows: DataFrame) -> DataFrame:
    """The rows that some route, or the lack of one, leads to a sink; each once."""
    wanted = [_matches(route) for route in job.routes_of(sink)]
    if sink in job.unmatched.sinks:
        wanted.append(~_any([_matches(route) for route in job.routes]))
    if any(route.where is None for route in job.routes_of(sink)):
        return rows
    return rows.where(_any(wanted))


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


def _matches(route: Route) -> Column:
    """Whether a route takes a row; NULL is no."""
    if route.where is None:
        return F.lit(True)
    return F.coalesce(F.expr(route.where), F.lit(False))


def _any(conditions: list[Column]) -> Column:
    found = conditions[0]
    for condition in conditions[1:]:
        found = found | condition
    return found

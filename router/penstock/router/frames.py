"""The log as DataFrames with typed columns, that read no more than the query needs.

    import penstock.router as router

    errors = router.logs(
        spark,
        {"logd": "127.0.0.1:9293", "subscribe": "logs", "startingOffsets": "earliest"},
        columns=["time", "service", "body"],
        where="severity_number >= 17 and service = 'checkout'",
    )

Each function takes the options of `penstock.router.options`. Records of other kinds are left out;
what is no record, or whose kind cannot be told, is there with `malformed` true and the reason in
`malformed_reason`. `all_kinds` has every
record, with the columns of all kinds together.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from penstock.router.core.filters import filter_to_json
from penstock.router.options import parse_options
from penstock.router.pushdown import need_of
from penstock.router.source import LogDataSource
from penstock.router.views import ViewName

Steps = Callable[[DataFrame], DataFrame]

_REGISTERED: Final[WeakSet[SparkSession]] = WeakSet()
"""Sessions that have the data source; Spark warns when one is registered again."""


def raw(
    spark: SparkSession,
    options: Mapping[str, str],
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    streaming: bool = True,
) -> DataFrame:
    """Records as they lie in the log.

    Args:
        spark: The session; the data source is registered with it.
        options: Of the data source.
        columns: Those wanted; None: all.
        where: A condition in Spark SQL, on any columns; None: every row.
        streaming: Whether for a stream or a batch.

    Raises:
        BadOptionError: An option is wrong.
        pyspark.errors.AnalysisException: A column or the condition is.
    """
    return read(spark, options, _steps(columns, where), view="raw", streaming=streaming)


def _typed(view: ViewName, what: str) -> Callable[..., DataFrame]:
    def typed(
        spark: SparkSession,
        options: Mapping[str, str],
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        streaming: bool = True,
    ) -> DataFrame:
        return read(spark, options, _steps(columns, where), view=view, streaming=streaming)

    typed.__name__ = typed.__qualname__ = "all_kinds" if view == "records" else view
    typed.__doc__ = f"{what} with the columns of their specs; arguments as of `raw`."
    return typed


all_kinds = _typed("records", "Records of all kinds")
logs = _typed("logs", "Log records")
spans = _typed("spans", "Spans")
metrics = _typed("metrics", "Metric points")
events = _typed("events", "Events")
audits = _typed("audits", "Audit records")


def read(
    spark: SparkSession,
    options: Mapping[str, str],
    steps: Steps,
    *,
    view: ViewName,
    streaming: bool = True,
) -> DataFrame:
    """What `steps` make of a view's rows; the source makes no columns and rows they do not need.

    Args:
        spark: The session; the data source is registered with it.
        options: Of the data source.
        steps: Made of it; called twice, first to see what it needs.
        view: Which.
        streaming: Whether for a stream or a batch.
    """
    register(spark)
    given: dict[str, Any] = {**options, "view": view}
    chosen = parse_options(given, streaming=streaming)
    whole = chosen.view.struct(chosen.columns)
    of_stream = {name: given[name] for name in ("logd", "view")}
    template = (
        spark.readStream.format("logd").schema(whole).options(**of_stream, subscribe="-").load()
    )
    need = need_of(steps(template), chosen.view)
    if need.only is not None and "filter" not in {name.lower() for name in options}:
        given["filter"] = json.dumps(filter_to_json(need.only))
    reader = spark.readStream if streaming else spark.read
    rows = reader.format("logd").schema(chosen.view.struct(need.columns)).options(**given).load()
    # What Spark found that nobody needs may still be named: it is NULL, and never made.
    columns = [
        F.col(field.name)
        if field.name in need.columns
        else F.lit(None).cast(field.dataType).alias(field.name)
        for field in whole
    ]
    return steps(rows.select(*columns))


def register(spark: SparkSession) -> None:
    """Make the data source known to a session, once."""
    if spark not in _REGISTERED:
        spark.dataSource.register(LogDataSource)
        _REGISTERED.add(spark)


def _steps(columns: Sequence[str] | None, where: str | None) -> Steps:
    def steps(frame: DataFrame) -> DataFrame:
        chosen = frame if where is None else frame.where(where)
        return chosen if columns is None else chosen.select(*columns)

    return steps

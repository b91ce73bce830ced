"""The log as DataFrames with typed columns, that read no more than the query needs.

    import penstock.router as router

    errors = router.logs(
        spark,
        {"logd": "127.0.0.1:9293", "subscribe": "logs", "startingOffsets": "earliest"},
        columns=["time", "service", "body"],
        where="severity_number >= 17 and service = 'checkout'",
    )

Each function takes the options of `penstock.router.read.options`. Records of other kinds are left
out; what is no record, or whose kind cannot be told, is there with `malformed` true and the reason
in `malformed_reason`. `all_kinds` has every
record, with the columns of all kinds together.

With Spark Connect a client sees no plan of a query: all columns are made then, and Spark applies
every condition itself. Pass the options `columns` and `filter` where that costs too much.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import BinaryType

from penstock.router.columns.filters import Filter, filter_to_json
from penstock.router.columns.passthrough import PASSTHROUGH
from penstock.router.columns.pushdown import CHEAPEST, Need, need_of
from penstock.router.columns.schema import ViewName, view
from penstock.router.read.options import parse_options
from penstock.router.read.source import LogDataSource, LogStreamReader
from penstock.router.spark.frame_sink import FrameSink

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
        options: Options of the data source.
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
    """Return the result of `steps` on a view, of which only needed columns and rows are made.

    Args:
        spark: The session; the data source is registered with it.
        options: Options of the data source.
        steps: Steps on the view; called twice, first to see what they need.
        view: The view.
        streaming: Whether the frame is a stream or a batch.
    """
    source = _Source(spark, options, view, streaming=streaming)
    need = source.need(steps)
    return steps(source.rows(need.columns or (CHEAPEST,), need.only))


def read_passthrough(
    spark: SparkSession,
    options: Mapping[str, str],
    steps: Steps,
    choose_route: Steps,
    columns: Sequence[str],
    *,
    streaming: bool = True,
) -> DataFrame:
    """Return the result of `choose_route` on `records`, with columns passed past Spark.

    Args:
        spark: The session; the data source is registered with it.
        options: Options of the data source.
        steps: Select the rows that are wanted at most; rows that they leave out may be missing.
        choose_route: Adds the number of its route to each row, and keeps the column `PASSTHROUGH`
            where there is one.
        columns: The columns that go past Spark.
        streaming: Whether the frame is a stream or a batch.

    Returns:
        Rows for `penstock.router.columns.passthrough.unpack`, after they are collected.
    """
    source = _Source(spark, options, "records", streaming=streaming)
    looked_at = source.need(choose_route).columns
    return choose_route(source.rows(looked_at, source.need(steps).only, pass_through=columns))


def stream_reader(options: Mapping[str, str], columns: Sequence[str]) -> LogStreamReader:
    """Return the reader of columns of `records`, for tasks without Spark SQL.

    Args:
        options: Options of the data source, for a stream.
        columns: Names of the columns.
    """
    of_records = view("records").struct(columns)
    reader: LogStreamReader = LogDataSource({**options, "view": "records"}).streamReader(of_records)
    return reader


def need(spark: SparkSession, steps: Steps, view: ViewName) -> Need:
    """Return what steps on a view need of it; no log is read for that.

    Args:
        spark: The session; the data source is registered with it.
        steps: Steps on the view.
        view: The view.
    """
    return _Source(spark, _NO_LOG, view, streaming=True).need(steps)


_NO_LOG: Final[Mapping[str, str]] = {"logd": "127.0.0.1:1", "subscribe": "-"}
"""Options of a source that is never read."""


class _Source:
    """The rows of a view, of which only some columns need be made."""

    def __init__(
        self, spark: SparkSession, options: Mapping[str, str], view: ViewName, *, streaming: bool
    ) -> None:
        register(spark)
        self._spark = spark
        self._options: dict[str, Any] = {**options, "view": view}
        self._streaming = streaming
        chosen = parse_options(self._options, streaming=streaming)
        self._view = chosen.view
        self._whole = chosen.view.struct(chosen.columns)

    def need(self, steps: Steps) -> Need:
        if not isinstance(self._spark, SparkSession):  # Spark Connect, which shows no plan
            return Need(tuple(column.name for column in self._view.columns), None)
        of_stream = {name: self._options[name] for name in ("logd", "view")}
        reader = self._spark.readStream.format("logd").schema(self._whole)
        return need_of(steps(reader.options(**of_stream, subscribe="-").load()), self._view)

    def rows(
        self, columns: Sequence[str], only: Filter | None, *, pass_through: Sequence[str] = ()
    ) -> DataFrame:
        given, struct = dict(self._options), self._view.struct(columns)
        if only is not None and "filter" not in {name.lower() for name in given}:
            given["filter"] = json.dumps(filter_to_json(only))
        if pass_through:
            given["passThrough"] = ",".join(pass_through)
            struct = struct.add(PASSTHROUGH, BinaryType())
        reader = self._spark.readStream if self._streaming else self._spark.read
        rows = reader.format("logd").schema(struct).options(**given).load()
        # What Spark found that nobody needs may still be named: it is NULL, and never made.
        named = [
            F.col(field.name)
            if field.name in columns
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in self._whole
        ]
        return rows.select(*named, *([PASSTHROUGH] if pass_through else []))


def register(spark: SparkSession) -> None:
    """Make `format("logd")` and, for writing, `format("penstock")` known to a session, once."""
    if spark not in _REGISTERED:
        spark.dataSource.register(LogDataSource)
        spark.dataSource.register(FrameSink)
        _REGISTERED.add(spark)


def _steps(columns: Sequence[str] | None, where: str | None) -> Steps:
    def steps(frame: DataFrame) -> DataFrame:
        chosen = frame if where is None else frame.where(where)
        return chosen if columns is None else chosen.select(*columns)

    return steps

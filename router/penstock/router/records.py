"""Typed columns: from the raw `value`, one JSON record a line, to the columns of the specs.

A row that is not a record as the specs say is kept, its `value` untouched: `malformed` is then true
and, where not even the kind could be told, `kind` is `raw`.

Two fields of the specs are named otherwise here, because the log's own column has that name: a
metric's `value` is `metric_value`, and an event's `subject` is `event_subject`.
"""

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField

from penstock.router.source import row_type
from penstock.specs import columns as spec_columns
from penstock.specs.kinds import BASE_MODELS

RAW_KIND: Final = "raw"
"""The kind of a row whose kind cannot be told."""

KINDS: Final = tuple(BASE_MODELS)

_RENAMED: Final = {
    "service_name": "service",
    "value": "metric_value",
    "subject": "event_subject",
}
_SQL_TYPES: Final = {"json": "string"}
"""Neutral type names that Spark SQL calls otherwise; a string takes any JSON value as its text."""

_CORRUPT: Final = "_malformed"
_PARSED: Final = "_parsed"


def record_columns() -> list[spec_columns.Column]:
    """The columns of all kinds together, each once."""
    found: dict[str, spec_columns.Column] = {}
    for kind in KINDS:
        for column in spec_columns.fields(kind):
            known = found.setdefault(column.name, column)
            assert (known.type, known.path) == (column.type, column.path), column
    return list(found.values())


def columns_and_types() -> list[tuple[str, str]]:
    """Every column that a `where` may use, with its Spark SQL type."""
    log = [(field.name, field.dataType.simpleString()) for field in _log_type()]
    record = [(router_name(column), _sql_type(column.type)) for column in record_columns()]
    return [*log, ("time", "timestamp"), ("malformed", "boolean"), *record]


def typed(rows: DataFrame) -> DataFrame:
    """Add the columns of the specs to rows of the data source."""
    parsed = (
        f"from_json(cast(value as string), '{_json_type()}',"
        f" map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}'))"
    )
    return rows.selectExpr("*", f"{parsed} as {_PARSED}").selectExpr(
        *rows.columns, *_typed_columns()
    )


def empty(spark: SparkSession) -> DataFrame:
    """A frame without rows that has all columns; expressions can be analysed against it."""
    nulls = [
        f"cast(null as {field.dataType.simpleString()}) as {field.name}" for field in _log_type()
    ]
    return typed(spark.range(0).selectExpr(*nulls))


def _typed_columns() -> list[str]:
    kinds = ", ".join(f"'{kind}'" for kind in KINDS)
    is_record = f"{_PARSED}.kind in ({kinds})"
    columns = [
        f"coalesce(timestamp_micros({_PARSED}.time_unix_nano div 1000), timestamp) as time",
        f"not coalesce({_PARSED}.{_CORRUPT} is null and {is_record}, false) as malformed",
    ]
    for column in record_columns():
        value = f"{_PARSED}.`{column.path[0]}`"
        if len(column.path) == 2:
            value = f"element_at({value}, '{column.path[1]}')"
        if column.name == "kind":
            value = f"if({is_record}, {value}, '{RAW_KIND}')"
        columns.append(f"{value} as `{router_name(column)}`")
    return columns


def _json_type() -> str:
    """The record's JSON object; an object that is laid out in columns is read as a map."""
    fields: dict[str, str] = {}
    for column in record_columns():
        assert len(column.path) in (1, 2), column
        nested = len(column.path) == 2
        fields[column.path[0]] = "map<string,string>" if nested else _sql_type(column.type)
    fields[_CORRUPT] = "string"
    return ", ".join(f"`{name}` {kind}" for name, kind in fields.items())


def _sql_type(neutral: str) -> str:
    return _SQL_TYPES.get(neutral, neutral.replace("long", "bigint"))


def router_name(column: spec_columns.Column) -> str:
    """The column's name here, where the log's own columns stand beside it."""
    return _RENAMED.get(column.name, column.name)


def _log_type() -> list[StructField]:
    return list(row_type(include_headers=False))

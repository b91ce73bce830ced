"""Columns of the data source: the log's own, and those of the specs, for each view.

A view is a choice of columns and kinds of record. `raw` has the log's columns only; `records` has
those of all kinds together; `logs`, `spans`, `metrics`, `events` and `audits` have the columns and
the records of one kind. The columns of a kind are those that `penstock specs export spark` gives
for its base spec. A record of a team's own spec has its kind's columns, and the spec's own fields
in `attributes`.

Three columns are named otherwise here than in the specs, because the log's own column has that name
or because everybody says so: see `_RENAMED`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, get_args

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.router.errors import BadOptionError

ViewName = Literal["raw", "records", "logs", "spans", "metrics", "events", "audits"]
VIEWS: Final[tuple[ViewName, ...]] = get_args(ViewName)

RAW_KIND: Final = "raw"
"""The kind of a row whose kind cannot be told."""

KINDS: Final = ("log", "span", "metric", "event", "audit")
"""Kinds of the specs, repeated so that executors need not load the specs; a test compares them."""

_KINDS_OF: Final[Mapping[ViewName, tuple[str, ...]]] = {
    "raw": (),
    "records": KINDS,
    "logs": ("log",),
    "spans": ("span",),
    "metrics": ("metric",),
    "events": ("event",),
    "audits": ("audit",),
}

_RENAMED: Final = {
    "service_name": "service",
    "value": "metric_value",
    "subject": "event_subject",
}

_LOG: Final[tuple[tuple[str, DataType], ...]] = (
    ("stream", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestamp_ns", LongType()),
    ("subject", StringType()),
    ("key", BinaryType()),
    ("headers", MapType(StringType(), BinaryType())),
    ("value", BinaryType()),
)
_DERIVED: Final[tuple[tuple[str, DataType], ...]] = (
    ("time", TimestampType()),
    ("malformed", BooleanType()),
    ("malformed_reason", StringType()),
    ("malformed_value", BinaryType()),
)
MARKS: Final = ("malformed_reason", "malformed_value")
"""Columns that tell why a row is no record, and what it is; NULL for all others."""

Origin = Literal["log", "derived", "json"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a view.

    Attributes:
        name: Name of the column in Spark.
        spark: Its type there.
        origin: Whether it is the log's, made by the source, or of the record's JSON.
        neutral: Name of the latter's type in `penstock.specs.formats.schemas`.
        path: Path of the latter: one or two keys from the record's root to the value.
    """

    name: str
    spark: DataType
    origin: Origin
    neutral: str = ""
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """Columns, and whose records.

    Attributes:
        kinds: Kinds of its records; empty: records are not decoded.
    """

    name: ViewName
    kinds: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def is_typed(self) -> bool:
        """True if the view has columns that are decoded from records."""
        return bool(self.kinds)

    def struct(self, names: Iterable[str] | None = None) -> StructType:
        """The view's columns as Spark has them; only those named, in their order here.

        Raises:
            BadOptionError: A name is not a column of the view.
        """
        if names is None:
            chosen: Iterable[Column] = self.columns
        else:
            wanted = set(names)
            unknown = sorted(wanted - {column.name for column in self.columns})
            if unknown:
                raise BadOptionError(
                    f"view {self.name} has no column {', '.join(map(repr, unknown))}"
                )
            chosen = [column for column in self.columns if column.name in wanted]
        return StructType([StructField(column.name, column.spark) for column in chosen])

    def chosen(self, schema: Iterable[StructField]) -> tuple[Column, ...]:
        """The columns of a schema that a reader was given.

        Raises:
            BadOptionError: One is not the view's, or has another type there.
        """
        known = {column.name: column for column in self.columns}
        for field in schema:
            column = known.get(field.name)
            if column is None:
                raise BadOptionError(f"view {self.name} has no column {field.name!r}")
            if column.spark != field.dataType:
                raise BadOptionError(
                    f"column {field.name!r} of view {self.name} is of type"
                    f" {column.spark.simpleString()}, not {field.dataType.simpleString()}"
                )
        return tuple(known[field.name] for field in schema)


@cache
def view(name: ViewName, *, include_headers: bool = False) -> View:
    """A view by its name."""
    kinds = _KINDS_OF[name]
    log = [
        Column(column, kind, "log")
        for column, kind in _LOG
        if column != "headers" or include_headers
    ]
    if not kinds:
        return View(name, kinds, tuple(log))
    derived = [Column(column, kind, "derived") for column, kind in _DERIVED]
    return View(name, kinds, (*log, *derived, *_record_columns(kinds)))


def _record_columns(kinds: tuple[str, ...]) -> list[Column]:
    """The columns of some kinds together, each once."""
    from penstock.specs.formats import schemas
    from penstock.specs.models.kinds import BASE_MODELS

    found: dict[str, Column] = {}
    for kind in kinds:
        exported = StructType.fromJson(schemas.spark(BASE_MODELS[kind]))
        for neutral, field in zip(schemas.fields(kind), exported, strict=True):
            assert neutral.name == field.name, (neutral, field)
            name = _RENAMED.get(field.name, field.name)
            path = tuple(field.metadata["path"])
            assert len(path) in (1, 2), field
            column = Column(name, field.dataType, "json", neutral.type, path)
            known = found.setdefault(name, column)
            assert known == column, (known, column)
    return list(found.values())

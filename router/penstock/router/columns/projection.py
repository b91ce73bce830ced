"""Rows of the log laid out in the columns that Spark knows, and only the rows it wants."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.base.lazy_module import LazyModule
from penstock.router.columns.decode import ARROW_TYPES, Decoder, JsonField, Rows
from penstock.router.columns.filters import Filter, Joined, Test, both, columns_of, passing
from penstock.router.columns.passthrough import pack, pack_lost
from penstock.router.columns.schema import KINDS, MARKS, RAW_KIND, Column, View
from penstock.router.columns.spec_versions import SpecVersions
from penstock.router.read.offsets import Span

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")  # who plans batches has no rows to compute with

_US: Final = pa.timestamp("us", tz="UTC")
_TIME_FIELD: Final = JsonField("time_unix_nano", "long", ("time_unix_nano",))

_LOG_TYPES: Final[Mapping[str, pa.DataType]] = {
    "stream": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _US,
    "timestamp_ns": pa.int64(),
    "subject": pa.string(),
    "key": pa.binary(),
    "headers": pa.map_(pa.string(), pa.binary()),
    "value": pa.binary(),
}
_DERIVED_TYPES: Final[Mapping[str, pa.DataType]] = {
    "time": _US,
    "malformed": pa.bool_(),
    "malformed_reason": pa.string(),
    "malformed_value": pa.binary(),
}


@dataclass(frozen=True, slots=True)
class Projection:
    """The shape of the rows that Spark receives. It is data, which goes to the executors.

    Attributes:
        view: The view that has the columns.
        columns: The columns, in their order.
        only: Filter of the rows; None: all rows of the view.
        versions: The versions of the specs.
        passed_through: Columns that go past Spark, see `penstock.router.columns.passthrough`.
    """

    view: View
    columns: tuple[Column, ...]
    only: Filter | None = None
    versions: SpecVersions = field(default_factory=SpecVersions)
    passed_through: tuple[Column, ...] = ()

    def narrowed(self, only: Filter | None) -> "Projection":
        """Return the projection with a further condition."""
        return replace(self, only=both(self.only, only))


class Projector:
    """Does it, in an executor's process.

    A column is only made where it is asked for. Conditions on the log's own columns are decided
    before any record is looked into, and those on the records' before their other columns are made.
    """

    def __init__(self, shape: Projection) -> None:
        self._log_only, self._record_only = _divide(_with_kinds(shape.view, shape.only))
        known = {column.name: column for column in shape.view.columns}
        wanted = [column.name for column in (*shape.columns, *shape.passed_through)]
        names = wanted + sorted(columns_of(self._record_only))
        records = [known[name] for name in dict.fromkeys(names) if known[name].origin != "log"]
        self._is_typed = bool(records)
        marks = {"malformed", *MARKS} & {column.name for column in records}
        read = shape.view.columns if marks else records  # what is malformed depends on all columns
        fields = [
            JsonField(column.name, column.neutral, column.path)
            for column in read
            if column.origin == "json"
        ]
        self._decoder = Decoder(
            [_TIME_FIELD, *fields],
            KINDS,
            shape.versions,
            strict=bool(marks),
            only_checked={field.name for field in fields} - {column.name for column in records},
        )
        self._schema = arrow_schema(shape.columns)
        self._passthrough = arrow_schema(shape.passed_through)

    def shape(self, span: Span, log: pa.RecordBatch) -> pa.RecordBatch:
        """Lay out rows of a partition of the log, their offsets absolute; maybe none are left."""
        batch = _Batch(span, log)
        if self._log_only is not None:
            batch.keep(passing(self._log_only, batch.column))
        if self._is_typed:
            batch.rows = self._decoder.decode(batch.log.column("value"))
        if self._record_only is not None:
            batch.keep(passing(self._record_only, batch.column))
        rows = batch.columns(self._schema)
        passed_through = batch.columns(self._passthrough)
        return pack(rows, passed_through) if passed_through.num_rows else rows

    def lost(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield a batch with the count of lost offsets, if readers of packed rows need one."""
        if count and self._passthrough.names:
            yield pack_lost(count, self._schema)


class _Batch:
    """Rows on their way."""

    def __init__(self, span: Span, log: pa.RecordBatch) -> None:
        self.log = log
        self.rows: Rows | None = None
        self._span = span

    def keep(self, mask: pa.Array) -> None:
        if pc.all(mask, min_count=0).as_py():
            return
        self.log = self.log.filter(mask)
        if self.rows is not None:
            self.rows = self.rows.filter(mask)

    def columns(self, schema: pa.Schema) -> pa.RecordBatch:
        arrays = [self.column(name) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def column(self, name: str) -> pa.Array:
        make = _MAKE.get(name)
        if make is not None:
            return make(self)
        if name in _LOG_TYPES:
            return self.log.column(name)
        assert self.rows is not None, name
        return self.rows.column(name)

    def _stream(self) -> pa.Array:
        return pa.repeat(self._span.stream, self.log.num_rows)

    def _partition(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._span.partition, pa.int32()), self.log.num_rows)

    def _timestamp(self) -> pa.Array:
        return self.log.column("timestamp").cast(_US, safe=False)

    def _timestamp_ns(self) -> pa.Array:
        return self.log.column("timestamp").cast(pa.int64())

    def _time(self) -> pa.Array:
        assert self.rows is not None
        own = self.rows.column("time_unix_nano")  # NULL, too, where it is beyond 2262
        us = pc.divide(pc.if_else(pc.greater_equal(own, 0), own, None), 1000)
        return pc.coalesce(us.cast(_US), self._timestamp())

    def _problem(self) -> pa.Array:
        assert self.rows is not None
        return self.rows.problems()

    def _malformed(self) -> pa.Array:
        return pc.is_valid(self._problem())

    def _malformed_value(self) -> pa.Array:
        values = self.log.column("value")
        return pc.if_else(self._malformed(), values, pa.scalar(None, values.type))

    def _kind(self) -> pa.Array:
        assert self.rows is not None
        kinds = self.rows.column("kind")
        return pc.if_else(pc.is_in(kinds, value_set=_KINDS), kinds, RAW_KIND)


_KINDS: Final = pa.array(KINDS, pa.string())
_MAKE: Final[Mapping[str, Callable[[_Batch], pa.Array]]] = {
    "stream": _Batch._stream,  # noqa: SLF001 - of this module
    "partition": _Batch._partition,  # noqa: SLF001
    "timestamp": _Batch._timestamp,  # noqa: SLF001
    "timestamp_ns": _Batch._timestamp_ns,  # noqa: SLF001
    "time": _Batch._time,  # noqa: SLF001
    "malformed": _Batch._malformed,  # noqa: SLF001
    "malformed_reason": _Batch._problem,  # noqa: SLF001
    "malformed_value": _Batch._malformed_value,  # noqa: SLF001
    "kind": _Batch._kind,  # noqa: SLF001
}


def _with_kinds(view: View, only: Filter | None) -> Filter | None:
    """A view of some kinds leaves out the others, and keeps what has none that can be told."""
    if not view.kinds or view.kinds == KINDS:
        return only
    return both(Test("in", "kind", (*view.kinds, RAW_KIND)), only)


def _divide(condition: Filter | None) -> tuple[Filter | None, Filter | None]:
    """A filter's conditions on the log's own columns, and the others."""
    log: Filter | None = None
    record: Filter | None = None
    parts = (
        condition.parts
        if isinstance(condition, Joined) and condition.how == "and"
        else (condition,)
    )
    for part in parts:
        if columns_of(part) <= _LOG_TYPES.keys():
            log = both(log, part)
        else:
            record = both(record, part)
    return log, record


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Columns as Arrow has them, and as Spark gives them back."""
    return pa.schema([pa.field(column.name, _arrow_type(column)) for column in columns])


def _arrow_type(column: Column) -> pa.DataType:
    if column.origin == "json":
        return ARROW_TYPES[column.neutral]
    return (_LOG_TYPES if column.origin == "log" else _DERIVED_TYPES)[column.name]

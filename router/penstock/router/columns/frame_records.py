"""Rows of any DataFrame as records of the log, for sinks.

A frame with a column `value` has records as they lie in the log. Any other row becomes a log
record: columns with the names of the view `logs` are its fields, all others are attributes.

    time             timestamp         the record's time; else the time of the write
    severity_number  integer           9 (INFO) where it is NULL or not there
    severity_text, body, trace_id, span_id, event_name
                                       text; `body` is the row as JSON where there is none
    service          text              `service.name` of the resource; else the option `service`
    attributes       map or struct     merged with the attributes that come of columns

`stream`, `partition` and `offset` name a record, if all three are there. Else a row is named by
the write, the task and its number in the task.
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.columns.run_length import runs
from penstock.router.errors import BadOptionError
from penstock.router.read.offsets import Span

POSITION: Final = ("stream", "partition", "offset")
_RAW: Final = frozenset({*POSITION, "timestamp", "timestamp_ns", "subject", "key", "value"})
_TEXTS: Final = ("severity_text", "trace_id", "span_id", "event_name")
_FIELDS: Final = frozenset(
    {*POSITION, *_TEXTS, "time", "severity_number", "body", "service", "attributes"}
)
_INFO: Final = 9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SUBJECT: Final = "spark"


@dataclass(frozen=True, slots=True)
class FrameShape:
    """What the columns of a frame mean. It can be pickled.

    Attributes:
        names: The columns.
        has_positions: Whether `stream`, `partition` and `offset` are there.
        has_records: Whether `value` is.
    """

    names: tuple[str, ...]
    has_positions: bool
    has_records: bool

    @classmethod
    def of(cls, names: Sequence[str]) -> "FrameShape":
        """Look at the columns of a frame.

        Raises:
            BadOptionError: They cannot be records, or only as something else than they say.
        """
        found = [name for name in POSITION if name in names]
        if found and len(found) < len(POSITION):
            missing = ", ".join(name for name in POSITION if name not in names)
            raise BadOptionError(
                f"the frame has {', '.join(found)} and not {missing}: records are named by all"
                " three or by none"
            )
        if "value" in names and (others := sorted(set(names) - _RAW)):
            raise BadOptionError(
                f"the frame has the column value, which is the whole record, and {others[0]}:"
                " select value and the log's own columns alone, or drop value"
            )
        return cls(tuple(names), bool(found), "value" in names)


@dataclass(frozen=True, slots=True)
class Naming:
    """How the rows of one task are named, and what they lack. It can be pickled.

    Attributes:
        stream: Stream of rows without a position.
        partition: Their partition: the task's number.
        first: Their first offset.
        service: Service of rows that name none.
        time_ns: Time of rows that have none, since 1970.
    """

    stream: str
    partition: int
    first: int
    service: str
    time_ns: int


class FrameRecords:
    """Makes log rows of the rows of one task.

    Args:
        shape: What the columns mean.
        naming: How rows are named.
    """

    def __init__(self, shape: FrameShape, naming: Naming) -> None:
        self._shape = shape
        self._naming = naming
        self._next = naming.first

    def log_rows(self, batch: pa.RecordBatch) -> Iterator[tuple[Span, pa.RecordBatch]]:
        """Yield rows as the log has them, by partition, in the order of the frame."""
        rows = pa.Table.from_batches([self._log_rows(batch)])
        for begin, end in runs(rows, POSITION[:2]):
            part = rows.slice(begin, end - begin)
            where = part.select(POSITION[:2]).slice(0, 1).to_pylist()[0]
            span = Span(where["stream"], where["partition"], 0, 0)
            yield span, part.combine_chunks().to_batches()[0]

    def _log_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count, columns = batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._shape.has_records:
            values = columns["value"].cast(pa.binary())
        else:
            lines = [self._line(row) for row in batch.to_pylist()]
            values = pa.array(lines, pa.binary())
        made = {**self._positions(columns, count), "value": values}
        made["timestamp"] = self._timestamps(columns, count)
        made["subject"] = columns.get("subject", pa.repeat(_SUBJECT, count))
        made["key"] = columns.get("key", pa.nulls(count, pa.binary()))
        return pa.RecordBatch.from_pydict(made)

    def _positions(self, columns: Mapping[str, pa.Array], count: int) -> dict[str, pa.Array]:
        if self._shape.has_positions:
            types = (pa.string(), pa.int32(), pa.int64())
            return {
                name: columns[name].cast(kind) for name, kind in zip(POSITION, types, strict=True)
            }
        first, self._next = self._next, self._next + count
        return {
            "stream": pa.repeat(self._naming.stream, count),
            "partition": pa.repeat(pa.scalar(self._naming.partition, pa.int32()), count),
            "offset": pa.array(range(first, first + count), pa.int64()),
        }

    def _timestamps(self, columns: Mapping[str, pa.Array], count: int) -> pa.Array:
        """The times at which the log got the records; else that of the write."""
        own = pa.repeat(pa.scalar(self._naming.time_ns, pa.int64()), count)
        if "timestamp_ns" in columns:
            own = pc.coalesce(columns["timestamp_ns"].cast(pa.int64()), own)
        elif "timestamp" in columns:
            us = columns["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            own = pc.coalesce(pc.multiply(us, 1000), own)
        return own.cast(pa.timestamp("ns", tz="UTC"))

    def _line(self, row: Mapping[str, Any]) -> bytes:
        """A row as the JSON of a log record."""
        attributes = {
            name: _plain(value)
            for name, value in row.items()
            if name not in _FIELDS and value is not None
        }
        attributes |= _items_of(row.get("attributes"))
        severity, body = row.get("severity_number"), row.get("body")
        record: dict[str, Any] = {
            "schema": "log/1.0",
            "kind": "log",
            "time_unix_nano": _nanoseconds(row.get("time"), self._naming.time_ns),
            "severity_number": _INFO if severity is None else severity,
        }
        record |= {name: row[name] for name in _TEXTS if row.get(name) is not None}
        record["body"] = _as_json(attributes) if body is None else _text(body)
        record["attributes"] = attributes
        record["resource"] = {"service.name": row.get("service") or self._naming.service}
        return _as_json(record).encode()


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(value: Any) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else _as_json(plain)


def _items_of(value: Any) -> dict[str, Any]:
    """A map or a struct as attributes; Arrow gives a map as a list of pairs."""
    if value is None:
        return {}
    pairs = value.items() if isinstance(value, dict) else value
    return {str(name): _plain(each) for name, each in pairs if each is not None}


def _nanoseconds(time: datetime | None, otherwise: int) -> int:
    if time is None:
        return otherwise
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    return since // timedelta(microseconds=1) * 1000


def _plain(value: Any) -> Any:  # noqa: PLR0911 - one for each kind of value
    """A value as JSON has it: times in ISO 8601, bytes in base64, decimals as text."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return value if math.isfinite(value) else json.dumps(value)  # NaN, Infinity, -Infinity
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date():
            return value.isoformat()
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return str(value)

"""Rows of an Arrow batch as people and programs see them."""

import base64
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from penstock.logd.cli.text import cut, safe_bytes

_CELL_MAX: Final = 60
"""Columns of a terminal that one cell takes at most, in a row of several."""

_AS_TEXT: Final = (Decimal, UUID, timedelta, date, time)
"""Kinds of values that JSON has no form for."""

_NS: Final = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}


def text_row(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    """Rows of text and numbers."""
    alone = batch.num_columns == 1
    for row in _rows(batch):
        yield tuple(_cell(value, alone=alone) for value in row)


def json_row(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows as objects; bytes that are not UTF-8 as base64, `_base64` behind the column's name."""
    names = batch.schema.names
    for row in _rows(batch):
        document: dict[str, Any] = {}
        for name, value in zip(names, row, strict=True):
            plain = _plain(value)
            if isinstance(value, bytes) and isinstance(plain, bytes):
                document[f"{name}_base64"] = base64.b64encode(plain).decode()
            else:
                document[name] = _without_bytes(plain)
        yield document


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = [_values(column) for column in batch.columns]
    return zip(*columns, strict=True)


def _values(column: pa.Array) -> list[Any]:
    """Python's values; nanoseconds, for which it has none, as text."""
    if pa.types.is_timestamp(column.type):
        scale, zone = _NS[column.type.unit], "Z" if column.type.tz else ""
        return [
            None if count is None else _moment(count * scale) + zone
            for count in column.cast(pa.int64()).to_pylist()
        ]
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    if pa.types.is_decimal(column.type) and column.type.scale == 0:  # a sum, of DuckDB's
        return [None if value is None else int(value) for value in column.to_pylist()]
    found: list[Any] = column.to_pylist()
    return found


def _moment(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    try:
        moment = begin + timedelta(seconds=seconds)
    except OverflowError:
        return f"{time_ns} ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}" + (f".{rest:09d}".rstrip("0") if rest else "")


def _cell(value: Any, *, alone: bool) -> object:
    if isinstance(value, bool) or value is None:
        return {None: "NULL", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return value
    text = safe_bytes(value) if isinstance(value, bytes) else str(_plain(value))
    return text if alone else cut(text, _CELL_MAX)


def _plain(value: Any) -> Any:
    """A value that JSON has, but for bytes that are not UTF-8."""
    match value:
        case bytes():
            return _text(value)
        case dict():
            return {str(_without_bytes(_plain(key))): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            too_large = isinstance(value, int) and not -(1 << 63) <= value < 1 << 64
            return str(value) if too_large or isinstance(value, _AS_TEXT) else value


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _without_bytes(value: Any) -> Any:
    """What is left of them inside of lists and maps, as Latin-1."""
    match value:
        case bytes():
            return value.decode("latin-1")
        case dict():
            return {key: _without_bytes(item) for key, item in value.items()}
        case list():
            return [_without_bytes(item) for item in value]
        case _:
            return value

"""A row's record as a JSON object, for sinks that write documents."""

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Final, Literal, TypeVar

from penstock.router.columns.json_objects import read_object
from penstock.router.deadletters.writer import as_text
from penstock.router.delivery.result import Fault
from penstock.router.sinks.http.request_sink import TIME_REPLACED, Row
from penstock.router.sinks.sink import SinkContext

Json = dict[str, Any]
TimeProblem = Literal["missing", "not_an_integer", "before_1970", "after_2262"]

_TIME_END: Final = 1 << 63
"""Nanoseconds since 1970: April 2262. Most destinations, and Arrow, hold no later time."""


def time_problem(found: object) -> TimeProblem | None:
    """Why a record's `time_unix_nano` is no time; None where it is one."""
    if found is None:
        return "missing"
    if not isinstance(found, int) or isinstance(found, bool):
        return "not_an_integer"
    if found < 0:
        return "before_1970"
    return "after_2262" if found >= _TIME_END else None


def record_of(row: Row) -> Json | None:
    """The record; None where the row is no JSON record.

    A time that there cannot be (none, before 1970, after 2262) is that at which the log got it; why
    is in the row, as `TIME_REPLACED`, for the sink to count.
    """
    if row["kind"] == "raw" or row["value"] is None:
        return None
    record = read_object(row["value"])
    if record is not None and "kind" in record:  # else a route's `map` has made something of it
        if (reason := time_problem(record.get("time_unix_nano"))) is not None:
            row[TIME_REPLACED] = reason
        record["time_unix_nano"] = time_ns(row, record)
    return record


def document_of(row: Row) -> Json:
    """The record, or what stands for a row that is none."""
    record = record_of(row)
    if record is not None:
        return record
    about = {name: row[name] for name in ("stream", "partition", "offset", "subject")}
    return {"kind": "raw", "time_unix_nano": row["timestamp_ns"], **about, **as_text(row["value"])}


def position_of(row: Row) -> tuple[str, int, int]:
    return row["stream"], row["partition"], row["offset"]


def event_id(row: Row, context: SinkContext) -> str:
    """Return the record's id, which a repeated delivery shares: its position in the log."""
    return f"{context.stream_tag(*position_of(row))}/{row['partition']}/{row['offset']}"


def row_key(table: str, row: Row, context: SinkContext, **more: str) -> str:
    """Return a table and the values of `KEY` that a row has there, and more of its columns."""
    stream, partition, offset = position_of(row)
    values = {
        "stream": stream,
        "incarnation": context.stream_id(stream, partition, offset),
        "partition": partition,
        "offset": offset,
        **more,
    }
    return f"{table}: {', '.join(f'{name} {value}' for name, value in values.items())}"


def time_ns(row: Row, record: Json) -> int:
    """The record's time; that at which the log got it where there is none from 1970 to 2262."""
    found = record.get("time_unix_nano")
    if isinstance(found, int) and time_problem(found) is None:
        return found
    own: int = row["timestamp_ns"]
    return own


def untimely(
    ahead_ns: int, *, future_s: float, past_s: float = math.inf, fate: str = ""
) -> Fault | None:
    """Why a record is refused by its distance from the router's clock; None: it is not.

    `fate` is what the destination would do with one that is older than `past_s`.
    """
    ahead_s = ahead_ns / 1e9
    if ahead_s > future_s:
        return Fault("in_the_future", f"{ahead_s:.0f} s ahead of the router's clock")
    return Fault("too_old", f"{-ahead_s:.0f} s old; {fate}") if -ahead_s > past_s else None


def section(record: Json, name: str) -> Json:
    """A part of a record that is an object, such as `resource`; empty where it is not."""
    found = record.get(name)
    return found if isinstance(found, dict) else {}


ANSWERS_MAX: Final = 512
LENGTH_MAX: Final = 1024
"""Maximum characters of a cached text, so that long ones do not fill the memory."""

Text = TypeVar("Text", str, bytes)
Answer = TypeVar("Answer")


def cached(function: Callable[[Text], Answer]) -> Callable[[Text], Answer]:
    """Return the function, which depends on its text alone, with a cache of its last answers.

    Nobody may change the answers.
    """
    known = lru_cache(ANSWERS_MAX)(function)

    @wraps(function)
    def answer(text: Text) -> Answer:
        return known(text) if len(text) <= LENGTH_MAX else function(text)

    return answer


def utf8(value: bytes) -> str | None:
    """The text of some bytes; None: they are none in UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


KEY: Final = ("stream", "incarnation", "partition", "offset")
"""A record's position in the log: the table's primary key."""

ABOUT: Final = (*KEY, "time_unix_nano", "kind", "service", "severity_number", "trace_id")
"""Columns that `describe` returns beside the record in the sink's own form."""

_SMALLINT_MAX: Final = 2**15 - 1


def describe(row: Row, record: Json, stream_id: str) -> tuple[Any, ...]:
    """The values of `ABOUT`; the record is empty where it cannot be decoded."""
    severity = record.get("severity_number")
    return (
        row["stream"],
        stream_id,
        row["partition"],
        row["offset"],
        time_ns(row, record),
        row["kind"],
        _text(section(record, "resource").get("service.name")),
        severity if _is_small(severity) else None,
        _text(record.get("trace_id")),
    )


def _is_small(value: Any) -> bool:
    return type(value) is int and abs(value) <= _SMALLINT_MAX


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and "\0" not in value else None

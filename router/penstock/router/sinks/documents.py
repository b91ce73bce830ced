"""A row's record as a JSON object, for sinks that write documents."""

from typing import Any, Final, Literal

from penstock.router.dead_letter import as_text
from penstock.router.json_objects import read_object
from penstock.router.sinks.requests import TIME_REPLACED, Row
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


def place_of(row: Row) -> tuple[str, int, int]:
    """Where a record lies in the log: stream, partition and offset."""
    return row["stream"], row["partition"], row["offset"]


def event_id(row: Row, context: SinkContext) -> str:
    """What a record is told apart by, the same whenever it is sent: its place in the log."""
    return f"{context.stream_tag(*place_of(row))}/{row['partition']}/{row['offset']}"


def time_ns(row: Row, record: Json) -> int:
    """The record's time; that at which the log got it where there is none from 1970 to 2262."""
    found = record.get("time_unix_nano")
    if isinstance(found, int) and time_problem(found) is None:
        return found
    own: int = row["timestamp_ns"]
    return own


def section(record: Json, name: str) -> Json:
    """A part of a record that is an object, such as `resource`; empty where it is not."""
    found = record.get(name)
    return found if isinstance(found, dict) else {}

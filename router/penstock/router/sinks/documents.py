"""A row's record as a JSON object, for sinks that write documents."""

from typing import Any, Final

from penstock.router.dead_letter import as_text
from penstock.router.json_objects import read_object
from penstock.router.sinks.requests import Row
from penstock.router.sinks.sink import SinkContext

Json = dict[str, Any]

_TIME_END: Final = 1 << 63
"""Nanoseconds since 1970: April 2262. Most destinations, and Arrow, hold no later time."""


def record_of(row: Row) -> Json | None:
    """The record; None where the row is no JSON record.

    A time that there cannot be (none, before 1970, after 2262) is that at which the log got it.
    """
    if row["kind"] == "raw" or row["value"] is None:
        return None
    record = read_object(row["value"])
    if record is not None and "kind" in record:  # else a route's `map` has made something of it
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
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < _TIME_END:
        return found
    own: int = row["timestamp_ns"]
    return own


def section(record: Json, name: str) -> Json:
    """A part of a record that is an object, such as `resource`; empty where it is not."""
    found = record.get(name)
    return found if isinstance(found, dict) else {}

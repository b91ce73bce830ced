"""A record as the first columns of a row in a table of a database, and how it is known again."""

from typing import Any, Final

from penstock.router.sinks.documents import Json, section, time_ns
from penstock.router.sinks.requests import Row

KEY: Final = ("stream", "incarnation", "partition", "offset")
"""A record's place in the log: the table's primary key."""

ABOUT: Final = (*KEY, "time_unix_nano", "kind", "service", "severity_number", "trace_id")
"""What `describe` tells; the record itself follows as the sink can store it."""

_BIGINT_MAX: Final = 2**63 - 1
_SMALLINT_MAX: Final = 2**15 - 1


def describe(row: Row, record: Json, incarnation: str) -> tuple[Any, ...]:
    """The values of `ABOUT`.

    Args:
        row: Of the log.
        record: What it holds; empty where that is none.
        incarnation: Of its stream.
    """
    severity = record.get("severity_number")
    return (
        row["stream"],
        incarnation,
        row["partition"],
        row["offset"],
        _moment_ns(row, record),
        row["kind"],
        _text(section(record, "resource").get("service.name")),
        severity if _is_small(severity) else None,
        _text(record.get("trace_id")),
    )


def _moment_ns(row: Row, record: Json) -> int:
    found = time_ns(row, record)
    own: int = row["timestamp_ns"]
    return found if found <= _BIGINT_MAX else own


def _is_small(value: Any) -> bool:
    return type(value) is int and abs(value) <= _SMALLINT_MAX


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and "\0" not in value else None

"""Records for people and for programs.

A payload that is a telemetry record of Penstock's (`Telemetry`) is shown by what it says; the log
itself looks into none.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

import orjson

from penstock.logd.batch import Record
from penstock.logd.cli.text import pretty_json, safe, safe_bytes, safe_json

LEVELS: Final = {"trace": 1, "debug": 5, "info": 9, "warn": 13, "error": 17, "fatal": 21}
"""The least severity number of each, as OpenTelemetry has them."""
_KINDS: Final = frozenset({"log", "span", "metric", "event", "audit"})
_HIDDEN: Final = ("code.", "exception.stacktrace", "process.", "system.", "thread.")
"""Attributes that are on every record, or no line could hold; --pretty and --json show them."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a line shows of a telemetry record.

    Attributes:
        level: The severity's text; the kind, where a record has none.
        severity: Its number; None where it has none.
        subject: What happened, in a few words.
        fields: Context and attributes.
    """

    level: str
    severity: int | None
    service: str
    subject: str
    fields: tuple[tuple[str, Any], ...]

    @classmethod
    def read(cls, payload: bytes | None) -> Self | None:
        """None for a payload that is something else."""
        if not payload or not payload.startswith(b"{"):
            return None
        try:
            found: Any = orjson.loads(payload)
        except ValueError:
            return None
        kind = found.get("kind")
        if not isinstance(kind, str) or kind not in _KINDS or "schema" not in found:
            return None
        failed = found.get("status_code") == "ERROR"
        severity = LEVELS["error"] if failed else found.get("severity_number")
        text = "ERROR" if failed else found.get("severity_text") or kind.upper()
        return cls(
            level=str(text),
            severity=severity if isinstance(severity, int) else None,
            service=str(_object(found, "resource").get("service.name", "-")),
            subject=_subject(kind, found),
            fields=tuple(_fields(found)),
        )

    def line(self) -> str:
        """Level, service, what happened, fields."""
        pairs = (f"{safe(name)}={_value(value)}" for name, value in self.fields)
        head = f"{safe(self.level):<5}  {safe(self.service)}  {safe(self.subject)}"
        return "  ".join(part for part in (head, " ".join(pairs)) if part)


def _object(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def _fields(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from _object(record, "context").items()
    attributes = _object(record, "attributes").items()
    yield from ((name, value) for name, value in attributes if not name.startswith(_HIDDEN))


def _subject(kind: str, record: Mapping[str, Any]) -> str:
    match kind:
        case "log":
            return str(record.get("body", ""))
        case "span":
            begin, end = record.get("time_unix_nano"), record.get("end_time_unix_nano")
            if not isinstance(begin, int) or not isinstance(end, int):
                return str(record.get("name", ""))
            return f"{record.get('name', '')} {(end - begin) / 1e6:.1f} ms"
        case "metric":
            value = record.get("value", record.get("sum", record.get("count")))
            return f"{record.get('name', '')} {value} {record.get('unit', '')}"
        case "audit":
            actor, target = _object(record, "actor"), _object(record, "target")
            return (
                f"{actor.get('type')}:{actor.get('id')} {record.get('action')}"
                f" {target.get('type')}:{target.get('id')} {record.get('outcome')}"
            )
        case _:
            return str(record.get("event_name", record["schema"]))


def _value(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable() and not set(' "=') & set(value):
        return safe(value)
    return safe_json(orjson.dumps(value))


def record_text(offset: int, record: Record, partition: int | None = None) -> str:
    """A record on one line; its partition, if it is one of several."""
    place = offset if partition is None else f"{partition}/{offset}"
    return f"{place}  {line_text(record)}"


def line_text(record: Record) -> str:
    """A record's time, and what it says: as telemetry, else its subject and payload."""
    time = time_text(record.timestamp_ns)
    if telemetry := Telemetry.read(record.value):
        return f"{time}  {telemetry.line()}"
    value = "(tombstone)" if record.value is None else safe_bytes(record.value)
    return f"{time}  {safe(record.subject)}  {value}"


def record_pretty(offset: int, record: Record, partition: int | None = None) -> str:
    """A record with everything it has, a payload that is JSON laid out."""
    place = "" if partition is None else f"partition {partition}  "
    lines = [f"{place}offset {offset}  {time_text(record.timestamp_ns)}  {safe(record.subject)}"]
    if record.key is not None:
        lines.append(f"  key: {safe_bytes(record.key)}")
    lines += [f"  {safe(name)}: {safe_bytes(value)}" for name, value in record.headers]
    if record.value is None:
        lines.append("(tombstone)")
    elif record.value:
        lines.append(pretty_json(record.value) or safe_bytes(record.value))
    return "\n".join(lines) + "\n"


def record_json(offset: int, record: Record, partition: int | None = None) -> str:
    """A record as a JSON object."""
    document: dict[str, Any] = {} if partition is None else {"partition": partition}
    document |= {
        "offset": offset,
        "timestamp_ns": record.timestamp_ns,
        "subject": record.subject,
    }
    for name, value in (("key", record.key), ("value", record.value)):
        document |= _json_bytes(name, value)
    if record.headers:
        document["headers"] = [[name, value.decode("latin-1")] for name, value in record.headers]
    if record.reply is not None:
        document["reply"] = record.reply
    return safe_json(orjson.dumps(document))


def time_text(timestamp_ns: int) -> str:
    """A timestamp for people, to the microsecond."""
    return f"{datetime.fromtimestamp(timestamp_ns / 1e9, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def _json_bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    """Text as it is; what is not UTF-8 as base64 under another name."""
    if value is None:
        return {name: None} if name == "value" else {}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}

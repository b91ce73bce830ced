"""Records for people and for programs."""

import base64
from datetime import UTC, datetime
from typing import Any

import orjson

from penstock.logd.batch import Record
from penstock.logd.cli.text import pretty_json, safe, safe_bytes, safe_json


def record_text(offset: int, record: Record, partition: int | None = None) -> str:
    """A record on one line; its partition, if it is one of several."""
    value = "(tombstone)" if record.value is None else safe_bytes(record.value)
    place = offset if partition is None else f"{partition}/{offset}"
    return f"{place}  {time_text(record.timestamp_ns)}  {safe(record.subject)}  {value}"


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

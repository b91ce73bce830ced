"""Entries of the systemd journal, as `journalctl --output=json` writes them, as log records.

``MESSAGE`` is the body, ``PRIORITY`` the severity, the unit or else the identifier the service. The
other fields are attributes ``journald.<name in lower case>``; ``__`` opens the journal's own
addresses, which are left out.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.lines import text_of
from penstock.collector.decode.severity import severity
from penstock.collector.errors import UndecodableError
from penstock.collector.limits import SERVICE_CHARACTERS_MAX
from penstock.specs.limits import INT64_MAX, STRING_CHARACTERS_MAX

_PRIORITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_NUMBERED: Final = {str(number): name for number, name in enumerate(_PRIORITIES)}
_TIMES: Final = ("_SOURCE_REALTIME_TIMESTAMP", "__REALTIME_TIMESTAMP")
_SERVICES: Final = ("_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER", "_COMM")
_ELSEWHERE: Final = frozenset({"MESSAGE", "PRIORITY", "_HOSTNAME", "_SOURCE_REALTIME_TIMESTAMP"})


def cursor_of(entry: bytes) -> str | None:
    """The journal's name of an entry's position; None when the line is no entry."""
    try:
        cursor = orjson.loads(entry)["__CURSOR"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return cursor if isinstance(cursor, str) else None


def decode_entry(entry: bytes, service: str, resource: Mapping[str, Any], now_ns: int) -> bytes:
    """Make a log record of an entry.

    Args:
        entry: One line.
        service: Service name, or ``from_unit``.
        resource: The collector's.
        now_ns: When it was read.

    Raises:
        UndecodableError: It is none.
    """
    try:
        fields = orjson.loads(entry)
    except orjson.JSONDecodeError:
        raise UndecodableError("not an entry of the journal") from None
    if not isinstance(fields, dict):
        raise UndecodableError("not an entry of the journal")
    named = {
        f"journald.{key.lower().lstrip('_')}": _value(value)
        for key, value in fields.items()
        if key not in _ELSEWHERE and not key.startswith("__")
    }
    if service == "from_unit":
        service = next((_text(fields[key]) for key in _SERVICES if fields.get(key)), "journald")
    own = {**resource, "service.name": service[:SERVICE_CHARACTERS_MAX]}
    if fields.get("_HOSTNAME"):
        own["host.name"] = _text(fields["_HOSTNAME"])
    body = _body(fields.get("MESSAGE"), named)
    if len(body) > STRING_CHARACTERS_MAX:
        named["log.record.truncated"] = True
    attributes, left_out = flatten(named)
    number, text = _severity(fields.get("PRIORITY"))
    record: dict[str, Any] = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": _time_ns(fields, now_ns),
        "observed_time_unix_nano": now_ns,
        "severity_number": number,
        "severity_text": text,
        "body": body[:STRING_CHARACTERS_MAX],
        "resource": own,
        "attributes": attributes,
    }
    return orjson.dumps(record | ({"dropped_attributes_count": left_out} if left_out else {}))


def _body(message: Any, attributes: dict[str, Any]) -> str:
    """A message that is not UTF-8 comes as a list of its bytes."""
    if isinstance(message, list) and all(type(n) is int and 0 <= n < 256 for n in message):
        return text_of(bytes(message), attributes)
    return "" if message is None else _text(message)


def _value(value: Any) -> Any:
    if isinstance(value, list) and value and all(type(n) is int and 0 <= n < 256 for n in value):
        return bytes(value)
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _severity(priority: Any) -> tuple[int, str]:
    if isinstance(priority, str) and priority in _NUMBERED:
        priority = _NUMBERED[priority]
    return severity(priority) or (9, "INFO")


def _time_ns(fields: Mapping[str, Any], now_ns: int) -> int:
    for key in _TIMES:
        text = fields.get(key)
        if isinstance(text, str) and text.isdecimal() and len(text) < 19:
            return min(int(text) * 1000, INT64_MAX)
    return now_ns

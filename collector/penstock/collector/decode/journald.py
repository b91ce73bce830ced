"""Entries of the systemd journal, as `journalctl --output=json` writes them, as log records.

``MESSAGE`` is the body, ``PRIORITY`` the severity, the unit or else the identifier the service. The
other fields are attributes ``journald.<name in lower case>``; ``__`` opens the journal's own
addresses, which are left out. ``_`` opens what the journal itself found out of the sender, which no
sender can set: a field named like those (``UID`` beside ``_UID``) is ``journald.sent.uid``.

A field that its sender gave several times comes as a list of its values, and one that is not UTF-8
as a list of its bytes.
"""

from collections import Counter
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
_FOUND_OUT: Final = frozenset(
    (
        "PID", "UID", "GID", "COMM", "EXE", "CMDLINE", "CAP_EFFECTIVE", "AUDIT_SESSION",
        "AUDIT_LOGINUID", "SYSTEMD_CGROUP", "SYSTEMD_SLICE", "SYSTEMD_UNIT", "SYSTEMD_USER_UNIT",
        "SYSTEMD_USER_SLICE", "SYSTEMD_SESSION", "SYSTEMD_OWNER_UID", "SYSTEMD_INVOCATION_ID",
        "SELINUX_CONTEXT", "SOURCE_REALTIME_TIMESTAMP", "BOOT_ID", "MACHINE_ID", "HOSTNAME",
        "TRANSPORT", "STREAM_ID", "NAMESPACE", "RUNTIME_SCOPE", "KERNEL_DEVICE",
        "KERNEL_SUBSYSTEM", "UDEV_SYSNAME", "UDEV_DEVNODE", "UDEV_DEVLINK",
    )
)  # fmt: skip
"""Trusted fields, which the journal adds, by systemd.journal-fields(7), without their leading `_`.
"""
_ELSEWHERE: Final = frozenset({"MESSAGE", "PRIORITY", "_HOSTNAME", "_SOURCE_REALTIME_TIMESTAMP"})
_ADDRESSES: Final = frozenset(
    {"__CURSOR", "__MONOTONIC_TIMESTAMP", "__REALTIME_TIMESTAMP", "__SEQNUM", "__SEQNUM_ID"}
)
"""The journal's own addresses of an entry, which every entry has."""


def cursor_of(entry: bytes) -> str | None:
    """The journal's name of an entry's position; None when the line is no entry."""
    try:
        cursor = orjson.loads(entry)["__CURSOR"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return cursor if isinstance(cursor, str) else None


def decode_entry(
    entry: bytes,
    service: str,
    resource: Mapping[str, Any],
    now_ns: int,
    notes: Counter[str] | None = None,
) -> bytes:
    """Make a log record of an entry.

    Args:
        entry: One line.
        service: Service name, or ``from_unit``.
        resource: The collector's.
        now_ns: Time of the read.
        notes: Counter of what is not understood.

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
        _name(key, fields): _value(value)
        for key, value in fields.items()
        if key not in _ELSEWHERE and not key.startswith("__")
    }
    notes = Counter() if notes is None else notes
    addresses = {key for key in fields if key.startswith("__")}
    if not addresses <= _ADDRESSES:
        notes["fields_unknown"] += len(addresses - _ADDRESSES)
    number, text = _severity(fields.get("PRIORITY"), named, notes)
    if service == "from_unit":
        service = next((_text(fields[key]) for key in _SERVICES if fields.get(key)), "journald")
    own = {**resource, "service.name": service[:SERVICE_CHARACTERS_MAX]}
    if fields.get("_HOSTNAME"):
        own["host.name"] = _text(fields["_HOSTNAME"])
    body = _body(fields.get("MESSAGE"), named)
    if len(body) > STRING_CHARACTERS_MAX:
        named["log.record.truncated"] = True
    attributes, left_out = flatten(named)
    record: dict[str, Any] = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": _time_ns(fields, now_ns, notes),
        "observed_time_unix_nano": now_ns,
        "severity_number": number,
        "severity_text": text,
        "body": body[:STRING_CHARACTERS_MAX],
        "resource": own,
        "attributes": attributes,
    }
    return orjson.dumps(record | ({"dropped_attributes_count": left_out} if left_out else {}))


def _name(key: str, fields: Mapping[str, Any]) -> str:
    """Return the attribute's name for an entry's field."""
    if key.startswith("_"):
        return f"journald.{key.lower().lstrip('_')}"
    is_found_out = key in _FOUND_OUT or f"_{key}" in fields
    return f"journald.{'sent.' if is_found_out else ''}{key.lower()}"


def _body(message: Any, attributes: dict[str, Any]) -> str:
    if message is None:
        return ""
    if isinstance(message, list) and not _is_bytes(message):
        return "\n".join(_body(one, attributes) for one in message)
    return text_of(bytes(message), attributes) if _is_bytes(message) else _text(message)


def _is_bytes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(n) is int and 0 <= n < 256 for n in value)
    )


def _value(value: Any) -> Any:
    return bytes(value) if _is_bytes(value) else value


def _text(value: Any) -> str:
    """A field's text; the first, where it has several."""
    if _is_bytes(value):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0]
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _severity(priority: Any, attributes: dict[str, Any], notes: Counter[str]) -> tuple[int, str]:
    """Return the severity of a priority; a value that is no priority becomes an attribute."""
    known = _NUMBERED.get(priority) if isinstance(priority, str) else None
    if known is None and priority is not None:
        attributes["journald.priority"] = priority
        notes["levels_unknown"] += 1
    return severity(known) or (9, "INFO")


def _time_ns(fields: Mapping[str, Any], now_ns: int, notes: Counter[str]) -> int:
    for key in _TIMES:
        text = fields.get(key)
        if isinstance(text, str) and text.isdecimal() and len(text) < 19:
            return min(int(text) * 1000, INT64_MAX)
    if any(fields.get(key) is not None for key in _TIMES):
        notes["timestamps_unreadable"] += 1
    return now_ns

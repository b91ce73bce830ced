"""Records for people: one line each on a terminal, stack traces below."""

import json
import time
from collections.abc import Mapping
from typing import Any, Final

_COLOURS: Final = ((17, "31"), (13, "33"), (9, "32"), (0, "2"))
"""Colours by the least severity that has them (ECMA-48, select graphic rendition)."""
_HIDDEN: Final = ("exception.", "process.", "system.", "code.", "thread.")
"""Attributes that would drown the others; the records themselves have them."""


def render(line: bytes) -> bytes:
    """One record's line as text, coloured; what is no record comes back as it is."""
    try:
        record = json.loads(line)
        return _text(record).encode("utf-8", "replace")
    except (ValueError, TypeError, AttributeError):
        return line


def _text(record: Mapping[str, Any]) -> str:
    seconds, rest = divmod(int(record["time_unix_nano"]), 10**9)
    clock = time.strftime("%H:%M:%S", time.localtime(seconds))
    failed = record.get("status_code") == "ERROR"
    severity = 17 if failed else int(record.get("severity_number", 9))
    colour = next(code for least, code in _COLOURS if severity >= least)
    kind = str(record.get("severity_text") or record["kind"]).upper()
    attributes: Mapping[str, Any] = record.get("attributes") or {}
    shown = {k: v for k, v in attributes.items() if not k.startswith(_HIDDEN)}
    pairs = " ".join(
        f"{key}={_value(value)}" for key, value in {**_context(record), **shown}.items()
    )
    head = f"\x1b[2m{clock}.{rest // 10**6:03}\x1b[0m \x1b[{colour}m{kind:<5}\x1b[0m"
    scope = f" \x1b[2m{record['scope']}\x1b[0m" if record.get("scope") else ""
    parts = [f"{head}{scope} \x1b[1m{_printable(_subject(record))}\x1b[0m", pairs]
    text = " ".join(part for part in parts if part)
    trace = attributes.get("exception.stacktrace")
    if trace:
        text += "\n" + "\n".join(f"    {_printable(each)}" for each in str(trace).splitlines())
    return text


def _subject(record: Mapping[str, Any]) -> str:
    """Return a few words that say what happened, by kind."""
    match record["kind"]:
        case "log":
            return str(record.get("body", ""))
        case "span":
            took = (record["end_time_unix_nano"] - record["time_unix_nano"]) / 1e6
            return f"{record['name']} {took:.1f} ms"
        case "metric":
            value = record.get("value", record.get("sum", record.get("count")))
            return f"{record['name']} {value} {record['unit']}"
        case "audit":
            actor, target = record["actor"], record["target"]
            return (
                f"{actor['type']}:{actor['id']} {record['action']}"
                f" {target['type']}:{target['id']} {record['outcome']}"
            )
        case _:
            return str(record.get("event_name", record["schema"]))


def _context(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return record.get("context") or {}


def _value(value: Any) -> str:
    plain = isinstance(value, str) and value.isprintable() and value and " " not in value
    return str(value) if plain else json.dumps(value, ensure_ascii=True)


def _printable(text: str) -> str:
    """Without control characters: a record must not command a terminal."""
    return "".join(c if c.isprintable() or c == " " else "�" for c in text)

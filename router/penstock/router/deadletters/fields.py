"""The fields of a dead letter that is read back: what each must say, and what it means.

Dead letters may be another version's, another program's, or edited by hand.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_US: Final = 1000
_LONG: Final = range(-(2**63), 2**63)
_POSITION: Final = {"partition": range(2**31), "offset": range(2**63 - 1)}
_TEXTS: Final = ("subject", "incarnation", "key", "value")
_CODED: Final = ("key_base64", "value_base64")
_UNSAFE: Final = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that turn text around, and halves of characters."""


def problem_with_position(dead_letter: Mapping[str, Any]) -> str | None:
    """Why nobody knows where its record lies in the log; None: they do."""
    if not isinstance(dead_letter.get("stream"), str):
        return "says nothing usable as 'stream'"
    for key, allowed in _POSITION.items():
        if type(found := dead_letter.get(key)) is not int or found not in allowed:
            return f"says nothing usable as {key!r}"
    return None


def problem_with_row(dead_letter: Mapping[str, Any]) -> str | None:
    """Why no row can be made of it; None: one can."""
    for key in ("stream", *_TEXTS):
        if not _is_text(dead_letter.get(key)):
            return f"has in {key!r} what is no text"
    for key in _CODED:
        if not _is_base64(dead_letter.get(key)):
            return f"has in {key!r} what is no base64"
    time_ns = dead_letter.get("timestamp_ns")
    if time_ns is None and _refused_ns(dead_letter) is None:
        return "says neither as 'timestamp_ns' nor as 'time' when it was"
    if time_ns is not None and (type(time_ns) is not int or time_ns not in _LONG):
        return "says nothing usable as 'timestamp_ns'"
    return None


def time_ns_of(dead_letter: Mapping[str, Any]) -> int:
    """Return when the log received the record, else when it was refused; in ns since 1970."""
    time_ns = dead_letter.get("timestamp_ns")
    found = _refused_ns(dead_letter) if time_ns is None else int(time_ns)
    assert found is not None
    return found


def bytes_of(dead_letter: Mapping[str, Any], name: str) -> bytes | None:
    """The key or the value."""
    if (coded := dead_letter.get(f"{name}_base64")) is not None:
        return base64.b64decode(coded)
    text: str | None = dead_letter.get(name)
    return None if text is None else text.encode()


def shown(line: str) -> str:
    """A line for a terminal, which nothing in a record commands; JSON stays that."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _refused_ns(dead_letter: Mapping[str, Any]) -> int | None:
    """A time without a zone is UTC, in which dead letters are written."""
    try:
        refused = datetime.fromisoformat(dead_letter.get("time", ""))
    except (TypeError, ValueError):
        return None
    if refused.tzinfo is None:
        refused = refused.replace(tzinfo=UTC)
    time_ns = (refused - _EPOCH) // timedelta(microseconds=1) * _NS_PER_US
    return time_ns if time_ns in _LONG else None


def _is_text(value: object) -> bool:
    if value is None:
        return True
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # half a character, as JSON's escapes can say
        return False


def _is_base64(value: object) -> bool:
    if value is None:
        return True
    try:
        return isinstance(value, str) and base64.b64decode(value, validate=True) is not None
    except (binascii.Error, ValueError):
        return False

r"""Security events: ArcSight's Common Event Format and IBM's Log Event Extended Format.

From "Implementing ArcSight Common Event Format (CEF)", version 26, and QRadar's "LEEF" guide:

    CEF:0|vendor|product|version|class id|name|severity|key=value key=value
    LEEF:1.0|vendor|product|version|event id|key=value<TAB>key=value
    LEEF:2.0|vendor|product|version|event id|delimiter|key=value^key=value

Both may stand behind the head of a syslog message. In the head of a CEF event ``\|`` and ``\\``
are escaped, in its extension ``\=``, ``\\``, ``\n`` and ``\r``; any other backslash stays, as that
of a path which its sender did not escape. LEEF escapes nothing. A value of CEF ends where the next
``key=`` begins, blanks included.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.collector.decode.severity import Severity
from penstock.collector.decode.timestamps import layouts_of, text_time_ns

Event = dict[str, Any]

_PART: Final = r"([^|\\]*(?:\\.[^|\\]*)*)"
_CEF: Final = re.compile(
    rf"CEF:([0-9]{{1,3}}(?:\.[0-9]{{1,3}})?)\|{_PART}\|{_PART}\|{_PART}\|{_PART}\|{_PART}\|{_PART}"
    r"(?:\||\Z)",
    re.DOTALL,
)
_CEF_NAMES: Final = (
    "cef.version", "cef.device.vendor", "cef.device.product", "cef.device.version",
    "cef.device.event_class_id", "cef.name", "cef.severity",
)  # fmt: skip
_KEY: Final = re.compile(r"(?:\A|(?<=\s))([A-Za-z0-9_.\[\]-]{1,200})=")
_HEAD_ESCAPE: Final = re.compile(r"\\([\\|])")
_ESCAPE: Final = re.compile(r"\\([\\|=nr])")
_ESCAPED: Final = {"n": "\n", "r": "\r"}
_LEEF: Final = re.compile(r"LEEF:([12])(?:\.0)?\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)(?:\||\Z)")
_LEEF_NAMES: Final = (
    "leef.version", "leef.device.vendor", "leef.device.product", "leef.device.version",
    "leef.event_id",
)  # fmt: skip
_DELIMITER: Final = re.compile(r"(?:(?:0?x)([0-9A-Fa-f]{1,4})|(\||[^|])?)\|")
_LAYOUTS: Final = layouts_of(
    ["auto", "%b %d %Y %H:%M:%S %Z", "%b %d %Y %H:%M:%S.%f %Z", "%b %d %Y %H:%M:%S %z",
     "%b %d %Y %H:%M:%S.%f %z"]
)  # fmt: skip


class EventForm(NamedTuple):
    """How the parts of a record are found among the keys of an event.

    Attributes:
        bodies: Keys of the text, the first that has one counts.
        times: Keys of the time, likewise.
        severity: Key of the severity.
        device: Key of the product that sent it.
    """

    name: str
    marker: bytes
    bodies: tuple[str, ...]
    times: tuple[str, ...]
    severity: str
    device: str


CEF: Final = EventForm(
    "cef",
    b"CEF:",
    ("cef.extensions.msg", "cef.name"),
    ("cef.extensions.rt", "cef.extensions.end", "cef.extensions.start"),
    "cef.severity",
    "cef.device.product",
)
LEEF: Final = EventForm(
    "leef",
    b"LEEF:",
    ("leef.extensions.msg", "leef.event_id"),
    ("leef.extensions.devTime",),
    "leef.extensions.sev",
    "leef.device.product",
)


def read_cef(text: str, notes: Counter[str] | None = None) -> Event | None:
    """The event in a text; None when it has none.

    Of a key that is repeated the last counts; `notes` has the number of the others.
    """
    head = _CEF.search(text)
    if head is None:
        return None
    event: Event = {
        name: _HEAD_ESCAPE.sub(r"\1", part.strip())
        for name, part in zip(_CEF_NAMES, head.groups(), strict=True)
        if part
    }
    extension = text[head.end() :]
    keys = list(_KEY.finditer(extension))
    ends = [*(key.start() for key in keys), len(extension)]
    if before := extension[: ends[0]].strip():  # it belongs to no key
        event["cef.extensions"] = before
    for key, end in zip(keys, ends[1:], strict=True):
        event[f"cef.extensions.{key[1]}"] = _unescaped(extension[key.end() : end].strip())
    if notes is not None and len(keys) > 1:
        notes["keys_repeated"] += len(keys) - len({key[1] for key in keys})
    return event


def read_leef(text: str, notes: Counter[str] | None = None) -> Event | None:
    """The event in a text, as `read_cef`; None when it has none."""
    head = _LEEF.search(text)
    if head is None:
        return None
    event: Event = {
        name: part for name, part in zip(_LEEF_NAMES, head.groups(), strict=True) if part
    }
    at, delimiter = head.end(), "\t"
    if head[1] == "2" and (given := _DELIMITER.match(text, at)) is not None:
        at = given.end()
        delimiter = chr(int(given[1], 16)) if given[1] else given[2] or delimiter
    alone: list[str] = []
    repeated = 0
    for pair in text[at:].split(delimiter):
        key, equals, value = pair.partition("=")
        if equals and (key := key.strip()):
            name = f"leef.extensions.{key[:200]}"
            repeated += name in event
            event[name] = value.strip()
        elif pair.strip():
            alone.append(pair.strip())
    if alone:  # they belong to no key
        event["leef.extensions"] = delimiter.join(alone)
    if repeated and notes is not None:
        notes["keys_repeated"] += repeated
    return event


_NAMED: Final = {"unknown": 9, "low": 9, "medium": 13, "high": 17, "very-high": 21}
_BY_NUMBER: Final = (9, 9, 9, 9, 13, 13, 13, 17, 17, 21, 21)
_TEXTS: Final = {9: "INFO", 13: "WARN", 17: "ERROR", 21: "FATAL"}


def severity_of_event(value: str) -> Severity | None:
    """The severity of an event, 0 to 10 or CEF's word for it; None when it is neither.

    0 to 3 is low (INFO), 4 to 6 medium (WARN), 7 and 8 high (ERROR), 9 and 10 very high (FATAL).
    """
    text = value.strip().lower()
    number = _NAMED.get(text)
    if number is None and text.isascii() and text.isdecimal() and len(text) <= 2:
        rank = int(text)
        number = _BY_NUMBER[rank] if rank < len(_BY_NUMBER) else None
    return None if number is None else (number, _TEXTS[number])


def time_of_event(event: Event, form: EventForm, now_ns: int) -> tuple[int | None, bool]:
    """The time of an event, and whether one stands there; None: it cannot be read."""
    text = next((event[key] for key in form.times if event.get(key)), "")
    return (text_time_ns(text, now_ns, layouts=_LAYOUTS) if text else None), bool(text)


def first_text(event: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The first of some keys that has a text; empty: none has."""
    return next((value for key in keys if (value := event.get(key)).__class__ is str and value), "")


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)

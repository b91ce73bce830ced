"""StatsD lines, with DogStatsD's additions (its protocol v1.0 to v1.3).

    name:value[:value...]|type[|@rate][|#tag:value,flag...][|c:container][|T<seconds>]
    _e{<bytes of title>,<bytes of text>}:title|text[|d:<seconds>][|h:host][|p:priority][|t:type]...
    _sc|name|status[|d:<seconds>][|h:host][|#tags][|m:message]

Types: ``c`` counter, ``g`` gauge (with a sign: relative), ``ms`` timer, ``h`` and ``d`` histogram,
``s`` set. Fields that are not known are ignored, as the protocol asks; the result names them.
"""

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import STATSD_LINE_BYTES_MAX, STATSD_RATE_MIN, STATSD_TAGS_MAX

Tags = tuple[tuple[str, str | bool], ...]
_EVENT: Final = re.compile(rb"_e\{([0-9]{1,5}),([0-9]{1,5})\}:")
_SIGNS: Final = (b"@", b"#", b"T")
_UNKNOWN_BYTES_MAX: Final = 16
"""Maximum bytes of the name of an unknown field, as it is counted and logged."""
_SECONDS_MAX: Final = 1 << 33


class Kind(Enum):
    """The type of a sample."""

    COUNTER = b"c"
    GAUGE = b"g"
    TIMER = b"ms"
    HISTOGRAM = b"h"
    DISTRIBUTION = b"d"
    SET = b"s"


TIMED: Final = (Kind.COUNTER, Kind.GAUGE)
"""Types whose values may have a time that their sender gave them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric.

    Attributes:
        values: Numbers; of a set its members instead, in `members`.
        relative: The gauge is changed by it, not set to it.
        rate: The share of events that were sent.
        time_s: Time of a value that its sender aggregated itself.
        unknown: Names of the line's fields that are not known.
        lost: Names of the notes that count what else of the line has no place.
    """

    kind: Kind
    name: str
    tags: Tags
    values: tuple[float, ...] = ()
    members: tuple[bytes, ...] = ()
    relative: bool = False
    rate: float = 1.0
    time_s: int | None = None
    unknown: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """An event or the outcome of a service check.

    Attributes:
        level: Name of a severity.
        facts: Further facts.
        unknown: As in `Sample`.
        lost: Likewise.
    """

    name: str
    body: str
    level: str
    tags: Tags
    facts: dict[str, str] = field(default_factory=dict)
    time_s: int | None = None
    unknown: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def parse_line(line: bytes) -> Sample | Notice:
    """Read one line without its newline.

    Raises:
        RemoteProtocolError: It is none, or longer than `STATSD_LINE_BYTES_MAX`.
    """
    if len(line) > STATSD_LINE_BYTES_MAX:
        raise RemoteProtocolError(f"line above {STATSD_LINE_BYTES_MAX} bytes")
    if line.startswith(b"_e{"):
        return _parse_event(line)
    if line.startswith(b"_sc|"):
        return _parse_check(line)
    head, *fields = line.split(b"|")
    name, colon, text = head.partition(b":")
    if not name or not colon or not text or not fields:
        raise RemoteProtocolError("a line is name:value|type")
    try:
        kind = Kind(fields[0])
    except ValueError:
        raise RemoteProtocolError("the type is none of c g ms h d s") from None
    extra, unknown, lost = _extra(fields[1:], "@#Tc")
    tags, rate, time_s = _tags(extra, lost), _rate(extra.get("@")), _seconds(extra.get("T"))
    if rate != 1.0 and kind in (Kind.SET, Kind.GAUGE):
        lost.append("rates_dropped")
    if time_s is not None and kind not in TIMED:
        lost.append("times_dropped")
    if kind is Kind.SET:
        return Sample(kind, _text(name), tags, members=(text,), unknown=unknown, lost=tuple(lost))
    values = tuple(_number(part) for part in text.split(b":"))
    relative = kind is Kind.GAUGE and text[:1] in (b"+", b"-")
    return Sample(kind, _text(name), tags, values, (), relative, rate, time_s, unknown, tuple(lost))


def _parse_event(line: bytes) -> Notice:
    match = _EVENT.match(line)
    if match is None:
        raise RemoteProtocolError("an event begins with _e{<title bytes>,<text bytes>}:")
    middle = match.end() + int(match[1])
    end = middle + 1 + int(match[2])
    if (
        end > len(line)
        or line[middle : middle + 1] != b"|"
        or line[end : end + 1] not in (b"|", b"")
    ):
        raise RemoteProtocolError("an event's lengths do not fit its text")
    extra, unknown, lost = _extra(line[end + 1 :].split(b"|"), "dhkpst#c")
    title, text = _lines(line[match.end() : middle]), _lines(line[middle + 1 : end])
    facts = {
        "priority": "p", "aggregation_key": "k", "source_type_name": "s", "host": "h",
        "alert_type": "t",
    }  # fmt: skip
    level = {"error": "error", "warning": "warning"}.get(_text(extra.get("t", b"")), "info")
    return Notice(
        "dogstatsd.event", f"{title}\n{text}" if text else title, level, _tags(extra, lost),
        {name: _text(extra[key]) for name, key in facts.items() if key in extra},
        _seconds(extra.get("d")), unknown, tuple(lost),
    )  # fmt: skip


def _parse_check(line: bytes) -> Notice:
    _, name, *rest = line.split(b"|")
    levels = {b"0": "info", b"1": "warning", b"2": "error", b"3": "warning"}
    if not name or not rest or rest[0] not in levels:
        raise RemoteProtocolError("a service check is _sc|name|status with a status from 0 to 3")
    extra, unknown, lost = _extra(rest[1:], "dhm#c")
    facts = {"check": _text(name), "status": _text(rest[0])}
    if "h" in extra:
        facts["host"] = _text(extra["h"])
    return Notice(
        "dogstatsd.service_check", _lines(extra.get("m", name)), levels[rest[0]],
        _tags(extra, lost), facts, _seconds(extra.get("d")), unknown, tuple(lost),
    )  # fmt: skip


def _extra(fields: list[bytes], known: str) -> tuple[dict[str, bytes], tuple[str, ...], list[str]]:
    """Optional fields by what opens them, the names of others, and the notes on repeated ones.

    Args:
        fields: What stands between bars.
        known: What opens a field: one of ``@ # T``, or a letter before a colon.
    """
    found: dict[str, bytes] = {}
    unknown: list[str] = []
    lost: list[str] = []
    for part in fields:
        key = part[:1].decode("latin-1")
        if key in found:
            lost.append("fields_repeated")
        if key in known and part[:1] in _SIGNS:
            found[key] = part[1:]
        elif key in known and part[1:2] == b":":
            found[key] = part[2:]
        elif part:
            unknown.append(_text(part.partition(b":")[0][:_UNKNOWN_BYTES_MAX]))
    return found, tuple(unknown), lost


def _tags(extra: dict[str, bytes], lost: list[str]) -> Tags:
    """Tags in one order, each key once; a tag without a value is true.

    Args:
        extra: Fields of the line.
        lost: Takes the notes on tags that are repeated.
    """
    found: dict[str, str | bool] = {}
    for tag in _text(extra.get("#", b"")).split(","):
        key, colon, value = tag.partition(":")
        if key:
            if key in found:
                lost.append("tags_repeated")
            found[key] = value if colon else True
    if "c" in extra:
        found["container.id"] = _text(extra["c"])
    if len(found) > STATSD_TAGS_MAX:
        raise RemoteProtocolError(f"more than {STATSD_TAGS_MAX} tags")
    return tuple(sorted(found.items()))


def _rate(text: bytes | None) -> float:
    """A sample rate; 0 means 1, as in the reference server."""
    rate = (1.0 if text is None else _number(text)) or 1.0
    if not STATSD_RATE_MIN <= rate <= 1:
        raise RemoteProtocolError(f"the sample rate is not 0, nor from {STATSD_RATE_MIN} to 1")
    return rate


def _seconds(text: bytes | None) -> int | None:
    if text is None:
        return None
    seconds = _number(text)
    if not 0 <= seconds < _SECONDS_MAX:
        raise RemoteProtocolError("the time is not in seconds since 1970")
    return int(seconds)


def _number(text: bytes) -> float:
    try:
        value = float(text.replace(b"_", b"x"))  # else 1_0 would be 10, as Python writes it
    except ValueError:
        raise RemoteProtocolError("a value is no number") from None
    if not math.isfinite(value):
        raise RemoteProtocolError("a value is not finite")
    return value


def _lines(text: bytes) -> str:
    return _text(text.replace(b"\\n", b"\n"))


def _text(text: bytes) -> str:
    return text.decode("utf-8", "replace")

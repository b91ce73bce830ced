"""Times as programs write them, as nanoseconds since 1970.

A number is a time by its magnitude: seconds, milliseconds, microseconds or nanoseconds since 1970,
from 1973 on. A text is one of the named layouts below, or of a layout that is written as for
`strptime`. A layout without a year has the year that brings the time nearest to now; one without a
zone is in the zone that is given.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson

from penstock.specs.limits import INT64_MAX

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_NS: Final = 1_000_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
_NANOSECONDS: Final = re.compile(r"[.,]\d{6}(\d{1,3})")
_YEAR: Final = timedelta(days=366)
MONTHS: Final = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip
_MONTH_NUMBERS: Final = {name: number for number, name in enumerate(MONTHS, 1)}


def iso_time_ns(text: str, zone: tzinfo = UTC) -> int | None:
    """ISO 8601 text, in `zone` when it names none; None when no record can hold it.

    Nine digits of a second are kept; `datetime` itself knows six.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    time_ns = (moment - _EPOCH) // _MICROSECOND * 1000
    is_usual = text[19:20] == "." and text[26:] == "Z"  # six digits of a second
    if not is_usual and (more := _NANOSECONDS.search(text)):
        time_ns += int(more[1].ljust(3, "0"))
    return time_ns if 0 <= time_ns <= INT64_MAX else None


_SCALES: Final = ((10**8, 10**11, 10**9), (10**11, 10**14, 10**6), (10**14, 10**17, 10**3))
"""Least value, end, and nanoseconds of one, for seconds, milliseconds and microseconds."""


def epoch_time_ns(value: float | Decimal) -> int | None:
    """A number as the time since 1970 in the unit that its magnitude tells; None when it is none.

    What is before 1973-03-03 in seconds is no time but, more likely, a duration or a counter; no
    record can hold what is after 2262-04-11.
    """
    for least, end, unit_ns in _SCALES:
        if least <= value < end:
            if isinstance(value, int):
                time_ns = value * unit_ns
            else:
                exact = value if isinstance(value, Decimal) else Decimal(repr(value))
                time_ns = int(exact * unit_ns)
            return time_ns if time_ns <= INT64_MAX else None
    return int(value) if 10**17 <= value <= INT64_MAX else None


def epoch_text_ns(text: str) -> int | None:
    """`epoch_time_ns` for a number in text."""
    if not text[:1].isdecimal() or len(text) > _EPOCH_CHARACTERS_MAX:
        return None
    try:
        return epoch_time_ns(Decimal(text))
    except InvalidOperation:
        return None


_EPOCH_CHARACTERS_MAX: Final = 32


class UnknownLayoutError(ValueError):
    """A layout is neither named nor one that can be compiled; the text says why."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to write a time.

    Attributes:
        pattern: Finds it, with named groups for its parts.
    """

    name: str
    pattern: re.Pattern[str]

    def read(self, text: str, now_ns: int, zone: tzinfo) -> int | None:
        """The time that a whole text is; None when it is none."""
        found = self.pattern.fullmatch(text)
        return None if found is None else _time_of(found.groupdict(), now_ns, zone)


_MONTH: Final = rf"(?P<month>{'|'.join(MONTHS)})"
_WEEKDAY: Final = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_CLOCK: Final = r"(?P<hour>[01]\d|2[0-4]):(?P<minute>[0-5]\d):(?P<second>[0-6]\d)"
_FRACTION: Final = r"(?:[.,](?P<fraction>\d{1,9}))?"
_OFFSET: Final = r"(?P<zone>Z|[+-]\d{2}:?\d{2}|[A-Z]{3,5})"
_DAY: Final = r"(?P<day>[ 0-3]?\d)"
_YEAR_DIGITS: Final = r"(?P<year>\d{4})"
_TWO: Final = r"(?P<{0}>\d{{2}})"

_PATTERNS: Final = {
    "iso8601": rf"{_YEAR_DIGITS}-(?P<month>\d\d)-(?P<day>\d\d)[T ]{_CLOCK}{_FRACTION}"
    rf"(?: ?(?P<zone>Z|[+-]\d{{2}}(?::?\d{{2}})?|[A-Z]{{3,5}})(?![\w:]))?",
    "nginx": rf"{_YEAR_DIGITS}/(?P<month>\d\d)/(?P<day>\d\d) {_CLOCK}{_FRACTION}",
    "spark": rf"(?P<year>\d\d)/(?P<month>\d\d)/(?P<day>\d\d) {_CLOCK}{_FRACTION}",
    "hdfs": r"(?P<year>\d\d)(?P<month>[01]\d)(?P<day>[0-3]\d) "
    r"(?P<hour>[0-2]\d)(?P<minute>[0-5]\d)(?P<second>[0-6]\d)",
    "mysql": rf"(?P<year>\d\d)(?P<month>[01]\d)(?P<day>[0-3]\d) {_CLOCK.replace('[01]', '[ 01]?')}",
    "clf": rf"(?P<day>\d\d)/{_MONTH}/{_YEAR_DIGITS}:{_CLOCK}{_FRACTION} (?P<zone>[+-]\d{{4}})",
    "apache_error": rf"{_WEEKDAY} {_MONTH} {_DAY} {_CLOCK}{_FRACTION}(?: {_OFFSET})?"
    rf" {_YEAR_DIGITS}",
    "rfc1123": rf"{_WEEKDAY}, {_DAY} {_MONTH} {_YEAR_DIGITS} {_CLOCK} {_OFFSET}",
    "jul": rf"{_MONTH} {_DAY}, {_YEAR_DIGITS},? (?P<hour>\d{{1,2}}):(?P<minute>[0-5]\d)"
    r":(?P<second>[0-6]\d)\s(?P<half>AM|PM)",
    "redis": rf"{_DAY} {_MONTH} {_YEAR_DIGITS} {_CLOCK}{_FRACTION}",
    "rfc3164": rf"{_MONTH} {_DAY} (?:{_YEAR_DIGITS} )?{_CLOCK}{_FRACTION}",
    "klog": rf"[IWEF](?P<month>[01]\d)(?P<day>[0-3]\d) {_CLOCK}{_FRACTION}",
    "android": rf"(?P<month>[01]\d)-(?P<day>[0-3]\d) {_CLOCK}{_FRACTION}",
    "dotted": rf"{_YEAR_DIGITS}-(?P<month>\d\d)-(?P<day>\d\d)-"
    r"(?P<hour>[0-2]\d)\.(?P<minute>[0-5]\d)\.(?P<second>[0-6]\d)\.(?P<fraction>\d{1,9})",
    "epoch": r"(?P<epoch>1\d{9}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?)(?![\d.])",
}
"""Patterns by name, in the order in which they are tried."""
_ALIASES: Final = {
    **dict.fromkeys(("log4j", "rfc3339", "postgres"), "iso8601"), "go": "nginx", "apache": "clf"
}  # fmt: skip
AUTO: Final = "auto"
LAYOUTS: Final = {name: Layout(name, re.compile(text)) for name, text in _PATTERNS.items()}
LAYOUT_NAMES: Final = (AUTO, *LAYOUTS, *_ALIASES)


def layouts_of(names: Sequence[str]) -> tuple[Layout, ...]:
    """Named layouts, or such as for `strptime`; ``auto`` is all named ones.

    Raises:
        UnknownLayoutError: One is neither.
    """
    found: list[Layout] = []
    for name in names:
        if name == AUTO:
            found += LAYOUTS.values()
        elif known := LAYOUTS.get(_ALIASES.get(name, name)):
            found.append(known)
        elif "%" in name:
            found.append(Layout(name, _compiled(name)))
        else:
            known_names = ", ".join(sorted(LAYOUT_NAMES))
            raise UnknownLayoutError(
                f"{name!r} is no layout: name one of {known_names}, or write it as for strptime,"
                " as in %d.%m.%Y %H:%M:%S"
            )
    return tuple(dict.fromkeys(found))


_DIRECTIVES: Final = {
    "Y": _YEAR_DIGITS,
    "y": _TWO.format("year"),
    "m": r"(?P<month>\d{1,2})",
    "d": _DAY,
    "e": _DAY,
    "b": _MONTH,
    "B": r"(?P<month>[A-Z][a-z]{2,8})",
    "a": _WEEKDAY,
    "A": r"[A-Z][a-z]{5,8}",
    "H": r"(?P<hour>[ 0-2]?\d)",
    "I": r"(?P<hour>[ 01]?\d)",
    "p": r"(?P<half>AM|PM|am|pm)",
    "M": _TWO.format("minute"),
    "S": _TWO.format("second"),
    "f": r"(?P<fraction>\d{1,9})",
    "z": r"(?P<zone>Z|[+-]\d{2}:?\d{2})",
    "Z": r"(?P<zone>[A-Z]{1,5})",
    "s": r"(?P<epoch>\d{9,10})",
    "%": "%",
}


def _compiled(layout: str) -> re.Pattern[str]:
    """A layout as for `strptime`, compiled.

    Raises:
        UnknownLayoutError: It has a directive that is not known, or one twice.
    """
    parts: list[str] = []
    at = 0
    while at < len(layout):
        if layout[at] != "%":
            parts.append(r"\s+" if layout[at].isspace() else re.escape(layout[at]))
            at += 1
            continue
        part = _DIRECTIVES.get(layout[at + 1 : at + 2])
        if part is None:
            raise UnknownLayoutError(
                f"{layout!r}: %{layout[at + 1 : at + 2]} is not known; known are "
                + " ".join(f"%{letter}" for letter in _DIRECTIVES)
            )
        parts.append(part)
        at += 2
    try:
        return re.compile("".join(parts))
    except re.error:
        raise UnknownLayoutError(f"{layout!r}: a part of the time stands there twice") from None


def text_time_ns(
    text: str,
    now_ns: int,
    zone: tzinfo = UTC,
    layouts: Sequence[Layout] = tuple(LAYOUTS.values()),
) -> int | None:
    """The time that a whole text is, by the first layout that it is of; None when it is of none."""
    for layout in layouts:
        if (time_ns := layout.read(text, now_ns, zone)) is not None:
            return time_ns
    return None


TimeReader = Callable[[str, int], int | None]
"""Finds a time in a text; the integer is now, in nanoseconds since 1970."""


def line_reader(layouts: Sequence[Layout], zone: tzinfo) -> TimeReader:
    """Return a function that finds the time at a line's beginning, or behind up to three words."""
    wanted = [re.compile(_HEAD + layout.pattern.pattern) for layout in layouts]
    last = [wanted[0]]  # the lines of one file mostly have one layout

    def read(text: str, now_ns: int) -> int | None:
        head = text[:_HEAD_CHARACTERS]
        if _DIGIT.search(head) is None:
            return None
        best: tuple[int, int] | None = None
        for pattern in (last[0], *wanted):
            found = pattern.match(head)
            if found is None or (best is not None and found.end("head") >= best[0]):
                continue
            time_ns = _time_of(found.groupdict(), now_ns, zone, in_line=True)
            if time_ns is not None:
                best = found.end("head"), time_ns
                if pattern is last[0]:
                    break
                last[0] = pattern
        return None if best is None else best[1]

    return read


_DIGIT: Final = re.compile(r"\d")


_HEAD_CHARACTERS: Final = 256
_HEAD: Final = r"(?P<head>(?:[^\s]{1,64}\s{1,4}){0,3}?[\[(<\"']{0,2})"
"""Before the time: as few words as possible, and what opens it."""


def _time_of(
    parts: dict[str, str | None], now_ns: int, zone: tzinfo, *, in_line: bool = False
) -> int | None:
    """The time that the parts of a match say; None when there is no such time.

    Args:
        parts: The parts by the names of the patterns' groups.
        now_ns: Time nearest to which a missing year is chosen.
        zone: Time zone where the parts name none.
        in_line: A word behind the time is a zone only where there is such a zone.
    """
    if (epoch := parts.get("epoch")) is not None:
        return epoch_text_ns(epoch)
    own = parts.get("zone")
    found_zone = zone if own is None else _zone_of(own)
    if found_zone is None:
        if not in_line or not str(own).isalpha():
            return None
        found_zone = zone
    hour = _hour(parts.get("hour") or "0", parts.get("half"))
    year, month, day = parts.get("year"), parts.get("month") or "1", parts.get("day") or "1"
    number = _MONTH_NUMBERS.get(month[:3]) if month[:1].isalpha() else int(month)
    if number is None or hour is None:
        return None
    second = min(int(parts.get("second") or 0), 59)  # a leap second
    clock = (hour, int(parts.get("minute") or 0), second)
    fraction = int((parts.get("fraction") or "").ljust(9, "0"))
    if year is None:
        whole_s = nearest_s(number, int(day), clock, now_ns // _SECOND_NS, found_zone)
    else:
        whole_s = seconds_of(_year(year), number, int(day), clock, found_zone)
    if whole_s is None or whole_s < 0:
        return None
    time_ns = whole_s * _SECOND_NS + fraction
    return time_ns if time_ns <= INT64_MAX else None


def _hour(text: str, half: str | None) -> int | None:
    hour = int(text)
    if half is None:
        return hour if hour < 24 else None
    if not 1 <= hour <= 12:
        return None
    return hour % 12 + (12 if half.upper() == "PM" else 0)


def _year(text: str) -> int:
    """A year; one of two digits as POSIX has it, from 1969 to 2068."""
    year = int(text)
    if len(text) > 2:
        return year
    return year + (1900 if year > 68 else 2000)


@lru_cache(maxsize=1024)
def seconds_of(
    year: int, month: int, day: int, clock: tuple[int, int, int], zone: tzinfo
) -> int | None:
    """Return seconds since 1970; None when there is no such day or time of day."""
    try:
        moment = datetime(year, month, day, *clock, tzinfo=zone)
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(seconds=1)


def nearest_s(
    month: int, day: int, clock: tuple[int, int, int], now_s: int, zone: tzinfo
) -> int | None:
    """Return seconds since 1970 in the year that brings a time without one nearest to now.

    None: no year near now has such a day.
    """
    year = datetime.fromtimestamp(now_s, UTC).year
    found = [seconds_of(year + more, month, day, clock, zone) for more in (-1, 0, 1)]
    near = [it for it in found if it is not None]
    best = min(near, key=lambda it: abs(it - now_s), default=None)
    if best is None or abs(best - now_s) > _YEAR.total_seconds():
        return None
    return best


@lru_cache(maxsize=256)
def _zone_of(text: str) -> tzinfo | None:
    """An offset, or an abbreviation that is the name of a zone; None when it is neither."""
    if text in ("Z", "UTC", "GMT"):
        return UTC
    if text[0] in "+-":
        digits = text[1:].replace(":", "").ljust(4, "0")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        return timezone(offset if text[0] == "+" else -offset) if offset < _DAY_LENGTH else None
    try:
        return ZoneInfo(text)
    except (OSError, ValueError, KeyError):
        return None


_DAY_LENGTH: Final = timedelta(hours=24)


def time_of(value: Any, now_ns: int, zone: tzinfo = UTC) -> int | None:
    """A value of a structured event as a time: a number, a text, or what loggers nest.

    That is log4j's ``{"epochSecond", "nanoOfSecond"}``, ``{"seconds", "nanos"}`` as protobuf has
    it, and MongoDB's ``{"$date": …}``.
    """
    if isinstance(value, str):
        found = iso_time_ns(value, zone)
        return text_time_ns(value.strip(), now_ns, zone) if found is None else found
    if isinstance(value, (int, float)):
        return None if isinstance(value, bool) else epoch_time_ns(value)
    if not isinstance(value, dict):
        return None
    if "$date" in value:
        inner = value["$date"]
        if isinstance(inner, dict):
            inner = inner.get("$numberLong")
        return None if isinstance(inner, dict) else time_of(inner, now_ns, zone)
    seconds = value.get("epochSecond", value.get("seconds"))
    rest = value.get("nanoOfSecond", value.get("nanos", 0))
    if type(seconds) is not int or type(rest) is not int or not 0 <= rest < _SECOND_NS:
        return None
    time_ns = seconds * _SECOND_NS + rest
    return time_ns if 0 <= time_ns <= INT64_MAX else None


def times_of(values: Sequence[Any], now_ns: int) -> list[int | None]:
    """Return what `time_of` returns for each of many values, one at least."""
    if {*map(type, values)} != {str}:
        return [time_of(value, now_ns) for value in values]
    if are_equal(values):
        return [time_of(values[0], now_ns)] * len(values)
    times = _times_by_seconds(values, now_ns)
    if times is not None:
        return [*times]
    known = {text: time_of(text, now_ns) for text in {*values}}
    return [known[text] for text in values]


def are_equal(values: Sequence[Any]) -> bool:
    """Return whether values, one at least, are all equal."""
    return values.count(values[0]) == len(values)


_WITH_FRACTION: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,](\d{1,9})((?:\D.*)?)", re.ASCII | re.DOTALL
)
"""A time with a fraction of its second, and with its zone, if it names one."""
_FRACTION_AT: Final = 20


def _times_by_seconds(texts: Sequence[str], now_ns: int) -> Sequence[int] | None:
    """Times of the same layout and zone, each second read once; None where there are others."""
    found = _WITH_FRACTION.fullmatch(texts[0])
    if found is None:
        return None
    digits, zone = len(found[1]), found[2]
    end, size, text = _FRACTION_AT + digits, len(texts[0]), "".join(texts)
    fractions = "".join([text[at::size] for at in range(_FRACTION_AT, end)])
    zones = "".join([text[at::size] for at in range(end, size)])
    if (
        {*map(len, texts)} != {size}
        or not (fractions.isascii() and fractions.isdecimal())
        or zones != "".join([letter * len(texts) for letter in zone])
    ):
        return None
    first, last = min(texts)[:_FRACTION_AT], max(texts)[:_FRACTION_AT]
    seconds = [] if first == last else [text[:_FRACTION_AT] for text in texts]
    begins: dict[str, int] = {}
    for second in {first, *seconds}:
        time_ns = time_of(second + "0" * digits + zone, now_ns)
        is_alike = _WITH_FRACTION.fullmatch(second + "0") is not None
        if not is_alike or time_ns is None or time_ns > INT64_MAX - _SECOND_NS:
            return None
        begins[second] = time_ns
    # A digit before each keeps the zeros behind it, for all are read as one list of JSON.
    lead, unit_ns = 10**digits, 10 ** (9 - digits)
    parts = orjson.loads(f"[1{',1'.join([text[_FRACTION_AT:end] for text in texts])}]")
    if first == last:
        begin_ns = begins[first] - lead * unit_ns
        return [begin_ns + unit_ns * part for part in parts]
    pairs = zip(seconds, parts, strict=True)
    return [begins[second] + unit_ns * (part - lead) for second, part in pairs]


def known_zone(value: str) -> str:
    """The name of a time zone.

    Raises:
        ValueError: There is none of that name here.
    """
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        msg = "is no time zone known here, as in Europe/Berlin"
        raise ValueError(msg) from None
    return value

"""Structured events as records, made and judged by their shape.

Events that come together mostly have the same keys. Which of these hold the level, the time and the
message is found out once for each shape, and of its records the gate judges the first, which it
does for all: what differs within the bounds of scalars cannot make a difference to it. Whatever
else there is (nested values, texts beyond a bound, a level that says nothing) goes the way of
`penstock.collector.decode.lines.log_record`, event by event; both ways make the same line of what
both can read.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from penstock.collector.core.times import iso_time_ns
from penstock.collector.decode.severity import INFO, severity
from penstock.specs.fast_gate import Accepted
from penstock.specs.gate import check_line
from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    INT64_MAX,
    INT64_MIN,
    KEY_CHARACTERS_MAX,
    RECORD_BYTES_MAX,
    STRING_CHARACTERS_MAX,
)

T = TypeVar("T")
Made = tuple[bytes, Accepted | None]
"""A record's line, and the gate's verdict on it where that is known."""

LEVEL_KEYS: Final = ("level", "severity", "log.level", "levelname", "lvl")
TIME_KEYS: Final = ("timestamp", "time", "@timestamp", "ts")
BODY_KEYS: Final = ("event", "message", "msg", "log")
TELLING: Final = frozenset((*LEVEL_KEYS, *TIME_KEYS))
"""One of these makes a JSON object a structured event."""
_YEAR_2200_S: Final = 7_258_118_400
_new: Final = tuple.__new__


class ShapeGate:
    """The gate's verdicts on records that came together, asked for once for each shape."""

    def __init__(self) -> None:
        self._first: dict[Hashable, Accepted] = {}

    def judge(
        self, line: bytes, shape: Hashable, time_ns: int, severity_number: int
    ) -> Accepted | None:
        """The verdict on a record, as far as it is known without asking again.

        Args:
            line: The record.
            shape: Equal for records that differ within the gate's bounds only.
            time_ns: The record's.
            severity_number: Likewise.
        """
        if len(line) > RECORD_BYTES_MAX:
            return None
        first = self._first.get(shape)
        if first is None:
            verdict = check_line(line)
            if not isinstance(verdict, Accepted):
                return None
            self._first[shape] = verdict
            return verdict
        kind, schema, service, _, _, unknown, exact, names = first
        return _new(
            Accepted, (kind, schema, service, time_ns, severity_number, unknown, exact, names)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """Which of an event's keys say what every record has; empty: none does.

    Attributes:
        taken: All of these.
    """

    level: str
    time: str
    body: str
    taken: tuple[str, ...]


class ShapedEvents:
    """Makes records of plain events of one origin.

    Args:
        resource: Of all.
        attributes: Added to those of each event, over which they win.
        now_ns: When all were read.
        timed: The protocol says when an event happened; else a field of the event may.
    """

    def __init__(
        self,
        resource: Mapping[str, Any],
        attributes: Mapping[str, Any],
        now_ns: int,
        *,
        timed: bool,
    ) -> None:
        self._resource = orjson.Fragment(orjson.dumps(resource))
        self._attributes = attributes
        self._now_ns = now_ns
        self._timed = timed
        self._shapes: dict[tuple[Any, ...], _Shape | None] = {}
        self._gate = ShapeGate()

    def make(self, fields: Mapping[Any, Any], *, time_ns: int | None = None) -> Made | None:
        """An event's record; None when it is not plain.

        Args:
            fields: The event's keys and values.
            time_ns: When it happened, where nothing in it says so; None: when it was read.
        """
        keys = tuple(fields)
        shape = self._shapes[keys] if keys in self._shapes else self._remember(keys)
        if shape is None:
            return None
        level = severity(fields[shape.level]) if shape.level else INFO
        time = time_of(fields[shape.time]) if shape.time else time_ns or self._now_ns
        text = fields[shape.body] if shape.body else ""
        if level is None or time is None or text.__class__ is not str:
            return None
        if len(text) > STRING_CHARACTERS_MAX or (shape.body and not text):
            return None
        own = dict(fields)
        for key in shape.taken:
            del own[key]
        if not _are_scalars(own.values()):
            return None
        own |= self._attributes
        try:
            line = orjson.dumps(self._record(time, level, text, own))
        except orjson.JSONEncodeError:  # text that is none
            return None
        return line, self._gate.judge(line, shape, time, level[0])

    def _remember(self, keys: tuple[Any, ...]) -> _Shape | None:
        """What is known of events with these keys from now on; None: they are not plain."""
        shape = None
        if len(keys) + len(self._attributes) <= ATTRIBUTES_MAX and all(map(_is_name, keys)):
            level, body = _first_of(LEVEL_KEYS, keys), _first_of(BODY_KEYS, keys)
            time = "" if self._timed else _first_of(TIME_KEYS, keys)
            shape = _Shape(level, time, body, tuple(filter(None, (level, time, body))))
        self._shapes[keys] = shape
        return shape

    def _record(
        self, time_ns: int, level: tuple[int, str], body: str, attributes: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "schema": "log/1.0",
            "kind": "log",
            "time_unix_nano": time_ns,
            "observed_time_unix_nano": self._now_ns,
            "severity_number": level[0],
            "severity_text": level[1],
            "body": body,
            "resource": self._resource,
            "attributes": attributes,
        }


def take_field(
    fields: dict[str, Any], keys: tuple[str, ...], read: Callable[[object], T]
) -> T | None:
    """Remove the first of the keys whose value can be read, and return what was read."""
    for key in keys:
        if key in fields and (found := read(fields[key])) is not None:
            del fields[key]
            return found
    return None


def time_of(value: object) -> int | None:
    """ISO 8601 text, or seconds since 1970 as a number; None when no record can hold it."""
    if isinstance(value, str):
        return iso_time_ns(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    if not 0 < value < _YEAR_2200_S:
        return None
    return int(value) * 1_000_000_000 + int((value % 1) * 1_000_000_000)


def _first_of(wanted: tuple[str, ...], keys: tuple[str, ...]) -> str:
    return next((key for key in wanted if key in keys), "")


def _is_name(key: Any) -> bool:
    return key.__class__ is str and 0 < len(key) <= KEY_CHARACTERS_MAX


def _are_scalars(values: Iterable[Any]) -> bool:
    """Whether each has a place in a record as it is."""
    for value in values:
        kind = value.__class__
        if kind is str:
            if len(value) > STRING_CHARACTERS_MAX:
                return False
        elif kind is int:
            if not INT64_MIN <= value <= INT64_MAX:
                return False
        elif kind is float:
            if not math.isfinite(value):
                return False
        elif kind is not bool and value is not None:
            return False
    return True

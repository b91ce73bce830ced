"""The fast path for structured events: records are made and validated by their shape.

Events that come together mostly have the same keys. The keys of level, time and message are found
once for each shape, and the validator checks the first record of a shape: within the bounds of
scalars, other values cannot change the verdict.

Lines that came together are made column by column: `ShapedEvents.make_together`.

All other events (nested values, texts beyond a bound, an unknown level) go through
`penstock.collector.decode.lines.log_record`, one by one. Both paths make the same line of an event
that both can read.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import repeat
from operator import itemgetter, methodcaller
from typing import Any, Final

import orjson

from penstock.collector.decode.loggers import (
    TEMPLATES,
    ReadLevel,
    Roles,
    Trace,
    roles_of,
    take_trace,
)
from penstock.collector.decode.severity import INFO, Severity
from penstock.collector.decode.timestamps import time_of
from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    INT64_MAX,
    INT64_MIN,
    KEY_CHARACTERS_MAX,
    RECORD_BYTES_MAX,
    STRING_CHARACTERS_MAX,
)
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted, Rejected

Made = tuple[bytes, Accepted | None]
"""A record's line, and the validator's verdict on it where that is known."""

Check = Callable[[bytes], Accepted | Rejected]
"""The validator, as `check_line` is it."""

_new: Final = tuple.__new__
_dumps: Final = orjson.dumps


class ShapeValidator:
    """The validator's verdicts on records that came together, asked for once for each shape."""

    def __init__(self, check: Check = check_line) -> None:
        self._check = check
        self._first: dict[Hashable, Accepted] = {}

    def validate(
        self, line: bytes, shape: Hashable, time_ns: int, severity_number: int
    ) -> Accepted | None:
        """The verdict on a record, as far as it is known without asking again.

        Args:
            line: The record.
            shape: Equal for records that differ within the validator's bounds only.
            time_ns: The record's.
            severity_number: The line's severity.
        """
        if len(line) > RECORD_BYTES_MAX:
            return None
        first = self._first.get(shape)
        if first is None:
            verdict = self._check(line)
            if not isinstance(verdict, Accepted):
                return None
            self._first[shape] = verdict
            return verdict
        kind, schema, service, _, _, unknown, exact, names = first
        return _new(
            Accepted, (kind, schema, service, time_ns, severity_number, unknown, exact, names)
        )

    def validate_alike(
        self,
        lines: Sequence[bytes],
        shape: Hashable,
        times: Iterable[Any],
        severity_numbers: Iterable[int],
    ) -> Sequence[Accepted | None]:
        """Return what `validate` returns for each of many records of one shape."""
        if max(map(len, lines)) > RECORD_BYTES_MAX:
            each = zip(lines, times, severity_numbers, strict=True)
            return [self.validate(line, shape, time, number) for line, time, number in each]
        first = self.validate(lines[0], shape, 0, 0)
        if first is None:
            return [None] * len(lines)
        kind, schema, service, _, _, unknown, exact, names = first
        same = map(repeat, (kind, schema, service)), map(repeat, (unknown, exact, names))
        columns = zip(*same[0], times, severity_numbers, *same[1], strict=False)
        return [*map(partial(_new, Accepted), columns)]


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """The part of a record that all events with the same keys share.

    Attributes:
        level: The key of the level; empty: there is none.
        read_level: Reads it.
        time: The key that says it; empty: none does.
        body: The key of its body.
        is_traced: A key says the ids of a trace.
    """

    roles: Roles
    level: str
    read_level: ReadLevel | None
    time: str
    body: str
    is_traced: bool

    def fits(self, trace: Trace | None) -> bool:
        """Return whether the ids are valid; otherwise they stay attributes."""
        return trace is not None and (trace.span_id is not None or not self.roles.spans)


class ShapedEvents:
    """Makes records of plain events of one origin.

    Args:
        resource: The resource of all lines.
        attributes: Added to those of each event, over which they win.
        now_ns: Time at which all were read.
        timed: The protocol says when an event happened; else a field of the event may.
        check: Validates the first of each shape.
    """

    def __init__(
        self,
        resource: Mapping[str, Any],
        attributes: Mapping[str, Any],
        now_ns: int,
        *,
        timed: bool,
        check: Check = check_line,
    ) -> None:
        self._observed = b',"observed_time_unix_nano":%d' % now_ns
        self._resource = b',"resource":%b,"attributes":' % orjson.dumps(resource)
        self._attributes = attributes
        self._now_ns = now_ns
        self._timed = timed
        self._shapes: dict[tuple[Any, ...], _Shape | None] = {}
        self._validator = ShapeValidator(check)

    def make(self, fields: Mapping[Any, Any], *, time_ns: int | None = None) -> Made | None:
        """An event's record; None when it is not plain.

        Args:
            fields: The event's keys and values.
            time_ns: Time of the event, where it names none; None: the time of the read.
        """
        return self._make(dict(fields), time_ns or self._now_ns, _are_scalars)

    def make_scalars(self, fields: dict[Any, Any]) -> Made | None:
        """Do as `make` where all values can be stored unchanged; the fields are used up."""
        return self._make(fields, self._now_ns, None)

    def make_together(self, events: Sequence[dict[Any, Any]]) -> list[Made | None]:
        """Return what `make_scalars` returns for each; by columns it takes an eighth less time."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        keys = [*map(tuple, events)]
        if len(events) > 1 and len({*keys}) == 1:
            return self._make_alike(keys[0], events)
        for place, one in enumerate(keys):
            groups.setdefault(one, []).append(place)
        made: list[Made | None] = [None] * len(events)
        for one, places in groups.items():
            found = self._make_alike(one, [events[place] for place in places])
            for place, record in zip(places, found, strict=True):
                made[place] = record
        return made

    def _make_alike(
        self, keys: tuple[Any, ...], events: Sequence[dict[Any, Any]]
    ) -> list[Made | None]:
        """Records of events with the same keys."""
        shape, now_ns = self._shape_of(keys), self._now_ns
        if shape is None:
            return [None] * len(events)
        if shape.is_traced or shape.body in TEMPLATES:
            return [*map(self.make_scalars, events)]
        levels: list[Severity | None] = [INFO] * len(events)
        times: list[int | None] = [now_ns] * len(events)
        texts: list[Any] = [""] * len(events)
        if shape.read_level is not None:
            levels = [*map(shape.read_level, map(itemgetter(shape.level), events))]
        if shape.time:
            times = [time_of(value, now_ns) for value in map(itemgetter(shape.time), events)]
        if shape.body:
            texts = [*map(itemgetter(shape.body), events)]
        is_odd = {*map(type, texts)} != {str} or (shape.body and "" in texts)
        if is_odd or None in levels or None in times:
            return [*map(self.make_scalars, events)]
        for key in filter(None, (shape.level, shape.time, shape.body)):
            deque(map(methodcaller("pop", key), events), maxlen=0)
        if self._attributes:
            deque(map(methodcaller("update", self._attributes), events), maxlen=0)
        columns = (
            map(_dumps, times), map(_severity_json, levels), map(_dumps, texts), map(_dumps, events)
        )  # fmt: skip
        lines = [
            b"".join((_HEAD, time, self._observed, level, text, self._resource, own, b"}"))
            for time, level, text, own in zip(*columns, strict=True)
        ]
        numbers = [level[0] for level in levels if level is not None]
        verdicts = self._validator.validate_alike(lines, shape, times, numbers)
        return [*zip(lines, verdicts, strict=True)]

    def _make(
        self,
        own: dict[Any, Any],
        time: int | None,
        are_plain: Callable[[Iterable[Any]], bool] | None,
    ) -> Made | None:
        shape = self._shape_of(tuple(own))
        if shape is None:
            return None
        level = INFO if shape.read_level is None else shape.read_level(own.pop(shape.level))
        if shape.time:
            time = time_of(own.pop(shape.time), self._now_ns)
        text = own.pop(shape.body) if shape.body else ""
        is_text = text.__class__ is str and len(text) <= STRING_CHARACTERS_MAX
        if level is None or time is None or not is_text or (shape.body and not text):
            return None
        if shape.body in TEMPLATES and ("{" in text or "}" in text):
            return None
        trace = take_trace(own, shape.roles) if shape.is_traced else None
        is_odd = shape.is_traced and not shape.fits(trace)
        if is_odd or (are_plain is not None and not are_plain(own.values())):
            return None
        own |= self._attributes
        try:
            parts = (
                _HEAD, _dumps(time), self._observed, _trace_json(trace) if trace else b"",
                _severity_json(level), _dumps(text), self._resource, _dumps(own), b"}",
            )  # fmt: skip
        except orjson.JSONEncodeError:  # text that is none
            return None
        line = b"".join(parts)
        return line, self._validator.validate(line, shape, time, level[0])

    def _shape_of(self, keys: tuple[Any, ...]) -> _Shape | None:
        """Return the shape of events with these keys; None where they are not plain."""
        shape = self._shapes.get(keys)
        if shape is not None or keys in self._shapes:
            return shape
        if len(keys) + len(self._attributes) <= ATTRIBUTES_MAX and all(map(_is_name, keys)):
            roles = roles_of(keys)
            time = roles.times[0] if roles.times and not self._timed else ""
            body = roles.bodies[0] if roles.bodies else ""
            level, read_level = roles.levels[0] if roles.levels else ("", None)
            if len(roles.traces) + roles.parent <= 1 >= len(roles.spans):
                is_traced = bool(roles.traces) or roles.parent
                shape = _Shape(roles, level, read_level, time, body, is_traced)
        self._shapes[keys] = shape
        return shape


_HEAD: Final = b'{"schema":"log/1.0","kind":"log","time_unix_nano":'


def _trace_json(trace: Trace) -> bytes:
    """Return the fields of a trace, as in a record's line."""
    return b"," + _dumps(trace.fields())[1:-1]


@lru_cache(maxsize=64)
def _severity_json(level: Severity) -> bytes:
    """Return the fields of a severity, as in a record's line, up to its body."""
    number, text = level
    return b',"severity_number":%d,"severity_text":%b,"body":' % (number, _dumps(text))


def log_fields(  # noqa: PLR0913, PLR0917 - what a record of an event says; names cost time
    level: Severity,
    time_ns: int,
    now_ns: int,
    body: str,
    trace: Trace | None,
    resource: Any,
    attributes: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields of a log record, in their order."""
    record: dict[str, Any] = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": time_ns,
        "observed_time_unix_nano": now_ns,
    }
    if trace is not None:
        record |= trace.fields()
    record["severity_number"], record["severity_text"] = level
    record["body"] = body
    record["resource"] = resource
    record["attributes"] = attributes
    return record


def _is_name(key: Any) -> bool:
    return key.__class__ is str and 0 < len(key) <= KEY_CHARACTERS_MAX


def _are_scalars(values: Iterable[Any]) -> bool:
    """Return whether each value can be stored in a record unchanged."""
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

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
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from operator import add
from typing import Any, Final, NamedTuple

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
from penstock.collector.decode.timestamps import are_equal, time_of, times_of
from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    INT64_MAX,
    INT64_MIN,
    KEY_CHARACTERS_MAX,
    RECORD_BYTES_MAX,
    STRING_CHARACTERS_MAX,
)
from penstock.specs.redact.line_search import LineParts
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted, Rejected, Verdicts

Made = tuple[bytes, Accepted | None]
"""A record's line, and the validator's verdict on it where that is known."""


class MadeTogether(NamedTuple):
    """Records that were made together.

    Attributes:
        lines: Their lines; None where one is not made.
        verdicts: The verdicts on them as far as known.
        parts: The lines' parts.
    """

    lines: list[bytes | None]
    verdicts: Verdicts
    parts: LineParts

    def put(self, place: int, line: bytes, verdict: Accepted | None) -> None:
        """Put a record where none was made."""
        self.lines[place], self.parts.own[place] = line, line
        self.verdicts[place] = verdict


Check = Callable[[bytes], Accepted | Rejected]
"""The validator, as `check_line` is it."""

_new: Final = tuple.__new__
_dumps: Final = orjson.dumps


def together(made: Sequence[Made | None]) -> MadeTogether:
    """Lay records that were made one by one out as columns."""
    lines = [None if one is None else one[0] for one in made]
    verdicts = Verdicts.of([None if one is None else one[1] for one in made])
    return MadeTogether(lines, verdicts, LineParts(b"", [line or b"" for line in lines]))


class ShapeValidator:
    """The validator's verdicts on records that came together, asked for once for each shape."""

    def __init__(self, check: Check = check_line) -> None:
        self._check = check
        self._first: dict[Hashable, Accepted] = {}

    def validate(self, line: bytes, shape: Hashable, time_ns: int) -> Accepted | None:
        """The verdict on a record, as far as it is known without asking again.

        Args:
            line: The record.
            shape: Equal for records that differ within the validator's bounds only.
            time_ns: The record's.
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
        kind, schema, service, _, unknown, exact, names = first
        return _new(Accepted, (kind, schema, service, time_ns, unknown, exact, names))

    def validate_alike(self, lines: Sequence[bytes], shape: Hashable, times: list[int]) -> Verdicts:
        """Return what `validate` returns for each of many records of one shape."""
        if max(map(len, lines)) > RECORD_BYTES_MAX:
            each = zip(lines, times, strict=True)
            return Verdicts.of([self.validate(line, shape, time) for line, time in each])
        self.validate(lines[0], shape, times[0])
        return Verdicts([self._first.get(shape)] * len(lines), times)


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

    def make_together(
        self, events: Sequence[dict[Any, Any]], groups: Mapping[tuple[Any, ...], Sequence[int]]
    ) -> MadeTogether:
        """Make what `make_scalars` makes of each; column by column it takes half the time.

        Args:
            events: The events, which are used up.
            groups: What `groups_by_keys` says of them.
        """
        if len(groups) == 1:
            (keys,) = groups
            return self._make_alike(keys, events)
        count = len(events)
        lines: list[bytes | None] = [None] * count
        shapes: list[Accepted | None] = [None] * count
        times, own, shared = [0] * count, [b""] * count, list[bytes]()
        for keys, places in groups.items():
            made = self._make_alike(keys, [events[place] for place in places])
            found = made.verdicts
            shared.append(made.parts.shared)
            columns = zip(
                places, made.lines, found.shapes, found.times, made.parts.own, strict=True
            )
            for place, line, shape, time, part in columns:
                lines[place], shapes[place], times[place], own[place] = line, shape, time, part
        return MadeTogether(lines, Verdicts(shapes, times), LineParts(b"\n".join(shared), own))

    def _make_alike(self, keys: tuple[Any, ...], events: Sequence[dict[Any, Any]]) -> MadeTogether:
        """Records of events with the same keys."""
        shape, now_ns, count = self._shape_of(keys), self._now_ns, len(events)
        if shape is None:
            return together([None] * count)
        if shape.is_traced or shape.body in TEMPLATES:
            return together([*map(self.make_scalars, events)])
        severities = self._severities(shape, events)
        times: list[int | None] = [now_ns] * count
        texts: list[Any] = [""] * count
        if shape.time:
            times = times_of([event[shape.time] for event in events], now_ns)
        if shape.body:
            texts = [event[shape.body] for event in events]
        is_odd = {*map(type, texts)} != {str} or (shape.body and not all(texts))
        if is_odd or severities is None or {*map(type, times)} != {int}:
            return together([*map(self.make_scalars, events)])
        taken = {*filter(None, (shape.level, shape.time, shape.body))}
        for key in taken:
            for event in events:
                del event[key]
        end = self._attach(events, keys, has_own=len(keys) > len(taken))
        known = [time for time in times if time is not None]
        lines, parts = self._write(known, severities, texts, events, end)
        verdicts = self._validator.validate_alike(lines, shape, known)
        return MadeTogether([*lines], verdicts, parts)

    def _write(
        self,
        times: list[int],
        severities: list[bytes],
        texts: list[str],
        events: Sequence[dict[Any, Any]],
        end: bytes,
    ) -> tuple[list[bytes], LineParts]:
        """Write records of their columns; `end` is behind the own attributes of each."""
        count, are_alike = len(events), are_equal(texts)
        bodies = [_dumps(texts[0])] * count if are_alike else [*map(_dumps, texts)]
        own = [*map(_dumps, events)]
        columns = (
            repeat(_HEAD, count), _dumps(times)[1:-1].split(b","), severities, bodies,
            repeat(self._resource, count), [one[:-1] for one in own], repeat(end, count),
        )  # fmt: skip
        lines = [*map(b"".join, zip(*columns, strict=True))]
        shared = b"".join((_HEAD, *{*severities}, self._resource, end))
        if are_alike:
            return lines, LineParts(shared + bodies[0], own)
        return lines, LineParts(shared, [*map(add, bodies, own)])

    def _attach(
        self, events: Sequence[dict[Any, Any]], keys: tuple[Any, ...], *, has_own: bool
    ) -> bytes:
        """Return what is behind the own attributes of each event, which may be none."""
        if self._attributes.keys().isdisjoint(keys):
            added = _dumps(self._attributes)[1:-1]
            return b"%b%b}}" % (b"," if has_own and added else b"", added)
        for event in events:
            event.update(self._attributes)
        return b"}}"

    def _severities(self, shape: _Shape, events: Sequence[dict[Any, Any]]) -> list[bytes] | None:
        """What is between the time and the body of each; None where a level cannot be read."""
        if shape.read_level is None:
            return [self._observed + _severity_json(INFO)] * len(events)
        values = [event[shape.level] for event in events]
        if len({*map(type, values)}) > 1:  # 1 is equal to true, and is another level
            return None
        known: dict[Any, bytes] = {}
        for value in values[:1] if are_equal(values) else {*values}:
            if (level := shape.read_level(value)) is None:
                return None
            known[value] = self._observed + _severity_json(level)
        if len(known) == 1:
            return [*known.values()] * len(values)
        return [known[value] for value in values]

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
        return line, self._validator.validate(line, shape, time)

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


def groups_by_keys(events: Sequence[dict[Any, Any]]) -> dict[tuple[Any, ...], Sequence[int]]:
    """Return the places of many events, one at least, by the keys that they have."""
    every: set[Any] = set().union(*events)
    if {*map(len, events)} == {len(every)}:
        return {tuple(events[0]): range(len(events))}
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, keys in enumerate(map(tuple, events)):
        groups.setdefault(keys, []).append(place)
    return {**groups}


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

"""The fast path for structured events: records are made and validated by their shape.

Events that come together mostly have the same keys. The keys of level, time and message are found
once for each shape, and the validator checks the first record of a shape: within the bounds of
scalars, other values cannot change the verdict.

All other events (nested values, texts beyond a bound, an unknown level) go through
`penstock.collector.decode.lines.log_record`, one by one. Both paths make the same line of an event
that both can read.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock.collector.decode.loggers import TEMPLATES, Roles, Trace, roles_of, take_trace
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


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """The part of a record that all events with the same keys share.

    Attributes:
        time: The key that says it; empty: none does.
        body: The key of its body.
        taken: The keys of the level, the time and the body.
        is_traced: A key says the ids of a trace.
    """

    roles: Roles
    time: str
    body: str
    taken: tuple[str, ...]
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
        self._resource = orjson.Fragment(orjson.dumps(resource))
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
        keys = tuple(fields)
        shape = self._shapes.get(keys)
        if shape is None and (keys in self._shapes or (shape := self._remember(keys)) is None):
            return None
        levels = shape.roles.levels
        level = levels[0][1](fields[levels[0][0]]) if levels else INFO
        time: int | None = time_ns or self._now_ns
        if shape.time:
            time = time_of(fields[shape.time], self._now_ns)
        text = fields[shape.body] if shape.body else ""
        is_text = text.__class__ is str and len(text) <= STRING_CHARACTERS_MAX
        if level is None or time is None or not is_text or (shape.body and not text):
            return None
        if shape.body in TEMPLATES and ("{" in text or "}" in text):
            return None
        own = dict(fields)
        for key in shape.taken:
            del own[key]
        trace = take_trace(own, shape.roles) if shape.is_traced else None
        if (shape.is_traced and not shape.fits(trace)) or not _are_scalars(own.values()):
            return None
        own |= self._attributes
        record = log_fields(level, time, self._now_ns, text, trace, self._resource, own)
        try:
            line = orjson.dumps(record)
        except orjson.JSONEncodeError:  # text that is none
            return None
        return line, self._validator.validate(line, shape, time, level[0])

    def _remember(self, keys: tuple[Any, ...]) -> _Shape | None:
        """Work out and cache the shape of events with these keys; None where they are not plain."""
        shape = None
        if len(keys) + len(self._attributes) <= ATTRIBUTES_MAX and all(map(_is_name, keys)):
            roles = roles_of(keys)
            time = roles.times[0] if roles.times and not self._timed else ""
            body = roles.bodies[0] if roles.bodies else ""
            level = roles.levels[0][0] if roles.levels else ""
            if len(roles.traces) + roles.parent <= 1 >= len(roles.spans):
                taken = tuple(filter(None, (level, time, body)))
                shape = _Shape(roles, time, body, taken, bool(roles.traces) or roles.parent)
        self._shapes[keys] = shape
        return shape


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

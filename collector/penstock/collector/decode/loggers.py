"""Structured events of common loggers: the keys that hold level, time, message and trace.

Keys are tried in order, the most specific first. A numeric level depends on the family of the
logger: 30 is a level for pino and none for syslog. A value that cannot be read stays an attribute,
and is counted.

Known are, among others: structlog, python-json-logger, OpenTelemetry's Python instrumentation;
pino, bunyan, winston; zap, logrus, zerolog, log/slog, hclog; log4j2's JsonLayout, EcsLayout and
GcpLayout, logback's JsonEncoder and logstash-logback-encoder; Serilog's CLEF, .NET's JSON console;
Monolog; tracing-subscriber; PostgreSQL's jsonlog, MongoDB; GELF, ECS, Cloud Logging.

Serilog and .NET's loggers keep a message template beside an event's properties. It is rendered by
the rules of messagetemplates.org: a property's name stands in braces, perhaps after the operator
``@`` or ``$`` and before an alignment (``,8``) and a format (``:0.00``); doubled braces are braces;
text is rendered without quotes, other values as JSON. Only .NET knows what a format means, so
senders of CLEF put rendered values into ``@r``, in order. Without them the format is ignored.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from penstock.collector.decode.severity import (
    GOOGLE,
    OTEL,
    PINO,
    PYTHON,
    SYSLOG,
    Severity,
    severity,
)
from penstock.specs.limits import STRING_CHARACTERS_MAX

ReadLevel = Callable[[Any], Severity | None]

_SERILOG: Final = {"verbose": (1, "TRACE")}
_LEVELS: Final[Mapping[str, ReadLevel]] = {
    "level_name": severity,
    "severity_number": OTEL,
    "severityNumber": OTEL,
    "SeverityNumber": OTEL,
    "level": severity,
    "severity": GOOGLE,
    "log.level": severity,
    "levelname": severity,
    "lvl": severity,
    "@l": lambda level: _SERILOG.get(str(level).lower()) or severity(level),
    "@level": severity,
    "Level": lambda level: _SERILOG.get(str(level).lower()) or severity(level),
    "LogLevel": severity,
    "error_severity": severity,
    "loglevel": severity,
    "log_level": severity,
    "severity_text": severity,
    "severityText": severity,
    "SeverityText": severity,
    "levelno": PYTHON,
    "PRIORITY": SYSLOG,
}
"""Keys of levels, the first that can be read counts, and how each is read."""
LEVELS: Final = frozenset(_LEVELS)
_TIMES: Final = (
    "timestamp", "time", "@timestamp", "ts", "@t", "instant", "timeMillis", "Timestamp",
    "eventTime", "datetime", "asctime", "timeStamp",
)  # fmt: skip
TIMES: Final = frozenset(_TIMES)
_BODIES: Final = (
    "formattedMessage", "RenderedMessage", "event", "message", "msg", "log", "short_message", "@m",
    "@mt", "@message", "Message", "MessageTemplate", "MESSAGE", "textPayload",
)  # fmt: skip
TEMPLATES: Final[Mapping[str, str]] = {"@mt": "", "MessageTemplate": "Properties"}
"""Keys of message templates, and the key of the object with their properties; empty: the event
itself."""
_TRACES: Final = (
    "trace_id", "traceId", "traceID", "traceid", "TraceId", "trace.id", "otelTraceID", "@tr",
    "logging.googleapis.com/trace",
)  # fmt: skip
_SPANS: Final = (
    "span_id", "spanId", "spanID", "spanid", "SpanId", "span.id", "otelSpanID", "@sp",
    "logging.googleapis.com/spanId",
)  # fmt: skip
_PARENT: Final = "traceparent"
_WITHIN: Final = (
    "mdc",
    "contextMap",
    "context",
    "extra",
    "properties",
    "Properties",
    "ctx",
    "span",
)
"""Objects in which loggers nest what an application has bound, as the ids of a trace."""
_NESTED: Final = (("log", "level"), ("fields", "message"), ("trace", "id"), ("span", "id"))
"""Fields of ECS and of tracing-subscriber that stand in an object."""
TELLING: Final = frozenset((*_LEVELS, *_TIMES))
"""One of these makes a JSON object a structured event; so do all of MongoDB's."""
_MONGODB: Final = frozenset({"t", "s", "c", "msg"})
_OF_PINO: Final = frozenset({"msg", "pid", "hostname"})
_OF_GELF: Final = "short_message"
_TRACE_ID: Final = re.compile(r"(?:projects/[^/]{1,100}/traces/)?([0-9A-Fa-f]{32})")
_SPAN_ID: Final = re.compile(r"([0-9A-Fa-f]{16})")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Roles(NamedTuple):
    """Keys of an event in the order in which they are looked at, with what reads the levels."""

    levels: tuple[tuple[str, ReadLevel], ...]
    times: tuple[str, ...]
    bodies: tuple[str, ...]
    traces: tuple[str, ...]
    spans: tuple[str, ...]
    parent: bool


class Trace(NamedTuple):
    """An event's place in a trace; `span_id` and `flags` are None where the event has none."""

    trace_id: str
    span_id: str | None = None
    flags: int | None = None

    def fields(self) -> dict[str, Any]:
        """The record's."""
        named = (("trace_id", self.trace_id), ("span_id", self.span_id))
        found: dict[str, Any] = {key: value for key, value in named if value is not None}
        return found if self.flags is None else {**found, "trace_flags": self.flags}


def is_telling(keys: Iterable[Any]) -> bool:
    """Return whether a JSON object with these keys is a structured event."""
    return not TELLING.isdisjoint(keys) or _MONGODB.issubset(keys)


def roles_of(keys: Iterable[Any]) -> Roles:
    """Return what the keys of an event stand for, whatever their values are."""
    given = frozenset(keys)
    levels = [(key, read) for key, read in _LEVELS.items() if key in given]
    times, bodies = _present(_TIMES, given), _present(_BODIES, given)
    if "level" in given:
        number = SYSLOG if _OF_GELF in given else PINO if not _OF_PINO.isdisjoint(given) else None
        if number is not None:
            levels = [(key, number if key == "level" else read) for key, read in levels]
    if given >= _MONGODB:
        levels, times = [("s", severity), *levels], ("t", *times)
    return Roles(
        tuple(levels),
        times,
        bodies,
        _present(_TRACES, given),
        _present(_SPANS, given),
        _PARENT in given,
    )


def _present(wanted: tuple[str, ...], given: frozenset[Any]) -> tuple[str, ...]:
    return tuple(key for key in wanted if key in given)


def lay_bare(fields: dict[str, Any]) -> dict[str, Any]:
    """An event with what stands in objects of its logger among its own fields; a copy, if changed.

    A field that is there already stays, and so does what is in the object.
    """
    made: dict[str, Any] | None = None
    for outer, inner in _NESTED:
        made = _raised(made or fields, outer, (inner,), f"{outer}.{inner}", made)
    for outer in _WITHIN:
        inside = (made or fields).get(outer)
        if isinstance(inside, dict):
            for key in (*_TRACES, *_SPANS, _PARENT):
                if key in inside:
                    made = _raised(made or fields, outer, (key,), key, made)
    return fields if made is None else made


def _raised(
    fields: dict[str, Any],
    outer: str,
    inner: tuple[str, ...],
    name: str,
    made: dict[str, Any] | None,
) -> dict[str, Any] | None:
    inside = fields.get(outer)
    if not isinstance(inside, dict) or not isinstance(inside.get(inner[0]), str):
        return made
    name = "message" if name == "fields.message" else name
    if name in fields:
        return made
    rest = {key: value for key, value in inside.items() if key != inner[0]}
    found = {key: value for key, value in fields.items() if key != outer}
    if rest:
        found[outer] = rest
    return {**found, name: inside[inner[0]]}


def take_level(fields: dict[str, Any], roles: Roles) -> Severity | None:
    """Take the level out of an event; None when it has none, or none that can be read."""
    for key, read in roles.levels:
        if (found := read(fields[key])) is not None:
            del fields[key]
            return found
    return None


def take_trace(fields: dict[str, Any], roles: Roles) -> Trace | None:
    """Take the ids of the trace out of an event; None when it has none, or none that can be one."""
    if roles.parent and isinstance(parent := fields[_PARENT], str):
        found = _TRACEPARENT.fullmatch(parent)
        if found is not None and found[1].strip("0") and found[2].strip("0"):
            del fields[_PARENT]
            return Trace(found[1], found[2], int(found[3], 16))
    trace_id = _take_id(fields, roles.traces, _TRACE_ID)
    if trace_id is None:
        return None
    return Trace(trace_id, _take_id(fields, roles.spans, _SPAN_ID))


def _take_id(fields: dict[str, Any], keys: tuple[str, ...], pattern: re.Pattern[str]) -> str | None:
    for key in keys:
        value = fields[key]
        found = pattern.fullmatch(value) if isinstance(value, str) else None
        if found is not None and found[1].strip("0"):
            del fields[key]
            return found[1].lower()
    return None


_PART: Final = re.compile(
    r"\{\{|\}\}|\{[@$]?(?P<name>\w{1,255})(?:,(?P<width>-?\d{1,3}))?(?P<format>:[^{}]{0,255})?\}"
)


def render(template: str, properties: Mapping[str, Any], renderings: object = None) -> str:
    """The text of a template; it ends soon beyond what a record has room for.

    Args:
        template: Holes of unknown names, and what is no hole, stay as they are written.
        properties: The properties by name.
        renderings: The sender's texts for holes that have a format, in order.
    """
    if "{" not in template and "}" not in template:
        return template
    ready = iter(renderings if isinstance(renderings, list) else ())
    made: list[str] = []
    size = at = 0
    for found in _PART.finditer(template):
        text = _part(found, properties, ready)
        made += (template[at : found.start()], text)
        size += len(made[-2]) + len(text)
        at = found.end()
        if size > STRING_CHARACTERS_MAX:
            return "".join(made)
    return "".join((*made, template[at:]))


def _part(found: re.Match[str], properties: Mapping[str, Any], ready: Iterator[Any]) -> str:
    name, width, form = found.group("name", "width", "format")
    if name is None:
        return found[0][0]
    rendered = next(ready, None) if form is not None else None
    if isinstance(rendered, str):
        return rendered
    if name not in properties:
        return found[0]
    value = properties[name]
    text = value if isinstance(value, str) else _json(value)
    aligned = int(width or 0)
    return text.ljust(-aligned) if aligned < 0 else text.rjust(aligned)


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (orjson.JSONEncodeError, RecursionError):  # an integer beyond 64 bits, or bytes
        return str(value)

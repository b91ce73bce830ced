"""Parse: a text of the record becomes attributes, and some of them fields.

Each format is a function from a text to keys and values, or None where the text is not of the
format. Nothing raises, whatever the text, and nothing takes longer than in proportion to it;
patterns of users run in RE2.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.key_values import pairs_of, read_logfmt, unescaped
from penstock.collector.decode.lines import read_object
from penstock.collector.decode.senders.security_events import read_cef, read_leef
from penstock.collector.decode.severity import severity, severity_of_syslog
from penstock.collector.decode.syslog import parse_message
from penstock.collector.decode.timestamps import iso_time_ns, time_of
from penstock.collector.regex import compile_pattern
from penstock.collector.sources.settings import Section
from penstock.collector.transforms.expressions.expression import to_integer, to_real, to_text
from penstock.collector.transforms.expressions.paths import Fields, getter, parse_path
from penstock.collector.transforms.transform import (
    PASS,
    Event,
    OnFailure,
    Pattern,
    ReadablePath,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
    failed,
)
from penstock.specs.limits import ATTRIBUTES_MAX, STRING_CHARACTERS_MAX
from penstock.specs.models.log import severity_text

Read = Callable[[str, int], dict[str, Any] | None]
"""A format: the text, and nanoseconds since 1970 that a missing year is nearest to."""
_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": to_integer,
    "double": to_real,
    "string": to_text,
    "bool": lambda value: {"true": True, "false": False}.get(str(value).lower()),
}


class LiftSection(Section):
    """Keys whose values become fields of the record instead of attributes.

    Attributes:
        body: Text.
        severity: A level's name, or OpenTelemetry's number of it.
        time: In a named layout of `penstock.collector.decode.timestamps`, or a number since 1970.
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
    """

    body: str | None = None
    severity: str | None = None
    time: str | None = None
    trace_id: str | None = None
    span_id: str | None = None


class ParseSettings(TransformSettings):
    """A text of the record becomes attributes."""

    type: Literal["parse"]
    format: Literal["json", "logfmt", "key_value", "regex", "csv", "clf", "cef", "leef", "syslog"]
    field: ReadablePath = "body"
    prefix: str = Field(default="", max_length=64)
    pattern: Pattern | None = None
    columns: list[Annotated[str, Field(min_length=1)]] = Field(default=[])
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    pair_separator: str = Field(default=" ", min_length=1, max_length=16)
    value_separator: str = Field(default="=", min_length=1, max_length=16)
    types: dict[str, Literal["int", "double", "string", "bool"]] = Field(default={})
    lift: LiftSection = LiftSection()
    on_failure: OnFailure = "pass"

    @model_validator(mode="after")
    def _has_what_its_format_needs(self) -> "ParseSettings":
        if (self.format == "regex") != (self.pattern is not None):
            msg = "`pattern` is for the format regex, which needs one"
            raise ValueError(msg)
        if (self.format == "csv") != bool(self.columns):
            msg = "`columns` is for the format csv, which needs them"
            raise ValueError(msg)
        if self.pattern is not None and not compile_pattern(self.pattern).groupindex:
            msg = "pattern: names no group, as in (?P<status>[0-9]+)"
            raise ValueError(msg)
        return self


Reader = Callable[[str], dict[str, Any] | None]

_QUOTED: Final = r'"((?:[^"\\]|\\.)*)"'
_CLF: Final = re.compile(
    r"(\S{1,255}) (\S{1,255}) (\S{1,255}) \[([^\]]{1,64})\] "
    + _QUOTED
    + r" ([0-9]{3}) ([0-9]{1,18}|-)(?: "
    + _QUOTED
    + " "
    + _QUOTED
    + r")?\s*\Z"
)
_CLF_TIME: Final = re.compile(
    r"([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}:[0-9]{2}:[0-9]{2}) ([+-][0-9]{2})([0-9]{2})"
)
_MONTHS: Final = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip
_REQUEST: Final = re.compile(r"([A-Z]{1,32}) (\S+)(?: (HTTP/[0-9.]{1,8}))?")


def read_json(text: str) -> dict[str, Any] | None:
    """An object in JSON."""
    found, _ = read_object(text.encode("utf-8", "surrogatepass"))
    return found


def key_value_reader(pair_separator: str, value_separator: str) -> Reader:
    """Keys and values with separators of one's own; every pair must have both."""
    return lambda text: pairs_of(text, pair_separator, value_separator, bare=False)


def csv_reader(columns: Sequence[str], delimiter: str) -> Reader:
    """One row of values in the order of the columns; every column must be there."""

    def read(text: str) -> dict[str, Any] | None:
        try:
            rows = list(csv.reader([text], delimiter=delimiter, strict=True))
        except csv.Error:
            return None
        if len(rows) != 1 or len(rows[0]) != len(columns):
            return None
        return dict(zip(columns, rows[0], strict=True))

    return read


def read_clf(text: str) -> dict[str, Any] | None:
    """The common log format of web servers, and the combined one, as OpenTelemetry names it."""
    match = _CLF.match(text)
    if match is None:
        return None
    address, identity, user, time, request, status, size, referer, agent = match.groups()
    found: dict[str, Any] = {"client.address": address, "http.response.status_code": int(status)}
    if (parts := _REQUEST.fullmatch(request)) is not None:
        found["http.request.method"] = parts[1]
        found["url.path"], _, query = parts[2].partition("?")
        if query:
            found["url.query"] = query
        if parts[3]:
            found["network.protocol.version"] = parts[3].partition("/")[2]
    else:
        found["http.request.line"] = request
    named = {
        "http.response.body.size": None if size == "-" else int(size),
        "client.identity": _dashed(identity),
        "user.name": _dashed(user),
        "time": _iso(time),
        "http.request.header.referer": _dashed(referer),
        "user_agent.original": _dashed(agent),
    }
    found |= {name: value for name, value in named.items() if value is not None}
    return found


def _dashed(text: str | None) -> str | None:
    return None if text in {None, "-", ""} else unescaped(str(text))


def _iso(time: str) -> str | None:
    match = _CLF_TIME.fullmatch(time)
    if match is None or match[2] not in _MONTHS:
        return None
    month = _MONTHS.index(match[2]) + 1
    iso = f"{match[3]}-{month:02}-{match[1]}T{match[4]}{match[5]}:{match[6]}"
    return iso if iso_time_ns(iso) is not None else None


def regex_reader(pattern: str) -> Reader:
    """The named groups of a pattern that is found in the text.

    Raises:
        ValueError: The pattern is none, or names no group.
    """
    compiled = compile_pattern(pattern)
    names = sorted(compiled.groupindex.items(), key=lambda item: item[1])
    if not names:
        raise ValueError("the pattern names no group, as in (?P<status>[0-9]+)")

    def read(text: str) -> dict[str, Any] | None:
        match = compiled.search(text)
        if match is None:
            return None
        groups = match.groups()
        return {name: groups[index - 1] for name, index in names if groups[index - 1] is not None}

    return read


def read_syslog(text: str, now_ns: int) -> dict[str, Any] | None:
    """A syslog message; None when it has no header that RFC 5424 or RFC 3164 knows.

    Args:
        text: The message.
        now_ns: Nanoseconds since 1970 that a missing year is nearest to.
    """
    parsed = parse_message(text.encode(), now_ns)
    if parsed.form == "text":
        return None
    found: dict[str, Any] = {
        "format": parsed.form,
        "body": parsed.body.decode("utf-8", "replace"),
    }
    if parsed.has_priority:
        found["facility.code"], found["severity.code"] = divmod(parsed.priority, 8)
        found["severity_number"], _ = severity_of_syslog(parsed.priority % 8)
    named = {
        "host": parsed.host,
        "appname": parsed.app,
        "procid": parsed.process,
        "msgid": parsed.message_id,
    }
    found |= {name: value.decode("utf-8", "replace") for name, value in named.items() if value}
    if parsed.time_ns is not None:
        found["time_unix_nano"] = parsed.time_ns
    if parsed.data:
        found["structured_data"] = parsed.data
    return found


def _reader(settings: ParseSettings) -> Read:
    if settings.format == "syslog":
        return read_syslog
    readers: dict[str, Reader] = {
        "json": read_json,
        "logfmt": read_logfmt,
        "clf": read_clf,
        "cef": read_cef,
        "leef": read_leef,
    }
    if settings.pattern is not None:
        read = regex_reader(settings.pattern)
    elif settings.columns:
        read = csv_reader(settings.columns, settings.delimiter)
    elif settings.format == "key_value":
        read = key_value_reader(settings.pair_separator, settings.value_separator)
    else:
        read = readers[settings.format]
    return lambda text, _: read(text)


def _lifted(event: Event, found: dict[str, Any], lift: LiftSection, notes: Counter[str]) -> Fields:
    fields = event.fields
    changes: Fields = {}
    if lift.body is not None and isinstance(found.get(lift.body), str):
        body = found[lift.body].encode("utf-8", "replace").decode()
        if len(body) <= STRING_CHARACTERS_MAX:
            changes["body"] = body
            del found[lift.body]
    for key, unknown, read in (
        (lift.severity, "levels_unknown", _level),
        (lift.time, "timestamps_unreadable", lambda said: _time(said, event.observed_ns)),
    ):
        said = None if key is None else found.get(key)
        if key is None or said is None or said == "":
            continue
        understood = read(said)
        if understood is None:
            notes[unknown] += 1
        else:
            changes |= understood
            del found[key]
    for name, key, length in (("trace_id", lift.trace_id, 32), ("span_id", lift.span_id, 16)):
        if key is not None and _is_id(found.get(key), length):
            changes[name] = found.pop(key)
    if "span_id" in changes and "trace_id" not in changes and not fields.get("trace_id"):
        found[str(lift.span_id)] = changes.pop("span_id")
    return {**fields, **changes} if changes else fields


def _level(value: Any) -> Fields | None:
    is_number = value.__class__ is int and 1 <= value <= 24
    level = (value, severity_text(value)) if is_number else severity(value)
    return None if level is None else {"severity_number": level[0], "severity_text": level[1]}


def _time(value: Any, near_ns: int) -> Fields | None:
    time_ns = time_of(value, near_ns)
    return None if time_ns is None else {"time_unix_nano": time_ns}


def _is_id(value: Any, length: int) -> bool:
    return (
        value.__class__ is str
        and len(value) == length
        and not value.strip("0123456789abcdef")
        and bool(value.strip("0"))
    )


class Parse(Transform):
    """Reads a field's text and adds what is in it to the attributes.

    Args:
        read: The format.
        path: The field with the text.
        prefix: Before the names of the attributes.
        types: Keys to types; what cannot be converted stays as it is.
        lift: See there; a value that does not fit becomes an attribute like the others.
        on_failure: Treatment of a record whose text is not of the format.
    """

    settings = ParseSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        prefix = settings.prefix or {"syslog": "log.syslog."}.get(settings.format, "")
        lift = settings.lift
        if settings.format == "syslog":
            lift = LiftSection(
                body=lift.body or "body",
                time=lift.time or "time_unix_nano",
                severity="severity_number",
            )
        return cls(
            _reader(settings),
            parse_path(settings.field),
            prefix=prefix,
            types=settings.types,
            lift=lift,
            on_failure=settings.on_failure,
            name=settings.format,
        )

    def __init__(  # noqa: PLR0913 - a parser's options
        self,
        read: Read,
        path: tuple[str, ...],
        *,
        prefix: str,
        types: Mapping[str, str],
        lift: LiftSection,
        on_failure: OnFailure,
        name: str,
    ) -> None:
        self._notes = Counter[str]()
        self._read = read
        self._text = getter(path)
        self._prefix = prefix
        self._types = {key: _CONVERSIONS[kind] for key, kind in types.items()}
        self._lift = lift
        self._on_failure = on_failure
        self._name = name

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        text = self._text(event.fields)
        found = self._read(text, event.observed_ns) if text.__class__ is str else None
        if found is None:
            return failed(self._on_failure, f"text is not {self._name}")
        for key, convert in self._types.items():
            if (value := found.get(key)) is not None:
                converted = convert(value)
                found[key] = value if converted is None else converted
        fields = _lifted(event, found, self._lift, self._notes)
        event.fields = self._merged(fields, found)
        return PASS

    def _merged(self, fields: Fields, found: dict[str, Any]) -> Fields:
        """The fields with what was found as attributes, which are replaced where they are."""
        if not found:
            return fields
        old: dict[str, Any] = fields.get("attributes") or {}
        if self._prefix:
            found = {f"{self._prefix}{key}": value for key, value in found.items()}
        own, left_out = flatten(found)
        attributes = {**old, **own}
        if len(attributes) > ATTRIBUTES_MAX:
            added = [key for key in own if key not in old]
            for key in added[ATTRIBUTES_MAX - len(attributes) :]:
                del attributes[key]
                left_out += 1
        fields = {**fields, "attributes": attributes}
        if left_out:
            before = fields.get("dropped_attributes_count") or 0
            fields["dropped_attributes_count"] = before + left_out
        return fields

    @property
    @override
    def notes(self) -> Mapping[str, int]:
        return self._notes

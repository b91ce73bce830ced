"""Parse: a text of the record becomes attributes, and some of them fields.

Each format is a function from a text to keys and values, or None where the text is not of the
format. Nothing raises, whatever the text, and nothing takes longer than in proportion to it;
patterns of users run in RE2.
"""

import csv
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.decode.formats.key_values import pairs_of, read_logfmt, unescaped
from penstock.collector.decode.formats.security_events import read_cef, read_leef
from penstock.collector.decode.lines import read_object
from penstock.collector.decode.severity import severity_of_syslog
from penstock.collector.decode.syslog import parse_message
from penstock.collector.decode.timestamps import iso_time_ns
from penstock.collector.regex import compile_pattern, groups_finder
from penstock.collector.transforms.texts.field_parser import (
    LiftSection,
    Parsing,
    ParsingSettings,
    Read,
)
from penstock.collector.transforms.transform import (
    Pattern,
    TransformContext,
)


class ParseSettings(ParsingSettings):
    """A text of the record becomes attributes."""

    type: Literal["parse"]
    format: Literal["json", "logfmt", "key_value", "regex", "csv", "clf", "cef", "leef", "syslog"]
    pattern: Pattern | None = None
    columns: list[Annotated[str, Field(min_length=1)]] = Field(default=[])
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    pair_separator: str = Field(default=" ", min_length=1, max_length=16)
    value_separator: str = Field(default="=", min_length=1, max_length=16)

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

    keys = [name for name, _ in names]
    find = groups_finder(pattern, [index for _, index in names])

    def read(text: str) -> dict[str, Any] | None:
        found = find(text)
        if found is None:
            return None
        return {key: part for key, part in zip(keys, found, strict=True) if part is not None}

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


class Parse(Parsing):
    """Reads a field's text in one of the formats."""

    settings = ParseSettings

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
        return cls(_reader(settings), settings, name=settings.format, prefix=prefix, lift=lift)

"""Texts taken apart: each format is a function from a text to keys and values, or None.

None means that the text is not of the format. Nothing raises, whatever the text, and nothing takes
longer than in proportion to it; patterns of users run in RE2.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from penstock.collector.core.patterns import compile_pattern
from penstock.collector.core.times import iso_time_ns
from penstock.collector.decode.json_lines import read_object
from penstock.collector.decode.severity import severity_of_syslog
from penstock.collector.decode.syslog import parse_message
from penstock.specs.limits import ATTRIBUTES_MAX

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
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}


def read_json(text: str) -> dict[str, Any] | None:
    """An object in JSON."""
    found, _ = read_object(text.encode("utf-8", "surrogatepass"))
    return found


def read_logfmt(text: str) -> dict[str, Any] | None:
    """``key=value key="quoted value" flag``; a key without a value is true."""
    return _pairs(text, " ", "=", bare=True)


def key_value_reader(pair_separator: str, value_separator: str) -> Reader:
    """Keys and values with separators of one's own; every pair must have both."""
    return lambda text: _pairs(text, pair_separator, value_separator, bare=False)


def _pairs(
    text: str, pair_separator: str, value_separator: str, *, bare: bool
) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    has_pair = False
    for key, value in _split(text, pair_separator, value_separator):
        if not key or (value is None and not bare) or len(found) > ATTRIBUTES_MAX * 2:
            return None
        has_pair = has_pair or value is not None
        found[key] = True if value is None else value
    return found if has_pair else None


def _split(
    text: str, pair_separator: str, value_separator: str
) -> Iterator[tuple[str, str | None]]:
    at, end = 0, len(text)
    while at < end:
        if text.startswith(pair_separator, at):
            at += len(pair_separator)
            continue
        stop = _find(text, pair_separator, at)
        middle = text.find(value_separator, at, stop)
        if middle < 0:
            yield text[at:stop].strip(), None
            at = stop
            continue
        key, at = text[at:middle].strip(), middle + len(value_separator)
        if text.startswith('"', at) and (close := _closing(text, at + 1)) > 0:
            yield key, _unescaped(text[at + 1 : close])
            at = close + 1
        else:
            stop = _find(text, pair_separator, at)
            yield key, text[at:stop].strip()
            at = stop


def _find(text: str, part: str, at: int) -> int:
    found = text.find(part, at)
    return len(text) if found < 0 else found


def _closing(text: str, at: int) -> int:
    """Where the quote ends; -1 when it does not."""
    while True:
        quote = text.find('"', at)
        if quote < 0:
            return -1
        slashes = quote - len(text[at:quote].rstrip("\\")) - at
        if slashes % 2 == 0:
            return quote
        at = quote + 1


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


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
    return None if text in {None, "-", ""} else _unescaped(str(text))


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


def syslog_reader(text: str, now_ns: int) -> dict[str, Any] | None:
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

"""Syslog messages as log records: RFC 5424, RFC 3164, and messages that only resemble them.

RFC 3164 describes habits, not a format: the year and the zone are missing, often the host is, or
the whole header. What cannot be read as a part of the header stays in the body, and
``log.syslog.format`` names the form that was found: ``rfc5424``, ``rfc3164``, ``cisco`` or
``text``. As senders do, names and identifiers of RFC 5424 may be longer than it allows, times may
have more digits, and a message may end after its header.

A program's messages differ only in time and text. So a head (priority, host, program, structured
data) is read once, and the validator checks the first of its messages: within the bounds of times
and texts, other values cannot change the verdict. All other messages (no head, bytes that are not
text, text beyond a bound) are read one by one. Both ways make the same line.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import orjson

from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.lines import text_of
from penstock.collector.decode.severity import severity_of_syslog
from penstock.collector.decode.shapes import Check, Made, ShapeValidator
from penstock.collector.decode.timestamps import iso_time_ns, nearest_s, seconds_of
from penstock.collector.limits import SERVICE_CHARACTERS_MAX
from penstock.collector.sources.network.framing import messages_in
from penstock.collector.spool.spool import Unit
from penstock.specs.limits import INT64_MAX, STRING_CHARACTERS_MAX
from penstock.specs.validate.validator import check_line

_DEFAULT_PRIORITY: Final = 13
"""The priority of a message that brings none, by RFC 3164: user.notice."""

_FACILITIES: Final = (
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
    "ftp", "ntp", "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
)  # fmt: skip
_MONTHS: Final = (
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
)  # fmt: skip
_PRIORITY: Final = re.compile(rb"<([0-9]{1,3})>")
ISO: Final = (
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
    rb"(?:\.[0-9]{1,32})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
"""A time of RFC 5424; digits beyond nanoseconds are left out."""
_HEADER_5424: Final = re.compile(
    rb"1 (-|%b) ([!-~]{1,255}) ([!-~]{1,255}) ([!-~]{1,255}) ([!-~]{1,255})(?: |\Z)" % ISO
)
_NAME: Final = rb"[!#-<>-\\^-~]{1,255}"
_VALUE: Final = rb'(?:[^"\\\]]|\\.)*'
_PARAMETER: Final = rb' %b="%b"' % (_NAME, _VALUE)
ELEMENT: Final = rb"\[%b(?:%b)*\]" % (_NAME, _PARAMETER)
"""One element of structured data; compile it with DOTALL."""
_ELEMENT: Final = re.compile(rb"\[(%b)((?:%b)*)\]" % (_NAME, _PARAMETER), re.DOTALL)
_PARAMETERS: Final = re.compile(rb' (%b)="(%b)"' % (_NAME, _VALUE), re.DOTALL)
_ESCAPED: Final = re.compile(rb'\\(["\\\]])')
STAMP: Final = rb"[*.]?(?:%b)" % b"|".join(_MONTHS) + (
    rb" [ 0-9]?[0-9] (?:[0-9]{4} )?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
)
"""A time of RFC 3164, and of those who add a year, a fraction, or Cisco's sign of a clock that was
not set."""
_STAMP: Final = re.compile(
    rb"[*.]?(%b) ([ 0-9]?[0-9]) (?:([0-9]{4}) )?([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    % b"|".join(_MONTHS)
)
_TIME_3164: Final = re.compile(b"(%b|%b) " % (STAMP, ISO))
TAG: Final = rb"[A-Za-z0-9_./-]{1,48}"
"""The name of a program before a colon; whatever has other characters is text, as JSON has."""
HOST: Final = rb"[A-Za-z0-9_.-]{1,255}"
_TAG: Final = re.compile(rb"(%b)(?:\[([^\]\s]{0,128})\])?:(?: |\Z)" % TAG)
_HOST: Final = re.compile(rb"(%b|[0-9a-fA-F:.]{2,45}) " % HOST)
_CISCO: Final = re.compile(
    rb"(?:[0-9]{1,20}: )?(?:(%b): )?(%b)(?: ([A-Z]{1,5}))?(?: (%b) )?: (?=%%)" % (HOST, STAMP, HOST)
)
"""Sequence, host, time, zone, and ASA's host, before `%FACILITY-SEVERITY-MNEMONIC: text`."""
_ZONES: Final = (b"UTC", b"GMT", b"Z")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Parsed:
    """A message's parts; empty where it has none.

    Attributes:
        data: Structured data: element id to names and values; a list of those of a name that
            stands more than once.
        has_priority: Whether it says its own; else `priority` is the one that it is given.
        has_time: Whether a time stands in it; `time_ns` is None where that cannot be read.
    """

    form: str = "text"
    priority: int = _DEFAULT_PRIORITY
    time_ns: int | None = None
    host: bytes = b""
    app: bytes = b""
    process: bytes = b""
    message_id: bytes = b""
    data: dict[str, dict[str, str | list[str]]] = field(default_factory=dict)
    body: bytes = b""
    has_priority: bool = False
    has_time: bool = False


def parse_message(message: bytes, now_ns: int, zone: tzinfo = UTC) -> Parsed:
    """Read a message, however little of it can be.

    Args:
        message: Without framing.
        now_ns: Time nearest to which a missing year is chosen.
        zone: The zone of times that name none.
    """
    parsed = Parsed()
    message = message.removeprefix(_BOM)
    priority = _PRIORITY.match(message)
    if priority is not None and int(priority[1]) < len(_FACILITIES) * 8:
        parsed.priority, parsed.has_priority = int(priority[1]), True
        message = message[priority.end() :]
    header = _HEADER_5424.match(message)
    if header is not None and priority is not None:
        _read_5424(parsed, header, message[header.end() :])
    else:
        _read_3164(parsed, message, now_ns, zone)
    return parsed


def _read_5424(parsed: Parsed, header: re.Match[bytes], rest: bytes) -> None:
    time, *parts = header.groups()
    host, app, process, message_id = (b"" if part == b"-" else part for part in parts)
    parsed.form = "rfc5424"
    parsed.time_ns, parsed.has_time = iso_time_ns(time.decode()), time != b"-"
    parsed.host, parsed.app, parsed.process, parsed.message_id = host, app, process, message_id
    at = 1 if rest.startswith(b"-") else 0
    while element := _ELEMENT.match(rest, at):
        parameters = parsed.data.setdefault(element[1].decode(), {})
        for name, value in _PARAMETERS.findall(element[2]):
            text = _ESCAPED.sub(rb"\1", value).decode("utf-8", "replace")
            _add(parameters, name.decode(), text)
        at = element.end()
    # A blank ends structured data; without one it was none, and all of it is text.
    body = rest[at + 1 :] if rest[at : at + 1] == b" " else rest[at:]
    parsed.body = body.removeprefix(_BOM)


def _add(parameters: dict[str, str | list[str]], name: str, text: str) -> None:
    """A value more; RFC 5424 lets a name stand several times, as `ip` of `origin` does."""
    known = parameters.get(name)
    if known is None:
        parameters[name] = text
    elif isinstance(known, list):
        known.append(text)
    else:
        parameters[name] = [known, text]


def _read_3164(parsed: Parsed, message: bytes, now_ns: int, zone: tzinfo) -> None:
    parsed.body = message
    if cisco := _CISCO.match(message):
        parsed.form, parsed.has_time = "cisco", True
        parsed.time_ns = time_of(cisco[2], now_ns, UTC if cisco[3] in _ZONES else zone)
        parsed.host = cisco[1] or cisco[4] or b""
        parsed.body = message[cisco.end() :]
        return
    time = _TIME_3164.match(message)
    if time is None:
        return
    parsed.time_ns, at = time_of(time[1], now_ns, zone), time.end()
    parsed.form, parsed.has_time = "rfc3164", True
    host = _HOST.match(message, at)
    if host is not None and not _TAG.match(message, at):  # the host is often left out
        parsed.host, at = host[1], host.end()
    tag = _TAG.match(message, at)
    if tag is not None:
        parsed.app, parsed.process, at = tag[1], tag[2] or b"", tag.end()
    parsed.body = message[at:]


def time_of(text: bytes, now_ns: int, zone: tzinfo) -> int | None:
    """A time as RFC 5424 or RFC 3164 writes it; None when there is no such time."""
    if text[:1].isdigit() or text == b"-":
        return iso_time_ns(text.decode())
    return _nearest(text, now_ns, zone)


@lru_cache(maxsize=1024)
def _nearest(stamp: bytes, now_ns: int, zone: tzinfo) -> int | None:
    """The date with its year, or the one that is nearest to now; None when there is none."""
    parts = _STAMP.fullmatch(stamp)
    if parts is None:
        return None
    month, day, own_year, hour, minute, second, fraction = parts.groups(b"")
    number = _MONTHS.index(month) + 1
    clock = (int(hour), int(minute), min(int(second), 59))  # a leap second
    if own_year:
        found = seconds_of(int(own_year), number, int(day), clock, zone)
    else:
        found = nearest_s(number, int(day), clock, now_ns // 1_000_000_000, zone)
    if found is None:
        return None
    nanoseconds = int(fraction.ljust(9, b"0"))
    time_ns = max(0, found) * 1_000_000_000 + nanoseconds
    return time_ns if time_ns <= INT64_MAX else None


def record_of(
    parsed: Parsed, unit: Unit, resource: Mapping[str, Any], *, cut: bool
) -> dict[str, Any]:
    """A message's record; `cut`: it was longer, and this is its beginning."""
    named: dict[str, Any] = {"log.syslog.format": parsed.form, **_priority_of(parsed)}
    named |= _names_of(parsed)
    if peer := unit.meta.get("peer"):
        named["network.peer.address"] = peer
    if cut:
        named["log.record.truncated"] = True
    if parsed.data:
        named["log.syslog.structured_data"] = parsed.data
    body = text_of(parsed.body, named)
    if len(body) > STRING_CHARACTERS_MAX:
        named["log.record.truncated"] = True
    attributes, left_out = flatten(named)
    number, text = severity_of_syslog(parsed.priority % 8)
    record: dict[str, Any] = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": unit.received_ns if parsed.time_ns is None else parsed.time_ns,
        "observed_time_unix_nano": unit.received_ns,
        "severity_number": number,
        "severity_text": text,
        "body": body[:STRING_CHARACTERS_MAX],
        "resource": _resource(parsed, unit, resource),
        "attributes": attributes,
    }
    return record | ({"dropped_attributes_count": left_out} if left_out else {})


def header_attributes(parsed: Parsed) -> dict[str, Any]:
    """What the header of a message says besides host and time; empty where it has none."""
    found = _priority_of(parsed) if parsed.has_priority else {}
    found |= _names_of(parsed)
    if parsed.data:
        found["log.syslog.structured_data"] = parsed.data
    return found


def _priority_of(parsed: Parsed) -> dict[str, Any]:
    facility, level = divmod(parsed.priority, 8)
    return {
        "log.syslog.facility.name": _FACILITIES[facility],
        "log.syslog.severity.code": level,
    }


def _names_of(parsed: Parsed) -> dict[str, Any]:
    given = (("appname", parsed.app), ("procid", parsed.process), ("msgid", parsed.message_id))
    return {f"log.syslog.{key}": value.decode("utf-8", "replace") for key, value in given if value}


def _resource(parsed: Parsed, unit: Unit, resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sender's resource: by its own words, else by its address unless it is local."""
    service: str = unit.meta["service"]
    if service == "from_app":
        service = parsed.app.decode("utf-8", "replace")[:SERVICE_CHARACTERS_MAX] or "syslog"
    own = {**resource, "service.name": service}
    if parsed.host:
        own["host.name"] = parsed.host.decode("utf-8", "replace")
    elif (peer := unit.meta.get("peer", "")) and not peer.startswith(("127.", "::1")):
        own["host.name"] = peer
    return own


_HEAD_5424: Final = re.compile(
    rb"(<[0-9]{1,3}>1 )(-|%b)((?: [!-~]{1,255}){4} (?:-|(?:%b)+) )"
    rb"(?:\xef\xbb\xbf)?" % (ISO, ELEMENT),
    re.DOTALL,
)
_HEAD_3164: Final = re.compile(
    rb"(<[0-9]{1,3}>)(%b|%b)( (?:%b )?%b(?:\[[^\]\s]{0,128}\])?: )(?!%%)" % (STAMP, ISO, HOST, TAG)
)
"""Both: what stands before the time, the time, and the rest of the head. Where each part ends is
known by the head alone, whatever the text is, so what was read of it once holds for it always. Text
behind a percent sign may be Cisco's, and is read alone."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A head's records, but for the time and the text, which stand between these."""

    before: bytes
    middle: bytes
    after: bytes


class ShapedMessages:
    """Makes records of messages of one unit that begin with a head.

    Args:
        unit: Unit that has the messages.
        resource: The collector's own.
        zone: The zone of times that name none.
        notes: Counter of what is not understood.
        check: Validates the first of each head.
    """

    def __init__(
        self,
        unit: Unit,
        resource: Mapping[str, Any],
        zone: tzinfo,
        notes: Counter[str],
        *,
        check: Check = check_line,
    ) -> None:
        self._unit = unit
        self._notes = notes
        self._resource = resource
        self._zone = zone
        self._shapes: dict[tuple[bytes, bytes], _Shape | None] = {}
        self._validator = ShapeValidator(check)

    def make(self, message: bytes) -> Made | None:
        """A whole message's record; None when the line needs a full decode."""
        found = _HEAD_5424.match(message) or _HEAD_3164.match(message)
        if found is None:
            return None
        front, time, rest = found.groups()
        head = front, rest
        shape = self._shapes[head] if head in self._shapes else self._remember(head, message)
        if shape is None:
            return None
        try:
            text = message[found.end() :].decode()
        except UnicodeDecodeError:
            return None
        if len(text) > STRING_CHARACTERS_MAX:
            return None
        time_ns = time_of(time, self._unit.received_ns, self._zone)
        if time_ns is None:
            self._notes["timestamps_unreadable"] += time != b"-"
            time_ns = self._unit.received_ns
        body = orjson.dumps(text)
        line = b"%b%d%b%b%b" % (shape.before, time_ns, shape.middle, body, shape.after)
        return line, self._validator.validate(line, head, time_ns)

    def _remember(self, head: tuple[bytes, bytes], message: bytes) -> _Shape | None:
        """Work out and cache the shape of messages with this head; None where it is no head."""
        shape = None
        parsed = parse_message(message, self._unit.received_ns, self._zone)
        if parsed.form != "text":  # as with a priority that is none
            same = replace(parsed, time_ns=0, body=b"")
            record = record_of(same, self._unit, self._resource, cut=False)
            before, _, rest = orjson.dumps(record).partition(b":0,")  # the first number is the time
            middle, _, after = rest.partition(b'""')  # and the first empty text the body
            shape = _Shape(before + b":", b"," + middle, after)
        self._shapes[head] = shape
        return shape


def decode_syslog(
    unit: Unit,
    resource: Mapping[str, Any],
    notes: Counter[str] | None = None,
    *,
    check: Check = check_line,
) -> list[Made]:
    """The records of a unit; of those with one head, `check` validates the first.

    A time that cannot be read is counted in `notes`.

    Raises:
        UndecodableError: It is not one of syslog messages.
    """
    cut = frozenset(unit.meta.get("truncated", ()))
    zone = ZoneInfo(unit.meta.get("timezone", "UTC"))
    notes = Counter() if notes is None else notes
    shaped = ShapedMessages(unit, resource, zone, notes, check=check)
    found: list[Made] = []
    for index, message in enumerate(messages_in(unit.payload)):
        made = None if index in cut else shaped.make(message)
        if made is None:
            parsed = parse_message(message, unit.received_ns, zone)
            notes["timestamps_unreadable"] += parsed.has_time and parsed.time_ns is None
            record = record_of(parsed, unit, resource, cut=index in cut)
            made = orjson.dumps(record), None
        found.append(made)
    return found

"""Syslog messages as record lines: those with a head that was met before around what differs.

What a program writes before its text is always the same but for the time. So a head (priority,
host, program, structured data) is read once, and of its messages the gate judges the first, which
it does for all: times and texts within their bounds cannot make a difference to it. Whatever else
there is (no head at all, bytes that are no text, text beyond a bound) goes the way of
`penstock.collector.decode.syslog`, message by message; both ways make the same line of what both
can read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

import orjson

from penstock.collector.core.syslog_framing import messages_in
from penstock.collector.decode.shapes import Check, Made, ShapeGate
from penstock.collector.decode.syslog import (
    ELEMENT,
    HOST,
    ISO,
    STAMP,
    TAG,
    parse_message,
    record_of,
    time_of,
)
from penstock.collector.spool import Unit
from penstock.specs.limits import STRING_CHARACTERS_MAX
from penstock.specs.validate.validator import check_line

_HEAD_5424: Final = re.compile(
    rb"(<[0-9]{1,3}>1 )(-|%b)((?: [!-~]{1,255}){4} (?:-|(?:%b)+) )"
    rb"(?:\xef\xbb\xbf)?" % (ISO, ELEMENT),
    re.DOTALL,
)
_HEAD_3164: Final = re.compile(
    rb"(<[0-9]{1,3}>)(%b|%b)( (?:%b )?%b(?:\[[^\]\s]{0,128}\])?: )(?!%%)" % (STAMP, ISO, HOST, TAG)
)
"""Both: what stands before the time, the time, and the rest of the head. Where each part ends is
told by the head alone, whatever the text is, so what was read of it once holds for it always. Text
behind a percent sign may be Cisco's, and is read alone."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A head's records, but for the time and the text, which stand between these."""

    before: bytes
    middle: bytes
    after: bytes
    severity_number: int


class ShapedMessages:
    """Makes records of messages of one unit that begin with a head.

    Args:
        unit: Whose messages they are.
        resource: The collector's own.
        zone: Of times that have none.
        check: Judges the first of each head.
    """

    def __init__(
        self, unit: Unit, resource: Mapping[str, Any], zone: tzinfo, *, check: Check = check_line
    ) -> None:
        self._unit = unit
        self._resource = resource
        self._zone = zone
        self._shapes: dict[tuple[bytes, bytes], _Shape | None] = {}
        self._gate = ShapeGate(check)

    def make(self, message: bytes) -> Made | None:
        """A whole message's record; None when it takes a look of its own."""
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
            time_ns = self._unit.received_ns
        body = orjson.dumps(text)
        line = b"%b%d%b%b%b" % (shape.before, time_ns, shape.middle, body, shape.after)
        return line, self._gate.judge(line, head, time_ns, shape.severity_number)

    def _remember(self, head: tuple[bytes, bytes], message: bytes) -> _Shape | None:
        """What is known of messages with this head from now on; None: it is none."""
        shape = None
        parsed = parse_message(message, self._unit.received_ns, self._zone)
        if parsed.form != "text":  # as with a priority that is none
            same = replace(parsed, time_ns=0, body=b"")
            record = record_of(same, self._unit, self._resource, cut=False)
            before, _, rest = orjson.dumps(record).partition(b":0,")  # the first number is the time
            middle, _, after = rest.partition(b'""')  # and the first empty text the body
            number = record["severity_number"]
            shape = _Shape(before + b":", b"," + middle, after, number)
        self._shapes[head] = shape
        return shape


def decode_syslog(
    unit: Unit, resource: Mapping[str, Any], *, check: Check = check_line
) -> list[Made]:
    """The records of a unit; of those with one head, `check` judges the first.

    Raises:
        UndecodableError: It is not one of syslog messages.
    """
    cut = frozenset(unit.meta.get("truncated", ()))
    zone = ZoneInfo(unit.meta.get("timezone", "UTC"))
    shaped = ShapedMessages(unit, resource, zone, check=check)
    found: list[Made] = []
    for index, message in enumerate(messages_in(unit.payload)):
        made = None if index in cut else shaped.make(message)
        if made is None:
            parsed = parse_message(message, unit.received_ns, zone)
            record = record_of(parsed, unit, resource, cut=index in cut)
            made = orjson.dumps(record), None
        found.append(made)
    return found

"""Raw text lines, from standard input or a file, as log records.

A line is the record's body. A line that is a JSON object with a level or a timestamp, as structured
loggers write it (ours included), is taken apart instead: the level becomes the severity, the event
or message the body, the timestamp the time, all else attributes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock.collector.decode.attributes import clean_text, flatten
from penstock.collector.decode.severity import INFO, severity
from penstock.collector.decode.shapes import (
    BODY_KEYS,
    LEVEL_KEYS,
    TELLING,
    TIME_KEYS,
    Made,
    ShapedEvents,
    take_field,
    time_of,
)
from penstock.specs.fast_gate import Accepted
from penstock.specs.gate import check_line
from penstock.specs.limits import ATTRIBUTES_MAX, RECORD_BYTES_MAX, STRING_CHARACTERS_MAX

_PLAIN_BYTES_MAX: Final = 16 * 1024
"""Of a line; escaped, it may become six times as long, and still be within the bounds of a body."""


@dataclass(frozen=True, slots=True)
class LineContext:
    """What holds for every line of one source or file.

    Attributes:
        attributes: Added to each record, as ``log.file.path``.
    """

    resource: Mapping[str, Any]
    attributes: Mapping[str, Any]


def decode_line(  # noqa: PLR0913 - what is known of a line
    line: bytes,
    context: LineContext,
    now_ns: int,
    *,
    truncated: bool,
    written_ns: int | None = None,
    stream: str = "",
    continued: bool = False,
    own: Mapping[str, str] | None = None,
) -> bytes:
    """Make a log record of a line.

    Args:
        line: Without its newline.
        context: What the source adds.
        now_ns: When the line was read: the observed time, and the time when nothing says it.
        truncated: The line was longer than allowed and this is its beginning.
        written_ns: When its container wrote it; a time in the line itself is better.
        stream: Of its container.
        continued: It goes on with the line before it.
        own: Attributes of its container.

    Returns:
        The record's line.
    """
    attributes: dict[str, Any] = {**context.attributes, **(own or {})}
    if truncated:
        attributes["log.record.truncated"] = True
    if stream:
        attributes["log.iostream"] = stream
    if continued:
        attributes["log.record.continued"] = True
    fields = None if truncated or continued else _structured(line)
    if fields is not None:
        own = log_record(fields, attributes, context.resource, now_ns, written_ns=written_ns)
        return _encode(own)
    body = text_of(line, attributes)
    time_ns = now_ns if written_ns is None else written_ns
    return _encode(_text_record(body, context.resource, attributes, time_ns, now_ns))


class PlainLines:
    """Lines of one source or file, read at one time: those that need no look of their own.

    Plain text makes records that differ in their body only. That alone is made for each, and one of
    them is judged for all: what the gate says of it, it says of each whose body is text of bounded
    length. Structured lines are made and judged by their shape.
    """

    def __init__(self, context: LineContext, now_ns: int) -> None:
        empty = _encode(_text_record("", context.resource, context.attributes, now_ns, now_ns))
        self._before, _, self._after = empty.partition(b'""')  # the first empty text is the body
        self._verdict: Accepted | None = None
        verdict = check_line(empty)
        if isinstance(verdict, Accepted) and len(empty) < RECORD_BYTES_MAX // 2:
            self._verdict = verdict
        self._events = ShapedEvents(context.resource, context.attributes, now_ns, timed=False)

    def make(self, line: bytes) -> Made | None:
        """The record of a line, with the gate's verdict; None when it takes a look of its own.

        It does when it is longer, not UTF-8, or not plain in another way; `decode_line` reads all.
        """
        if line.startswith(b"{"):
            fields = _structured(line)
            if fields is not None:
                return self._events.make(fields)
        if self._verdict is None or len(line) > _PLAIN_BYTES_MAX:
            return None
        try:
            body = orjson.dumps(line.decode())
        except UnicodeDecodeError:
            return None
        return self._before + body + self._after, self._verdict


def _text_record(
    body: str, resource: Mapping[str, Any], attributes: Mapping[str, Any], time_ns: int, now_ns: int
) -> dict[str, Any]:
    return {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": time_ns,
        "observed_time_unix_nano": now_ns,
        "severity_number": INFO[0],
        "severity_text": INFO[1],
        "body": body,
        "resource": resource,
        "attributes": attributes,
    }


def log_record(
    fields: dict[str, Any],
    attributes: dict[str, Any],
    resource: Mapping[str, Any],
    now_ns: int,
    *,
    time_ns: int | None = None,
    written_ns: int | None = None,
) -> dict[str, Any]:
    """Make a log record of a structured event; `fields` is used up.

    An event without a message has an empty body.

    Args:
        fields: The event's keys and values.
        attributes: Attributes to which those of the event are added; they win over the event's.
        resource: Who emitted it.
        now_ns: When it was read.
        time_ns: When it happened, when the protocol says so; else a time field of the event.
        written_ns: The time when neither says it; else when it was read.
    """
    level = take_field(fields, LEVEL_KEYS, severity) or INFO
    if time_ns is None:
        time_ns = take_field(fields, TIME_KEYS, time_of)
    if time_ns is None:
        time_ns = now_ns if written_ns is None else written_ns
    message = take_field(fields, BODY_KEYS, _message) or ""
    text = clean_text(message)
    if len(text) > STRING_CHARACTERS_MAX:
        attributes = {**attributes, "log.record.truncated": True}
    if text != message:
        attributes = {**attributes, "log.record.bytes_replaced": True}
    own, left_out = flatten(fields, count_max=ATTRIBUTES_MAX - len(attributes))
    record: dict[str, Any] = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": time_ns,
        "observed_time_unix_nano": now_ns,
        "severity_number": level[0],
        "severity_text": level[1],
        "body": text[:STRING_CHARACTERS_MAX],
        "resource": resource,
        "attributes": own | attributes,
    }
    if left_out:
        record["dropped_attributes_count"] = left_out
    return record


def text_of(raw: bytes, attributes: dict[str, Any]) -> str:
    """Bytes as text; when some had to be replaced, the attributes say so."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        attributes["log.record.bytes_replaced"] = True
        return raw.decode("utf-8", "replace")


def _structured(line: bytes) -> dict[str, Any] | None:
    """The fields of a line as a structured logger writes it; None for any other line."""
    if not line.startswith(b"{"):
        return None
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return None if TELLING.isdisjoint(fields) else fields


def is_structured(line: bytes) -> bool:
    """Whether a line is as a structured logger writes it."""
    return _structured(line) is not None


def _message(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def printable(path: str) -> str:
    """A file's name as text, also one that is not UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _encode(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record)

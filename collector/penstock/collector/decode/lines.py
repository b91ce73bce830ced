"""Raw text lines, from standard input or a file, as log records.

A line is the record's body. A line that is a JSON object with a level or a timestamp, as structured
loggers write it (ours included), is taken apart instead: the level becomes the severity, the event
or message the body, the timestamp the time, the trace's ids the record's own, all else attributes
(`penstock.collector.decode.loggers`). Three counters name what is not understood:

    levels_unknown           the level is one that no known logger has; the record is INFO
    timestamps_unreadable    the time cannot be read, or is missing where one is expected; the
                             record has the time of reading, or ends as configured
    lines_repaired           strict readers refuse this JSON; it was read all the same

Such JSON is read part by part: ``NaN`` and the infinities, numbers beyond a double (as their text),
lone surrogates (as U+FFFD), bytes that are not UTF-8, a comma before a closing bracket. An integer
keeps its digits, however large.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, Final

import msgspec
import orjson

from penstock.collector.decode.attributes import clean_text, flatten
from penstock.collector.decode.line_rules import NO_RULES, LineRules, OnError
from penstock.collector.decode.loggers import (
    TEMPLATES,
    TIMES,
    is_telling,
    lay_bare,
    render,
    roles_of,
    take_level,
    take_trace,
)
from penstock.collector.decode.severity import INFO, Severity, severity_in_line
from penstock.collector.decode.shapes import (
    Made,
    MadeTogether,
    ShapedEvents,
    ShapeValidator,
    groups_by_keys,
    log_fields,
    together,
)
from penstock.collector.decode.timestamps import time_of
from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    INT64_MAX,
    INT64_MIN,
    RECORD_BYTES_MAX,
    STRING_CHARACTERS_MAX,
)
from penstock.specs.redact.line_search import LineParts
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted, Verdicts

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark that may stand at the beginning of a file in UTF-8."""
_TRAILING_COMMA: Final = re.compile(
    r'("[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z))|,(?=\s*[}\]])', re.DOTALL
)
"""A comma before a closing bracket, or a string, which may hold one. A string that does not end is
taken to the end of the text: looking for its end from each quote in it would take quadratic time.
"""
_DIGITS_MAX: Final = 4000
"""Digits that an integer may have; Python itself refuses somewhat more."""
_decode: Final = msgspec.json.Decoder().decode
_Scalar = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)] | float | str | bool | None
_Bounded = _Scalar | dict[str, Any] | list[Any]
_decode_bounded: Final = msgspec.json.Decoder(dict[str, _Bounded]).decode
"""An object, of which no number is beyond what a record can hold."""
_decode_scalars: Final = msgspec.json.Decoder(dict[str, _Scalar]).decode_lines
"""The objects of many lines, if no value is an object or a list. So none of the objects goes on in
the next line, if all lines begin with a brace."""
_TOGETHER: Final = 128
"""Lines that are decoded together: where one is odd, each of them is decoded by itself."""


def read_object(text: bytes) -> tuple[dict[str, Any] | None, bool]:
    """The JSON object that a text is, and whether a strict reader would have refused it.

    None when it is none, also for a lenient reader.
    """
    try:
        found = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _read_leniently(text), True
    except RecursionError:
        return None, False
    return found if isinstance(found, dict) else None, False


def _read_leniently(text: bytes) -> dict[str, Any] | None:
    if not text.rstrip().endswith(b"}"):
        return None
    whole = text.decode("utf-8", "replace")
    for attempt in (whole, None):
        try:
            found = json.loads(
                _TRAILING_COMMA.sub(lambda it: it[1] or "", whole) if attempt is None else attempt,
                parse_float=_real,
                parse_int=_integer,
            )
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else None
    return None


def _real(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _DIGITS_MAX else text


_BLANKS: Final = b" \t"
_MAY_BEGIN_JSON: Final = frozenset((b"{", b" ", b"\t", b"\xef"))
_MAY_BE_JSON: Final = re.compile(rb"[ \t]*\{|\xef\xbb\xbf")
_FIRST_BYTE: Final = itemgetter(slice(1))
_PLAIN_BYTES_MAX: Final = 16 * 1024
"""Longest line that needs no cut: escaped it may grow sixfold and still fit into a body."""


@dataclass(frozen=True, slots=True)
class LineContext:
    """Attributes and rules of all lines of one source or file.

    Attributes:
        attributes: Attributes of each record, as ``log.file.path``.
        rules: Rules of what is read out of the lines.
    """

    resource: Mapping[str, Any]
    attributes: Mapping[str, Any]
    rules: LineRules = NO_RULES


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
    notes: Counter[str] | None = None,
) -> tuple[bytes, OnError]:
    """Make a log record of a line.

    Args:
        line: Without its newline.
        context: Context of the source.
        now_ns: Time of the read: the observed time, and the record's time when it names none.
        truncated: The line was longer than allowed and this is its beginning.
        written_ns: Time when the line's container wrote it; a time in the line itself takes
            precedence.
        stream: The stream of its container.
        continued: It goes on with the line before it.
        own: Attributes of its container.
        notes: Counter of what is not understood.

    Returns:
        The record's line, and what becomes of it: `LineRules.on_error` where no time can be read.
    """
    rules = context.rules
    found: Counter[str] = Counter()
    attributes: dict[str, Any] = {**context.attributes, **(own or {})}
    if truncated:
        attributes["log.record.truncated"] = True
    if stream:
        attributes["log.iostream"] = stream
    if continued:
        attributes["log.record.continued"] = True
    fields, repaired = (None, False) if truncated or continued else structured_fields(line, rules)
    if repaired:
        found["lines_repaired"] = 1
    if fields is not None:
        time_ns = _field_time(fields, rules, now_ns)
        is_wrong = time_ns is None and bool(rules.field) and rules.field in fields
        record = log_record(
            fields,
            attributes,
            context.resource,
            now_ns,
            time_ns=time_ns,
            written_ns=written_ns,
            needs_time=rules.needs_time,
            notes=found,
        )
        if is_wrong:
            found["timestamps_unreadable"] = 1
    else:
        body = text_of(line.removeprefix(BYTE_ORDER_MARK), attributes)
        level, time_ns = (INFO, None) if continued else _look_into(body, rules, now_ns)
        if time_ns is None:
            time_ns = now_ns if written_ns is None else written_ns
            if rules.time is not None and not continued:
                found["timestamps_unreadable"] = 1
        record = log_fields(level, time_ns, now_ns, body, None, context.resource, attributes)
    if notes is not None:
        notes.update(found)
    return _encode(record), rules.on_error if found["timestamps_unreadable"] else "pass"


class PlainLines:
    """Lines of one source or file, read at one time: those that need no full decode.

    Plain text makes records that differ in their body only. That alone is made for each, and one of
    them is validated for all: what the validator says of it, it says of each whose body is text of
    bounded length. Structured lines are made and validated by their shape.
    """

    def __init__(self, context: LineContext, now_ns: int) -> None:
        empty = _encode(
            log_fields(INFO, now_ns, now_ns, "", None, context.resource, context.attributes)
        )
        self._before, _, self._after = empty.partition(b'""')  # the first empty text is the body
        self._verdict: Accepted | None = None
        verdict = check_line(empty)
        if isinstance(verdict, Accepted) and len(empty) < RECORD_BYTES_MAX // 2:
            self._verdict = verdict
        self._events = ShapedEvents(context.resource, context.attributes, now_ns, timed=False)
        self._context, self._now_ns = context, now_ns
        self._names_no_time = not (context.rules.field or context.rules.needs_time)
        self._validator = ShapeValidator()

    def make(self, line: bytes) -> Made | None:
        """The record of a line, with the validator's verdict; None: it needs a full decode.

        It does when it is longer, not UTF-8, or not plain in another way; `decode_line` reads all.
        """
        if line[:1] in _MAY_BEGIN_JSON:
            if self._names_no_time and line[:1] == b"{" and len(line) <= STRING_CHARACTERS_MAX:
                try:
                    bounded = _decode_bounded(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    bounded = None
                if bounded is not None:
                    if not is_telling(bounded):
                        return self._make_text(line)
                    if line.find(b"{", 1) < 0 and b"[" not in line:
                        return self._events.make_scalars(bounded)
                    return self._events.make(bounded)
            fields, repaired = structured_fields(line, self._context.rules)
            if repaired or line.startswith(BYTE_ORDER_MARK):
                return None
            if fields is not None:
                rules = self._context.rules
                alone = rules.field or (rules.needs_time and TIMES.isdisjoint(fields))
                return None if alone else self._events.make(fields)
        return self._make_text(line)

    def make_together(self, lines: Sequence[bytes]) -> MadeTogether:
        """Make what `make` makes of each line."""
        made: list[bytes | None] = []
        verdicts, own = Verdicts([], []), list[bytes]()
        shared: dict[bytes, None] = {}
        for at in range(0, len(lines), _TOGETHER):
            part = lines[at : at + _TOGETHER]
            found = self._make_part(part) or together([*map(self.make, part)])
            made += found.lines
            verdicts.extend(found.verdicts)
            own += found.parts.own
            shared[found.parts.shared] = None
        return MadeTogether(made, verdicts, LineParts(b"\n".join(shared), own))

    def _make_part(self, lines: Sequence[bytes]) -> MadeTogether | None:
        """The records of lines that are alike; None where each is to be made by itself."""
        begins = {*map(_FIRST_BYTE, lines)}
        try:
            if begins == {b"{"}:
                return self._make_events(lines)
            if begins.isdisjoint(_MAY_BEGIN_JSON) or not any(map(_MAY_BE_JSON.match, lines)):
                return self._make_texts(lines)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        return None

    def _make_events(self, lines: Sequence[bytes]) -> MadeTogether | None:
        """The records of structured lines of scalars; None where one is none."""
        if not self._names_no_time or max(map(len, lines)) > STRING_CHARACTERS_MAX:
            return None
        events = _decode_scalars(b"\n".join(lines))
        if len(events) != len(lines):
            return None
        groups = groups_by_keys(events)
        return self._events.make_together(events, groups) if all(map(is_telling, groups)) else None

    def _make_texts(self, lines: Sequence[bytes]) -> MadeTogether | None:
        """The records of lines of text; None where each is to be made by itself."""
        verdict = None if self._context.rules.looks_into_text else self._verdict
        if verdict is None or max(map(len, lines)) > _PLAIN_BYTES_MAX:
            return None
        before, after = self._before, self._after
        bodies: Iterable[bytes] = map(orjson.dumps, map(bytes.decode, lines))
        own = [*lines]  # which are there already
        if b'"' in b"".join(lines):  # a quoted word would look like a key
            own = bodies = [*bodies]
        verdicts = Verdicts([verdict] * len(lines), [self._now_ns] * len(lines))
        parts = LineParts(before + b'""' + after, own)
        return MadeTogether([before + body + after for body in bodies], verdicts, parts)

    def _make_text(self, line: bytes) -> Made | None:
        if self._context.rules.looks_into_text:
            return self._look_into(line)
        if self._verdict is None or len(line) > _PLAIN_BYTES_MAX:
            return None
        try:
            body = orjson.dumps(line.decode())
        except UnicodeDecodeError:
            return None
        return self._before + body + self._after, self._verdict

    def _look_into(self, line: bytes) -> Made | None:
        if len(line) > _PLAIN_BYTES_MAX:
            return None
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return None
        context, now_ns = self._context, self._now_ns
        level, time_ns = _look_into(text, context.rules, now_ns)
        if time_ns is None:
            if context.rules.time is not None:
                return None  # it is counted
            time_ns = now_ns
        made = _encode(
            log_fields(level, time_ns, now_ns, text, None, context.resource, context.attributes)
        )
        return made, self._validator.validate(made, "text", time_ns)


def _look_into(text: str, rules: LineRules, now_ns: int) -> tuple[Severity, int | None]:
    """Return a text line's severity (INFO where it names none) and its time."""
    level = severity_in_line(text) if rules.severity else None
    time_ns = None if rules.time is None else rules.time(text, now_ns)
    return level or INFO, time_ns


def _field_time(fields: dict[str, Any], rules: LineRules, now_ns: int) -> int | None:
    """The time in the field that is configured; None leaves it to those that loggers use."""
    if not rules.field or rules.field not in fields:
        return None
    time_ns = rules.field_time(fields[rules.field], now_ns)
    if time_ns is not None:
        del fields[rules.field]
    return time_ns


def log_record(  # noqa: PLR0913 - what is known of an event
    fields: dict[str, Any],
    attributes: dict[str, Any],
    resource: Mapping[str, Any],
    now_ns: int,
    *,
    time_ns: int | None = None,
    written_ns: int | None = None,
    needs_time: bool = False,
    notes: Counter[str] | None = None,
) -> dict[str, Any]:
    """Make a log record of a structured event; `fields` is used up.

    An event without a message has an empty body.

    Args:
        fields: The event's keys and values.
        attributes: Attributes to which those of the event are added; they win over the event's.
        resource: Resource that emitted it.
        now_ns: Time of the read.
        time_ns: Time of the event, when the protocol has it; else that of the event's time field.
        written_ns: The time when neither says it; else when it was read.
        needs_time: It is counted, too, when nothing should be the time.
        notes: Counter of what is not understood.
    """
    fields = lay_bare(fields)
    roles = roles_of(fields)
    level = take_level(fields, roles)
    if level is None:
        level = INFO
        if roles.levels and notes is not None:
            notes["levels_unknown"] += 1
    if time_ns is None:
        time_ns = _take_time(fields, roles.times, now_ns)
        if time_ns is None and (roles.times or needs_time) and notes is not None:
            notes["timestamps_unreadable"] += 1
    if time_ns is None:
        time_ns = now_ns if written_ns is None else written_ns
    message = _take_message(fields, roles.bodies)
    trace = take_trace(fields, roles)
    text = clean_text(message)
    if len(text) > STRING_CHARACTERS_MAX:
        attributes = {**attributes, "log.record.truncated": True}
    if text != message:
        attributes = {**attributes, "log.record.bytes_replaced": True}
    own, left_out = flatten(fields, count_max=ATTRIBUTES_MAX - len(attributes))
    record = log_fields(
        level=level, time_ns=time_ns, now_ns=now_ns, body=text[:STRING_CHARACTERS_MAX],
        trace=trace, resource=resource, attributes=own | attributes,
    )  # fmt: skip
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


def structured_fields(line: bytes, rules: LineRules) -> tuple[dict[str, Any] | None, bool]:
    """The fields of a line as a structured logger writes it, and whether strict readers refuse it.

    None for any other line.
    """
    text = line
    if line[:1] != b"{":
        text = line.removeprefix(BYTE_ORDER_MARK).lstrip(_BLANKS)
        if text[:1] != b"{":
            return None, False
    fields, repaired = read_object(text)
    if fields is None or not (is_telling(fields) or (rules.field and rules.field in fields)):
        return None, False
    return fields, repaired


def is_structured(line: bytes, rules: LineRules) -> bool:
    """Return whether a line has the form of a structured logger."""
    return structured_fields(line, rules)[0] is not None


def _take_time(fields: dict[str, Any], keys: tuple[str, ...], now_ns: int) -> int | None:
    for key in keys:
        if (found := time_of(fields[key], now_ns)) is not None:
            del fields[key]
            return found
    return None


def _take_message(fields: dict[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        if isinstance(found := fields[key], str) and found:
            text = found
            if (within := TEMPLATES.get(key)) is not None:
                properties = fields.get(within) if within else fields
                text = render(
                    found, properties if isinstance(properties, dict) else {}, fields.get("@r")
                )
            if text == found:  # else the template says which events are alike
                del fields[key]
            return text
    return ""


def printable(path: str) -> str:
    """A file's name as text, also one that is not UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _encode(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record)

"""Parse: a text of the record becomes attributes, and some of them fields."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from typing_extensions import override

from penstock.collector.core.times import time_of
from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.severity import severity
from penstock.collector.transforms.event import PASS, Ending, Event, Noting, Refusal, Verdict
from penstock.collector.transforms.functions import to_integer, to_real, to_text
from penstock.collector.transforms.paths import Fields, getter
from penstock.specs.limits import ATTRIBUTES_MAX, STRING_CHARACTERS_MAX
from penstock.specs.models.log import severity_text

Read = Callable[[str, Fields], dict[str, Any] | None]
_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": to_integer,
    "double": to_real,
    "string": to_text,
    "bool": lambda value: {"true": True, "false": False}.get(str(value).lower()),
}


@dataclass(frozen=True, slots=True)
class Lift:
    """Keys whose values become fields of the record instead of attributes.

    Attributes:
        body: Text.
        severity: A level's name, or OpenTelemetry's number of it.
        time: In a named layout of `penstock.collector.core.times`, or a number since 1970.
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
    """

    body: str | None = None
    severity: str | None = None
    time: str | None = None
    trace_id: str | None = None
    span_id: str | None = None


class Parse(Noting):
    """Reads a field's text and adds what is in it to the attributes.

    Args:
        read: The format.
        path: Of the text.
        prefix: Before the names of the attributes.
        types: Keys to types; what cannot be converted stays as it is.
        lift: See there; a value that does not fit becomes an attribute like the others.
        on_failure: What becomes of a record whose text is not of the format.
    """

    outputs = (PASS,)

    def __init__(  # noqa: PLR0913 - a parser's options
        self,
        read: Read,
        path: tuple[str, ...],
        *,
        prefix: str,
        types: Mapping[str, str],
        lift: Lift,
        on_failure: Literal["pass", "filter", "quarantine"],
        name: str,
    ) -> None:
        self.notes = Counter()
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
        found = self._read(text, event.fields) if text.__class__ is str else None
        if found is None:
            return self._fail()
        for key, convert in self._types.items():
            if (value := found.get(key)) is not None:
                converted = convert(value)
                found[key] = value if converted is None else converted
        fields = _lifted(event.fields, found, self._lift, self.notes)
        event.fields = self._merged(fields, found)
        return PASS

    def _fail(self) -> Verdict:
        match self._on_failure:
            case "pass":
                return PASS
            case "filter":
                return Ending.FILTERED
            case "quarantine":
                return Refusal(f"text is not {self._name}")

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


def _lifted(fields: Fields, found: dict[str, Any], lift: Lift, notes: Counter[str]) -> Fields:
    changes: Fields = {}
    if lift.body is not None and isinstance(found.get(lift.body), str):
        body = found[lift.body].encode("utf-8", "replace").decode()
        if len(body) <= STRING_CHARACTERS_MAX:
            changes["body"] = body
            del found[lift.body]
    for key, unknown, read in (
        (lift.severity, "levels_unknown", _level),
        (lift.time, "timestamps_unreadable", lambda said: _time(said, fields)),
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


def _time(value: Any, fields: Fields) -> Fields | None:
    time_ns = time_of(value, seen_ns(fields))
    return None if time_ns is None else {"time_unix_nano": time_ns}


def seen_ns(fields: Fields) -> int:
    """When a record came to the collector, to which a time without a year is nearest."""
    return int(fields.get("observed_time_unix_nano") or fields.get("time_unix_nano") or 0)


def _is_id(value: Any, length: int) -> bool:
    return (
        value.__class__ is str
        and len(value) == length
        and not value.strip("0123456789abcdef")
        and bool(value.strip("0"))
    )

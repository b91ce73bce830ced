"""What the transforms share that read a text of the record: its parts become attributes and fields.

Nothing raises, whatever the text, and nothing takes longer than in proportion to it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.base.extras import MissingExtraError, require
from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.severity import severity
from penstock.collector.decode.timestamps import time_of
from penstock.collector.sources.settings import Section
from penstock.collector.transforms.expressions.expression import to_integer, to_real, to_text
from penstock.collector.transforms.expressions.paths import Fields, getter, parse_path
from penstock.collector.transforms.transform import (
    PASS,
    Event,
    OnFailure,
    ReadablePath,
    SettingsError,
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
CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
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


class FieldSettings(TransformSettings):
    """A text of the record becomes attributes."""

    field: ReadablePath
    prefix: str = Field(default="", max_length=64)
    on_failure: OnFailure = "pass"


class ParsingSettings(FieldSettings):
    """A text of the record becomes attributes, and some of them fields."""

    field: ReadablePath = "body"
    types: dict[str, Literal["int", "double", "string", "bool"]] = Field(default={})
    lift: LiftSection = LiftSection()


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


def require_extra(extra: str, library: str, context: TransformContext) -> None:
    """Check that the library which an extra brings is installed.

    Raises:
        SettingsError: It is not.
    """
    try:
        require(extra, library)
    except MissingExtraError as error:
        raise SettingsError(f"transforms.{context.name}.type: {error}") from None


class Parsing(Transform):
    """Reads a field's text and adds what is in it to the attributes.

    Args:
        read: The format.
        settings: Field with the text, and where its parts go.
        name: Name of the format, for the reason.
        prefix: Put before the names of the attributes; None: that of the settings.
        lift: Keys that become fields; None: those of the settings.
    """

    outputs: tuple[str, ...] = (PASS,)

    def __init__(
        self,
        read: Read,
        settings: FieldSettings,
        *,
        name: str,
        prefix: str | None = None,
        lift: LiftSection | None = None,
    ) -> None:
        types: Mapping[str, str] = {}
        own_lift = LiftSection()
        if isinstance(settings, ParsingSettings):
            types, own_lift = settings.types, settings.lift
        self._notes = Counter[str]()
        self._read = read
        self._text = getter(parse_path(settings.field))
        self._prefix = settings.prefix if prefix is None else prefix
        self._types = {key: CONVERSIONS[kind] for key, kind in types.items()}
        self._lift = lift or own_lift
        self._on_failure = settings.on_failure
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
        event.fields = with_attributes(fields, found, self._prefix)
        return PASS

    @property
    @override
    def notes(self) -> Mapping[str, int]:
        return self._notes


def with_attributes(fields: Fields, found: Mapping[str, Any], prefix: str = "") -> Fields:
    """The fields with what was found as attributes, which are replaced where they are.

    What has no room is counted in the record's `dropped_attributes_count`.
    """
    if not found:
        return fields
    old: dict[str, Any] = fields.get("attributes") or {}
    if prefix:
        found = {f"{prefix}{key}": value for key, value in found.items()}
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

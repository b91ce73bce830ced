"""Explode: each item of an array becomes a record.

The array is a list, or a text that is one in JSON. An item that is an object becomes attributes;
any other takes the place of the array. All else of the record is in each of them, so a large record
with many small items would become very much more: `max_items` and `max_bytes` bound what is made.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

import msgspec
from pydantic import Field
from typing_extensions import override

from penstock.collector.decode.attributes import flatten
from penstock.collector.limits import KIB, MIB
from penstock.collector.transforms.expressions.expression import to_text
from penstock.collector.transforms.expressions.paths import (
    Fields,
    assign,
    getter,
    parse_path,
    without,
)
from penstock.collector.transforms.texts.field_parser import with_attributes
from penstock.collector.transforms.transform import (
    PASS,
    Event,
    OnFailure,
    Refusal,
    Split,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
    WritablePath,
    failed,
)
from penstock.specs.models.codec import encode_json

_json: Final = msgspec.json.Encoder()
_json_reader: Final = msgspec.json.Decoder()


class ExplodeSettings(TransformSettings):
    """Each item of an array becomes a record."""

    type: Literal["explode"]
    field: WritablePath = Field(default="body", description="a list, or its text in JSON")
    items: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="the key of the array, where the text is an object that has it",
    )
    prefix: str = Field(
        default="", max_length=64, description="before the names of an object's attributes"
    )
    index: str | None = Field(
        default=None, min_length=1, max_length=128, description="attribute that counts from 0"
    )
    max_items: int = Field(
        default=64, ge=1, le=1000, description="a record with more is quarantined as it came"
    )
    max_bytes: int = Field(
        default=4 * MIB, ge=64 * KIB, le=256 * MIB,
        description="of all the records that one becomes; likewise",
    )  # fmt: skip
    on_failure: OnFailure = "pass"


class Explode(Transform):
    """Takes arrays apart."""

    settings = ExplodeSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(settings)

    def __init__(self, settings: ExplodeSettings) -> None:
        self._settings = settings
        self._path = parse_path(settings.field)
        self._array = getter(self._path)
        self._notes = Counter[str]()

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        settings = self._settings
        items = self._items(event.fields)
        if items is None:
            return failed(settings.on_failure, "field is no array")
        if not items:
            return PASS
        if len(items) > settings.max_items:
            self._notes["too_many_items"] += 1
            return Refusal(f"the array has more than {settings.max_items} items (max_items)")
        if self._size_of(event.fields, items) > settings.max_bytes:
            self._notes["parts_too_large"] += 1
            return Refusal(f"its items become more than {settings.max_bytes} bytes (max_bytes)")
        return Split([self._part(event.fields, item, place) for place, item in enumerate(items)])

    @property
    @override
    def notes(self) -> Mapping[str, int]:
        return self._notes

    def _size_of(self, fields: Fields, items: list[Any]) -> int:
        """Bytes that the parts take: what they share once for each, and the items."""
        return len(encode_json(self._rest(fields))) * len(items) + len(_json.encode(items))

    def _rest(self, fields: Fields) -> Fields:
        """The record without its array; a log record's body stays, empty."""
        is_body = self._path == ("body",)
        return assign(fields, self._path, "") if is_body else without(fields, self._path)

    def _items(self, fields: Fields) -> list[Any] | None:
        value = self._array(fields)
        if value.__class__ is str:
            value = _read(value)
        if self._settings.items is not None and isinstance(value, dict):
            value = value.get(self._settings.items)
        return value if isinstance(value, list) else None

    def _part(self, fields: Fields, item: Any, place: int) -> Fields:
        is_body = self._path == ("body",)
        if isinstance(item, dict):
            made = with_attributes(self._rest(fields), item, self._settings.prefix)
        else:
            plain = flatten({"item": item})[0].get("item")
            text = to_text(plain) or _json.encode(plain).decode()
            made = assign(fields, self._path, text if is_body else plain)
        if self._settings.index is not None:
            made = with_attributes(made, {self._settings.index: place})
        return made


def _read(text: str) -> Any:
    """The JSON value that a text is; None where it is none."""
    try:
        return _json_reader.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None

"""The types that fields of all specs are made of."""

import math
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    INT64_MAX,
    INT64_MIN,
    KEY_CHARACTERS_MAX,
    LIST_ITEMS_MAX,
    NAME_CHARACTERS_MAX,
    SCHEMA_CHARACTERS_MAX,
    STRING_CHARACTERS_MAX,
)

Kind = Literal["log", "span", "metric", "event", "audit"]
"""The closed set that parsers and routers dispatch on; `schema` picks the spec within it."""

SCHEMA_PATTERN: Final = (
    r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*/(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})$"
)


def no_integer(value: Any) -> Any:
    """An integer that int64 cannot hold must not slip through as a rounded float."""
    if value.__class__ is int:
        raise ValueError("integer outside int64")
    return value


_WORDS: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def not_finite_word(value: Any) -> Any:
    """A float that JSON has no number for as its word, as protobuf's JSON mapping writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return _WORDS.get(value, "NaN")
    return value


class ReadersFirst:
    """Marks a field that a minor version made wider: readers must know that version first.

    It is the one exception from the rule that minor versions are compatible both ways, and
    `penstock specs check` allows it for marked fields only.
    """

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "x-readers-first": True}


SchemaId = Annotated[str, Field(pattern=SCHEMA_PATTERN, max_length=SCHEMA_CHARACTERS_MAX)]
Nanoseconds = Annotated[int, Field(ge=0, le=INT64_MAX)]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
Int64 = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=STRING_CHARACTERS_MAX)]
Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]
TraceId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
SpanId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
RecordId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

_Real = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(no_integer)]
NotFinite = Annotated[Literal["NaN", "Infinity", "-Infinity"], BeforeValidator(not_finite_word)]
Number = Annotated[Int64 | _Real | NotFinite, Field(union_mode="left_to_right")]
"""A measured value. NaN and the infinities, which JSON has no numbers for, are words."""
Measured = Annotated[Finite | NotFinite, Field(union_mode="left_to_right")]
"""A measured value for which integers are no separate type."""
Scalar = Annotated[Text | bool | Int64 | _Real | None, Field(union_mode="left_to_right")]
AttributeKey = Annotated[str, Field(min_length=1, max_length=KEY_CHARACTERS_MAX)]
AttributeValue = Annotated[
    Text | bool | Int64 | _Real | Annotated[list[Scalar], Field(max_length=LIST_ITEMS_MAX)] | None,
    Field(union_mode="left_to_right"),
]
Attributes = Annotated[dict[AttributeKey, AttributeValue], Field(max_length=ATTRIBUTES_MAX)]
"""OpenTelemetry attributes: flat, dotted keys, scalars or lists of scalars."""
